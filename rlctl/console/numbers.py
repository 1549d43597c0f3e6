"""How numbers are written: values, shares, durations, and the time left. Knows no terminal and no metric."""

from __future__ import annotations

import math
from collections.abc import Sequence


def number(x: float | None, digits: int = 4) -> str:
    """`x` to about `digits` significant digits: 1.234, 0.052, 12.34, 1234, 3e-6; `nan`, `inf`, and `-` for None."""
    if x is None:
        return "-"
    if not math.isfinite(x):
        return str(float(x))
    if x == 0:
        return "0"
    size = abs(x)
    if not 1e-3 <= size < 1e6:
        mantissa, _, exponent = f"{x:.{digits - 1}e}".partition("e")
        if "." in mantissa:
            mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa}e{int(exponent)}"
    decimals = digits - 1 - math.floor(math.log10(size))
    return f"{x:.{min(digits, max(0, decimals))}f}"


def percent(share: float | None) -> str:
    """A share of 1 as percent: 0%, <.1%, 4.2%, 42%."""
    if share is None or not math.isfinite(share):
        return number(share)
    hundredths = 100 * share
    if 0 < hundredths < 0.1:
        return "<.1%"
    if abs(hundredths) < 9.95 and round(hundredths, 1) != round(hundredths):
        return f"{hundredths:.1f}%"
    return f"{hundredths:.0f}%"


def duration(seconds: float | None) -> str:
    """9s, 1m20s, 2h05m, 3d04h; `-` when unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    minutes = whole // 60
    if minutes < 24 * 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    hours = minutes // 60
    return f"{hours // 24}d{hours % 24:02d}h"


def short_duration(seconds: float | None) -> str:
    """A phase's length: 40ms, 1.20s, 12.3s, then like `duration`."""
    if seconds is None or not math.isfinite(seconds) or seconds >= 59.95:
        return duration(seconds)
    if 0 < seconds < 0.0995:
        return f"{max(1, round(seconds * 1000))}ms"
    return f"{seconds:.1f}s" if seconds >= 9.995 else f"{seconds:.2f}s"


def time_left(marks: Sequence[float], steps_left: int, now: float) -> float | None:
    """Seconds to go. `marks` are the times at which the last steps ended, the first one's start before them."""
    if steps_left <= 0:
        return 0.0
    if len(marks) < 2:
        return None
    mean = (marks[-1] - marks[0]) / (len(marks) - 1)
    under_way = max(0.0, mean - (now - marks[-1]))
    return under_way + mean * (steps_left - 1)
