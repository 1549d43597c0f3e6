"""What an algorithm is: facts about itself and two pure hooks. The loop knows nothing else of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rlctl.rollout import Batch, Forward, Rollout
from rlctl.tensors import Total


@dataclass(frozen=True)
class Counts:
    """What a loss divides by: sizes of the whole minibatch, all microbatches and devices."""

    tokens: float
    """Tokens that count in the loss."""
    sequences: float
    """Sequences with at least one such token."""


class Algorithm(Protocol):
    """One RL algorithm. Hooks are pure: no state, no collective calls but through `total`.

    A class from outside (algo=class:MODULE.CLASS) may keep state, the same on every device, if it has `state() -> dict` of plain
    data and `restore(state)`: a run that goes on gives it back.
    """

    needs_value: bool
    """Whether a value model is built and trained."""
    needs_reference: bool
    """Whether the KL from the reference is needed even where kl_coef does not price it."""
    wants_baselines: bool
    """Whether it learns from the baselines of a calibrated reward too."""

    def prepare(self, rollout: Rollout, kl_coef: float, total: Total) -> tuple[Batch, dict[str, float]]:
        """Rollout -> what the loss needs, and metrics that are the same on every device.

        total: sums a tensor over all devices.
        """

    def combine(self, batches: Sequence[Batch], weights: Sequence[float]) -> Batch:
        """The batches of several tasks as one, whose gradient is sum_l weights_l * gradient_l.

        Only asked of an algorithm that the config lets have tasks.
        """

    def loss(self, batch: Batch, new: Forward, counts: Counts) -> tuple[Tensor, dict[str, Tensor]]:
        """This microbatch's share of the minibatch's loss, and of its metrics.

        Shares add up: their sum over microbatches and devices is the loss of the minibatch, for every split of it.
        It is a sum of a part for each model, which are asked for one after the other: `new` has log-probabilities (and
        entropy, if wanted) or values, or both.
        """
