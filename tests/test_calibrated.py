"""The calibrated reward: sigmoid(r(response) - r(baseline)), by hand, with tables, functions and the built-in reward model."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import test_cli
import tiny
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlctl import builtin
from rlctl import train as training
from rlctl.assemble import Assembly
from rlctl.config.schema import (
    Baseline,
    Batching,
    CalibratedRewardConfig,
    Config,
    DataConfig,
    Device,
    FunctionRewardConfig,
    LaunchConfig,
    MixedPrecision,
    ModelConfig,
    ModelRewardConfig,
    Overlong,
    PPOConfig,
    RLOOConfig,
    RolloutConfig,
    RunConfig,
)
from rlctl.data import Prompt, Prompts, build_prompts
from rlctl.errors import DataError, RewardError, RlctlError
from rlctl.metrics import METRICS
from rlctl.models import open_source
from rlctl.rewards.base import Reward
from rlctl.rewards.calibrated import CalibratedReward, baseline_answer, sigmoid
from rlctl.rewards.function import FunctionReward
from rlctl.rewards.model import ModelReward
from rlctl.rollout import Samples

folder, rlctl = test_cli.folder, test_cli.rlctl


@dataclass
class Table(Reward):
    """The score of each text from a table; remembers every text that it was asked for."""

    table: dict[str, float]
    asked: list[list[str]] = field(default_factory=list)
    name = "table"

    def score(self, samples: Samples) -> list[float]:
        self.asked.append(list(samples.texts))
        return [self.table[t] for t in samples.texts]


def prompts(rows: list[tuple[str, Any]], column: str = "reference") -> Prompts:
    """Rows of (prompt, baseline); a prompt is a text or messages."""
    items = []
    for i, (p, a) in enumerate(rows):
        chat = isinstance(p, list)
        items.append(Prompt(i, [1], "".join(m["content"] for m in p) if chat else p, p if chat else None, {column: a}))
    return Prompts(items, [column], 0, False, 0)


def calibrated(base: Reward, rows: list[tuple[str, Any]], penalty: float = 0.0, **config: Any) -> CalibratedReward:
    reward = CalibratedReward(CalibratedRewardConfig(**config), base, penalty)
    reward.check(prompts(rows))
    return reward


def samples(rows: list[tuple[str, Any]], of: list[tuple[int, str]], cut: list[bool] | None = None) -> Samples:
    """Responses as (row, text)."""
    items = prompts(rows).items
    asked, answers = [items[i].text for i, _ in of], [text for _, text in of]
    messages = [items[i].messages for i, _ in of]
    return Samples(
        asked, answers, [p + r for p, r in zip(asked, answers, strict=True)], {"reference": [rows[i][1] for i, _ in of]},
        messages if messages[0] is not None else None, cut or [False] * len(of), [i for i, _ in of],
    )  # fmt: skip


def refused(call: Callable[[], Any], kind: type[RlctlError] = DataError) -> list[str]:
    with pytest.raises(kind) as caught:
        call()
    assert caught.value.exit_status == 3
    return caught.value.lines()


# --- the formula


def test_the_sigmoid_of_the_difference():
    rows = [("q", " ref")]
    reward = calibrated(Table({"q a": 1.2, "q b": -0.3, "q ref": 0.7}), rows)
    got = reward.scored(samples(rows, [(0, " a"), (0, " ref"), (0, " b")]))
    assert got.scores == pytest.approx([0.62246, 0.5, 1 / (1 + math.e)], abs=1e-5)
    assert got.scores[1] == 0.5
    assert got.parts["raw"] == [1.2, 0.7, -0.3] and got.parts["baseline"] == [0.7] * 3
    assert got.parts["difference"] == pytest.approx([0.5, 0.0, -1.0])


@pytest.mark.parametrize("x", [1e3, 1e30, 3.4e38])
def test_extreme_differences_are_finite(x):
    assert sigmoid(x) == 1.0 and sigmoid(-x) == 0.0 and sigmoid(-40.0) == pytest.approx(math.exp(-40.0))
    rows = [("q", "ref")]
    got = calibrated(Table({"qa": x, "qref": -x}), rows).score(samples(rows, [(0, "a"), (0, "ref")]))
    assert got == [1.0, 0.5]


def test_the_order_of_responses_to_one_prompt_stays():
    draw = random.Random(0)
    table = {f"q{i}": draw.gauss(0.0, 2.0) for i in range(40)} | {"qref": 0.4}
    rows = [("q", "ref")]
    got = calibrated(Table(table), rows).score(samples(rows, [(0, str(i)) for i in range(40)]))
    assert sorted(range(40), key=got.__getitem__) == sorted(range(40), key=lambda i: table[f"q{i}"])
    assert len(set(got)) == 40


# --- a baseline belongs to its row


TWO = [("q", " x"), ("q", " y")]
TABLE = {"q a": 1.0, "q x": 0.0, "q y": 3.0}


@pytest.mark.parametrize("batching", Batching)
def test_two_rows_with_one_prompt_use_their_own_baselines(batching):
    reward = calibrated(Table(TABLE), TWO, batching=batching)
    wanted = {0: sigmoid(1.0), 1: sigmoid(-2.0)}
    for of in ([0, 1, 1, 0], [1], [0, 0], [1, 0]):  # both in one step, then from memory
        assert reward.score(samples(TWO, [(i, " a") for i in of])) == pytest.approx([wanted[i] for i in of])
    apart = calibrated(Table(TABLE), TWO, batching=batching)
    for i in (1, 0):  # each in a step of its own
        assert apart.score(samples(TWO, [(i, " a")])) == pytest.approx([wanted[i]])


@pytest.mark.parametrize(("batching", "calls"), [(Batching.joint, 1), (Batching.separate, 2)])
def test_each_baseline_is_scored_once(batching, calls):
    base = Table(TABLE)
    reward = calibrated(base, TWO, batching=batching)
    step = samples(TWO, [(0, " a"), (0, " a"), (1, " a"), (1, " a")])
    reward.score(step)
    assert len(base.asked) == calls
    assert sorted(t for asked in base.asked for t in asked) == ["q a"] * 4 + ["q x", "q y"]
    base.asked.clear()
    reward.score(step)
    assert base.asked == [["q a"] * 4]


# --- which text the baseline is


@pytest.mark.parametrize(
    ("value", "includes", "wanted"),
    [
        (" 4", None, " 4"),
        (" 4", False, " 4"),
        ("2 + 2 = 4", None, " 4"),
        ("2 + 2 = 4", True, " 4"),
        ("2 + 2 = 4", False, "2 + 2 = 4"),
        ("2 + 2 =2 + 2 = 4", None, "2 + 2 = 4"),  # taken off once
    ],
)
def test_a_baseline_with_its_prompt_in_front_is_the_answer_alone(value, includes, wanted):
    assert baseline_answer(prompts([("2 + 2 =", value)]).items[0], "reference", includes) == wanted


def test_with_and_without_the_prompt_in_front_agree_exactly():
    table = {"2 + 2 = 5": 0.25, "2 + 2 = 4": 1.75}
    got = []
    for value, includes in ((" 4", None), (" 4", False), ("2 + 2 = 4", None), ("2 + 2 = 4", True)):
        rows = [("2 + 2 =", value)]
        got.append(calibrated(Table(table), rows, baseline_includes_prompt=includes).score(samples(rows, [(0, " 5")])))
    assert got == [[sigmoid(-1.5)]] * 4


def test_a_baseline_that_should_begin_with_its_prompt_and_does_not():
    rows = [("2 + 2 =", "2 + 2 = 4"), ("3 + 3 =", " 6")]
    assert refused(lambda: calibrated(Table({}), rows, baseline_includes_prompt=True)) == [
        "error: the baseline of row 1 does not begin with its prompt",
        "  why:  column 'reference' holds ' 6'",
        "  try:  reward.baseline_includes_prompt=false",
    ]


ASK = [{"role": "user", "content": "2 + 2"}]
ANSWER = {"role": "assistant", "content": "4"}


@pytest.mark.parametrize("value", ["4", [ANSWER], [*ASK, ANSWER]], ids=["text", "message", "conversation"])
def test_chat_baselines(value):
    seen = []

    def f(prompts, completions):
        seen.extend(zip(prompts, completions, strict=True))
        return [float(c[-1]["content"]) for c in completions]

    rows = [(ASK, value)]
    reward = calibrated(FunctionReward(FunctionRewardConfig(path="mypkg.f"), f), rows)
    assert reward.score(samples(rows, [(0, "5"), (0, "4")])) == pytest.approx([sigmoid(1.0), 0.5])
    assert seen[-1] == (ASK, [ANSWER])


def test_a_chat_baseline_goes_through_the_reward_models_own_template(env):
    config = ModelRewardConfig(path=str(env.reward))
    source = open_source(config, "reward model")
    source.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    model = ModelReward(config, source, source, torch.device("cpu"))
    ask = [{"role": "user", "content": "b p"}]
    for value in ("c a", [{"role": "assistant", "content": "c a"}]):
        rows = [(ask, value)]
        got = calibrated(model, rows).scored(samples(rows, [(0, "c a"), (0, "d")]))
        alone = model.score(tiny.samples(["b p c a"], truncated=[True]))  # a chat template ends its own way
        assert got.scores[0] == pytest.approx(0.5, abs=1e-6) and got.scores[1] != got.scores[0]
        assert got.parts["baseline"] == pytest.approx([alone[0]] * 2, abs=1e-5)


def _data(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _prompts(env: Any, path: Path, **data: Any) -> Prompts:
    config = Config(
        model=ModelConfig(path=str(env.policy)), data=DataConfig(path=str(path), **data), rollout=RolloutConfig(max_new_tokens=5)
    )
    return build_prompts(config, open_source(config.model, "policy").tokenizer, 32)


@pytest.mark.parametrize("value", ["a", "b p  a"], ids=["alone", "with prompt"])
def test_a_prompt_with_trailing_blanks_keeps_its_baseline(env, tmp_path, value):
    found = _prompts(env, _data(tmp_path / "d.jsonl", [{"prompt": "b p  ", "reference": value}]))
    base = Table({"b p  a": 0.5, "b p  c": 1.5})
    reward = CalibratedReward(CalibratedRewardConfig(), base, 0.0)
    reward.check(found)
    got = reward.score(Samples(["b p  "], ["c"], ["b p  c"], {"reference": [value]}, None, [False], [0]))
    assert got == pytest.approx([sigmoid(1.0)])


@pytest.mark.parametrize(("value", "includes"), [(" e", None), (" e", False), ("d d e f a p e", None), ("d d e f a p e", True)])
def test_a_prompt_whose_front_was_cut_keeps_its_baseline(env, tmp_path, value, includes):
    path = _data(tmp_path / "d.jsonl", [{"prompt": "d d e f a p", "reference": value}])
    found = _prompts(env, path, max_prompt_tokens=3, overlong=Overlong.cut)
    assert found.items[0].text == "f a p"
    reward = CalibratedReward(CalibratedRewardConfig(baseline_includes_prompt=includes), Table({}), 0.0)
    reward.check(found)
    assert reward.baselines[0] == (" e", False)


# --- what cannot be a baseline


@pytest.mark.parametrize(
    ("row", "shown"),
    [({}, "None"), ({"reference": ""}, "''"), ({"reference": "  "}, "'  '"), ({"reference": None}, "None"),
     ({"reference": "2 + 2 ="}, "'2 + 2 ='")],
    ids=["missing", "empty", "blank", "null", "prompt alone"],
)  # fmt: skip
def test_a_row_without_a_baseline_is_named(rlctl, folder, row, shown):
    _data(folder / "rows.jsonl", [{"prompt": "2 + 1 =", "reference": " 3"}, {"prompt": "2 + 2 =", **row}])
    done = rlctl("train", "reward=calibrated:builtin", "data=file:rows.jsonl", *test_cli.TINY)
    assert done.status == 3
    assert done.err.splitlines() == [
        "error: row 1 has no baseline",
        f"  why:  column 'reference' holds {shown}",
        "  try:  fill it in, leave the row out, or reward.baseline=sample",
    ]


def test_a_column_that_is_not_there_is_refused_with_those_that_are(rlctl):
    done = rlctl("train", "reward=calibrated:builtin", "reward.baseline_column=gold", *test_cli.TINY)
    assert done.status == 3
    assert done.err.splitlines() == [
        "error: reward=calibrated needs a baseline for each prompt, and the data has no column 'gold'",
        "  why:  its columns are: reference, answer, kind",
        "  try:  reward.baseline_column=NAME, or reward.baseline=sample",
    ]


def test_a_baseline_too_long_for_the_reward_model_is_named(rlctl, folder):
    _data(folder / "rows.jsonl", [{"prompt": "2 + 1 =", "reference": " 3"}, {"prompt": "It was", "reference": " good" * 300}])
    done = rlctl("train", "reward=calibrated:builtin", "data=file:rows.jsonl", *test_cli.TINY)
    assert done.status == 3
    assert done.err.splitlines()[0] == "error: the baseline of row 1 is longer than the reward model's 256 tokens"
    assert "it begins: 'It was good good" in done.err


@pytest.mark.parametrize(("words", "fits"), [(29, True), (30, True), (31, False)])
def test_the_limit_counts_every_token(env, words, fits):
    config = ModelRewardConfig(path=str(env.reward))
    source = open_source(config, "reward model")
    model = ModelReward(config, source, source, torch.device("cpu"))
    assert model.limit == 32 and model.append_eos  # one word of prompt and the end token
    rows = [("p", " a" * words)]
    if fits:
        calibrated(model, rows)
    else:
        assert refused(lambda: calibrated(model, rows))[0] == "error: the baseline of row 0 is longer than the reward model's 32 tokens"


def test_a_base_that_abstains_is_refused():
    rows = [("q", "ref")]
    reward = calibrated(FunctionReward(FunctionRewardConfig(path="mypkg.f"), lambda texts: [None] * len(texts)), rows)
    lines = refused(lambda: reward.score(samples(rows, [(0, "a")])), RewardError)
    assert lines[0] == "error: reward fn:mypkg.f returned None for sample 0, expected a finite number"


# --- the missing-end penalty


@pytest.mark.parametrize(
    ("cut", "baseline_cut", "difference"), [(False, False, 1.0), (True, False, 0.6), (False, True, 1.4), (True, True, 1.0)]
)
def test_the_penalty_comes_off_both_sides_before_the_sigmoid(cut, baseline_cut, difference):
    rows = [("q", None)]
    reward = calibrated(Table({"qa": 1.5, "qref": 0.5}), rows, penalty=0.4, baseline=Baseline.sample)
    reward.set_baselines(prompts(rows).items, [("ref", baseline_cut)])
    for _ in range(2):  # scored, then remembered
        got = reward.scored(samples(rows, [(0, "a")], [cut]))
        assert got.parts["difference"] == pytest.approx([difference])
        assert got.scores == pytest.approx([sigmoid(difference)])


def test_raw_less_baseline_is_the_difference_with_a_penalty_too():
    """As the table of metrics says: both less the penalty."""
    assert "both less the missing-end penalty" in METRICS["reward/<part>"]
    rows = [("q", " ref")]
    got = calibrated(Table({"q a": 1.5, "q ref": 0.5}), rows, penalty=0.4).scored(samples(rows, [(0, " a")], [True]))
    assert got.parts["difference"][0] == pytest.approx(got.parts["raw"][0] - got.parts["baseline"][0])


# --- saturation


def test_most_differences_beyond_five_are_warned_of():
    rows = [("q", "ref")]
    table = {"qref": 0.0, "qa": 5.1, "qb": -7.0, "qc": 4.9}
    reward = calibrated(Table(table), rows)
    reward.score(samples(rows, [(0, "a"), (0, "c")]))
    assert reward.warnings() == []
    reward.score(samples(rows, [(0, "a"), (0, "b"), (0, "c")]))
    (warning,) = reward.warnings()
    assert warning.key == "saturated"
    assert warning.what == "67% of the calibrated scores are saturated: the difference to the baseline is beyond 5"


# --- whole runs


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> list[Assembly]:
    """Every run that is assembled from now on; the texts that its calibrated reward's base is asked for in `.asked`."""
    runs: list[Assembly] = []
    real = training.assemble

    def assemble(config, reporter):
        run = real(config, reporter)
        base, run.asked = run.collector.reward.base, []
        score = base.score

        def counting(samples):
            run.asked.append(list(zip(samples.rows, samples.texts, strict=True)))
            return score(samples)

        base.score = counting
        runs.append(run)
        return run

    monkeypatch.setattr(training, "assemble", assemble)
    return runs


def config(run_dir: Path, reward: CalibratedRewardConfig, seed: int = 0, algo: Any = None, **rollout: Any) -> Config:
    run_dir.mkdir()
    return Config(
        seed=seed, rollout=RolloutConfig(**{"prompts_per_step": 4, "max_new_tokens": 8, **rollout}), reward=reward,
        algo=algo or RLOOConfig(samples_per_prompt=2), run=RunConfig(steps=2, tracker="none", dir=str(run_dir)),
        launch=LaunchConfig(device=Device.cpu, mixed_precision=MixedPrecision.no),
    )  # fmt: skip


def logged(run_dir: Path) -> list[dict[str, Any]]:
    """Every logged sample, in order."""
    return [json.loads(line) for path in sorted(run_dir.glob("samples/*.jsonl")) for line in path.read_text().splitlines()]


def test_every_logged_score_is_that_of_the_reward_model_alone(assembled, tmp_path):
    training.train(config(tmp_path / "run", CalibratedRewardConfig(), max_new_tokens=4), tiny.Recording())
    tokenizer = AutoTokenizer.from_pretrained(builtin.path("reward"))
    model = AutoModelForSequenceClassification.from_pretrained(builtin.path("reward"), dtype=torch.float32).eval()

    @torch.no_grad()
    def alone(text: str, ended: bool) -> float:
        ids = tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] * ended
        return float(model.score(model.base_model(input_ids=torch.tensor([ids])).last_hidden_state)[0, -1, 0])

    rows = logged(tmp_path / "run")
    assert len(rows) == 16 and {r["truncated"] for r in rows} == {True, False}
    for r in rows:
        raw = alone(r["prompt"] + r["response"], not r["truncated"])
        baseline = alone(r["prompt"] + r["columns"]["reference"], True)
        assert r["score"] == pytest.approx(1 / (1 + math.exp(baseline - raw)), abs=1e-5)
        assert r["parts"] == pytest.approx({"raw": raw, "baseline": baseline, "difference": raw - baseline}, abs=1e-4)
    assert len({r["score"] for r in rows}) > 8


def test_the_baseline_itself_scores_one_half_with_the_reward_model(assembled, tmp_path):
    run = training.assemble(config(tmp_path / "run", CalibratedRewardConfig()), tiny.Recording())
    items = run.prompts.items[:6]
    answers = [p.columns["reference"] for p in items]
    texts = [p.text + a for p, a in zip(items, answers, strict=True)]
    columns = {n: [p.columns[n] for p in items] for n in run.prompts.columns}
    themselves = Samples([p.text for p in items], answers, texts, columns, None, [False] * 6, [p.row for p in items])
    assert run.collector.reward.score(themselves) == pytest.approx([0.5] * 6, abs=1e-6)


def test_joint_and_separate_agree_and_score_each_baseline_once_in_a_run(assembled, tmp_path):
    found, rows = [], [{"prompt": f"{i} + {j} =", "reference": f" {i + j}"} for i, j in ((1, 2), (3, 4), (2, 2))]
    data = DataConfig(path=str(_data(tmp_path / "rows.jsonl", rows)))
    for batching in Batching:
        one = config(tmp_path / batching, CalibratedRewardConfig(batching=batching))
        training.train(replace(one, data=data), tiny.Recording())  # 3 rows, 8 prompts: every row comes again
        found.append([r["score"] for r in logged(tmp_path / batching)])
        assert {r["prompt"] for r in logged(tmp_path / batching)} == {r["prompt"] for r in rows}
        asked = [text for call in assembled[-1].asked for text in call]
        assert len(asked) == 16 + 1 + 3  # responses, the one after training, baselines
        for i, r in enumerate(rows):
            text = (i, r["prompt"] + r["reference"])
            drawn = sum((s["prompt"] + s["response"]) == text[1] for s in logged(tmp_path / batching))
            assert asked.count(text) - drawn in (1, 2)  # the response after training may be the same text
    assert found[0] == pytest.approx(found[1], abs=1e-5)


FUNCTION = """\
    def near(completions, answer, kind):
        return [0.1 * len(c) + len(a) + 10.0 * (k == "sum") for c, a, k in zip(completions, answer, kind, strict=True)]
    """


def test_a_function_as_the_base_gets_the_columns_of_its_row(rlctl, folder):
    test_cli._write(folder, "mypkg.py", FUNCTION)
    done = rlctl("train", "reward=calibrated", "reward.base=fn:mypkg.near", "hydra.run.dir=run", "algo=rloo", *test_cli.TINY)
    assert done.status == 0, done.err
    rows = logged(folder / "run")
    assert {r["columns"]["kind"] for r in rows} == {"sum", "sentence"}
    for r in rows:
        rest = len(r["columns"]["answer"]) + 10.0 * (r["columns"]["kind"] == "sum")
        assert r["parts"]["baseline"] == pytest.approx(rest + 0.1 * len(r["columns"]["reference"]))
        assert r["score"] == pytest.approx(sigmoid(0.1 * (len(r["response"]) - len(r["columns"]["reference"]))), abs=1e-6)


@pytest.mark.parametrize("algo", [PPOConfig(missing_eos_penalty=0.5), RLOOConfig(samples_per_prompt=2, missing_eos_penalty=0.5)])
def test_the_algorithm_takes_the_penalty_off_no_second_time(assembled, tmp_path, algo):
    training.train(config(tmp_path / "run", CalibratedRewardConfig(), algo=algo, max_new_tokens=3), tiny.Recording())
    rows = logged(tmp_path / "run")
    assert {r["truncated"] for r in rows} == {True, False}
    for r in rows:
        assert r["adjusted_score"] == r["score"] == pytest.approx(sigmoid(r["parts"]["difference"]), abs=1e-6)


def test_saturation_is_measured_and_warned_of(assembled, tmp_path, monkeypatch):
    test_cli._write(tmp_path, "steep.py", "def f(completions):\n    return [100.0 * len(c) for c in completions]\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen = tiny.Recording()
    training.train(config(tmp_path / "run", CalibratedRewardConfig(base="fn:steep.f")), seen)
    assert {w.key for w in seen.warnings} == {"saturated"}
    for step in seen.steps:
        rows = [json.loads(line) for line in (tmp_path / f"run/samples/step_{step.step:06d}.jsonl").read_text().splitlines()]
        share = sum(abs(r["parts"]["difference"]) > 5 for r in rows) / len(rows)
        assert step.metrics["reward/saturated"] == pytest.approx(share) and share >= 0.5


# --- baselines sampled before training


def sampled(env: Any, run_dir: Path, assembled: list[Assembly], seed: int = 0, **changes: Any) -> tuple[Assembly, list[Any], Any]:
    """A run on tiny models with baselines drawn beforehand; what it was at its first step, and what it told."""
    one = env.config(run_dir, seed=seed, rollout={"max_new_tokens": 3, "prompts_per_step": 4}, run={"steps": 2}, **changes)
    reward = CalibratedRewardConfig(base="fn:tinyreward.score", baseline=Baseline.sample)
    told = tiny.Recording()
    training.train(replace(one, reward=reward, algo=RLOOConfig(samples_per_prompt=3, missing_eos_penalty=0.7)), told)
    return assembled[-1], logged(run_dir), told


def test_sampled_baselines_are_one_a_used_prompt_and_are_used(env, tmp_path, assembled):
    run, rows, told = sampled(env, tmp_path / "run", assembled)
    used = [p for step in (1, 2) for p in run.prompts.at(step, 4)]
    baselines = run.collector.reward.baselines
    assert set(baselines) == {p.row for p in used} and len(baselines) == 8
    assert "drew 8 baselines from the starting policy" in told.notes
    assert len(rows) == 24
    from tinyreward import score

    for i, r in enumerate(rows):
        answer, cut = baselines[used[i // 3].row]
        raw, against = score([r["prompt"] + r["response"]])[0], score([r["prompt"] + answer])[0]
        assert r["prompt"] == used[i // 3].text
        assert r["score"] == pytest.approx(sigmoid(raw - 0.7 * r["truncated"] - against + 0.7 * cut), abs=1e-6)


def test_a_sampled_baseline_that_was_cut_is_marked(env, tmp_path, assembled):
    run, _, _ = sampled(env, tmp_path / "run", assembled)
    baselines = run.collector.reward.baselines.values()
    assert {cut for _, cut in baselines} == {True, False}
    for answer, cut in baselines:
        assert cut == (len(re.findall(r"\w", answer)) == 3)  # a finished one has an end token among its three


def test_sampled_baselines_depend_on_the_seed_and_not_on_training(env, tmp_path, assembled):
    first, again, slower, other = (
        sampled(env, tmp_path / str(i), assembled, seed=seed, optim={"lr": lr})[0].collector.reward.baselines
        for i, (seed, lr) in enumerate([(0, 1e-2), (0, 1e-2), (0, 0.0), (1, 1e-2)])
    )
    assert first == again == slower  # drawn before the policy moves
    assert list(first.values()) != list(other.values())


def test_at_the_start_a_response_beats_a_sampled_baseline_half_of_the_time(assembled, tmp_path):
    one = config(tmp_path / "run", CalibratedRewardConfig(baseline=Baseline.sample), prompts_per_step=96)
    training.train(replace(one, run=replace(one.run, steps=1)), tiny.Recording())
    scores = [r["score"] for r in logged(tmp_path / "run")]
    assert sum(scores) / len(scores) == pytest.approx(0.5, abs=0.08)
    assert max(scores) - min(scores) > 0.3
