"""What a live view shows, as one immutable value: the training thread replaces it, the painting thread reads it.

Pure functions from one view to the next. Knows no rich and no terminal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rlctl.console.fields import fields_of
from rlctl.console.text import clean, clean_sample
from rlctl.report import PHASES, Plan, Sample, Step, Warning

HISTORY = 200
"""Steps a trend looks back."""
MARKS_KEPT = 11
NOTES_KEPT = 5


@dataclass(frozen=True)
class Phase:
    """The phase under way."""

    name: str
    done: int
    total: int
    since: float


@dataclass(frozen=True)
class View:
    """Everything on the screen. Times are the clock's."""

    title: str
    run_dir: str
    steps: int
    started: float
    marks: tuple[float, ...]
    """Ends of the last steps, the first one's start before them."""
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Of the last step."""
    first: Mapping[str, float] = field(default_factory=dict)
    """Of the first step seen."""
    trends: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    best: Sample | None = None
    worst: Sample | None = None
    phase: Phase | None = None
    phases: tuple[str, ...] = PHASES
    warnings: tuple[Warning, ...] = ()
    notes: tuple[tuple[int, str], ...] = ()
    """(steps done, text)."""
    ended: float | None = None
    status: str = ""


def opening(plan: Plan, now: float) -> View:
    """The view before the first step."""
    return View(clean(plan.title), clean(str(plan.run_dir)), plan.steps, started=now, marks=(now,))


def with_step(view: View, step: Step, now: float) -> View:
    """The view after a step. A metric not measured in it leaves a gap in its trend."""
    shown = fields_of(dict.fromkeys([*view.trends, *step.metrics]))
    trends = {f.metric: (*view.trends.get(f.metric, ()), step.metrics.get(f.metric))[-HISTORY:] for f in shown}
    timed = (name.removeprefix("time/") for name in step.metrics if name.startswith("time/") and name != "time/step")
    return replace(
        view,
        step=step.step,
        steps=step.steps,
        marks=(*view.marks, now)[-MARKS_KEPT:],
        metrics=dict(step.metrics),
        first=view.first or dict(step.metrics),
        trends=trends,
        best=clean_sample(step.best) if step.best else None,
        worst=clean_sample(step.worst) if step.worst else None,
        phase=None,
        phases=_joined(view.phases, *timed),
    )


def with_phase(view: View, name: str, done: int, total: int, now: float) -> View:
    """A phase began or moved on; its clock starts again when it is another one, or has gone back."""
    before = view.phase
    same = before is not None and before.name == name and before.done <= done
    since = before.since if before is not None and same else now
    return replace(view, phase=Phase(name, done, total, since), phases=_joined(view.phases, name))


def with_warning(view: View, warning: Warning) -> View:
    """The view with a warning, each key once."""
    safe = Warning(warning.key, clean(warning.what), clean(warning.cause), clean(warning.change))
    return replace(view, warnings=(*view.warnings, safe))


def with_note(view: View, text: str) -> View:
    """The view with one more line of news."""
    return replace(view, notes=(*view.notes, (view.step, clean(text)))[-NOTES_KEPT:])


def ended(view: View, status: str, now: float) -> View:
    """The view of a run that ended."""
    return replace(view, phase=None, status=status, ended=now)


def _joined(known: tuple[str, ...], *names: str) -> tuple[str, ...]:
    return (*known, *(name for name in dict.fromkeys(names) if name not in known))
