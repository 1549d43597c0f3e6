"""What a command puts into a run folder before anything runs there, and after something that could not speak for itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rlctl.config import compose
from rlctl.errors import ConfigError


def holds_run(folder: Path) -> bool:
    """Whether a run was begun there."""
    return any((folder / name).exists() for name in ("config.yaml", "metrics.jsonl", "summary.json"))


def claim(folder: Path) -> None:
    """Refuse a folder that holds a run already.

    Raises:
        ConfigError: it does.
    """
    if holds_run(folder):
        raise ConfigError(
            f"the run folder {folder} holds a run already",
            "a run never writes over another",
            "leave hydra.run.dir out, or give it a new folder",
        )


def write_record(job: compose.Job, command: str) -> None:
    """What was typed, and Hydra's record of it; of a run that goes on, beside what was typed first."""
    (job.run_dir / ".hydra").mkdir(exist_ok=True)
    for name, text in job.hydra_files.items():
        (job.run_dir / ".hydra" / name).write_text(text)
    with (job.run_dir / "command.txt").open("a") as file:
        file.write(command + "\n")


def write_summary(folder: Path, status: str, reason: str) -> None:
    """A summary.json for a run that wrote none."""
    aside = folder / f".summary.{os.getpid()}"
    aside.write_text(json.dumps({"status": status, "reason": reason}) + "\n")
    aside.replace(folder / "summary.json")


def summary_of(folder: Path) -> dict[str, object]:
    """Its summary.json; empty where there is none, or half of one."""
    try:
        found = json.loads((folder / "summary.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
