"""Tables of runs: the members of a sweep ranked, what differs between them and the winner ready to paste; and any runs, newest first.

It draws what it is given in the order it is given; it does not read run folders.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlctl.console.numbers import duration, number
from rlctl.console.stream import make_console, say, say_labelled
from rlctl.console.text import clean

UNBOUNDED = 100_000
"""Width without a terminal: nothing has to be shortened or broken there."""

_STYLES = {"failed": "red", "broken": "red", "interrupted": "yellow", "unfinished": "yellow", "running": "cyan", "not run": "dim"}


@dataclass(frozen=True)
class RunRow:
    """One run in a table."""

    number: int | None
    """Of a sweep's member."""
    overrides: list[str]
    """As typed."""
    status: str
    """As in Summary.status; running, unfinished, broken; not run."""
    first_score: float | None = None
    last_score: float | None = None
    best_score: float | None = None
    last_kl: float | None = None
    seconds: float | None = None
    error: str | None = None
    run_dir: str = ""
    steps_done: int | None = None
    steps: int | None = None
    """Planned."""
    date: str = ""
    remark: str = ""
    extra: float | None = None
    """The metric the table is sorted by, where no other column shows it."""
    command: str = ""
    """Trains it again, ready to paste; by default its overrides alone."""


def _scored(row: RunRow) -> bool:
    return row.status not in ("failed", "broken", "not run") and row.last_score is not None and math.isfinite(row.last_score)


def ranked(rows: Sequence[RunRow]) -> list[RunRow]:
    """Highest last score first, then those without one, then the failed ones; ties by number."""

    def key(row: RunRow) -> tuple[int, bool, float, int]:
        score = row.last_score if _scored(row) and row.last_score is not None else 0.0
        return {"not run": 2, "failed": 1, "broken": 1}.get(row.status, 0), not _scored(row), -score, row.number or 0

    return sorted(rows, key=key)


def differing(rows: Sequence[RunRow]) -> list[list[str]]:
    """Of each row the overrides that not every row has; of a single row all."""
    common = set.intersection(*(set(row.overrides) for row in rows)) if len(rows) > 1 else set()
    return [[text for text in row.overrides if text not in common] for row in rows]


def print_sweep(rows: Sequence[RunRow], stream: TextIO | None = None, go_on: str = "") -> None:
    """What a sweep ends with: the members, the highest last score first, the winner, and how to go on with what is not finished."""
    print_leaderboard(ranked(rows), "", stream)
    if go_on:
        console = _console(stream)
        say(console)
        say(console, ("to go on:", "bold"))
        say(console, f"  {clean(go_on)}")


def print_leaderboard(rows: Sequence[RunRow], extra: str = "", stream: TextIO | None = None) -> None:
    """Members of a sweep, best first, and below them the first one's overrides. `extra` heads a column of its own."""
    console = _console(stream)
    if not rows:
        say(console, "nothing ran")
        return
    console.print(_board(rows, extra), soft_wrap=False)
    say(console)
    best = rows[0]
    if not (_scored(best) or (best.extra is not None and best.status not in ("failed", "broken"))):
        say(console, ("no member ended with a score", "bold"))
        return
    name = best.number if best.number is not None else best.run_dir.rstrip("/").rpartition("/")[2]
    say(console, (f"best: {name}", "bold green"), ("  in ", "dim"), clean(best.run_dir))
    say(console, f"  {clean(best.command or shlex.join(best.overrides)) or '(no overrides)'}")


def print_runs(rows: Sequence[RunRow], extra: str = "", hidden: int = 0, stream: TextIO | None = None) -> None:
    """Runs and whole sweeps: numbers and folder in one line, what was changed beside them or, for want of room, below.

    hidden: how many more there are.
    """
    console = _console(stream)
    headings = ["started", "status", "steps", "score", "best", "kl", "time", *([extra] if extra else [])]
    cells = [_numbers(row, extra) for row in rows]
    widths = [max(cell_len(c) for c in column) for column in zip(headings, *cells, strict=True)]
    folders = [clean(row.run_dir) for row in rows]
    folder_width = max(map(cell_len, folders), default=0)
    say(console, (_line(headings, widths), "dim"), ("  run", "dim"))
    for row, numbers, folder in zip(rows, cells, folders, strict=True):
        line = Text(_line(numbers, widths))
        start = widths[0] + 2
        line.stylize(_STYLES.get(row.status, ""), start, start + cell_len(row.status))
        more = [(clean("  ".join(row.overrides)), ""), (clean(_first_line(row.error)), "red"), (clean(row.remark), "dim")]
        _place(console, line, [(folder + " " * (folder_width - cell_len(folder)), ""), *more])
    if hidden:
        say(console, (f"and {hidden} more; --all shows them", "dim"))


def _numbers(row: RunRow, extra: str) -> list[str]:
    steps = "-" if row.steps_done is None else f"{row.steps_done}/{row.steps}" if row.steps is not None else str(row.steps_done)
    numbers = [steps, number(row.last_score), number(row.best_score), number(row.last_kl), duration(row.seconds)]
    return [row.date, row.status, *numbers, *([number(row.extra)] if extra else [])]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))


def _place(console: Console, line: Text, parts: Sequence[tuple[str, str]]) -> None:
    """A line with as many of the parts as have room, in order; the others below it, indented, a part too long for a line broken."""
    for text, style in parts:
        if not text.strip():
            continue
        if line.cell_len + 2 + cell_len(text.rstrip()) <= console.width:
            line.append("  ").append(text, style)
            continue
        _end(console, line)
        line = Text("    ")
        if cell_len(text.rstrip()) <= console.width - 4:
            line.append(text.rstrip(), style)
        else:
            say_labelled(console, "    ", "", text.rstrip(), style)
            line = Text("  ")
    _end(console, line)


def _end(console: Console, line: Text) -> None:
    line.rstrip()
    if line:
        console.print(line, soft_wrap=True)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _console(stream: TextIO | None) -> Console:
    console = make_console(stream)
    if not console.is_terminal:
        console.width = UNBOUNDED
    return console


def _board(rows: Sequence[RunRow], extra: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("#", "score", "first", "best", "kl", "time", *([extra] if extra else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("overrides that differ", overflow="fold")
    for i, (row, overrides) in enumerate(zip(rows, differing(rows), strict=True)):
        unscored = row.status in ("failed", "broken", "not run")
        cells = [
            str(row.number) if row.number is not None else "-",
            row.status if unscored else number(row.last_score),
            number(row.first_score),
            number(row.best_score),
            number(row.last_kl),
            duration(row.seconds),
            *([number(row.extra)] if extra else []),
        ]
        winner = i == 0 and (_scored(row) or row.extra is not None)
        style = _STYLES[row.status] if unscored else "bold green" if winner else ""
        table.add_row(*(Text(cell, style) for cell in cells), _explained(row, overrides))
    return table


def _explained(row: RunRow, overrides: Sequence[str]) -> Text:
    """The overrides, and below them why the member is not simply finished."""
    text = Text(clean("  ".join(overrides)) or "-")
    if row.status in ("failed", "broken"):
        text.append(f"\n{clean(_first_line(row.error) or 'no error was recorded')}", "red")
    elif row.status not in ("finished", "not run"):
        text.append(f"\n{clean(row.status)}{_of_steps(row)}", _STYLES.get(row.status, "yellow"))
    if row.remark:
        text.append(f"\n{clean(row.remark)}", "dim")
    return text


def _of_steps(row: RunRow) -> str:
    if row.steps_done is None or row.steps is None or row.steps_done >= row.steps:
        return ""
    return f" after {row.steps_done} of {row.steps} steps"
