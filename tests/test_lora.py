"""LoRA: policy, reference and value model on one base, what is written, what loads again, and what is refused."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import test_cli
import test_processes
import test_resume
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlctl import lora, models, weights
from rlctl.algos import Counts
from rlctl.assemble import assemble
from rlctl.config.checks import problems
from rlctl.config.schema import Dtype, LoraConfig, ModelConfig
from rlctl.errors import RlctlError
from rlctl.rollout import Forward
from rlctl.train import train
from rlctl.update import build_optimizer, default_learning_rate

folder, rlctl, trained_run = test_cli.folder, test_cli.rlctl, test_cli.trained
IDS = torch.tensor([[0, 2, 6, 1, 4]])
RANK = LoraConfig(r=4)


def config(env, run_dir: Path, asked: LoraConfig = RANK, **changes: Any):
    """A small run under LoRA."""
    made = env.config(run_dir, **changes)
    return replace(made, model=replace(made.model, lora=asked))


def build(env, run_dir: Path, asked: LoraConfig = RANK, **changes: Any):
    return assemble(config(env, run_dir, asked, **changes), tiny.Recording())


def from_adapter(env, run_dir: Path, path: Path, **changes: Any):
    return build(env, run_dir, LoraConfig(), policy=path, **changes)


@torch.no_grad()
def logits(model) -> torch.Tensor:
    return model(input_ids=IDS, use_cache=False).logits


@torch.no_grad()
def values(classifier) -> torch.Tensor:
    """(5,) the head's number at every position."""
    return classifier.score(classifier.base_model(input_ids=IDS, use_cache=False).last_hidden_state)[0, :, 0]


def made_adapter(path: Path, base: Path, **settings: Any) -> Path:
    """An adapter as somebody's supervised fine-tuning leaves it: written by peft, and far from adding nothing."""
    torch.manual_seed(5)
    options = {"r": 3, "lora_alpha": 6, "task_type": "CAUSAL_LM", **settings}
    wrapped = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(**options))
    with torch.no_grad():
        for weight in (p for p in wrapped.parameters() if p.requires_grad):
            weight.add_(torch.randn_like(weight) * 0.1)
    wrapped.save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def adapter(env, tmp_path_factory):
    """An adapter of the tiny llama."""
    return made_adapter(tmp_path_factory.mktemp("adapter"), env.llama, target_modules=["q_proj", "v_proj", "up_proj"], lora_dropout=0.5)


def frozen(module) -> set[int]:
    return {id(p) for p in module.parameters() if not p.requires_grad}


def trained_in(module) -> dict[int, torch.nn.Parameter]:
    return {id(p): p for p in module.parameters() if p.requires_grad}


# --- the reference is the policy as it started


@pytest.mark.parametrize("model", ["policy", "llama"])
def test_a_fresh_adapter_adds_exactly_nothing(env, tmp_path, model):
    run = build(env, tmp_path, policy=getattr(env, model))
    bare = AutoModelForCausalLM.from_pretrained(getattr(env, model)).eval()
    assert torch.equal(logits(run.collector.lm), logits(bare))
    assert torch.equal(logits(run.collector.reference.lm), logits(bare))
    rollout = tiny.collect(run)
    assert torch.equal(rollout.old_logprobs, rollout.ref_logprobs)
    # so that its passes cost what the bare model's do, the reference has no adapter at all
    assert not lora.is_adapted(run.collector.reference)
    assert tiny.differing(tiny.weights(bare), run.collector.reference.lm) == []


def test_the_reference_of_a_trained_adapter_is_base_and_adapter(env, tmp_path, adapter):
    run = from_adapter(env, tmp_path, adapter)
    c = run.collector
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(adapter).eval()
    bare = AutoModelForCausalLM.from_pretrained(env.llama).eval()
    assert torch.equal(logits(c.lm), logits(loaded)) and torch.equal(logits(c.reference.lm), logits(loaded))
    assert (logits(bare) - logits(loaded)).abs().max() > 0.1  # not the bare base
    rollout = tiny.collect(run)
    assert torch.equal(rollout.old_logprobs, rollout.ref_logprobs)


@pytest.mark.parametrize("start", ["fresh", "trained"])
def test_training_moves_the_policy_and_nothing_else_of_the_start(env, tmp_path, adapter, start):
    run = from_adapter(env, tmp_path, adapter) if start == "trained" else build(env, tmp_path, policy=env.llama)
    c = run.collector
    before, base = tiny.weights(c.reference), tiny.weights(AutoModelForCausalLM.from_pretrained(env.llama))
    first = logits(c.lm)
    for step in (1, 2, 3):
        run.updater(tiny.batch_of(run, step), step)
    assert (logits(c.lm) - first).abs().max() > 1e-3
    assert tiny.differing(before, c.reference) == [] and torch.equal(logits(c.reference.lm), first)
    now = {n.replace(".base_layer", ""): t for n, t in c.lm.state_dict().items()}
    assert [n for n, t in base.items() if not torch.equal(t, now[n])] == []


def test_dropout_of_an_adapter_is_off_in_train_mode_too(env, tmp_path, adapter):
    run = from_adapter(env, tmp_path, adapter, checkpointing=True)
    seen, loss = [], run.updater.algorithm.loss

    def spy(micro, new, counts):
        if new.logprobs is not None:
            seen.append((new.logprobs - micro.old_logprobs).abs().max().item())
        return loss(micro, new, counts)

    run.updater.algorithm.loss = spy
    run.updater(tiny.batch_of(run), 1)
    assert run.collector.lm.peft_config["default"].lora_dropout == 0.5  # as it was made, and as it will be written
    assert seen and max(seen) < 1e-5


# --- one base


@pytest.mark.parametrize("start", ["fresh", "trained"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_three_models_stand_on_one_base(env, tmp_path, adapter, start, checkpointing):
    changes = {"policy": adapter if start == "trained" else env.llama, "checkpointing": checkpointing}
    run = build(env, tmp_path, LoraConfig() if start == "trained" else RANK, **changes)
    policy, reference, value = run.collector.policy, run.collector.reference, run.value
    assert frozen(value) <= frozen(policy)  # the value model has no output layer
    assert frozen(policy) <= frozen(reference) and not trained_in(reference)
    assert not trained_in(policy).keys() & trained_in(value).keys()
    distinct = {p.data_ptr(): p.numel() for m in (policy, reference, value) for p in m.parameters()}
    bare = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(env.llama).parameters())
    small = 2 * sum(p.numel() for p in trained_in(policy).values()) + 33
    assert sum(distinct.values()) <= bare + small + (small // 2 if start == "trained" else 0)
    optimized = {id(p) for group in run.updater.optimizer.param_groups for p in group["params"]}
    assert optimized == trained_in(policy).keys() | trained_in(value).keys()


def test_the_base_stays_one_on_its_way_to_another_type(env, tmp_path):
    made = config(env, tmp_path, policy=env.llama)
    run = assemble(replace(made, model=replace(made.model, dtype=Dtype.bfloat16)), tiny.Recording())
    assert {p.dtype for p in run.collector.lm.parameters() if not p.requires_grad} == {torch.bfloat16}
    trained = [*trained_in(run.collector.policy).values(), *trained_in(run.value).values()]
    assert {p.dtype for p in trained} == {torch.float32}  # or small updates would be lost
    assert frozen(run.value) <= frozen(run.collector.policy)
    before = tiny.weights(run.value)
    metrics = run.updater(tiny.batch_of(run), 1)
    assert (
        metrics["policy/grad_norm"] > 0
        and metrics["value/grad_norm"] > 0
        and "classifier.score.weight" in tiny.differing(before, run.value)
    )


def test_a_step_of_the_value_model_alone_changes_no_weight_of_the_policy(env, tmp_path):
    run = build(env, tmp_path, policy=env.llama, algo={"value_warmup_steps": 1})
    policy, value = tiny.weights(run.collector.policy), tiny.weights(run.value)
    run.updater(tiny.batch_of(run), 1)
    assert tiny.differing(policy, run.collector.policy) == []
    changed = tiny.differing(value, run.value)
    assert "classifier.score.weight" in changed and any("lora_B" in name for name in changed)


@pytest.mark.parametrize("model", ["policy", "llama"])
def test_the_value_model_starts_from_the_policy_with_a_head_near_0(env, tmp_path, model):
    run = build(env, tmp_path, policy=getattr(env, model))
    head = run.value.classifier.score.weight
    assert head.shape == (1, 32) and 0 < head.abs().max() < 5 / 33
    with torch.no_grad():
        ours, theirs = (m.base_model(input_ids=IDS).last_hidden_state for m in (run.value.classifier, run.collector.lm))
    assert torch.equal(ours, theirs)
    assert 0 < tiny.collect(run).values.abs().max() < 1
    assert not [p for p in run.value.parameters() if p.is_meta]


def gradients(env, run_dir, adapter, checkpointing):
    run = from_adapter(env, run_dir, adapter, checkpointing=checkpointing, optim={"microbatch_size": 3})
    seen = tiny.watch(run)
    run.updater(tiny.batch_of(run), 1)
    return seen.gradients[0]


def test_checkpointing_recomputes_each_model_with_its_own_adapter(env, tmp_path, adapter):
    plain, again = gradients(env, tmp_path / "a", adapter, False), gradients(env, tmp_path / "b", adapter, True)
    assert plain.keys() == again.keys() and len(plain) == 2 * 2 * 2 * 3 + 1
    for name, gradient in plain.items():
        assert gradient.any()
        torch.testing.assert_close(again[name], gradient, rtol=1e-4, atol=1e-7)


def test_gradients_are_those_of_the_merged_models(env, tmp_path, adapter):
    """W = W0 + s B A, so dL/dB = s dL/dW A^T and dL/dA = s B^T dL/dW, in the policy and in the value model."""
    run = from_adapter(env, tmp_path, adapter, optim={"max_grad_norm": 1e9})
    batch, seen, scale = tiny.batch_of(run), tiny.watch(run), 2.0
    policy = models.Policy(copy.deepcopy(lora.merged(run.collector.lm)).requires_grad_(True))
    value = models.ValueModel(copy.deepcopy(lora.merged(run.value.classifier)).requires_grad_(True), "policy")
    new = Forward(policy(batch.sequences, 1.0).logprobs, value(batch.sequences))
    run.algorithm.loss(batch, new, Counts(float(batch.loss_mask.sum()), float(len(batch))))[0].backward()
    whole = {f"{side}.{n}": p.grad for side, m in (("policy", policy), ("value", value)) for n, p in m.named_parameters()}
    sides = (("policy", run.collector.policy), ("value", run.value))
    at = {f"{side}.{n}": p.detach().clone() for side, m in sides for n, p in m.named_parameters() if p.requires_grad}
    run.updater(batch, 1)
    checked = 0
    for name, gradient in seen.gradients[0].items():
        layer, kind, _ = name.partition(".lora_A." if ".lora_A." in name else ".lora_B.")
        if not kind:
            continue
        a, b, of_weight = at[f"{layer}.lora_A.default.weight"], at[f"{layer}.lora_B.default.weight"], whole[f"{layer}.weight"]
        wanted = scale * (b.T @ of_weight if kind == ".lora_A." else of_weight @ a.T)
        torch.testing.assert_close(gradient, wanted, rtol=1e-3, atol=1e-6)
        checked += 1
    assert checked == 2 * 2 * 2 * 3


# --- a fresh adapter


def test_a_new_adapter_follows_the_seed_alone_and_draws_nothing_from_the_global_generator(env):
    source = models.open_source(ModelConfig(path=str(env.llama), lora=RANK), "policy")
    drawn = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(noise)
        before = torch.get_rng_state()
        lm = models.load_policy(source, seed)
        assert torch.equal(torch.get_rng_state(), before)
        drawn.append(lm.model.layers[0].mlp.up_proj.lora_A["default"].weight)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("model", ["policy", "llama"])
def test_by_default_every_linear_layer_but_the_output_is_adapted(env, tmp_path, model, recwarn):
    lm = build(env, tmp_path, LoraConfig(r=4, alpha=8), policy=getattr(env, model)).collector.lm
    layers = {n: m for n, m in lm.named_modules() if hasattr(m, "lora_A")}
    assert {n.rpartition(".")[2] for n in layers} == {
        "policy": {"c_attn", "c_proj", "c_fc"},
        "llama": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
    }[model]
    assert {m.scaling["default"] for m in layers.values()} == {2.0} and {m.r["default"] for m in layers.values()} == {4}
    assert not [w for w in recwarn if "fan_in_fan_out" in str(w.message)]


def test_asked_layers_alone_are_adapted(env, tmp_path):
    lm = build(env, tmp_path, LoraConfig(r=2, target_modules=["q_proj"]), policy=env.llama).collector.lm
    assert {n.partition(".lora")[0].rpartition(".")[2] for n, p in lm.named_parameters() if p.requires_grad} == {"q_proj"}


@pytest.mark.parametrize("r", [None, 0])
def test_without_a_rank_all_weights_are_trained(env, tmp_path, r):
    run = build(env, tmp_path, LoraConfig(r=r))
    assert not lora.is_adapted(run.collector.policy) and not frozen(run.collector.policy)


# --- what is written


ADAPTERS = {
    "plain": {"target_modules": ["q_proj", "v_proj"]},
    "pattern": {"target_modules": r".*layers\.1.*\.(o_proj|up_proj)", "rank_pattern": {"up_proj": 2}, "use_rslora": True},
    "output": {"target_modules": ["q_proj", "lm_head"]},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "dora": {"target_modules": ["q_proj", "down_proj"], "use_dora": True},
    "saved": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "token": {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
}


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("tied", [False, True])
def test_adapters_of_every_kind_start_train_are_written_load_and_merge(env, tmp_path, kind, tied):
    base = tiny.save(tmp_path / "base", tiny.llama(tie_word_embeddings=tied))
    path = made_adapter(tmp_path / "adapter", base, **ADAPTERS[kind])
    run = from_adapter(env, tmp_path / "run", path, optim={"lr": 1e-2})
    c, start = run.collector, logits(peft.AutoPeftModelForCausalLM.from_pretrained(path).eval())
    assert torch.equal(logits(c.lm), start) and torch.equal(logits(c.reference.lm), start)
    run.updater(tiny.batch_of(run), 1)
    moved = logits(c.lm)
    assert (moved - start).abs().max() > 1e-3 and torch.equal(logits(c.reference.lm), start)
    weights.save_policy(tmp_path / "out", c.lm, c.tokenizer)
    assert not (tmp_path / "out" / "config.json").exists()
    assert torch.equal(logits(peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out").eval()), moved)
    weights.save_policy(tmp_path / "merged", c.lm, c.tokenizer, merge=True)
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    whole, info = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    torch.testing.assert_close(logits(whole.eval()), moved, rtol=1e-4, atol=1e-5)
    assert torch.equal(logits(c.lm), moved) and torch.equal(logits(c.reference.lm), start)  # merging touched neither
    written = {t.data_ptr() for t in lora._tensors(c.lm).values()}
    assert {p.data_ptr() for p in trained_in(c.policy).values()} <= written


@pytest.fixture(scope="module", params=["policy", "llama"])
def finished(request, env, tmp_path_factory):
    """A finished run with its value model written: its folder, its config and the models as they are in memory."""
    import rlctl.train

    run_dir, kept = tmp_path_factory.mktemp("run"), []
    made = config(
        env, run_dir, policy=getattr(env, request.param), optim={"lr": 1e-2}, run={"steps": 2, "save_every": 1, "save_value": True}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rlctl.train, "assemble", lambda *a: kept.append(assemble(*a)) or kept[0])
        rlctl.train.train(made, tiny.Recording())
    return run_dir, made, kept[0]


@pytest.mark.parametrize("where", ["policy", "checkpoints/step_000002/policy"])
def test_a_written_policy_loads_with_peft_and_with_transformers(finished, where):
    run_dir, made, run = finished
    path = run_dir / where
    assert json.loads((path / "adapter_config.json").read_text())["base_model_name_or_path"] == made.model.path
    now = logits(run.collector.lm)
    assert torch.equal(logits(peft.AutoPeftModelForCausalLM.from_pretrained(path).eval()), now)
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(path).eval()), now)
    assert AutoTokenizer.from_pretrained(path).get_vocab() == run.collector.tokenizer.get_vocab()
    first = logits(peft.AutoPeftModelForCausalLM.from_pretrained(run_dir / "checkpoints" / "step_000001" / "policy").eval())
    assert (first - now).abs().max() > 1e-3


@pytest.mark.parametrize("where", ["value", "checkpoints/step_000002/value"])
def test_a_written_value_model_loads_with_peft(finished, where):
    run_dir, _, run = finished
    loaded = peft.AutoPeftModelForSequenceClassification.from_pretrained(run_dir / where, num_labels=1).eval()
    wanted = values(run.value.classifier)
    assert wanted.std() > 0
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=IDS).logits[0], wanted[-1:])


def test_a_new_run_restored_from_a_checkpoint_goes_on_from_it_with_the_old_reference(finished, tmp_path):
    run_dir, made, run = finished
    again = assemble(replace(made, run=replace(made.run, dir=str(tmp_path))), tiny.Recording())
    start = logits(again.collector.lm)
    saved = run_dir / "checkpoints" / "step_000002"
    weights.restore(saved / "policy", again.collector.lm)
    weights.restore(saved / "value", again.value.classifier)
    for ours, theirs in ((run.collector.policy, again.collector.policy), (run.value, again.value)):
        assert tiny.differing(tiny.weights(ours), theirs) == []
    assert torch.equal(logits(again.collector.lm), logits(run.collector.lm)) and not torch.equal(logits(again.collector.lm), start)
    assert torch.equal(values(again.value.classifier), values(run.value.classifier))
    assert torch.equal(logits(again.collector.reference.lm), start)
    assert torch.equal(start, logits(run.collector.reference.lm))
    # the optimizer holds the very tensors that were filled
    optimized = {id(p) for group in again.updater.optimizer.param_groups for p in group["params"]}
    assert optimized == trained_in(again.collector.policy).keys() | trained_in(again.value).keys()
    weights.save_policy(tmp_path / "policy", again.collector.lm, again.collector.tokenizer)
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "policy" / file).read_bytes() == (saved / "policy" / file).read_bytes()


@pytest.mark.parametrize("start", ["fresh", "trained"])
def test_a_resumed_run_is_the_run(env, tmp_path, adapter, start):
    """Bit for bit; the KL of later steps is that from the start, not from the checkpoint."""
    asked, policy = (RANK, env.llama) if start == "fresh" else (LoraConfig(), adapter)
    run = {"steps": 4, "save_every": 2, "keep": 9, "save_value": True}
    made = config(env, tmp_path / "whole", asked, policy=policy, optim={"lr": 1e-2}, algo={"epochs": 2, "minibatches": 2}, run=run)
    train(made, tiny.Recording())
    copy = test_resume.stopped_after(tmp_path / "whole", tmp_path / "stopped", 2)
    train(test_resume.going_on(made, copy), tiny.Recording())
    lines = test_resume.lines(copy)
    assert lines == test_resume.lines(tmp_path / "whole") and test_resume.written(copy) == test_resume.written(tmp_path / "whole")
    assert lines[0]["objective/kl"] == 0 and lines[2]["objective/kl"] > 0.01
    for part in ("policy", "value"):
        ours, theirs = (load_file(folder / part / lora.WEIGHTS) for folder in (copy, tmp_path / "whole"))
        assert ours.keys() == theirs.keys() and all(torch.equal(t, theirs[n]) for n, t in ours.items())


def test_restoring_what_does_not_fit_is_refused(env, finished, tmp_path):
    run_dir, made, _ = finished
    other = assemble(
        replace(made, model=replace(made.model, lora=LoraConfig(r=2)), run=replace(made.run, dir=str(tmp_path))), tiny.Recording()
    )
    with pytest.raises(RlctlError, match="lacks weights that its config names, or has them in another shape"):
        weights.restore(run_dir / "policy", other.collector.lm)


def test_a_full_run_is_restored_too(env, tmp_path):
    run, again = (env.build(tmp_path / name, optim={"lr": 1e-2}) for name in ("a", "b"))
    run.updater(tiny.batch_of(run), 1)
    weights.save_policy(tmp_path / "policy", run.collector.lm, run.collector.tokenizer)
    weights.save_value(tmp_path / "value", run.value.classifier, run.collector.tokenizer)
    assert tiny.differing(tiny.weights(run.collector.policy), again.collector.policy)
    weights.restore(tmp_path / "policy", again.collector.lm)
    weights.restore(tmp_path / "value", again.value.classifier)
    for ours, theirs in ((run.collector.policy, again.collector.policy), (run.value, again.value)):
        assert tiny.differing(tiny.weights(ours), theirs) == []


@pytest.mark.parametrize("merge", [False, True])
def test_past_the_kl_limit_the_last_good_adapter_is_the_final_one(env, tmp_path, merge):
    made = config(
        env, tmp_path, replace(RANK, merge=merge), policy=env.llama, optim={"lr": 2e-3}, reward="tinyreward.count_a",
        algo={"max_kl": 0.5, "kl_coef": 0.01, "epochs": 4}, run={"steps": 20, "save_every": 1, "keep": 20, "save_value": True},
    )  # fmt: skip
    summary = train(made, tiny.Recording())
    name = summary.reason.rpartition("policy/ is the one of ")[2]
    assert summary.status == "stopped" and name.startswith("step_")
    good = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "checkpoints" / name / "policy").eval()
    final = AutoModelForCausalLM.from_pretrained(tmp_path / "policy").eval()
    assert (tmp_path / "policy" / "adapter_config.json").exists() != merge
    torch.testing.assert_close(logits(final), logits(good), rtol=1e-4, atol=1e-5)
    ours, theirs = (load_file(p / "value" / lora.WEIGHTS) for p in (tmp_path, tmp_path / "checkpoints" / name))
    assert ours.keys() == theirs.keys() and all(torch.equal(t, theirs[n]) for n, t in ours.items())


# --- learning rates and what is printed


def facts(run) -> dict[str, str]:
    return dict(run.plan.facts)


def test_an_adapter_gets_ten_times_the_rate_of_its_base(env, tmp_path):
    run = build(env, tmp_path, policy=env.llama, optim={"lr": None})
    count = sum(p.numel() for p in run.collector.lm.parameters())
    assert [g["peak_lr"] for g in run.updater.optimizer.param_groups] == pytest.approx([10 * default_learning_rate(count)] * 2)
    assert default_learning_rate(135_000_000, adapted=True) == pytest.approx(1.14e-4, rel=1e-2)
    assert "by the policy's size, ten times for an adapter" in facts(run)["optimizer"]


@pytest.mark.parametrize(("own", "wanted"), [(None, 1e-4), (3e-5, 3e-5)])
def test_a_whole_value_model_beside_an_adapter_gets_a_tenth(env, tmp_path, own, wanted):
    made = config(env, tmp_path, reward=env.reward, value="reward", optim={"lr": 1e-3})
    run = assemble(replace(made, value=replace(made.value, lr=own)), tiny.Recording())
    assert [g["peak_lr"] for g in run.updater.optimizer.param_groups] == pytest.approx([1e-3, wanted])
    assert facts(run)["optimizer"].startswith(f"AdamW, lr 0.001, {wanted:.2g} for the value model, linear over ")
    assert not frozen(run.value)
    assert facts(run)["value"] == "reward-model: as asked; 26.8K parameters, all trained"
    whole = env.build(tmp_path / "whole", reward=env.reward, value="reward", optim={"lr": 1e-3})
    assert [g["peak_lr"] for g in build_optimizer(whole.collector.policy, whole.value, whole.config, 1e-3).param_groups] == [1e-3, 1e-3]


def test_the_value_model_is_a_second_adapter_unless_asked_otherwise(env, tmp_path):
    run = build(env, tmp_path, reward=env.reward)  # which has the policy's vocabulary
    assert run.value.origin == "policy" and lora.is_adapted(run.value)
    shown = facts(run)
    assert shown["value"] == "policy: a second adapter needs no second model; 30.9K parameters, 4.1K trained (the rest is the policy's)"
    where = "c_attn, c_fc, c_proj"
    assert shown["policy"] == f"{env.policy}, 30.8K parameters, 4.1K trained (LoRA of rank 4, alpha 32, on {where}), 1 end token"
    assert facts(env.build(tmp_path / "whole"))["policy"] == f"{env.policy}, 26.8K parameters, all trained, 1 end token"


# --- through the command line


def test_an_adapter_goes_on_from_run_to_run_and_is_merged_on_request(trained_run, rlctl):
    first = trained_run("model.lora.r=4", "run.save_value=true", "optim.lr=0.01", name="first")
    assert sorted(p.name for p in (first / "policy").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert test_cli._metrics(first)[0]["objective/kl"] == 0
    again = trained_run("model=hf:first/policy", "model.lora.merge=true", "optim.lr=0.01", name="again")
    assert test_cli._metrics(again)[0]["objective/kl"] == 0
    ours, start = AutoModelForCausalLM.from_pretrained(again / "policy"), peft.AutoPeftModelForCausalLM.from_pretrained(first / "policy")
    assert type(ours).__name__ == "LlamaForCausalLM" and not lora.is_adapted(ours)
    assert (logits(ours) - logits(start)).abs().max() > 1e-3
    third = trained_run("model=hf:again/policy", name="third")  # a model like any other
    assert json.loads((third / "plan.json").read_text())["policy"].endswith("all trained, 1 end token")
    done = rlctl("score", "model=hf:first/policy", "score.prompts=4", "rollout.max_new_tokens=4", "--json")
    assert done.status in (0, 3) and len(json.loads(done.out)["rows"]) == 16


@pytest.mark.parametrize("algo", ["rloo", "cgpo"])
def test_other_algorithms_train_an_adapter_too(trained_run, algo):
    more = {"rloo": ["algo.samples_per_prompt=2"], "cgpo": ["judges=[{kind: length, max: 50}]"]}[algo]
    run = trained_run(f"algo={algo}", "model.lora.r=4", "optim.lr=0.01", "reward=model", *more)
    assert test_cli._metrics(run)[0]["objective/kl"] == 0
    tensors = load_file(run / "policy" / "adapter_model.safetensors")
    assert any(t.abs().max() > 1e-3 for n, t in tensors.items() if "lora_B" in n)


# --- refused


def refusal(work) -> list[str]:
    with pytest.raises(RlctlError) as error:
        work()
    assert error.value.exit_status == 2
    return error.value.lines()


def test_keys_of_a_new_adapter_without_one():
    made = tiny.Config(model=ModelConfig(lora=LoraConfig(alpha=8, target_modules=["q_proj"])))
    assert problems(made) == [
        "model.lora.alpha shapes a new adapter, and there is none without model.lora.r",
        "model.lora.target_modules shapes a new adapter, and there is none without model.lora.r",
    ]
    assert problems(tiny.Config(model=ModelConfig(lora=LoraConfig(r=1, target_modules=[])))) == [
        "model.lora.target_modules is empty; write model.lora.target_modules=null for every linear layer"
    ]
    assert problems(tiny.Config(model=ModelConfig(lora=LoraConfig(r=1, alpha=8, target_modules=["q_proj"])))) == []


def test_bounds_of_the_keys(rlctl):
    done = rlctl("train", "model.lora.r=-1", "model.lora.alpha=0")
    assert done.status == 2
    assert "model.lora.r=-1: must be at least 0" in done.err and "model.lora.alpha=0: must be at least 1" in done.err


def test_a_misspelt_key_is_told_the_right_one(rlctl):
    done = rlctl("train", "model.lora.alpa=8", "lora_rank=8")
    assert done.status == 2
    assert "did you mean model.lora.alpha" in done.err and "did you mean model.lora.r" in done.err


def test_help_lists_the_keys(rlctl):
    done = rlctl("train", "--help")
    for key in ("model.lora.r (null)", "model.lora.alpha (32)", "model.lora.target_modules (null)", "model.lora.merge (false)"):
        assert f"  {key}" in done.out


def test_without_the_library_nothing_is_loaded(env, tmp_path, adapter, monkeypatch):
    monkeypatch.setattr(lora, "find_spec", lambda name: None)
    monkeypatch.setattr(models, "load_weights", lambda *a, **k: pytest.fail("weights were read"))
    assert refusal(lambda: build(env, tmp_path)) == [
        "error: model.lora.r=4 needs the library peft",
        "  why:  it is not installed",
        '  try:  pip install peft, or pip install "rlctl[lora]"',
    ]
    assert (
        refusal(lambda: from_adapter(env, tmp_path, adapter))[0]
        == f"error: the policy {adapter} is an adapter, which needs the library peft"
    )


def test_a_new_adapter_on_an_adapter_is_refused(env, tmp_path, adapter):
    assert refusal(lambda: build(env, tmp_path, LoraConfig(r=8), policy=adapter)) == [
        f"error: model.lora.r=8 asks for a new adapter, and the policy {adapter} is one already",
        "  why:  it is trained on as it is, with its own rank",
        "  try:  leave model.lora.r out, or merge the adapter into its base and start from that",
    ]


def test_merging_without_an_adapter_is_refused(env, tmp_path):
    assert refusal(lambda: build(env, tmp_path, LoraConfig(merge=True))) == [
        "error: model.lora.merge=true: there is no adapter to merge",
        f"  why:  {env.policy} is a whole model",
        "  try:  model.lora.r=16",
    ]


def test_layers_that_are_not_there(env, tmp_path):
    lines = refusal(lambda: build(env, tmp_path, LoraConfig(r=2, target_modules=["query"]), policy=env.llama))
    assert lines[0] == f"error: no LoRA adapter can be put into {env.llama}"
    assert "Target modules {'query'} not found in the base model" in lines[1]
    assert lines[-1] == "  try:  its linear layers: down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"


def edited(adapter: Path, path: Path, **changes: Any) -> Path:
    """A copy of an adapter with other words in its config."""
    path.mkdir()
    for file in adapter.iterdir():
        if file.is_file():
            (path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**settings, **changes}))
    return path


def test_adapters_that_cannot_be_trained_on(env, tmp_path, adapter):
    def lines(name: str, **changes: Any) -> list[str]:
        path = edited(adapter, tmp_path / name, **changes)
        return [line.replace(str(path), "PATH") for line in refusal(lambda: from_adapter(env, tmp_path / "run", path))]

    assert lines("gone", base_model_name_or_path="/nowhere/base") == [
        "error: the adapter PATH was trained on a model that is not there",
        "  why:  its base is /nowhere/base",
        "  try:  base_model_name_or_path in PATH/adapter_config.json",
    ]
    assert lines("unnamed", base_model_name_or_path=None)[1] == "  why:  its base is not named"
    assert lines("chain", base_model_name_or_path=str(adapter))[:2] == [
        "error: the adapter PATH was trained on another adapter", f"  why:  its base is {adapter}",
    ]  # fmt: skip
    assert lines("invoked", alora_invocation_tokens=[1])[:2] == [
        "error: the adapter PATH is not a plain LoRA adapter", "  why:  peft_type LORA, alora_invocation_tokens",
    ]  # fmt: skip
    assert lines("rank", r=5)[0] == (
        f"error: the adapter PATH (an adapter of {env.llama}) lacks weights that its config names, or has them in another shape"
    )


def test_another_kind_of_adapter_is_refused(env, tmp_path):
    path = tmp_path / "ia3"
    made = peft.IA3Config(target_modules=["q_proj", "up_proj"], feedforward_modules=["up_proj"], task_type="CAUSAL_LM")
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(env.llama), made).save_pretrained(path)
    assert refusal(lambda: from_adapter(env, tmp_path / "run", path))[:2] == [
        f"error: the adapter {path} is not a plain LoRA adapter", "  why:  peft_type IA3",
    ]  # fmt: skip


def test_pickled_adapter_weights_are_refused(env, tmp_path, adapter):
    path = edited(adapter, tmp_path / "pickled")
    torch.save(load_file(path / lora.WEIGHTS), path / "adapter_model.bin")
    (path / lora.WEIGHTS).unlink()
    lines = refusal(lambda: from_adapter(env, tmp_path / "run", path))
    assert lines == [
        f"error: the adapter {path} has no weights",
        f"  why:  there is no adapter_model.safetensors in {path}",
        "  try:  an adapter saved in safetensors format",
    ]


def test_an_adapter_that_changes_the_embeddings_is_refused(env, tmp_path, adapter):
    tensors, base = load_file(adapter / lora.WEIGHTS), load_file(env.llama / "model.safetensors")
    key, own = "base_model.model.model.embed_tokens.weight", base["model.embed_tokens.weight"]
    repeats, changes = edited(adapter, tmp_path / "repeats"), edited(adapter, tmp_path / "changes")
    save_file({**tensors, key: own.clone()}, repeats / lora.WEIGHTS)
    save_file({**tensors, key: own + 1}, changes / lora.WEIGHTS)
    from_adapter(env, tmp_path / "run", repeats)
    lines = refusal(lambda: from_adapter(env, tmp_path / "run", changes))
    assert lines[0] == f"error: the adapter {changes} (an adapter of {env.llama}) changes weights outside the adapter"
    assert lines[1] == f"  why:  {key}"


def test_a_base_is_found_beside_its_adapter_and_a_tokenizer_in_its_base(env, tmp_path, adapter):
    tiny.save(tmp_path / "base", tiny.llama())
    path = edited(adapter, tmp_path / "adapter", base_model_name_or_path="../base")
    for file in path.glob("tokenizer*"):
        file.unlink()
    source = models.open_source(ModelConfig(path=str(path)), "policy")
    assert source.path == str(tmp_path / "base") and len(source.tokenizer) == 8


# --- real processes


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    for n in (1, 2):
        done = test_processes.train(tmp_path, f"run{n}", "model.lora.r=4", "optim.lr=1e-3", "run.save_value=true", f"launch.processes={n}")
        assert done.returncode == 0, done.stderr
    one, two = test_processes.lines(tmp_path / "run1"), test_processes.lines(tmp_path / "run2")
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-4)
    for part in ("policy", "value"):
        ours, theirs = (load_file(tmp_path / f"run{n}" / part / lora.WEIGHTS) for n in (1, 2))
        assert max(t.abs().max() for n, t in ours.items() if "lora_B" in n) > 3e-3
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_an_adapter_of_a_hub_is_taken_by_its_id(env, tmp_path, adapter):
    """As in the cache of one that was downloaded: there is no network here."""
    held = tmp_path / "hub" / "models--somebody--adapter"
    (held / "refs").mkdir(parents=True)
    (held / "refs" / "main").write_text("abc")
    shutil.copytree(adapter, held / "snapshots" / "abc")
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    command = [
        "train", "model=hf:somebody/adapter", f"data=file:{env.prompts}", f"hydra.run.dir={tmp_path}/run", "run.steps=1",
        "rollout.max_new_tokens=4", "reward=fn:tinyreward.score", "run.tracker=none", "launch=cpu",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "rlctl", *command], cwd=env.root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert test_cli._metrics(tmp_path / "run")[0]["objective/kl"] == 0
    written = json.loads((tmp_path / "run" / "policy" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(env.llama) and written["r"] == 3


@pytest.mark.slow
def test_three_steps_take_less_than_the_bare_model_and_two_fifths(tmp_path):
    """The same measurement on SmolLM2-135M: tests/bench/lora_memory.py."""
    shape = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 12, "num_attention_heads": 8, "vocab_size": 8192}
    tok = tiny.tokenizer(["the", *(f"w{i}" for i in range(8190)), "<eos>"])
    path = tiny.save(tmp_path / "model", tiny.llama(**shape, initializer_range=0.02, max_position_embeddings=256, eos_token_id=8191), tok)
    bench = Path(__file__).parent / "bench" / "lora_memory.py"
    done = subprocess.run(
        [sys.executable, bench, path, "--micro", "4", "--batch", "4"], capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ratio less imports"] < 1.4 and found["ratio"] < 1.4, found
