"""Proximal policy optimisation for language models.

Sources: Schulman et al., arXiv 1707.06347 (clipped loss, eq. 7); Ziegler et al., arXiv 1909.08593 and Stiennon et al.,
arXiv 2009.01325 (KL in the reward, separate value model); Huang et al., "The N implementation details of RLHF with PPO".
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlctl import tensors
from rlctl.algos.base import Counts
from rlctl.config.schema import PPOConfig
from rlctl.rollout import Batch, Forward, Rollout
from rlctl.tensors import Total, masked, masked_sum


@dataclass(frozen=True)
class PPOBatch(Batch):
    """Per-token targets, each (B, R) float32 and 0 where masked."""

    old_logprobs: Tensor
    old_values: Tensor
    advantages: Tensor
    returns: Tensor


class PPO:
    """Clipped policy and value losses over generalised advantages."""

    needs_value = True
    needs_reference = False
    wants_baselines = False

    def __init__(self, config: PPOConfig):
        self.config = config

    def prepare(self, rollout: Rollout, kl_coef: float, total: Total) -> tuple[PPOBatch, dict[str, float]]:
        """Rewards, advantages and returns of every token."""
        c, mask = self.config, rollout.mask
        assert rollout.values is not None
        kl = torch.zeros_like(rollout.old_logprobs)
        if rollout.ref_logprobs is not None:
            kl = tensors.kl_estimate(rollout.old_logprobs, rollout.ref_logprobs, c.kl_estimator)
        rewards = tensors.token_rewards(rollout.adjusted_scores, kl, mask, kl_coef)
        # a row that is masked out of the loss must not move the statistics of the others
        counted = mask & ~(rollout.truncated & c.mask_truncated).unsqueeze(-1)
        if c.whiten_rewards:
            rewards = tensors.whiten(rewards, counted, total, shift_mean=False)
        advantages, returns = tensors.gae(rewards, rollout.values, mask, c.discount, c.gae_lambda)
        _, value_mean, _ = tensors.moments(rollout.values, counted, total)
        explained = tensors.explained_variance(rollout.values, returns, counted, total)
        if c.whiten_advantages:
            advantages = tensors.whiten(advantages, counted, total)
        batch = PPOBatch(rollout.sequences, counted, rollout.old_logprobs, rollout.values, masked(advantages, counted), returns)
        return batch, {"value/explained_variance": float(explained), "value/mean": float(value_mean)}

    def loss(self, batch: Batch, new: Forward, counts: Counts) -> tuple[Tensor, dict[str, Tensor]]:
        """L_pi + vf_coef * L_V - entropy_coef * H, each a mean over the minibatch's tokens."""
        assert isinstance(batch, PPOBatch)
        c, mask, n = self.config, batch.loss_mask, max(counts.tokens, 1.0)
        loss, stats = torch.zeros((), device=mask.device), dict[str, Tensor]()
        if new.values is not None:
            value_loss, value_clipped = self._value_loss(batch, new.values)
            loss = loss + c.vf_coef * masked_sum(value_loss, mask) / n
            stats = {"loss/value": masked_sum(value_loss, mask) / n, "value/clipfrac": masked_sum(value_clipped, mask) / n}
        if new.logprobs is None:
            return loss, stats
        log_ratio = masked(new.logprobs - batch.old_logprobs, mask)
        ratio = tensors.probability_ratio(log_ratio)
        clipped = ratio.clamp(1 - c.clip_range, 1 + c.clip_range)
        policy_loss = -masked_sum(torch.min(ratio * batch.advantages, clipped * batch.advantages), mask) / n
        loss = loss + policy_loss
        stats |= {
            "loss/policy": policy_loss,
            "policy/ratio": masked_sum(ratio, mask) / n,
            "policy/approxkl": masked_sum(ratio - 1 - log_ratio, mask) / n,
            "policy/clipfrac": masked_sum(((ratio - 1).abs() > c.clip_range).float(), mask) / n,
        }
        if new.entropy is not None:
            entropy = masked_sum(new.entropy, mask) / n
            loss = loss - c.entropy_coef * entropy
            stats["loss/entropy"] = entropy
        return loss, stats

    def _value_loss(self, batch: PPOBatch, values: Tensor) -> tuple[Tensor, Tensor]:
        """Per-token 0.5 * max(plain, clipped) squared error and whether the clipped one was larger, both (b, r)."""
        plain = (values - batch.returns).square()
        if self.config.clip_range_value is None:
            return 0.5 * plain, torch.zeros_like(plain)
        reach = self.config.clip_range_value
        near = torch.clamp(values, batch.old_values - reach, batch.old_values + reach)
        clipped = (near - batch.returns).square()
        return 0.5 * torch.maximum(plain, clipped), (clipped > plain).float()
