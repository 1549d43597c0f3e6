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


def open_run_folder(job: compose.Job, command: str) -> None:
    """Claim the job's folder and write Hydra's record and the command into it.

    Raises:
        ConfigError: it holds a run already.
    """
    if holds_run(job.run_dir):
        raise ConfigError(
            f"the run folder {job.run_dir} holds a run already",
            "a run never writes over another",
            "leave hydra.run.dir out, or give it a new folder",
        )
    write_record(job, command)


def write_record(job: compose.Job, command: str) -> None:
    """Hydra's record of the job, and the command."""
    (job.run_dir / ".hydra").mkdir(exist_ok=True)
    for name, text in job.hydra_files.items():
        (job.run_dir / ".hydra" / name).write_text(text)
    (job.run_dir / "command.txt").write_text(command + "\n")


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
