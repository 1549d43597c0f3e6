"""Which metrics are shown, in which order and how: the one list behind the live table and the plain line.

Judges and tasks have names of a run's own, so the list is made from what was measured.

The order is the order of importance: a low terminal drops from the end. What a metric means is in `rlctl.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from rlctl.console.numbers import number, percent
from rlctl.console.text import shorten

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


FIXED = (
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

OF_A_STAGE = (
    Field("sft/loss", "loss", number, "loss {}", 6, number),
    Field("sft/token_accuracy", "accuracy", percent, "acc {}", 4, percent),
    Field("sft/held_out_loss", "held-out loss", number),
    Field("rm/loss", "loss", number, "loss {}", 6, number),
    Field("rm/accuracy", "accuracy", percent, "acc {}", 4, percent),
    Field("rm/margin", "margin", number, "margin {}", 6, number),
    Field("rm/held_out_accuracy", "held-out accuracy", percent),
    Field("stage/lr", "learning rate", number, "lr {}", 8, number),
    Field("stage/tokens_per_second", "tokens/s", number, "{} tok/s", 5, partial(number, digits=3)),
)
"""Of the stages before PPO."""

OF_A_TASK = ("objective/scores", "objective/kl", "judges/satisfied", "responses/truncated")
"""Shown of each task, where there are several."""
NAME = 13
"""Columns of a task's name in a label: what is measured must stay readable beside it."""


def fields_of(names: Iterable[str]) -> tuple[Field, ...]:
    """The fields for metrics of these names; for none, what every run may have."""
    names = list(names)
    if any(f.metric in names for f in OF_A_STAGE):
        return OF_A_STAGE
    tasks = list(dict.fromkeys(n.split("/", 2)[1] for n in names if n.startswith("tasks/")))
    own: list[Field] = []
    for task in tasks:
        own += [_of_task(f, task) for f in FIXED if f.metric in OF_A_TASK]
        prefix = f"tasks/{task}/"
        own += [_of_task(f, task) for f in _judges([n.removeprefix(prefix) for n in names if n.startswith(prefix)])]
    shared: list[Field] = []
    for field in FIXED:
        if not (tasks and field.metric in OF_A_TASK):
            shared.append(field)
        if field.metric == "judges/satisfied":
            shared += _judges(names)
    return (*own, *shared)


def _of_task(field: Field, task: str) -> Field:
    # in a plain line the score opens a task's figures, with its name
    plain = field.plain.replace("score", task) if field.plain and field.metric == "objective/scores" else field.plain
    return replace(field, metric=f"tasks/{task}/{field.metric}", label=f"{shorten(task, NAME)} {field.label}", plain=plain)


def _judges(names: list[str]) -> list[Field]:
    """The share that each judge passes; a single one is what all of them pass."""
    found = [n for n in names if n.startswith("judges/") and n.endswith("/pass")]
    return [Field(n, n.removeprefix("judges/").removesuffix("/pass"), percent) for n in found] if len(found) > 1 else []
