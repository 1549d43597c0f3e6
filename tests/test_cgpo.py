"""CGPO by worked numbers and by its gradients."""

from __future__ import annotations

import math

import enumerable
import pytest
import tiny
import torch
from transformers import GPT2LMHeadModel

from rlctl.algos.base import Counts
from rlctl.algos.cgpo import CGPO, Scores, codpo_weights, crpg_weights, crraft_weights
from rlctl.config.schema import CGPOConfig, CGPOOptimizer
from rlctl.rollout import Forward
from rlctl.tensors import alone


def scores(reward, satisfied, kl, raw=None, lengths=None) -> Scores:
    """One prompt a list."""
    reward, kl = torch.tensor(reward), torch.tensor(kl)
    raw = torch.tensor(raw) if raw is not None else reward
    lengths = torch.tensor(lengths) if lengths is not None else torch.ones_like(kl, dtype=torch.long)
    return Scores(reward, raw, torch.tensor(satisfied), kl, lengths)


@pytest.mark.parametrize(("satisfied", "kl", "shaped"), [(True, 1.0, 0.64), (True, -1.0, 0.96), (True, 6.0, 0.0), (False, 1.0, 0.0)])
def test_crpg_shapes_a_reward(satisfied, kl, shaped):
    _, got = crpg_weights(scores([[0.8]], [[satisfied]], [[kl]]), 5.0, alone)
    assert float(got) == pytest.approx(shaped)


def test_crpg_without_a_bound_keeps_the_reward():
    _, got = crpg_weights(scores([[0.8, 0.3]], [[True, True]], [[100.0, -3.0]]), math.inf, alone)
    assert got.tolist() == [[pytest.approx(0.8), pytest.approx(0.3)]]


def test_crpg_takes_the_mean_over_all_prompts_itself_included():
    weights, _ = crpg_weights(scores([[0.8, 0.4], [0.6, 0.2]], [[True, True], [True, False]], [[0.0, 0.0], [0.0, 0.0]]), 5.0, alone)
    torch.testing.assert_close(weights, torch.tensor([[0.35, -0.05], [0.15, -0.45]]))


def test_crpg_takes_the_mean_over_all_devices():
    other = torch.tensor([0.2, 2.0])  # the other device's sum and count
    weights, _ = crpg_weights(scores([[0.8, 0.4]], [[True, True]], [[0.0, 0.0]]), 5.0, lambda x: x + other)
    torch.testing.assert_close(weights, torch.tensor([[0.45, 0.05]]))


def test_crraft_learns_the_best_allowed_and_never_a_violator():
    s = scores([[0.9, 0.2, 0.3], [0.9, 0.8, 0.1]], [[False, True, True], [True, True, True]], [[0.0, 0.0, 0.0], [3.0, 1.0, 0.0]])
    weights, baselines = crraft_weights(s, 2.0, torch.tensor([True, True]))
    torch.testing.assert_close(weights, torch.tensor([[0.0, 0.0, 0.3], [0.0, 0.8, 0.0]]))
    assert baselines.tolist() == [0.0, 0.0]


def test_crraft_orders_by_the_raw_reward_where_the_sigmoid_ties():
    s = scores([[1.0, 1.0]], [[True, True]], [[0.0, 0.0]], raw=[[20.0, 30.0]])
    weights, _ = crraft_weights(s, 2.0, None)
    assert weights.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(("passes", "weight"), [(True, 0.5), (False, 0.0)])
def test_crraft_falls_back_on_a_baseline_that_passes(passes, weight):
    s = scores([[0.9, 0.8]], [[False, True]], [[0.0, 5.0]])
    weights, baselines = crraft_weights(s, 2.0, torch.tensor([passes]))
    assert weights.tolist() == [[0.0, 0.0]] and baselines.tolist() == [weight]


def test_codpo_pairs_by_masked_choice_also_with_negative_rewards():
    s = scores([[-3.0, -1.0, -2.0]], [[True, False, True]], [[0.0, 0.0, 0.0]], lengths=[[2, 2, 4]])
    weights, paired = codpo_weights(s, beta=0.1, lam=0.1)
    assert paired.tolist() == [True]
    torch.testing.assert_close(weights, torch.tensor([[0.0, -0.05, 0.05 + 0.1 / 4]]))  # sigma(0) = 0.5


def test_codpo_without_a_violator_takes_the_lowest_of_all():
    weights, _ = codpo_weights(scores([[0.5, 0.1, 0.9]], [[True, True, True]], [[0.0, 0.0, 0.0]]), 0.1, 0.0)
    assert [math.copysign(1, w) if w else 0 for w in weights[0].tolist()] == [0, -1, 1]


@pytest.mark.parametrize(("reward", "satisfied"), [([[0.1, 0.2]], [[False, False]]), ([[0.3, 0.3]], [[True, True]]), ([[0.3]], [[True]])])
def test_codpo_skips_a_prompt_without_a_pair(reward, satisfied):
    kl = torch.zeros(len(reward), len(reward[0])).tolist()
    if reward == [[0.3, 0.3]]:  # equal responses: best and worst are the same one
        reward = [[0.3]]
        satisfied, kl = [[True]], [[0.0]]
    weights, paired = codpo_weights(scores(reward, satisfied, kl), 0.1, 0.1)
    assert paired.tolist() == [False] and not weights.any()


def test_codpo_weights_are_the_gradient_of_the_written_loss():
    kl = torch.tensor([[0.7, -0.2]], dtype=torch.float64, requires_grad=True)  # d D / d log pi = 1
    beta, lam, length = 0.3, 0.2, 5
    loss = -(torch.nn.functional.logsigmoid(beta * (kl[0, 0] - kl[0, 1])) + lam / length * kl[0, 0])
    loss.backward()
    s = scores([[0.9, 0.1]], [[True, False]], kl.detach().tolist(), lengths=[[length, 3]])
    weights, _ = codpo_weights(s, beta, lam)
    torch.testing.assert_close(-weights.double(), kl.grad, atol=1e-6, rtol=1e-6)


def test_the_loss_is_minus_the_weighted_log_likelihood(env, tmp_path):
    run = env.build(tmp_path, algo_type=CGPOConfig, rollout={"prompts_per_step": 4}, algo={"samples_per_prompt": 2})
    batch = tiny.batch_of(run)
    logprobs = torch.full(batch.loss_mask.shape, -0.5) * batch.loss_mask
    loss, _ = run.algorithm.loss(batch, Forward(logprobs=logprobs), Counts(1.0, 1.0))
    expected = -sum(float(w) * float(row.sum()) for w, row in zip(batch.weights, logprobs, strict=True))
    assert float(loss) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("optimizer", list(CGPOOptimizer))
def test_all_fail_changes_no_weight_and_all_pass_does(env, tmp_path, optimizer):
    for verdict in (False, True):
        run = env.build(
            tmp_path / str(verdict), algo_type=CGPOConfig, rollout={"prompts_per_step": 6}, optim={"lr": 1e-2},
            algo={"samples_per_prompt": 3, "optimizer": optimizer},
        )  # fmt: skip
        run.collector.judges.append(tiny.Always(verdict))
        before = tiny.weights(run.collector.lm)
        for step in (1, 2):
            run.updater(tiny.batch_of(run, step), step)
        assert bool(tiny.differing(before, run.collector.lm)) == verdict


def test_momentum_of_earlier_steps_does_not_move_a_step_that_teaches_nothing(env, tmp_path):
    run = env.build(tmp_path, algo_type=CGPOConfig, rollout={"prompts_per_step": 6}, optim={"lr": 1e-2}, algo={"samples_per_prompt": 3})
    run.updater(tiny.batch_of(run, 1), 1)
    run.collector.judges.append(tiny.Always(False))
    before = tiny.weights(run.collector.lm)
    run.updater(tiny.batch_of(run, 2), 2)
    assert tiny.differing(before, run.collector.lm) == []


@pytest.mark.parametrize("microbatch", [1, 2, 5])
def test_microbatches_change_nothing(env, tmp_path, microbatch):
    got = []
    for size in (64, microbatch):
        run = env.build(
            tmp_path / str(size), algo_type=CGPOConfig, rollout={"prompts_per_step": 6}, algo={"samples_per_prompt": 3},
            optim={"lr": 1e-3, "microbatch_size": size},
        )  # fmt: skip
        seen = tiny.watch(run)
        run.updater(tiny.batch_of(run), 1)
        got.append(seen.gradients[0])
    for name, gradient in got[0].items():
        torch.testing.assert_close(got[1][name], gradient, atol=1e-6, rtol=1e-4)


def test_kl_is_zero_before_the_first_update_at_another_temperature(env, tmp_path):
    run = env.build(tmp_path, algo_type=CGPOConfig, rollout={"prompts_per_step": 6, "temperature": 0.7})
    rollout = tiny.collect(run)
    assert rollout.ref_logprobs is not None
    assert float((rollout.old_logprobs - rollout.ref_logprobs).abs().max()) < 1e-5


def test_the_class_reads_its_bound_from_the_config():
    assert CGPO(CGPOConfig()).config.kl_max == 10.0
    assert CGPO(CGPOConfig(optimizer=CGPOOptimizer.crraft)).wants_baselines
    assert not CGPO(CGPOConfig()).wants_baselines


def test_the_crpg_gradient_is_that_of_the_enumerated_expectation(tmp_path):
    """Over all 57 responses, weighted by their probability, against the mean of many samples: equal within sampling error."""
    enumerable.make(tmp_path, 0)
    lm = GPT2LMHeadModel.from_pretrained(tmp_path / "policy").eval()
    every, mask = enumerable.responses()
    prompt, kl_max = enumerable.PROMPTS[2], 2.0
    ids = [enumerable.WORDS.index(w) for w in prompt.split()]
    texts = [" ".join([prompt, *(enumerable.WORDS[i] for i in s if i != enumerable.END)]) for s in every]
    satisfied = torch.tensor([enumerable.passes(0, t) for t in texts])
    reward = torch.sigmoid(enumerable.rewards(0, prompt)).float()

    def logprobs() -> torch.Tensor:
        rows = torch.tensor([ids + s + [0] * (enumerable.LENGTH - len(s)) for s in every])
        logits = lm(input_ids=rows).logits[:, -enumerable.LENGTH - 1 : -1]
        return (torch.log_softmax(logits, -1).gather(-1, rows[:, -enumerable.LENGTH :, None]).squeeze(-1) * mask).sum(1)

    def gradient(weights: torch.Tensor) -> torch.Tensor:
        lm.zero_grad()
        (weights.detach() * logprobs()).sum().neg().backward()
        return torch.cat([p.grad.flatten() for p in lm.parameters() if p.grad is not None])

    p = logprobs().exp().detach()
    kl = torch.linspace(-0.5, 2.5, len(every))  # as if the policy had moved: some are past the bound
    shaped = (1 - kl / kl_max).clamp(min=0) * reward * satisfied
    expected = gradient(p * (shaped - (p * shaped).sum()))
    torch.manual_seed(0)
    n = 40_000
    drawn = torch.multinomial(p, n, replacement=True)
    one = Scores(reward[drawn][None], reward[drawn][None], satisfied[drawn][None], kl[drawn][None], torch.ones(1, n))
    weights, _ = crpg_weights(one, kl_max, alone)
    sampled = gradient(torch.zeros(len(every)).index_add(0, drawn, weights[0] / n))
    cosine = torch.nn.functional.cosine_similarity(sampled, expected, dim=0)
    assert float(cosine) > 0.99
    assert float(sampled.norm() / expected.norm()) == pytest.approx(1.0, abs=0.1)
