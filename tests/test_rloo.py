"""RLOO's targets and losses, against numbers worked by hand, enumeration, autograd and TRL."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import test_cli
import tiny
import torch
from test_ppo import sequences

from rlctl.algos import Counts, build
from rlctl.algos.rloo import RLOO, RLOOBatch
from rlctl.config.schema import KLEstimator, RatioLevel, RLOOConfig
from rlctl.rollout import Forward, Rollout
from rlctl.tensors import alone

folder, rlctl = test_cli.folder, test_cli.rlctl
LEVELS = list(RatioLevel)


def rollout(scores, k, *, lengths=None, old=None, ref=None, truncated=None, adjusted=None) -> Rollout:
    s = sequences(lengths or [1] * len(scores))
    zeros = torch.zeros(s.response_mask.shape)
    old = zeros if old is None else torch.as_tensor(old) * s.response_mask
    ref = None if ref is None else torch.as_tensor(ref) * s.response_mask
    scores = torch.as_tensor(scores, dtype=torch.float32)
    adjusted = scores if adjusted is None else torch.tensor(adjusted)
    return Rollout(s, old, zeros, ref, None, scores, adjusted, torch.tensor(truncated or [False] * len(scores)), k)


def advantages(r: Rollout, kl_coef: float = 0.0, **config) -> list[float]:
    return RLOO(RLOOConfig(**config)).prepare(r, kl_coef, alone)[0].advantages.tolist()


def batch(given, *, lengths, old=None, ref=None) -> RLOOBatch:
    s = sequences(lengths)
    old = torch.zeros(s.response_mask.shape) if old is None else torch.as_tensor(old)
    return RLOOBatch(s, s.response_mask, old, old if ref is None else torch.as_tensor(ref), torch.tensor(given))


def counts(b: RLOOBatch) -> Counts:
    return Counts(float(b.loss_mask.sum()), float(b.loss_mask.any(1).sum()))


def loss(b: RLOOBatch, logprobs, **config):
    return RLOO(RLOOConfig(**config)).loss(b, Forward(logprobs), counts(b))


# --- advantages


@pytest.mark.parametrize(
    ("k", "scores", "wanted"),
    [
        (4, [1.0, 0.0, 0.0, 0.0], [1, -1 / 3, -1 / 3, -1 / 3]),
        (8, [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], [5 / 7, -3 / 7, 5 / 7, -3 / 7, -3 / 7, 5 / 7, -3 / 7, -3 / 7]),
        (2, [1.0, 3.0, 10.0, 10.0], [-2, 2, 0, 0]),
        (3, [1.0, 2.0, 6.0], [-3, -1.5, 4.5]),
    ],
)
def test_each_response_is_compared_with_the_others_to_its_prompt(k, scores, wanted):
    assert advantages(rollout(scores, k)) == pytest.approx(wanted, abs=1e-6)


def test_permuting_prompts_permutes_advantages_and_so_do_responses_inside_one():
    scores = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    wanted = torch.tensor(advantages(rollout(scores.flatten(), 3))).view(5, 3)
    for rows, columns in (([3, 1, 4, 0, 2], [0, 1, 2]), ([0, 1, 2, 3, 4], [2, 0, 1])):
        got = advantages(rollout(scores[rows][:, columns].flatten(), 3))
        torch.testing.assert_close(torch.tensor(got).view(5, 3), wanted[rows][:, columns])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("k", [2, 3, 4, 7, 16])
def test_identical_responses_get_exactly_zero(k, normalize):
    scores = torch.randn(50, generator=torch.Generator().manual_seed(k)).repeat_interleave(k)
    assert set(advantages(rollout(scores, k), normalize_advantages=normalize)) == {0.0}


def test_a_masked_response_is_neither_trained_nor_anyones_sibling():
    r = rollout([1.0, 3.0, 100.0, 5.0], 4, lengths=[2, 1, 3, 2], truncated=[False, False, True, False])
    b, _ = RLOO(RLOOConfig(mask_truncated=True)).prepare(r, 0.0, alone)
    assert b.advantages.tolist() == pytest.approx([-3, 0, 0, 3])
    assert b.loss_mask.any(1).tolist() == [True, True, False, True]
    for level in LEVELS:
        new = torch.zeros(4, 3, requires_grad=True)
        given, _ = loss(b, new, ratio=level)
        given.backward()
        # -A / n over the three that count
        assert new.grad.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 0], [-1, -1, 0]]


def test_a_truncated_response_counts_unless_masked():
    r = rollout([1.0, 3.0, 100.0, 5.0], 4, truncated=[False, False, True, False])
    assert advantages(r) == pytest.approx([-35, -97 / 3, 97, -89 / 3], abs=1e-4)


def test_a_response_whose_siblings_are_all_masked_gets_zero():
    r = rollout([5.0, 9.0, 1.0, 2.0], 2, truncated=[False, True, False, False])
    assert advantages(r, mask_truncated=True) == pytest.approx([0, 0, -1, 1])
    everyone = rollout([5.0, 9.0], 2, truncated=[True, True])
    assert advantages(everyone, mask_truncated=True, normalize_advantages=True) == [0, 0]


# --- the KL in the reward


def test_siblings_of_equal_score_and_different_kl_get_advantages_of_opposite_sign():
    old = [[-1.0, -1.0, 9.0], [-1.0, 0.0, -0.5]]
    ref = [[-2.0, -1.5, 0.0], [-1.5, 0.0, -0.5]]  # sums of old - ref: 1.5 over two tokens, .5 over three
    r = rollout([2.0, 2.0], 2, lengths=[2, 3], old=old, ref=ref)
    assert advantages(r, kl_coef=0.2) == pytest.approx([-0.2, 0.2], abs=1e-6)
    assert advantages(r, kl_coef=0.0) == [0, 0]


@pytest.mark.parametrize(("estimator", "kl"), [(KLEstimator.k1, 1.0), (KLEstimator.k3, 0.36788)])
def test_the_kl_estimator_of_the_config_is_used(estimator, kl):
    r = rollout([0.0, 0.0], 2, old=[[-1.0], [-1.0]], ref=[[-2.0], [-1.0]])
    assert advantages(r, kl_coef=0.5, kl_estimator=estimator) == pytest.approx([-0.5 * kl, 0.5 * kl], abs=1e-5)


def test_the_adjusted_score_is_learnt_from():
    assert advantages(rollout([1.0, 1.0], 2, adjusted=[1.0, 0.5])) == pytest.approx([0.5, -0.5])


# --- the KL in the loss


def test_the_kl_in_the_loss_leaves_the_advantages_alone():
    r = rollout([2.0, 1.0], 2, old=[[-1.0], [-1.0]], ref=[[-9.0], [-1.0]])
    assert advantages(r, kl_coef=0.7, kl_in_loss=True) == [1, -1]


def test_the_kl_in_the_loss_is_a_mean_over_responses():
    b = batch([0.0, 0.0], lengths=[2, 1], ref=[[0.0, 2.0], [1.0, 50.0]])  # lp - lq: 0, -2 and -1
    given, stats = loss(b, torch.zeros(2, 2), kl_in_loss=True, kl_coef=0.1)
    assert stats["loss/kl"].item() == pytest.approx((2.0 + 0.5) / 2)
    assert given.item() == pytest.approx(0.125)
    assert stats["loss/policy"].item() == 0


@pytest.mark.parametrize("length", [1, 2])
def test_the_gradient_of_the_kl_in_the_loss_is_that_of_the_expected_kl(length):
    """Every response of a softmax policy whose second token depends on the first, weighted by its probability."""
    words, beta = 3, 0.3
    theta, reference = (torch.randn(1 + words, words, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in (0, 1))
    theta.requires_grad_()

    def logprobs(logits, response):
        tables = torch.log_softmax(logits, -1)
        places = [0] + [1 + token for token in response[:-1]]
        return torch.stack([tables[p, token] for p, token in zip(places, response, strict=True)])[None]

    every = list(itertools.product(range(words), repeat=length))
    added = exact = torch.zeros(())
    for response in every:
        new, ref = logprobs(theta, response), logprobs(reference, response)
        b = batch([0.0], lengths=[length], old=new.detach(), ref=ref)
        added = added + new.sum().exp().detach() * loss(b, new, kl_in_loss=True, kl_coef=beta)[0]
        exact = exact + beta * new.sum().exp() * (new - ref).sum()
    (got,), (wanted,) = (torch.autograd.grad(x, theta, retain_graph=True) for x in (added, exact))
    assert wanted.abs().max() > 0.01
    torch.testing.assert_close(got, wanted, atol=1e-8, rtol=1e-6)


# --- normalisation


def test_normalized_advantages_have_root_mean_square_one():
    assert advantages(rollout([1.0, 0.0, 0.0, 0.0], 4), normalize_advantages=True) == pytest.approx([3**0.5] + [-1 / 3**0.5] * 3)
    r = rollout([1.0, 3.0, 100.0, 5.0], 4, truncated=[False, False, True, False])  # -3, 0, 3 count
    wanted = [-(1.5**0.5), 0, 0, 1.5**0.5]
    assert advantages(r, normalize_advantages=True, mask_truncated=True) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("spread", [1e-3, 1e-6, 1e-7, 1e-12])
def test_nearly_constant_groups_do_not_explode(spread):
    noise = spread * torch.randn(64, generator=torch.Generator().manual_seed(0))
    for scores in (1.0 + noise, torch.tensor([1.0, 1.0, 1.0, 1.0 + spread])):
        got = torch.tensor(advantages(rollout(scores, 4), normalize_advantages=True))
        assert torch.isfinite(got).all() and got.abs().max() <= 10


def test_one_outlier_among_many_is_bounded_and_keeps_its_sign():
    for sign in (1.0, -1.0):
        scores = torch.zeros(512)
        scores[100] = sign
        got = torch.tensor(advantages(rollout(scores, 4), normalize_advantages=True))
        assert got.abs().max() == 10 and got[100] == 10 * sign  # 19.6 unclipped
        assert got[101].item() == pytest.approx(-sign / 3 / math.sqrt(4 / 3 / 512), rel=1e-3)
        assert not got[:100].any()


# --- losses

CLIPPED = [
    (1.0, 1.0, -1.0, 0),
    (1.5, 1.0, -1.2, 1),  # a gain is clipped from above ...
    (0.5, 1.0, -0.5, 1),  # ... and never from below
    (1.5, -1.0, 1.5, 1),
    (0.5, -1.0, 0.8, 1),
    (1.1, 2.0, -2.2, 0),
    (0.9, -2.0, 1.8, 0),
]


@pytest.mark.parametrize(("rho", "advantage", "wanted", "clipped"), CLIPPED)
def test_one_ratio_a_response(rho, advantage, wanted, clipped):
    log = math.log(rho)
    b = batch([advantage], lengths=[2], old=[[-1.0, -2.0]])
    given, stats = loss(b, torch.tensor([[-1.0 + 3 * log, -2.0 - 2 * log]]), ratio=RatioLevel.sequence, clip_range=0.2)
    assert given.item() == pytest.approx(wanted, abs=1e-5)
    assert stats["policy/clipfrac"].item() == clipped
    assert stats["policy/ratio"].item() == pytest.approx((rho**3 + rho**-2) / 2, rel=1e-5)


@pytest.mark.parametrize(("ratio", "advantage", "wanted", "clipped"), CLIPPED)
def test_one_ratio_a_token(ratio, advantage, wanted, clipped):
    b = batch([advantage], lengths=[2], old=[[-1.0, -2.0]])
    given, stats = loss(b, torch.tensor([[-1.0 + math.log(ratio), -2.0]]), ratio=RatioLevel.token, clip_range=0.2)
    assert given.item() == pytest.approx(wanted - advantage, abs=1e-5)  # the other token's ratio is 1
    assert stats["policy/clipfrac"].item() == clipped / 2
    assert stats["policy/approxkl"].item() == pytest.approx((ratio - 1 - math.log(ratio)) / 2, abs=1e-6)


def test_both_losses_are_means_over_responses_not_over_tokens():
    b = batch([1.0, -1.0], lengths=[2, 1])
    new = torch.tensor([[math.log(1.5), math.log(0.5)], [math.log(0.5), 7.0]])
    # sequence: rho .75 and .5;  token: 1.5 -> 1.2, .5 and .5 -> .8
    assert loss(b, new, ratio=RatioLevel.sequence)[0].item() == pytest.approx((-0.75 + 0.8) / 2, abs=1e-6)
    assert loss(b, new, ratio=RatioLevel.token)[0].item() == pytest.approx((-1.7 + 0.8) / 2, abs=1e-6)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("ratio", "advantage", "gradient"), [(1.5, 1.0, 0.0), (0.5, 1.0, -0.5), (0.5, -1.0, 0.0), (1.5, -1.0, 1.5)])
def test_clipping_stops_the_gradient_only_where_the_gain_is_clipped(level, ratio, advantage, gradient):
    new = torch.tensor([[math.log(ratio)]], requires_grad=True)
    loss(batch([advantage], lengths=[1]), new, ratio=level)[0].backward()
    assert new.grad.item() == pytest.approx(gradient, abs=1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_before_the_first_update_the_gradient_is_that_of_reinforce(level):
    g = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 5, 6, generator=g, requires_grad=True)
    ids, lengths = torch.randint(6, (4, 5), generator=g), [5, 1, 3, 4]
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[..., None])[..., 0]
    b = batch([1.5, -0.5, 0.25, -2.0], lengths=lengths, old=logprobs.detach())
    (got,) = torch.autograd.grad(loss(b, logprobs, ratio=level)[0], logits, retain_graph=True)
    reinforce = -(b.advantages * (logprobs * b.loss_mask).sum(1)).mean()
    (wanted,) = torch.autograd.grad(reinforce, logits)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_along_the_gradient_raises_the_probability_of_what_scores_better(level):
    b, _ = RLOO(RLOOConfig()).prepare(rollout([1.0, -1.0], 2), 0.0, alone)
    new = torch.zeros(2, 1, requires_grad=True)
    loss(b, new, ratio=level)[0].backward()
    assert (-new.grad)[0].item() > 0 > (-new.grad)[1].item()


@pytest.mark.parametrize("advantage", [0.0, 1.0])
def test_a_ratio_beyond_float32_gives_a_finite_gradient_where_its_gain_is_clipped(advantage):
    new = torch.full((1, 400), 0.25, requires_grad=True)  # a small move of each of many tokens: e^100
    given, _ = loss(batch([advantage], lengths=[400]), new, ratio=RatioLevel.sequence)
    given.backward()
    assert given.item() == pytest.approx(-1.2 * advantage)
    assert torch.equal(new.grad, torch.zeros(1, 400))


def random_batch(seed: int = 0) -> tuple[RLOOBatch, Forward]:
    old, ref, new, entropy = torch.randn(4, 4, 5, generator=torch.Generator().manual_seed(seed))
    b = batch([1.0, -2.0, 0.5, 0.25], lengths=[5, 1, 3, 4], old=old, ref=ref)
    return b, Forward(logprobs=old + 0.1 * new, entropy=entropy.abs())


ALL = {"kl_in_loss": True, "kl_coef": 0.2, "entropy_coef": 0.1}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", [[1, 1, 1, 1], [2, 2], [3, 1], [4]])
def test_microbatches_add_up_to_the_whole(level, split):
    b, new = random_batch(1)
    algorithm = RLOO(RLOOConfig(ratio=level, **ALL))
    whole, stats = algorithm.loss(b, new, counts(b))
    parts, summed = 0.0, dict.fromkeys(stats, 0.0)
    for rows in torch.tensor([2, 0, 3, 1]).split(split):
        micro = b.select(rows)
        width = micro.loss_mask.shape[1]
        share, more = algorithm.loss(micro, Forward(new.logprobs[rows, :width], None, new.entropy[rows, :width]), counts(b))
        parts += share.item()
        summed = {k: v + more[k].item() for k, v in summed.items()}
    assert parts == pytest.approx(whole.item(), abs=1e-6)
    assert summed == pytest.approx({k: v.item() for k, v in stats.items()}, abs=1e-6)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("fill", [1e6, math.nan])
def test_what_padding_holds_changes_no_loss(level, fill):
    b, new = random_batch(2)
    algorithm = RLOO(RLOOConfig(ratio=level, **ALL))
    dirty = [torch.where(b.loss_mask, x, torch.tensor(fill)) for x in (b.old_logprobs, b.ref_logprobs, new.logprobs, new.entropy)]
    spoilt = replace(b, old_logprobs=dirty[0], ref_logprobs=dirty[1])
    got = algorithm.loss(spoilt, Forward(dirty[2], None, dirty[3]), counts(b))[0]
    torch.testing.assert_close(got, algorithm.loss(b, new, counts(b))[0])


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_equal_finite_differences(level):
    b, new = random_batch(3)
    b = replace(b, **{n: getattr(b, n).double() for n in ("old_logprobs", "ref_logprobs", "advantages")})
    algorithm = RLOO(RLOOConfig(ratio=level, **ALL))
    inputs = [x.double().requires_grad_() for x in (new.logprobs, new.entropy)]
    assert torch.autograd.gradcheck(lambda lp, h: algorithm.loss(b, Forward(lp, None, h), counts(b))[0], inputs)


# --- groups without signal


def test_tied_groups_are_counted_on_scores_as_the_reward_gave_them():
    def tied(scores, adjusted):
        return RLOO(RLOOConfig()).prepare(rollout(scores, 2, adjusted=adjusted), 0.0, alone)[1]["groups/tied"]

    assert tied([1.0, 1.0, 2.0, 3.0], [1.0, 0.5, 2.0, 3.0]) == 0.5  # a penalty does not untie
    assert tied([1.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.5, 1.5]) == 0.5  # clipping does not tie
    assert tied([1.0, 1.0, 2.0, 2.0], None) == 1
    assert tied([1.0, 2.0, 2.0, 1.0], None) == 0


# --- a group of one, and value models, are refused


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("algo.samples_per_prompt=1", "algo.samples_per_prompt=1: must be at least 2"),
        ("value=policy", "value=policy: algo=rloo has no value model; leave value out, or write algo=ppo"),
        ("value=reward", "value=reward: algo=rloo has no value model; leave value out, or write algo=ppo"),
        ("run.save_value=true", "run.save_value=true: algo=rloo has no value model"),
        ("algo.kl_in_loss=true algo.kl_target=1", "algo.kl_target steers the KL in the reward; with algo.kl_in_loss=true the "
         "coefficient is fixed"),
    ],
)  # fmt: skip
def test_what_rloo_cannot_be_asked(rlctl, override, why):
    done = rlctl("train", "algo=rloo", *override.split(), *test_cli.TINY)
    assert done.status == 2
    assert any(line.endswith(why) for line in done.err.splitlines()), done.err


def test_no_value_model_is_built(env, tmp_path):
    config = replace(env.config(tmp_path / "run"), algo=RLOOConfig(samples_per_prompt=2))
    run = tiny.assemble(config, tiny.Recording())
    assert isinstance(run.algorithm, RLOO) and isinstance(build(config.algo), RLOO)
    assert run.value is None and run.updater.value is None
    assert "value" not in dict(run.plan.facts)
    policy = {id(p) for p in run.collector.policy.parameters()}
    assert {id(p) for g in run.updater.optimizer.param_groups for p in g["params"]} == policy
    assert tiny.collect(run).values is None


def test_microbatches_take_the_same_update_as_one_batch(env, tmp_path):
    got = []
    for size in (16, 3):
        config = env.config(tmp_path / str(size), optim={"microbatch_size": size, "eps": 1.0, "lr": 1.0})  # as good as plain descent
        run = tiny.assemble(replace(config, algo=RLOOConfig(samples_per_prompt=2, epochs=1)), tiny.Recording())
        before = tiny.weights(run.collector.lm)
        run.updater(tiny.batch_of(run), 1)
        got.append({name: tensor - before[name] for name, tensor in tiny.weights(run.collector.lm).items()})
    assert max(float(t.abs().max()) for t in got[0].values()) > 1e-2
    for name, tensor in got[0].items():
        torch.testing.assert_close(tensor, got[1][name], atol=1e-5, rtol=1e-4)


# --- whole runs


def test_a_run_from_the_command_line(rlctl, folder: Path):
    done = rlctl("train", "algo=rloo", "hydra.run.dir=run", "algo.missing_eos_penalty=0.5", "algo.score_normalization=running",
                 "run.save_every=1", *test_cli.TINY)  # fmt: skip
    assert done.status == 0, done.err
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [1, 2]
    assert rows[0]["objective/kl"] == 0
    for row in rows:
        assert not [name for name in row if name.startswith(("value/", "loss/value"))]
        samples = [json.loads(line) for line in (folder / f"run/samples/step_{row['step']:06d}.jsonl").read_text().splitlines()]
        groups = [samples[i : i + 4] for i in range(0, len(samples), 4)]
        assert len(groups) == 4 and all(len({s["prompt"] for s in g}) == 1 for g in groups)
        assert row["groups/tied"] == sum(len({s["score"] for s in g}) == 1 for g in groups) / 4
    assert not list((folder / "run").glob("**/value"))
    from safetensors.torch import load_file

    before, after = (load_file(folder / f"run/{p}/model.safetensors") for p in ("checkpoints/step_000001/policy", "policy"))
    assert any(not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.05, 1.3])
@pytest.mark.parametrize("masked", [False, True])
def test_advantages_equal_those_of_trl(beta, masked):
    """TRL 1.16, trl/trainer/rloo_trainer.py, RLOOTrainer._generate_and_score_completions: its own lines from
    "unscorable_mask = ..." to "advantages = torch.nan_to_num(...)" (1653 to 1699) are run. A response that TRL cannot
    score (NaN) stands beside one that is masked here."""
    k, g = 4, torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 7, (32,), generator=g).tolist()
    scores, (old, ref) = torch.randn(32, generator=g), -torch.rand(2, 32, max(lengths), generator=g)
    cut = (torch.rand(32, generator=g) < 0.4).tolist() if masked else [False] * 32
    r = rollout(scores, k, lengths=lengths, old=old, ref=ref, truncated=cut)

    source = Path(importlib.util.find_spec("trl").origin).parent / "trainer" / "rloo_trainer.py"
    text = source.read_text()
    first, last = "        unscorable_mask = torch.isnan", "        advantages = torch.nan_to_num(advantages, nan=0.0)\n"
    theirs = text[text.index(first) : text.index(last) + len(last)]
    trainer = SimpleNamespace(reward_weights=torch.ones(1), reward_clip_range=None, beta=beta, normalize_advantages=False)
    found = {
        "torch": torch, "self": trainer, "device": torch.device("cpu"), "gather": lambda x: x, "num_generations": k,
        "nanstd": lambda x, dim: x.std(dim), "old_per_token_logps": r.old_logprobs, "ref_per_token_logps": r.ref_logprobs,
        "completion_mask": r.mask, "rewards_per_func": torch.where(torch.tensor(cut), torch.nan, scores)[:, None],
    }  # fmt: skip
    exec(textwrap.dedent(theirs), found)
    assert advantages(r, kl_coef=beta, mask_truncated=True) == pytest.approx(found["advantages"].tolist(), abs=1e-5)
    assert found["advantages"].abs().max() > 0.5
