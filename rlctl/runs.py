"""Reads run folders and sweeps of them: how far each came, its first, last and best numbers, what was changed. No torch.

It takes folders as it finds them: a run may be going on, killed in the middle of a line, or of an older version. It draws nothing.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rlctl import lock

SCORE = "objective/scores"
_DEPTH = 4
"""Folders below a given one that are looked into: outputs/DATE/TIME and multirun/DATE/TIME/N, and one to spare."""


@dataclass(frozen=True)
class Run:
    """A run folder, read."""

    path: Path
    status: str
    """As in Summary.status; running and unfinished (nobody works there any more) without one, broken if it cannot be read."""
    reason: str = ""
    steps_done: int | None = None
    steps: int | None = None
    """Planned."""
    seconds: float | None = None
    started: float = 0.0
    """Seconds since the epoch."""
    first: dict[str, float | None] = field(default_factory=dict)
    last: dict[str, float | None] = field(default_factory=dict)
    best_score: float | None = None
    best_step: int | None = None
    overrides: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    """As typed first, split: ["rlctl", "train", ...]."""

    @property
    def number(self) -> int | None:
        """Its number in a sweep, by the name of its folder."""
        return int(self.path.name) if self.path.name.isdigit() else None

    def last_of(self, metric: str) -> float | None:
        """The last value of a metric; None if there is none, or none that is finite."""
        value = self.last.get(metric)
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class Sweep:
    """A folder of members."""

    path: Path
    members: list[Run]
    planned: list[list[str]] = field(default_factory=list)
    """Overrides of every member that the newest start of the sweep had; empty if not known."""

    @property
    def started(self) -> float:
        """When its first member was."""
        return min((m.started for m in self.members), default=_changed(self.path))

    @property
    def missing(self) -> list[int]:
        """Numbers of members that have no run."""
        return sorted(set(range(len(self.planned))) - {m.number for m in self.members if m.number is not None})


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return any((folder / name).is_file() for name in ("config.yaml", "metrics.jsonl", "summary.json")) and not _is_recipe(folder)


def _is_recipe(folder: Path) -> bool:
    """A recipe has a config.yaml as well, but nothing of what a command writes beside it."""
    return not any((folder / name).exists() for name in ("command.txt", ".hydra", "metrics.jsonl", "summary.json"))


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep."""
    return (folder / "multirun.yaml").is_file() or (folder / "sweep.json").is_file()


def read(folder: Path) -> Run:
    """A run folder; what cannot be read in it makes it a broken one."""
    started = min((_changed(p) for name in ("command.txt", "config.yaml", "metrics.jsonl") if (p := folder / name).is_file()), default=0.0)
    try:
        return _read(folder, started or _changed(folder))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        return Run(folder, "broken", (str(error).strip().splitlines() or [type(error).__name__])[0], started=started)


def _read(folder: Path, started: float) -> Run:
    summary = _json(folder / "summary.json")
    status = summary.get("status") or ("running" if lock.held(folder) else "unfinished")
    # without a summary it goes on, or was ended before it could sum up
    told = {k: summary.get(k) for k in ("steps_done", "seconds", "first", "last", "best_score", "best_step")}
    told |= {} if told["last"] else _told_by_metrics(folder)
    typed = (folder / "command.txt").read_text().splitlines() if (folder / "command.txt").is_file() else []
    command = shlex.split(typed[0]) if typed else []
    return Run(
        folder, str(status), str(summary.get("reason") or ""), steps=_planned(folder), started=started,
        overrides=_overrides(folder), command=command, **{k: v for k, v in told.items() if v is not None},
    )  # fmt: skip


def _told_by_metrics(folder: Path) -> dict[str, Any]:
    rows = metrics(folder)
    if not rows:
        return {}
    scored = [row for row in rows if isinstance(row.get(SCORE), float | int)]
    top = max(scored, key=lambda row: row[SCORE], default={})
    return {
        "steps_done": rows[-1]["step"],
        "seconds": sum(row.get("time/step") or 0.0 for row in rows),
        "first": rows[0],
        "last": rows[-1],
        "best_score": top.get(SCORE),
        "best_step": top.get("step"),
    }


def _yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is no YAML: {' '.join(str(error).split())}") from error


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return _object(path.read_bytes(), path.name)


def _object(text: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} holds no object")
    return found


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl. A last line without its end is being written, or was cut by a kill: it is left out.

    Raises:
        ValueError: another line is no JSON.
    """
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    rows = [_object(line, f"metrics.jsonl, line {i},") for i, line in enumerate(lines, 1)]
    if not all(isinstance(row.get("step"), int) for row in rows):
        raise ValueError("metrics.jsonl holds a line without a step")
    return rows


def _planned(folder: Path) -> int | None:
    if not (folder / "config.yaml").is_file():
        return None
    config = _yaml(folder / "config.yaml") or {}
    steps, cut = (config.get("run") or {}).get("steps"), (config.get("debug") or {}).get("max_steps")
    return min(steps, cut) if isinstance(steps, int) and isinstance(cut, int) else steps


def _overrides(folder: Path) -> list[str]:
    path = folder / ".hydra" / "overrides.yaml"
    return [str(o) for o in _yaml(path) or []] if path.is_file() else []


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def read_sweep(folder: Path) -> Sweep:
    """All members of a sweep, by number."""
    members = [read(p) for p in _below(folder) if is_run(p)]
    members.sort(key=lambda m: (m.number is None, m.number or 0, m.path.name))
    planned = _json(folder / "sweep.json").get("members") or []
    return Sweep(folder, members, planned)


def find(folder: Path, depth: int = _DEPTH) -> Iterator[Run | Sweep]:
    """Runs and sweeps in a folder, wherever in it."""
    if is_run(folder):
        yield read(folder)
    elif is_sweep(folder):
        yield read_sweep(folder)
    elif depth:
        for below in _below(folder):
            yield from find(below, depth - 1)


def _below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def ranked(members: list[Run], by: str) -> list[Run]:
    """Best first: by a metric's last value, or `best`, the best score; a leading - puts the lowest first. Failed ones come last."""

    def key(run: Run) -> tuple[bool, bool, float, int]:
        value = value_of(run, by)
        order = 0.0 if value is None else value if by.startswith("-") else -value
        return run.status in ("failed", "broken"), value is None, order, run.number or 0

    return sorted(members, key=key)


def value_of(run: Run, by: str) -> float | None:
    """What `ranked` compares."""
    name = by.removeprefix("-")
    return run.best_score if name == "best" else run.last_of(name)


def pasteable(run: Run) -> str:
    """The command that trains this run's config again, quoted for a shell: recipe folder and other config folders as typed."""
    typed = run.command[2:] if run.command[1:2] else []
    recipe = typed[:1] if typed and not typed[0].startswith(("-", "+", "~")) and "=" not in typed[0] else []
    flags = []
    for i, word in enumerate(typed):
        name, equals, _ = word.partition("=")
        if name in ("--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp"):
            flags += [word] if equals else typed[i : i + 2]
    return shlex.join([*(run.command[:2] or ["rlctl", "train"]), *recipe, *flags, *run.overrides])
