"""Rows to prompts: what is read, how it becomes token ids, what is too long, and which prompts a step takes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from rlctl import builtin
from rlctl.collect import response_text
from rlctl.config.schema import Config, DataConfig, ModelConfig, Overlong, RolloutConfig
from rlctl.data import Prompt, Prompts, build_prompts, context_length, decode, prompt_limit, read_rows
from rlctl.errors import ConfigError, DataError, RlctlError

WORDS = ["<unk>", "<bos>", "<eos>", "<pad>", "<think>", "[user]", "[assistant]", *"abcdefgh"]
UNK, BOS, EOS, PAD, THINK, USER, ASSISTANT, A, B, C, D, E, F, G, H = range(15)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def _tokenizer(template: str | None = None, closes: bool = False, bare: bool = False, pad: str = "<pad>") -> Any:
    """One token a word; adds <bos> in front, and <eos> behind if it closes; adds nothing if bare."""
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    form = "<bos> $A <eos>" if closes else "<bos> $A"
    if not bare:
        core.post_processor = processors.TemplateProcessing(single=form, special_tokens=[("<bos>", BOS), ("<eos>", EOS)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>", pad_token=pad,
        additional_special_tokens=["<think>"], chat_template=template,
    )  # fmt: skip
    return tokenizer


def _jsonl(folder: Path, rows: list[dict[str, Any]]) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def _config(path: str, new: int = 4, seed: int = 0, **data: Any) -> Config:
    rollout, model = RolloutConfig(max_new_tokens=new), ModelConfig(path="the-model")
    return Config(seed=seed, data=DataConfig(path=path, **data), rollout=rollout, model=model)


def _prompts(folder: Path, values: list[Any], tokenizer: Any = None, context: int | None = None, **keys: Any) -> Prompts:
    config = _config(_jsonl(folder, [{"prompt": v} for v in values]), **keys)
    return build_prompts(config, tokenizer or _tokenizer(), context)


def _refused(kind: type[RlctlError], call: Any) -> list[str]:
    with pytest.raises(kind) as caught:
        call()
    return caught.value.lines()


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# reading


ROWS = [{"prompt": "a b", "answer": "1"}, {"prompt": "c", "answer": "2"}, {"prompt": "d, e", "answer": "x"}]


def _as_csv(folder: Path) -> str:
    (folder / "p.csv").write_text('prompt,answer\na b,1\nc,2\n"d, e",x\n')
    return str(folder / "p.csv")


def _as_parquet(folder: Path) -> str:
    datasets.Dataset.from_list(ROWS).to_parquet(folder / "p.parquet")
    return str(folder / "p.parquet")


def _as_folder(folder: Path) -> str:
    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "saved")
    return str(folder / "saved")


def _as_splits(folder: Path) -> str:
    rows = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(folder / "splits")
    return str(folder / "splits")


def _as_json(folder: Path) -> str:
    (folder / "p.json").write_text(json.dumps(ROWS))
    return str(folder / "p.json")


@pytest.mark.parametrize("write", [lambda f: _jsonl(f, ROWS), _as_json, _as_csv, _as_parquet, _as_folder, _as_splits])
def test_every_form_of_data_reads_alike(tmp_path, write):
    assert read_rows(DataConfig(path=write(tmp_path))) == ROWS


def test_a_split_is_chosen(tmp_path):
    assert read_rows(DataConfig(path=_as_splits(tmp_path), split="test")) == ROWS[:1]
    assert _refused(DataError, lambda: read_rows(DataConfig(path=_as_splits(tmp_path), split="nosuch"))) == [
        f"error: data {tmp_path / 'splits'} has several splits",
        "  why:  there are: train, test",
        "  try:  data.split=train",
    ]


def test_the_built_in_prompts():
    rows = read_rows(DataConfig())
    assert len(rows) > 100
    assert set(rows[0]) == {"prompt", "reference", "answer", "kind"}


def test_a_limit_takes_the_first_rows(tmp_path):
    path = _jsonl(tmp_path, ROWS)
    assert read_rows(DataConfig(path=path, limit=2)) == ROWS[:2]
    assert read_rows(DataConfig(path=path, limit=9)) == ROWS


def test_a_wrong_prompt_column_lists_the_columns(tmp_path):
    path = _jsonl(tmp_path, ROWS)
    assert _refused(DataError, lambda: read_rows(DataConfig(path=path, prompt_column="question"))) == [
        f"error: data {path} has no column 'question'",
        "  why:  its columns are: prompt, answer",
        "  try:  data.prompt_column=prompt",
    ]


def test_data_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("/nosuch/p.jsonl", "p.csv", "./folder"):
        assert _refused(DataError, lambda path=path: read_rows(DataConfig(path=path))) == [
            f"error: no data at {path}",
            f"  why:  there is no such file or folder (looked from {tmp_path})",
            "  try:  data=file:PATH or data=hf:NAME",
        ]


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "p.txt"
    path.write_text("a\n")
    assert _refused(DataError, lambda: read_rows(DataConfig(path=str(path)))) == [
        f"error: cannot read {path}",
        "  why:  known endings: .jsonl, .json, .csv, .parquet",
    ]


def test_an_empty_or_broken_file_is_named(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("prompt,answer\n")
    assert _refused(DataError, lambda: read_rows(DataConfig(path=str(path)))) == [f"error: data {path} has no rows"]
    broken = tmp_path / "b.jsonl"
    broken.write_text("{no json\n")
    assert _refused(DataError, lambda: read_rows(DataConfig(path=str(broken))))[0] == f"error: data {broken} cannot be loaded"


# text prompts


@pytest.mark.parametrize("closes", [False, True])
def test_a_text_prompt_has_the_tokenizers_own_bos_once_and_no_trailing_eos(tmp_path, closes):
    (prompt,) = _prompts(tmp_path, ["a b c"], _tokenizer(closes=closes)).items
    assert prompt == Prompt(0, [BOS, A, B, C], "a b c", None, {})


def test_an_end_token_that_the_prompt_itself_ends_with_stays(tmp_path):
    (prompt,) = _prompts(tmp_path, ["a <eos>"], _tokenizer()).items
    assert prompt.ids == [BOS, A, EOS]


def test_a_tokenizer_that_adds_nothing(tmp_path):
    assert _prompts(tmp_path, ["a b"], _tokenizer(bare=True)).items[0].ids == [A, B]


def test_the_built_in_tokenizer_is_used_as_it_is(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(builtin.path("policy"))
    (prompt,) = _prompts(tmp_path, ["The soup was"], tokenizer).items
    assert prompt.ids == tokenizer("The soup was")["input_ids"]
    assert prompt.ids[-1] != tokenizer.eos_token_id


def test_other_columns_go_with_their_prompt(tmp_path):
    path = _jsonl(tmp_path, [{"answer": 1, "q": "a", "more": [1]}, {"answer": 2, "q": "b", "more": []}])
    prompts = build_prompts(_config(path, prompt_column="q"), _tokenizer(), None)
    assert [(p.text, p.columns) for p in prompts.items] == [("a", {"answer": 1, "more": [1]}), ("b", {"answer": 2, "more": []})]
    assert prompts.columns == ["answer", "more"]


@pytest.mark.parametrize("bare", [True, False], ids=["no bos", "bos"])
def test_an_empty_prompt_names_its_row(tmp_path, bare):
    assert _refused(DataError, lambda: _prompts(tmp_path, ["a", ""], _tokenizer(bare=bare))) == [
        "error: row 1 has an empty prompt",
        "  why:  column 'prompt' holds ''",
    ]


@pytest.mark.parametrize("value", [None, 3.5])
def test_a_cell_that_is_no_prompt_names_its_row(tmp_path, value):
    path = _jsonl(tmp_path, [{"prompt": value}])
    assert _refused(DataError, lambda: build_prompts(_config(path), _tokenizer(), None)) == [
        "error: row 0 has no usable prompt",
        f"  why:  column 'prompt' holds {value!r}; expected a text or a list of messages {{role, content}}",
    ]


@pytest.mark.parametrize("value", [[], [{"content": "a"}], ["a", "b"]], ids=str)
def test_a_list_that_is_no_chat_names_its_row(tmp_path, value):
    got = _refused(DataError, lambda: _prompts(tmp_path, [value], _tokenizer(TEMPLATE)))
    assert got[0] == "error: row 0 has no usable prompt"


# chat prompts


def test_chat_goes_through_the_template_with_a_generation_prompt(tmp_path):
    tokenizer = _tokenizer(TEMPLATE)
    (prompt,) = _prompts(tmp_path, [_user("a b")], tokenizer).items
    assert prompt.ids == [BOS, USER, A, B, ASSISTANT]
    assert prompt.messages == _user("a b")
    assert prompt.text == decode(tokenizer, [USER, A, B, ASSISTANT])


def test_chat_of_several_turns(tmp_path):
    turns = [*_user("a"), {"role": "assistant", "content": "b"}, *_user("c")]
    assert _prompts(tmp_path, [turns], _tokenizer(TEMPLATE)).items[0].ids == [BOS, USER, A, ASSISTANT, B, USER, C, ASSISTANT]


def test_chat_under_a_tokenizer_that_closes_every_text_is_not_closed(tmp_path):
    assert _prompts(tmp_path, [_user("a")], _tokenizer(TEMPLATE, closes=True)).items[0].ids == [BOS, USER, A, ASSISTANT]


def test_chat_without_any_template_is_refused_and_not_joined_by_hand(tmp_path):
    config = _config(_jsonl(tmp_path, [{"prompt": _user("a")}]))
    assert _refused(ConfigError, lambda: build_prompts(config, _tokenizer(), None)) == [
        "error: the prompts are chat messages and the policy's tokenizer has no chat template",
        f"  why:  row 0 of {config.data.path}",
        "  try:  data.chat_template=FILE.jinja, or a chat model: model=hf:PATH",
    ]


@pytest.mark.parametrize("own", [None, TEMPLATE])
def test_a_template_file_takes_the_place_of_the_tokenizers_own(tmp_path, own):
    file = tmp_path / "chat.jinja"
    file.write_text("{% for m in messages %}{{ m['content'] }} h {% endfor %}{% if add_generation_prompt %}g{% endif %}")
    (prompt,) = _prompts(tmp_path, [_user("a b")], _tokenizer(own), chat_template=str(file)).items
    assert prompt.ids == [A, B, H, G]


def test_a_template_file_that_is_not_there(tmp_path):
    missing = str(tmp_path / "nosuch.jinja")
    got = _refused(RlctlError, lambda: _prompts(tmp_path, [_user("a")], _tokenizer(TEMPLATE), chat_template=missing))
    assert missing in got[0]


def test_text_is_wrapped_as_chat_only_when_asked(tmp_path):
    tokenizer = _tokenizer(TEMPLATE)
    (wrapped,) = _prompts(tmp_path, ["a b"], tokenizer, wrap_as_chat=True).items
    assert (wrapped.ids, wrapped.messages) == ([BOS, USER, A, B, ASSISTANT], _user("a b"))
    (bare,) = _prompts(tmp_path, ["a b"], tokenizer).items
    assert (bare.ids, bare.messages) == ([BOS, A, B], None)


def test_an_empty_text_wrapped_as_chat_names_its_row(tmp_path):
    got = _refused(DataError, lambda: _prompts(tmp_path, ["a", ""], _tokenizer(TEMPLATE), wrap_as_chat=True))
    assert got[0] == "error: row 1 has an empty prompt"


# limits


LONG = ["a", "a b c d e f", "b c"]


def test_the_limit_is_what_the_context_leaves():
    assert prompt_limit(_config("x", new=4), 10) == 6
    assert prompt_limit(_config("x", new=4), None) is None
    assert prompt_limit(_config("x", new=4, max_prompt_tokens=5), 10) == 5
    assert prompt_limit(_config("x", new=4, max_prompt_tokens=5), None) == 5


def test_a_limit_that_passes_the_context_is_refused():
    config = _config("x", new=4, max_prompt_tokens=7)
    assert _refused(ConfigError, lambda: prompt_limit(config, 10)) == [
        "error: data.max_prompt_tokens=7 and rollout.max_new_tokens=4 together pass the context of 10 tokens",
        "  try:  data.max_prompt_tokens=6",
    ]


def test_a_response_that_leaves_no_room_is_refused():
    assert _refused(ConfigError, lambda: prompt_limit(_config("x", new=10), 10)) == [
        "error: rollout.max_new_tokens=10 leaves no room for a prompt",
        "  why:  the context of the-model is 10 tokens",
        "  try:  rollout.max_new_tokens=5",
    ]


def test_context_length_is_read_from_any_usual_name():
    assert context_length(LlamaConfig(max_position_embeddings=77)) == 77
    assert context_length(type("Config", (), {"n_positions": 9})()) == 9
    assert context_length(object()) is None


@pytest.mark.parametrize("form", ["text", "chat"])
def test_a_prompt_that_is_too_long_is_named(tmp_path, form):
    values, template = (LONG, None) if form == "text" else ([_user(v) for v in LONG], TEMPLATE)
    length = 7 if form == "text" else 9
    got = _refused(DataError, lambda: _prompts(tmp_path, values, _tokenizer(template), max_prompt_tokens=5))
    assert got[0] == f"error: the prompt of row 1 has {length} tokens, the limit is 5"
    assert got[1].startswith(
        "  why:  the limit is data.max_prompt_tokens, or what the model's context leaves beside rollout.max_new_tokens=4; "
        "the prompt begins: '"
    )
    assert got[2:] == ["  try:  data.overlong=drop leaves such rows out, data.overlong=cut removes their front"]


def test_the_context_of_the_model_is_a_limit_too(tmp_path):
    got = _refused(DataError, lambda: _prompts(tmp_path, LONG, context=10, new=5))
    assert got[0] == "error: the prompt of row 1 has 7 tokens, the limit is 5"
    assert len(_prompts(tmp_path, LONG, context=12, new=5)) == 3


def test_drop_leaves_rows_out_and_counts_them(tmp_path):
    prompts = _prompts(tmp_path, LONG, overlong=Overlong.drop, max_prompt_tokens=5)
    assert [p.row for p in prompts.items] == [0, 2]
    assert prompts.dropped == 1


def test_all_dropped_is_an_error(tmp_path):
    assert _refused(DataError, lambda: _prompts(tmp_path, LONG[1:2], overlong=Overlong.drop, max_prompt_tokens=2)) == [
        "error: all 1 prompts are longer than 2 tokens",
        "  try:  data.overlong=cut",
    ]


def test_cut_keeps_the_last_tokens(tmp_path):
    prompts = _prompts(tmp_path, LONG, overlong=Overlong.cut, max_prompt_tokens=3)
    assert [p.ids for p in prompts.items] == [[BOS, A], [D, E, F], [BOS, B, C]]
    assert [p.text for p in prompts.items] == ["a", "d e f", "b c"]
    assert prompts.dropped == 0


def test_cut_of_a_chat_keeps_the_generation_prompt_and_the_row_keeps_its_columns(tmp_path):
    path = _jsonl(tmp_path, [{"prompt": _user("a b c d"), "answer": "1"}])
    config = _config(path, overlong=Overlong.cut, max_prompt_tokens=3)
    (prompt,) = build_prompts(config, _tokenizer(TEMPLATE), None).items
    assert prompt.ids == [C, D, ASSISTANT]
    assert prompt.columns == {"answer": "1"}


# which prompts a step takes


def _order(n: int = 10, seed: int = 0, shuffle: bool = True) -> Prompts:
    return Prompts([Prompt(i, [i], str(i), None, {}) for i in range(n)], [], 0, shuffle, seed)


def _taken(prompts: Prompts, steps: range, per_step: int) -> list[int]:
    return [p.row for step in steps for p in prompts.at(step, per_step)]


@pytest.mark.parametrize("per_step", [1, 3, 4, 7, 10, 13, 25])
def test_every_step_has_exactly_its_prompts_and_every_epoch_each_prompt_once(per_step):
    prompts = _order(10)
    assert all(len(prompts.at(step, per_step)) == per_step for step in range(1, 12))
    rows = _taken(prompts, range(1, 41), per_step)
    for epoch in range(len(rows) // 10):
        assert sorted(rows[epoch * 10 : epoch * 10 + 10]) == list(range(10))


def test_the_order_does_not_depend_on_how_many_a_step_takes():
    assert _taken(_order(), range(1, 13), 5) == _taken(_order(), range(1, 5), 15)


def test_epochs_have_different_orders():
    rows = _taken(_order(), range(1, 4), 10)
    assert rows[:10] != list(range(10))
    assert rows[:10] != rows[10:20] != rows[20:30]


def test_the_order_is_by_the_seed_alone():
    before = _taken(_order(seed=0), range(1, 5), 10)
    random.seed(99)
    torch.manual_seed(99)
    random.random()
    torch.rand(3)
    assert _taken(_order(seed=0), range(1, 5), 10) == before
    assert _taken(_order(seed=1), range(1, 5), 10) != before


def test_taking_prompts_leaves_the_global_generators_alone():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    _order().at(1, 10)
    assert random.random() == expected


def test_without_shuffling_the_order_is_the_files():
    assert _taken(_order(shuffle=False), range(1, 5), 4) == [*range(10), *range(6)]


def test_a_step_can_be_taken_without_those_before_it():
    assert _taken(_order(), range(7, 8), 3) == _taken(_order(), range(1, 8), 3)[-3:]


# the text of a response


def _response(tokenizer: Any, prompt: list[int], response: list[int], keep: bool = False) -> str:
    return response_text(tokenizer, prompt, response, keep)


def test_a_response_keeps_its_leading_blank():
    tokenizer = AutoTokenizer.from_pretrained(builtin.path("policy"))
    prompt = tokenizer("The soup was")["input_ids"]
    response = tokenizer("The soup was good.")["input_ids"][len(prompt) :]
    assert _response(tokenizer, prompt, response) == " good."


def test_a_response_of_words_keeps_its_leading_blank():
    tokenizer = _tokenizer()
    assert _response(tokenizer, [BOS, A], [B, C]) == " b c"
    assert decode(tokenizer, [B, C]) == "b c"


@pytest.mark.parametrize("pad", ["<pad>", "<eos>"], ids=["own pad", "pad is eos"])
@pytest.mark.parametrize(("keep", "shown"), [(False, " b"), (True, " <think> b <eos>")])
def test_special_tokens_are_shown_only_when_kept(pad, keep, shown):
    tokenizer = _tokenizer(pad=pad)
    assert THINK in tokenizer.all_special_ids
    assert _response(tokenizer, [BOS, A], [THINK, B, EOS], keep) == shown


@pytest.mark.parametrize("pad", ["<pad>", "<eos>"], ids=["own pad", "pad is eos"])
@pytest.mark.parametrize(("keep", "expected"), [(False, [" b", " b c d"]), (True, [" b <eos>", " b c d"])])
def test_padding_is_never_shown_and_a_cut_response_has_no_end(tmp_path, pad, keep, expected):
    """Through the collector, from a padded batch: one response ended early, one was cut."""
    assert _texts(_tokenizer(pad=pad), keep, [[B, EOS], [B, C, D]]) == expected


def _texts(tokenizer: Any, keep: bool, responses: list[list[int]]) -> list[str]:
    from dataclasses import replace
    from types import SimpleNamespace

    from rlctl.collect import Collector
    from rlctl.config.schema import FunctionRewardConfig
    from rlctl.rollout import Sequences
    from rlctl.tensors import left_pad, right_pad

    config = replace(Config(), reward=FunctionRewardConfig(keep_special_tokens=keep))
    prompts = [Prompt(i, [BOS, A], "a", None, {}) for i in range(len(responses))]
    prompt_ids, prompt_mask = left_pad([p.ids for p in prompts], tokenizer.pad_token_id)
    ids, mask = right_pad(responses, tokenizer.pad_token_id)
    sequences = Sequences(prompt_ids, prompt_mask, ids, mask)
    truncated = torch.tensor([r[-1] != EOS for r in responses])
    seen = SimpleNamespace(config=config, tokenizer=tokenizer)
    samples = Collector._texts(seen, prompts, sequences, truncated)  # type: ignore[arg-type]
    assert samples.texts == [p + r for p, r in zip(samples.prompts, samples.responses, strict=True)]
    return samples.responses


def test_a_character_that_straddles_the_seam_is_decoded_all_the_same():
    """Bytes of one character on both sides: the response alone is all that can be shown."""
    core = Tokenizer(models.BPE(vocab={"Ã": 0, "©": 1, "a": 2}, merges=[]))
    from tokenizers import decoders

    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    assert decode(tokenizer, [0, 1]) == "é"
    assert _response(tokenizer, [2, 0], [1, 2]) == decode(tokenizer, [1, 2])
