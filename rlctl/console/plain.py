"""Plain lines: the start facts, one line a step, warnings and notes on lines of their own, the summary.

For logs, pipes and terminals that cannot be drawn on. Nothing is ever rewritten, and each line is flushed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from rich.console import Console

from rlctl.console.fields import fields_of
from rlctl.console.numbers import duration, time_left
from rlctl.console.stream import say, say_labelled
from rlctl.console.summary import print_summary
from rlctl.console.text import clean
from rlctl.report import Plan, Step, Summary, Warning

MARKS_KEPT = 11
"""Ends of steps kept for the time left: it follows the last ten steps."""


def print_start(console: Console, plan: Plan) -> None:
    """What will be done, as a few aligned lines."""
    say(console, (clean(plan.title), "bold"))
    facts = (("run folder", str(plan.run_dir)), ("steps", str(plan.steps)), *plan.facts)
    width = max(len(label) for label, _ in facts)
    for label, text in facts:
        say_labelled(console, f"  {clean(label):<{width}}  ", "dim", clean(text))


def print_warning(console: Console, warning: Warning) -> None:
    """What is seen, why, and what to change."""
    say_labelled(console, "warning: ", "bold yellow", clean(warning.what))
    say_labelled(console, "  cause:   ", "dim", clean(warning.cause))
    say_labelled(console, "  change:  ", "dim", clean(warning.change))


def step_line(step: Step, known: Iterable[str], left: float | None) -> str:
    """One step in one line. A metric of `known` that this step lacks is a dash; others that it lacks are left out."""
    width = len(str(step.steps))
    parts = [f"step {step.step:>{width}}/{step.steps}"]
    for field in fields_of(known):
        if field.plain and field.metric in known:
            value = field.plain_show(step.metrics.get(field.metric))
            parts.append(field.plain.format(f"{value:>{field.plain_width}}"))
    parts.append(f"eta {duration(left)}")
    return "  ".join(parts)


class PlainConsole:
    """A reporter that writes lines."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic):
        self._console, self._clock = console, clock
        self._marks: list[float] = []
        self._known: dict[str, None] = {}
        self._warned: set[str] = set()
        self._seen = 0

    def start(self, plan: Plan) -> None:
        print_start(self._console, plan)
        self._marks = [self._clock()]

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """A line a step is enough."""

    def step(self, step: Step) -> None:
        now = self._clock()
        self._marks = [*self._marks, now][-MARKS_KEPT:]
        self._known |= dict.fromkeys(step.metrics)
        stride = step.step - self._seen if self._seen else 1  # a stage before PPO tells every n-th step only
        self._seen = step.step
        left = math.ceil((step.steps - step.step) / max(1, stride))
        say(self._console, step_line(step, self._known, time_left(self._marks, left, now)))

    def warn(self, warning: Warning) -> None:
        if warning.key not in self._warned:
            self._warned.add(warning.key)
            print_warning(self._console, warning)

    def note(self, text: str) -> None:
        say(self._console, ("note: ", "dim"), clean(text))

    def finish(self, summary: Summary) -> None:
        say(self._console)
        print_summary(self._console, summary)

    def close(self) -> None:
        """Nothing to give back."""
