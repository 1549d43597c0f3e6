"""Constrained policy optimisation with a mixture of judges: CRPG, CRRAFT and CODPO.

Source: Xu et al., "The Perfect Blend" (CGPO), arXiv 2409.20370: Algorithm 1, eq. 7-12 (CRPG), 13-15 (CODPO), 16-18 (CRRAFT).
No value model and no probability ratio: every sampled batch is used for one update, so the policy that is updated is the one that
sampled. Therefore each of the three losses has, where it is taken, the gradient of

    L = -sum_i w_i log pi(a_i | s_i)

with weights that are known once the batch is scored; that is what is trained on. Where the paper slips, its text is followed: a
response is satisfied if *all* judges pass (Algorithm 1 prints an "or"), and eq. 15's sign is reversed as printed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlctl.algos.base import Counts
from rlctl.config.schema import CGPOConfig, CGPOOptimizer
from rlctl.rollout import Batch, Forward, Rollout, Sequences
from rlctl.tensors import Total, masked, masked_sum


@dataclass(frozen=True)
class CGPOBatch(Batch):
    """Responses, and under CRRAFT one baseline answer a prompt after them, with their weights."""

    weights: Tensor
    """(B,) w_i, the 1 / n of the loss included."""


@dataclass(frozen=True)
class Scores:
    """What the weights are made of, by prompt: P prompts, K samples each."""

    reward: Tensor
    """(P, K) R_calib."""
    raw: Tensor
    """(P, K) what orders the samples of one prompt."""
    satisfied: Tensor
    """(P, K) bool."""
    kl: Tensor
    """(P, K) D in nats."""
    lengths: Tensor
    """(P, K) tokens."""


def crpg_weights(s: Scores, kl_max: float, total: Total) -> tuple[Tensor, Tensor]:
    """Eq. 7-12: A = R~ - mean of R~ over the whole minibatch, R~ = max(1 - D / kl_max, 0) R_cr. Returns A and R~, (P, K)."""
    factor = (1 - s.kl / kl_max).clamp(min=0.0) if math.isfinite(kl_max) else torch.ones_like(s.kl)
    shaped = factor * masked(s.reward, s.satisfied)
    mean = total(torch.stack([shaped.sum(), torch.ones_like(shaped).sum()]))
    return shaped - mean[0] / mean[1], shaped


def crraft_weights(s: Scores, kl_max: float, baseline_passes: Tensor | None) -> tuple[Tensor, Tensor]:
    """Eq. 16-18: R_calib of the best sample that is satisfied and within kl_max; 0.5 for the baseline where there is none and it
    passes. Returns (P, K) for samples and (P,) for baselines."""
    allowed = s.satisfied & (s.kl <= kl_max)
    best = s.raw.masked_fill(~allowed, -torch.inf).argmax(1, keepdim=True)
    chosen = torch.zeros_like(allowed).scatter(1, best, True) & allowed
    none = ~allowed.any(1)
    passes = torch.zeros_like(none) if baseline_passes is None else baseline_passes
    return masked(s.reward, chosen), 0.5 * (none & passes).to(s.reward.dtype)


def codpo_weights(s: Scores, beta: float, lam: float) -> tuple[Tensor, Tensor]:
    """Eq. 13-15: per prompt a+ = best satisfied, a- = worst violating (worst of all if none violates), by the raw reward.

    The gradient of -[log sigma(beta D(a+) - beta D(a-)) + (lam / |a+|) log pi(a+)] with respect to log pi is
    -(beta (1 - sigma) + lam / |a+|) at a+ and +beta (1 - sigma) at a-. Returns the weights (P, K) and which prompts have a pair (P,).
    """
    best = s.raw.masked_fill(~s.satisfied, -torch.inf).argmax(1)
    violating = torch.where(s.satisfied.all(1, keepdim=True), torch.ones_like(s.satisfied), ~s.satisfied)
    worst = s.raw.masked_fill(~violating, torch.inf).argmin(1)
    paired = s.satisfied.any(1) & (best != worst)
    rows = torch.arange(len(best), device=best.device)
    pull = beta * torch.sigmoid(-beta * (s.kl[rows, best] - s.kl[rows, worst]))
    weights = torch.zeros_like(s.reward)
    weights[rows, worst] -= pull
    weights[rows, best] += pull + lam / s.lengths[rows, best].clamp(min=1)
    return masked(weights, paired.unsqueeze(-1)), paired


class CGPO:
    """Weighted log-likelihood of responses that judges and a KL bound allow."""

    needs_value = False
    needs_reference = True

    def __init__(self, config: CGPOConfig):
        self.config = config
        self.wants_baselines = config.optimizer is CGPOOptimizer.crraft

    def prepare(self, rollout: Rollout, kl_coef: float, total: Total) -> tuple[CGPOBatch, dict[str, float]]:
        """Every response's weight; those of weight 0 are left out of the passes."""
        c, s = self.config, grouped(rollout)
        kl_max = math.inf if c.kl_max is None else c.kl_max
        prompts = total(torch.tensor(float(len(s.reward)), device=s.reward.device))
        counts = {"cgpo/satisfied": s.satisfied.float().mean(1).sum()}
        sequences, mask, extra = rollout.sequences, rollout.mask, None
        if c.optimizer is CGPOOptimizer.crpg:
            weights, shaped = crpg_weights(s, kl_max, total)
            weights = weights / (prompts * rollout.group_size)
            counts |= {
                "cgpo/reward": shaped.mean(1).sum(),
                "cgpo/zeroed_by_kl": (s.satisfied & (s.kl >= kl_max)).float().mean(1).sum(),
            }
        elif c.optimizer is CGPOOptimizer.crraft:
            weights, extra = crraft_weights(s, kl_max, rollout.baseline_satisfied)
            counts |= {"cgpo/baselines": (extra > 0).sum(), "cgpo/skipped": ((weights == 0).all(1) & (extra == 0)).sum()}
            weights, extra = weights / prompts, extra / prompts
        else:
            weights, paired = codpo_weights(s, c.beta, c.lam)
            pairs = total(paired.sum().float())
            weights = weights / pairs.clamp(min=1)
            counts |= {"cgpo/skipped": (~paired).sum()}
        flat = weights.reshape(-1)
        if extra is not None and rollout.baselines is not None:
            sequences = joined(sequences, rollout.baselines)
            mask, flat = sequences.response_mask, torch.cat([flat, extra])
        batch = CGPOBatch(sequences, mask & (flat != 0).unsqueeze(-1), flat)
        return batch, {name: float(total(x.float()) / prompts) for name, x in counts.items()}

    def combine(self, batches: Sequence[Batch], weights: Sequence[float]) -> CGPOBatch:
        """Section 4.2 and Algorithm 2: g = sum_l rho_l g_l. Every task's mean is its own already, in its weights."""
        sequences = functools.reduce(joined, (b.sequences for b in batches))
        width = sequences.response_ids.shape[1]
        masks = [torch.nn.functional.pad(b.loss_mask, (0, width - b.loss_mask.shape[1])) for b in batches]
        own = [rho * b.weights for b, rho in zip(batches, weights, strict=True) if isinstance(b, CGPOBatch)]
        return CGPOBatch(sequences, torch.cat(masks), torch.cat(own))

    def loss(self, batch: Batch, new: Forward, counts: Counts) -> tuple[Tensor, dict[str, Tensor]]:
        """-sum_i w_i log pi(a_i): the weights carry what they are divided by."""
        assert isinstance(batch, CGPOBatch) and new.logprobs is not None
        mask = batch.loss_mask
        loss = -(batch.weights * masked(new.logprobs, mask).sum(1)).sum()
        stats = {"loss/policy": loss}
        if new.entropy is not None:
            entropy = masked_sum(new.entropy, mask) / max(counts.tokens, 1.0)
            loss = loss - self.config.entropy_coef * entropy
            stats["loss/entropy"] = entropy
        return loss, stats


def grouped(rollout: Rollout) -> Scores:
    """A rollout's rows by prompt. Without judges every response is satisfied."""
    assert rollout.ref_logprobs is not None
    shape = (-1, rollout.group_size)
    kl = masked(rollout.old_logprobs - rollout.ref_logprobs, rollout.mask).sum(1)
    satisfied = rollout.satisfied if rollout.satisfied is not None else torch.ones_like(rollout.truncated)
    raw = rollout.raw_scores if rollout.raw_scores is not None else rollout.adjusted_scores
    rows = (rollout.adjusted_scores, raw, satisfied, kl, rollout.mask.sum(1))
    return Scores(*(x.view(shape) for x in rows))


def joined(a: Sequences, b: Sequences) -> Sequences:
    """Rows of both, padded to the wider."""
    prompt = max(a.prompt_ids.shape[1], b.prompt_ids.shape[1])
    response = max(a.response_ids.shape[1], b.response_ids.shape[1])

    def pad(x: Tensor, left: int, right: int) -> Tensor:
        return torch.nn.functional.pad(x, (left, right), value=False if x.dtype == torch.bool else 0)

    def both(name: str, left: bool) -> Tensor:
        width = prompt if left else response
        parts = [getattr(s, name) for s in (a, b)]
        return torch.cat([pad(p, width - p.shape[1] if left else 0, 0 if left else width - p.shape[1]) for p in parts])

    return Sequences(both("prompt_ids", True), both("prompt_mask", True), both("response_ids", False), both("response_mask", False))
