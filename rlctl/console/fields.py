"""Which metrics are shown, in which order and how: the one list behind the live table and the plain line.

The order is the order of importance: a low terminal drops from the end. What a metric means is in `rlctl.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rlctl.console.numbers import number, percent

Format = Callable[[float | None], str]


@dataclass(frozen=True)
class Field:
    """One metric shown."""

    metric: str
    """Name in `rlctl.metrics.METRICS`."""
    label: str
    """In the live table."""
    show: Format
    """In the live table."""
    plain: str | None = None
    """In a plain line: text with one {} for the value; None leaves it out there."""
    plain_width: int = 0
    plain_show: Format = number


FIELDS = (
    Field("objective/scores", "score", number, "score {}", 7, number),
    Field("objective/kl", "kl", number, "kl {}", 6, number),
    Field("judges/satisfied", "satisfied", percent, "ok {}", 4, percent),
    Field("objective/entropy", "entropy", number, "ent {}", 5, partial(number, digits=3)),
    Field("responses/length", "length", number, "len {}", 4, partial(number, digits=3)),
    Field("responses/truncated", "truncated", percent, "cut {}", 4, percent),
    Field("policy/clipfrac", "clip fraction", percent, "clip {}", 4, percent),
    Field("value/explained_variance", "expl. variance", number, "ev {}", 5, partial(number, digits=2)),
    Field("tokens/per_second", "tokens/s", number, "{} tok/s", 5, partial(number, digits=3)),
    Field("policy/lr", "learning rate", number),
)
