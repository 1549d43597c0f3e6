"""Rollouts and updates of real tiny models: ratios, reference, schedule, warm-up, microbatches, limits."""

from __future__ import annotations

import json
import math
import re

import pytest
import tiny
import torch

from rlctl.config.schema import KLEstimator, OptimConfig, PPOConfig, Schedule, ScoreNormalization
from rlctl.control import KLController
from rlctl.errors import TrainingError
from rlctl.metrics import METRICS, rollout_metrics
from rlctl.monitor import diagnose
from rlctl.tensors import alone
from rlctl.train import train
from rlctl.update import default_learning_rate, learning_rate_scale


def update(run, step: int = 1, batch=None) -> dict[str, float]:
    return run.updater(tiny.batch_of(run, step) if batch is None else batch, step)


# --- what a rollout says of the models


@pytest.mark.parametrize("model", ["policy", "llama"])
def test_a_rollout_holds_what_each_model_says_of_each_row_alone(env, tmp_path, model):
    run = env.build(tmp_path, policy=getattr(env, model), rollout={"temperature": 0.7}, optim={"microbatch_size": 3})
    for p in run.collector.policy.parameters():  # the policy moves away from its reference
        p.data.mul_(1.1)
    r, lm, value = tiny.collect(run), run.collector.lm, run.value.classifier
    assert r.sequences.prompt_mask.sum(1).unique().numel() > 2
    for row in range(len(r.sequences)):
        prompt, response = tiny.unpadded(r.sequences, row)
        n, ids = response.shape[1], torch.cat([prompt, response], 1)
        at = slice(prompt.shape[1] - 1, -1)
        with torch.no_grad():
            policy, reference = (torch.log_softmax(m(input_ids=ids).logits[0, at] / 0.7, -1) for m in (lm, run.collector.reference.lm))
            values = value.score(value.base_model(input_ids=ids).last_hidden_state[0, at])[:, 0]
        for given, wanted in (
            (r.old_logprobs, policy.gather(-1, response[0, :, None])[:, 0]),
            (r.ref_logprobs, reference.gather(-1, response[0, :, None])[:, 0]),
            (r.entropy, -(policy.exp() * policy).sum(-1)),
            (r.values, values),
        ):
            torch.testing.assert_close(given[row, :n], wanted, atol=1e-4, rtol=1e-4)
            assert not given[row, n:].any()
    assert (r.old_logprobs - r.ref_logprobs).abs().max() > 1e-2


@pytest.mark.parametrize("model", ["policy", "llama"])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_ratio_is_one_until_the_policy_moves(env, tmp_path, model, temperature):
    run = env.build(
        tmp_path, policy=getattr(env, model), rollout={"temperature": temperature},
        algo={"epochs": 2, "minibatches": 2}, optim={"lr": 0.0, "microbatch_size": 3},
    )  # fmt: skip
    batch, worst, loss = tiny.batch_of(run), [], run.algorithm.loss

    def spy(micro, new, counts):
        if new.logprobs is not None:  # the value model is asked apart
            worst.append(((new.logprobs - micro.old_logprobs).exp() - 1).abs()[micro.loss_mask].max().item())
        return loss(micro, new, counts)

    run.updater.algorithm.loss = spy
    stats = run.updater(batch, 1)
    assert len(worst) == 2 * 2 * 2 and max(worst) < 1e-4
    assert stats["policy/ratio"] == pytest.approx(1, abs=1e-5)
    assert stats["policy/clipfrac"] == 0
    assert stats["policy/approxkl"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_kl_is_zero_before_any_update(env, tmp_path, temperature):
    run = env.build(tmp_path, rollout={"temperature": temperature})
    metrics = rollout_metrics(tiny.collect(run), 0.05, KLEstimator.k1, alone)
    assert abs(metrics["objective/kl"]) < 1e-5 and 0 <= metrics["objective/kl_k3"] < 1e-5


def test_without_a_price_there_is_no_reference(env, tmp_path):
    run = env.build(tmp_path, algo={"kl_coef": 0.0})
    assert run.collector.reference is None
    r = tiny.collect(run)
    assert r.ref_logprobs is None
    metrics = rollout_metrics(r, 0.0, KLEstimator.k1, alone)
    assert "objective/kl" not in metrics and metrics["objective/rlhf_reward"] == metrics["objective/adjusted_scores"]
    update(run)
    assert env.build(tmp_path, algo={"kl_coef": 0.0, "max_kl": 1.0}).collector.reference is not None


def test_the_logged_kl_is_the_kl_of_the_reward(env, tmp_path):
    run = env.build(tmp_path, algo={"gae_lambda": 1.0, "kl_coef": 0.3, "missing_eos_penalty": 0.5, "whiten_advantages": False})
    for p in run.collector.policy.parameters():
        p.data.mul_(1.1)
    r = tiny.collect(run)
    metrics = rollout_metrics(r, 0.3, KLEstimator.k1, alone)
    b, _ = run.algorithm.prepare(r, 0.3, alone)
    shaped = b.returns[:, 0].mean().item()  # lambda = discount = 1: the sum of the row's token rewards
    assert shaped == pytest.approx(metrics["objective/rlhf_reward"], abs=1e-4)
    assert metrics["objective/adjusted_scores"] - shaped == pytest.approx(0.3 * metrics["objective/kl"], abs=1e-4)
    assert abs(metrics["objective/kl"]) > 1e-2


def test_the_missing_end_penalty_is_subtracted_from_cut_responses_alone(env, tmp_path):
    run = env.build(tmp_path, rollout={"prompts_per_step": 24}, algo={"missing_eos_penalty": 0.5})
    r = tiny.collect(run)
    assert r.truncated.any() and not r.truncated.all()
    torch.testing.assert_close(r.scores - r.adjusted_scores, 0.5 * r.truncated.float())


def test_scores_are_normalised_then_clipped_then_penalised(env, tmp_path):
    algo = {"score_normalization": ScoreNormalization.running, "score_clip": 0.5, "missing_eos_penalty": 3.0}
    r = tiny.collect(env.build(tmp_path, rollout={"prompts_per_step": 24}, algo=algo))
    normal = (r.scores - r.scores.mean()) / r.scores.std(unbiased=False)
    torch.testing.assert_close(r.adjusted_scores, normal.clamp(-0.5, 0.5) - 3.0 * r.truncated, atol=1e-4, rtol=1e-4)


def test_the_reward_sees_prompt_and_response_without_special_tokens(env, tmp_path):
    run = env.build(tmp_path, rollout={"prompts_per_step": 24}, algo={"samples_per_prompt": 2})
    torch.manual_seed(0)
    collected = run.collector(run.prompts.at(1, 24), run.clock)
    r, seen = collected.rollout, collected.samples
    for row in range(48):
        prompt, response = tiny.unpadded(r.sequences, row)
        words = [tiny.WORDS[i] for i in response[0] if i != tiny.EOS]
        assert seen.responses[row].split() == words
        assert seen.texts[row] == seen.prompts[row] + seen.responses[row]
        assert torch.equal(prompt, tiny.unpadded(r.sequences, row // 2 * 2)[0])  # rows of one prompt side by side
    from tinyreward import score

    assert r.scores.tolist() == pytest.approx(score(seen.texts))


@pytest.mark.parametrize("training", [False, True])
def test_dropout_is_off_in_every_model(env, tmp_path, training):
    run = env.build(tmp_path)
    assert run.collector.lm.config.resid_pdrop == 0.1
    s = tiny.collect(run).sequences
    for module, call in (
        (run.collector.policy, lambda m: m(s, 1.0).logprobs), (run.collector.reference, lambda m: m(s, 1.0).logprobs),
        (run.value, lambda m: m(s)),
    ):  # fmt: skip
        module.train(training)
        with torch.no_grad():
            assert torch.equal(call(module), call(module))


# --- gradients


@pytest.mark.parametrize("mask_truncated", [False, True])
def test_microbatches_of_every_size_give_the_same_weights(env, tmp_path, mask_truncated):
    after = {}
    for size in (1, 2, 3, 4, 8):
        # eps = 1 makes AdamW's step smooth in the gradient, so that rounding is not blown up; nothing is clipped
        optim = {"microbatch_size": size, "eps": 1.0, "lr": 0.1, "max_grad_norm": 1e9, "schedule": Schedule.constant}
        run = env.build(tmp_path, optim=optim, algo={"entropy_coef": 0.1, "mask_truncated": mask_truncated})
        batch = tiny.batch_of(run)
        assert batch.sequences.response_mask.sum(1).unique().numel() > 2
        before = tiny.weights(run.collector.policy)
        update(run, batch=batch)
        assert tiny.differing(before, run.collector.policy)
        after[size] = {**tiny.weights(run.collector.policy), **{f"v.{k}": v for k, v in tiny.weights(run.value).items()}}
    for size in (1, 2, 3, 4):
        for name, tensor in after[8].items():
            where = f"{name}, microbatches of {size}: "
            torch.testing.assert_close(after[size][name], tensor, atol=1e-6, rtol=0, msg=lambda m, w=where: w + m)


def test_the_gradient_is_that_of_the_written_loss(env, tmp_path):
    run = env.build(tmp_path, optim={"microbatch_size": 3, "max_grad_norm": 1e9}, rollout={"temperature": 0.7})
    batch, seen, lm = tiny.batch_of(run), tiny.watch(run), run.collector.lm
    update(run, batch=batch)
    given = {n: g for n, g in seen.gradients[0].items() if n.startswith("policy.")}
    again = env.build(tmp_path, rollout={"temperature": 0.7})
    lm, loss = again.collector.lm, 0.0
    for row in range(8):  # at ratio 1 the gradient of the clipped loss is that of -A log pi / N
        prompt, response = tiny.unpadded(batch.sequences, row)
        ids = torch.cat([prompt, response], 1)
        logprobs = torch.log_softmax(lm(input_ids=ids).logits[0, prompt.shape[1] - 1 : -1] / 0.7, -1).gather(-1, response[0, :, None])[:, 0]
        loss = loss - (batch.advantages[row, : response.shape[1]] * logprobs).sum() / batch.loss_mask.sum()
    loss.backward()
    for name, p in again.collector.policy.named_parameters():
        torch.testing.assert_close(given[f"policy.{name}"], p.grad, atol=1e-5, rtol=1e-4)


def test_one_update_makes_good_tokens_likelier(env, tmp_path):
    run = env.build(tmp_path, optim={"lr": 1e-4})
    batch = tiny.batch_of(run)
    update(run, batch=batch)
    with torch.no_grad():
        moved = run.collector.policy(batch.sequences, 1.0).logprobs - batch.old_logprobs
    assert (batch.advantages * moved).sum() > 0.1


def test_a_run_learns(env, tmp_path):
    rollout, optim = {"prompts_per_step": 48}, {"lr": 3e-3, "microbatch_size": 64}
    summary = train(env.config(tmp_path, reward="tinyreward.count_a", rollout=rollout, optim=optim, run={"steps": 12}), tiny.Recording())
    assert summary.first["objective/scores"] < 1 and summary.last["objective/scores"] > 4


def test_gradient_norms_are_clipped_for_each_model_by_itself(env, tmp_path):
    run = env.build(tmp_path, optim={"max_grad_norm": 0.01})
    seen = tiny.watch(run)
    stats = update(run)
    for model in ("policy", "value"):
        norm = sum(g.square().sum() for n, g in seen.gradients[0].items() if n.startswith(model)).sqrt().item()
        assert stats[f"{model}/grad_norm"] > 0.01
        assert norm == pytest.approx(0.01, rel=1e-3)


def test_gradient_checkpointing_changes_neither_gradients_nor_samples(env, tmp_path):
    seen, tokens = {}, {}
    for on in (False, True):
        run = env.build(tmp_path, checkpointing=on)
        greedy = env.build(tmp_path, checkpointing=on, rollout={"temperature": 1e-4})
        tokens[on] = (tiny.collect(run).sequences.response_ids, tiny.collect(greedy).sequences.response_ids)
        watched = tiny.watch(run)
        update(run)
        seen[on] = watched.gradients[0]
    assert torch.equal(tokens[True][0], tokens[False][0]) and torch.equal(tokens[True][1], tokens[False][1])
    assert seen[True].keys() == seen[False].keys()
    for name, gradient in seen[False].items():
        torch.testing.assert_close(seen[True][name], gradient, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model", ["policy", "value"])
def test_gradient_checkpointing_computes_every_layer_twice_in_an_update(env, tmp_path, model):
    calls = {}
    for on in (False, True):
        run = env.build(tmp_path, checkpointing=on)
        layer = (run.collector.lm if model == "policy" else run.value.classifier).transformer.h[0].attn
        batch, seen = tiny.batch_of(run), []
        layer.register_forward_hook(lambda *_, s=seen: s.append(1))
        update(run, batch=batch)
        calls[on] = len(seen)
    assert calls[True] == 2 * calls[False]


def test_gradient_checkpointing_leaves_the_cache_on_while_sampling(env, tmp_path):
    run, widths = env.build(tmp_path, checkpointing=True), []
    update(run)
    run.collector.lm.transformer.h[0].register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    run.collector.sample(run.prompts.at(1, 8), 1)
    assert set(widths[1:]) == {1}


# --- which model an update trains


def test_value_warmup_trains_the_value_model_alone(env, tmp_path):
    run = env.build(tmp_path, algo={"value_warmup_steps": 2, "epochs": 2}, optim={"lr": 1e-2, "weight_decay": 0.1})
    policy = tiny.weights(run.collector.policy)
    for step in (1, 2):
        value = tiny.weights(run.value)
        stats = update(run, step)
        assert tiny.differing(policy, run.collector.policy) == []
        assert "classifier.score.weight" in tiny.differing(value, run.value)
        assert "policy/grad_norm" not in stats and "loss/policy" not in stats
    update(run, 3)
    assert tiny.differing(policy, run.collector.policy)


def test_the_value_loss_never_reaches_the_policy(env, tmp_path):
    run = env.build(tmp_path)
    assert not {p.data_ptr() for p in run.collector.policy.parameters()} & {p.data_ptr() for p in run.value.parameters()}
    gradients = []
    for coef in (0.0, 5.0):
        run = env.build(tmp_path, algo={"vf_coef": coef}, optim={"max_grad_norm": 1e9})
        seen = tiny.watch(run)
        update(run)
        gradients.append(seen.gradients[0])
    for name in gradients[0]:
        if name.startswith("policy."):
            assert torch.equal(gradients[0][name], gradients[1][name])
        else:
            assert not gradients[0][name].any()


def test_value_training_lowers_the_value_loss(env, tmp_path):
    run = env.build(tmp_path, algo={"value_warmup_steps": 3, "epochs": 10, "clip_range_value": None}, optim={"lr": 1e-2})
    batch = tiny.batch_of(run)
    first, last = update(run, 1, batch), update(run, 2, batch)
    assert last["loss/value"] < 0.5 * first["loss/value"]


def test_the_reference_is_frozen(env, tmp_path):
    run = env.build(tmp_path, optim={"lr": 1e-2})
    start = tiny.weights(run.collector.policy)
    for step in (1, 2):
        update(run, step)
    assert tiny.differing(start, run.collector.policy)
    assert tiny.differing(start, run.collector.reference) == []
    assert not any(p.requires_grad or p.grad is not None for p in run.collector.reference.parameters())


# --- learning rates


def test_schedule_values():
    linear, cosine, constant = (OptimConfig(schedule=s) for s in (Schedule.linear, Schedule.cosine, Schedule.constant))
    assert [learning_rate_scale(u, 100, linear) for u in (0, 50, 75, 100, 101)] == pytest.approx([1, 0.5, 0.25, 0, 0])
    assert [learning_rate_scale(u, 100, cosine) for u in (0, 25, 50, 100, 101)] == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, 0, 0])
    assert {learning_rate_scale(u, 100, constant) for u in (0, 50, 99)} == {1.0}


def test_warmup_rises_to_the_peak_and_the_rest_falls_to_zero():
    c = OptimConfig(warmup_updates=4)
    assert [learning_rate_scale(u, 24, c) for u in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert learning_rate_scale(14, 24, c) == pytest.approx(0.5)
    assert learning_rate_scale(24, 24, c) == 0


def test_the_default_learning_rate():
    assert default_learning_rate(1_000) == 1e-3
    assert default_learning_rate(1_000_000) == pytest.approx(3e-4)
    assert default_learning_rate(8_000_000_000) == pytest.approx(7.5e-7)


@pytest.mark.parametrize(("epochs", "minibatches", "samples"), [(1, 1, 1), (2, 1, 1), (1, 4, 1), (2, 2, 2)])
def test_the_rate_is_half_at_half_whatever_a_step_consists_of(env, tmp_path, epochs, minibatches, samples):
    algo = {"epochs": epochs, "minibatches": minibatches, "samples_per_prompt": samples}
    run = env.build(tmp_path, algo=algo, optim={"lr": 1e-5, "microbatch_size": 2}, run={"steps": 4})
    batch, seen = tiny.batch_of(run), tiny.watch(run)
    n = epochs * minibatches
    logged = [run.updater(batch, step)["policy/lr"] for step in range(1, 5)]
    assert len(seen.lrs) == 4 * n == run.config.updates
    assert seen.lrs == pytest.approx([1e-5 * (1 - u / (4 * n)) for u in range(4 * n)])
    assert seen.lrs[2 * n] == pytest.approx(5e-6)
    assert logged == [seen.lrs[step * n - 1] for step in range(1, 5)]


def test_the_value_model_has_a_rate_of_its_own(env, tmp_path):
    from dataclasses import replace

    from rlctl.assemble import assemble

    config = env.config(tmp_path, optim={"lr": 1e-3})
    run = assemble(replace(config, value=replace(config.value, lr=1e-2)), tiny.Recording())
    batch = tiny.batch_of(run)
    for step in (1, 2, 3):
        run.updater(batch, step)
    assert [g["lr"] for g in run.updater.optimizer.param_groups] == pytest.approx([0.5e-3, 0.5e-2])


def test_target_kl_ends_the_epochs_early_and_leaves_the_schedule_alone(env, tmp_path):
    run = env.build(tmp_path, algo={"epochs": 4, "target_kl": 1e-6}, optim={"lr": 1e-2}, run={"steps": 2})
    batch, seen = tiny.batch_of(run), tiny.watch(run)
    first = run.updater(batch, 1)
    assert first["policy/epochs"] == 2 == len(seen.lrs)  # the first epoch starts at ratio 1
    assert first["policy/updates"] == 2
    run.updater(batch, 2)
    assert seen.lrs[:3] == pytest.approx([1e-2, 0.875e-2, 0.5e-2])


def test_target_kl_out_of_reach_runs_every_epoch(env, tmp_path):
    run = env.build(tmp_path, algo={"epochs": 4, "target_kl": 100.0})
    assert update(run)["policy/epochs"] == 4


# --- the KL coefficient


@pytest.mark.parametrize(
    ("kl", "wanted"),
    [
        (12.0, 0.2 * (1 + 0.2 * 0.0512)),
        (6.6, 0.2 * (1 + 0.1 * 0.0512)),
        (6.0, 0.2),
        (5.4, 0.2 * (1 - 0.1 * 0.0512)),
        (-1.0, 0.2 * (1 - 0.2 * 0.0512)),
    ],
)
def test_the_adaptive_coefficient(kl, wanted):
    controller = KLController.of(PPOConfig(kl_coef=0.2, kl_target=6.0, kl_horizon=10_000))
    controller.update(kl, 512)
    assert controller.coef == pytest.approx(wanted, rel=1e-9)


def test_without_a_target_the_coefficient_stays():
    controller = KLController.of(PPOConfig(kl_coef=0.2))
    controller.update(100.0, 512)
    assert controller.coef == 0.2


# --- numbers that are not finite


def _spoil_advantages(run, batch):
    batch.advantages[0, 0] = math.inf


def _spoil_returns(run, batch):
    batch.returns[0, 0] = math.nan


def _spoil_gradient(name):
    def spoil(run, batch):
        module = run.collector.policy if name == "policy" else run.value
        next(module.parameters()).register_hook(lambda g: g * math.nan)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "culprit"),
    [
        (_spoil_advantages, "loss/policy is (nan|inf|-inf)"), (_spoil_returns, "loss/value is nan"),
        (_spoil_gradient("policy"), "policy/grad_norm is nan"), (_spoil_gradient("value"), "value/grad_norm is nan"),
    ],
)  # fmt: skip
def test_what_is_not_finite_is_refused_by_name_and_changes_nothing(env, tmp_path, spoil, culprit):
    run = env.build(tmp_path, optim={"microbatch_size": 3})
    batch = tiny.batch_of(run)
    policy, value = tiny.weights(run.collector.policy), tiny.weights(run.value)
    spoil(run, batch)
    with pytest.raises(TrainingError) as error:
        run.updater(batch, 3)
    assert re.fullmatch(f"step 3: {culprit}; the update was not taken", error.value.what)
    assert error.value.exit_status == 4
    assert tiny.differing(policy, run.collector.policy) == tiny.differing(value, run.value) == []
    assert all(p.grad is None for p in [*run.collector.policy.parameters(), *run.value.parameters()])


def test_models_that_are_not_finite_are_refused_before_anything_is_learnt(env, tmp_path):
    run = env.build(tmp_path)
    run.value.classifier.score.weight.data.fill_(math.nan)
    with pytest.raises(TrainingError, match=r"^error: the values are not finite\n"):
        tiny.collect(run)
    run = env.build(tmp_path)
    run.collector.reference.lm.transformer.ln_f.bias.data.fill_(math.inf)
    with pytest.raises(TrainingError, match=r"^error: the reference's log-probabilities are not finite\n"):
        tiny.collect(run)


def test_a_run_that_fails_keeps_its_checkpoints_and_says_so(env, tmp_path, monkeypatch):
    from rlctl.algos.ppo import PPO

    prepare = PPO.prepare

    def third_is_bad(self, rollout, coef, total, calls=[]):  # noqa: B006
        calls.append(1)
        b, metrics = prepare(self, rollout, coef, total)
        if len(calls) == 3:
            b.advantages.fill_(math.nan)
        return b, metrics

    monkeypatch.setattr(PPO, "prepare", third_is_bad)
    with pytest.raises(TrainingError, match=r"^error: step 3: loss/policy is nan"):
        train(env.config(tmp_path, run={"save_every": 1}), tiny.Recording())
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_000001", "step_000002"]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "failed" and summary["steps_done"] == 2
    assert summary["reason"].startswith("step 3: ")


# --- whole runs


def rows(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def untimed(row):
    return {k: v for k, v in row.items() if not k.startswith(("time/", "tokens/per_second"))}


def test_a_run_is_repeatable_and_its_seed_matters(env, tmp_path):
    made = []
    for i, seed in enumerate((5, 5, 6)):
        train(env.config(tmp_path / str(i), seed=seed, run={"steps": 2}), tiny.Recording())
        made.append([untimed(r) for r in rows(tmp_path / str(i))])
    assert made[0] == made[1] != made[2]
    first, again = ((tmp_path / i / "policy" / "model.safetensors").read_bytes() for i in "01")
    assert first == again


def test_every_metric_has_a_formula_and_every_step_one_row(env, tmp_path):
    seen = tiny.Recording()
    summary = train(env.config(tmp_path, algo={"entropy_coef": 0.01, "epochs": 2, "minibatches": 2}), seen)
    logged = rows(tmp_path)
    assert [r["step"] for r in logged] == [s.step for s in seen.steps] == [1, 2, 3, 4]
    assert all(set(r) - {"step"} <= set(METRICS) for r in logged)
    assert [r["policy/updates"] for r in logged] == [4, 8, 12, 16]
    assert [r["progress/samples"] for r in logged] == [8, 16, 24, 32]
    assert logged[-1]["progress/epoch"] == pytest.approx(32 / 24)
    assert logged[0]["objective/kl"] == pytest.approx(0, abs=1e-5) and logged[0]["objective/kl_coef"] == 0.05
    assert summary.status == "finished" and seen.summaries == [summary]


def test_the_kl_coefficient_follows_the_controller(env, tmp_path):
    config = env.config(tmp_path, algo={"kl_target": 5.0, "kl_coef": 0.1, "kl_horizon": 80})
    train(config, tiny.Recording())
    wanted = 0.1
    for row in rows(tmp_path):
        assert row["objective/kl_coef"] == pytest.approx(wanted)
        wanted *= 1 + min(0.2, max(-0.2, row["objective/kl"] / 5.0 - 1)) * 8 / 80


def policy_bytes(folder):
    return (folder / "model.safetensors").read_bytes()


def test_max_kl_stops_the_run_and_keeps_the_last_good_policy(env, tmp_path):
    algo = {"max_kl": 5.0, "kl_coef": 0.0}
    config = env.config(tmp_path, reward="tinyreward.count_a", algo=algo, optim={"lr": 3e-3}, run={"steps": 30, "save_every": 1})
    seen = tiny.Recording()
    summary = train(config, seen)
    step = len(seen.steps) + 1  # the rollout that condemned the policy of the step before
    assert summary.status == "stopped" and 3 <= step < 30
    assert all(s.metrics["objective/kl"] <= 5.0 for s in seen.steps)
    assert summary.reason.endswith(f"passed algo.max_kl=5 in step {step}; policy/ is the one of step_{step - 2:06d}")
    good = tmp_path / "checkpoints" / f"step_{step - 2:06d}" / "policy"
    assert policy_bytes(tmp_path / "policy") == policy_bytes(good)
    assert policy_bytes(good) != policy_bytes(tmp_path / "checkpoints" / f"step_{step - 1:06d}" / "policy")


def test_max_kl_without_a_good_checkpoint_says_so(env, tmp_path):
    algo = {"max_kl": 1e-7, "epochs": 4}
    config = env.config(tmp_path, algo=algo, optim={"lr": 2e-2}, run={"steps": 5})
    summary = train(config, tiny.Recording())
    assert summary.status == "stopped" and summary.steps_done == 1
    assert "no checkpoint from before it, so policy/ is the one past the limit (set run.save_every)" in summary.reason
    assert (tmp_path / "policy" / "model.safetensors").exists()


def test_a_score_that_never_varies_is_warned_of(env, tmp_path, monkeypatch):
    import tinyreward

    monkeypatch.setattr(tinyreward, "score", lambda texts: [0.1] * len(texts))
    seen = tiny.Recording()
    train(env.config(tmp_path, rollout={"prompts_per_step": 12}, run={"steps": 3}), seen)
    assert "constant-score" in [w.key for w in seen.warnings]


def test_warnings_wait_for_several_steps_in_a_row():
    good, cut = {"responses/truncated": 0.5}, {"responses/truncated": 1.0}
    assert diagnose([cut, cut], 8) == [] == diagnose([cut, cut, good], 8)
    (warning,) = diagnose([good, cut, cut, cut], 8)
    assert warning.key == "all-truncated" and "rollout.max_new_tokens=16" in warning.change


def test_debug_checks_pass_on_a_sound_run(env, tmp_path):
    from rlctl.config.schema import DebugConfig

    debug = DebugConfig(checks=True, anomaly=True)
    config = env.config(tmp_path, algo={"minibatches": 2, "epochs": 2}, rollout={"temperature": 0.7}, debug=debug)
    assert train(config, tiny.Recording()).status == "finished"
