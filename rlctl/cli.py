"""argv -> command. Every error a user can act on becomes one clear message and an exit status.

0 ok, 2 usage or config, 3 data or reward, 4 training, 130 interrupted, 1 anything unexpected.
"""

from __future__ import annotations

import importlib
import sys

from rlctl import __version__
from rlctl.config import help as help_text
from rlctl.errors import ConfigError, RlctlError, nearest

COMMANDS = {
    "train": "rlctl.commands.train",
    "resume": "rlctl.commands.resume",
    "score": "rlctl.commands.score",
    "sft": "rlctl.commands.sft",
    "rm": "rlctl.commands.rm",
    "runs": "rlctl.commands.runs",
    "recipes": "rlctl.commands.recipes",
    "new": "rlctl.commands.new",
    "check": "rlctl.commands.check",
}
"""Command -> the module whose `run(argv, show_traceback) -> exit status` is it."""


def main(argv: list[str] | None = None) -> int:
    """The `rlctl` command; returns its exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in argv
    argv = [a for a in argv if a != "--traceback"]
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            sys.stdout.write(help_text.overview())
            return 0
        if argv[0] in ("-V", "--version"):
            sys.stdout.write(f"rlctl {__version__}\n")
            return 0
        if argv[0] not in COMMANDS:
            raise _unknown_command(argv[0])
        status: int = importlib.import_module(COMMANDS[argv[0]]).run(argv[1:], show_traceback)
        return status
    except KeyboardInterrupt:
        return 130
    except RlctlError as error:
        from rlctl import launch

        launch.report(error, show_traceback)
        return error.exit_status


def _unknown_command(word: str) -> ConfigError:
    near = nearest(word, COMMANDS)
    if near is None and "=" in word:
        near = f"train {word}"
    return ConfigError(f"unknown command {word}", f"there are: {', '.join(COMMANDS)}", f"rlctl {near}" if near else "rlctl --help")
