"""What `rlctl score` shows: a table of scored responses, their distribution, what the reward saw, and findings."""

from __future__ import annotations

from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlctl.console.numbers import number
from rlctl.console.stream import make_console, say, say_labelled
from rlctl.console.text import clean, shorten, shorten_path
from rlctl.report import ScoreReport, ScoreRow

BARS = 10
ROWS = 24
_VERDICTS = {True: "pass", False: "fail", None: "?"}


def print_score(report: ScoreReport, stream: TextIO | None = None) -> None:
    """The whole report; at most ROWS responses, the best and the worst."""
    console = make_console(stream)
    if not console.is_terminal:
        console.width = 120
    say(console, (clean(report.reward), "bold"))
    say(console)
    table, hidden = _table(report, console.width)
    console.print(table)
    say(console)
    if hidden:
        say(console, (f"not shown for want of room: {', '.join(hidden)}", "dim"))
        say(console)
    scores = [r.score for r in report.rows if r.score is not None]
    if scores:
        _histogram(console, scores)
    _passed(console, report.rows)
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


def _table(report: ScoreReport, width: int) -> tuple[Table, list[str]]:
    """One line a response: numbers whole, prompt and response in what room is left; parts that leave none are not shown."""
    rows = _chosen(report.rows)
    columns = [("score", [number(r.score) for r in rows])]
    columns += [(shorten(clean(p), 32), [number(r.parts[p]) for r in rows]) for p in (rows[0].parts if rows else ())]
    columns += [(shorten(clean(j), 32), [_VERDICTS[r.verdicts[j]] for r in rows]) for j in (rows[0].verdicts if rows else ())]
    widths = [max(map(cell_len, (heading, *cells))) for heading, cells in columns]
    hidden: list[str] = []
    while len(columns) > 1 and width - sum(w + 2 for w in widths) < 40:
        hidden.insert(0, columns.pop()[0])
        widths.pop()
    room = max(12, width - sum(w + 2 for w in widths) - 2)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for (heading, _), w in zip(columns, widths, strict=True):
        table.add_column(Text(heading), justify="right", no_wrap=True, width=w)
    for heading, w in (("prompt", room * 2 // 5), ("response", room - room * 2 // 5)):
        table.add_column(heading, no_wrap=True, width=w)
    for i, row in enumerate(rows):
        cut = " cut" if row.truncated else ""
        response = Text(shorten(clean(row.response), room - room * 2 // 5 - len(cut)))
        response.append(cut, "yellow")
        # the end of a prompt is what the response goes on from
        prompt = Text(shorten_path(clean(row.prompt), room * 2 // 5), "dim")
        table.add_row(*(Text(cells[i]) for _, cells in columns), prompt, response)
    return table, hidden


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


def _passed(console: Console, rows: list[ScoreRow]) -> None:
    """Share of responses that each judge passes, and all of them."""
    names = list(rows[0].verdicts) if rows else []
    for name in names:
        given = [r.verdicts[name] for r in rows]
        unjudged = f", {given.count(None)} could not be judged" if None in given else ""
        say(console, ("judge  ", "dim"), f"{clean(name)} passes {given.count(True)} of {len(rows)}{unjudged}")
    if len(names) > 1:
        say(console, ("judge  ", "dim"), f"all pass {sum(all(r.verdicts.values()) for r in rows)} of {len(rows)}")
    if names:
        say(console)


def _seen(console: Console, report: ScoreReport) -> None:
    say(console, ("the reward's first text", "dim"), f"  {report.first_text!r}")
    for line in report.passed:
        say(console, ("  passed  ", "dim"), shorten(clean(line), 200))
