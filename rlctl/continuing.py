"""Whether and how a run folder's run goes on: what may change meanwhile, and the record of it. No torch."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from rlctl import checkpoint
from rlctl.config.schema import Config
from rlctl.errors import ConfigError

FREE = ("run.dir", "run.resume", "run.import_paths", "console.mode", "sweep.parallel", "sweep.fail_fast")
"""Keys whose change is no news."""
FIXED = (
    "seed", "model.path", "algo.name", "algo.path", "data.path", "data.split", "data.name", "data.limit", "data.prompt_column",
    "launch.strategy",
)  # fmt: skip
"""Keys that make it another run."""


@dataclass(frozen=True)
class Change:
    """A key whose value differs from the run's so far."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}={self.now} (was {self.before})"


def changes(before: Config, now: Config) -> list[Change]:
    """Every key that differs, but those that are no news."""
    return [c for c in _changes(before, now, "") if c.key not in FREE]


def _changes(before: Any, now: Any, prefix: str) -> Iterator[Change]:
    if is_dataclass(before) and type(before) is type(now):
        for f in dataclasses.fields(before):  # type: ignore[arg-type]
            yield from _changes(getattr(before, f.name), getattr(now, f.name), f"{prefix}.{f.name}" if prefix else f.name)
    elif isinstance(before, dict) and isinstance(now, dict) and before.keys() == now.keys():
        for key in before:
            yield from _changes(before[key], now[key], f"{prefix}.{key}")
    elif before != now:
        yield Change(prefix, before, now)


def check(before: Config, now: Config, run_dir: Path) -> list[Change]:
    """The changes with which a run goes on.

    Raises:
        ConfigError: one of them makes it another run, or there is no step left.
    """
    found = changes(before, now)
    if other := [c for c in found if _makes_another_run(c)]:
        raise ConfigError(
            f"the run in {run_dir} cannot go on with other {', '.join(c.key for c in other)}",
            "\n".join(str(c) for c in other),
            "leave it out, or start a run of its own: rlctl train model=hf:" + str(run_dir / "policy"),
        )
    done = steps_done(run_dir)
    if done >= now.steps:
        raise ConfigError(
            f"the run in {run_dir} is finished: {done} of {now.steps} steps are done",
            hint=f"rlctl resume {run_dir} run.steps={2 * done} goes on to step {2 * done}",
        )
    return found


def _makes_another_run(change: Change) -> bool:
    if change.key.startswith("launch.") and change.before is None:
        return False  # it was left to the machine, and is again
    return change.key in FIXED or is_dataclass(change.before) or change.key == "tasks"


def steps_done(run_dir: Path) -> int:
    """The step after which a run would go on; 0 without a checkpoint."""
    kept = checkpoint.checkpoints(run_dir)
    return kept[-1][0] if kept else 0


def is_finished(run_dir: Path) -> bool:
    """Whether a run came to its own end."""
    path = run_dir / "summary.json"
    return path.is_file() and json.loads(path.read_text())["status"] in ("finished", "stopped")


def take_up(before: Config, now: Config, run_dir: Path) -> None:
    """Check, show and record (resumes.jsonl) that a run goes on, and with what changes.

    Raises:
        ConfigError: see `check`.
    """
    found = check(before, now, run_dir)
    for change in found:
        sys.stdout.write(f"changed: {change}\n")
    sys.stdout.flush()
    line = {"after_step": steps_done(run_dir), "time": time.strftime("%Y-%m-%d %H:%M:%S"), "changes": [str(c) for c in found]}
    with (run_dir / "resumes.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
