"""The mathematics as pure functions of tensors. Knows no model, no config and no device layout.

Shapes: B sequences, R response tokens, V vocabulary. A mask is True where a token counts; masked entries may hold anything,
NaN included, and never reach a result. `total` sums a tensor over all devices; alone it is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]


def alone(x: Tensor) -> Tensor:
    """The sum over devices when there is one."""
    return x


def left_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token id lists -> ids (B, P) padded on the left, mask (B, P)."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(r)) + list(r) for r in rows], dtype=torch.long)
    mask = torch.tensor([[False] * (width - len(r)) + [True] * len(r) for r in rows])
    return ids, mask


def right_pad(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token id lists -> ids (B, L) padded on the right, mask (B, L)."""
    width = max(map(len, rows))
    ids = torch.tensor([list(r) + [pad_id] * (width - len(r)) for r in rows], dtype=torch.long)
    mask = torch.tensor([[True] * len(r) + [False] * (width - len(r)) for r in rows])
    return ids, mask


def position_ids(mask: Tensor) -> Tensor:
    """(B, L) mask -> (B, L) positions that count real tokens only: [0,0,1,1,1] -> [0,0,0,1,2]."""
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def response_mask(ids: Tensor, end_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Sampled ids (B, R) -> mask (B, R) up to and including the first end token, ended (B,).

    Found from the end tokens, never from the pad id: the two may be the same token.
    """
    is_end = torch.isin(ids, torch.tensor(list(end_ids), device=ids.device, dtype=ids.dtype))
    ends_before = is_end.long().cumsum(-1) - is_end.long()
    return ends_before == 0, is_end.any(-1)


def token_logprobs(logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / T)[ids], in float32. logits (..., V), ids (...) -> (...)."""
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    # one fused pass forward and back; gather and logsumexp apart would keep a second (..., V) for the backward pass
    flat = torch.nn.functional.cross_entropy(scaled.flatten(0, -2), ids.flatten(), reduction="none")
    return -flat.view(ids.shape)


def logprobs_and_entropy(logits: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """`token_logprobs`, and the entropy in nats of softmax(logits / T), in float32; both (...)."""
    every = torch.log_softmax(logits.float() / temperature, -1)
    # an impossible token adds 0, not 0 * -inf
    return every.gather(-1, ids.unsqueeze(-1)).squeeze(-1), -(every.exp() * every.clamp(min=-1e30)).sum(-1)


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> Tensor:
    """Per-token estimate of KL(policy || reference) from sampled tokens (Schulman, "Approximating KL divergence", 2020).

    k1 = lp - lq is unbiased and may be negative; k2 = (lp - lq)^2 / 2; k3 = exp(lq - lp) - 1 - (lq - lp) is unbiased and
    never negative.

    Raises:
        ValueError: another estimator.
    """
    ratio = logprobs - ref_logprobs
    if estimator == "k1":
        return ratio
    if estimator == "k2":
        return ratio.square() / 2
    if estimator == "k3":
        return torch.expm1(-ratio) + ratio
    raise ValueError(f"unknown KL estimator {estimator!r}")


def probability_ratio(log_ratio: Tensor) -> Tensor:
    """exp, held below e^20: an infinite ratio would make the gradient NaN even where it is clipped away."""
    return log_ratio.clamp(max=20.0).exp()


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """x with every masked entry 0, also where it was NaN or infinite."""
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of the entries that count, a scalar."""
    return masked(x, mask).sum()


def moments(x: Tensor, mask: Tensor, total: Total = alone) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and (population) variance of the entries that count, over all devices; each a scalar."""
    x = masked(x if x.dtype == torch.float64 else x.float(), mask)
    count, summed = total(torch.stack([mask.sum().to(x.dtype), x.sum()])).unbind()
    mean = summed / count.clamp(min=1)
    # centred before squaring: the difference of two large sums would lose the variance of large, close scores
    variance = total(masked((x - mean).square(), mask).sum()) / count.clamp(min=1)
    return count, mean, variance


def whiten(x: Tensor, mask: Tensor, total: Total = alone, shift_mean: bool = True) -> Tensor:
    """Entries that count scaled to variance 1 and, if asked, mean 0, over all devices; unchanged if fewer than two count."""
    count, mean, variance = moments(x, mask, total)
    if count < 2:
        return masked(x, mask)
    white = (x - mean) * torch.rsqrt(variance + 1e-8)
    return masked(white if shift_mean else white + mean, mask)


def token_rewards(scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: float) -> Tensor:
    """-kl_coef * kl_t, plus the score at the last real token. scores (B,), kl and mask (B, R) -> (B, R).

    A row without real tokens gets none. Source: arXiv 1909.08593, eq. 2.
    """
    last = mask & (mask.long().flip(-1).cumsum(-1).flip(-1) == 1)
    return masked(-kl_coef * kl + last * scores.unsqueeze(-1), mask)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, discount: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16) -> advantages and returns A + V, both (B, R).

    The state after the last real token is terminal: its value is 0.
    """
    rewards, values = masked(rewards, mask), masked(values, mask)
    advantages = torch.zeros_like(rewards)
    next_advantage = torch.zeros_like(rewards[:, 0])
    next_value = torch.zeros_like(rewards[:, 0])
    for t in range(rewards.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + discount * next_value - values[:, t]
        next_advantage = (delta + discount * lam * next_advantage) * mask[:, t]
        next_value = values[:, t]
        advantages[:, t] = next_advantage
    return advantages, masked(advantages + values, mask)


def leave_one_out(returns: Tensor, group_size: int, counted: Tensor) -> Tensor:
    """Each return minus the mean of the other counted ones of its group (Kool et al., 2019). (B,) -> (B,).

    Rows p*G .. p*G+G-1 are a group. A row that is not counted, or has no counted sibling, gets 0.
    """
    member = counted.view(-1, group_size)
    # taken relative to the group's highest, so that equal returns give exactly 0 and not a rounding error
    highest = returns.view(-1, group_size).masked_fill(~member, -torch.inf).max(1, keepdim=True).values
    grouped = masked(returns.view(-1, group_size) - highest, member)
    others = member.sum(1, keepdim=True) - member.long()
    baseline = (grouped.sum(1, keepdim=True) - grouped) / others.clamp(min=1)
    return masked(grouped - baseline, member & (others > 0)).view(-1)


def tied_groups(scores: Tensor, group_size: int) -> Tensor:
    """(B / G,) bool: groups whose scores are all equal, which say nothing about what is better."""
    grouped = scores.view(-1, group_size)
    return (grouped == grouped[:, :1]).all(1)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor, total: Total = alone) -> Tensor:
    """1 - Var(G - V) / Var(G) over the entries that count; NaN when the returns do not vary. A scalar."""
    _, _, of_returns = moments(returns, mask, total)
    _, _, of_error = moments(returns - values, mask, total)
    return torch.where(of_returns > 0, 1 - of_error / of_returns, torch.nan)


def length_groups(lengths: Tensor, size: int) -> list[Tensor]:
    """Rows sorted by length and cut into groups of at most `size`, so that each is padded little. lengths (B,) -> row numbers."""
    return list(torch.argsort(lengths, stable=True).split(size))
