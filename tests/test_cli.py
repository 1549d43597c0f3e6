"""Whole commands, as a user types them in a folder of their own: what they print, leave behind and exit with."""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlctl import __version__, builtin, cli
from rlctl.config import compose
from rlctl.metrics import METRICS, MetricsFile

TINY = ["run.steps=2", "rollout.prompts_per_step=4", "rollout.max_new_tokens=4", "console=plain", "run.tracker=none"]
MODULE = """\
    def count_good(texts):
        return [float(text.count("good")) for text in texts]
    """
UNTIMED = {name for name in METRICS if not name.startswith("time/") and name != "tokens/per_second"}


@dataclass
class Done:
    """A finished command."""

    status: int
    out: str
    err: str


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(textwrap.dedent(text))


def _command(folder: Path, *argv: str) -> Done:
    """The installed command in a process of its own, with nothing of the tests on its path."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "FORCE_COLOR", "COLUMNS")}
    script = Path(sys.executable).with_name("rlctl")
    done = subprocess.run([script, *argv], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder; afterwards nothing imported from it, set up or logged to is left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    importlib.invalidate_caches()
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


Rlctl = Callable[..., Done]


@pytest.fixture
def rlctl(folder: Path, capfd: pytest.CaptureFixture[str]) -> Rlctl:
    """The command in this process."""

    def run(*argv: str) -> Done:
        compose._fresh_dir.cache_clear()  # a process runs one command; this one runs many
        status = cli.main(list(argv))
        return Done(status, *capfd.readouterr())

    return run


@pytest.fixture
def trained(rlctl: Rlctl) -> Callable[..., Path]:
    """Trains in this process with tiny sizes, and must succeed; the run folder."""

    def run(*argv: str, name: str = "run") -> Path:
        done = rlctl("train", *TINY, f"hydra.run.dir={name}", *argv)
        assert done.status == 0, done.err
        return Path.cwd() / name

    return run


def _strict(text: str) -> Any:
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [_strict(line) for line in path.read_text().splitlines()]


def _metrics(run: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k in UNTIMED} for row in _lines(run / "metrics.jsonl")]


def _samples(run: Path, step: int = 1) -> list[dict[str, Any]]:
    return _lines(run / "samples" / f"step_{step:06d}.jsonl")


def _weights(run: Path) -> bytes:
    return (run / "policy" / "model.safetensors").read_bytes()


# the first command of the README, in a folder that holds one file


@dataclass
class First:
    done: Done
    run: Path


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> First:
    folder = tmp_path_factory.mktemp("first")
    _write(folder, "mypkg.py", MODULE)
    done = _command(folder, "train", "algo=ppo", "reward=fn:mypkg.count_good", *TINY)
    (run,) = folder.glob("outputs/*/*")
    return First(done, run)


def test_the_first_command_trains(first):
    assert first.done.status == 0, first.done.err
    assert first.done.err == ""
    assert "ppo  fn:mypkg.count_good" in first.done.out
    assert f"{first.run / 'policy'}" in first.done.out


def test_nothing_but_text_goes_into_a_pipe(first):
    assert "\x1b" not in first.done.out
    assert "\r" not in first.done.out


def test_its_run_folder_is_complete(first):
    names = {p.name for p in first.run.iterdir()}
    assert names == {
        ".hydra", "config.yaml", "command.txt", "env.json", "plan.json", "rlctl.log", "metrics.jsonl", "samples", "policy", "summary.json",
    }  # fmt: skip
    assert {p.name for p in (first.run / ".hydra").iterdir()} == {"config.yaml", "hydra.yaml", "overrides.yaml"}
    assert (first.run / "command.txt").read_text() == f"rlctl train algo=ppo reward=fn:mypkg.count_good {' '.join(TINY)}\n"
    assert {p.name for p in (first.run / "samples").iterdir()} == {"step_000001.jsonl", "step_000002.jsonl"}


def test_its_config_reads_back(first):
    config = compose.load(first.run / "config.yaml")
    assert (config.reward.path, config.run.steps, config.run.dir) == ("mypkg.count_good", 2, str(first.run))
    assert config.run.import_paths == [str(first.run.parents[2])]


def test_its_environment_and_plan(first):
    env = _strict((first.run / "env.json").read_text())
    assert env["packages"]["rlctl"] == __version__
    assert (env["processes"], env["device"]) == (1, "cpu")
    plan = _strict((first.run / "plan.json").read_text())
    assert plan["reward"] == "fn:mypkg.count_good"
    assert plan["value"].startswith("policy: the reward is a function, there is no reward model to start from; ")
    assert plan["step"] == "4 prompts x 1 = 4 responses; 4 epochs x 1 minibatches of 4 = 4 updates; 1 microbatches an update"


def test_its_metrics_are_all_explained_and_its_steps_rise_by_one(first):
    rows = _lines(first.run / "metrics.jsonl")
    assert [row.pop("step") for row in rows] == [1, 2]
    for row in rows:
        assert set(row) <= set(METRICS)
        assert {"objective/scores", "objective/kl", "policy/ratio", "value/explained_variance", "time/step"} <= set(row)
    assert rows[1]["progress/samples"] == 8.0


def test_its_summary(first):
    summary = _strict((first.run / "summary.json").read_text())
    rows = _lines(first.run / "metrics.jsonl")
    assert (summary["status"], summary["reason"], summary["steps_done"]) == ("finished", "all 2 steps done", 2)
    for name, row in (("first", rows[0]), ("last", rows[1])):
        assert summary[name] == {k: v for k, v in row.items() if k != "step"}
    assert summary["best_score"] == max(row["objective/scores"] for row in rows)


def test_its_samples_say_what_was_seen(first):
    rows = _samples(first.run)
    assert len(rows) == 4
    for row in rows:
        assert set(row) >= {"prompt", "response", "score", "adjusted_score", "kl", "length", "truncated", "columns"}
        assert set(row["columns"]) == {"reference", "answer", "kind"}
        assert row["adjusted_score"] == row["score"]
        assert 1 <= row["length"] <= 4


def test_its_policy_loads_whole(first):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, info = AutoModelForCausalLM.from_pretrained(first.run / "policy", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    tokenizer = AutoTokenizer.from_pretrained(first.run / "policy")
    assert len(tokenizer) <= model.get_input_embeddings().num_embeddings
    assert tokenizer("The soup was")["input_ids"] == AutoTokenizer.from_pretrained(builtin.path("policy"))("The soup was")["input_ids"]


def test_its_policy_has_moved(first):
    from safetensors.torch import load_file

    before = load_file(builtin.path("policy") / "model.safetensors")
    after = load_file(first.run / "policy" / "model.safetensors")
    assert set(before) == set(after)
    assert any(not bool((before[k].float() == after[k].float()).all()) for k in before)


# what the reward is handed and what is logged of it


SCORERS = {
    "count": (MODULE, "count_good"),
    "length": ("def length(texts):\n    return [float(len(text)) for text in texts]\n", "length"),
    "columns": (
        """\
        def columns(prompts, completions, answer, **kwargs):
            rows = zip(prompts, completions, answer, kwargs["kind"], strict=True)
            return [len(p) + 100.0 * len(c) + 1e4 * len(a) + 1e6 * len(k) for p, c, a, k in rows]
        """,
        "columns",
    ),
    "waiting": (
        """\
        import asyncio

        async def waiting(texts):
            await asyncio.sleep(0)
            return [float(text.count("e")) for text in texts]
        """,
        "waiting",
    ),
}
BY_HAND = {
    "count": lambda r: float((r["prompt"] + r["response"]).count("good")),
    "length": lambda r: float(len(r["prompt"] + r["response"])),
    "columns": lambda r: (
        len(r["prompt"]) + 100.0 * len(r["response"]) + 1e4 * len(r["columns"]["answer"]) + 1e6 * len(r["columns"]["kind"])
    ),
    "waiting": lambda r: float((r["prompt"] + r["response"]).count("e")),
}


def test_the_first_logged_score_is_that_of_the_logged_samples(first):
    rows = _samples(first.run)
    assert [row["score"] for row in rows] == [BY_HAND["count"](row) for row in rows]
    assert _metrics(first.run)[0]["objective/scores"] == sum(row["score"] for row in rows) / 4


@pytest.mark.parametrize("name", ["length", "columns", "waiting"])
def test_any_function_gives_the_scores_that_are_logged(folder, trained, name):
    source, function = SCORERS[name]
    _write(folder, f"scorer_{name}.py", source)
    run = trained(f"reward=fn:scorer_{name}.{function}")
    for step in (1, 2):
        rows = _samples(run, step)
        assert len({row["score"] for row in rows}) > 1
        assert [row["score"] for row in rows] == [pytest.approx(BY_HAND[name](row)) for row in rows]
        assert _metrics(run)[step - 1]["objective/scores"] == pytest.approx(sum(row["score"] for row in rows) / 4)


def test_a_reward_function_of_trl_runs_unchanged(trained):
    from trl.rewards import think_format_reward

    run = trained("reward=fn:trl.rewards.think_format_reward")
    rows = _samples(run)
    messages = [[{"role": "assistant", "content": row["response"]}] for row in rows]
    assert [row["score"] for row in rows] == think_format_reward(completions=messages)
    assert compose.load(run / "config.yaml").reward.path == "trl.rewards.think_format_reward"


# the same seed


def test_the_same_seed_gives_the_same_run_in_another_process_too(first, folder, trained):
    _write(folder, "mypkg.py", MODULE)
    again = trained("reward=fn:mypkg.count_good")
    assert _metrics(again) == _metrics(first.run)
    assert [_samples(again, s) for s in (1, 2)] == [_samples(first.run, s) for s in (1, 2)]
    assert _weights(again) == _weights(first.run)


def test_a_reward_that_draws_and_reseeds_changes_nothing(first, folder, trained):
    _write(
        folder,
        "noisy.py",
        """\
        import random

        import numpy
        import torch


        def count_good(texts):
            random.seed(len(texts))
            torch.manual_seed(random.randrange(1000))
            torch.rand(17), random.random(), numpy.random.rand(3)
            return [float(text.count("good")) for text in texts]
        """,
    )
    noisy = trained("reward=fn:noisy.count_good")
    assert _metrics(noisy) == _metrics(first.run)
    assert [_samples(noisy, s) for s in (1, 2)] == [_samples(first.run, s) for s in (1, 2)]
    assert _weights(noisy) == _weights(first.run)


def test_another_seed_gives_another_run(first, folder, trained):
    _write(folder, "mypkg.py", MODULE)
    other = trained("reward=fn:mypkg.count_good", "seed=1")
    assert [r["prompt"] for r in _samples(other)] != [r["prompt"] for r in _samples(first.run)]
    assert _metrics(other) != _metrics(first.run)
    assert _weights(other) != _weights(first.run)


# run folders


def test_an_existing_run_is_refused_and_nothing_of_it_is_lost(trained, rlctl):
    run = trained("reward=fn:rlctl.builtin.count_good", "seed=5")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    done = rlctl("train", *TINY, "hydra.run.dir=run", "seed=6")
    assert done.status == 2
    assert done.err.splitlines() == [
        f"error: the run folder {run} holds a run already",
        "  why:  a run never writes over another",
        "  try:  leave hydra.run.dir out, or give it a new folder",
    ]
    assert {p for p in run.rglob("*") if p.is_file()} == set(before)
    changed = [str(p.relative_to(run)) for p, content in before.items() if p.read_bytes() != content]
    assert changed == []


def test_the_command_that_was_typed_is_kept(trained):
    run = trained("seed=3")
    assert (run / "command.txt").read_text() == f"rlctl train {' '.join(TINY)} hydra.run.dir=run seed=3\n"


def test_tensorboard_files_agree_with_the_metrics(trained):
    run = trained("run.tracker=tensorboard")
    files = list((run / "tensorboard").rglob("events.out.tfevents*"))
    assert files
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = next(f.parent for f in files)
    events = EventAccumulator(str(folder))
    events.Reload()
    scores = events.Scalars("objective/kl_k3")
    assert [e.step for e in scores] == [1, 2]
    assert [e.value for e in scores] == [pytest.approx(row["objective/kl_k3"]) for row in _metrics(run)]


def test_numbers_that_json_lacks_become_null(tmp_path):
    file = MetricsFile(tmp_path)
    file.write(1, {"objective/kl": float("nan"), "objective/scores": float("inf"), "policy/ratio": 1.0})
    assert _lines(file.path) == [{"step": 1, "objective/kl": None, "objective/scores": None, "policy/ratio": 1.0}]


def test_a_metric_without_a_formula_is_refused(tmp_path):
    with pytest.raises(KeyError, match="metrics without a formula in METRICS: objective/nosuch"):
        MetricsFile(tmp_path).write(1, {"objective/nosuch": 1.0})


def test_samples_stay_json_when_a_data_column_holds_nan(folder, trained):
    import datasets

    rows = [{"prompt": f"The soup number {i} was", "weight": float("nan")} for i in range(4)]
    datasets.Dataset.from_list(rows).to_parquet(folder / "p.parquet")
    run = trained("data=file:p.parquet")
    assert [row["columns"]["weight"] for row in _samples(run)] == [None] * 4


def test_quiet_prints_nothing(rlctl):
    done = rlctl("train", *TINY, "console=quiet")
    assert (done.status, done.out, done.err) == (0, "", "")


# commands that train nothing


LIGHT = {
    "help": (["--help"], 0),
    "train help": (["train", "--help"], 0),
    "config": (["train", "--cfg", "job", "reward=model:/x/y"], 0),
    "info": (["train", "--info", "defaults"], 0),
    "unknown key": (["train", "learning_rate=1"], 2),
    "unknown option": (["train", "algo=nosuch"], 2),
    "bad value": (["train", "optim.lr=fast"], 2),
    "unknown command": (["trian"], 2),
    "bad combination": (["train", "value=reward"], 2),
}
SPY = """\
import sys
from rlctl.cli import main
status = main(sys.argv[1:])
heavy = {m.partition(".")[0] for m in sys.modules} & {"torch", "transformers", "datasets", "accelerate", "trl", "numpy"}
sys.stderr.write(f"\\nstatus {status} heavy {sorted(heavy)}")
"""


@pytest.mark.parametrize("name", LIGHT)
def test_commands_that_train_nothing_import_nothing_heavy(tmp_path, name):
    argv, status = LIGHT[name]
    done = subprocess.run([sys.executable, "-c", SPY, *argv], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == f"status {status} heavy []", done.stderr


def test_help_is_about_rlctl(rlctl):
    done = rlctl("--help")
    assert done.status == 0
    assert done.out.startswith(f"rlctl {__version__}: online RLHF fine-tuning of language models, driven by configs\n")
    assert "rlctl train algo=ppo reward=fn:mypkg.count_good" in done.out
    assert rlctl().out == rlctl("-h").out == rlctl("help").out == done.out


def test_train_help_lists_groups_and_keys(rlctl):
    done = rlctl("train", "--help")
    assert done.status == 0
    assert "  algo.kl_coef (0.05)\n      beta, the price of a nat of KL" in done.out
    assert rlctl("train", "reward=fn:a.b", "-h").out == done.out


def test_cfg_job_prints_the_config_and_runs_nothing(rlctl, folder):
    import yaml

    done = rlctl("train", "--cfg", "job", "reward=fn:a.b", "algo.kl_coef=0.25")
    assert done.status == 0
    printed = yaml.safe_load(done.out)
    assert printed["reward"]["path"] == "a.b"
    assert printed["algo"]["kl_coef"] == 0.25
    assert not list(folder.glob("outputs/*/*/metrics.jsonl"))


def test_cfg_job_leaves_no_folder_behind(rlctl, folder):
    assert rlctl("train", "--cfg", "job").status == 0
    assert list(folder.iterdir()) == []


def test_info_says_where_the_config_comes_from(tmp_path):
    done = _command(tmp_path, "train", "--info", "searchpath")
    assert done.status == 0
    assert "rlctl-shorthand" in done.out


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (["trian"], ["error: unknown command trian", f"  why:  there are: {', '.join(cli.COMMANDS)}", "  try:  rlctl train"]),
        (["zzz"], ["error: unknown command zzz", f"  why:  there are: {', '.join(cli.COMMANDS)}", "  try:  rlctl --help"]),
        (
            ["algo=ppo"],
            ["error: unknown command algo=ppo", f"  why:  there are: {', '.join(cli.COMMANDS)}", "  try:  rlctl train algo=ppo"],
        ),
        (["train", "--cgf", "job"], ["error: unknown option --cgf", "  try:  did you mean --cfg?"]),
        (
            ["train", "nosuchdir"],
            [
                "error: nosuchdir is not a recipe folder",
                "  why:  there is no such folder",
                "  try:  rlctl train RECIPE_DIR [key=value ...]",
            ],
        ),
        (
            ["train", "."],
            ["error: . is not a recipe folder", "  why:  it has no config.yaml", "  try:  rlctl train RECIPE_DIR [key=value ...]"],
        ),
        (
            ["train", "~optim.lr"],
            [
                "error: unknown key",
                "  why:  ~optim.lr: optim.lr cannot be removed; write optim.lr=null for no value",
                "  try:  rlctl train --help lists every key",
            ],
        ),
        (
            ["train", "model.path=a=b"],
            [
                "error: the command line cannot be read",
                "  why:  model.path=a=b: a value with = # < > & { } [ ] , ' or blanks needs quotes inside the shell's own",
                """  try:  'model.path="a=b"'""",
            ],
        ),
    ],
)
def test_what_is_no_command_says_what_to_type_instead(rlctl, argv, lines):
    done = rlctl(*argv)
    assert (done.status, done.out, done.err.splitlines()) == (2, "", lines)


def test_the_module_is_the_command(tmp_path):
    done = subprocess.run([sys.executable, "-m", "rlctl", "--version"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"rlctl {__version__}\n")
    wrong = subprocess.run([sys.executable, "-m", "rlctl", "trian"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr.splitlines()[0]) == (2, "error: unknown command trian")


# what can go wrong, and the exit status and words for it


BAD_MODULES = """\
    def count_good(texts):
        return [1.0 for text in texts]

    def few(texts):
        return [1.0 for text in texts][:3]

    def nan(texts):
        return [float("nan") if i == 2 else 1.0 for i, _ in enumerate(texts)]

    def words(texts):
        return "good"

    def column(texts, solution):
        return [1.0 for text in texts]
    """


@dataclass
class Bad:
    overrides: list[str]
    status: int
    lines: list[str]
    """Of the error, the first and the last among them; {here} is the working folder."""


BAD = {
    "no module": Bad(
        ["reward=fn:nosuchpkg.f"],
        3,
        [
            "error: reward fn:nosuchpkg.f: there is no module 'nosuchpkg'",
            "  why:  looked first in {here}, ",
            "  try:  run where nosuchpkg.py lies, or install its package",
        ],
    ),
    "no name": Bad(
        ["reward=fn:badpkg.count_god"],
        3,
        [
            "error: reward fn:badpkg.count_god: module badpkg has no 'count_god'",
            "  why:  the module is {here}/badpkg.py",
            "  try:  reward=fn:badpkg.count_good",
        ],
    ),
    "module fails": Bad(
        ["reward=fn:failing.f"],
        3,
        [
            "error: reward fn:failing.f: module 'failing' was found but failed while being imported",
            "  why:  {here}/failing.py, line 3",
            "        ModuleNotFoundError: No module named 'nosuchlib'",
        ],
    ),
    "too few": Bad(
        ["reward=fn:badpkg.few"],
        3,
        [
            "error: reward fn:badpkg.few returned 3 scores",
            "  why:  expected a list of 4 numbers, one per text",
            "  try:  return [float(...) for text in texts]",
        ],
    ),
    "nan": Bad(
        ["reward=fn:badpkg.nan"],
        3,
        ["error: reward fn:badpkg.nan returned float nan for sample 2, expected a finite number", "  why:  the text of sample 2: '"],
    ),
    "string": Bad(
        ["reward=fn:badpkg.words"],
        3,
        [
            "error: reward fn:badpkg.words returned str 'good'",
            "  why:  expected a list of 4 numbers, one per text",
            "  try:  return [float(...) for text in texts]",
        ],
    ),
    "no column": Bad(
        ["reward=fn:badpkg.column"],
        3,
        [
            "error: reward fn:badpkg.column requires 'solution', which no column of the data is called",
            "  why:  columns: reference, answer, kind; always there: texts, prompts, completions, responses",
            "  try:  give the parameter a default, or name a column: def column(texts, reference, ...)",
        ],
    ),
    "no prompt column": Bad(
        ["data.prompt_column=question"],
        3,
        [
            f"error: data {builtin.path('prompts.jsonl')} has no column 'question'",
            "  why:  its columns are: prompt, reference, answer, kind",
            "  try:  data.prompt_column=prompt",
        ],
    ),
    "no data": Bad(
        ["data=file:nosuch.jsonl"],
        3,
        [
            "error: no data at {here}/nosuch.jsonl",
            "  why:  there is no such file or folder (looked from {here})",
            "  try:  data=file:PATH or data=hf:NAME",
        ],
    ),
    "unknown key": Bad(
        ["algo.lerning_rate=1"],
        2,
        [
            "error: unknown key",
            "  why:  algo.lerning_rate=1: there is no key 'algo.lerning_rate'; did you mean optim.lr?",
            "  try:  rlctl train --help lists every key",
        ],
    ),
    "unknown option": Bad(
        ["value=reword"],
        2,
        [
            "error: the config cannot be composed",
            "  why:  value=reword: no such option; did you mean value=reward? (there are: auto, policy, reward)",
            "  try:  rlctl train --help lists every option and key",
        ],
    ),
    "long prompt": Bad(
        ["data=file:long.jsonl"],
        3,
        [
            "error: the prompt of row 1 has ",
            "  why:  the limit is data.max_prompt_tokens, or what the model's context leaves beside rollout.max_new_tokens=4; "
            "the prompt begins: 'word word ",
            "  try:  data.overlong=drop leaves such rows out, data.overlong=cut removes their front",
        ],
    ),
    "causal reward": Bad(
        [f"reward=model:{builtin.path('policy')}"],
        2,
        [
            f"error: the reward model {builtin.path('policy')} is a LlamaForCausalLM: its score head is missing",
            "  why:  a new head would be random",
            "  try:  a sequence classifier with one label (AutoModelForSequenceClassification, num_labels=1): reward=model:PATH",
        ],
    ),
    "no reward model": Bad(
        ["reward=model:./nosuch"],
        2,
        ["error: no reward model at {here}/nosuch", "  why:  there is no such folder", "  try:  reward=model:PATH_OR_HUB_ID"],
    ),
    "no policy": Bad(
        ["model=hf:./nosuch"],
        2,
        ["error: no policy at {here}/nosuch", "  why:  there is no such folder", "  try:  model=hf:PATH_OR_HUB_ID"],
    ),
    "no room": Bad(
        ["rollout.max_new_tokens=256"],
        2,
        [
            "error: rollout.max_new_tokens=256 leaves no room for a prompt",
            "  why:  the context of builtin is 256 tokens",
            "  try:  rollout.max_new_tokens=128",
        ],
    ),
    "no tracker": Bad(
        ["run.tracker=nosuch"],
        2,
        ["error: run.tracker=nosuch cannot be used", "  why:  ", "  try:  pip install nosuch, or run.tracker=none"],
    ),
}
WITH_WEIGHTS = {"too few", "nan", "string"}
"""Only a run shows these; the others are found before any weights are loaded."""


@pytest.fixture
def bad_folder(folder: Path) -> Path:
    """A folder with whatever the bad inputs name."""
    _write(folder, "badpkg.py", BAD_MODULES)
    _write(folder, "failing.py", "import os\n\nimport nosuchlib\n\ndef f(texts):\n    return texts\n")
    rows = [{"prompt": "The soup was"}, {"prompt": "word " * 300}]
    (folder / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which models' weights were loaded."""
    from rlctl import models
    from rlctl.rewards import model as reward_model

    loaded: list[str] = []
    real = models.load_weights

    def load(auto_class: Any, source: Any, what: str, *rest: Any, **more: Any) -> Any:
        loaded.append(what)
        return real(auto_class, source, what, *rest, **more)

    monkeypatch.setattr(models, "load_weights", load)
    monkeypatch.setattr(reward_model, "load_weights", load)
    return loaded


@pytest.mark.parametrize("name", BAD)
def test_bad_input(bad_folder, rlctl, loads, name):
    case = BAD[name]
    done = rlctl("train", *TINY, *case.overrides)
    got = done.err.splitlines()
    expected = [line.replace("{here}", str(bad_folder)) for line in case.lines]
    assert done.status == case.status, done.err
    assert len(got) == len(expected), done.err
    for line, start in zip(got, expected, strict=True):
        assert line.startswith(start)
        assert line == start or start.endswith((" ", "'"))  # only these go on with what differs from machine to machine
    assert "Traceback" not in done.out + done.err
    assert (loads != []) == (name in WITH_WEIGHTS)


@pytest.mark.parametrize("name", ["no module", "nan", "unknown key"])
def test_traceback_shows_it(bad_folder, rlctl, name):
    done = rlctl("train", *TINY, *BAD[name].overrides, "--traceback")
    assert done.status == BAD[name].status
    assert "Traceback (most recent call last):" in done.err
    assert BAD[name].lines[0] in done.err.splitlines()


def test_a_failed_run_says_so_in_its_folder(bad_folder, rlctl):
    rlctl("train", *TINY, "reward=fn:badpkg.nan", "hydra.run.dir=run")
    summary = _strict((bad_folder / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["reason"] == BAD["nan"].lines[0].removeprefix("error: ")
    assert not (bad_folder / "run" / "metrics.jsonl").exists()
    assert not (bad_folder / "run" / "policy").exists()


RAISING = """\
    calls = 0

    def third(texts):
        global calls
        calls += 1
        if calls == 3:
            raise ZeroDivisionError("the third call")
        return [float(len(text)) for text in texts]
    """


def test_a_reward_that_raises_ends_the_run_and_leaves_the_last_checkpoint(folder, rlctl):
    from transformers import AutoModelForCausalLM

    _write(folder, "raising.py", RAISING)
    done = rlctl("train", *TINY, "run.steps=5", "run.save_every=1", "reward=fn:raising.third", "hydra.run.dir=run")
    got = done.err.splitlines()
    assert done.status == 3
    assert got[:2] == ["error: reward fn:raising.third raised ZeroDivisionError", "  why:  ZeroDivisionError: the third call"]
    assert got[2].startswith("        first text: '")
    assert any(line.strip() == f'File "{folder / "raising.py"}", line 7, in third' for line in got)
    assert not any("/rlctl/" in line for line in got)
    run = folder / "run"
    summary = _strict((run / "summary.json").read_text())
    assert (summary["status"], summary["steps_done"]) == ("failed", 2)
    assert summary["reason"] == "reward fn:raising.third raised ZeroDivisionError"
    assert [row["step"] for row in _lines(run / "metrics.jsonl")] == [1, 2]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_000001", "step_000002"]
    _, info = AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "step_000002" / "policy", output_loading_info=True)
    assert not info["missing_keys"]
    assert not (run / "policy").exists()


def test_something_unexpected_is_status_1_with_its_traceback(rlctl, monkeypatch):
    from rlctl import train

    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(train, "assemble", broken)
    done = rlctl("train", *TINY)
    assert done.status == 1
    assert "Traceback (most recent call last):" in done.err
    assert "error: unexpected RuntimeError: a fault of ours" in done.err.splitlines()


def test_an_interrupt_is_status_130(rlctl, folder):
    _write(folder, "interrupted.py", "def f(texts):\n    raise KeyboardInterrupt\n")
    done = rlctl("train", *TINY, "reward=fn:interrupted.f", "hydra.run.dir=run")
    assert done.status == 130
    assert "Traceback" not in done.err
    assert _strict((folder / "run" / "summary.json").read_text())["status"] == "interrupted"


# a recipe folder


def test_a_recipe_folder_trains_with_its_own_reward_and_data(folder, rlctl):
    recipe = folder / "recipe"
    recipe.mkdir()
    _write(recipe, "recipe_reward.py", "def score(texts):\n    return [float(text.startswith('Own')) for text in texts]\n")
    _write(recipe, "own.jsonl", '{"prompt": "Own soup was"}\n{"prompt": "Own film was"}\n')
    _write(
        recipe,
        "config.yaml",
        """\
        defaults:
          - base
          - override reward: fn:recipe_reward.score
          - override data: file:own.jsonl
          - _self_
        seed: 4
        """,
    )
    done = rlctl("train", "recipe", *TINY, "hydra.run.dir=run")
    assert done.status == 0, done.err
    assert [row["score"] for row in _samples(folder / "run")] == [1.0] * 4
    config = compose.load(folder / "run" / "config.yaml")
    assert (config.seed, config.data.path) == (4, str(recipe / "own.jsonl"))


# a sweep


SWEEPING = """\
    import os
    from pathlib import Path

    PIDS = Path(__file__).parent / "pids"

    def count_good(texts):
        mine = PIDS / str(os.getpid())
        mine.touch()
        if len(list(PIDS.iterdir())) == 3:
            raise ValueError("the third member")
        return [float(text.count("good")) for text in texts]
    """
TINIEST = ["run.steps=1", "rollout.prompts_per_step=2", "rollout.max_new_tokens=2", "console=plain", "run.tracker=none"]


@dataclass
class Sweep:
    done: Done
    root: Path
    folder: Path


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "pids").mkdir()
    _write(folder, "sweeping.py", SWEEPING)
    done = _command(folder, "train", "-m", "algo.kl_coef=0.02,0.2", "seed=0,1", "reward=fn:sweeping.count_good", *TINIEST)
    (root,) = folder.glob("multirun/*/*")
    return Sweep(done, root, folder)


def test_each_member_of_a_sweep_has_a_folder_and_its_overrides(sweep):
    assert sorted(p.name for p in sweep.root.iterdir() if p.is_dir() and not p.name.startswith(".")) == ["0", "1", "2", "3"]
    configs = [compose.load(sweep.root / str(i) / "config.yaml") for i in range(4)]
    assert [(c.algo.kl_coef, c.seed) for c in configs] == [(0.02, 0), (0.02, 1), (0.2, 0), (0.2, 1)]
    assert [c.run.dir for c in configs] == [str(sweep.root / str(i)) for i in range(4)]


def test_each_member_of_a_sweep_has_a_process_of_its_own(sweep):
    assert len(list((sweep.folder / "pids").iterdir())) == 4


def test_a_failed_member_of_a_sweep_does_not_end_the_others(sweep):
    statuses = [_strict((sweep.root / str(i) / "summary.json").read_text())["status"] for i in range(4)]
    assert statuses == ["finished", "finished", "failed", "finished"]
    assert [(sweep.root / str(i) / "policy").exists() for i in range(4)] == [True, True, False, True]
    assert [(sweep.root / str(i) / "metrics.jsonl").exists() for i in range(4)] == [True, True, False, True]
    assert "ValueError: the third member" in (sweep.root / "2" / "rlctl.log").read_text()


def test_a_failed_member_of_a_sweep_is_shown_and_makes_the_exit_status(sweep):
    assert sweep.done.status == 3
    got = sweep.done.err.splitlines()
    assert got[0] == "error: reward fn:sweeping.count_good raised ValueError"
    assert got[-1].startswith("error: member 2 failed with exit status 3: algo.kl_coef=0.2 seed=0 ")
    assert sweep.done.err.count("error: reward") == 1
    assert "Traceback (most recent call last):\n  File \"<frozen" not in sweep.done.err


def test_a_sweep_ends_with_its_table(sweep):
    lines = sweep.done.out.splitlines()
    start = max(i for i, line in enumerate(lines) if line.split()[:2] == ["#", "score"])
    rows = [line.split() for line in lines[start + 1 :] if line.strip() and line.split()[0] in "0123"]
    assert sorted(row[0] for row in rows) == ["0", "1", "2", "3"]
    assert rows[-1][:2] == ["2", "failed"]
    assert rows[-1][-2:] == ["algo.kl_coef=0.2", "seed=0"]
    assert "reward fn:sweeping.count_good raised ValueError" in "\n".join(lines[start:])
    assert any(line.startswith("best: ") for line in lines[start:])


def test_each_member_of_a_sweep_trains_as_it_would_alone(sweep, folder, trained):
    """Member 3 in a process of the sweep, and its overrides in a single run here."""
    alone = trained("reward=fn:rlctl.builtin.count_good", "algo.kl_coef=0.2", "seed=1", *TINIEST)
    assert _metrics(alone) == _metrics(sweep.root / "3")
    assert _weights(alone) == _weights(sweep.root / "3")
