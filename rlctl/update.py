"""The inner epochs of a step: minibatches, microbatches, gradients, optimizer. Knows no algorithm by name.

Losses divide by counts of the whole minibatch over all devices, so how it is cut into microbatches changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rlctl.algos import Algorithm, Counts
from rlctl.config.schema import Config, OptimConfig, Schedule
from rlctl.errors import TrainingError
from rlctl.lora import is_adapted
from rlctl.rollout import Batch, Forward
from rlctl.sharding import Learner
from rlctl.tensors import Total, length_groups


def learning_rate_scale(update: int, updates: int, config: OptimConfig) -> float:
    """Factor on the peak learning rate for update `update` (from 0) of `updates` planned: 1 after warm-up, 0 at the end."""
    if update < config.warmup_updates:
        return (update + 1) / config.warmup_updates
    if config.schedule is Schedule.constant:
        return 1.0
    done = (update - config.warmup_updates) / max(1, updates - config.warmup_updates)
    if config.schedule is Schedule.linear:
        return max(0.0, 1.0 - done)
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))


LORA_FACTOR = 10.0
"""An adapter learns best at about ten times the rate of all weights, whatever its rank (Schulman et al., "LoRA Without
Regret", 2025)."""


def default_learning_rate(parameters: int, adapted: bool = False) -> float:
    """3 * N^(-2/3), at most 1e-3: about 3e-4 for 1M parameters, 1e-5 for 135M, 8e-7 for 7B. A rule of thumb of ours.

    Ten times that for an adapter on N parameters.
    """
    return min(1e-3, 3.0 * parameters ** (-2.0 / 3.0)) * (LORA_FACTOR if adapted else 1.0)


@dataclass
class Updater:
    """Turns batches into optimizer updates."""

    config: Config
    algorithm: Algorithm
    learner: Learner
    total: Total
    updates_done: int = 0
    skipped: int = 0
    """Updates that fp16's loss scaling has skipped."""
    planned: int = 0
    """Place in the schedule: as updates_done, but an early stop of a step's epochs does not set it back."""

    @property
    def policy(self) -> nn.Module:
        """The policy, in its wrappers."""
        return self.learner.policy

    @property
    def value(self) -> nn.Module | None:
        """The value model, in its wrappers."""
        return self.learner.value

    @property
    def optimizer(self) -> Any:
        """Over both models."""
        return self.learner.optimizer

    def __call__(self, batch: Batch, step: int) -> dict[str, float]:
        """All inner epochs over one step's batch; metrics averaged over its updates.

        Raises:
            TrainingError: a loss or gradient is not finite; no update was taken from it.
        """
        with self._recomputing():
            return self._epochs(batch, step)

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """Checkpointing works in train mode only; dropout is off in either (see models.disable_dropout)."""
        modules = [m for m in (self.policy, self.value) if m is not None]
        for module in modules:
            module.train(self.config.model.gradient_checkpointing)
        try:
            yield
        finally:
            for module in modules:
                module.eval()

    def _epochs(self, batch: Batch, step: int) -> dict[str, float]:
        algo, sums, epochs = self.config.algo, dict[str, float](), 0
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + step)
        self.planned = (step - 1) * algo.epochs * algo.minibatches
        taken, padding, skipped = dict[str, int](), _Padding(), self.skipped
        for _ in range(algo.epochs):
            epochs += 1
            epoch_kl = 0.0
            for rows in self._minibatches(len(batch), generator):
                stats = self._minibatch(batch, rows, step, padding)
                epoch_kl += stats.get("policy/approxkl", 0.0) / algo.minibatches
                for name, value in stats.items():
                    sums[name] = sums.get(name, 0.0) + value
                    taken[name] = taken.get(name, 0) + 1
            if algo.target_kl is not None and epoch_kl > algo.target_kl:
                break
        means = {name: value / taken[name] for name, value in sums.items()}
        lr = self.optimizer.param_groups[0]["lr"]
        if self.learner.scale is not None:
            means["policy/skipped_updates"] = float(self.skipped - skipped)
        return means | {
            "policy/lr": lr,
            "policy/updates": float(self.updates_done),
            "policy/epochs": float(epochs),
            "tokens/padding": padding.share,
        }

    def _minibatches(self, size: int, generator: torch.Generator) -> Iterator[Tensor]:
        """One epoch's minibatches as row numbers of this process's batch.

        The order is drawn over the rows of all processes, so a minibatch holds the same responses however many share it.
        """
        processes, first = self.learner.accelerator.num_processes, size * self.learner.accelerator.process_index
        order = torch.randperm(size * processes, generator=generator)
        for rows in order.split(len(order) // self.config.algo.minibatches):
            yield rows[(rows >= first) & (rows < first + size)] - first

    def _minibatch(self, batch: Batch, rows: Tensor, step: int, padding: _Padding) -> dict[str, float]:
        """Gradients of one minibatch, then one optimizer update."""
        mask = batch.loss_mask[rows.to(batch.loss_mask.device)]
        counts = Counts(*self.total(torch.stack([mask.sum(), mask.any(1).sum()]).float()).tolist())
        if counts.sequences == 0:  # nothing to learn from: a step would still move by momentum
            self.planned += 1
            return {}
        rows = rows[mask.any(1).cpu()]
        if len(rows) == 0:  # the others wait for this process's gradients, though it has none of the rows
            batch, rows = replace(batch, loss_mask=torch.zeros_like(batch.loss_mask)), torch.tensor([0])
        groups = length_groups(batch.sequences.lengths[rows.to(mask.device)].cpu(), self.config.optim.microbatch_size)
        micros = [batch.select(rows[group].to(mask.device)) for group in groups]
        # a process with fewer microbatches than others runs empty ones beside their last
        missing = self.learner.microbatches(len(micros)) - len(micros)
        empty = replace(micros[0], loss_mask=torch.zeros_like(micros[0].loss_mask))
        shares: dict[str, Tensor] = {}
        for i, micro in enumerate([*micros, *[empty] * missing]):
            if i < len(micros):
                padding.add(micro)
            for forward in self._forwards(step):
                with self.learner.gradients(last=i == len(micros) + missing - 1), self._anomaly():
                    new = forward(micro)
                    loss, stats = self.algorithm.loss(micro, new, counts)
                    self.learner.backward(loss)
                for name, value in stats.items():
                    shares[name] = shares.get(name, 0.0) + value.detach()
                if self.config.debug.checks:
                    self._check_first(new, micro, step)
        names = sorted(shares)
        reduced = self.total(torch.stack([shares[n].float() for n in names])).tolist()
        stats = dict(zip(names, reduced, strict=True))
        return stats | self._step(stats, step)

    def _forwards(self, step: int) -> Iterator[Callable[[Batch], Forward]]:
        """What each model says of a microbatch. One after the other, so that the activations of only one are kept at a time."""
        temperature, entropy, value = self.config.rollout.temperature, self.config.algo.entropy_coef > 0, self.value
        if not self._value_only(step):
            yield lambda micro: self.policy(micro.sequences, temperature, entropy)
        if value is not None:
            yield lambda micro: Forward(values=value(micro.sequences))

    def _value_only(self, step: int) -> bool:
        return step <= getattr(self.config.algo, "value_warmup_steps", 0)

    def _step(self, stats: dict[str, float], step: int) -> dict[str, float]:
        """Set the learning rate, clip each model's gradient by its own norm, refuse what is not finite, update."""
        scale = learning_rate_scale(self.planned, self.config.updates, self.config.optim)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * scale
        modules = {"policy/grad_norm": None if self._value_only(step) else self.policy, "value/grad_norm": self.value}
        norms = self.learner.clip({k: m for k, m in modules.items() if m is not None}, self.config.optim.max_grad_norm)
        # an overflow of scaled gradients says that the scale is too high, not that anything is wrong
        overflow = (self.learner.scale or 0.0) > 1.0 and not all(map(math.isfinite, norms.values()))
        for name, value in (stats if overflow else {**stats, **norms}).items():
            if not math.isfinite(value):
                self.optimizer.zero_grad()
                raise TrainingError(
                    f"step {step}: {name} is {value}; the update was not taken",
                    f"update {self.updates_done + 1} of the run; the policy is as it was before it",
                    "a lower optim.lr, model.dtype=float32, or algo.score_clip against extreme scores",
                )
        self.learner.step()
        self.planned += 1
        if overflow:
            self.skipped += 1
            return {}
        self.updates_done += 1
        return norms

    def _anomaly(self) -> AbstractContextManager[Any]:
        return torch.autograd.set_detect_anomaly(self.config.debug.anomaly)

    def _check_first(self, new: Forward, micro: Batch, step: int) -> None:
        """debug.checks: until the first update of a step the policy is the one that sampled."""
        old = getattr(micro, "old_logprobs", None)
        first = (step - 1) * self.config.algo.epochs * self.config.algo.minibatches
        if self.planned != first or old is None or new.logprobs is None:
            return
        worst = float((new.logprobs.detach() - old).exp().sub(1).abs()[micro.sequences.response_mask].max())
        if worst > 1e-4 and self.learner.accelerator.mixed_precision == "no":
            raise TrainingError(f"step {step}: a ratio is {worst:.2e} from 1 before the first update", "found by debug.checks")


@dataclass
class _Padding:
    """Positions in the update passes, real and all."""

    real: int = 0
    every: int = 0

    def add(self, batch: Batch) -> None:
        s = batch.sequences
        self.real += int(s.lengths.sum())
        self.every += len(s) * (s.prompt_ids.shape[1] + s.response_ids.shape[1])

    @property
    def share(self) -> float:
        return 1.0 - self.real / max(1, self.every)


def value_learning_rate(policy: nn.Module, value: nn.Module, config: Config, lr: float) -> float:
    """value.lr, or the policy's lr. A whole value model beside a policy trained by LoRA cannot take that: LORA_FACTOR less."""
    if config.value.lr is not None:
        return config.value.lr
    return lr / LORA_FACTOR if is_adapted(policy) and not is_adapted(value) else lr


def build_optimizer(policy: nn.Module, value: nn.Module | None, config: Config, lr: float) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters; the value model in a group with its own peak learning rate."""
    c = config.optim

    def group(module: nn.Module, peak: float) -> dict[str, Any]:
        return {"params": [p for p in module.parameters() if p.requires_grad], "lr": peak, "peak_lr": peak}

    groups = [group(policy, lr)]
    if value is not None:
        groups.append(group(value, value_learning_rate(policy, value, config, lr)))
    return torch.optim.AdamW(groups, betas=(c.beta1, c.beta2), eps=c.eps, weight_decay=c.weight_decay)
