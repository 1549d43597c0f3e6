"""The two tables of the live view: metrics with their trends, and where a step's seconds go. Lines of a given width."""

from __future__ import annotations

import math

from rich.text import Text

from rlctl.console.blocks import bar, progress, sparkline
from rlctl.console.fields import Field, fields_of
from rlctl.console.numbers import percent, short_duration
from rlctl.console.text import clean, shorten
from rlctl.console.view import View

LABEL, WIDEST, VALUE = 14, 24, 10
"""Columns of a label (more where a judge's or a task's name needs it) and of a value."""
WITH_FIRST = 64
"""From this width on the first step's value is shown too."""


def metric_lines(view: View, width: int) -> list[Text]:
    """A heading and a line a metric. Before the first step all of them, then those that were measured."""
    shown = [f for f in fields_of(view.trends) if not view.trends or any(x is not None for x in view.trends.get(f.metric, ()))]
    first = width >= WITH_FIRST
    label = min(WIDEST, max([LABEL, *(len(f.label) + 1 for f in shown)]))
    trend_width = width - label - (2 * VALUE if first else VALUE) - 2
    steps = max((len(values) for values in view.trends.values()), default=0)
    heading = f"{'':<{label}}{'now':>{VALUE}}" + (f"{'first':>{VALUE}}" if first else "")
    looks_back = f"last {steps} steps" if steps > 1 else "trend"
    return [
        Text(f"{heading}  {looks_back}", "dim"),
        *(_metric_line(view, f, first, label, trend_width) for f in shown),
    ]


def _metric_line(view: View, field: Field, first: bool, label: int, trend_width: int) -> Text:
    value = view.metrics.get(field.metric)
    broken = value is not None and not math.isfinite(value)
    line = Text(f"{shorten(clean(field.label), label - 1):<{label}}")
    line.append(f"{field.show(value):>{VALUE}}", "bold red" if broken else "bold")
    if first:
        line.append(f"{field.show(view.first.get(field.metric)):>{VALUE}}", "dim")
    return line.append("  ").append(sparkline(view.trends.get(field.metric, ()), trend_width), "cyan")


def phase_lines(view: View, width: int, now: float) -> list[Text]:
    """A bar a phase for the last step, and how far the current one is."""
    seconds = {name: view.metrics.get(f"time/{name}") for name in view.phases}
    known = [x for x in seconds.values() if x is not None and math.isfinite(x)]
    whole = view.metrics.get("time/step") or sum(known)
    names = max(len(name) for name in view.phases)
    heading = f"last step {short_duration(whole)}" if known else "a step's seconds"
    lines = [Text(f"  {heading}", "dim")]
    for name in view.phases:
        current = view.phase is not None and view.phase.name == name
        line = Text.assemble(("▸ " if current else "  ", "bold green"), (f"{name:<{names}} ", "bold" if current else ""))
        lines.append(_phase_line(line, seconds[name], whole, width))
    if view.phase is not None:
        lines += [Text(), *_current(view, width, now)]
    return lines


def _phase_line(line: Text, seconds: float | None, whole: float, width: int) -> Text:
    if seconds is None:
        return line
    share = seconds / whole if whole > 0 else 0.0
    room = width - line.cell_len - 5 - 7
    line.append(f"{bar(share, room):<{room}}", "blue")
    return line.append(f"{percent(round(share, 2)):>5}").append(f"{short_duration(seconds):>7}", "dim")


def _current(view: View, width: int, now: float) -> list[Text]:
    phase = view.phase
    if phase is None:
        return []
    counted = f" {phase.done}/{phase.total}" if phase.total > 0 else ""
    passed = f"  for {short_duration(max(0.0, now - phase.since))}"
    lines = [Text.assemble("  ", (shorten(f"{phase.name}{counted}", width - 12), "bold green"), (passed, "dim"))]
    if phase.total > 0:
        done, rest = progress(phase.done, phase.total, width - 2)
        lines.append(Text.assemble("  ", (done, "green"), (rest, "dim")))
    return lines
