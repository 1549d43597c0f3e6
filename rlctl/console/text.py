"""Foreign text made safe and short: prompts, responses, paths, messages. Knows widths in terminal cells, no colours.

Whatever a model or a user writes reaches the terminal only through `clean`.
"""

from __future__ import annotations

import unicodedata
from dataclasses import replace

from rich.cells import cell_len, set_cell_size

from rlctl.report import Sample

NEWLINE = "↵"
SAMPLE_CHARACTERS = 2000
_VARIATION_SELECTORS = range(0xFE00, 0xFE10)


def clean(text: str) -> str:
    """`text` on one line: newlines as a symbol, control characters as pictures, invisible characters left out.

    Variation selectors go too, for terminals disagree on the width of what they change.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(c) for c in text.replace("\r\n", "\n"))


def _shown(c: str) -> str:
    if c == "\n":
        return NEWLINE
    if c == "\t":
        return " "
    code = ord(c)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if code in _VARIATION_SELECTORS:
        return ""
    match unicodedata.category(c):
        case "Cc" | "Cs" | "Co" | "Cn":
            return "�"
        case "Cf":
            return ""
        case "Zl" | "Zp":
            return NEWLINE
        case _:
            return c


def shorten(text: str, width: int) -> str:
    """At most `width` cells of `text`, with an ellipsis where something is missing."""
    if width <= 0:
        return ""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1).rstrip() + "…"


def shorten_path(path: str, width: int) -> str:
    """At most `width` cells of `path`, its end kept: that is what tells paths apart."""
    if cell_len(path) <= width:
        return path
    while path and cell_len(path) > width - 1:
        path = path[1:]
    return "…" + path if width > 0 else ""


def fold(text: str, width: int, rows: int) -> list[str]:
    """`text` in at most `rows` lines of `width` cells, broken at spaces where possible, the last one shortened."""
    lines: list[str] = []
    while text and width > 0 and len(lines) < rows:
        if len(lines) == rows - 1 or cell_len(text) <= width:
            return [*lines, shorten(text.rstrip(), width)]
        head = _fitting(text, width)
        space = head.rfind(" ")
        if text[len(head) :][:1] not in ("", " ") and space > len(head) // 2:
            head = head[:space]
        lines.append(head.rstrip())
        text = text[len(head) :].lstrip(" ")
    return lines


def _fitting(text: str, width: int) -> str:
    """The longest beginning of `text` of at most `width` cells, at least one character."""
    used = 0
    for i, c in enumerate(text):
        used += cell_len(c)
        if used > width:
            return text[: max(1, i)]
    return text


def clean_sample(sample: Sample) -> Sample:
    """The sample as it may be shown; no more of it than a terminal could hold."""
    return replace(sample, prompt=_brief(sample.prompt), response=_brief(sample.response))


def _brief(text: str) -> str:
    cut = "…" if len(text) > SAMPLE_CHARACTERS else ""
    return clean(text[:SAMPLE_CHARACTERS]) + cut
