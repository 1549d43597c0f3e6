"""`python -m rlctl.worker RUN_DIR`: trains the config that a parent composed and saved there. Not for people."""

from __future__ import annotations

import sys
from pathlib import Path

from rlctl import launch
from rlctl.config import compose


def main(argv: list[str]) -> int:
    """Train what RUN_DIR/config.yaml says; the exit status."""
    run_dir = Path(argv[0])
    launch.log_to(run_dir)
    return launch.run_here(compose.load(run_dir / "config.yaml"), "--traceback" in argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
