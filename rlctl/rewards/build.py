"""From a reward's config to the reward. Cheap mistakes are found by `open_leaves`, before any weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rlctl import models
from rlctl.config.checks import term_name
from rlctl.config.leaves import Leaf, leaves, value_source
from rlctl.config.schema import (
    CalibratedRewardConfig,
    ClassRewardConfig,
    Config,
    FunctionRewardConfig,
    ModelRewardConfig,
    RewardConfig,
    WeightedRewardConfig,
)
from rlctl.models import Source
from rlctl.rewards.base import Reward
from rlctl.rewards.calibrated import CalibratedReward
from rlctl.rewards.custom import ClassReward
from rlctl.rewards.function import FunctionReward
from rlctl.rewards.model import ModelReward, check_source, load_classifier
from rlctl.rewards.weighted import Term, WeightedReward


@dataclass(frozen=True)
class Opened:
    """A leaf that was found: a function or class ready to call, or a reward model known by its config and tokenizer."""

    config: Leaf
    function: FunctionReward | ClassReward | None
    source: Source | None


def open_leaves(config: RewardConfig) -> list[Opened]:
    """Import every function and class, open every reward model's config and tokenizer.

    Raises:
        RewardError, ModelError: one of them is not what it should be.
    """
    opened, may_abstain = [], isinstance(config, WeightedRewardConfig)
    for leaf in leaves(config):
        if isinstance(leaf, FunctionRewardConfig):
            opened.append(Opened(leaf, FunctionReward(leaf, may_abstain=may_abstain), None))
        elif isinstance(leaf, ClassRewardConfig):
            opened.append(Opened(leaf, ClassReward(leaf, may_abstain), None))
        else:
            source = models.open_source(leaf, "reward model")
            check_source(source)
            opened.append(Opened(leaf, None, source))
    return opened


def value_source_of(config: RewardConfig, opened: list[Opened]) -> Source | None:
    """The reward model that a value model may start from."""
    return opened[0].source if value_source(config) is not None else None


def load(config: Config, opened: list[Opened], policy: Source, device: torch.device, read: dict[object, Any] | None = None) -> Reward:
    """Read the weights of every reward model that `read` does not hold yet, and put the reward together."""
    read = {} if read is None else read
    parts: list[Reward] = []
    for one in opened:
        if one.function is not None:
            parts.append(one.function)
            continue
        assert one.source is not None and isinstance(one.config, ModelRewardConfig)
        key = (one.source.path, one.config.revision, one.config.dtype)
        if key not in read:
            read[key] = load_classifier(one.source, device)
        parts.append(ModelReward(one.config, one.source, policy, device, read[key]))
    reward = config.reward
    if isinstance(reward, CalibratedRewardConfig):
        return CalibratedReward(reward, parts[0], config.algo.missing_eos_penalty)
    if isinstance(reward, WeightedRewardConfig):
        terms = zip(reward.terms, parts, strict=True)
        return WeightedReward([Term(term_name(t), part, t.weight, t.clip) for t, part in terms])
    return parts[0]


def model_inside(reward: Reward) -> ModelReward | None:
    """The reward model that a value model may start from, with its weights."""
    inner = reward.base if isinstance(reward, CalibratedReward) else reward
    return inner if isinstance(inner, ModelReward) else None
