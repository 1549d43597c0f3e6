"""The rewards inside a reward: what a calibrated or weighted one is made of, as configs of functions and models."""

from __future__ import annotations

from typing import Any

from rlctl.config.schema import (
    CalibratedRewardConfig,
    FunctionRewardConfig,
    ModelRewardConfig,
    RewardConfig,
    WeightedRewardConfig,
)

Leaf = FunctionRewardConfig | ModelRewardConfig


def leaf(spec: str, keep_special_tokens: bool = False, args: dict[str, Any] | None = None) -> Leaf:
    """`fn:mypkg.f` or `model:PATH` -> the config of that reward.

    Raises:
        ValueError: it has neither form, or a model is given arguments.
    """
    kind, colon, path = spec.partition(":")
    if not colon or not path or kind not in ("fn", "model"):
        raise ValueError(f"{spec!r}: expected fn:MODULE.FUNCTION or model:PATH_OR_HUB_ID")
    if kind == "fn":
        return FunctionRewardConfig(path=path, keep_special_tokens=keep_special_tokens, args=dict(args or {}))
    if args:
        raise ValueError(f"{spec!r}: a reward model takes no args")
    return ModelRewardConfig(path=path, keep_special_tokens=keep_special_tokens)


def calibrated_base(config: CalibratedRewardConfig) -> Leaf:
    """The reward that is calibrated."""
    return leaf(config.base or f"model:{config.path}", config.keep_special_tokens)


def leaves(config: RewardConfig) -> list[Leaf]:
    """All functions and models of a reward.

    Raises:
        ValueError: a text in reward.base or reward.terms names none.
    """
    if isinstance(config, CalibratedRewardConfig):
        return [calibrated_base(config)]
    if isinstance(config, WeightedRewardConfig):
        return [leaf(t.reward, config.keep_special_tokens, t.args) for t in config.terms]
    assert isinstance(config, (FunctionRewardConfig, ModelRewardConfig))
    return [config]


def value_source(config: RewardConfig) -> ModelRewardConfig | None:
    """The reward model that a value model may start from; None where there is none or no single one."""
    found = leaves(config)
    return found[0] if len(found) == 1 and isinstance(found[0], ModelRewardConfig) else None
