"""What passes and what fails: rules, functions, right answers, a language model, and how verdicts are put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlctl import builtin
from rlctl.config.judges import USES, Compare, Extract, JudgeConfig, JudgeKind, all_problems, judge_name, problems
from rlctl.data import Prompt, Prompts
from rlctl.errors import ConfigError, DataError, ModelError, RewardError
from rlctl.judges import llm as llm_module
from rlctl.judges.answer import AnswerJudge, extracted, number
from rlctl.judges.base import Judge, Verdicts, judge_all
from rlctl.judges.build import build_judges, load, open_judges
from rlctl.judges.function import FunctionJudge
from rlctl.judges.rules import rule
from rlctl.rollout import Samples

CPU = torch.device("cpu")
TEMPLATE = "{prompt}{response} It was"


def _samples(responses: list[str], prompt: str = "p ", **columns: list[Any]) -> Samples:
    n = len(responses)
    return Samples([prompt] * n, responses, [prompt + r for r in responses], columns, None, [False] * n)


def _prompts(**columns: list[Any]) -> Prompts:
    n = len(next(iter(columns.values()), [0]))
    items = [Prompt(i, [1], "p", None, {k: v[i] for k, v in columns.items()}) for i in range(n)]
    return Prompts(items, list(columns), 0, False, 0)


def _config(kind: str, **keys: Any) -> JudgeConfig:
    """As a config file would make it, so that types are those of a run."""
    made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(JudgeConfig), {"kind": kind, **keys}))
    assert isinstance(made, JudgeConfig)
    assert problems(made, "judges[0]") == []
    return made


def _passes(text: str, kind: str, **keys: Any) -> bool:
    return rule(_config(kind, **keys))(text)


def _lines(error: type, call: Callable[[], Any]) -> list[str]:
    with pytest.raises(error) as caught:
        call()
    return caught.value.lines()


# verdicts together


class Fixed(Judge):
    def __init__(self, name, verdicts):
        self.name, self.verdicts = name, verdicts

    def judge(self, samples):
        return self.verdicts


def test_all_judges_must_pass_and_one_that_could_not_judge_did_not():
    judges = [Fixed("a", [True, True, True, None, False]), Fixed("b", [True, False, None, None, True])]
    verdicts = judge_all(judges, _samples(["x"] * 5))
    assert verdicts.by_name == {"a": [True, True, True, None, False], "b": [True, False, None, None, True]}
    assert verdicts.satisfied == [True, False, False, False, False]


def test_without_judges_everything_is_satisfied():
    assert judge_all([], _samples(["x", "y"])).satisfied == [True, True]


def test_a_verdict_is_frozen_and_complete():
    with pytest.raises(ValueError, match="judge a: 1 verdicts for 2 samples"):
        Verdicts({"a": [True]}, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Verdicts({}, 0).count = 3  # type: ignore[misc]


# configs


def test_a_typed_list_of_judges_composes():
    @dataclasses.dataclass
    class Holder:
        judges: list[JudgeConfig] = dataclasses.field(default_factory=list)

    given = {"judges": [{"kind": "length", "max": 5, "unit": "characters"}, {"kind": "keywords", "none": ["no"]}]}
    made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Holder), given))
    assert [j.kind for j in made.judges] == [JudgeKind.length, JudgeKind.keywords]
    assert all_problems(made.judges) == []
    assert [j.judge(_samples(["yes", "no", "no, sir"])) for j in build_judges(made.judges, CPU)] == [
        [True, True, False],
        [True, False, False],
    ]


def test_every_key_belongs_to_a_kind():
    assert set().union(*USES.values()) == {f.name for f in dataclasses.fields(JudgeConfig)} - {"kind", "name"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (JudgeConfig(), "j.kind is missing; one of: " + ", ".join(JudgeKind)),
        (JudgeConfig(JudgeKind.fn), "j: kind: fn needs path"),
        (JudgeConfig(JudgeKind.fn, path="f"), "j.path=f: expected the dotted path of a function, such as mypkg.is_polite"),
        (JudgeConfig(JudgeKind.length), "j: kind: length needs min, max or both"),
        (JudgeConfig(JudgeKind.length, min=3, max=2), "j: min=3 is more than max=2: no response could pass"),
        (JudgeConfig(JudgeKind.length, min=-1), "j.min=-1: must be at least 0"),
        (JudgeConfig(JudgeKind.length, max=2, pattern="x"), "j.pattern has no meaning for kind: length, which takes min, max, unit"),
        (JudgeConfig(JudgeKind.regex), "j: kind: regex needs pattern"),
        (JudgeConfig(JudgeKind.regex, pattern=""), "j.pattern is empty"),
        (JudgeConfig(JudgeKind.regex, pattern="("), "j.pattern=(: not a regular expression: "
         "missing ), unterminated subpattern at position 0"),
        (JudgeConfig(JudgeKind.keywords), "j: kind: keywords needs any, all or none"),
        (JudgeConfig(JudgeKind.keywords, any=[""]), "j.any holds an empty text"),
        (JudgeConfig(JudgeKind.keywords, all=["a"], none=["a"]), "j: 'a' is in all and in none: no response could pass"),
        (JudgeConfig(JudgeKind.ends_with), "j: kind: ends_with needs endings"),
        (JudgeConfig(JudgeKind.no_repeat), "j: kind: no_repeat needs n"),
        (JudgeConfig(JudgeKind.no_repeat, n=0), "j.n=0: must be at least 1"),
        (JudgeConfig(JudgeKind.characters), "j: kind: characters needs allowed"),
        (JudgeConfig(JudgeKind.characters, allowed=["Latim"]), "j.allowed: 'Latim': no Unicode script or block of that name; "
         "did you mean Latin?"),
        (JudgeConfig(JudgeKind.characters, allowed=["[a-"]), "j.allowed: '[a-': not a character class such as '[a-z0-9 ]'"),
        (JudgeConfig(JudgeKind.answer), "j: kind: answer needs column"),
        (JudgeConfig(JudgeKind.answer, column="a", delimiter="A:"), "j.delimiter has no meaning without extract: delimited"),
        (JudgeConfig(JudgeKind.answer, column="a", ignore_case=True), "j.ignore_case has no meaning without compare: text"),
        (JudgeConfig(JudgeKind.code), "j: kind: code needs column"),
        (JudgeConfig(JudgeKind.code, column="t", timeout=float("nan")), "j.timeout=nan: must be greater than 0"),
        (JudgeConfig(JudgeKind.llm, path="m"), "j: kind: llm needs template"),
        (JudgeConfig(JudgeKind.llm, path="m", template="{prompt}"), "j.template has no {response} in it: "
         "the judge would not see what it judges"),
        (JudgeConfig(JudgeKind.llm, path="m", template="{response}", positive="No"), "j: positive and negative are both 'No'"),
        (JudgeConfig(JudgeKind.json, name="a b"), "j.name=a b: only letters, digits and . _ - may be in a judge's name"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_judge_is_said(config, expected):
    assert expected in problems(config, "j")


def test_names_are_told_apart():
    two = [JudgeConfig(JudgeKind.json), JudgeConfig(JudgeKind.json, fenced=True)]
    assert all_problems(two) == ["judges: two judges are called 'json'; give each a name of its own"]
    assert all_problems([two[0], dataclasses.replace(two[1], name="fenced")]) == []
    assert judge_name(JudgeConfig(JudgeKind.fn, path="a.b.polite")) == "polite"
    assert _lines(ConfigError, lambda: build_judges(two, CPU)) == [
        "error: the judges cannot be as asked",
        "  why:  judges: two judges are called 'json'; give each a name of its own",
    ]


# rules


@pytest.mark.parametrize(
    ("text", "expected", "kind", "keys"),
    [
        ("", True, "length", {"max": 0}),
        ("a\n b\tc", True, "length", {"min": 3, "max": 3}),
        ("äöü", True, "length", {"min": 3, "max": 3, "unit": "characters"}),
        ("a b", False, "length", {"max": 2, "unit": "characters"}),
        ("Call 555", True, "regex", {"pattern": r"\d{3}"}),
        ("Call 555", False, "regex", {"pattern": r"\d{3}", "must_match": False}),
        ("HELLO", True, "regex", {"pattern": "hello", "ignore_case": True}),
        ("HELLO", False, "regex", {"pattern": "hello"}),
        ("a.b", True, "keywords", {"all": ["a.b"]}),
        ("axb", False, "keywords", {"all": ["a.b"]}),
        ("start", False, "keywords", {"any": ["art"]}),
        ("start", True, "keywords", {"any": ["art"], "whole_words": False}),
        ("I code in C++ daily", True, "keywords", {"all": ["C++"]}),
        ("ÉCOLE", True, "keywords", {"all": ["école"], "ignore_case": True}),
        ("one", False, "keywords", {"all": ["one", "two"]}),
        ("1", True, "json", {}),
        ("{'a': 1}", False, "json", {}),
        ("[" * 100_000, False, "json", {}),
        ('```json\n{"a": 1}\n```\ntext', False, "json", {}),
        ('```json\n{"a": 1}\n```\ntext', True, "json", {"fenced": True, "required_keys": ["a"]}),
        ('```json\n{"a": 1}\n```\n```\nno\n```', True, "json", {"fenced": True}),
        ('```\n{"a": 1}\n```\n```\nno\n```', False, "json", {"fenced": True}),
        ('{"a": 1}', False, "json", {"fenced": True}),
        ("the END", True, "ends_with", {"endings": ["end"], "ignore_case": True}),
        ("the END", False, "ends_with", {"endings": ["end"]}),
        ("to be or not to be", False, "no_repeat", {"n": 2}),
        ("to be or not to be", True, "no_repeat", {"n": 2, "max_count": 2}),
        ("To be or not to be", True, "no_repeat", {"n": 2}),
        ("to be, or not to be?", False, "no_repeat", {"n": 2}),
        ("very, “very” good", False, "no_repeat", {"n": 1}),
        ("**very** (very.)", False, "no_repeat", {"n": 1}),
        ("很好, 很好。", False, "no_repeat", {"n": 1}),
        ("— — ...", False, "no_repeat", {"n": 1}),
        ("-3 3 3% C C# don't dont", True, "no_repeat", {"n": 1}),
        ("To be or not to be", False, "no_repeat", {"n": 2, "ignore_case": True}),
        ("tab\tand\n", True, "characters", {"allowed": ["ascii"]}),
        ("naïve", False, "characters", {"allowed": ["ascii"]}),
        ("naïve 😀 1,5", True, "characters", {"allowed": ["Latin"]}),
        ("漢字と", False, "characters", {"allowed": ["Han"]}),
        ("漢字と", True, "characters", {"allowed": ["Han", "Hiragana"]}),
        ("→", True, "characters", {"allowed": ["InArrows"]}),
        ("→ ", False, "characters", {"allowed": ["InArrows"]}),
        ("abc 1", True, "characters", {"allowed": ["[a-z0-9 ]"]}),
        ("Abc", False, "characters", {"allowed": ["[a-z0-9 ]"]}),
    ],
)
def test_rules(text, expected, kind, keys):
    assert _passes(text, kind, **keys) is expected


# functions


def _function(f: Callable[..., Any], **args: Any) -> FunctionJudge:
    return FunctionJudge(JudgeConfig(JudgeKind.fn, path="mypkg.polite", args=args), f)


def test_a_function_answers_with_truth_values_or_none():
    three = _samples(["a", "b", "c"], answer=["a", "x", "c"])
    assert _function(lambda texts: [True, 0, None]).judge(three) == [True, False, None]
    assert _function(lambda texts: np.array([True, False, True])).judge(three) == [True, False, True]
    assert _function(lambda responses, answer: [r == a for r, a in zip(responses, answer, strict=True)]).judge(three) == [True, False, True]
    assert _function(lambda texts, end: [t.endswith(end) for t in texts], end="c").judge(three) == [False, False, True]


def test_a_function_that_answers_anything_else_is_an_error():
    assert _lines(RewardError, lambda: _function(lambda texts: [1.0, 0.5]).judge(_samples(["a", "b"]))) == [
        "error: judge polite returned 0.5 for sample 1, expected True, False or None",
        "  why:  the text of sample 1: 'p b'",
        "  try:  return [score(text) > 0.5 for text in texts]",
    ]
    lines = _lines(RewardError, lambda: _function(lambda texts: ["yes"]).judge(_samples(["a"])))
    assert lines[0] == "error: judge polite: fn:mypkg.polite returned str 'yes' for sample 0, expected a finite number"
    lines = _lines(RewardError, lambda: _function(lambda texts: [True]).judge(_samples(["a", "b"])))
    assert lines[0] == "error: judge polite: fn:mypkg.polite returned 1 scores"


def test_a_function_that_raises_or_lacks_a_column_is_named():
    def fails(texts):
        raise KeyError("no")

    lines = _lines(RewardError, lambda: _function(fails).judge(_samples(["a"])))
    assert lines[0] == "error: judge polite: fn:mypkg.polite raised KeyError"
    lines = _lines(RewardError, lambda: _function(lambda texts, gold: []).check(_prompts(answer=["x"])))
    assert lines[0] == "error: judge polite: fn:mypkg.polite requires 'gold', which no column of the data is called"


def test_a_function_is_found_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "judgemod.py").write_text("def short(texts):\n    return [len(t) < 5 for t in texts]\n")
    monkeypatch.syspath_prepend(tmp_path)
    (judge,) = build_judges([_config("fn", path="judgemod.short")], CPU)
    assert (judge.name, judge.judge(_samples(["a", "abcdef"]))) == ("short", [True, False])
    assert _lines(RewardError, lambda: build_judges([_config("fn", path="judgemod.shor")], CPU))[::2] == [
        "error: judge shor: fn:judgemod.shor: module judgemod has no 'shor'",
        "  try:  path: judgemod.short",
    ]


# right answers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10-3=7", 7), ("it is -3", -3), ("1,000,000", 10**6), ("1,2,3", 3), ("so 0.5.", Fraction(1, 2)), ("3/4", Fraction(3, 4)),
        (".5", Fraction(1, 2)), ("1.5e3", 1500), ("−4", -4), ("v2", None), ("none", None), ("(5)-2", 2), ("50 %", 50),
        ("9" * 5000, None), ("1e999", 10**999), ("x=12", 12), ("It costs $1,234.50!", Fraction(2469, 2)),
    ],
)  # fmt: skip
def test_the_last_number(text, expected):
    found = extracted(text, Extract.last_number, "")
    assert (None if found is None else number(found)) == expected


def _answer(responses: list[str], right: Any, **keys: Any) -> list[bool | None]:
    judge = AnswerJudge(_config("answer", column="answer", **keys))
    return judge.judge(_samples(responses, answer=[right] * len(responses)))


def test_numbers_are_compared_exactly():
    assert _answer(["so 0.5", "1/2", "50/100", "0.50000001", "no idea"], "1/2") == [True, True, True, False, False]
    assert _answer(["first 3, then 18", "18, no: 3"], "She has 3 * 6 = 18 eggs.\n#### 18") == [True, False]
    assert _answer(["18"], 18) == [True]


def test_delimited_answers():
    gsm = {"extract": "delimited"}
    assert _answer(["3 + 4\n#### 7", "#### 8\nno\n#### 7 apples"], "#### 7", **gsm) == [True, True]
    assert _answer(["7", "####", "#### 7 or 8"], "#### 7", **gsm) == [False, False, False]
    boxed = {"extract": "delimited", "delimiter": r"\boxed{}"}
    assert _answer([r"\boxed{\frac{1}{2}}", r"\boxed{0.5", r"\boxed{1}"], r"\boxed{\frac12} = 0.5", **boxed)[1:] == [None, None]
    assert _answer([r"\boxed{\frac{1}{2}}", r"\boxed{0.5", r"\boxed{1}"], "0.5", **boxed) == [True, False, False]


def test_text_answers():
    keys = {"extract": "delimited", "delimiter": "Answer:", "compare": "text"}
    assert _answer(["Answer: B\n", "Answer: b", "B"], "B", **keys) == [True, False, False]
    assert _answer(["Answer: b"], "B", **keys, ignore_case=True) == [True]
    assert _answer([" Paris\n", "In Paris"], "Paris", extract="whole", compare="text") == [True, False]


def test_a_row_without_an_answer_is_found_before_training_and_cannot_be_judged():
    judge = AnswerJudge(_config("answer", column="answer"))
    judge.check(_prompts(answer=["1", "2/3"]))
    for missing in (None, "", "soup"):
        assert _lines(DataError, lambda m=missing: judge.check(_prompts(answer=["1", m]))) == [
            "error: judge answer: row 1 has no answer to compare with",
            f"  why:  column 'answer' holds {missing!r}; compare: number",
            "  try:  compare: text, or leave the row out",
        ]
        assert _answer(["1"], missing) == [None]
    assert _lines(DataError, lambda: judge.check(_prompts(answers=["1"]))) == [
        "error: judge answer: the data have no column 'answer'", "  why:  columns: answers", "  try:  column: answers",
    ]  # fmt: skip


def test_the_math_library_is_asked_for_at_the_start(monkeypatch):
    monkeypatch.setattr("rlctl.judges.answer.find_spec", lambda name: None)
    assert _lines(RewardError, lambda: AnswerJudge(JudgeConfig(JudgeKind.answer, column="a", compare=Compare.math))) == [
        "error: judge answer: compare: math needs the library math-verify",
        "  why:  it is not installed",
        "  try:  pip install math-verify",
    ]


@pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is not installed")
def test_mathematically_equal():
    keys = {"compare": "math", "extract": "delimited", "delimiter": r"\boxed{}"}
    responses = [r"\boxed{(x+1)^2}", r"\boxed{x^2+1}", "none", r"\boxed{\frac{}{"]
    assert _answer(responses, r"\boxed{x^2+2x+1}", **keys) == [True, False, False, False]
    assert _answer([r"so $\frac{1}{2}$"], "0.5", compare="math", extract="whole") == [True]


# a language model


def _llm(**keys: Any) -> Any:
    given = {"path": "builtin", "template": TEMPLATE, "positive": " good", "negative": " burnt", **keys}
    (judge,) = build_judges([_config("llm", **given)], CPU)
    return judge


RESPONSES = ["The soup was", "The soup was good. The bread was burnt. I like the", "", "The salad was small and"]


def test_the_models_own_probabilities_decide():
    folder = builtin.path("policy")
    lm, tokenizer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)
    good, burnt = (tokenizer(t, add_special_tokens=False)["input_ids"][0] for t in (" good", " burnt"))
    expected = []
    with torch.no_grad():
        for r in RESPONSES:  # each alone, unpadded
            logits = lm.eval()(torch.tensor([tokenizer(f"p {r} It was")["input_ids"]])).logits[0, -1]
            expected.append(torch.log_softmax(logits, -1)[[good, burnt]].tolist())
    for batch in (1, 2, 16):
        judge = _llm(batch_size=batch)
        assert np.allclose(judge.logprobs(_samples(RESPONSES)), expected, atol=1e-4)
        assert judge.judge(_samples(RESPONSES)) == [g > b for g, b in expected]
    turned = _llm(positive=" burnt", negative=" good")
    assert turned.judge(_samples(RESPONSES)) == [b > g for g, b in expected]


def test_probabilities_worked_by_hand(monkeypatch):
    """P(good) 0.6 passes, 0.4 does not, and equal ones do not."""
    judge = _llm()
    good, burnt = judge.tokens
    for p, expected in ((0.6, True), (0.4, False), (0.5, False), (float("nan"), None)):

        class Fake:
            def __call__(self, input_ids, logits_to_keep, p=p, **_):
                logits = torch.full((*input_ids.shape[:1], len(logits_to_keep), 938), -torch.inf)
                logits[..., good], logits[..., burnt] = np.log(p), np.log(1 - p)
                return type("Out", (), {"logits": logits})

        judge.model = Fake()
        assert judge.judge(_samples(["x"])) == [expected]


def test_the_judge_is_frozen_and_read_once(monkeypatch):
    seen = []
    loaded = llm_module.load_weights
    monkeypatch.setattr(llm_module, "load_weights", lambda *a, **k: seen.append(a) or loaded(*a, **k))
    keys = {"path": "builtin", "template": TEMPLATE, "positive": " good", "negative": " burnt"}
    opened = open_judges([_config("llm", **keys), _config("llm", **{**keys, "positive": " small"}, name="other")])
    assert seen == []
    one, other = load(opened, CPU)
    assert one.model is other.model and len(seen) == 1
    assert not one.model.training and not any(p.requires_grad for p in one.model.parameters())
    assert not one.runs_beside


def test_a_text_that_is_no_single_token_is_refused_before_weights_are_read(monkeypatch):
    monkeypatch.setattr(llm_module, "load_weights", None)
    path = builtin.path("policy")
    config = _config("llm", path=str(path), template=TEMPLATE, positive=" good", negative="Nonsense")
    lines = _lines(ModelError, lambda: open_judges([config]))
    assert lines[0] == f"error: judge llm: 'Nonsense' is not a single token of {path}"
    assert lines[1].startswith("  why:  it is read as: 'N'")


def test_a_judge_model_that_is_not_there():
    assert _lines(ModelError, lambda: open_judges([_config("llm", path="/nosuch/judge", template=TEMPLATE)])) == [
        "error: judge llm: no judge model at /nosuch/judge",
        "  why:  there is no such folder",
        "  try:  a decoder-only language model (AutoModelForCausalLM): {kind: llm, path: PATH_OR_HUB_ID, ...}",
    ]


def test_too_long_a_question_loses_the_front_of_its_response_only():
    judge, tokenizer = _llm(max_length=12), AutoTokenizer.from_pretrained(builtin.path("policy"))
    long = "The soup was good. The bread was burnt. The salad was"
    ids = judge.encode("p ", long)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert 8 <= len(ids) <= 12
    assert text.startswith("p ") and text.endswith(" salad was It was")
    assert judge.encode("p ", "The soup") == _llm().encode("p ", "The soup")
    assert judge.encode("The soup was good. The bread was burnt. " * 2, "x") is None
    long_prompt = _samples(["x", "The soup"], prompt="The soup was good. The bread was burnt. " * 2)
    assert judge.judge(long_prompt) == [None, None]
    mixed = dataclasses.replace(_samples(["a", "b"]), prompts=["p ", long_prompt.prompts[0]])
    assert judge.judge(mixed)[0] is not None and judge.judge(mixed)[1] is None


def test_placeholders_in_a_prompt_stay_as_they_are():
    judge = _llm(template="{response}|{prompt}")
    assert judge.source.tokenizer.decode(judge.encode("{response}", "A"), skip_special_tokens=True) == "A|{response}"


def test_a_chat_model_is_asked_through_its_template():
    judge = _llm()
    judge.source.tokenizer.chat_template = (
        "{% for m in messages %}The {{ m.role }}: {{ m.content }}.{% endfor %}{% if add_generation_prompt %} It was{% endif %}"
    )
    ids = judge.encode("p ", "good")
    assert judge.source.tokenizer.decode(ids, skip_special_tokens=True) == "The user: p good It was. It was"
