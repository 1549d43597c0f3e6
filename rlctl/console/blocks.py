"""Pictures made of block characters: trends and bars. Plain strings; knows no colour and no terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"
MIDDLE = "▄"
BROKEN = "·"
"""Stands for nan and infinity: a hole in a trend must be seen."""

EIGHTHS = " ▏▎▍▌▋▊▉"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The trend of `values` in at most `width` characters, from its lowest to its highest value.

    More values than characters: each character is the mean of its share of them, oldest first. A constant (or one
    value) is a middle line, None a space, nan or infinity a dot.
    """
    if width <= 0 or not values:
        return ""
    cells = [_mean(group) for group in _groups(values, width)]
    finite = [x for x in cells if x is not None and math.isfinite(x)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    return "".join(_block(x, low, high) for x in cells)


def _groups(values: Sequence[float | None], width: int) -> list[Sequence[float | None]]:
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    return [values[a:b] for a, b in itertools.pairwise(edges)]


def _mean(group: Sequence[float | None]) -> float | None:
    known = [x for x in group if x is not None]
    if not known:
        return None
    return sum(x / len(known) for x in known)


def _block(x: float | None, low: float, high: float) -> str:
    if x is None:
        return " "
    if not math.isfinite(x):
        return BROKEN
    span = high / 2 - low / 2  # halved: the difference of two large floats may overflow
    if span <= 0:
        return MIDDLE
    return LEVELS[round((x / 2 - low / 2) / span * (len(LEVELS) - 1))]


def bar(share: float, width: int) -> str:
    """`share` of `width` characters, filled to an eighth of one; not padded."""
    eighths = round(_between_0_and_1(share) * width * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def progress(done: float, total: float, width: int) -> tuple[str, str]:
    """(done, still to do) as two pieces of one line; nothing is left over only when all is done."""
    share = _between_0_and_1(done / total) if total > 0 else 0.0
    filled = math.floor(share * width)
    return "━" * filled, "─" * (width - filled)


def _between_0_and_1(share: float) -> float:
    return min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
