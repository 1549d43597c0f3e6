"""The live view: repaints one frame in place, a few times a second, from a thread of its own.

What was on the terminal before stays above it, and what others print meanwhile goes above it too. The training
thread only replaces the view and never waits for the terminal. What a frame looks like is `frame.py`'s business.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from rlctl.console import view as views
from rlctl.console.frame import frame
from rlctl.console.loggers import HandlersFollow
from rlctl.console.plain import print_start, print_warning
from rlctl.console.stream import say
from rlctl.console.summary import print_summary
from rlctl.console.text import clean
from rlctl.console.view import View
from rlctl.report import Plan, Step, Summary, Warning

REPAINTS_PER_SECOND = 4


class LiveConsole:
    """A reporter that draws. `repaints_per_second=0` paints only when told to by `refresh`."""

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        repaints_per_second: float = REPAINTS_PER_SECOND,
    ):
        self._console, self._clock, self._rate = console, clock, repaints_per_second
        self._view: View | None = None
        self._warned: set[str] = set()
        self._warnings: list[Warning] = []
        """Shown so far in frames only, that is, not yet on the terminal for good."""
        self._handlers = HandlersFollow()
        self._picture = _Picture(self._lines)
        self._live: Live | None = None
        self._stop = threading.Event()
        self._painter: threading.Thread | None = None

    def start(self, plan: Plan) -> None:
        print_start(self._console, plan)
        say(self._console)
        self._view = views.opening(plan, self._clock())
        self._live = Live(
            self._picture,
            console=self._console,
            auto_refresh=False,
            redirect_stdout=_on_terminal(sys.stdout),
            redirect_stderr=_on_terminal(sys.stderr),
            vertical_overflow="crop",
        )
        streams = (sys.stdout, sys.stderr)
        self._live.start()
        self._handlers.go(streams, (sys.stdout, sys.stderr))
        self.refresh()
        if self._rate > 0:
            self._painter = threading.Thread(target=self._repaint, name="console", daemon=True)
            self._painter.start()

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        if self._view is not None:
            self._view = views.with_phase(self._view, name, done, total, self._clock())

    def step(self, step: Step) -> None:
        if self._view is not None:
            self._view = views.with_step(self._view, step, self._clock())

    def warn(self, warning: Warning) -> None:
        if warning.key in self._warned:
            return
        self._warned.add(warning.key)
        if self._live is not None and self._view is not None:
            self._warnings.append(warning)
            self._view = views.with_warning(self._view, warning)
        else:
            print_warning(self._console, warning)

    def note(self, text: str) -> None:
        if self._live is not None and self._view is not None:
            self._view = views.with_note(self._view, text)
        else:
            say(self._console, ("note: ", "dim"), clean(text))

    def finish(self, summary: Summary) -> None:
        self._end(summary.status)
        print_summary(self._console, summary)

    def close(self) -> None:
        self._end("")

    def refresh(self) -> None:
        """Paint now if there is anything new to see."""
        live = self._live
        if live is not None and self._picture.has_changed(self._console):
            with self._console:  # one write
                self._console.control(self._picture.after_resize(self._console.width))
                live.refresh()

    def _repaint(self) -> None:
        while not self._stop.wait(1 / self._rate):
            self.refresh()

    def _lines(self, width: int, height: int) -> list[Text]:
        return frame(self._view, width, height, self._clock()) if self._view is not None else []

    def _end(self, status: str) -> None:
        """The last frame stays, the terminal is given back, and every warning follows in full."""
        if self._live is not None and self._view is not None:
            live, self._live = self._live, None
            self._stop.set()
            try:
                if self._painter is not None:
                    self._painter.join()
                self._view = views.ended(self._view, status, self._clock())
                self._console.control(self._picture.after_resize(self._console.width))
            finally:
                live.stop()
                self._handlers.back()
            say(self._console)
        for warning in self._warnings:
            print_warning(self._console, warning)
        if self._warnings:
            say(self._console)
        self._warnings = []


def _on_terminal(stream: object) -> bool:
    """Redirected output must keep going where the user sent it."""
    isatty = getattr(stream, "isatty", None)
    return isatty is not None and isatty()


class _Picture:
    """What is painted: remembers the lines it painted last, to notice changes and to clean up after a resize."""

    def __init__(self, lines: Callable[[int, int], list[Text]]):
        self._lines = lines
        self._painted: list[Text] = []

    def _now(self, width: int, height: int) -> list[Text]:
        # one column and one row are left free: terminals differ on what happens after the very last cell
        return self._lines(max(1, width - 1), max(1, height - 1))

    def has_changed(self, console: Console) -> bool:
        return self._now(*console.size) != self._painted

    def after_resize(self, width: int) -> Control:
        """Up to the first row of what was painted: lines that got too wide for the terminal take several rows now."""
        extra = sum(-(-line.cell_len // width) - 1 for line in self._painted if line.cell_len > width)
        return Control(*(((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * extra))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self._painted = self._now(*console.size)
        yield from self._painted
