"""What a reward is handed and what it may give back: Python functions and reward models."""

from __future__ import annotations

import importlib
import math
import socket
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from rlctl import builtin
from rlctl.config.schema import AppendEos, FunctionFormat, FunctionRewardConfig, ModelConfig, ModelRewardConfig
from rlctl.errors import ModelError, RewardError
from rlctl.models import Source, open_source
from rlctl.rewards.base import checked, shorten
from rlctl.rewards.function import FunctionReward
from rlctl.rewards.importing import load_function
from rlctl.rewards.model import NEEDS_CLASSIFIER, ModelReward
from rlctl.rollout import Samples

CHAT = [[{"role": "user", "content": "2 + 2"}], [{"role": "user", "content": "3 + 3"}]]


def _samples(chat: bool = False, **columns: list[Any]) -> Samples:
    prompts, responses = ["2 + 2 =", "3 + 3 ="], [" 4", " 7"]
    texts = [p + r for p, r in zip(prompts, responses, strict=True)]
    return Samples(prompts, responses, texts, columns, CHAT if chat else None, [False, True])


def _reward(function: Callable[..., Any], form: FunctionFormat = FunctionFormat.auto) -> FunctionReward:
    return FunctionReward(FunctionRewardConfig(path="mypkg.f", format=form), function)


def _given(function: Callable[..., Any], samples: Samples, form: FunctionFormat = FunctionFormat.auto) -> dict[str, Any]:
    """What the function is called with, by calling it."""
    seen: dict[str, Any] = {}
    function.seen = seen  # type: ignore[attr-defined]
    assert _reward(function, form).score(samples) == [0.0, 0.0]
    return seen


def _refused(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(RewardError) as caught:
        call()
    assert caught.value.exit_status == 3
    return caught.value.lines()


# what a function is called with


ZEROS = [0.0, 0.0]


def takes_texts(texts):
    takes_texts.seen.update(texts=texts)
    return ZEROS


def takes_anything(whatever_it_is_called):
    takes_anything.seen.update(texts=whatever_it_is_called)
    return ZEROS


def takes_anything_and_more(outputs, weight=2.0, **kwargs):
    takes_anything_and_more.seen.update(texts=outputs)
    return ZEROS


def takes_positional(texts, /):
    takes_positional.seen.update(texts=texts)
    return ZEROS


def takes_keyword_only(*, texts):
    takes_keyword_only.seen.update(texts=texts)
    return ZEROS


@pytest.mark.parametrize("function", [takes_texts, takes_anything, takes_anything_and_more, takes_positional, takes_keyword_only])
def test_the_single_required_parameter_gets_prompt_and_response(function):
    assert _given(function, _samples())["texts"] == ["2 + 2 = 4", "3 + 3 = 7"]


@pytest.mark.parametrize(
    ("name", "value"), [("texts", ["2 + 2 = 4", "3 + 3 = 7"]), ("prompts", ["2 + 2 =", "3 + 3 ="]),
                        ("completions", [" 4", " 7"]), ("responses", [" 4", " 7"])]
)  # fmt: skip
def test_parameters_are_bound_by_name(name, value):
    for source in (f"lambda {name}: {name}", f"lambda {name}=None: {name}"):
        assert _reward(eval(source)).arguments(_samples()) == {name: value}


def test_columns_are_bound_by_name_and_in_order():
    def f(answer, texts, prompts, missing="as it was"):
        assert missing == "as it was"
        return [float(t.endswith(a)) for t, a in zip(texts, answer, strict=True)]

    assert _reward(f).score(_samples(answer=["4", "6"], other=[1, 2])) == [1.0, 0.0]


def test_a_column_fills_a_parameter_with_a_default():
    def f(texts, answer=None):
        return [float(a is not None) for a in (answer or [None] * len(texts))]

    assert _reward(f).score(_samples(answer=["4", "6"])) == [1.0, 1.0]
    assert _reward(f).score(_samples()) == [0.0, 0.0]


def test_kwargs_get_everything():
    def f(texts, **kwargs):
        f.seen.update(kwargs)
        return ZEROS

    seen = _given(f, _samples(answer=["4", "6"], kind=["a", "b"]))
    assert seen == {
        "prompts": ["2 + 2 =", "3 + 3 ="], "completions": [" 4", " 7"], "responses": [" 4", " 7"],
        "answer": ["4", "6"], "kind": ["a", "b"],
    }  # fmt: skip


def test_a_function_without_kwargs_gets_only_what_it_names():
    assert set(_reward(lambda texts: ZEROS).arguments(_samples(answer=["4", "6"]))) == {"texts"}


def test_a_column_cannot_take_the_place_of_the_texts():
    assert _reward(lambda texts: ZEROS).arguments(_samples(texts=["x", "y"]))["texts"] == ["2 + 2 = 4", "3 + 3 = 7"]


class Scorer:
    """A callable object, with what it needs set beforehand."""

    def __init__(self, weight: float):
        self.weight = weight

    def __call__(self, texts):
        return [self.weight * len(t) for t in texts]

    async def later(self, texts):
        return self(texts)


def _weighted(weight, texts):
    return Scorer(weight)(texts)


async def _async(texts):
    return Scorer(2.0)(texts)


@pytest.mark.parametrize(
    "function",
    [Scorer(2.0), Scorer(2.0).later, partial(_weighted, 2.0), _async],
    ids=["object", "method", "partial", "async"],
)
def test_anything_callable_is_a_reward(function):
    assert _reward(function).score(_samples()) == [18.0, 18.0]


# messages as in TRL


def plain(prompts, completions):
    plain.seen.update(prompts=prompts, completions=completions)
    return ZEROS


def annotated(completions: list[list[dict[str, str]]], prompts=None):
    annotated.seen.update(prompts=prompts, completions=completions)
    return ZEROS


ANSWERS = [[{"role": "assistant", "content": " 4"}], [{"role": "assistant", "content": " 7"}]]
ASKED = [[{"role": "user", "content": "2 + 2 ="}], [{"role": "user", "content": "3 + 3 ="}]]
TEXT = (["2 + 2 =", "3 + 3 ="], [" 4", " 7"])


@pytest.mark.parametrize(
    ("function", "form", "chat", "prompts", "completions"),
    [
        (plain, "auto", False, *TEXT),
        (plain, "auto", True, CHAT, ANSWERS),
        (plain, "text", True, *TEXT),
        (plain, "text", False, *TEXT),
        (plain, "messages", False, ASKED, ANSWERS),
        (plain, "messages", True, CHAT, ANSWERS),
        (annotated, "auto", False, TEXT[0], ANSWERS),
        (annotated, "auto", True, CHAT, ANSWERS),
        (annotated, "text", False, *TEXT),
    ],
)
def test_prompts_and_completions_are_text_or_messages(function, form, chat, prompts, completions):
    seen = _given(function, _samples(chat), FunctionFormat(form))
    assert seen == {"prompts": prompts, "completions": completions}


@pytest.mark.parametrize("form", FunctionFormat)
def test_texts_and_responses_are_always_text(form):
    got = _reward(lambda texts, responses: ZEROS, form).arguments(_samples(chat=True))
    assert got == {"texts": ["2 + 2 = 4", "3 + 3 = 7"], "responses": [" 4", " 7"]}


def test_functions_written_for_trl():
    from trl.rewards import think_format_reward

    samples = Samples(["p", "p"], ["<think>\na\n</think>\nb", "b"], ["x", "y"], {}, None, [False, False])
    assert _reward(think_format_reward).score(samples) == [1.0, 0.0]


# a required column that is not there


def test_a_required_column_that_is_there():
    assert _reward(lambda texts, answer: ZEROS).check_columns(["answer"]) is None  # refusing is raising
    assert _reward(lambda completions, answer, **kwargs: ZEROS).check_columns(["answer", "more"]) is None


@pytest.mark.parametrize("function", [takes_texts, takes_anything, takes_anything_and_more, plain, annotated])
def test_functions_that_need_no_column(function):
    assert _reward(function).check_columns([]) is None


def needs_two(texts, solution, level):
    return ZEROS


def test_required_columns_that_are_absent_are_named_with_all_there_are():
    assert _refused(lambda: _reward(needs_two).check_columns(["answer", "level"])) == [
        "error: reward fn:mypkg.f requires 'solution', which no column of the data is called",
        "  why:  columns: answer, level; always there: texts, prompts, completions, responses",
        "  try:  give the parameter a default, or name a column: def needs_two(texts, answer, ...)",
    ]
    assert _refused(lambda: _reward(needs_two).check_columns([])) == [
        "error: reward fn:mypkg.f requires 'solution', 'level', which no column of the data is called",
        "  why:  columns: none; always there: texts, prompts, completions, responses",
        "  try:  give the parameter a default, or name a column: def needs_two(texts, answer, ...)",
    ]


# what a function may give back


@pytest.mark.parametrize(
    "returned",
    [
        [1.0, 0.0],
        (1.0, 0.0),
        [1, 0],
        [True, False],
        np.array([1.0, 0.0]),
        np.array([1, 0]),
        np.array([True, False]),
        np.array([1, 0], dtype=np.float16),
        torch.tensor([1.0, 0.0]),
        torch.tensor([1, 0]),
        torch.tensor([True, False]),
        torch.tensor([1.0, 0.0], dtype=torch.bfloat16, requires_grad=True),
        [torch.tensor(1.0), torch.tensor(0.0)],
        [np.float32(1.0), np.int64(0)],
        [np.bool_(True), 0],
    ],
    ids=str,
)
def test_numbers_in_any_usual_form_are_scores(returned):
    got = _reward(lambda texts: returned).score(_samples())
    assert got == [1.0, 0.0]
    assert [type(x) for x in got] == [float, float]


EXPECTED = ["  why:  expected a list of 2 numbers, one per text", "  try:  return [float(...) for text in texts]"]


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        ([1.0], "1 scores"),
        ([1.0] * 3, "3 scores"),
        ([], "0 scores"),
        (np.array([1.0]), "1 scores"),
        (torch.ones(3), "3 scores"),
        (torch.ones(1, 2), "1 scores"),
        (1.0, "float 1.0"),
        (True, "bool True"),
        (np.float64(1.0), "float 1.0"),
        (torch.tensor(1.0), "float 1.0"),
        (np.array(1.0), "float 1.0"),
        (None, "None"),
        ("ab", "str 'ab'"),
        ({"a": 1, "b": 2}, "dict {'a': 1, 'b': 2}"),
        ({1.0}, "set {1.0}"),
    ],
    ids=str,
)
def test_anything_but_one_number_a_text_is_refused_and_nothing_is_broadcast(returned, what):
    assert _refused(lambda: checked("fn:mypkg.f", returned, _samples())) == [f"error: reward fn:mypkg.f returned {what}", *EXPECTED]


def test_a_generator_is_refused():
    got = _refused(lambda: checked("fn:mypkg.f", (1.0 for _ in range(2)), _samples()))
    assert got[0].startswith("error: reward fn:mypkg.f returned generator <generator object")
    assert got[1:] == EXPECTED


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "float nan"),
        (math.inf, "float inf"),
        (-math.inf, "float -inf"),
        (np.float32("nan"), "float nan"),
        (torch.tensor(math.inf), "float inf"),
        ("5", "str '5'"),
        ([1.0], "list [1.0]"),
        (1j, "complex 1j"),
    ],
    ids=str,
)
def test_a_score_that_is_no_finite_number_names_its_sample(value, shown):
    assert _refused(lambda: checked("fn:mypkg.f", [1.0, value], _samples())) == [
        f"error: reward fn:mypkg.f returned {shown} for sample 1, expected a finite number",
        "  why:  the text of sample 1: '3 + 3 = 7'",
    ]


def test_an_abstention_outside_a_sum_is_refused():
    assert _refused(lambda: checked("fn:mypkg.f", [None, 1.0], _samples())) == [
        "error: reward fn:mypkg.f returned None for sample 0, expected a finite number",
        "  why:  None (abstain) has a meaning only inside a weighted sum of rewards; the text of sample 0: '2 + 2 = 4'",
    ]


@pytest.mark.parametrize("value", [np.array([1.0, 2.0]), torch.ones(2)], ids=["numpy", "torch"])
def test_several_numbers_for_one_text_are_refused(value):
    got = _refused(lambda: checked("fn:mypkg.f", [1.0, value], _samples()))
    assert "for sample 1, expected a finite number" in got[0]


@pytest.mark.parametrize("value", [10**400, 1e39, -1e39], ids=["int", "float", "negative"])
def test_a_number_too_large_for_training_is_refused(value):
    got = _refused(lambda: checked("fn:mypkg.f", [1.0, value], _samples()))
    assert "for sample 1, expected a finite number" in got[0]


def test_the_shown_text_is_shortened_in_its_middle():
    assert shorten("a" * 200) == "a" * 200
    assert shorten("a" * 150 + "b" * 150) == "a" * 100 + " ... " + "b" * 100


# a function that raises


def _divides(texts):
    return [1 / 0 for _ in texts]


async def _divides_later(texts):
    return _divides(texts)


@pytest.mark.parametrize("function", [_divides, _divides_later])
def test_an_exception_is_shown_with_the_functions_own_lines_and_none_of_ours(function):
    got = _refused(lambda: _reward(function).score(_samples()))
    assert got[:3] == [
        "error: reward fn:mypkg.f raised ZeroDivisionError",
        "  why:  ZeroDivisionError: division by zero",
        "        first text: '2 + 2 = 4'",
    ]
    files = [line.split('"')[1] for line in got if line.strip().startswith("File ")]
    assert files and set(files) == {__file__}
    assert got[-1] == "        ZeroDivisionError: division by zero"


def test_the_cause_of_an_exception_is_shown_too():
    def f(texts):
        try:
            {}["key"]
        except KeyError as error:
            raise ValueError("no such key") from error

    text = "\n".join(_refused(lambda: _reward(f).score(_samples())))
    assert "KeyError: 'key'" in text
    assert "ValueError: no such key" in text


# finding the function


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Path]]:
    """Writes modules into a folder that is first on sys.path, and forgets them afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_function_is_found_by_its_dotted_path(package):
    package("pkg_a/__init__.py", "")
    package("pkg_a/sub/__init__.py", "")
    package("pkg_a/sub/mod.py", "def fn(texts):\n    return [7.0 for t in texts]\n")
    assert load_function("pkg_a.sub.mod.fn")(["x"]) == [7.0]


def test_no_such_module(package):
    assert _refused(lambda: load_function("nosuchpkg.f")) == [
        "error: reward fn:nosuchpkg.f: there is no module 'nosuchpkg'",
        f"  why:  looked first in {sys.path[0]}, {sys.path[1]}",
        "  try:  run where nosuchpkg.py lies, or install its package",
    ]


def test_no_such_module_in_a_package(package):
    package("pkg_b/__init__.py", "")
    assert _refused(lambda: load_function("pkg_b.rewards.f"))[0] == "error: reward fn:pkg_b.rewards.f: there is no module 'pkg_b.rewards'"


def test_no_such_name(package):
    path = package("mod_c.py", "def count_good(texts):\n    return []\n")
    assert _refused(lambda: load_function("mod_c.count_god")) == [
        "error: reward fn:mod_c.count_god: module mod_c has no 'count_god'",
        f"  why:  the module is {path}",
        "  try:  reward=fn:mod_c.count_good",
    ]
    assert _refused(lambda: load_function("mod_c.zzz")) == [
        "error: reward fn:mod_c.zzz: module mod_c has no 'zzz'",
        f"  why:  the module is {path}",
    ]


@pytest.mark.parametrize(
    ("source", "line", "cause"),
    [
        ("import nosuchlib\n", 1, "ModuleNotFoundError: No module named 'nosuchlib'"),
        ("import os\nfrom os import nosuch\n", 2, "ImportError: cannot import name 'nosuch' from 'os'"),
        ("\n\nx = 1 / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("import missing_d.deeper\n", 1, "ModuleNotFoundError: No module named 'missing_d'"),
    ],
)
def test_a_module_that_fails_shows_its_own_line_and_the_true_cause_last(package, source, line, cause):
    path = package("mod_d.py", source + "def f(texts):\n    return []\n")
    got = _refused(lambda: load_function("mod_d.f"))
    assert got[:2] == [
        "error: reward fn:mod_d.f: module 'mod_d' was found but failed while being imported",
        f"  why:  {path}, line {line}",
    ]
    assert len(got) == 3
    assert got[2].strip().startswith(cause)


def test_a_module_that_cannot_be_parsed(package):
    path = package("mod_e.py", "def f(texts:\n    return []\n")
    got = _refused(lambda: load_function("mod_e.f"))
    assert got[0] == "error: reward fn:mod_e.f: module 'mod_e' was found but failed while being imported"
    assert got[1].startswith(f"  why:  {path}")
    assert got[2].strip().startswith("SyntaxError: ") and "line 1" in got[2]


def test_a_failing_module_in_a_folder_called_as_this_package(package, tmp_path, monkeypatch):
    """People work inside a checkout: their own file may lie below a folder named rlctl."""
    path = package("rlctl/mod_f.py", "x = 1 / 0\n")
    monkeypatch.syspath_prepend(str(path.parent))
    assert _refused(lambda: load_function("mod_f.f"))[1] == f"  why:  {path}, line 1"


@pytest.mark.parametrize(("path", "kind"), [("os.path", "module"), ("math.pi", "float")])
def test_what_cannot_be_called(path, kind):
    assert _refused(lambda: load_function(path)) == [
        f"error: reward fn:{path} is not callable",
        f"  why:  it is a {kind}",
        "  try:  reward=fn:MODULE.FUNCTION",
    ]


def test_a_wrong_module_is_looked_up_nowhere_else(monkeypatch):
    import huggingface_hub

    def used(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", used)
    monkeypatch.setattr(socket, "getaddrinfo", used)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", used)
    with pytest.raises(RewardError, match="there is no module 'org-name/model'"):
        load_function("org-name/model.f")


# reward models


BUILTIN = str(builtin.path("reward"))
TEXTS = ["The soup was good.", "The soup was", "4 + 4 = 8", "Before the film, they felt so very, very ashamed and sad."]


@pytest.fixture(scope="module")
def policy() -> Source:
    return open_source(ModelConfig(), "policy")


def _model(policy: Source, path: str | Path = BUILTIN, **keys: Any) -> ModelReward:
    config = ModelRewardConfig(path=str(path), **keys)
    return ModelReward(config, open_source(config, "reward model"), policy, torch.device("cpu"))


def _of(texts: list[str], truncated: bool = True, messages: Any = None, responses: list[str] | None = None) -> Samples:
    responses = responses or [""] * len(texts)
    return Samples(list(texts), responses, list(texts), {}, messages, [truncated] * len(texts))


def _alone(path: str | Path, rows: list[list[int]]) -> list[float]:
    """The classifier by itself, one unpadded row after the other; the score where the row ends."""
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    out = []
    for row in rows:
        ids = torch.tensor([row])
        with torch.no_grad():
            if hasattr(model, "score"):  # a decoder: transformers' own pooling looks for a pad id
                out.append(float(model.score(model.base_model(input_ids=ids).last_hidden_state)[0, -1, 0]))
            else:
                out.append(float(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, 0]))
    return out


TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder with a word-piece vocabulary of its own, dropout in its config, no template."""
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "soup", "was", "good", "##ish", ".", "4", "+", "=", "8", "so", "very", "a", "s"]
    core = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", model_max_length=16
    )
    torch.manual_seed(3)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "initializer_range": 0.4}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=16, num_labels=1, **shape)
    BertForSequenceClassification(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _llama(folder: Path, labels: int = 1, template: str | None = None, pad: bool = False) -> Path:
    """A decoder with the built-in vocabulary; its config names no pad token unless asked."""
    tokenizer = AutoTokenizer.from_pretrained(BUILTIN)
    tokenizer.chat_template = template
    torch.manual_seed(4)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "initializer_range": 0.3}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, num_labels=labels, pad_token_id=0 if pad else None, **shape)
    LlamaForSequenceClassification(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def chat_decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _llama(tmp_path_factory.mktemp("llama"), template=TEMPLATE)


def test_the_built_in_reward_model_scores_as_it_does_alone(policy):
    rows = AutoTokenizer.from_pretrained(BUILTIN)(TEXTS)["input_ids"]
    assert _model(policy).score(_of(TEXTS)) == pytest.approx(_alone(BUILTIN, rows), abs=1e-5)


def test_a_reward_model_of_another_tokenizer_scores_as_it_does_alone(policy, bert):
    rows = AutoTokenizer.from_pretrained(bert)(TEXTS, truncation=True, max_length=16)["input_ids"]
    assert max(map(len, rows)) <= 16
    got = _model(policy, bert).score(_of(TEXTS[:3]))
    assert got == pytest.approx(_alone(bert, rows[:3]), abs=1e-5)
    assert len({round(x, 4) for x in got}) == 3


def test_a_reward_model_never_sees_an_id_that_it_cannot_embed(policy, bert):
    reward = _model(policy, bert)
    ids = [i for t in range(len(TEXTS)) for i in reward.encode(_of(TEXTS), t)]
    assert max(ids) < reward.embeddings < len(policy.tokenizer)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
@pytest.mark.parametrize("which", ["builtin", "bert", "no pad token"])
def test_scores_depend_neither_on_order_nor_on_the_batch(policy, bert, chat_decoder, which, batch_size):
    path = {"builtin": BUILTIN, "bert": bert, "no pad token": chat_decoder}[which]
    reward = _model(policy, path, batch_size=batch_size)
    single = [reward.score(_of([t]))[0] for t in TEXTS]
    assert reward.score(_of(TEXTS)) == pytest.approx(single, abs=1e-5)
    assert reward.score(_of(TEXTS[::-1])) == pytest.approx(single[::-1], abs=1e-5)


def test_the_same_text_scores_the_same_twice(policy, bert):
    """The classifier's config asks for dropout; a reward takes none."""
    reward = _model(policy, bert)
    assert reward.model.config.hidden_dropout_prob > 0
    assert reward.score(_of(TEXTS)) == reward.score(_of(TEXTS))


def test_a_reward_model_is_frozen(policy):
    reward = _model(policy)
    assert not any(p.requires_grad for p in reward.model.parameters())
    assert not reward.model.training


@pytest.mark.parametrize(
    ("append", "truncated", "closed"),
    [("auto", False, True), ("auto", True, False), ("always", False, True), ("always", True, False), ("never", False, False)],
)
def test_a_finished_response_is_closed_by_the_end_token_and_a_cut_one_is_not(policy, append, truncated, closed):
    reward = _model(policy, append_eos=AppendEos(append))
    text = "The soup was good."
    ids = reward.encode(_of([text], truncated), 0)
    plain_ids = reward.tokenizer(text)["input_ids"]
    assert ids == [*plain_ids, reward.tokenizer.eos_token_id] if closed else ids == plain_ids


def test_the_end_token_is_scored_although_it_may_be_the_pad_token(policy, tmp_path):
    """With pad == eos the score must be read at the end token, not before it."""
    path = _llama(tmp_path / "rm")
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(path)
    reward = _model(policy, path, append_eos=AppendEos.always)
    samples = _of(["The soup was good.", "The soup"], truncated=False)
    rows = [reward.encode(samples, i) for i in range(2)]
    assert all(row[-1] == tokenizer.eos_token_id == tokenizer.pad_token_id for row in rows)
    assert reward.score(samples) == pytest.approx(_alone(path, rows), abs=1e-5)
    assert reward.score(samples) != pytest.approx(_alone(path, [row[:-1] for row in rows]), abs=1e-3)


def test_a_reward_model_of_another_vocabulary_is_not_given_an_end_token_unasked(policy, bert):
    assert not _model(policy, bert).append_eos
    assert _model(policy).append_eos


def test_too_long_a_text_loses_its_front(policy):
    reward = _model(policy, max_length=6)
    whole = AutoTokenizer.from_pretrained(BUILTIN)(TEXTS[3])["input_ids"]
    ids = reward.encode(_of([TEXTS[3]]), 0)
    assert len(whole) > 6 == len(ids)
    assert ids[-5:] == whole[-5:]
    closed = reward.encode(_of([TEXTS[3]], truncated=False), 0)
    assert len(closed) == 6
    assert closed[-1] == reward.tokenizer.eos_token_id
    assert closed[-5:-1] == whole[-4:]


def test_the_limit_of_the_reward_model_itself_holds(policy, bert):
    reward = _model(policy, bert)
    long = "soup " * 40 + "good ."
    ids = reward.encode(_of([long]), 0)
    assert len(ids) == 16
    assert ids[-3:] == AutoTokenizer.from_pretrained(bert)("good .")["input_ids"][1:]
    assert reward.score(_of([long])) == pytest.approx(_alone(bert, [ids]), abs=1e-5)


def test_chat_data_go_through_the_reward_models_own_template(policy, chat_decoder):
    samples = Samples(["rendered by the policy"] * 2, [" 4", " 7"], ["x", "y"], {}, CHAT, [True, True])
    reward = _model(policy, chat_decoder)
    tokenizer = AutoTokenizer.from_pretrained(chat_decoder)
    expected = [
        tokenizer(f"[user] {m[0]['content']} [assistant] {r} ", add_special_tokens=False)["input_ids"]
        for m, r in zip(CHAT, samples.responses, strict=True)
    ]
    assert [reward.encode(samples, i) for i in range(2)] == expected
    assert reward.score(samples) == pytest.approx(_alone(chat_decoder, expected), abs=1e-5)


def test_chat_data_without_a_template_of_the_reward_model_are_scored_as_text(policy, bert):
    samples = Samples(["p"], [" 4"], ["the soup was good"], {}, CHAT[:1], [True])
    assert _model(policy, bert).encode(samples, 0) == AutoTokenizer.from_pretrained(bert)("the soup was good")["input_ids"]


def test_too_long_a_chat_loses_its_front(policy, chat_decoder):
    samples = Samples(["p"], [" 4 4 4"], ["x"], {}, CHAT[:1], [True])
    whole = _model(policy, chat_decoder).encode(samples, 0)
    assert _model(policy, chat_decoder, max_length=4).encode(samples, 0) == whole[-4:]


def test_more_than_one_label_is_refused(policy, tmp_path):
    path = _llama(tmp_path / "rm", labels=3, pad=True)
    with pytest.raises(ModelError) as caught:
        _model(policy, path)
    assert caught.value.lines() == [f"error: the reward model {path} has 3 labels, expected 1", f"  try:  {NEEDS_CLASSIFIER}"]


def test_a_language_model_is_refused_as_a_reward_model(policy):
    path = builtin.path("policy")
    with pytest.raises(ModelError) as caught:
        _model(policy, path)
    assert caught.value.lines() == [
        f"error: the reward model {path} is a LlamaForCausalLM: its score head is missing",
        "  why:  a new head would be random",
        f"  try:  {NEEDS_CLASSIFIER}",
    ]


def test_a_classifier_whose_head_is_not_in_its_files_is_refused(policy, tmp_path):
    from safetensors.torch import load_file, save_file

    path = _llama(tmp_path / "rm")
    weights = load_file(path / "model.safetensors")
    del weights["score.weight"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError) as caught:
        _model(policy, path)
    assert caught.value.lines() == [
        f"error: the reward model {path} lacks weights: score.weight",
        "  why:  they would be random",
        f"  try:  {NEEDS_CLASSIFIER}",
    ]


def test_a_reward_model_that_is_not_there(policy):
    with pytest.raises(ModelError) as caught:
        _model(policy, "/nosuch/rm")
    assert caught.value.lines() == [
        "error: no reward model at /nosuch/rm",
        "  why:  there is no such folder",
        "  try:  reward=model:PATH_OR_HUB_ID",
    ]
