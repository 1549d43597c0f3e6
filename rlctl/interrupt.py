"""SIGINT and SIGTERM: the first asks a run to stop where nothing is lost, a second one stops it at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

SAME = 1.0
"""Seconds within which a second signal is the same one: a terminal and a launcher may both deliver it."""


class Interrupts:
    """Takes the two signals over while it is entered. Threads other than the main one get none, and change nothing."""

    def __init__(self, may_abandon: bool, tell: Callable[[str], None] = lambda text: None):
        self.may_abandon, self.tell = may_abandon, tell
        """Whether a signal may break off a step (of several processes each would break off elsewhere); and who is told of one
        that has to wait."""
        self.asked: str | None = None
        """Name of the signal that came."""
        self.at_once = False
        """Whether a second one came."""
        self._since = 0.0
        self._held = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """What is done whole: the first signal waits for its end."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked is not None:
            if now - self._since < SAME:
                return
            self.at_once = True
            raise KeyboardInterrupt
        self.asked, self._since = signal.Signals(number).name, now
        if self.may_abandon and not self._held:
            raise KeyboardInterrupt
        self.tell(f"{self.asked}: stops after this step; once more stops at once")
