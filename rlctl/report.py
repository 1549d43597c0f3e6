"""What a run tells about itself while it goes: plain data and the protocol of whoever shows it.

The loop calls a Reporter; the console implements it. Nothing here knows rich, torch or a terminal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

PHASES = ("generate", "score", "forward", "update", "save")


@dataclass(frozen=True)
class Plan:
    """What will be done, known before the first step."""

    title: str
    """Algorithm and reward, as typed: `ppo  fn:mypkg.count_good`."""
    run_dir: Path
    steps: int
    facts: tuple[tuple[str, str], ...]
    """(label, text) in the order to show: policy, value model with its reason, sizes derived from the config, ..."""


@dataclass(frozen=True)
class Sample:
    """One response with its score."""

    prompt: str
    response: str
    score: float
    truncated: bool = False
    kl: float | None = None


@dataclass(frozen=True)
class Step:
    """One finished step. `metrics` holds the names of `metrics.METRICS`; absent ones were not measured."""

    step: int
    steps: int
    metrics: dict[str, float]
    best: Sample | None = None
    worst: Sample | None = None


@dataclass(frozen=True)
class Warning:
    """Something that looks wrong: what is seen, the likely cause, and what to change."""

    key: str
    """Identity: each key is shown once."""
    what: str
    cause: str
    change: str


@dataclass(frozen=True)
class Summary:
    """How a run ended; written as summary.json."""

    status: str
    """finished, stopped (by a limit the user set), interrupted or failed."""
    reason: str
    """Why it ended, one line."""
    run_dir: Path
    steps_done: int
    seconds: float
    first: dict[str, float] = field(default_factory=dict)
    """Metrics of the first step."""
    last: dict[str, float] = field(default_factory=dict)
    """Metrics of the last step."""
    best_step: int | None = None
    best_score: float | None = None
    before: Sample | None = None
    """A response of the first step."""
    after: Sample | None = None
    """A response of the last step, to the same prompt where the data allows it."""
    files: tuple[tuple[str, str], ...] = ()
    """(label, path) of what was written."""
    next_commands: tuple[str, ...] = ()
    """Commands ready to paste."""


class Reporter(Protocol):
    """Shows a run. Every method returns at once; none raises for want of a terminal."""

    def start(self, plan: Plan) -> None:
        """The run is about to take its first step."""

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """A phase of the current step began, or is `done` of `total` through."""

    def step(self, step: Step) -> None:
        """A step ended."""

    def warn(self, warning: Warning) -> None:
        """Something looks wrong. Repeats of one key are shown once."""

    def note(self, text: str) -> None:
        """One line of news: a checkpoint was written, inner epochs ended early, ..."""

    def finish(self, summary: Summary) -> None:
        """The run ended, well or not."""

    def close(self) -> None:
        """Give the terminal back; safe to call twice, also after an exception."""


@dataclass(frozen=True)
class ScoreRow:
    """One scored response."""

    prompt: str
    response: str
    score: float | None
    """None where the reward failed."""
    parts: dict[str, float | None]
    truncated: bool
    verdicts: dict[str, bool | None] = field(default_factory=dict)
    """Of every judge; None: it could not judge, which counts as a fail."""


@dataclass(frozen=True)
class Finding:
    """Something about a reward that a training would run into."""

    level: str
    """stop: training could not learn from it.  look: it could, but is this meant?"""
    key: str
    what: str
    cause: str
    change: str


@dataclass(frozen=True)
class ScoreReport:
    """What trying a reward showed."""

    reward: str
    rows: list[ScoreRow]
    group_size: int
    """Rows of one prompt side by side."""
    milliseconds: float | None
    """A response, on average."""
    first_text: str
    """Exactly what a function that takes texts sees first."""
    passed: tuple[str, ...]
    """`name: value` of everything a function is given for the first response."""
    findings: tuple[Finding, ...]

    @property
    def learnable(self) -> bool:
        """Whether training could learn from this reward."""
        return not any(f.level == "stop" for f in self.findings)
