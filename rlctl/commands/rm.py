"""`rlctl rm [RECIPE_DIR] [overrides...]`: a reward model, a stage before PPO."""

from __future__ import annotations

from rlctl.commands import stage
from rlctl.config.roots import RM


def run(argv: list[str], show_traceback: bool) -> int:
    """The exit status."""
    return stage.run(argv, show_traceback, RM)
