"""`rlctl sft [RECIPE_DIR] [overrides...]`: supervised fine-tuning, a stage before PPO."""

from __future__ import annotations

from rlctl.commands import stage
from rlctl.config.roots import SFT


def run(argv: list[str], show_traceback: bool) -> int:
    """The exit status."""
    return stage.run(argv, show_traceback, SFT)
