"""The mathematics, against numbers worked by hand, plain loops, and properties that a wrong mask or denominator breaks."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import tiny  # noqa: F401  one thread
import torch

from rlctl import tensors
from rlctl.collect import ScoreScaler

NAN, INF = math.nan, math.inf
TRIALS = range(20)


def ragged(seed: int, rows: int = 5, width: int = 7):
    """Random numbers (rows, width) and a mask of leading tokens, each row of another length, at least one."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=g)
    lengths = torch.randint(1, width + 1, (rows,), generator=g)
    return x, torch.arange(width) < lengths[:, None]


def spoiled(x: torch.Tensor, mask: torch.Tensor, value: float) -> torch.Tensor:
    return torch.where(mask, x, torch.tensor(value))


def wider(x: torch.Tensor, fill: float | bool) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 3), value=fill)


def on_devices(shards: list, work) -> list:
    """Run work(shard, total) on a thread per shard, where total sums over all of them as a collective call does."""
    barrier, slots, results = threading.Barrier(len(shards)), [None] * len(shards), [None] * len(shards)

    def device(rank: int) -> None:
        def total(x):
            slots[rank] = x
            barrier.wait()
            summed = sum(slots[1:], slots[0])
            barrier.wait()
            return summed

        results[rank] = work(shards[rank], total)

    threads = [threading.Thread(target=device, args=(r,)) for r in range(len(shards))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return results


# --- padding, positions, masks


def test_left_padding_and_its_positions():
    ids, mask = tensors.left_pad([[4, 5, 6], [1]], 9)
    assert ids.tolist() == [[4, 5, 6], [9, 9, 1]]
    assert mask.tolist() == [[True, True, True], [False, False, True]]
    assert tensors.position_ids(mask).tolist() == [[0, 1, 2], [0, 0, 0]]


def test_right_padding():
    ids, mask = tensors.right_pad([[4, 5, 6], [1]], 9)
    assert ids.tolist() == [[4, 5, 6], [1, 9, 9]]
    assert mask.tolist() == [[True, True, True], [True, False, False]]


def test_positions_count_real_tokens_only():
    assert tensors.position_ids(torch.tensor([[0, 0, 1, 1, 1]]).bool()).tolist() == [[0, 0, 0, 1, 2]]


@pytest.mark.parametrize(
    ("ids", "ends", "mask", "ended"),
    [
        ([1, 2, 7, 7, 7], [7], [1, 1, 1, 0, 0], True),  # the pad is the end token
        ([7, 7, 7, 7, 7], [7], [1, 0, 0, 0, 0], True),
        ([1, 2, 3, 1, 7], [7], [1, 1, 1, 1, 1], True),
        ([1, 2, 3, 1, 2], [7], [1, 1, 1, 1, 1], False),
        ([1, 3, 7, 0, 0], [3, 7], [1, 1, 0, 0, 0], True),  # any of several ends
        ([1, 3, 7, 0, 0], [], [1, 1, 1, 1, 1], False),
    ],
)
def test_response_mask_reaches_to_the_first_end_token(ids, ends, mask, ended):
    found, has_end = tensors.response_mask(torch.tensor([ids]), ends)
    assert found.long().tolist() == [mask]
    assert has_end.tolist() == [ended]


# --- log-probabilities and entropy


def test_temperature_divides_the_logits():
    logits, token = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    assert tensors.token_logprobs(logits, token, 0.5).item() == pytest.approx(-0.01815, abs=1e-5)
    assert tensors.token_logprobs(logits, token, 1.0).item() == pytest.approx(-0.12693, abs=1e-5)
    assert tensors.logprobs_and_entropy(logits, token, 0.5)[0].item() == pytest.approx(-0.01815, abs=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.5])
def test_fused_logprobs_equal_log_softmax_and_gather_with_their_gradients(temperature):
    torch.manual_seed(0)
    logits = (4 * torch.randn(3, 5, 11)).requires_grad_()
    ids, weight = torch.randint(0, 11, (3, 5)), torch.randn(3, 5)
    plain = torch.log_softmax(logits / temperature, -1).gather(-1, ids[..., None])[..., 0]
    both, _ = tensors.logprobs_and_entropy(logits, ids, temperature)
    fused = tensors.token_logprobs(logits, ids, temperature)
    (wanted,) = torch.autograd.grad((plain * weight).sum(), logits)
    (given,) = torch.autograd.grad((fused * weight).sum(), logits)
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(both, plain)
    torch.testing.assert_close(given, wanted)


def test_logprobs_are_float32_whatever_the_logits_are():
    logits, ids = torch.randn(2, 3, 5).bfloat16(), torch.randint(0, 5, (2, 3))
    wanted = torch.log_softmax(logits.float() / 0.7, -1).gather(-1, ids[..., None])[..., 0]
    given, (both, entropy) = tensors.token_logprobs(logits, ids, 0.7), tensors.logprobs_and_entropy(logits, ids, 0.7)
    assert given.dtype == both.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(given, wanted)


def test_entropy_of_known_distributions():
    ids = torch.zeros(1, dtype=torch.long)
    assert tensors.logprobs_and_entropy(torch.zeros(1, 8), ids, 1.0)[1].item() == pytest.approx(math.log(8))
    assert tensors.logprobs_and_entropy(torch.tensor([[50.0, 0.0]]), ids, 1.0)[1].item() == pytest.approx(0.0, abs=1e-6)
    halved = torch.tensor([[0.0, math.log(3.0)]])  # p = 1/4, 3/4 at T = 1; 1/10, 9/10 at T = 1/2
    for temperature, p in ((1.0, 0.25), (0.5, 0.1)):
        wanted = -(p * math.log(p) + (1 - p) * math.log(1 - p))
        assert tensors.logprobs_and_entropy(halved, ids, temperature)[1].item() == pytest.approx(wanted, abs=1e-6)


def test_entropy_of_a_distribution_with_an_impossible_token():
    logits = torch.tensor([[0.0, 0.0, -INF]])
    assert tensors.logprobs_and_entropy(logits, torch.tensor([0]), 1.0)[1].item() == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("lp", "lq", "estimator", "wanted"),
    [(-1, -2, "k1", 1), (-1, -2, "k2", 0.5), (-1, -2, "k3", 0.36788), (-2, -1, "k1", -1), (-2, -1, "k2", 0.5), (-2, -1, "k3", 0.71828)],
)
def test_kl_estimators(lp, lq, estimator, wanted):
    given = tensors.kl_estimate(torch.tensor(float(lp)), torch.tensor(float(lq)), estimator)
    assert given.item() == pytest.approx(wanted, abs=1e-5)


def test_kl_estimators_agree_with_the_exact_kl_on_average():
    torch.manual_seed(0)
    p, q = torch.log_softmax(torch.randn(6), 0), torch.log_softmax(torch.randn(6), 0)
    exact = (p.exp() * (p - q)).sum()
    for estimator in ("k1", "k3"):
        torch.testing.assert_close((p.exp() * tensors.kl_estimate(p, q, estimator)).sum(), exact)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="unknown KL estimator 'k9'"):
        tensors.kl_estimate(torch.zeros(1), torch.zeros(1), "k9")


# --- rewards of tokens


def test_the_score_goes_to_the_last_real_token():
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]).bool()
    given = tensors.token_rewards(torch.tensor([2.0, 3.0, -1.0]), torch.zeros(3, 5), mask, 0.1)
    assert given.tolist() == [[0, 0, 2, 0, 0], [0, 0, 0, 0, 3], [-1, 0, 0, 0, 0]]


def test_a_row_without_tokens_gets_no_reward():
    assert tensors.token_rewards(torch.tensor([2.0]), torch.ones(1, 3), torch.zeros(1, 3).bool(), 0.1).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("seed", TRIALS)
def test_token_rewards_sum_to_score_minus_the_price_of_the_kl(seed):
    kl, mask = ragged(seed)
    scores = torch.randn(5)
    given = tensors.token_rewards(scores, spoiled(kl, mask, NAN), mask, 0.3)
    torch.testing.assert_close(given.sum(1), scores - 0.3 * (kl * mask).sum(1))
    assert not given[~mask].any()


# --- advantages


@pytest.mark.parametrize("v", [0.0, 100.0, NAN])
def test_gae_ignores_the_value_after_the_end(v):
    mask = torch.tensor([[True, True, False]])
    given, returns = tensors.gae(torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[0.0, 0.0, v]]), mask, 1.0, 0.95)
    torch.testing.assert_close(given, torch.tensor([[0.95, 1.0, 0.0]]))
    torch.testing.assert_close(returns, given)


def test_gae_worked_with_values_and_discount():
    # deltas: 1 + .9*2 - 1 = 1.8, 0 + .9*3 - 2 = .7, 2 - 3 = -1;  A: -1, .7 + .45*-1 = .25, 1.8 + .45*.25 = 1.9125
    given, returns = tensors.gae(torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3).bool(), 0.9, 0.5)
    torch.testing.assert_close(given, torch.tensor([[1.9125, 0.25, -1.0]]))
    torch.testing.assert_close(returns, torch.tensor([[2.9125, 2.25, 2.0]]))


@pytest.mark.parametrize("seed", TRIALS)
def test_gae_equals_the_sum_of_discounted_deltas(seed):
    (rewards, mask), (values, _) = ragged(seed), ragged(seed + 1000)
    discount, lam = 0.9, 0.8
    given, returns = tensors.gae(spoiled(rewards, mask, INF), spoiled(values, mask, NAN), mask, discount, lam)
    for row in range(len(mask)):
        n = int(mask[row].sum())
        r, v = rewards[row, :n].tolist(), [*values[row, :n].tolist(), 0.0]
        deltas = [r[t] + discount * v[t + 1] - v[t] for t in range(n)]
        for t in range(n):
            wanted = sum((discount * lam) ** (u - t) * deltas[u] for u in range(t, n))
            assert given[row, t].item() == pytest.approx(wanted, abs=1e-5)
            assert returns[row, t].item() == pytest.approx(wanted + v[t], abs=1e-5)
    assert not given[~mask].any() and not returns[~mask].any()


def test_with_lambda_one_the_return_is_the_sum_of_rewards_to_come():
    rewards, mask = ragged(3)
    _, returns = tensors.gae(rewards, torch.randn(5, 7), mask, 1.0, 1.0)
    wanted = (rewards * mask).flip(-1).cumsum(-1).flip(-1) * mask
    torch.testing.assert_close(returns, wanted)


# --- statistics


@pytest.mark.parametrize("seed", TRIALS)
def test_moments_count_only_what_the_mask_shows(seed):
    x, mask = ragged(seed)
    count, mean, variance = tensors.moments(spoiled(x, mask, NAN), mask)
    real = x[mask].numpy()
    assert count.item() == real.size
    assert mean.item() == pytest.approx(real.mean(), abs=1e-6)
    assert variance.item() == pytest.approx(real.var(), abs=1e-5)


def test_variance_of_large_close_numbers():
    x = torch.tensor([[10_000.0, 10_001.0, 10_002.0]])
    assert tensors.moments(x, torch.ones_like(x).bool())[2].item() == pytest.approx(2 / 3, abs=1e-3)


@pytest.mark.parametrize("value", [0.1, -0.7, 1000.1])
@pytest.mark.parametrize("count", [3, 7, 64, 512])
def test_equal_numbers_do_not_vary(value, count):
    x = torch.full((1, count), value)
    assert tensors.moments(x, torch.ones_like(x).bool())[2].item() <= 1e-12 * value**2


@pytest.mark.parametrize("seed", TRIALS)
def test_whitening(seed):
    x, mask = ragged(seed)
    x = 5 * x + 3
    white = tensors.whiten(spoiled(x, mask, NAN), mask)
    assert white[mask].mean().item() == pytest.approx(0, abs=1e-5)
    assert white[mask].var(unbiased=False).item() == pytest.approx(1, abs=1e-4)
    assert not white[~mask].any()
    scaled = tensors.whiten(spoiled(x, mask, NAN), mask, shift_mean=False)
    assert scaled[mask].mean().item() == pytest.approx(x[mask].mean().item(), abs=1e-4)
    assert scaled[mask].var(unbiased=False).item() == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(scaled[mask] - scaled[mask].mean(), white[mask], atol=1e-4, rtol=1e-4)


def test_whitening_leaves_fewer_than_two_entries_alone():
    mask = torch.tensor([[False, True, False]])
    assert tensors.whiten(torch.tensor([[NAN, 3.0, NAN]]), mask).tolist() == [[0, 3, 0]]
    assert tensors.whiten(torch.tensor([[NAN, 3.0, NAN]]), torch.zeros(1, 3).bool()).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("seed", TRIALS)
def test_more_padding_and_what_it_holds_change_nothing(seed):
    (x, mask), (y, _) = ragged(seed), ragged(seed + 500)
    scores, long = torch.randn(len(x)), wider(mask, False)
    for fill in (0.0, 1e9, NAN, -INF):
        a, b = wider(spoiled(x, mask, fill), fill), wider(spoiled(y, mask, fill), fill)
        torch.testing.assert_close(tensors.moments(a, long), tensors.moments(x, mask))
        torch.testing.assert_close(tensors.masked_sum(a, long), tensors.masked_sum(x, mask))
        torch.testing.assert_close(tensors.explained_variance(a, b, long), tensors.explained_variance(x, y, mask))
        for wide, narrow in (
            (tensors.whiten(a, long), tensors.whiten(x, mask)),
            (tensors.token_rewards(scores, a, long, 0.2), tensors.token_rewards(scores, x, mask, 0.2)),
            (tensors.gae(a, b, long, 0.99, 0.9)[0], tensors.gae(x, y, mask, 0.99, 0.9)[0]),
            (tensors.gae(a, b, long, 0.99, 0.9)[1], tensors.gae(x, y, mask, 0.99, 0.9)[1]),
        ):
            torch.testing.assert_close(wide[:, :7], narrow)
            assert not wide[:, 7:].any()


@pytest.mark.parametrize("cut", [1, 2, 4, 5])
def test_statistics_are_those_of_all_devices_together(cut):
    (x, mask), (y, _) = ragged(11), ragged(12)
    shards = [(x[:cut], y[:cut], mask[:cut]), (x[cut:], y[cut:], mask[cut:])]  # a cut of 5 leaves one device empty
    white = on_devices(shards, lambda s, total: tensors.whiten(s[0], s[2], total))
    torch.testing.assert_close(torch.cat(white), tensors.whiten(x, mask))
    for given in on_devices(shards, lambda s, total: tensors.explained_variance(s[0], s[1], s[2], total)):
        torch.testing.assert_close(given, tensors.explained_variance(x, y, mask))


def test_explained_variance():
    returns, mask = ragged(5)
    returns, noise = returns * 2, torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    assert tensors.explained_variance(returns, returns, mask).item() == pytest.approx(1)
    assert tensors.explained_variance(returns + 3, returns, mask).item() == pytest.approx(1, abs=1e-5)  # an offset is not variance
    assert tensors.explained_variance(torch.zeros(5, 7), returns, mask).item() == pytest.approx(0)
    assert tensors.explained_variance(-returns, returns, mask).item() == pytest.approx(-3, abs=1e-5)
    wanted = 1 - noise[mask].var() / returns[mask].var()
    assert tensors.explained_variance(returns - noise, returns, mask).item() == pytest.approx(wanted.item(), abs=1e-5)
    assert math.isnan(tensors.explained_variance(noise, torch.ones(5, 7), mask).item())


# --- grouping and score normalisation


@pytest.mark.parametrize("seed", TRIALS)
def test_length_groups_are_a_permutation_in_order_of_length(seed):
    g = torch.Generator().manual_seed(seed)
    n, size = int(torch.randint(1, 30, (1,), generator=g)), 1 + seed % 7
    lengths = torch.randint(1, 9, (n,), generator=g)
    groups = tensors.length_groups(lengths, size)
    rows = torch.cat(groups)
    assert sorted(rows.tolist()) == list(range(n))
    assert all(1 <= len(group) <= size for group in groups) and len(groups) == -(-n // size)
    assert torch.equal(lengths[rows], lengths.sort().values)


def test_score_scaler_equals_numpy_over_all_scores_so_far():
    rng, scaler, seen = np.random.default_rng(0), ScoreScaler(), []
    for n in (8, 1, 3, 16, 8):
        scores = rng.normal(50, 3, n).astype(np.float32)
        seen.extend(scores.tolist())
        scaler.update(torch.from_numpy(scores), tensors.alone)
        wanted = (scores - np.mean(seen)) / max(np.std(seen), 1e-8)
        np.testing.assert_allclose(scaler(torch.from_numpy(scores)).numpy(), wanted, atol=1e-3)
        assert scaler.count == len(seen)


def test_score_scaler_gives_equal_scores_no_sign():
    scaler = ScoreScaler()
    for _ in range(3):
        scaler.update(torch.full((12,), 0.1), tensors.alone)
        assert scaler(torch.full((12,), 0.1)).abs().max().item() < 1e-2


def test_score_scaler_is_the_same_on_every_device():
    scores = torch.randn(6, generator=torch.Generator().manual_seed(2))

    def work(shard, total):
        scaler = ScoreScaler()
        scaler.update(shard, total)
        return scaler(shard)

    torch.testing.assert_close(torch.cat(on_devices([scores[:2], scores[2:]], work)), work(scores, tensors.alone))
