"""The closing table of a sweep: members ranked, what differs between them, and the winner ready to paste.

It ranks what it is given; it does not read run folders.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlctl.console.numbers import duration, number
from rlctl.console.stream import make_console, say
from rlctl.console.text import clean

UNBOUNDED = 100_000
"""Width without a terminal: nothing has to be shortened or broken there."""


@dataclass(frozen=True)
class SweepRow:
    """One member of a sweep."""

    number: int
    overrides: list[str]
    """As Hydra was given them."""
    status: str
    """As in Summary.status."""
    first_score: float | None
    last_score: float | None
    best_score: float | None
    last_kl: float | None
    seconds: float | None
    error: str | None
    run_dir: str


def _scored(row: SweepRow) -> bool:
    return row.status != "failed" and row.last_score is not None and math.isfinite(row.last_score)


def ranked(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """Highest last score first, then those without one, then the failed ones; ties by number."""

    def key(row: SweepRow) -> tuple[bool, bool, float, int]:
        score = row.last_score if _scored(row) and row.last_score is not None else 0.0
        return row.status == "failed", not _scored(row), -score, row.number

    return sorted(rows, key=key)


def differing(rows: Sequence[SweepRow]) -> dict[int, list[str]]:
    """number -> the overrides that not every member has; of a single member all."""
    common = set.intersection(*(set(row.overrides) for row in rows)) if len(rows) > 1 else set()
    return {row.number: [text for text in row.overrides if text not in common] for row in rows}


def print_sweep(rows: Sequence[SweepRow], stream: TextIO | None = None) -> None:
    """The table, and below it the winner's overrides."""
    console = make_console(stream)
    if not console.is_terminal:
        console.width = UNBOUNDED
    if not rows:
        say(console, "nothing ran")
        return
    console.print(_table(ranked(rows), differing(rows)), soft_wrap=False)
    say(console)
    _print_winner(console, ranked(rows)[0])


def _table(rows: Sequence[SweepRow], overrides: dict[int, list[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("#", "score", "first", "best", "kl", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("overrides that differ", overflow="fold")
    for i, row in enumerate(rows):
        failed = row.status == "failed"
        winner = i == 0 and _scored(row)
        cells = (
            str(row.number),
            "failed" if failed else number(row.last_score),
            number(row.first_score),
            number(row.best_score),
            number(row.last_kl),
            duration(row.seconds),
        )
        style = "red" if failed else "bold green" if winner else ""
        table.add_row(*(Text(cell, style) for cell in cells), _explained(row, overrides[row.number]))
    return table


def _explained(row: SweepRow, overrides: Sequence[str]) -> Text:
    """The overrides, and below them why the member is not simply finished."""
    text = Text(clean("  ".join(overrides)) or "-")
    if row.status == "failed":
        first_line = (row.error or "no error was recorded").strip().splitlines()[0]
        text.append(f"\n{clean(first_line)}", "red")
    elif row.status != "finished":
        text.append(f"\n{clean(row.status)}", "yellow")
    return text


def _print_winner(console: Console, row: SweepRow) -> None:
    if not _scored(row):
        say(console, ("no member ended with a score", "bold"))
        return
    say(console, (f"best: {row.number}", "bold green"), ("  in ", "dim"), clean(row.run_dir))
    say(console, f"  {clean(shlex.join(row.overrides)) or '(no overrides)'}")
