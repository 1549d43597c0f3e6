"""The rewards inside a reward: what a calibrated or weighted one is made of, as configs of functions, classes and models."""

from __future__ import annotations

from typing import Any

from rlctl.config.schema import (
    CalibratedRewardConfig,
    ClassRewardConfig,
    FunctionRewardConfig,
    ModelRewardConfig,
    RewardConfig,
    WeightedRewardConfig,
)

Leaf = FunctionRewardConfig | ClassRewardConfig | ModelRewardConfig


def leaf(spec: str, keep_special_tokens: bool = False, args: dict[str, Any] | None = None) -> Leaf:
    """`fn:mypkg.f`, `class:mypkg.C` or `model:PATH` -> the config of that reward.

    Raises:
        ValueError: it has none of these forms, or a model is given arguments.
    """
    kind, colon, path = spec.partition(":")
    if not colon or not path or kind not in ("fn", "class", "model"):
        raise ValueError(f"{spec!r}: expected fn:MODULE.FUNCTION, class:MODULE.CLASS or model:PATH_OR_HUB_ID")
    if kind != "model":
        cls = FunctionRewardConfig if kind == "fn" else ClassRewardConfig
        return cls(path=path, keep_special_tokens=keep_special_tokens, args=dict(args or {}))
    if args:
        raise ValueError(f"{spec!r}: a reward model takes no args")
    return ModelRewardConfig(path=path, keep_special_tokens=keep_special_tokens)


def calibrated_base(config: CalibratedRewardConfig) -> Leaf:
    """The reward that is calibrated."""
    return leaf(config.base or f"model:{config.path}", config.keep_special_tokens)


def leaves(config: RewardConfig) -> list[Leaf]:
    """All functions, classes and models of a reward.

    Raises:
        ValueError: a text in reward.base or reward.terms names none.
    """
    if isinstance(config, CalibratedRewardConfig):
        return [calibrated_base(config)]
    if isinstance(config, WeightedRewardConfig):
        return [leaf(t.reward, config.keep_special_tokens, t.args) for t in config.terms]
    assert isinstance(config, Leaf)
    return [config]


def value_source(config: RewardConfig) -> ModelRewardConfig | None:
    """The reward model that a value model may start from; None where there is none or no single one."""
    found = leaves(config)
    return found[0] if len(found) == 1 and isinstance(found[0], ModelRewardConfig) else None
