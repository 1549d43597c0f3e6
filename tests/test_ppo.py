"""PPO's targets and losses, against numbers worked by hand and finite differences."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import tiny  # noqa: F401  one thread
import torch

from rlctl.algos import Counts, build
from rlctl.algos.ppo import PPO, PPOBatch
from rlctl.config.schema import KLEstimator, PPOConfig
from rlctl.rollout import Forward, Rollout, Sequences
from rlctl.tensors import alone


def sequences(lengths: list[int], width: int | None = None) -> Sequences:
    mask = torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.long)
    return Sequences(ids[:, :1], torch.ones(len(lengths), 1).bool(), ids, mask)


def rollout(lengths, scores, *, old=None, ref=None, values=None, truncated=None) -> Rollout:
    s = sequences(lengths)
    zeros = torch.zeros(s.response_mask.shape)
    old, values = (zeros if x is None else x * s.response_mask for x in (old, values))
    ref = None if ref is None else ref * s.response_mask
    cut = torch.tensor(truncated or [False] * len(lengths))
    return Rollout(s, old, zeros, ref, values, torch.tensor(scores), torch.tensor(scores), cut)


def batch(advantages, *, lengths=None, old=None, old_values=None, returns=None) -> PPOBatch:
    a = torch.as_tensor(advantages, dtype=torch.float32)
    s = sequences(lengths or [a.shape[1]] * len(a), a.shape[1])
    given = [torch.zeros_like(a) if x is None else torch.as_tensor(x, dtype=torch.float32) for x in (old, old_values, returns)]
    return PPOBatch(s, s.response_mask, given[0], given[1], a, given[2])


def random_batch(seed: int = 0, lengths=(5, 1, 3, 4)) -> tuple[PPOBatch, Forward]:
    g = torch.Generator().manual_seed(seed)
    old, old_values, advantages, returns, new, values, entropy = torch.randn(7, len(lengths), max(lengths), generator=g)
    b = batch(advantages, lengths=list(lengths), old=old, old_values=old_values, returns=returns)
    return b, Forward(logprobs=old + 0.3 * new, values=old_values + 0.3 * values, entropy=entropy.abs())


def counts(b: PPOBatch) -> Counts:
    return Counts(float(b.loss_mask.sum()), float(b.loss_mask.any(1).sum()))


def total_loss(b: PPOBatch, new: Forward, **config):
    return PPO(PPOConfig(**config)).loss(b, new, counts(b))


# --- the policy loss


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 1.0, -1.0, 0),
        (1.5, 1.0, -1.2, 1),  # a gain is clipped from above ...
        (0.5, 1.0, -0.5, 1),  # ... and never from below
        (1.5, -1.0, 1.5, 1),
        (0.5, -1.0, 0.8, 1),
        (1.1, 2.0, -2.2, 0),
        (0.9, -2.0, 1.8, 0),
    ],
)
def test_clipped_policy_loss(ratio, advantage, loss, clipped):
    b = batch([[advantage]], old=[[-1.0]])
    new = Forward(logprobs=torch.tensor([[-1.0 + math.log(ratio)]]), values=torch.zeros(1, 1))
    given, stats = total_loss(b, new, clip_range=0.2, vf_coef=0.0)
    assert given.item() == pytest.approx(loss, abs=1e-6)
    assert stats["loss/policy"].item() == pytest.approx(loss, abs=1e-6)
    assert stats["policy/ratio"].item() == pytest.approx(ratio, abs=1e-6)
    assert stats["policy/clipfrac"].item() == clipped
    assert stats["policy/approxkl"].item() == pytest.approx(ratio - 1 - math.log(ratio), abs=1e-6)


def test_the_loss_falls_as_a_good_token_becomes_likelier():
    b = batch([[2.0, -3.0]])
    new = torch.zeros(1, 2, requires_grad=True)
    loss, _ = total_loss(b, Forward(logprobs=new, values=torch.zeros(1, 2)), vf_coef=0.0)
    loss.backward()
    torch.testing.assert_close(new.grad, torch.tensor([[-1.0, 1.5]]))  # -A / N


@pytest.mark.parametrize(("ratio", "advantage", "gradient"), [(1.5, 1.0, 0.0), (0.5, 1.0, -0.5), (0.5, -1.0, 0.0), (1.5, -1.0, 1.5)])
def test_clipping_stops_the_gradient_only_where_the_gain_is_clipped(ratio, advantage, gradient):
    new = torch.tensor([[math.log(ratio)]], requires_grad=True)
    total_loss(batch([[advantage]]), Forward(logprobs=new, values=torch.zeros(1, 1)), vf_coef=0.0)[0].backward()
    assert new.grad.item() == pytest.approx(gradient, abs=1e-6)


def test_steps_along_the_gradient_raise_the_probability_of_what_scores_well():
    r = rollout([1, 1], [1.0, -1.0])
    b, _ = PPO(PPOConfig()).prepare(r, 0.0, alone)
    new = torch.zeros(2, 1, requires_grad=True)
    total_loss(b, Forward(logprobs=new, values=torch.zeros(2, 1)), vf_coef=0.0)[0].backward()
    assert (-new.grad)[0].item() > 0 > (-new.grad)[1].item()


# --- the value loss and entropy


@pytest.mark.parametrize(
    ("value", "old", "target", "reach", "loss", "clipped"),
    [
        (1.0, 0.0, 2.0, 0.2, 1.62, 1),  # .5 * max((1-2)^2, (.2-2)^2)
        (1.0, 0.0, 2.0, None, 0.5, 0),
        (0.1, 0.0, 2.0, 0.2, 1.805, 0),  # within reach: .5 * 1.9^2
        (-1.0, 0.0, 2.0, 0.2, 4.5, 0),  # moved away: the plain error is larger
        (1.0, 0.0, -2.0, 0.2, 4.5, 0),
        (-1.0, 0.0, -2.0, 0.2, 1.62, 1),
    ],
)
def test_clipped_value_loss(value, old, target, reach, loss, clipped):
    b = batch([[0.0]], old_values=[[old]], returns=[[target]])
    given, stats = total_loss(b, Forward(logprobs=torch.zeros(1, 1), values=torch.tensor([[value]])), clip_range_value=reach, vf_coef=0.1)
    assert stats["loss/value"].item() == pytest.approx(loss, abs=1e-6)
    assert stats["value/clipfrac"].item() == clipped
    assert given.item() == pytest.approx(0.1 * loss, abs=1e-6)


def test_the_value_moves_towards_the_return():
    values = torch.zeros(1, 2, requires_grad=True)
    b = batch([[0.0, 0.0]], returns=[[1.0, -3.0]])
    total_loss(b, Forward(logprobs=torch.zeros(1, 2), values=values), vf_coef=0.5)[0].backward()
    torch.testing.assert_close(values.grad, torch.tensor([[-0.25, 0.75]]))  # vf_coef * (V - G) / N


def test_entropy_is_a_bonus_over_real_tokens():
    b = batch([[0.0, 0.0, 0.0]], lengths=[2])
    entropy = torch.tensor([[1.0, 2.0, 50.0]], requires_grad=True)
    loss, stats = total_loss(b, Forward(torch.zeros(1, 3), torch.zeros(1, 3), entropy), entropy_coef=0.1)
    loss.backward()
    assert stats["loss/entropy"].item() == pytest.approx(1.5)
    assert loss.item() == pytest.approx(-0.15)
    torch.testing.assert_close(entropy.grad, torch.tensor([[-0.05, -0.05, 0.0]]))


def test_without_logprobs_only_the_value_is_trained():
    b, new = random_batch()
    loss, stats = total_loss(b, replace(new, logprobs=None, entropy=None), vf_coef=0.3)
    assert set(stats) == {"loss/value", "value/clipfrac"}
    assert loss.item() == pytest.approx(0.3 * stats["loss/value"].item(), rel=1e-6)


def test_losses_are_means_over_tokens_not_over_rows():
    b = batch([[1.0, 1.0, 1.0], [4.0, 0.0, 0.0]], lengths=[3, 1])
    new = Forward(logprobs=torch.zeros(2, 3), values=torch.zeros(2, 3))
    assert total_loss(b, new)[1]["loss/policy"].item() == pytest.approx(-7 / 4)


# --- the whole loss


@pytest.mark.parametrize("seed", range(5))
def test_gradients_equal_finite_differences(seed):
    b, new = random_batch(seed)
    b = PPOBatch(b.sequences, b.loss_mask, *(getattr(b, f.name).double() for f in fields(b)[2:]))
    algorithm = PPO(PPOConfig(entropy_coef=0.2, vf_coef=0.4))
    inputs = [x.double().requires_grad_() for x in (new.logprobs, new.values, new.entropy)]
    assert torch.autograd.gradcheck(lambda lp, v, h: algorithm.loss(b, Forward(lp, v, h), counts(b))[0], inputs)


@pytest.mark.parametrize("split", [[1, 1, 1, 1], [2, 2], [3, 1], [1, 3], [4]])
def test_microbatches_add_up_to_the_whole(split):
    b, new = random_batch(1)
    whole, stats = total_loss(b, new, entropy_coef=0.1)
    parts, summed = torch.zeros(()), dict.fromkeys(stats, 0.0)
    for rows in torch.tensor([2, 0, 3, 1]).split(split):
        micro = b.select(rows)
        width = micro.loss_mask.shape[1]
        part = Forward(*(x[rows, :width] for x in (new.logprobs, new.values, new.entropy)))
        loss, shares = PPO(PPOConfig(entropy_coef=0.1)).loss(micro, part, counts(b))
        parts = parts + loss
        summed = {k: v + shares[k].item() for k, v in summed.items()}
    torch.testing.assert_close(parts, whole)
    assert summed == pytest.approx({k: v.item() for k, v in stats.items()}, abs=1e-6)


def test_selecting_rows_cuts_shared_padding_and_keeps_rows_together():
    b, _ = random_batch(2, lengths=(5, 1, 3, 4))
    micro = b.select(torch.tensor([2, 1]))
    assert micro.loss_mask.tolist() == [[True] * 3, [True, False, False]]
    for name in ("old_logprobs", "old_values", "advantages", "returns"):
        torch.testing.assert_close(getattr(micro, name), getattr(b, name)[[2, 1], :3])


@pytest.mark.parametrize("fill", [0.0, 1e6, math.nan])
def test_what_padding_holds_changes_no_loss(fill):
    b, new = random_batch(3)
    wanted, stats = total_loss(b, new, entropy_coef=0.1)
    spoil = lambda x: torch.where(b.loss_mask, x, torch.tensor(fill))  # noqa: E731
    dirty = PPOBatch(b.sequences, b.loss_mask, *(spoil(getattr(b, f.name)) for f in fields(b)[2:]))
    given, dirty_stats = total_loss(dirty, Forward(*(spoil(x) for x in (new.logprobs, new.values, new.entropy))), entropy_coef=0.1)
    torch.testing.assert_close(given, wanted)
    assert {k: v.item() for k, v in dirty_stats.items()} == pytest.approx({k: v.item() for k, v in stats.items()})


def test_a_minibatch_without_tokens_has_loss_zero():
    b, new = random_batch(4)
    empty = PPOBatch(b.sequences, torch.zeros_like(b.loss_mask), *(getattr(b, f.name) for f in fields(b)[2:]))
    assert total_loss(empty, new, entropy_coef=0.1)[0].item() == 0


# --- targets


def plain(**config) -> PPO:
    return PPO(PPOConfig(whiten_advantages=False, **config))


def test_targets_worked_by_hand():
    # k1 = .5, 0, 1 -> rewards -.1, 0, 2 - .2;  lambda = discount = 1, values 1, 1, 1
    r = rollout([3], [2.0], old=torch.tensor([[-1.0, -1.0, -1.0]]), ref=torch.tensor([[-1.5, -1.0, -2.0]]), values=torch.ones(1, 3))
    b, metrics = plain(gae_lambda=1.0).prepare(r, 0.2, alone)
    torch.testing.assert_close(b.returns, torch.tensor([[1.7, 1.8, 1.8]]))
    torch.testing.assert_close(b.advantages, torch.tensor([[0.7, 0.8, 0.8]]))
    assert torch.equal(b.old_values, r.values) and torch.equal(b.old_logprobs, r.old_logprobs)
    assert metrics["value/mean"] == pytest.approx(1.0)
    assert metrics["value/explained_variance"] == pytest.approx(0.0, abs=1e-5)


def test_the_kl_estimator_of_the_config_is_used():
    r = rollout([1], [0.0], old=torch.tensor([[-1.0]]), ref=torch.tensor([[-2.0]]))
    for estimator, kl in ((KLEstimator.k1, 1.0), (KLEstimator.k3, 0.36788)):
        b, _ = plain(kl_estimator=estimator).prepare(r, 0.5, alone)
        assert b.returns.item() == pytest.approx(-0.5 * kl, abs=1e-5)


def test_without_a_reference_the_reward_is_the_score():
    b, _ = plain(gae_lambda=1.0).prepare(rollout([2], [3.0]), 0.5, alone)
    assert b.returns.tolist() == [[3.0, 3.0]]


def test_advantages_are_whitened_over_all_real_tokens():
    r = rollout([4, 1, 2], [3.0, -1.0, 0.5], values=torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    b, _ = PPO(PPOConfig()).prepare(r, 0.0, alone)
    raw, _ = plain().prepare(r, 0.0, alone)
    real = raw.advantages[r.mask]
    torch.testing.assert_close(b.advantages[r.mask], (real - real.mean()) / real.std(unbiased=False), atol=1e-4, rtol=1e-4)
    assert not b.advantages[~r.mask].any()
    torch.testing.assert_close(b.returns, raw.returns)  # returns are not whitened


def test_one_token_alone_is_not_whitened_away():
    b, _ = PPO(PPOConfig()).prepare(rollout([1], [3.0]), 0.0, alone)
    assert b.advantages.item() == 3.0


def test_whitening_rewards_does_not_move_their_mean():
    scores = [1.0, 2.0, 6.0, 7.0]  # mean 4, deviation sqrt(6.5)
    b, _ = plain(whiten_rewards=True).prepare(rollout([1, 1, 1, 1], scores), 0.0, alone)
    wanted = [4 + (s - 4) / math.sqrt(6.5) for s in scores]
    assert b.returns[:, 0].tolist() == pytest.approx(wanted, abs=1e-4)


def test_truncated_rows_give_no_gradient_when_masked():
    r = rollout([3, 2], [5.0, 1.0], truncated=[True, False])
    algorithm = PPO(PPOConfig(mask_truncated=True, entropy_coef=0.1))
    b, _ = algorithm.prepare(r, 0.0, alone)
    assert counts(b) == Counts(2.0, 1.0)
    inputs = [torch.zeros(2, 3, requires_grad=True) for _ in range(3)]
    algorithm.loss(b, Forward(*inputs), counts(b))[0].backward()
    for x in inputs[:2]:
        assert not x.grad[0].any()
    assert inputs[1].grad[1, :2].all() and inputs[2].grad[1, :2].all() and not inputs[2].grad[0].any()


@pytest.mark.parametrize("whiten_rewards", [False, True])
def test_masked_truncated_rows_do_not_move_the_others(whiten_rewards):
    algorithm = PPO(PPOConfig(mask_truncated=True, whiten_rewards=whiten_rewards))
    few, metrics = algorithm.prepare(rollout([2, 3], [1.0, -2.0]), 0.0, alone)
    many, more = algorithm.prepare(rollout([2, 3, 3], [1.0, -2.0, 90.0], truncated=[False, False, True]), 0.0, alone)
    torch.testing.assert_close(many.advantages[:2], few.advantages)
    torch.testing.assert_close(many.returns[:2], few.returns)
    assert more == pytest.approx(metrics, nan_ok=True)


def test_truncated_rows_count_unless_masked():
    b, _ = PPO(PPOConfig()).prepare(rollout([3, 2], [5.0, 1.0], truncated=[True, False]), 0.0, alone)
    assert torch.equal(b.loss_mask, b.sequences.response_mask)


def test_the_config_asks_for_its_algorithm():
    assert isinstance(build(PPOConfig()), PPO) and PPO.needs_value


def test_a_rollout_refuses_what_does_not_fit():
    good = rollout([3, 2], [0.0, 0.0])
    bad = torch.zeros(2, 3)
    bad[1, 2] = 1.0
    with pytest.raises(ValueError, match="values: masked positions must hold 0"):
        replace(good, values=bad)
    with pytest.raises(ValueError, match=r"old_logprobs: expected float32 \(2, 3\), got torch.float64 \(2, 3\)"):
        replace(good, old_logprobs=torch.zeros(2, 3).double())
    with pytest.raises(ValueError, match=r"scores: expected \(2,\), got \(3,\)"):
        replace(good, scores=torch.zeros(3))
    with pytest.raises(ValueError, match="2 rows are not whole groups of 3"):
        replace(good, group_size=3)
