"""The commands, one module each: `run(argv, show_traceback)` returns the exit status. Only `rlctl.cli` calls them."""
