"""`python -m rlctl.worker RUN_DIR`: trains the config that a parent composed and saved there. Not for people."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rlctl import launch
from rlctl.config import compose


def main(argv: list[str]) -> int:
    """Train what RUN_DIR/config.yaml says; the exit status."""
    run_dir = Path(argv[0])
    launch.log_to(run_dir)
    config, show_traceback = compose.load(run_dir / "config.yaml"), "--traceback" in argv
    # one of several processes, or a member of a sweep, which may start several itself
    return (launch.run_here if "RANK" in os.environ else launch.run)(config, show_traceback)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
