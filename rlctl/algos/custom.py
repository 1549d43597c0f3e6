"""An algorithm from outside: a class of the user's, held to what an algorithm is. Knows nothing of what the class does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rlctl.algos.base import Counts
from rlctl.config.schema import CustomAlgoConfig
from rlctl.errors import ConfigError, TrainingError
from rlctl.importing import construct, kept
from rlctl.rollout import Batch, Forward, Rollout
from rlctl.tensors import Total

FACTS = ("needs_value", "needs_reference", "wants_baselines")
HOOKS = ("prepare", "loss")
KNOWN = {
    "loss/policy", "loss/value", "loss/entropy", "loss/kl", "policy/ratio", "policy/approxkl", "policy/clipfrac",
    "value/clipfrac", "value/explained_variance", "value/mean", "groups/tied",
}  # fmt: skip
"""Metrics of the built-in algorithms that another one may measure too; whatever else it measures is logged as algo/NAME."""


class Custom:
    """The user's object behind the checks of what it gives."""

    def __init__(self, config: CustomAlgoConfig):
        self.called = f"algo {config.title}"
        self.inner: Any = construct("algo", config.path, [config], config.args, ConfigError)
        if missing := [n for n in FACTS if not hasattr(self.inner, n)] + [n for n in HOOKS if not callable(getattr(self.inner, n, None))]:
            raise ConfigError(
                f"{self.called} lacks {', '.join(missing)}",
                f"an algorithm has {', '.join(FACTS)} (each True or False) and {' and '.join(HOOKS)} (functions)",
                "rlctl/algos/base.py says what each is; conf/EXTENDING.md has a whole one",
            )
        for name in FACTS:
            if not isinstance(getattr(self.inner, name), bool):
                raise ConfigError(f"{self.called}: {name} is {getattr(self.inner, name)!r}, expected True or False")
        if callable(getattr(self.inner, "state", None)) != callable(getattr(self.inner, "restore", None)):
            raise ConfigError(f"{self.called} has only one of state and restore", "a run that goes on needs both")
        self.needs_value: bool = self.inner.needs_value
        self.needs_reference: bool = self.inner.needs_reference
        self.wants_baselines: bool = self.inner.wants_baselines

    @property
    def has_tasks(self) -> bool:
        """Whether it can put several tasks together."""
        return callable(getattr(self.inner, "combine", None))

    def prepare(self, rollout: Rollout, kl_coef: float, total: Total) -> tuple[Batch, dict[str, float]]:
        """The class's own, checked."""
        returned = self.inner.prepare(rollout, kl_coef, total)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Batch) and isinstance(returned[1], dict)):
            raise self._wrong("prepare", returned, "(batch, metrics): a rlctl.rollout.Batch, or a subclass, and a dictionary of numbers")
        batch, metrics = returned
        if batch.loss_mask.shape != batch.sequences.response_mask.shape:
            shapes = f"{tuple(batch.loss_mask.shape)}, the responses {tuple(batch.sequences.response_mask.shape)}"
            raise TrainingError(f"{self.called}: the batch's loss_mask is {shapes}", hint="rollout.mask, or a part of it")
        return batch, {_named(name): float(value) for name, value in metrics.items()}

    def combine(self, batches: Sequence[Batch], weights: Sequence[float]) -> Batch:
        """The class's own."""
        batch: Batch = self.inner.combine(batches, weights)
        return batch

    def loss(self, batch: Batch, new: Forward, counts: Counts) -> tuple[Tensor, dict[str, Tensor]]:
        """The class's own, checked."""
        returned = self.inner.loss(batch, new, counts)
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Tensor) and isinstance(returned[1], dict)):
            raise self._wrong("loss", returned, "(loss, metrics): a tensor and a dictionary of tensors")
        loss, metrics = returned
        if loss.dim() != 0 or not loss.requires_grad:
            what = f"a tensor of shape {tuple(loss.shape)}" if loss.dim() else "a number without gradient"
            raise TrainingError(f"{self.called}: the loss is {what}", "expected a single number that depends on new.logprobs or new.values")
        for name, value in metrics.items():
            if not isinstance(value, Tensor) or value.dim() != 0:
                raise TrainingError(f"{self.called}: metric {name!r} of the loss is no tensor of one number", hint=f"torch.tensor({name})")
        return loss, {_named(name): value for name, value in metrics.items()}

    def state(self) -> dict[str, Any]:
        """What the class asks to be kept in a checkpoint; nothing if it has no state."""
        return kept(self.inner.state(), self.called) if hasattr(self.inner, "state") else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Give the class back what `state` gave."""
        if hasattr(self.inner, "restore"):
            self.inner.restore(state)

    def _wrong(self, hook: str, returned: Any, expected: str) -> TrainingError:
        got = f"a tuple of {', '.join(type(x).__name__ for x in returned)}" if isinstance(returned, tuple) else type(returned).__name__
        return TrainingError(f"{self.called}: {hook} returned {got}", f"expected {expected}")


def _named(name: str) -> str:
    return name if name in KNOWN or name.startswith("algo/") else f"algo/{name}"
