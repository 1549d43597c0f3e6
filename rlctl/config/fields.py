"""What config classes of several files share."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Any


def bounded(default: Any, **bounds: float) -> Any:
    """A field with bounds: ge, gt, le, lt."""
    return field(default=default, metadata=bounds)


class Dtype(StrEnum):
    """Type of a model's weights."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class CGPOOptimizer(StrEnum):
    """The three updates of CGPO."""

    crpg = "crpg"
    crraft = "crraft"
    codpo = "codpo"
