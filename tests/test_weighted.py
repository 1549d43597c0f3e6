"""A weighted sum of rewards: its numbers, what is logged of it, and the words for what cannot be a term."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_cli
import tiny

from rlctl.config.schema import FunctionRewardConfig
from rlctl.errors import RewardError
from rlctl.metrics import part_metrics
from rlctl.rewards.function import FunctionReward
from rlctl.rewards.weighted import Term, WeightedReward
from rlctl.tensors import alone

folder, rlctl = test_cli.folder, test_cli.rlctl
THREE = tiny.samples(["a", "bb", "ccc"])


def term(name: str, function: Callable[..., Any] | list[Any], weight: float = 1.0, clip: float | None = None, **config: Any) -> Term:
    f = function if callable(function) else lambda texts: function
    return Term(name, FunctionReward(FunctionRewardConfig(path=f"mypkg.{name}", **config), f, may_abstain=True), weight, clip)


def refused(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(RewardError) as caught:
        call()
    return caught.value.lines()


# --- the sum


def test_weights_multiply_and_add():
    reward = WeightedReward([term("a", [1.0, 2.0, 3.0], 2.0), term("b", [10.0, 0.0, -4.0], -0.5)])
    got = reward.scored(THREE)
    assert got.scores == [-3.0, 4.0, 8.0]
    assert got.parts == {"a": [1.0, 2.0, 3.0], "b": [10.0, 0.0, -4.0]}
    assert reward.score(THREE) == got.scores
    assert reward.name == "2 a + -0.5 b"


def test_a_term_is_clipped_on_both_sides_before_its_weight():
    got = WeightedReward([term("a", [5.0, -5.0, 0.5], 10.0, clip=1.0), term("b", [5.0, 0.0, 0.0])]).scored(THREE)
    assert got.scores == [15.0, -10.0, 5.0]
    assert got.parts["a"] == [1.0, -1.0, 0.5]


def test_a_term_that_abstains_adds_nothing_and_is_counted():
    got = WeightedReward([term("a", [None, 2.0, None], 3.0, clip=5.0), term("b", [1.0, 1.0, 4.0])]).scored(THREE)
    assert got.scores == [1.0, 7.0, 4.0]
    assert got.parts["a"] == [None, 2.0, None]
    metrics = part_metrics(got.parts, alone)
    assert metrics["reward/a"] == 2.0 and metrics["reward/a_std"] == 0.0  # over those that it answered
    assert metrics["reward/a_abstained"] == pytest.approx(2 / 3)
    assert metrics["reward/b"] == 2.0 and metrics["reward/b_std"] == pytest.approx(2**0.5)
    assert "reward/b_abstained" not in metrics


def test_an_abstention_is_not_a_zero():
    given, silent = (WeightedReward([term("a", [x, 1.0, 1.0]), term("b", [5.0, 5.0, 5.0])]) for x in (0.0, None))
    assert given.scored(THREE).scores == silent.scored(THREE).scores
    assert part_metrics(given.scored(THREE).parts, alone)["reward/a"] != part_metrics(silent.scored(THREE).parts, alone)["reward/a"]


def test_a_sample_that_nobody_answers_for_is_an_error():
    reward = WeightedReward([term("a", [1.0, None, None]), term("b", [None, 2.0, None])])
    assert refused(lambda: reward.score(THREE)) == [
        "error: every term abstained on sample 2",
        "  why:  its text: 'ccc'",
        "  try:  let one term answer for every sample",
    ]


def test_a_failing_term_names_itself():
    reward = WeightedReward([term("fine", [1.0, 1.0, 1.0]), term("few", [1.0])])
    lines = refused(lambda: reward.score(THREE))
    assert lines[0] == "error: term 'few': reward fn:mypkg.few returned 1 scores"
    assert lines[1:] == ["  why:  expected a list of 3 numbers, one per text", "  try:  return [float(...) for text in texts]"]

    def broken(texts):
        raise KeyError("solution")

    lines = refused(lambda: WeightedReward([term("broken", broken)]).score(THREE))
    assert lines[0] == "error: term 'broken': reward fn:mypkg.broken raised KeyError"
    assert __file__ in "\n".join(lines)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1"])
def test_an_abstention_is_none_and_nothing_else(value):
    lines = refused(lambda: WeightedReward([term("a", [0.0, value, None]), term("b", [1.0] * 3)]).score(THREE))
    assert "for sample 1, expected a finite number" in lines[0]


# --- terms that wait


def test_terms_that_wait_wait_together():
    """Each says that it has begun and goes on only when the other has: one after the other, both would wait in vain."""
    import asyncio

    begun = {"a": threading.Event(), "b": threading.Event()}

    def waiting(mine: str, other: str):
        async def f(texts):
            begun[mine].set()
            met = await asyncio.to_thread(begun[other].wait, 5.0)
            return [float(met)] * len(texts)

        return term(mine, f)

    reward = WeightedReward([waiting("a", "b"), term("plain", [0.5, 0.5, 0.5]), waiting("b", "a")])
    assert reward.scored(THREE).parts == {"a": [1.0] * 3, "plain": [0.5] * 3, "b": [1.0] * 3}


def test_a_term_that_computes_stays_in_the_main_thread():
    def f(texts):
        return [float(threading.current_thread() is threading.main_thread())] * len(texts)

    async def waits(texts):
        return [0.0] * len(texts)

    assert WeightedReward([term("waits", waits), term("f", f)]).score(THREE) == [1.0] * 3


# --- arguments


def test_arguments_reach_the_function_by_name():
    def f(texts, threshold, power=1):
        return [float(len(t) > threshold) ** power * power for t in texts]

    assert term("f", f, args={"threshold": 1, "power": 2}).scores(THREE) == [0.0, 2.0, 2.0]
    assert term("f", f, args={"threshold": 2}).scores(THREE) == [0.0, 0.0, 1.0]


def test_an_argument_that_the_function_lacks_is_refused():
    def f(texts, threshold=1):
        return [0.0] * len(texts)

    reward = FunctionReward(FunctionRewardConfig(path="mypkg.f", args={"treshold": 2}), f)
    assert refused(lambda: reward.check_columns([])) == [
        "error: reward fn:mypkg.f has no parameter 'treshold'",
        "  why:  its parameters are: texts, threshold",
        "  try:  leave reward.args.treshold out, or add the parameter",
    ]
    FunctionReward(FunctionRewardConfig(path="mypkg.f", args={"anything": 2}), lambda texts, **kwargs: [0.0]).check_columns([])


# --- from the command line

MODULE = """\
    def length(completions, x=1):
        return [float(x * len(c)) for c in completions]

    def needs(texts, x):
        return [x] * len(texts)

    def sums(completions, kind):
        return [len(c) if k == "sum" else None for c, k in zip(completions, kind, strict=True)]

    def never(texts):
        return [None] * len(texts)
    """


@pytest.fixture
def run(rlctl, folder: Path):
    """Trains in a folder with MODULE as mypkg; (what came of it, metrics rows, samples of both steps)."""
    test_cli._write(folder, "mypkg.py", MODULE)

    def train(*argv: str):
        done = rlctl("train", *argv[:1], "hydra.run.dir=run", *test_cli.TINY, *argv[1:])
        lines = [(p, [json.loads(x) for x in p.read_text().splitlines()]) for p in sorted(folder.glob("run/**/*.jsonl"))]
        metrics = next((rows for p, rows in lines if p.name == "metrics.jsonl"), [])
        return done, metrics, [rows for p, rows in lines if p.parent.name == "samples"]

    return train


TERMS = "reward.terms=[{reward: fn:mypkg.length, weight: 0.5, clip: 12, args: {x: 2}}, {reward: fn:mypkg.sums, name: of_sums, weight: -3}]"


def test_every_term_is_logged_by_name(run):
    kinds = [{"prompt": f"{i} + 1 =", "kind": "sum" if i % 4 == 0 else "other"} for i in range(8)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kinds))
    done, metrics, samples = run("reward=weighted", TERMS, "rollout.prompts_per_step=8", "data=file:rows.jsonl")
    assert done.status == 0, done.err
    for row, step in zip(metrics, samples, strict=True):
        assert {k for k in row if k.startswith("reward/")} >= {"reward/length", "reward/length_std", "reward/of_sums", "reward/of_sums_std"}
        for s in step:
            n, is_sum = len(s["response"]), s["columns"]["kind"] == "sum"
            assert s["parts"] == {"length": min(12.0, 2.0 * n), "of_sums": float(n) if is_sum else None}
            assert s["score"] == pytest.approx(0.5 * min(12.0, 2.0 * n) - 3.0 * n * is_sum)
        answered = [s["parts"]["of_sums"] for s in step if s["parts"]["of_sums"] is not None]
        assert len(answered) == 2
        assert row["reward/of_sums"] == pytest.approx(sum(answered) / len(answered))
        assert row["reward/of_sums_abstained"] == 0.75
        assert row["reward/length"] == pytest.approx(sum(s["parts"]["length"] for s in step) / 8)
        assert "reward/length_abstained" not in row


@pytest.mark.parametrize("override", ["+reward.args.x=3", "reward.args.x=3", "reward.args={x: 3}"])
def test_arguments_of_a_function_from_the_command_line(run, override):
    done, _, samples = run("reward=fn:mypkg.length", override)
    assert done.status == 0, done.err
    assert all(s["score"] == 3.0 * len(s["response"]) for s in samples[0])


def test_arguments_of_a_function_from_a_recipe(run, folder):
    (folder / "mine").mkdir()
    text = "defaults: [base, _self_]\nreward: {path: mypkg.length, args: {x: 3}}\n"
    (folder / "mine" / "config.yaml").write_text(text)
    done, _, samples = run("mine")
    assert done.status == 0, done.err
    assert all(s["score"] == 3.0 * len(s["response"]) for s in samples[0])


def test_a_required_parameter_may_be_an_argument(run):
    done, metrics, _ = run("reward=fn:mypkg.needs", "+reward.args.x=2")
    assert done.status == 0, done.err
    assert metrics[0]["objective/scores"] == 2.0


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["reward=fn:mypkg.length", "+reward.args.y=2"], "error: reward fn:mypkg.length has no parameter 'y'"),
        (["reward=weighted", "reward.terms=[{reward: fn:mypkg.length, args: {y: 2}}]"],
         "error: reward fn:mypkg.length has no parameter 'y'"),
        (["reward=fn:mypkg.never"], "error: reward fn:mypkg.never returned None for sample 0, expected a finite number"),
        (["reward=weighted", "reward.terms=[{reward: fn:mypkg.never}]"], "error: every term abstained on sample 0"),
        (["reward=weighted", "reward.terms=[{reward: fn:mypkg.needs, name: it}]"],
         "error: reward fn:mypkg.needs requires 'x', which no column of the data is called"),
    ],
)  # fmt: skip
def test_what_a_function_or_a_term_cannot_do(run, argv, line):
    done, _, _ = run(*argv)
    assert done.status == 3
    assert done.err.splitlines()[0] == line


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["reward=fn:mypkg.length", "reward.argss.x=1"], "reward.argss.x=1: there is no key 'reward.argss.x'"),
        (["reward=fn:mypkg.length", "reward.args_x=1"], "reward.args_x=1: there is no key 'reward.args_x'"),
        (["reward=model:builtin", "reward.args.x=1"], "reward.args"),
        (["reward=weighted", "reward.args.x=1"], "reward.args"),
    ],
)
def test_arguments_go_nowhere_else(run, argv, why):
    done, _, _ = run(*argv)
    assert done.status == 2 and "Traceback" not in done.err
    assert done.err.splitlines()[1].startswith(f"  why:  {why}")


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ("[]", "reward=weighted needs reward.terms, such as 'reward.terms=[{reward: fn:mypkg.count_good, weight: 1.0}]'"),
        ("[{reward: fn:mypkg.length}, {reward: fn:mypkg.length, weight: 2}]",
         "reward.terms: two terms are called 'length'; give each a name of its own"),
        ("[{reward: fn:mypkg.length, name: a}, {reward: fn:mypkg.sums, name: a}]",
         "reward.terms: two terms are called 'a'; give each a name of its own"),
        ("[{reward: 'foo:bar'}]",
         "reward.terms: 'foo:bar': expected fn:MODULE.FUNCTION, class:MODULE.CLASS or model:PATH_OR_HUB_ID"),
        ("[{reward: mypkg.length}]",
         "reward.terms: 'mypkg.length': expected fn:MODULE.FUNCTION, class:MODULE.CLASS or model:PATH_OR_HUB_ID"),
        ("[{reward: model:builtin, args: {x: 1}}]", "reward.terms: 'model:builtin': a reward model takes no args"),
        ("[{reward: fn:length}]", "reward=fn:length: expected the dotted path of a function, such as fn:mypkg.count_good"),
        ("[{reward: fn:mypkg.length}, {reward: fn:mypkg.sums, clip: 0}]", "reward.terms[1].clip=0.0: must be greater than 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_terms(run, terms, why):
    done, _, _ = run("reward=weighted", f"reward.terms={terms}")
    assert done.status == 2
    assert done.err.splitlines()[1] == f"  why:  {why}"


def test_a_list_of_terms_left_out_is_refused(run):
    done, _, _ = run("reward=weighted")
    assert done.status == 2 and "reward=weighted needs reward.terms" in done.err


def test_the_suggested_terms_can_be_typed_as_they_are(run, folder):
    done, _, _ = run("reward=weighted")
    (folder / "run").rename(folder / "refused")
    (suggested,) = [part for part in done.err.split("'") if part.startswith("reward.terms=")]
    done, _, _ = run("reward=weighted", suggested.replace("count_good", "length"))
    assert done.status == 0, done.err


def test_one_reward_model_in_two_terms_is_loaded_once(run, monkeypatch):
    from rlctl.rewards import model

    loaded, real = [], model.load_weights

    def load(*args, **kwargs):
        loaded.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(model, "load_weights", load)
    terms = "[{reward: model:builtin, name: one, weight: 2}, {reward: model:builtin, name: two, weight: -1}]"
    done, _, samples = run("reward=weighted", f"reward.terms={terms}", "value=policy")
    assert done.status == 0, done.err
    assert len(loaded) == 1
    for s in samples[0]:
        assert s["parts"]["one"] == s["parts"]["two"] == pytest.approx(s["score"], abs=1e-5) and s["score"] != 0


def test_a_sum_of_several_is_no_start_for_a_value_model(run):
    done, _, _ = run("reward=weighted", "reward.terms=[{reward: model:builtin}, {reward: fn:mypkg.length}]", "value=reward")
    assert done.status == 2 and "value=reward needs a reward model to start from, and the reward is a sum of several" in done.err
