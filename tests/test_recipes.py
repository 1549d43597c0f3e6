"""The recipes that ship: listed, copied, run and compared with what they promise, as installed and in empty folders."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlctl
from rlctl import cli, expected, recipes_index
from rlctl.builtin import path as builtin
from rlctl.config import compose
from rlctl.config.paths import conf_dir, recipes_dir
from rlctl.errors import ConfigError

NAMES = recipes_index.names()
SMALL = ["run.steps=2", "rollout.prompts_per_step=8", "rollout.max_new_tokens=6", "console=quiet", "run.tracker=none"]


def commands(readme: str) -> Iterator[list[str]]:
    """The words of every command in a README: indented or fenced lines that begin with rlctl or python."""
    fenced = False
    for line in readme.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif (fenced or line.startswith("    ")) and (words := line.split()) and words[0] in ("rlctl", "python"):
            yield shlex.split(line)


def test_commands_are_found_in_a_readme():
    text = "rlctl a\n    rlctl train mine 'x=[1, \"b c\"]'\n- b\n\n       rlctl score mine\n"
    text += "```\nrlctl new a b\n$ rlctl c\n```\nrlctl d\n    python x.py\n"
    got = list(commands(text))
    assert got == [["rlctl", "train", "mine", 'x=[1, "b c"]'], ["rlctl", "score", "mine"], ["rlctl", "new", "a", "b"], ["python", "x.py"]]


# what a recipe folder holds


def test_the_recipes_are_there():
    wanted = {"count_good", "sentiment_reward_model", "length_or_format_rloo", "sums_verifiable", "calibrated_baseline", "cgpo_judges"}
    assert wanted | {"bring_your_own"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_complete_and_small(name):
    files = {str(p) for p in recipes_index.files(recipes_dir() / name)}
    assert {"README.md", "config.yaml", "expected.json"} <= files
    assert any(f.startswith("data/") and f.endswith(".jsonl") for f in files)
    for path in files:
        assert (recipes_dir() / name / path).stat().st_size < (250_000 if name == "pipeline" else 100_000)  # which learns its language


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_tells_the_numbers_of_expected_json(name):
    readme = (recipes_dir() / name / "README.md").read_text()
    block = "\n".join(expected.markdown(expected.read(recipes_dir() / name)))
    assert block in readme, f"README.md must hold what `rlctl recipes {name} --markdown` prints:\n{block}"
    assert readme.startswith(f"# {name}\n")
    assert f"    rlctl new {name} mine\n" in readme


@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_a_recipe_config_that_may_be_changed_has_a_comment(name):
    lines = (recipes_dir() / name / "config.yaml").read_text().splitlines()
    assert lines[0].startswith("# ")
    bare = [line for line in lines if line.strip() and "#" not in line and not line.endswith(":")]
    assert [line.strip() for line in bare if line.strip() not in ("- base", "- _self_")] == []


def test_the_table_of_recipes_is_current():
    table = "\n".join(recipes_index.markdown(recipes_index.every()))
    assert table in (recipes_dir() / "README.md").read_text(), f"it must hold what `rlctl recipes --markdown` prints:\n{table}"


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("cgpo_judges", "pipeline")])  # test_recipe_cgpo, test_stages
def test_the_functions_of_a_recipe_need_nothing_of_rlctl_and_pass_their_doctests(name, monkeypatch):
    folder = recipes_dir() / name
    monkeypatch.syspath_prepend(str(folder))
    for path in folder.glob("*.py"):
        assert not re.search(r"^\s*(import|from) rlctl", path.read_text(), re.M)
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
        done = doctest.testmod(importlib.import_module(path.stem))
        monkeypatch.delitem(sys.modules, path.stem)
        assert done.attempted > 0 and done.failed == 0


def _composed(argv: list[str], recipe: Path) -> list[compose.Job]:
    jobs: list[compose.Job] = []
    compose._fresh_dir.cache_clear()
    compose.run([*argv, "hydra.run.dir=run", "hydra.sweep.dir=sweep"], recipe, jobs.append)
    for job in jobs:
        compose.check(job.config)
    return jobs


@pytest.mark.parametrize("name", NAMES)
def test_the_lines_for_a_real_model_compose(name, tmp_path, monkeypatch):
    """The commented lines of config.yaml, taken in as it says."""
    monkeypatch.chdir(tmp_path)
    recipes_index.copy(recipes_dir() / name, tmp_path / "mine")
    path = tmp_path / "mine" / "config.yaml"
    text, count = re.subn(r"^( *)# ((?:- override )?[a-z_]+: )", r"\1\2", path.read_text(), flags=re.M)
    assert count >= 3
    path.write_text(text)
    for job in _composed([], tmp_path / "mine"):
        assert job.config.model.path == "PATH_OR_HUB_ID"
        assert job.config.optim.microbatch_size == 4


# rlctl recipes, rlctl new


def _rlctl(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, list[str]]:
    status = cli.main(list(argv))
    done = capsys.readouterr()
    return status, done.out, done.err.splitlines()


def test_recipes_are_listed_with_what_they_show_their_time_and_hardware(capsys):
    status, out, err = _rlctl(capsys, "recipes")
    assert (status, err) == (0, [])
    lines = out.splitlines()
    assert lines[0].split() == ["recipe", "shows", "time", "hardware"]
    assert [line.split()[0] for line in lines[1 : 1 + len(NAMES)]] == NAMES
    for line, recipe in zip(lines[1:], recipes_index.every(), strict=False):
        assert recipe.expected.shows in line and line.rstrip().endswith(recipe.expected.hardware)
    assert lines[-1] == "copy one:  rlctl new RECIPE DEST   read about it:  rlctl recipes RECIPE"


def test_a_recipe_shows_its_readme(capsys):
    assert _rlctl(capsys, "recipes", "count_good")[:2] == (0, (recipes_dir() / "count_good" / "README.md").read_text())


def test_new_copies_a_recipe_without_what_runs_left_in_it_and_prints_the_next_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert _rlctl(capsys, "new", "count_good", "first")[0] == 0
    for left in ("__pycache__/reward.pyc", "outputs/2026-01-01/metrics.jsonl", "multirun/x", ".hydra/config.yaml"):
        (tmp_path / "first" / left).parent.mkdir(parents=True)
        (tmp_path / "first" / left).write_text("")
    (tmp_path / "first" / "reward.py").chmod(0o444)
    (tmp_path / "a place").mkdir()  # empty: may be filled
    status, out, err = _rlctl(capsys, "new", "first", "a place")
    assert (status, err) == (0, [])
    assert out.splitlines()[0] == "copied first to a place"
    assert out.splitlines()[-2:] == ["next:", "  rlctl train 'a place'"]
    names = {str(p.relative_to(tmp_path / "a place")) for p in (tmp_path / "a place").rglob("*") if p.is_file()}
    assert names == {"README.md", "config.yaml", "data/prompts.jsonl", "expected.json", "reward.py"}
    assert os.access(tmp_path / "a place" / "reward.py", os.W_OK) and (tmp_path / "a place" / "reward.py").stat().st_mode & 0o200


def test_new_never_writes_over_anything(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("x")
    assert _rlctl(capsys, "new", "count_good", "mine") == (2, "", [
        "error: mine exists already",
        "  why:  nothing is written over; a new or an empty folder is needed",
        "  try:  rlctl new count_good mine_2",
    ])  # fmt: skip
    assert _rlctl(capsys, "new", "count_good", "file")[0] == 2
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert (tmp_path / "file").read_text() == "x"


NEEDS_TWO = "error: rlctl new takes a recipe and a folder to copy it to"


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (["new"], [NEEDS_TWO, "  why:  there are: ALL", "  try:  rlctl new count_good mine"]),
        (["new", "cgpo_judges"], [NEEDS_TWO, "  why:  there are: ALL", "  try:  rlctl new cgpo_judges mine"]),
        (
            ["new", "count_god", "mine"],
            [
                "error: there is no recipe count_god",
                "  why:  there are: ALL; and no folder of that name with a config.yaml",
                "  try:  did you mean count_good?",
            ],
        ),
        (["check"], ["error: rlctl check takes a recipe, by name or folder", "  why:  there are: ALL", "  try:  rlctl check count_good"]),
        (
            ["check", "count_good", "-m", "seed=0,1"],
            ["error: rlctl check looks at one run", "  why:  a sweep has no single number", "  try:  rlctl check count_good seed=1"],
        ),
        (["recipes", "--all"], ["error: rlctl recipes does not take --all", "  try:  rlctl recipes, or rlctl recipes NAME"]),
        (
            ["train", "count_good"],
            ["error: count_good is not a recipe folder", "  why:  there is no such folder", "  try:  rlctl new count_good count_good"],
        ),
    ],
)
def test_what_is_asked_wrongly_is_answered_with_what_to_type(argv, lines, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert _rlctl(capsys, *argv) == (2, "", [line.replace("ALL", ", ".join(NAMES)) for line in lines])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["recipes", "new", "check"])
def test_each_command_has_help(command, capsys):
    status, out, err = _rlctl(capsys, command, "--help")
    assert (status, err) == (0, []) and out.startswith(f"rlctl {command} ")


# a copied folder is composed on top of the built-in options


def test_a_copied_recipe_takes_overrides_and_sweeps_from_anywhere(tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    recipes_index.copy(recipes_dir() / "count_good", mine)
    elsewhere = tmp_path / "else" / "where"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    jobs = _composed(["-m", "seed=3,4", "algo.kl_coef=0.2"], Path("../../mine").resolve())
    assert [(job.config.seed, job.config.algo.kl_coef) for job in jobs] == [(3, 0.2), (4, 0.2)]
    for job in jobs:
        assert job.config.data.path == str(mine / "data" / "prompts.jsonl")
        assert job.config.reward.path == "reward.count_good"
        assert job.config.run.import_paths == [str(mine), str(elsewhere)]


def test_a_path_in_an_option_of_the_recipe_is_its_own_and_a_typed_one_is_of_the_working_folder(tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    recipes_index.copy(recipes_dir() / "count_good", mine)
    (mine / "data" / "short.yaml").write_text("path: ./data/short.jsonl\nlimit: 8\n")
    for folder in (mine / "data", tmp_path):
        (folder / "short.jsonl").write_text('{"prompt": "The tea is"}\n')
    monkeypatch.chdir(tmp_path)
    (chosen,), (typed,) = _composed(["data=short"], mine), _composed(["data=file:short.jsonl"], mine)
    assert (chosen.config.data.path, chosen.config.data.limit) == (str(mine / "data" / "short.jsonl"), 8)
    assert (typed.config.data.path, typed.config.data.limit) == (str(tmp_path / "short.jsonl"), None)


# rlctl check

FAKE = """\
import json, sys
from pathlib import Path

run = Path(sys.argv[1])
run.mkdir(exist_ok=True)
rows = [{"step": i, "objective/scores": float(i), "objective/kl": None if i == 3 else 0.5} for i in (1, 2, 3, 4)]
(run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
sys.exit(int(sys.argv[2]))
"""


def _promise(folder: Path, checks: list[dict[str, Any]], **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("defaults:\n  - base\n  - _self_\n")
    (folder / "fake.py").write_text(FAKE)
    raw = {"shows": "numbers", "seconds": 1, "hardware": "any machine", "checks": checks, **more}
    (folder / "expected.json").write_text(json.dumps(raw))
    return folder


def _score(at: str, **limits: float) -> dict[str, Any]:
    return {"metric": "objective/scores", "at": at, "means": "the score", **limits}


def test_check_runs_the_commands_in_a_new_folder_and_gives_a_verdict(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    commands = [["python", "{recipe}/fake.py", "{run}", "0"], ["python", "{recipe}/fake.py", "{run}/part", "0"]]
    good = [_score("first", max=1), _score("last 2", min=3.5, max=3.5), {**_score("step 2", min=2), "run": "part"}]
    _promise(tmp_path / "mine", good, commands=commands)
    assert cli.main(["check", "mine"]) == 0
    out = capfd.readouterr().out.splitlines()
    assert [line.split()[-1] for line in out[2:5]] == ["ok"] * 3
    assert [line.partition("  ")[0] for line in out[2:5]] == ["objective/scores", "objective/scores", "part: objective/scores"]
    assert f"run folder  {tmp_path / 'outputs' / 'check' / 'mine'}" in out
    assert out[-1] == "mine: all as expected"
    bad = [_score("best", min=4.5), _score("step 9", min=0), {**_score("lowest", min=0), "metric": "objective/kl"}, _score("last", min=4)]
    _promise(tmp_path / "mine", bad, commands=commands)
    assert cli.main(["check", "./mine", "seed=1"]) == 4
    out = capfd.readouterr().out.splitlines()
    assert [line.split()[-1] for line in out[2:6]] == ["missed", "missed", "missed", "ok"]
    assert out[-4:] == [
        "mine: 3 of 4 not as expected",
        "  objective/scores, highest of all steps: 4.000, expected at least 4.5",
        "  objective/scores, step 9: no number, expected at least 0",
        "  objective/kl, lowest of all steps: no number, expected at least 0",
    ]
    assert sorted(p.name for p in (tmp_path / "outputs" / "check").iterdir()) == ["mine", "mine_2"]


def test_check_ends_with_the_status_of_the_command_that_failed(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    commands = [["python", "{recipe}/fake.py", "{run}", "3"], ["python", "{recipe}/fake.py", "{run}/second", "0"]]
    _promise(tmp_path / "mine", [_score("last", min=4)], commands=commands)
    assert cli.main(["check", "mine", "hydra.run.dir=there"]) == 3
    assert sorted(p.name for p in (tmp_path / "there").iterdir()) == ["metrics.jsonl"]
    assert "as expected" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"checks": [{"metric": "a", "at": "last"}]}, "checks[0] needs metric, at and means"),
        ({"checks": [_score("last", min=1), _score("last", mim=1)]}, "checks[1]: there is no key 'mim'"),
        ({"checks": [_score("last 0", min=1)]}, "checks[0]: at='last 0' is none of first, last, best, lowest, first N, last N, step N"),
        ({"checks": [_score("last")]}, "checks[0] needs min, max or both, as numbers"),
        ({"checks": [_score("last", min="3")]}, "checks[0] needs min, max or both, as numbers"),  # type: ignore[arg-type]
        ({"checks": []}, "checks is empty: there is nothing to compare with"),
        ({"seconds": "long"}, "seconds is missing or of the wrong type"),
        ({"show": "x"}, "there is no key 'show'"),
        ({"commands": ["train"]}, "commands is a list of lists of words"),
    ],
)
def test_an_unusable_promise_is_refused_by_what_is_wrong_with_it(tmp_path, change, why):
    folder = _promise(tmp_path, **{"checks": [_score("last", min=1)], **change})
    with pytest.raises(ConfigError) as caught:
        expected.read(folder)
    assert str(caught.value).splitlines() == [f"error: {folder / 'expected.json'} cannot be used", f"  why:  {why}"]


# as installed, in an empty folder

DRIVER = """
import importlib, json, os, sys
from pathlib import Path
from rlctl import cli
from rlctl.config import compose

root, statuses = Path.cwd(), []
for folder, argv in json.loads(Path(sys.argv[1]).read_text()):
    os.makedirs(root / folder, exist_ok=True)
    os.chdir(root / folder)
    before = sys.path[:]
    compose._fresh_dir.cache_clear()
    importlib.invalidate_caches()
    statuses.append(cli.main(argv))
    sys.path[:] = before
    for name, module in list(sys.modules.items()):  # the next recipe has a module of the same name
        if str(getattr(module, "__file__", None) or "").startswith(str(root)):
            del sys.modules[name]
    if len(statuses) == 2:
        assert "torch" not in sys.modules, "rlctl recipes and rlctl new are light"
Path(sys.argv[2]).write_text(json.dumps(statuses))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """rlctl laid out as a wheel installs it: conf and recipes inside the package, read-only, away from the checkout."""
    folder = tmp_path_factory.mktemp("site")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(rlctl.__file__).parent, folder / "rlctl", ignore=ignore)
    shutil.copytree(conf_dir(), folder / "rlctl" / "conf", ignore=ignore, dirs_exist_ok=True)
    shutil.copytree(recipes_dir(), folder / "rlctl" / "recipes", ignore=ignore, dirs_exist_ok=True)
    for path in (folder / "rlctl" / "recipes").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    return folder


def _installed(site: Path, cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run([sys.executable, *argv], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def _filled(words: list[str]) -> list[str]:
    """A README's command with models that are here in place of what the user fills in; training only a little."""
    places = {"model=hf:": builtin("policy"), "reward=model:": builtin("reward")}
    for prefix, place in places.items():
        words = [f"{prefix}{place}" if word == f"{prefix}PATH_OR_HUB_ID" else word for word in words]
    small = {"train": SMALL, "sft": ["run.steps=2", "console=quiet"], "rm": ["run.steps=2", "console=quiet"]}
    return [*words[1:], *small.get(words[1], [])]


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["first_two", "all"])
def test_the_commands_of_every_readme_run_as_installed_in_an_empty_folder(whole, site, tmp_path):
    """In one process, one folder a recipe, in the order of the README: `rlctl new`, two steps of `rlctl train`, and the rest."""
    jobs: list[tuple[str, list[str]]] = [(".", ["recipes"])]
    for name in NAMES:
        found = [words for words in commands((recipes_dir() / name / "README.md").read_text()) if words[0] == "rlctl"]
        assert [words[1] for words in found[:2]] == ["new", "sft" if name == "pipeline" else "train"], name
        jobs += [(name, _filled(words)) for words in (found if whole else found[:2])]
    if not whole:  # of the sweep one member, which is a process
        jobs = [
            (name, [*argv, *(["hydra.sweeper.params={optim.lr: 3e-4}"] if (name, argv[0]) == ("sweep", "train") else [])])
            for name, argv in jobs
        ]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    (tmp_path / "empty").mkdir()
    done = _installed(site, tmp_path / "empty", "-c", DRIVER, str(tmp_path / "jobs.json"), str(tmp_path / "statuses.json"))
    assert done.returncode == 0, done.stderr
    statuses = json.loads((tmp_path / "statuses.json").read_text())
    failed = [(folder, shlex.join(argv), status) for (folder, argv), status in zip(jobs, statuses, strict=True) if status]
    assert failed == [], done.stderr
    for name in NAMES:
        runs = [json.loads(path.read_text()) for path in (tmp_path / "empty" / name).rglob("summary.json")]
        assert runs and all(run["steps_done"] == 2 for run in runs), name


def test_a_copied_recipe_is_checked_with_options_of_its_own(site, tmp_path):
    """Real processes: the copied folder's algo/my.yaml is chosen, its rollout/default.yaml wins over the built-in one."""
    new = _installed(site, tmp_path, "-m", "rlctl", "new", "count_good", "mine")
    assert (new.returncode, new.stdout.splitlines()[-1], new.stderr) == (0, "  rlctl train mine", "")
    for group, option, text in (
        ("algo", "my", "defaults: [rloo, _self_]\nsamples_per_prompt: 5\n"),
        ("rollout", "default", "temperature: 0.5\n"),
    ):
        (tmp_path / "mine" / group).mkdir()
        (tmp_path / "mine" / group / f"{option}.yaml").write_text(text)
    done = _installed(site, tmp_path, "-m", "rlctl", "check", "mine", "algo=my", *SMALL, "hydra.run.dir=run")
    assert done.returncode == 4, done.stderr
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["algo"]["name"], config["algo"]["samples_per_prompt"]) == ("rloo", 5)
    assert len((tmp_path / "run" / "samples" / "step_000002.jsonl").read_text().splitlines()) == 8 * 5
    assert config["rollout"]["temperature"] == 0.5
    # two steps have no mean of the last three
    assert done.stdout.splitlines()[-1] == "  objective/scores, mean of the last 3 steps: no number, expected at least 2.5"


# whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_shows_its_numbers(name, seed, site, tmp_path):
    done = _installed(site, tmp_path, "-m", "rlctl", "check", name, f"seed={seed}", "console=plain")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{name}: all as expected"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_scripts_of_a_readme_run(name, tmp_path):
    """In a copied folder. A script of a recipe takes --steps, --seeds, --out and --results: here it is made short."""
    recipes_index.copy(recipes_dir() / name, tmp_path / "mine")
    for words in commands((recipes_dir() / name / "README.md").read_text()):
        if words[0] == "python":
            short = ["--seeds", "1", "--steps", "2", "--out", str(tmp_path / "runs"), "--results", str(tmp_path)]
            done = subprocess.run([sys.executable, *words[1:], *short], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
