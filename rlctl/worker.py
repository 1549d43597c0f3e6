"""`python -m rlctl.worker [RUN_DIR]`: trains the config that a parent composed and saved there, or that the first process of
another machine tells. Not for people."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rlctl import handover, launch
from rlctl.config import compose


def main(argv: list[str]) -> int:
    """Train what RUN_DIR/config.yaml says, or what is told; the exit status."""
    folders, show_traceback = [a for a in argv if not a.startswith("--")], "--traceback" in argv
    if not folders:
        return launch.follow(show_traceback)
    run_dir = Path(folders[0])
    launch.log_to(run_dir)
    config = compose.load(run_dir / "config.yaml")
    if "--tell" in argv and os.environ.get("RANK") == "0":
        handover.tell(handover.Word(compose.dumps(config)))
    # one of several processes, or a member of a sweep, which may start several itself
    return (launch.run_here if "RANK" in os.environ else launch.run)(config, show_traceback)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
