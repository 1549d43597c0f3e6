"""`rlctl resume RUN_DIR [overrides...]`: go on exactly where a run stopped."""

from __future__ import annotations

import functools
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.config import help as help_text
from rlctl.errors import ConfigError

if TYPE_CHECKING:
    from rlctl.place import Place


def run(argv: list[str], show_traceback: bool) -> int:
    """The run's exit status."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(help_text.resume())
        return 0
    if not argv or "=" in argv[0] or argv[0].startswith("-"):
        raise ConfigError("rlctl resume needs the folder of a run", hint="rlctl resume RUN_DIR [key=value ...]")
    from rlctl import launch, place

    own = place.started_by(os.environ)
    command = functools.partial(_run, argv, show_traceback, own)
    return launch.together(own, command, show_traceback) if own is not None and own.world > 1 else command()


def _run(argv: list[str], show_traceback: bool, own: Place | None) -> int:
    from rlctl import continuing, launch, lock, place
    from rlctl.config import compose
    from rlctl.config.schema import Config, Resume

    run_dir, overrides = Path(argv[0]).resolve(), argv[1:]
    _check_folder(run_dir, argv[0])
    before = compose.load(run_dir / "config.yaml")
    if not isinstance(before, Config):
        raise ConfigError(f"the run in {run_dir} is of rlctl {before.stage}, which starts anew", hint=f"start it again: {_again(run_dir)}")
    now = compose.changed(before, overrides)
    now = replace(now, run=replace(now.run, dir=str(run_dir), resume=Resume.auto))  # the folder may have been moved
    now = place.ready(now, own, os.environ)
    if now.launch.machine_rank:  # the first machine keeps the record
        return launch.run(now, show_traceback, own)
    if not continuing.steps_done(run_dir):
        raise ConfigError(
            f"the run in {run_dir} has no checkpoint to go on from",
            "it stopped before its first one (run.save_every, and an interrupt, write them)",
            f"start it again: {_again(run_dir)}",
        )
    with lock.take(run_dir):
        continuing.take_up(before, now, run_dir)
        with (run_dir / "command.txt").open("a") as file:
            file.write(shlex.join(["rlctl", "resume", *argv]) + "\n")
        compose.save(now, run_dir / "config.yaml")
        launch.log_to(run_dir)
        return launch.run(now, show_traceback, own)


def _check_folder(run_dir: Path, typed: str) -> None:
    if not run_dir.is_dir():
        raise ConfigError(f"no run at {typed}", "there is no such folder", "rlctl resume RUN_DIR")
    if not (run_dir / "config.yaml").is_file():
        members = sorted(p.name for p in run_dir.iterdir() if (p / "config.yaml").is_file())
        why = f"it holds runs: {', '.join(members[:8])}" if members else "it holds no config.yaml"
        raise ConfigError(f"{typed} is not the folder of a run", why, f"rlctl resume {typed}/{members[0]}" if members else None)


def _again(run_dir: Path) -> str:
    path = run_dir / "command.txt"
    return path.read_text().splitlines()[0] if path.is_file() else "rlctl train"
