"""Finds a reward function by its dotted path. Imports no torch: worker processes use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlctl.errors import RewardError
from rlctl.importing import load


def load_function(path: str) -> Callable[..., Any]:
    """The function at a dotted path.

    Raises:
        RewardError: no such module, no such name in it, the module's own failure, or not callable; it says which.
    """
    function = load(path, "reward=fn:")
    if not callable(function):
        raise RewardError(f"reward fn:{path} is not callable", f"it is a {type(function).__name__}", "reward=fn:MODULE.FUNCTION")
    return function  # type: ignore[no-any-return]
