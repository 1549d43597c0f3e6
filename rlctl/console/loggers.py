"""Log handlers that follow a redirected stdout or stderr, and go back.

A handler made before the live view keeps the stream it was given and would write across the view. Knows no rich.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TextIO


class HandlersFollow:
    """Moves every handler that writes to one of some streams over to its stand-in."""

    def __init__(self) -> None:
        self._moved: list[tuple[logging.StreamHandler, TextIO]] = []

    def go(self, originals: Sequence[TextIO], stand_ins: Sequence[TextIO]) -> None:
        """Point the handlers of the original streams at their stand-ins."""
        for original, stand_in in zip(originals, stand_ins, strict=True):
            for handler in _stream_handlers() if stand_in is not original else ():
                if handler.stream is original:
                    handler.setStream(stand_in)
                    self._moved.append((handler, original))

    def back(self) -> None:
        """Point every handler back at what it wrote to."""
        for handler, original in self._moved:
            handler.setStream(original)
        self._moved = []


def _stream_handlers() -> list[logging.StreamHandler]:
    loggers = [logging.root, *(x for x in logging.root.manager.loggerDict.values() if isinstance(x, logging.Logger))]
    return [h for logger in loggers for h in logger.handlers if isinstance(h, logging.StreamHandler)]
