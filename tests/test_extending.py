"""An algorithm and a reward from outside, by the text of conf/EXTENDING.md, and what is refused."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pages
import pytest
import tiny
import torch
from safetensors.torch import load_file

import rlctl
from rlctl import algos, cli
from rlctl.algos.custom import KNOWN
from rlctl.config import compose
from rlctl.config.schema import (
    CalibratedRewardConfig,
    CGPOConfig,
    ClassRewardConfig,
    Config,
    CustomAlgoConfig,
    Resume,
    Schedule,
    TaskConfig,
    TermConfig,
    WeightedRewardConfig,
)
from rlctl.errors import RlctlError
from rlctl.metrics import METRICS
from rlctl.rewards.build import load, open_leaves
from rlctl.rewards.custom import ClassReward
from rlctl.rollout import Batch, Forward, Rollout, Sequences
from rlctl.train import train

FILES = pages.files(pages.EXTENDING)
SMALL = ["rollout.prompts_per_step=6", "rollout.max_new_tokens=5", "console.mode=plain", "run.tracker=none", "hydra.run.dir=out"]
REINFORCE = CustomAlgoConfig(path="algorithms.Reinforce")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with the page's files in it; modules written there are imported anew."""
    for name in ("algorithms.py", "rewards.py"):
        (tmp_path / name).write_text(FILES[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    compose._fresh_dir.cache_clear()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield tmp_path
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    importlib.invalidate_caches()


def refused(call: Any) -> list[str]:
    with pytest.raises(RlctlError) as caught:
        call()
    return caught.value.lines()


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


# the page's own text, through the command line


def test_the_pages_algorithm_and_reward_train_from_the_command_line(outside, env):
    given = [f"model=hf:{env.policy}", f"data=file:{env.prompts}", "optim.lr=1e-3", "debug.checks=true"]
    ours = [
        "algo=class:algorithms.Reinforce",
        "algo.args.decay=0.75",
        "reward=class:rewards.Fresh",
        "reward.args.word=a",
        "reward.args.bonus=4",
    ]
    assert cli.main(["train", *ours, *given, "run.steps=3", *SMALL]) == 0
    one, two, three = rows(outside / "out")
    # the first baseline is the first mean; then 3/4 of the old and 1/4 of the new
    assert one["algo/baseline"] == pytest.approx(one["objective/rlhf_reward"], abs=1e-5)
    assert two["algo/baseline"] == pytest.approx(one["algo/baseline"], abs=1e-5)
    assert three["algo/baseline"] == pytest.approx(0.75 * two["algo/baseline"] + 0.25 * two["objective/rlhf_reward"], abs=1e-5)
    for row in (one, two, three):
        assert row["reward/words"] + row["reward/fresh"] == pytest.approx(row["objective/scores"], abs=1e-5)
        assert row["policy/updates"] == row["step"]
    assert one["objective/kl"] == pytest.approx(0.0, abs=1e-5)
    before, after = (load_file(folder / "model.safetensors") for folder in (env.policy, outside / "out" / "policy"))
    assert all(not torch.equal(before[name], after[name]) for name in after)
    samples = [json.loads(line) for line in (outside / "out/samples/step_000001.jsonl").read_text().splitlines()]
    assert samples[0]["parts"].keys() == {"words", "fresh"}
    title = json.loads((outside / "out" / "plan.json").read_text())
    assert title["reward"] == "class:rewards.Fresh"
    assert title["KL"] == "kl_coef 0.05, used by class:algorithms.Reinforce as it sees fit"


def test_the_saved_config_of_a_run_with_both_reads_back(outside, env):
    argv = ["train", "algo=class:algorithms.Reinforce", "reward=class:rewards.Fresh", "algo.args.decay=0.5", "reward.args.word=b"]
    assert cli.main([*argv, f"model=hf:{env.policy}", f"data=file:{env.prompts}", "run.steps=1", *SMALL]) == 0
    config = compose.load(outside / "out" / "config.yaml")
    assert config.algo == CustomAlgoConfig(path="algorithms.Reinforce", args={"decay": 0.5})
    assert config.reward == ClassRewardConfig(path="rewards.Fresh", args={"word": "b"})
    assert compose.changed(config, ["algo.args.decay=0.25", "run.steps=2"]).algo.args == {"decay": 0.25}


def test_the_pages_algorithm_raises_what_is_rewarded(outside, env):
    """Forty steps on "how many a": the mean rises by more than one. With the sign of its loss turned, it falls."""
    steps = {"optim": {"lr": 3e-3}, "run": {"steps": 40, "samples_every": 99}, "rollout": {"prompts_per_step": 32}}

    def trained(path: str) -> list[float]:
        algo = {"kl_coef": 0.0, "path": path}
        config = env.config(outside / path, reward="tinyreward.count_a", algo_type=CustomAlgoConfig, algo=algo, **steps)
        train(config, tiny.Recording())
        return [row["objective/scores"] for row in rows(outside / path)]

    write(outside, "turned.py", FILES["algorithms.py"].replace("loss = -(", "loss = ("))
    rising, falling = trained("algorithms.Reinforce"), trained("turned.Reinforce")
    assert sum(rising[-5:]) / 5 > sum(rising[:5]) / 5 + 1.0
    assert sum(falling[-5:]) / 5 < sum(falling[:5]) / 5


def _rollout(scores: list[float]) -> Rollout:
    ids = torch.tensor([[1, 2, 7], [3, 7, 0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    sequences = Sequences(torch.ones(2, 1, dtype=torch.long), torch.ones(2, 1, dtype=torch.bool), ids, mask)
    old = torch.tensor([[-1.0, -2.0, -0.5], [-0.7, -0.1, 0.0]])
    ref = torch.tensor([[-1.5, -2.5, -0.5], [-0.7, -0.1, 0.0]])  # KL of the first response: 1 nat
    s = torch.tensor(scores)
    return Rollout(sequences, old, torch.zeros(2, 3), ref, None, s, s, torch.tensor([False, False]))


def test_the_pages_loss_by_a_worked_number(outside):
    """Returns 3 - 0.5 * 1 and 1.5: mean 2, advantages 0.5 and -0.5. d loss / d logprob = -A / 2 on every real token."""
    algorithm = algos.build(REINFORCE)
    batch, metrics = algorithm.prepare(_rollout([3.0, 1.5]), 0.5, lambda x: x)
    assert metrics == {"algo/baseline": pytest.approx(2.0)}
    logprobs = torch.tensor([[-1.0, -2.0, -0.5], [-0.7, -0.1, -9.0]], requires_grad=True)
    loss, stats = algorithm.loss(batch, Forward(logprobs=logprobs), algos.Counts(5.0, 2.0))
    assert loss.item() == pytest.approx(-(0.5 * -3.5 + -0.5 * -0.8) / 2)
    loss.backward()
    assert logprobs.grad.tolist() == [[-0.25, -0.25, -0.25], [0.25, 0.25, 0.0]]
    assert stats["loss/policy"] is loss
    # shares of a minibatch add up
    parts = [
        algorithm.loss(batch.select(torch.tensor([i])), Forward(logprobs=logprobs[i : i + 1, : 3 - i]), algos.Counts(5.0, 2.0))
        for i in (0, 1)
    ]
    assert (parts[0][0] + parts[1][0]).item() == pytest.approx(loss.item())
    # the running mean: 0.9 * 2 + 0.1 * 2 before, then 0.9 * 2 + 0.1 * 4
    assert algorithm.prepare(_rollout([4.5, 4.0]), 0.5, lambda x: x)[1] == {"algo/baseline": pytest.approx(2.0)}
    assert algos.state_of(algorithm) == {"baseline": pytest.approx(2.2)}


def test_the_pages_reward_by_worked_numbers(outside):
    reward = ClassReward(ClassRewardConfig(path="rewards.Fresh", args={"word": "a", "bonus": 6.0}))
    first = reward.scored(replace(tiny.samples(["a a", "b", "b"]), responses=["x", "y", "y"]))
    assert (first.scores, first.parts) == ([8.0, 3.0, 3.0], {"words": [2.0, 0.0, 0.0], "fresh": [6.0, 3.0, 3.0]})
    other = ClassReward(ClassRewardConfig(path="rewards.Fresh", args={"word": "a", "bonus": 6.0}))
    other.restore(reward.state())
    assert other.score(replace(tiny.samples(["b"]), responses=["y"])) == [2.0]


def test_a_run_goes_on_with_the_state_of_both(outside, env):
    """Two steps and two more are four: the baseline and the responses seen so far are kept, and matter."""
    base = env.config(
        outside / "whole", algo_type=CustomAlgoConfig, algo={"path": "algorithms.Reinforce"}, run={"steps": 4, "save_every": 2, "keep": 9}
    )
    base = replace(
        base,
        reward=ClassRewardConfig(path="rewards.Fresh", args={"word": "a", "bonus": 3.0}),
        optim=replace(base.optim, schedule=Schedule.constant),
    )
    train(base, tiny.Recording())
    (outside / "parts").mkdir()
    part = replace(base, run=replace(base.run, dir=str(outside / "parts"), steps=2))
    train(part, tiny.Recording())
    train(replace(part, run=replace(part.run, steps=4, resume=Resume.auto)), tiny.Recording())

    def steady(run: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if not k.startswith(("time/", "tokens/per"))} for row in rows(run)]

    assert steady(outside / "parts") == steady(outside / "whole")
    assert steady(outside / "whole")[3]["algo/baseline"] != steady(outside / "whole")[0]["algo/baseline"]
    assert steady(outside / "whole")[3]["reward/fresh"] < 3.0


def test_an_option_file_of_a_recipe(outside):
    recipe = outside / "myrecipe"
    (recipe / "algo").mkdir(parents=True)
    (recipe / "config.yaml").write_text("defaults: [base, _self_]\n")
    (recipe / "algo" / "reinforce.yaml").write_text(FILES["algo/reinforce.yaml"])
    jobs: list[compose.Job] = []
    compose.run(["algo=reinforce", "algo.args.decay=0.8", "algo.kl_coef=0.2"], recipe, jobs.append)
    assert jobs[0].config.algo == CustomAlgoConfig(path="algorithms.Reinforce", samples_per_prompt=2, args={"decay": 0.8}, kl_coef=0.2)
    compose.check(jobs[0].config)


def test_a_sweep_over_algorithms_inside_and_outside(outside):
    jobs: list[compose.Job] = []
    compose.run(["-m", "algo=rloo,class:algorithms.Reinforce"], None, jobs.append)
    assert [job.config.algo.title for job in jobs] == ["rloo", "class:algorithms.Reinforce"]


# rewards in rewards


def test_a_class_inside_calibrated_and_weighted(outside, env):
    spec = "class:rewards.Fresh"
    weighted = WeightedRewardConfig(
        terms=[TermConfig(reward=spec, weight=0.5, args={"word": "a"}), TermConfig(reward="fn:tinyreward.count_a")]
    )
    for config in (CalibratedRewardConfig(base=spec), weighted):
        opened = open_leaves(config)
        assert isinstance(opened[0].function, ClassReward)
        reward = load(Config(reward=config), opened, None, torch.device("cpu"))  # type: ignore[arg-type]
        kept = reward.state()
        assert kept[{"calibrated": "base", "weighted": "Fresh"}[config.kind]] == {"seen": {}}
        reward.restore(kept)
    assert reward.score(replace(tiny.samples(["a a"]), responses=["x"])) == [0.5 * (2 + 1) + 2]


def test_a_class_may_abstain_inside_a_weighted_sum_only(outside):
    write(
        outside,
        "shy.py",
        "from rlctl.rewards.base import Reward\nclass Shy(Reward):\n    def score(self, samples):\n        return [None, 1.0]\n",
    )
    config = WeightedRewardConfig(terms=[TermConfig(reward="class:shy.Shy"), TermConfig(reward="class:rewards.Fresh", args={"bonus": 0.0})])
    reward = load(Config(reward=config), open_leaves(config), None, torch.device("cpu"))  # type: ignore[arg-type]
    assert reward.scored(tiny.samples(["good", "good"])).scores == [1.0, 2.0]
    alone = ClassReward(ClassRewardConfig(path="shy.Shy"))
    assert refused(lambda: alone.score(tiny.samples(["x", "y"])))[0] == (
        "error: reward class:shy.Shy returned None for sample 0, expected a finite number"
    )


BROKEN = """
from rlctl.rewards.base import Reward, Scored

class Few(Reward):
    def score(self, samples): return [1.0]

class BadPart(Reward):
    def scored(self, samples): return Scored([1.0, 2.0], {"p": [1.0]})

class Bare(Reward):
    def scored(self, samples): return [1.0, 2.0]

class Raises(Reward):
    def score(self, samples): return [1 / 0]

class Nothing(Reward):
    pass

class Plain:
    pass

class Needs(Reward):
    def __init__(self, word): pass
    def score(self, samples): return [0.0]

class Unready(Reward):
    def __init__(self): raise OSError("no server")

class Odd(Reward):
    def score(self, samples): return [0.0, 0.0]
    def state(self): return {"a": [1, {"b": {1, 2}}]}
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Few", ["error: reward class:broken.Few returned 1 scores", "  why:  expected a list of 2 numbers, one per text"]),
        ("BadPart", ["error: reward class:broken.BadPart, part 'p', returned 1 scores"]),
        ("Bare", ["error: reward class:broken.Bare: scored returned a list", "  why:  expected a rlctl.rewards.base.Scored"]),
        (
            "Raises",
            [
                "error: reward class:broken.Raises raised ZeroDivisionError",
                "  why:  ZeroDivisionError: division by zero",
                "        first text: 'x'",
            ],
        ),
        ("Nothing", ["error: reward class:broken.Nothing gives no scores"]),
        (
            "Plain",
            ["error: reward class:broken.Plain is not a reward", "  why:  Plain does not derive from rlctl.rewards.base.Reward"],
        ),
        (
            "Needs",
            [
                "error: reward class:broken.Needs cannot be made",
                "  why:  missing a required argument: 'word'",
                "  try:  reward.args.NAME=VALUE gives it an argument",
            ],
        ),
        ("Unready", ["error: reward class:broken.Unready raised OSError", "  why:  no server"]),
        ("zzz", ["error: reward class:broken.zzz: module broken has no 'zzz'"]),
    ],
)
def test_rewards_that_are_refused(outside, name, expected):
    write(outside, "broken.py", BROKEN)
    got = refused(lambda: ClassReward(ClassRewardConfig(path=f"broken.{name}")).score(tiny.samples(["x", "y"])))
    assert got[: len(expected)] == expected
    if name == "Raises":
        assert any("broken.py" in line for line in got) and not any("rlctl/rewards" in line for line in got)


def test_state_that_a_checkpoint_could_not_give_back_is_refused(outside):
    write(outside, "broken.py", BROKEN)
    assert refused(lambda: ClassReward(ClassRewardConfig(path="broken.Odd")).state()) == [
        "error: reward class:broken.Odd.state() holds a set",
        "  why:  a checkpoint keeps numbers, texts, None, tensors, and lists, tuples and dictionaries of them",
        "  try:  dict(...) of a Counter, list(...) of a set, float(...) of a numpy number",
    ]


# algorithms that are refused


ALGORITHMS = """
import torch
from rlctl.rollout import Batch

class Half:
    needs_value = False
    wants_baselines = False
    def __init__(self, config): pass
    def loss(self, batch, new, counts): pass

class Whole(Half):
    needs_reference = False
    def prepare(self, rollout, kl_coef, total): return Batch(rollout.sequences, rollout.mask), {}
    def loss(self, batch, new, counts): return new.logprobs.sum(), {"mine": new.logprobs.sum(), "policy/ratio": new.logprobs.sum()}

class Words(Whole):
    needs_value = "no"

class Forgets(Whole):
    def state(self): return {}

class NoTuple(Whole):
    def prepare(self, rollout, kl_coef, total): return Batch(rollout.sequences, rollout.mask)
    def loss(self, batch, new, counts): return new.logprobs.sum()

class PerToken(Whole):
    def prepare(self, rollout, kl_coef, total): return Batch(rollout.sequences, rollout.mask[:, :1]), {}
    def loss(self, batch, new, counts): return new.logprobs, {}

class Constant(Whole):
    def loss(self, batch, new, counts): return torch.tensor(0.0), {}

class Floats(Whole):
    def loss(self, batch, new, counts): return new.logprobs.sum(), {"mine": 1.0}
"""


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"path": "mine.Half"},
            [
                "error: algo class:mine.Half lacks needs_reference, prepare",
                "  why:  an algorithm has needs_value, needs_reference, wants_baselines (each True or False) "
                "and prepare and loss (functions)",
                "  try:  rlctl/algos/base.py says what each is; conf/EXTENDING.md has a whole one",
            ],
        ),
        ({"path": "mine.Words"}, ["error: algo class:mine.Words: needs_value is 'no', expected True or False"]),
        (
            {"path": "mine.Forgets"},
            ["error: algo class:mine.Forgets has only one of state and restore", "  why:  a run that goes on needs both"],
        ),
        (
            {"path": "mine.torch"},
            ["error: algo class:mine.torch is not a class", "  why:  it is a module", "  try:  algo=class:MODULE.CLASS"],
        ),
        ({"path": "nosuch.X"}, ["error: algo class:nosuch.X: there is no module 'nosuch'"]),
        (
            {"path": "algorithms.Reinforc"},
            ["error: algo class:algorithms.Reinforc: module algorithms has no 'Reinforc'", "  why:  the module is {folder}/algorithms.py",
             "  try:  algo=class:algorithms.Reinforce"],
        ),
        (
            {"path": "algorithms.Reinforce", "args": {"dekay": 0.5}},
            ["error: algo class:algorithms.Reinforce has no parameter 'dekay'", "  why:  its parameters are: decay",
             "  try:  algo.args.decay=0.5"],
        ),
    ],
)  # fmt: skip
def test_algorithms_that_are_refused(outside, config, expected):
    write(outside, "mine.py", ALGORITHMS)
    got = refused(lambda: algos.build(CustomAlgoConfig(**config)))
    assert got[: len(expected)] == [line.replace("{folder}", str(outside)) for line in expected]


def test_a_module_that_fails_while_being_imported_shows_where(outside):
    write(outside, "sick.py", "import json\n\n1 / 0\n")
    got = refused(lambda: algos.build(CustomAlgoConfig(path="sick.X")))
    assert got == [
        "error: algo class:sick.X: module 'sick' was found but failed while being imported",
        f"  why:  {outside}/sick.py, line 3",
        "        ZeroDivisionError: division by zero",
    ]


@pytest.mark.parametrize(
    ("name", "hook", "expected"),
    [
        ("NoTuple", "prepare", "mine.NoTuple: prepare returned Batch"),
        ("NoTuple", "loss", "mine.NoTuple: loss returned Tensor"),
        ("PerToken", "prepare", "mine.PerToken: the batch's loss_mask is (2, 1), the responses (2, 3)"),
        ("PerToken", "loss", "mine.PerToken: the loss is a tensor of shape (2, 3)"),
        ("Constant", "loss", "mine.Constant: the loss is a number without gradient"),
        ("Floats", "loss", "mine.Floats: metric 'mine' of the loss is no tensor of one number"),
    ],
)
def test_what_a_hook_gives_is_checked(outside, name, hook, expected):
    write(outside, "mine.py", ALGORITHMS)
    algorithm, rollout = algos.build(CustomAlgoConfig(path=f"mine.{name}")), _rollout([1.0, 2.0])
    new = Forward(logprobs=torch.zeros(2, 3, requires_grad=True))
    calls = {
        "prepare": lambda: algorithm.prepare(rollout, 0.0, lambda x: x),
        "loss": lambda: algorithm.loss(Batch(rollout.sequences, rollout.mask), new, algos.Counts(5.0, 2.0)),
    }
    assert refused(calls[hook])[0] == f"error: algo class:{expected}"


def test_metrics_of_its_own_are_told_apart_from_those_of_the_built_in(outside):
    write(outside, "mine.py", ALGORITHMS)
    rollout = _rollout([1.0, 2.0])
    new = Forward(logprobs=torch.zeros(2, 3, requires_grad=True))
    _, stats = algos.build(CustomAlgoConfig(path="mine.Whole")).loss(Batch(rollout.sequences, rollout.mask), new, algos.Counts(5.0, 2.0))
    assert list(stats) == ["algo/mine", "policy/ratio"]
    assert set(METRICS) >= KNOWN


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["algo=class"], "algo=class:?: expected the dotted path of a class, such as class:mypkg.MyAlgorithm"),
        (["reward=class:a/b"], "reward=class:a/b: expected the dotted path of a class, such as class:mypkg.MyReward"),
        (["algo.args.x=1"], "algo.args: algo=ppo takes no arguments; algo=class has them"),
        (
            ["reward=model", "reward.args.x=1"],
            "reward.args: reward=model takes no arguments; reward=fn and class have them, and the terms of reward=weighted",
        ),
        (
            ["algo=class:algorithms.Reinforce", "value=reward", "reward=class:rewards.Fresh"],
            "value=reward needs a reward model to start from, and the reward is the class rewards.Fresh; write value=policy, "
            "or reward=model:PATH",
        ),
    ],
)
def test_configs_that_are_refused(outside, capsys, argv, expected):
    assert cli.main(["train", *argv]) == 2
    assert f"  why:  {expected}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"value": "policy"}, "algo class:algorithms.Reinforce has no value model: its needs_value is False"),
        ({"run": {"save_value": True}}, "algo class:algorithms.Reinforce has no value model: its needs_value is False"),
        ({"tasks": {"a": TaskConfig()}}, "algo class:algorithms.Reinforce cannot have tasks"),
        ({"algo": {"path": "algorithms.Nope"}}, "algo class:algorithms.Nope: module algorithms has no 'Nope'"),
    ],
)
def test_what_only_the_class_can_tell_is_told_before_anything_is_loaded(outside, env, changes, expected):
    given = {"algo_type": CustomAlgoConfig, "algo": {"path": "algorithms.Reinforce"}, "policy": outside / "no-such-model"}
    config = env.config(outside / "run", **given | changes)
    assert refused(lambda: train(config, tiny.Recording()))[0] == f"error: {expected}"


COMBINE = """

class Both(Reinforce):
    def combine(self, batches, weights):
        assert weights == [1.0, 0.5]
        return batches[0]


class Valued(Both):
    needs_value = True
"""


def test_settings_of_a_task_that_the_algorithm_lacks_are_refused():
    config = Config(algo=REINFORCE, tasks={"a": TaskConfig(kl_max=2.0, samples_per_prompt=2)})
    assert compose.problems(config) == ["tasks.a.kl_max: algo=class:algorithms.Reinforce has no algo.kl_max"]
    assert compose.problems(replace(config, algo=CGPOConfig())) == []


def test_an_algorithm_with_combine_trains_on_tasks(outside, env):
    """Each task is prepared by an object of its own; what they learn from is put together by the first."""
    write(outside, "both.py", FILES["algorithms.py"] + COMBINE)
    tasks = {"a": TaskConfig(), "b": TaskConfig(weight=0.5, samples_per_prompt=2)}
    config = env.config(outside / "run", algo_type=CustomAlgoConfig, algo={"path": "both.Both"}, run={"steps": 1}, tasks=tasks)
    recording = tiny.Recording()
    train(config, recording)
    (row,) = rows(outside / "run")
    for task in tasks:
        assert row[f"tasks/{task}/algo/baseline"] == pytest.approx(row[f"tasks/{task}/objective/rlhf_reward"], abs=1e-5)
    assert dict(recording.plans[0].facts)["task b"].startswith("24 from")
    assert refused(lambda: train(replace(config, algo=CustomAlgoConfig(path="both.Valued")), tiny.Recording())) == [
        "error: algo class:both.Valued cannot have tasks",
        "  why:  it needs a value model, which tasks lack",
    ]


def test_the_built_in_conf_ships_the_page():
    assert (Path(rlctl.__file__).parent.parent / "conf" / "EXTENDING.md").is_file()
