"""Where output goes: a rich console that adds nothing of its own, on a stream that may go away, and errors.

No markup, no emoji codes, no highlighting: text is shown as it is. A closed pipe or a lost terminal ends the output,
never the training.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.text import Text

from rlctl.console.text import clean

DRAWN = "▁█━─▸↵…"


class Outlet:
    """A text stream whose writes never raise for want of a reader or of a character in its encoding."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self._gone = False

    def write(self, text: str) -> int:
        if not self._gone:
            try:
                self.stream.write(text.encode(self.encoding, "replace").decode(self.encoding))
            except OSError:
                self._give_up()
        return len(text)

    def flush(self) -> None:
        if not self._gone:
            try:
                self.stream.flush()
            except OSError:
                self._give_up()

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()

    def _give_up(self) -> None:
        """Nobody reads any more. What Python still holds for stdout goes nowhere, else it complains at its exit."""
        self._gone = True
        if self.stream is sys.__stdout__:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())


def make_console(stream: TextIO | None = None) -> Console:
    """A console on `stream` (stdout by default); styles only if that is a terminal, colours only without NO_COLOR."""
    outlet = Outlet(stream if stream is not None else sys.stdout)
    return Console(
        file=outlet,  # type: ignore[arg-type]
        force_terminal=outlet.isatty(),
        force_interactive=outlet.isatty(),
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )


def can_draw(console: Console) -> bool:
    """Whether a live view works there: a terminal, not a dumb one, with the characters the view is made of."""
    if not console.is_terminal or console.is_dumb_terminal:
        return False
    try:
        DRAWN.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True


def say(console: Console, *parts: str | tuple[str, str]) -> None:
    """One line, never broken or shortened: paths and commands stay whole. Parts are text or (text, style)."""
    console.print(Text.assemble(*parts), soft_wrap=True)


def say_labelled(console: Console, label: str, style: str, text: str, text_style: str = "") -> None:
    """A label and a message; on a terminal broken between words, never inside one, with a hanging indent."""
    lines = [text]
    if console.is_terminal:
        width = max(20, console.width - len(label) - 1)
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    for i, line in enumerate(lines):
        say(console, (label if i == 0 else " " * len(label), style), (line, text_style))


def print_error(lines: Sequence[str], stream: TextIO | None = None) -> None:
    """An error's lines to stderr, as they are; `error:` stands out on a terminal."""
    console = make_console(stream if stream is not None else sys.stderr)
    for line in lines:
        text = clean(line)
        label = "error:" if text.startswith("error:") else ""
        say(console, (label, "bold red"), text[len(label) :])
