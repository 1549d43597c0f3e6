"""The roots of configs: which schema and which files a command composes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlctl.config.schema import Config
from rlctl.config.stages import RMStage, SFTStage


@dataclass(frozen=True)
class Root:
    """One kind of config."""

    command: str
    """The command that runs it, for messages."""
    base: str
    """The built-in file that names its groups."""
    recipe: str
    """The file of a recipe folder that takes the built-in one's place."""
    schema: type


TRAIN = Root("train", "base", "config", Config)
SFT = Root("sft", "base_sft", "sft", SFTStage)
RM = Root("rm", "base_rm", "rm", RMStage)
ROOTS = {root.command: root for root in (TRAIN, SFT, RM)}


def root_of(config: Any) -> Root:
    """The root that a composed config belongs to."""
    return next(root for root in ROOTS.values() if isinstance(config, root.schema))
