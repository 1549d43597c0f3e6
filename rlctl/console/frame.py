"""One frame of the live view: a view and a size in, lines out, at most `height` of them, none wider than `width`.

Pure layout. When room is short it goes to the header first, then the warnings, the metrics, the samples, the notes.
Knows nothing of cursors, threads or when it is painted.
"""

from __future__ import annotations

from rich.text import Text

from rlctl.console.blocks import progress
from rlctl.console.fields import fields_of
from rlctl.console.numbers import duration, number, time_left
from rlctl.console.panels import metric_lines, phase_lines
from rlctl.console.summary import COMPARED, ENDINGS
from rlctl.console.text import clean, fold, shorten, shorten_path
from rlctl.console.view import View
from rlctl.report import Sample, Warning

NARROW, LOW = 44, 9
"""Below these columns or rows: two lines instead of a page."""
TWO_COLUMNS = 72
GAP = 3


def frame(view: View, width: int, height: int, now: float) -> list[Text]:
    """The lines to show."""
    now = view.ended if view.ended is not None else now
    lines = _page(view, width, height, now) if width >= NARROW and height >= LOW else _compact(view, width, now)
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines[: max(1, height)]


def _compact(view: View, width: int, now: float) -> list[Text]:
    where = f"step {view.step}/{view.steps}  {_percent_done(view)}%  eta {_eta(view, now)}"
    shown = [f for f in fields_of(view.metrics) if f.metric.endswith(COMPARED)]
    figures = "  ".join(f"{f.label} {number(view.metrics.get(f.metric))}" for f in shown)
    return [Text(shorten(where, width), "bold"), Text(shorten(clean(figures), width))]


def _page(view: View, width: int, height: int, now: float) -> list[Text]:
    head = _header(view, width, now)
    room = height - len(head)
    table = _tables(view, width, now)
    alarms = _warnings(view.warnings, width, room - min(len(table), 5)) if view.ended is None else []
    room -= len(alarms)
    table = table[:room]
    room -= len(table)
    gaps = 3 if alarms else 2
    samples = _samples(view, width, room, spare=room - gaps - 1)
    room -= len(samples)
    notes = [] if view.ended is not None else _notes(view, width, min(3, room - gaps, len(view.notes)))
    room -= len(notes)
    lines = head
    for section in (alarms, table, samples, notes):
        if section and section is not notes and room > 0:
            lines = [*lines, Text()]
            room -= 1
        lines = [*lines, *section]
    return lines


def _header(view: View, width: int, now: float) -> list[Text]:
    title = shorten(view.title, max(20, width - 20))
    folder = shorten_path(view.run_dir, width - len(title) - GAP)
    first = Text.assemble((title, "bold"), " " * max(1, width - Text(title).cell_len - Text(folder).cell_len))
    first.append(folder, "dim")
    before = f"step {view.step}/{view.steps}  "
    after = f"  {_percent_done(view):>3}%  elapsed {duration(now - view.started)}  "
    wording, style, _ = ENDINGS.get(view.status, (view.status, "bold", ""))
    closing = f"eta {_eta(view, now)}" if view.ended is None else wording.split()[0] if wording else ""
    room = width - len(before) - len(after) - max(10, len(closing))
    if view.phase is not None and width < TWO_COLUMNS and room > len(view.phase.name) + 8:  # no panel to say so
        closing += f"  {view.phase.name}"
        room -= len(view.phase.name) + 2
    room = max(4, min(60, room))
    done, rest = progress(view.step, view.steps, room)
    second = Text.assemble((before, "bold"), (done, "green"), (rest, "dim"), after)
    second.append(closing, style if view.ended is not None else "")
    return [first, second]


def _percent_done(view: View) -> int:
    return 100 * view.step // view.steps if view.steps else 0


def _eta(view: View, now: float) -> str:
    return duration(time_left(view.marks, view.steps - view.step, now))


def _tables(view: View, width: int, now: float) -> list[Text]:
    """The metrics, and beside them where the seconds go, if both fit."""
    if width < TWO_COLUMNS:
        return metric_lines(view, width)
    right_width = min(48, max(30, width * 3 // 8))
    left_width = width - right_width - GAP
    left = metric_lines(view, left_width)
    right = phase_lines(view, right_width, now)
    lines = []
    for i in range(max(len(left), len(right))):
        line = left[i].copy() if i < len(left) else Text()
        line.pad_right(left_width + GAP - line.cell_len)
        lines.append(line.append_text(right[i]) if i < len(right) else line)
        lines[-1].rstrip()
    return lines


def _samples(view: View, width: int, rows: int, spare: int) -> list[Text]:
    """The best and the worst response: two rows each (prompt, response), one if room is short, more to spare."""
    pair = [("best", view.best), ("worst", view.worst)]
    if view.best is None or rows < 2:
        return []
    if rows < 4:
        return [_one_row(label, sample, width) for label, sample in pair if sample]
    each = min(5, max(2, spare // 2))
    return [line for label, sample in pair if sample for line in _sample(label, sample, width, each)]


INDENT = 17


def _labelled(label: str, sample: Sample) -> Text:
    return Text.assemble((f"{label:<6}", "bold"), (f"{number(sample.score):>9}", "bold"), "  ")


def _sample(label: str, sample: Sample, width: int, rows: int) -> list[Text]:
    first = _labelled(label, sample).append(shorten(sample.prompt, width - INDENT), "dim")
    remark = ", ".join(["cut"] * sample.truncated + [f"kl {number(sample.kl, 3)}"] * (sample.kl is not None))
    lines = [first]
    for i, text in enumerate(_response(sample, width - INDENT, rows - 1)):
        before = (f"{remark if i == 0 else '':<{INDENT}}", "yellow" if sample.truncated else "dim")
        lines.append(Text.assemble(before, text))
    return lines


def _one_row(label: str, sample: Sample, width: int) -> Text:
    return _labelled(label, sample).append_text(_response(sample, width - INDENT, 1)[0])


def _response(sample: Sample, width: int, rows: int) -> list[Text]:
    if not sample.response:
        return [Text("(empty)", "dim italic")]
    return [Text(line) for line in fold(sample.response, width, rows)]


def _warnings(warnings: tuple[Warning, ...], width: int, rows: int) -> list[Text]:
    """The latest warnings that fit, whole; of the latest one as much as fits."""
    lines: list[Text] = []
    shown = 0
    for warning in reversed(warnings):
        block = _warning(warning, width, 2)
        if not lines and len(block) > rows:
            block = _warning(warning, width, 1)
        if lines and len(block) + len(lines) > rows:
            break
        lines = [*block, *lines]
        shown += 1
    if shown < len(warnings):
        lines[0].append(f"   (+{len(warnings) - shown} earlier)", "dim")
    return lines[: max(0, rows)]


def _warning(warning: Warning, width: int, rows_each: int) -> list[Text]:
    lines = []
    for label, text, style in (
        ("▲ ", warning.what, "bold yellow"),
        ("  cause   ", warning.cause, ""),
        ("  change  ", warning.change, ""),
    ):
        for i, part in enumerate(fold(text, width - len(label), rows_each)):
            lines.append(Text.assemble((label if i == 0 else " " * len(label), "yellow"), (part, style)))
    return lines


def _notes(view: View, width: int, rows: int) -> list[Text]:
    recent = view.notes[-rows:] if rows > 0 else ()
    return [Text(shorten(f"step {step}: {text}", width), "dim") for step, text in recent]
