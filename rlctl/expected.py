"""What a recipe promises: expected.json, the numbers of its README for machines, and how a finished run compares.

Knows metrics.jsonl of a run folder. Knows nothing of how a run is started or shown. No torch.

    {"shows": "PPO on a function reward", "seconds": 40, "hardware": "2 CPU cores",
     "commands": [["train", "{recipe}"]],
     "checks": [{"metric": "objective/scores", "at": "last 3", "min": 3.0, "means": "how often \\"good\\" is said"}]}

`commands` may be left out: then it is the one above. Each is what follows `rlctl`, or begins with `python` and runs a script; {recipe} is
the recipe's folder and {run} the run folder, which a command that does not name it gets as its run folder. A check may name
the folder inside {run} whose metrics it reads, as `"run": "ppo"`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean
from typing import Any

from rlctl.errors import ConfigError

FILE = "expected.json"
_AT = re.compile(r"first|last|best|lowest|(?:first|last|step) [1-9]\d*")


@dataclass(frozen=True)
class Check:
    """One number that a run must show."""

    metric: str
    at: str
    """first, last, best (the highest of all steps), lowest, `step N`, or the mean of the `first N` or `last N` steps."""
    means: str
    """The metric in the recipe's own words."""
    min: float | None = None
    max: float | None = None
    run: str = ""
    """Folder inside the run folder whose metrics.jsonl holds it."""

    @property
    def name(self) -> str:
        """The metric, after the folder it is read from if that is not the run folder itself."""
        return f"{self.run}: {self.metric}" if self.run else self.metric

    @property
    def limits(self) -> str:
        """`at least 3`, `at most 40`, or `1 to 3`."""
        if self.min is not None and self.max is not None:
            return f"{self.min:g} to {self.max:g}"
        return f"at least {self.min:g}" if self.min is not None else f"at most {self.max:g}"

    @property
    def when(self) -> str:
        """`at` as a reader has it.

        >>> [Check("objective/kl", at, "KL", max=1).when for at in ("last", "first 3", "step 5", "best")]
        ['last step', 'mean of the first 3 steps', 'step 5', 'highest of all steps']
        """
        word, _, count = self.at.partition(" ")
        plain = {"first": "first step", "last": "last step", "best": "highest of all steps", "lowest": "lowest of all steps"}
        return self.at if word == "step" else f"mean of the {word} {count} steps" if count else plain[word]

    def holds(self, value: float | None) -> bool:
        """Whether a measured value keeps the limits; one that is missing or not finite never does."""
        if value is None:
            return False
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


@dataclass(frozen=True)
class Expected:
    """All that expected.json says."""

    shows: str
    """What the recipe shows, in one line."""
    seconds: float
    """How long its commands take on `hardware`."""
    hardware: str
    commands: tuple[tuple[str, ...], ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Result:
    """A check and what a run showed."""

    check: Check
    seen: float | None

    @property
    def ok(self) -> bool:
        """Whether it holds."""
        return self.check.holds(self.seen)


def read(folder: Path) -> Expected:
    """The expected.json of a recipe folder.

    Raises:
        ConfigError: there is none, or it does not hold what it must.
    """
    path = folder / FILE
    if not path.is_file():
        raise ConfigError(f"{folder} has no {FILE}", "it holds the numbers to compare with", "take one from a recipe: rlctl recipes")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read", str(error)) from error
    if problem := _problem(raw):
        raise ConfigError(f"{path} cannot be used", problem)
    commands = tuple(tuple(command) for command in raw.get("commands", [["train", "{recipe}"]]))
    return Expected(raw["shows"], raw["seconds"], raw["hardware"], commands, tuple(Check(**check) for check in raw["checks"]))


def _problem(raw: Any) -> str | None:
    needed = {"shows": str, "seconds": (int, float), "hardware": str, "checks": list}
    if not isinstance(raw, dict):
        return "it is no JSON object"
    for key, kind in needed.items():
        if not isinstance(raw.get(key), kind):
            return f"{key} is missing or of the wrong type"
    if unknown := sorted(set(raw) - set(needed) - {"commands"}):
        return f"there is no key {unknown[0]!r}"
    if not raw["checks"]:
        return "checks is empty: there is nothing to compare with"
    commands = raw.get("commands", [["train"]])
    if not commands or not all(isinstance(c, list) and c and all(isinstance(part, str) for part in c) for c in commands):
        return "commands is a list of lists of words"
    return next((problem for number, check in enumerate(raw["checks"]) if (problem := _check_problem(number, check))), None)


def _check_problem(number: int, check: Any) -> str | None:
    where, known = f"checks[{number}]", {f.name for f in fields(Check)}
    if not isinstance(check, dict) or not all(isinstance(check.get(key), str) for key in ("metric", "at", "means")):
        return f"{where} needs metric, at and means"
    if unknown := sorted(set(check) - known):
        return f"{where}: there is no key {unknown[0]!r}"
    if not _AT.fullmatch(check["at"]):
        return f"{where}: at={check['at']!r} is none of first, last, best, lowest, first N, last N, step N"
    limits = [check[key] for key in ("min", "max") if key in check]
    if not limits or not all(isinstance(limit, (int, float)) for limit in limits):
        return f"{where} needs min, max or both, as numbers"
    return None


def filled(command: tuple[str, ...], recipe: Path, run: Path) -> list[str]:
    """A command with its two folders in place.

    >>> filled(("train", "{recipe}", "model=hf:{run}/sft/policy"), Path("mine"), Path("outputs/mine"))
    ['train', 'mine', 'model=hf:outputs/mine/sft/policy']
    """
    return [part.replace("{recipe}", str(recipe)).replace("{run}", str(run)) for part in command]


def compare(expected: Expected, run: Path) -> list[Result]:
    """What a run folder shows, check by check."""
    held: dict[str, list[dict[str, Any]]] = {}
    for check in expected.checks:
        path = run / check.run / "metrics.jsonl"
        if check.run not in held:
            held[check.run] = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [Result(check, measured(held[check.run], check)) for check in expected.checks]


def measured(rows: list[dict[str, Any]], check: Check) -> float | None:
    """The value of a check in the lines of metrics.jsonl; None if the run has no such step, or no number there.

    >>> rows = [{"step": i, "objective/kl": float(i)} for i in (1, 2, 3, 4)]
    >>> [measured(rows, Check("objective/kl", at, "KL", max=1)) for at in ("first", "last 2", "step 3", "best", "step 9")]
    [1.0, 3.5, 3.0, 4.0, None]
    """
    word, _, count = check.at.partition(" ")
    if word == "step":
        chosen = [row for row in rows if row["step"] == int(count)]
    elif word in ("best", "lowest"):
        chosen = rows
    else:
        n = int(count or 1)
        chosen = (rows[:n] if word == "first" else rows[-n:]) if len(rows) >= n else []
    values = [row.get(check.metric) for row in chosen]
    if not values or any(value is None for value in values):
        return None
    pick = {"best": max, "lowest": min}.get(word, mean)
    return float(pick(values))


def markdown(expected: Expected) -> list[str]:
    """The lines that a recipe's README holds about its numbers."""
    lines = [f"About {expected.seconds:g} seconds on {expected.hardware}. What you should see:", ""]
    lines += ["| | metric | when | value |", "|---|---|---|---|"]
    lines += [f"| {c.means} | `{c.name}` | {c.when} | {c.limits} |" for c in expected.checks]
    return lines
