"""The terminal: live view, plain lines, closing summary, sweep table and errors. The only place that imports rich.

It shows what it is given and decides nothing: it does not know the loop, torch, Hydra or where the numbers come from.
"""

from __future__ import annotations

from typing import TextIO

from rlctl.console.blocks import sparkline
from rlctl.console.live import LiveConsole
from rlctl.console.numbers import number
from rlctl.console.plain import PlainConsole
from rlctl.console.quiet import QuietConsole
from rlctl.console.runs import RunRow, print_leaderboard, print_runs, print_sweep
from rlctl.console.score import print_score
from rlctl.console.stream import can_draw, make_console, print_error
from rlctl.console.summary import print_summary
from rlctl.report import Reporter

MODES = ("live", "plain", "quiet")

__all__ = [
    "MODES",
    "RunRow",
    "number",
    "open_console",
    "print_error",
    "print_leaderboard",
    "print_runs",
    "print_score",
    "print_summary",
    "print_sweep",
    "sparkline",
]


def open_console(mode: str, stream: TextIO | None = None) -> Reporter:
    """The reporter of a mode, writing to `stream` (stdout by default).

    live needs a terminal that can move its cursor and show block characters; elsewhere it is plain.
    """
    if mode not in MODES:
        raise ValueError(f"console={mode}: choose one of {', '.join(MODES)}")
    if mode == "quiet":
        return QuietConsole()
    console = make_console(stream)
    if mode == "live" and can_draw(console):
        return LiveConsole(console)
    return PlainConsole(console)
