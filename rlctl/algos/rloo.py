"""REINFORCE with a leave-one-out baseline over the responses to one prompt; no value model.

Sources: Ahmadian et al., arXiv 2402.14740 (RLOO for language models); Kool et al., "Buy 4 REINFORCE samples, get a baseline for
free!", 2019 (the estimator). The KL is taken off the score of the whole response before the baseline, so two responses of equal
score and different KL get advantages of opposite sign.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlctl import tensors
from rlctl.algos.base import Counts
from rlctl.config.schema import RatioLevel, RLOOConfig
from rlctl.rollout import Batch, Forward, Rollout
from rlctl.tensors import Total, masked, masked_sum


@dataclass(frozen=True)
class RLOOBatch(Batch):
    """Targets of each response."""

    old_logprobs: Tensor
    """(B, R)."""
    ref_logprobs: Tensor
    """(B, R); the old ones where there is no reference."""
    advantages: Tensor
    """(B,)."""


class RLOO:
    """Clipped policy loss over leave-one-out advantages."""

    needs_value = False
    needs_reference = False
    wants_baselines = False

    def __init__(self, config: RLOOConfig):
        self.config = config

    def prepare(self, rollout: Rollout, kl_coef: float, total: Total) -> tuple[RLOOBatch, dict[str, float]]:
        """R_i = score_i - beta * sum_t kl_t, minus the mean of the other responses to the prompt."""
        c, mask = self.config, rollout.mask
        returns = rollout.adjusted_scores
        if rollout.ref_logprobs is not None and not c.kl_in_loss:
            kl = tensors.kl_estimate(rollout.old_logprobs, rollout.ref_logprobs, c.kl_estimator)
            returns = returns - kl_coef * masked(kl, mask).sum(1)
        # a response that is masked out of the loss is not one of the others either
        counted = ~(rollout.truncated & c.mask_truncated)
        advantages = tensors.leave_one_out(returns, rollout.group_size, counted)
        if c.normalize_advantages:
            _, mean, variance = tensors.moments(advantages, counted, total)
            advantages = (advantages / torch.sqrt(variance + mean.square() + 1e-8)).clamp(-10.0, 10.0)
        tied = tensors.tied_groups(rollout.scores, rollout.group_size)
        _, share, _ = tensors.moments(tied.float(), torch.ones_like(tied), total)
        reference = rollout.ref_logprobs if rollout.ref_logprobs is not None else rollout.old_logprobs
        batch = RLOOBatch(rollout.sequences, mask & counted.unsqueeze(-1), rollout.old_logprobs, reference, advantages)
        return batch, {"groups/tied": float(share)}

    def loss(self, batch: Batch, new: Forward, counts: Counts) -> tuple[Tensor, dict[str, Tensor]]:
        """-mean_i min(rho_i A_i, clip(rho_i) A_i), with one rho a response or one a token."""
        assert isinstance(batch, RLOOBatch) and new.logprobs is not None
        c, mask, n, sequences = self.config, batch.loss_mask, max(counts.tokens, 1.0), max(counts.sequences, 1.0)
        log_ratio = masked(new.logprobs - batch.old_logprobs, mask)
        if c.ratio is RatioLevel.sequence:
            rho, advantages, counted = tensors.probability_ratio(log_ratio.sum(1)), batch.advantages, mask.any(1)
        else:
            rho, advantages, counted = tensors.probability_ratio(log_ratio), batch.advantages.unsqueeze(-1), mask
        clipped = rho.clamp(1 - c.clip_range, 1 + c.clip_range)
        policy_loss = -masked_sum(torch.min(rho * advantages, clipped * advantages), counted) / sequences
        loss, ratio = policy_loss, tensors.probability_ratio(log_ratio)
        outside = ((rho - 1).abs() > c.clip_range).float()
        stats = {
            "loss/policy": policy_loss,
            "policy/ratio": masked_sum(ratio, mask) / n,
            "policy/approxkl": masked_sum(ratio - 1 - log_ratio, mask) / n,
            "policy/clipfrac": masked_sum(outside, counted) / (sequences if c.ratio is RatioLevel.sequence else n),
        }
        if c.kl_in_loss:
            # of the whole response: token by token, the gradient would miss what a token does to the KL of later ones
            whole = masked(new.logprobs - batch.ref_logprobs, mask).sum(1)
            kl = masked_sum(whole.square() / 2, mask.any(1)) / sequences
            loss = loss + c.kl_coef * kl
            stats["loss/kl"] = kl
        if new.entropy is not None:
            entropy = masked_sum(new.entropy, mask) / n
            loss = loss - c.entropy_coef * entropy
            stats["loss/entropy"] = entropy
        return loss, stats
