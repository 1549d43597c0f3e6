"""What the value model starts from, and why; and building it. Knows no algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlctl import models
from rlctl.config.leaves import leaves
from rlctl.config.schema import CalibratedRewardConfig, ClassRewardConfig, Config, ValueInit
from rlctl.errors import ModelError
from rlctl.models import Source, ValueModel
from rlctl.rewards.base import Reward
from rlctl.rewards.build import model_inside


@dataclass(frozen=True)
class Choice:
    """policy or reward, with the reason in words."""

    init: ValueInit
    why: str


@dataclass(frozen=True)
class Built:
    """A value model and why it starts where it does."""

    model: ValueModel
    why: str


def choose(config: Config, policy: Source, reward: Source | None) -> Choice:
    """What the value model starts from, and why, in words.

    Raises:
        ModelError: value=reward with a reward model of another vocabulary; it names both.
    """
    asked = config.value.init
    if asked is ValueInit.policy:
        return Choice(asked, "as asked")
    if asked is ValueInit.auto and policy.adapter is not None:
        return Choice(ValueInit.policy, "a second adapter needs no second model")
    if reward is None:  # value=reward without one is refused by the config checks
        found = leaves(config.reward)
        kind = "a class" if isinstance(found[0], ClassRewardConfig) else "a function"
        what = kind if len(found) == 1 else "a sum of several"
        return Choice(ValueInit.policy, f"the reward is {what}, there is no reward model to start from")
    if asked is ValueInit.auto and isinstance(config.reward, CalibratedRewardConfig):
        return Choice(ValueInit.policy, "calibrated scores are on another scale than the reward model's head")
    if reward.shares_vocabulary(policy):
        return Choice(ValueInit.reward, "as asked" if asked is ValueInit.reward else "the reward model has the policy's vocabulary")
    if asked is ValueInit.reward:
        raise ModelError(
            "value=reward needs a reward model of the policy's vocabulary",
            f"policy: {policy.vocabulary}\nreward model: {reward.vocabulary}",
            "value=policy",
        )
    return Choice(ValueInit.policy, f"the reward model has another vocabulary: {reward.vocabulary}")


def build(config: Config, choice: Choice, source: Source, lm: Any, reward: Reward) -> Built:
    """The value model of a choice; an encoder, which sees later tokens, cannot tell the value before a token.

    Raises:
        ModelError: value=reward with an encoder.
    """
    init, why, inside = choice.init, choice.why, model_inside(reward)
    if init is ValueInit.reward and inside is not None and not inside.is_decoder:
        if config.value.init is ValueInit.reward:
            raise ModelError(f"value=reward needs a decoder, and {inside.name} sees later tokens", hint="value=policy")
        init, why = ValueInit.policy, f"{inside.name} is an encoder: it sees later tokens"
    if init is ValueInit.reward:
        assert inside is not None
        value = models.value_from_reward(inside.model)
    else:
        value = models.value_from_policy(source, lm, config.seed)
    if config.model.gradient_checkpointing:
        models.recompute_activations(value.classifier)
    return Built(value, why)
