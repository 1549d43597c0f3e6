"""What `rlctl recipes`, `rlctl new` and `rlctl check` show. It is given what to show and reads no folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlctl.console.numbers import duration, number
from rlctl.console.runs import UNBOUNDED
from rlctl.console.stream import make_console, say
from rlctl.console.text import clean


@dataclass(frozen=True)
class RecipeRow:
    """One recipe of the list."""

    name: str
    shows: str
    seconds: float
    hardware: str


@dataclass(frozen=True)
class CheckRow:
    """One number of a checked recipe."""

    means: str
    metric: str
    when: str
    expected: str
    seen: float | None
    ok: bool


def _console(stream: TextIO | None) -> Console:
    console = make_console(stream)
    if not console.is_terminal:
        console.width = UNBOUNDED
    return console


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def print_recipes(rows: Sequence[RecipeRow], stream: TextIO | None = None) -> None:
    """The list, and how one is copied."""
    console = _console(stream)
    table = _table("recipe", "shows", "time", "hardware")
    for row in rows:
        table.add_row(Text(row.name, "bold"), clean(row.shows), duration(row.seconds), clean(row.hardware))
    console.print(table)
    say(console)
    say(console, ("copy one:  ", "dim"), "rlctl new RECIPE DEST", ("   read about it:  ", "dim"), "rlctl recipes RECIPE")


def print_copied(name: str, destination: str, files: Sequence[str], commands: Sequence[str], stream: TextIO | None = None) -> None:
    """What was copied, and what to type next."""
    console = make_console(stream)
    say(console, "copied ", (clean(name), "bold"), f" to {clean(destination)}")
    for file in files:
        say(console, (f"  {clean(file)}", "dim"))
    say(console)
    say(console, ("next:", "bold"))
    for command in commands:
        say(console, f"  {clean(command)}")


def print_check(
    name: str, rows: Sequence[CheckRow], seconds: float, expected_seconds: float, hardware: str, run: str, stream: TextIO | None = None
) -> None:
    """A line a number, then the verdict. The time is told, not judged: a busy machine is slower."""
    console = _console(stream)
    say(console)
    table = _table("metric", "", "when", "expected", "seen", "")
    for row in rows:
        verdict = Text("ok", "green") if row.ok else Text("missed", "bold red")
        seen = Text(number(row.seen), "" if row.ok else "bold red")
        table.add_row(clean(row.metric), Text(clean(row.means), "dim"), row.when, row.expected, seen, verdict)
    console.print(table)
    say(console)
    say(console, ("run folder  ", "dim"), clean(run))
    say(console, ("took        ", "dim"), f"{duration(seconds)}; about {duration(expected_seconds)} on {clean(hardware)}")
    missed = [row for row in rows if not row.ok]
    if not missed:
        say(console, (f"{clean(name)}: all as expected", "bold green"))
        return
    say(console, (f"{clean(name)}: {len(missed)} of {len(rows)} not as expected", "bold red"))
    for row in missed:
        seen = "no number" if row.seen is None else number(row.seen)
        say(console, f"  {clean(row.metric)}, {row.when}: {seen}, expected {row.expected}")
