"""Loading policy, reward and value models: what they start from, what is refused, and what they compute."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForMaskedLM,
    GPT2ForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from rlctl import models
from rlctl.config.schema import AppendEos, ModelConfig, ModelRewardConfig
from rlctl.errors import ModelError
from rlctl.rewards.model import ModelReward

CPU = torch.device("cpu")
SMALL = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "vocab_size": 8, "max_position_embeddings": 32, "pad_token_id": 7,
}  # fmt: skip


def policy_source(path):
    return models.open_source(ModelConfig(path=str(path)), "policy")


def reward_model(env, path, **config) -> ModelReward:
    c = ModelRewardConfig(path=str(path), **config)
    return ModelReward(c, models.open_source(c, "reward model"), policy_source(env.policy), CPU)


def refusal(work) -> list[str]:
    with pytest.raises(ModelError) as error:
        work()
    assert error.value.exit_status == 2
    return error.value.lines()


def value_fact(run) -> str:
    return dict(run.plan.facts)["value"]


# --- what the value model starts from


@pytest.mark.parametrize("model", ["policy", "llama"])
def test_a_value_model_from_the_policy(env, tmp_path, model):
    run = env.build(tmp_path, policy=getattr(env, model), value="policy")
    assert run.value.origin == "policy" and value_fact(run).startswith("policy: as asked; ")
    backbone = run.value.classifier.base_model
    assert tiny.differing(tiny.weights(run.collector.lm.base_model), backbone) == []
    head = run.value.classifier.score.weight
    assert head.shape == (1, 32)
    assert 0 < head.abs().max() < 5 / 33  # N(0, 1/33)
    values = tiny.collect(run).values
    assert values.isfinite().all() and 0 < values.abs().max() < 1
    assert all(p.requires_grad for p in run.value.parameters())


def test_the_head_of_a_value_model_follows_the_seed_alone(env, tmp_path):
    heads = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        torch.manual_seed(noise)
        heads.append(env.build(tmp_path, seed=seed).value.classifier.score.weight)
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_making_a_value_model_draws_nothing_from_the_global_generator(env):
    source = policy_source(env.policy)
    lm = models.load_policy(source)
    before = torch.get_rng_state()
    models.value_from_policy(source, lm, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_value_model_from_the_reward_model(env, tmp_path):
    run = env.build(tmp_path, reward=env.reward, value="reward")
    assert run.value.origin == "reward-model" and value_fact(run).startswith("reward-model: as asked; ")
    scorer = run.collector.reward.model
    start = tiny.weights(scorer)
    assert tiny.differing(start, run.value.classifier) == []
    assert all(p.requires_grad for p in run.value.parameters())
    run.updater(tiny.batch_of(run), 1)
    assert tiny.differing(start, run.value.classifier)
    assert tiny.differing(start, scorer) == []  # the reward model is another copy, and frozen
    assert not any(p.requires_grad for p in scorer.parameters())


def other_words(folder, **changes):
    """A reward model of another, smaller vocabulary."""
    return tiny.save(folder, tiny.classifier(vocab_size=6, eos_token_id=5, **changes), tiny.tokenizer(["a", "b", "c", "p", "x", "<eos>"]))


def test_the_automatic_choice_and_its_reason(env, tmp_path):
    runs = {
        "function": env.build(tmp_path, reward="tinyreward.score"),
        "same": env.build(tmp_path, reward=env.reward),
        "other": env.build(tmp_path, reward=other_words(tmp_path / "other")),
    }
    facts = {name: value_fact(run) for name, run in runs.items()}
    assert facts["function"].startswith("policy: the reward is a function, there is no reward model to start from; ")
    assert facts["same"].startswith("reward-model: the reward model has the policy's vocabulary; ")
    assert facts["other"].startswith("policy: the reward model has another vocabulary: 6 tokens (")


def test_an_encoder_scores_but_cannot_be_the_value_model(env, tmp_path):
    torch.manual_seed(0)
    path = tiny.save(tmp_path / "encoder", BertForSequenceClassification(BertConfig(**SMALL, num_labels=1)))
    run = env.build(tmp_path, reward=path)
    assert value_fact(run).startswith(f"policy: model:{path} is an encoder: it sees later tokens; ")
    assert tiny.collect(run).scores.unique().numel() > 1
    lines = refusal(lambda: env.build(tmp_path, reward=path, value="reward"))
    assert lines[0] == f"error: value=reward needs a decoder, and model:{path} sees later tokens"


def test_a_value_model_from_a_reward_model_of_another_vocabulary_is_refused(env, tmp_path):
    path = other_words(tmp_path / "other")
    kind = type(AutoTokenizer.from_pretrained(path)).__name__
    assert refusal(lambda: env.build(tmp_path, reward=path, value="reward")) == [
        "error: value=reward needs a reward model of the policy's vocabulary",
        f"  why:  policy: 8 tokens ({kind} of {env.policy})",
        f"        reward model: 6 tokens ({kind} of {path})",
        "  try:  value=policy",
    ]


def test_the_same_words_under_other_ids_are_another_vocabulary(env, tmp_path):
    path = tiny.save(tmp_path / "moved", tiny.classifier(), tiny.tokenizer(["b", "a", *tiny.WORDS[2:]]))
    lines = refusal(lambda: env.build(tmp_path, reward=path, value="reward"))
    assert lines[0] == "error: value=reward needs a reward model of the policy's vocabulary"


# --- refused checkpoints


def first_line(env, tmp_path, **changes) -> str:
    return refusal(lambda: env.build(tmp_path, **changes))[0]


def test_an_encoder_is_no_policy(env, tmp_path):
    path = tiny.save(tmp_path / "bert", BertForMaskedLM(BertConfig(**SMALL)))
    assert first_line(env, tmp_path, policy=path) == f"error: the policy {path} (BertForMaskedLM) sees later tokens: it is an encoder"
    small = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "vocab_size": 8, "pad_token_id": 7}
    path = tiny.save(tmp_path / "distil", DistilBertForMaskedLM(DistilBertConfig(**small)))
    lines = refusal(lambda: env.build(tmp_path, policy=path))
    assert lines[0] == f"error: the policy {path} is DistilBertForMaskedLM, not a decoder"
    assert lines[1].startswith("  try:  a decoder-only language model (AutoModelForCausalLM)")


def test_an_encoder_decoder_is_no_policy(env, tmp_path):
    t5 = T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=8, pad_token_id=7, decoder_start_token_id=7)
    path = tiny.save(tmp_path / "t5", T5ForConditionalGeneration(t5))
    assert first_line(env, tmp_path, policy=path) == f"error: the policy {path} is T5ForConditionalGeneration, not a decoder"


def rewritten(source, folder, change):
    """A copy of a model folder with its tensors changed."""
    tensors = load_file(source / "model.safetensors")
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_value_head_checkpoint_is_no_policy(env, tmp_path):
    head = {"v_head.summary.weight": torch.zeros(1, 32), "v_head.summary.bias": torch.zeros(1)}
    path = rewritten(env.policy, tmp_path / "head", lambda t: {**t, **head})
    assert first_line(env, tmp_path, policy=path) == f"error: the policy {path} is a checkpoint with a value head"


def test_a_classifier_is_no_policy(env, tmp_path):
    path = tiny.save(tmp_path / "untied", tiny.classifier(tie_word_embeddings=False))
    assert first_line(env, tmp_path, policy=path).startswith(f"error: the policy {path} ")


def test_a_checkpoint_that_lacks_weights_is_refused(env, tmp_path):
    path = rewritten(env.llama, tmp_path / "lacks", lambda t: {k: v for k, v in t.items() if "layers.1.mlp.up" not in k})
    assert first_line(env, tmp_path, policy=path) == f"error: the policy {path} lacks weights: model.layers.1.mlp.up_proj.weight"


def test_a_language_model_is_no_reward_model(env, tmp_path):
    line = first_line(env, tmp_path, reward=env.policy)
    assert line == f"error: the reward model {env.policy} is a GPT2LMHeadModel: its score head is missing"


@pytest.mark.parametrize("architectures", [["GPT2ForSequenceClassification"], None])
def test_a_reward_model_without_its_head_is_refused(env, tmp_path, architectures):
    path = rewritten(env.reward, tmp_path / "headless", lambda t: {k: v for k, v in t.items() if k != "score.weight"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architectures": architectures}))
    assert first_line(env, tmp_path, reward=path) == f"error: the reward model {path} lacks weights: score.weight"


@pytest.mark.parametrize("labels", [2, 5])
def test_a_reward_model_has_one_label(env, tmp_path, labels):
    path = tiny.save(tmp_path / "labels", tiny.classifier(labels=labels))
    assert first_line(env, tmp_path, reward=path) == f"error: the reward model {path} has {labels} labels, expected 1"


@pytest.mark.parametrize("what", ["policy", "reward"])
def test_pickled_weights_are_refused(env, tmp_path, what):
    source, model = (env.policy, tiny.gpt2()) if what == "policy" else (env.reward, tiny.classifier())
    path = tmp_path / "pickled"
    path.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (path / file.name).write_bytes(file.read_bytes())
    torch.save(model.state_dict(), path / "pytorch_model.bin")
    lines = refusal(lambda: env.build(tmp_path, **{what: path}))
    assert lines[0] == f"error: the {'policy' if what == 'policy' else 'reward model'} {path} cannot be loaded"
    assert "safetensors" in lines[1]


def test_a_folder_that_is_not_there(env, tmp_path):
    assert refusal(lambda: env.build(tmp_path, policy=tmp_path / "nowhere")) == [
        f"error: no policy at {tmp_path / 'nowhere'}", "  why:  there is no such folder", "  try:  model=hf:PATH_OR_HUB_ID",
    ]  # fmt: skip


# --- ids the models can embed


def ids_seen(module) -> list[int]:
    """Every id that reaches an embedding from now on."""
    seen: list[int] = []
    module.get_input_embeddings().register_forward_pre_hook(lambda _, args: seen.extend(args[0].flatten().tolist()))
    return seen


@pytest.mark.parametrize("pad", ["<pad>", None])
@pytest.mark.parametrize("model", [tiny.gpt2, tiny.llama])
def test_no_id_passes_the_embeddings(env, tmp_path, pad, model):
    # a pad token that was added to the tokenizer and not to the model, or none at all
    path = tiny.save(tmp_path / "policy", model(pad_token_id=None), tiny.tokenizer(pad=pad))
    assert AutoTokenizer.from_pretrained(path).pad_token_id == {"<pad>": 8, None: None}[pad]
    scorer = tiny.save(tmp_path / "reward", tiny.classifier(), tiny.tokenizer(pad=pad))
    run = env.build(tmp_path, policy=path, reward=scorer, value="policy")
    c = run.collector
    assert c.sampler.pad_id == tiny.EOS
    seen = [ids_seen(m) for m in (c.lm, c.reference.lm, run.value.classifier, c.reward.model)]
    run.updater(tiny.batch_of(run), 1)
    assert all(ids and max(ids) < 8 for ids in seen)


def test_the_pad_id_is_the_tokenizers_where_the_model_can_embed_it(env):
    source = policy_source(env.policy)
    assert models.pad_id(source, (3,), 8) == 7
    assert models.pad_id(source, (3,), 7) == 3  # the tokenizer's 7 is past 7 rows
    assert models.pad_id(replace(source, tokenizer=SimpleNamespace(pad_token_id=None)), (), 8) == 0


@pytest.mark.parametrize("model", [tiny.gpt2, tiny.llama])
def test_a_value_model_without_a_pad_id_trains_every_embedding(env, tmp_path, model):
    path = tiny.save(tmp_path / "policy", model(pad_token_id=None), tiny.tokenizer(pad=None))
    run = env.build(tmp_path, policy=path, rollout={"prompts_per_step": 24})
    seen, batch = tiny.watch(run), tiny.batch_of(run)
    assert (batch.sequences.response_ids[batch.loss_mask] == 0).any()
    run.updater(batch, 1)
    (gradient,) = (g for n, g in seen.gradients[0].items() if n.startswith("value.") and ("wte" in n or "embed_tokens" in n))
    assert gradient[0].any()  # token 0 is a word like any other


# --- forward passes


@pytest.mark.parametrize("model", ["policy", "llama"])
@pytest.mark.parametrize("size", [1, 3])
def test_logits_exist_for_response_positions_of_one_microbatch_only(env, tmp_path, model, size):
    run = env.build(tmp_path, policy=getattr(env, model), optim={"microbatch_size": size}, algo={"minibatches": 2})
    r = tiny.collect(run)
    batch, _ = run.algorithm.prepare(r, 0.05, lambda x: x)
    shapes: dict[str, list] = {"policy": [], "reference": []}
    for name, lm in (("policy", run.collector.lm), ("reference", run.collector.reference.lm)):
        lm.lm_head.register_forward_hook(lambda _, __, out, n=name: shapes[n].append(tuple(out.shape)))
    run.collector._per_token(lambda s: (run.collector.policy(s, 1.0).logprobs,), r.sequences)
    run.collector._per_token(lambda s: (run.collector.reference(s, 1.0).logprobs,), r.sequences)
    run.updater(batch, 1)
    longest = int(r.mask.sum(1).max())
    assert sum(rows for rows, _, _ in shapes["reference"]) == 8 and sum(rows for rows, _, _ in shapes["policy"]) == 16
    for rows, width, words in shapes["policy"] + shapes["reference"]:
        assert rows <= size and width <= longest and words == 8
    if size == 1:  # alone, a row has no padding at all
        assert sum(width for _, width, _ in shapes["reference"]) == int(r.mask.sum())


def test_is_causal():
    torch.manual_seed(0)
    assert models.is_causal(tiny.gpt2()) and models.is_causal(tiny.llama()) and models.is_causal(tiny.classifier())
    assert not models.is_causal(BertForMaskedLM(BertConfig(**SMALL)).eval())


def test_dropout_is_off_also_in_train_mode():
    ids = torch.tensor([[1, 2, 3]])
    for model in (tiny.gpt2(), tiny.llama(attention_dropout=0.5), tiny.classifier()):
        model.train()
        runs = lambda m=model: torch.equal(m.base_model(ids).last_hidden_state, m.base_model(ids).last_hidden_state)  # noqa: E731
        assert not runs()
        models.disable_dropout(model)
        assert runs()


# --- the reward model

TEXTS = ["p a b", "c", "a a <eos> b c d", "p f e d"]


def alone(path, ids: list[int]) -> float:
    """What transformers itself says of one text, without padding."""
    model = GPT2ForSequenceClassification.from_pretrained(path).eval()
    assert model.config.pad_token_id is None
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0, 0].item()


def ids_of(text: str) -> list[int]:
    return [tiny.WORDS.index(w) for w in text.split()]


@pytest.mark.parametrize("append", ["never", "always"])
def test_a_batch_scores_as_each_text_alone(env, append):
    # the pad is the end token, and the config of the model has no pad at all
    assert AutoConfig.from_pretrained(env.reward).pad_token_id is None
    rm = reward_model(env, env.reward, append_eos=AppendEos(append))
    batch = rm.score(tiny.samples(TEXTS))
    one_by_one = [rm.score(tiny.samples([t]))[0] for t in TEXTS]
    end = [tiny.EOS] if append == "always" else []
    wanted = [alone(env.reward, ids_of(t) + end) for t in TEXTS]
    assert batch == pytest.approx(one_by_one, abs=1e-5)
    assert batch == pytest.approx(wanted, abs=1e-5)
    assert len({round(s, 3) for s in batch}) == 4


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_order_of_scores_is_that_of_the_samples(env, size):
    whole = reward_model(env, env.reward).score(tiny.samples(TEXTS))
    assert reward_model(env, env.reward, batch_size=size).score(tiny.samples(TEXTS)) == pytest.approx(whole, abs=1e-5)


def test_an_encoder_scores_as_it_does_alone(env, tmp_path):
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**SMALL, num_labels=1)).eval()
    rm = reward_model(env, tiny.save(tmp_path / "encoder", model), append_eos=AppendEos.never)
    with torch.no_grad():
        wanted = [model(input_ids=torch.tensor([ids_of(t)])).logits[0, 0].item() for t in TEXTS]
    assert rm.score(tiny.samples(TEXTS)) == pytest.approx(wanted, abs=1e-5)


def test_a_reward_model_of_another_vocabulary_reads_text(env, tmp_path):
    path = other_words(tmp_path / "other")
    rm = reward_model(env, path)
    seen = ids_seen(rm.model)
    assert rm.score(tiny.samples(["b p"])) == pytest.approx([alone(path, [1, 3])], abs=1e-5)
    run = env.build(tmp_path, reward=path)
    run.updater(tiny.batch_of(run), 1)
    assert seen == [1, 3]


def test_dropout_of_a_reward_model_is_off(env):
    rm = reward_model(env, env.reward)
    assert rm.model.config.resid_pdrop == 0.1
    first = rm.score(tiny.samples(TEXTS))
    rm.model.train()
    assert rm.score(tiny.samples(TEXTS)) == first


def test_too_long_a_text_loses_its_front(env):
    for limit in (1, 3):
        rm = reward_model(env, env.reward, max_length=limit, append_eos=AppendEos.never)
        assert rm.score(tiny.samples(["a b c d e"])) == pytest.approx([alone(env.reward, [0, 1, 2, 3, 4][-limit:])], abs=1e-5)
    rm = reward_model(env, env.reward, max_length=3, append_eos=AppendEos.always)
    assert rm.score(tiny.samples(["a b c d e"])) == pytest.approx([alone(env.reward, [3, 4, tiny.EOS])], abs=1e-5)


def test_the_context_of_the_model_is_a_limit_too(env):
    rm = reward_model(env, env.reward, append_eos=AppendEos.never)
    text = " ".join(["a", "b"] * 30)
    assert rm.score(tiny.samples([text])) == pytest.approx([alone(env.reward, ids_of(text)[-32:])], abs=1e-5)


@pytest.mark.parametrize(
    ("append", "same_words", "truncated", "closed"),
    [
        ("auto", True, False, True), ("auto", True, True, False), ("auto", False, False, False),
        ("always", False, False, True), ("always", True, True, False), ("never", True, False, False),
    ],
)  # fmt: skip
def test_which_texts_are_closed_by_the_end_token(env, tmp_path, append, same_words, truncated, closed):
    path = env.reward if same_words else other_words(tmp_path / "other")
    rm = reward_model(env, path, append_eos=AppendEos(append))
    ids = rm.encode(tiny.samples(["p a"], [truncated]), 0)
    end = tiny.EOS if same_words else 5
    assert ids == rm.tokenizer("p a")["input_ids"] + ([end] if closed else [])


def test_a_text_that_ends_already_is_not_closed_twice(env):
    rm = reward_model(env, env.reward, append_eos=AppendEos.always)
    assert rm.encode(tiny.samples(["p a <eos>"]), 0) == [6, 0, 7]


# activations computed anew


def test_activations_are_recomputed_under_the_name_that_this_transformers_has():
    lm = tiny.llama()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the old name warns
        models.recompute_activations(lm)
    assert lm.is_gradient_checkpointing


def test_activations_are_recomputed_where_only_the_old_name_is_known():
    asked = []
    old = type("Old", (), {"gradient_checkpointing_enable": lambda _, kwargs: asked.append(kwargs)})()
    models.recompute_activations(old)
    assert asked == [{"use_reentrant": False}]
