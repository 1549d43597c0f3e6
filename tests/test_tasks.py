"""Several tasks in one run: one update of all their gradients, nothing mixed, and what a config may say of them."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_cli
import test_config
import tiny
import torch

from rlctl.algos.cgpo import CGPOBatch
from rlctl.assembly import Assembly
from rlctl.config import compose
from rlctl.config.judges import JudgeConfig, JudgeKind
from rlctl.config.schema import (
    AppendEos,
    CalibratedRewardConfig,
    CGPOConfig,
    CGPOOptimizer,
    DataConfig,
    FunctionRewardConfig,
    ModelRewardConfig,
)
from rlctl.config.tasks import TaskConfig
from rlctl.metrics import METRICS
from rlctl.rewards import build
from rlctl.task import Taken
from rlctl.train import prepare, take, train

folder, rlctl = test_cli.folder, test_cli.rlctl
jobs, config, refused = test_config.jobs, test_config.config, test_config.refused


# --- the update


@pytest.fixture(scope="module")
def data(env, tmp_path_factory) -> Path:
    """Longer prompts with a known answer each."""
    path = tmp_path_factory.mktemp("data") / "answers.jsonl"
    rows = [
        {"prompt": f"d e {p} c d", "reference": answer}
        for p, answer in zip(tiny.PROMPTS, ["a", "b a", "a c a b", "e", "f", "a a"], strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def two(data: Path) -> dict[str, TaskConfig]:
    """CRPG on short responses, CRRAFT with baselines on long ones that a judge mostly fails."""
    plain = TaskConfig(optimizer=CGPOOptimizer.crpg, prompts_per_step=6, samples_per_prompt=3, max_new_tokens=3, weight=0.7)
    learnt = TaskConfig(
        data=DataConfig(path=str(data)),
        reward=CalibratedRewardConfig(base="fn:tinyreward.score"),
        judges=[JudgeConfig(JudgeKind.regex, pattern="^ ?a")],
        optimizer=CGPOOptimizer.crraft,
        prompts_per_step=6,
        samples_per_prompt=2,
        max_new_tokens=7,
        weight=2.5,
    )
    return {"plain": plain, "learnt": learnt}


def build_two(env, data: Path, folder: Path, **changes: Any) -> Assembly:
    return env.build(folder, algo_type=CGPOConfig, **{"tasks": two(data), **changes})


def taken(run: Assembly) -> list[Taken]:
    """A step's rollouts of every task."""
    torch.manual_seed(0)
    return [take(run, task, 1) for task in run.tasks]


def batches(run: Assembly, rollouts: list[Taken]) -> list[CGPOBatch]:
    """Each task's own."""
    return [t.task.algorithm.prepare(t.collected.rollout, 0.0, lambda x: x)[0] for t in rollouts]


def gradient(lm: Any, batch: CGPOBatch) -> dict[str, torch.Tensor]:
    """Of -sum_i w_i log pi(a_i | s_i), row by row without padding, by transformers alone."""
    lm.zero_grad()
    for i, weight in enumerate(batch.weights.tolist()):
        prompt, response = tiny.unpadded(batch.sequences, i)
        logits = lm(input_ids=torch.cat([prompt, response], 1)).logits[:, prompt.shape[1] - 1 : -1]
        (-weight * torch.log_softmax(logits, -1).gather(-1, response.unsqueeze(-1)).sum()).backward()
    found = {name: p.grad.clone() for name, p in lm.named_parameters()}
    lm.zero_grad()
    return found


def test_the_update_is_the_weighted_sum_of_every_tasks_own_gradient(env, data, tmp_path):
    run = build_two(env, data, tmp_path, optim={"lr": 0.0, "max_grad_norm": 1e9})
    rollouts = taken(run)
    plain, learnt = own = batches(run, rollouts)
    assert plain.sequences.prompt_ids.shape[1] != learnt.sequences.prompt_ids.shape[1]
    assert plain.sequences.response_ids.shape[1] != learnt.sequences.response_ids.shape[1]
    assert len(learnt) == 12 + 6 and int((learnt.weights[12:] > 0).sum()) >= 2  # baselines are learnt from
    alone = [gradient(run.collector.lm, batch) for batch in own]
    expected = {name: 0.7 * g + 2.5 * alone[1][name] for name, g in alone[0].items()}
    for other in alone:  # each task's part is more than rounding
        assert max(float(g.abs().max()) for g in other.values()) > 1e-2
    seen = tiny.watch(run)
    for size in (64, 1, 5):
        run.updater.config = replace(run.config, optim=replace(run.config.optim, microbatch_size=size))
        run.updater(prepare(run, rollouts), 1)
        for name, g in expected.items():
            torch.testing.assert_close(seen.gradients[-1][f"policy.lm.{name}"], g, atol=1e-6, rtol=1e-5, msg=f"{size} {name}")


def test_what_one_task_scores_is_nothing_to_another(env, data, tmp_path):
    """CRPG's mean is per task: its weights sum to 0, and scores of another task that double change none of them."""
    tasks = {name: replace(task, optimizer=CGPOOptimizer.crpg, judges=[]) for name, task in two(data).items()}
    run = build_two(env, data, tmp_path, tasks=tasks)
    before = taken(run)
    rollout = before[0].collected.rollout
    doubled = replace(rollout, scores=2 * rollout.scores, adjusted_scores=2 * rollout.adjusted_scores)
    after = [replace(before[0], collected=replace(before[0].collected, rollout=doubled)), before[1]]
    first, second = prepare(run, before), prepare(run, after)
    a, b = slice(0, 18), slice(18, 30)
    assert torch.equal(second.weights[b], first.weights[b])
    torch.testing.assert_close(second.weights[a], 2 * first.weights[a])
    for part, size in ((a, 18), (b, 12)):
        assert float(first.weights[part].abs().max()) > 0.1 / size
        assert float(first.weights[part].sum()) == pytest.approx(0.0, abs=1e-6)


def test_one_task_that_says_nothing_trains_as_the_run_without_it(env, tmp_path):
    made = []
    for name, tasks in (("with", {"only": TaskConfig()}), ("without", {})):
        c = env.config(tmp_path / name, algo_type=CGPOConfig, algo={"samples_per_prompt": 3}, run={"steps": 3}, optim={"lr": 1e-2})
        train(replace(c, tasks=tasks), tiny.Recording())
        made.append((tmp_path / name / "policy" / "model.safetensors").read_bytes())
    assert made[0] == made[1]
    assert made[0] != (env.policy / "model.safetensors").read_bytes()


# --- what each task has of its own


def test_settings_of_a_task_take_effect_and_others_are_the_runs(env, data, tmp_path):
    tasks = two(data)
    run = build_two(env, data, tmp_path, tasks={**tasks, "as_run": TaskConfig()}, rollout={"prompts_per_step": 4, "max_new_tokens": 6})
    rollouts = {t.task.name: t.collected.rollout for t in taken(run)}
    assert {n: (len(r.scores), r.group_size) for n, r in rollouts.items()} == {"plain": (18, 3), "learnt": (12, 2), "as_run": (16, 4)}
    widths = {n: r.mask.shape[1] for n, r in rollouts.items()}
    assert widths["plain"] == 3 and widths["learnt"] == 7 and 3 < widths["as_run"] <= 6
    assert [t.algorithm.config.optimizer for t in run.tasks] == ["crpg", "crraft", "crpg"]
    assert [t.weight for t in run.tasks] == [0.7, 2.5, 1.0]
    assert run.config.samples_per_step == 18 + 12 + 16
    own, base = run.config.by_task["as_run"], replace(run.config, tasks={})
    assert own == base
    plain = run.config.by_task["plain"]
    assert plain.algo == replace(base.algo, optimizer=CGPOOptimizer.crpg, samples_per_prompt=3)
    assert (plain.reward, plain.data, plain.judges, plain.optim) == (base.reward, base.data, base.judges, base.optim)
    assert plain.rollout == replace(base.rollout, prompts_per_step=6, max_new_tokens=3)


def test_a_weight_scales_the_rows_of_its_task(env, data, tmp_path):
    run = build_two(env, data, tmp_path)
    rollouts = taken(run)
    plain, learnt = batches(run, rollouts)
    torch.testing.assert_close(prepare(run, rollouts).weights, torch.cat([0.7 * plain.weights, 2.5 * learnt.weights]))


def test_each_task_has_its_own_bound_on_the_kl(env, data, tmp_path):
    free = TaskConfig(prompts_per_step=6, kl_max=math.inf)
    run = build_two(env, data, tmp_path, tasks={"free": free, "bound": replace(free, kl_max=0.5)})
    moved = []
    for t in taken(run):
        rollout = t.collected.rollout  # as if the policy had moved by a nat a token
        far = replace(rollout, ref_logprobs=rollout.old_logprobs - rollout.mask.float())
        moved.append(replace(t, collected=replace(t.collected, rollout=far)))
    prepare(run, moved)
    scores = moved[0].collected.rollout.scores
    assert moved[0].metrics["cgpo/reward"] == pytest.approx(float(scores.mean()))
    assert (moved[0].metrics["cgpo/zeroed_by_kl"], moved[1].metrics["cgpo/zeroed_by_kl"]) == (0.0, 1.0)
    assert moved[1].metrics["cgpo/reward"] == 0.0


def test_a_reward_model_of_several_tasks_is_read_once(env, data, tmp_path, monkeypatch):
    read = []
    loading = build.load_classifier
    monkeypatch.setattr(build, "load_classifier", lambda *args: read.append(1) or loading(*args))
    path, small = str(env.reward), {"prompts_per_step": 2}
    tasks = {
        "closed": TaskConfig(reward=ModelRewardConfig(path=path, append_eos=AppendEos.always), **small),
        "open": TaskConfig(reward=ModelRewardConfig(path=path, append_eos=AppendEos.never, max_length=2), **small),
        "calibrated": TaskConfig(data=DataConfig(path=str(data)), reward=CalibratedRewardConfig(base=f"model:{path}"), **small),
    }
    run = build_two(env, data, tmp_path, tasks=tasks)
    closed, cut, calibrated = (t.collector.reward for t in run.tasks)
    assert len(read) == 1
    assert closed.model is cut.model is calibrated.base.model
    sample = tiny.samples(["a b c d"])
    a, b, c, d = range(4)
    assert closed.encode(sample, 0) == [a, b, c, d, tiny.EOS]
    assert cut.encode(sample, 0) == [c, d]
    assert calibrated.base.encode(sample, 0) == [a, b, c, d, tiny.EOS]
    assert closed.score(sample) == calibrated.base.score(sample) != cut.score(sample)


# --- a whole run, through the command line

MINE = """\
    SEEN = {}

    def seen(name, prompts):
        SEEN.setdefault(name, set()).update(prompts)

    def spread(prompts, completions):
        seen("reward a", prompts)
        return [float(sum(map(ord, c)) % 7) for c in completions]

    def even(prompts, completions):
        seen("judge a", prompts)
        return [len(c) % 2 == 0 for c in completions]

    def vowels(prompts, completions):
        seen("reward b", prompts)
        return [float(sum(c.count(v) for v in "aeiou")) / 4 for c in completions]

    def doubtful(prompts, completions):
        seen("judge b", prompts)
        return [None if len(c) % 3 == 0 else len(c) % 3 == 1 for c in completions]
    """
RECIPE = """\
    defaults:
      - base
      - override algo: cgpo
      - _self_
    tasks:
      a:
        data: file:a.jsonl
        reward: fn:mine.spread
        judges: [{kind: fn, path: mine.even}]
        prompts_per_step: 3
        kl_max: .inf
      b:
        data: {path: b.jsonl}
        reward: {kind: calibrated, base: "fn:mine.vowels"}
        judges: [{kind: fn, path: mine.doubtful}, {kind: length, max: 3}]
        optimizer: crraft
        samples_per_prompt: 5
        weight: 0.5
    """
A, B = [f"{n} + {n} =" for n in range(1, 7)], [f"The {thing} was" for thing in ("soup", "film", "day", "road", "song")]


def recipe(at: Path) -> Path:
    """A recipe folder with two tasks."""
    at.mkdir()
    test_cli._write(at, "mine.py", MINE)
    test_cli._write(at, "config.yaml", RECIPE)
    (at / "a.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in A))
    (at / "b.jsonl").write_text("".join(json.dumps({"prompt": p, "reference": " good."}) + "\n" for p in B))
    return at


SHARED = {"policy/lr", "policy/grad_norm", "policy/updates", "policy/epochs", "loss/policy", "tokens/per_second", "tokens/padding"}
SHARED |= {"progress/samples", "time/step", "time/generate", "time/score", "time/judge", "time/forward", "time/update"}


def test_a_run_of_two_tasks_mixes_nothing(folder, rlctl):
    recipe(folder / "recipe")
    done = rlctl("train", "recipe", *test_cli.TINY, "hydra.run.dir=run")
    assert done.status == 0, done.err
    seen = importlib.import_module("mine").SEEN
    assert all(prompts <= set(A if name.endswith("a") else B) for name, prompts in seen.items())
    assert sorted(seen) == ["judge a", "judge b", "reward a", "reward b"]
    rows = test_cli._lines(folder / "run" / "metrics.jsonl")
    for row in rows:
        step = row.pop("step")
        assert {n for n in row if not n.startswith("tasks/")} == SHARED
        plain = {n.split("/", 2)[2] for n in row if n.startswith("tasks/")}
        assert {n for n in plain if not n.startswith(("judges/", "reward/"))} <= set(METRICS) - SHARED
        samples = test_cli._samples(folder / "run", step)
        assert [s["task"] for s in samples] == ["a"] * 12 + ["b"] * 20
        assert row["progress/samples"] == step * 32
        for name, prompts in (("a", A), ("b", B)):
            own = [s for s in samples if s["task"] == name]
            assert {s["prompt"] for s in own} <= set(prompts)
            figures = {n.removeprefix(f"tasks/{name}/"): v for n, v in row.items() if n.startswith(f"tasks/{name}/")}
            assert_figures(figures, own)
            assert figures["progress/epoch"] == pytest.approx(step * (3 if name == "a" else 4) / len(prompts))
        assert row["tasks/a/objective/scores_max"] > 1.0 >= row["tasks/b/objective/scores_max"]
    assert {n for n in rows[0] if n.startswith("tasks/a/judges/")} == {
        f"tasks/a/judges/{n}" for n in ("satisfied", "even/pass", "even/unjudged")
    }
    config = compose.load(folder / "run" / "config.yaml")
    assert list(config.tasks) == ["a", "b"] and config.run.dir == str(folder / "run")


def assert_figures(figures: dict[str, float], rows: list[dict[str, Any]]) -> None:
    """A task's metrics are those of its samples."""

    def mean(values: list[float]) -> Any:
        return pytest.approx(sum(values) / len(values), abs=1e-5)

    scores = [r["score"] for r in rows]
    verdicts = {name: [r["verdicts"][name] for r in rows] for name in rows[0]["verdicts"]}
    assert figures["objective/scores"] == mean(scores)
    assert (figures["objective/scores_min"], figures["objective/scores_max"]) == (min(scores), max(scores))
    assert figures["objective/kl"] == mean([r["kl"] for r in rows])
    assert figures["responses/length"] == mean([r["length"] for r in rows])
    assert figures["responses/truncated"] == mean([r["truncated"] for r in rows])
    satisfied = [all(v is True for v in r["verdicts"].values()) for r in rows]
    assert figures["judges/satisfied"] == figures["cgpo/satisfied"] == mean(satisfied)
    for name, given in verdicts.items():
        assert figures[f"judges/{name}/pass"] == mean([v is True for v in given])
        assert figures[f"judges/{name}/unjudged"] == mean([v is None for v in given])
    assert {n for n in figures if n.endswith("/pass")} == {f"judges/{name}/pass" for name in verdicts}
    for part in rows[0]["parts"]:
        assert figures[f"reward/{part}"] == mean([r["parts"][part] for r in rows])


# --- the config


def written(tmp_path: Path, tasks: str, head: str = "override algo: cgpo") -> Path:
    at = tmp_path / "recipe"
    at.mkdir()
    (at / "config.yaml").write_text(f"defaults: [base, {head}, _self_]\ntasks: {tasks}\n")
    return at


def why(lines: list[str]) -> list[str]:
    """An error's reasons."""
    assert (
        lines[0] in ("error: the config cannot be composed", "error: the config has a problem", "error: unknown key")
        or "problems" in lines[0]
    )
    return [line[8:] for line in lines[1:] if not line.startswith("  try:")]


BOTH = "{a: {data: 'file:a.jsonl'}, b: {data: {path: b.jsonl}, reward: 'fn:m.f'}}"


@pytest.mark.parametrize(
    ("tasks", "typed", "reasons"),
    [
        (BOTH, ["algo=ppo"], ["tasks are for algo=cgpo; algo=ppo trains on one reward"]),
        (BOTH, ["tasks.a.weigth=2"], ["tasks.a.weigth=2: a task has no key 'weigth'; did you mean weight?"]),
        (BOTH, ["tasks.c.weight=2"], ["tasks.c.weight: there is no task 'c'; there are: a, b"]),
        ("{sums: {}}", ["tasks.sum.weight=2"], ["tasks.sum.weight: there is no task 'sum'; did you mean sums?"]),
        ("{}", ["+tasks.a.weight=2"], ["tasks.a.weight: there is no task 'a'; tasks are written in a recipe's config.yaml"]),
        (BOTH, ["tasks.b.data.limit=2"], ["tasks.b.data.limit: a task's data takes new keys as a mapping: 'tasks.b.data={limit: VALUE}'"]),
        (BOTH, ["+tasks.a.data.k=2"], ["+tasks.a.data.k=2: a task's data takes new keys as a mapping: 'tasks.a.data={k: VALUE}'"]),
        (BOTH, ["tasks.b.data={limt: 2}"], ["tasks.b.data: there is no key 'limt'; did you mean limit?"]),
        ("{a: {reward: {kind: modl}}}", [], ["tasks.a.reward.kind=modl: one of fn, class, model, calibrated, weighted"]),
        ("{a: {reward: {kind: model, max_lenght: 3}}}", [], ["tasks.a.reward: there is no key 'max_lenght'; did you mean max_length?"]),
        ("{a: {data: {limit: x}}}", [], ["tasks.a.data: limit: Value 'x' of type 'str' could not be converted to Integer"]),
        (
            "{a: {reward: f}, b: {data: 3}, c: {data: a.jsonl}}",
            [],
            [
                "tasks.a.reward=f: expected fn:MODULE.FUNCTION, class:MODULE.CLASS, model:PATH or calibrated:PATH",
                "tasks.b.data=3: expected a text such as file:PATH, or a mapping",
                "tasks.c.data=a.jsonl: expected file:PATH, hf:NAME or builtin",
            ],
        ),
        (
            "{a: {}, b: {optimizer: codpo, samples_per_prompt: 1}}",
            [],
            ["tasks.b.optimizer=codpo compares two responses to a prompt: tasks.b.samples_per_prompt must be at least 2"],
        ),
        (
            "{a: {}, b: {prompts_per_step: 9}}",
            ["launch.processes=2"],
            [
                "tasks.b.prompts_per_step=9 cannot be shared evenly by launch.processes=2; nearest: tasks.b.prompts_per_step=8 or 10, "
                "or launch.processes=1 or 3"
            ],
        ),
        (
            "{a: {judges: [{kind: length}]}, b: {weight: 0}, 'c d': {data: {path: none}}}",
            [],
            [
                "tasks.b.weight=0.0: must be greater than 0",
                "tasks.c d: only letters, digits and . _ - may be in a task's name",
                "tasks.c d.data.path=none: this is the word 'none'; write tasks.c d.data.path=builtin for the default",
                "tasks.a: judges[0]: kind: length needs min, max or both",
            ],
        ),
        (BOTH, ["value.lr=1"], ["value=auto: algo=cgpo has no value model; leave value out, or write algo=ppo"]),  # told once
    ],
)  # fmt: skip
def test_what_is_wrong_with_tasks_is_said(refused, tmp_path, tasks, typed, reasons):
    assert why(refused(*typed, recipe=written(tmp_path, tasks))) == reasons


def test_data_that_lack_a_judges_column_name_the_task(folder, rlctl):
    at = recipe(folder / "recipe")
    text = (at / "config.yaml").read_text().replace("{kind: fn, path: mine.even}", "{kind: answer, column: anwser}")
    (at / "config.yaml").write_text(text)
    (at / "a.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n')
    done = rlctl("train", "recipe", *test_cli.TINY, "hydra.run.dir=run")
    assert done.status == 3
    assert done.err.splitlines() == [
        "error: task a: judge answer: the data have no column 'anwser'",
        "  why:  columns: answer",
        "  try:  column: answer",
    ]
    assert json.loads((folder / "run" / "summary.json").read_text())["reason"] == "task a: judge answer: the data have no column 'anwser'"


def test_tasks_take_their_settings_from_files_and_the_command_line(config, tmp_path):
    at = written(
        tmp_path,
        "{a: {kl_max: .inf, beta: 0.3, data: {path: a.jsonl, limit: 5}, reward: {kind: fn, path: m.f, args: {x: 1}}}, b: {kl_max: 2}}",
    )
    got = config("tasks.b.kl_max=inf", "tasks.b.optimizer=crraft", "tasks.a.data={limit: 7}", "tasks.a.reward={args: {y: 2}}", recipe=at)
    a, b = got.by_task.values()
    assert (a.algo.kl_max, a.algo.beta, b.algo.kl_max, b.algo.optimizer) == (math.inf, 0.3, math.inf, "crraft")
    assert a.data == DataConfig(path=str(at / "a.jsonl"), limit=7)  # typed beside it, the file's path is still the file's
    assert a.reward == FunctionRewardConfig(path="m.f", args={"x": 1, "y": 2})
    assert list(config("~tasks.a", recipe=at).tasks) == ["b"]


def test_a_task_that_names_no_other_kind_starts_from_the_runs_reward(config, tmp_path):
    at = written(
        tmp_path,
        "{a: {reward: {max_length: 9}}, b: {reward: {kind: model}}, c: {data: {limit: 3}}}",
        "override reward: model:./rm, override algo: cgpo",
    )
    got = config("reward.batch_size=4", "data=file:typed.jsonl", recipe=at)
    rm = str(at / "rm")
    assert [one.reward for one in got.by_task.values()] == [
        ModelRewardConfig(path=rm, batch_size=4, max_length=9), ModelRewardConfig(), ModelRewardConfig(path=rm, batch_size=4),
    ]  # fmt: skip
    assert got.tasks["c"].data.path == str(Path.cwd() / "typed.jsonl")  # taken from what was typed for the run


def test_relative_paths_of_tasks_are_the_recipes_and_typed_ones_the_working_folders(config, tmp_path):
    llm = "{kind: llm, path: ./judge, template: '{response}'}"
    at = written(
        tmp_path,
        "{a: {data: 'file:x.jsonl', reward: 'model:./rm', judges: [" + llm + "]}, "
        "b: {data: {path: y.jsonl}, reward: {kind: calibrated, base: 'model:./rm'}}, "
        "c: {reward: {kind: weighted, terms: [{reward: 'model:./rm'}]}}}",
    )
    got = config(recipe=at).tasks
    assert (got["a"].data.path, got["b"].data.path) == (str(at / "x.jsonl"), str(at / "y.jsonl"))
    assert got["a"].reward.path == got["a"].judges[0].path.replace("judge", "rm") == str(at / "rm")
    assert got["b"].reward.base == got["c"].reward.terms[0].reward == f"model:{at / 'rm'}"
    typed = config(
        "tasks.a.data=file:x.jsonl", "tasks.a.reward=model:./rm", f"tasks.a.judges=[{llm}]",
        "tasks.b.data={path: z.jsonl}", "tasks.b.reward.base=model:./rm", recipe=at,
    ).tasks  # fmt: skip
    here = Path.cwd()
    assert here != at
    assert (typed["a"].data.path, typed["b"].data.path) == (str(here / "x.jsonl"), str(here / "z.jsonl"))
    assert (typed["a"].reward.path, typed["a"].judges[0].path) == (str(here / "rm"), str(here / "judge"))
    assert typed["b"].reward.base == f"model:{here / 'rm'}"
    assert typed["c"] == got["c"]


def test_a_saved_config_of_tasks_reads_back_equal(config, tmp_path):
    at = written(
        tmp_path,
        "{a: {data: 'file:x.jsonl', reward: {kind: fn, path: m.f, args: {x: [1, 2]}}, kl_max: .inf, optimizer: codpo}, "
        "b: {reward: {kind: calibrated, base: 'fn:m.f'}, judges: [{kind: keywords, any: [a, 'b c']}], weight: 0.5}, "
        "c: {judges: []}, d: {reward: {kind: weighted, terms: [{reward: 'fn:m.f', clip: 2}]}}, e: {}}",
    )  # fmt: skip
    got = config(recipe=at)
    compose.save(got, tmp_path / "saved.yaml")
    back = compose.load(tmp_path / "saved.yaml")
    assert back == got
    assert [type(task.reward) for task in back.tasks.values()] == [type(task.reward) for task in got.tasks.values()]
