"""What `rlctl score` shows: a table of scored responses, their distribution, what the reward saw, and findings."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlctl.console.numbers import number
from rlctl.console.stream import make_console, say, say_labelled
from rlctl.console.text import clean, shorten
from rlctl.report import ScoreReport, ScoreRow

BARS = 10
ROWS = 24


def print_score(report: ScoreReport, stream: TextIO | None = None) -> None:
    """The whole report; at most ROWS responses, the best and the worst."""
    console = make_console(stream)
    if not console.is_terminal:
        console.width = 120
    say(console, (clean(report.reward), "bold"))
    say(console)
    console.print(_table(report, console.width))
    say(console)
    scores = [r.score for r in report.rows if r.score is not None]
    if scores:
        _histogram(console, scores)
    if report.milliseconds is not None:
        say(console, (f"{number(report.milliseconds)} ms a response", "dim"))
    say(console)
    _seen(console, report)
    for finding in report.findings:
        say(console)
        style = "bold red" if finding.level == "stop" else "bold yellow"
        say_labelled(console, "stop     " if finding.level == "stop" else "look     ", style, clean(finding.what))
        for label, text in (("cause  ", finding.cause), ("change ", finding.change)):
            for line in text.splitlines():
                say_labelled(console, f"  {label}", "dim", clean(line))
                label = " " * len(label)
    say(console)
    good, bad = ("training could learn from this reward", "bold green"), ("training could not learn from it", "bold red")
    say(console, good if report.learnable else bad)


def _table(report: ScoreReport, width: int) -> Table:
    rows = _chosen(report.rows)
    parts = list(rows[0].parts) if rows else []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("score", *parts):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("prompt", no_wrap=True)
    table.add_column("response", no_wrap=True)
    room = max(20, width - 10 * (1 + len(parts)) - 8)
    for row in rows:
        numbers = [number(row.score), *(number(row.parts[p]) for p in parts)]
        response = Text(shorten(clean(row.response), room * 3 // 5))
        if row.truncated:
            response.append(" cut", "yellow")
        prompt = Text(_end(clean(row.prompt), room * 2 // 5), "dim")
        table.add_row(*(Text(n) for n in numbers), prompt, response)
    return table


def _end(text: str, width: int) -> str:
    """The end of a prompt: that is what the response goes on from."""
    return text if len(text) <= width else "…" + text[-(width - 1) :]


def _chosen(rows: list[ScoreRow]) -> list[ScoreRow]:
    ranked = sorted(rows, key=lambda r: -(r.score if r.score is not None else 0.0))
    return ranked if len(ranked) <= ROWS else ranked[: ROWS // 2] + ranked[-ROWS // 2 :]


def _histogram(console: Console, scores: list[float]) -> None:
    low, high = min(scores), max(scores)
    if low == high:
        say(console, f"all {len(scores)} scores are {number(low)}")
        return
    counts = [0] * BARS
    for s in scores:
        counts[min(BARS - 1, int((s - low) / (high - low) * BARS))] += 1
    room = max(10, min(50, console.width - 36))
    for i, count in enumerate(counts):
        left, right = low + (high - low) * i / BARS, low + (high - low) * (i + 1) / BARS
        bar = "█" * round(count / max(counts) * room) or ("▏" if count else "")
        say(console, f"{number(left):>10} to {number(right):>10}  ", (bar, "cyan"), f" {count}" if count else "")


def _seen(console: Console, report: ScoreReport) -> None:
    say(console, ("the reward's first text", "dim"), f"  {report.first_text!r}")
    for line in report.passed:
        say(console, ("  passed  ", "dim"), shorten(clean(line), 200))
