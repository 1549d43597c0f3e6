"""Run folders read and shown: `rlctl runs` on folders made by hand, whole, half written, broken and of sweeps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlctl import cli, lock, runs
from rlctl.console import runs as drawing
from rlctl.console.runs import RunRow, print_leaderboard, print_runs
from rlctl.runs import Run, Sweep

MORNING = time.mktime((2026, 12, 1, 9, 0, 0, 0, 0, -1))


def write_run(
    folder: Path, scores: list[float], *, status: str | None = "finished", reason: str = "", overrides: list[str] | None = None,
    steps: int = 25, cut: int | None = None, command: str = "rlctl train", tail: str = "", minute: int = 0, **summary: Any,
) -> Path:  # fmt: skip
    """A run folder: a line of metrics a score (and `tail` after them), a summary unless its status is None."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(overrides or []))
    (folder / "config.yaml").write_text(yaml.safe_dump({"run": {"steps": steps}, "debug": {"max_steps": cut}}))
    lines = [{"step": i, "objective/scores": s, "objective/kl": i / 4, "time/step": 1.5} for i, s in enumerate(scores, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    (folder / "command.txt").write_text(command + "\n")
    if status is not None:
        best = max(scores, default=None)
        ends = {"first": lines[0], "last": lines[-1], "best_score": best, "best_step": scores.index(best) + 1} if lines else {}
        told = {"status": status, "reason": reason, "steps_done": len(lines), "seconds": 80.0, **ends, **summary}
        (folder / "summary.json").write_text(json.dumps(told))
    for path in folder.rglob("*"):
        os.utime(path, (MORNING + 60 * minute,) * 2)
    return folder


# one run


def test_a_finished_run_is_what_its_summary_says(tmp_path):
    run = runs.read(write_run(tmp_path / "a", [1.0, 3.0, 2.0], overrides=["seed=1"], command="rlctl train seed=1"))
    assert (run.status, run.steps_done, run.steps, run.seconds) == ("finished", 3, 25, 80.0)
    assert (run.first["objective/scores"], run.last["objective/scores"], run.last["objective/kl"]) == (1.0, 2.0, 0.75)
    assert (run.best_score, run.best_step) == (3.0, 2)
    assert (run.overrides, run.command, run.started) == (["seed=1"], ["rlctl", "train", "seed=1"], MORNING)


def test_a_run_cut_short_by_the_config_plans_fewer_steps(tmp_path):
    assert runs.read(write_run(tmp_path / "a", [1.0], steps=25, cut=2)).steps == 2
    assert runs.read(write_run(tmp_path / "b", [1.0], steps=25, cut=90)).steps == 25


@pytest.mark.parametrize("tail", ["", '{"step": 4, "objective/sco', "\0\0\0"])
def test_a_run_without_a_summary_is_read_from_its_metrics_up_to_the_last_whole_line(tmp_path, tail):
    run = runs.read(write_run(tmp_path / "a", [1.0, 3.0, 2.0], status=None, tail=tail))
    assert (run.status, run.steps_done, run.seconds) == ("unfinished", 3, 4.5)
    assert (run.first["objective/scores"], run.last["objective/scores"], run.best_score, run.best_step) == (1.0, 2.0, 3.0, 2)


def test_a_run_that_failed_before_it_could_sum_up_is_read_from_its_metrics(tmp_path):
    folder = write_run(tmp_path / "a", [1.0, 3.0], status=None)
    (folder / "summary.json").write_text('{"status": "failed", "reason": "its process was ended by SIGKILL"}')
    run = runs.read(folder)
    assert (run.status, run.reason, run.steps_done, run.best_score) == ("failed", "its process was ended by SIGKILL", 2, 3.0)


def test_a_run_is_running_while_somebody_holds_its_folder(tmp_path):
    folder = write_run(tmp_path / "a", [1.0], status=None)
    with lock.hold(folder) as held:
        assert held is not None
        assert runs.read(folder).status == "running"
    assert runs.read(folder).status == "unfinished"


def test_a_lock_lives_as_long_as_the_last_process_that_holds_it(tmp_path):
    with lock.hold(tmp_path) as handle:
        assert handle is not None
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(handle,))
    assert lock.held(tmp_path)
    child.communicate(b"\n")
    assert not lock.held(tmp_path)


def test_a_missing_score_is_no_score(tmp_path):
    folder = write_run(tmp_path / "a", [], status=None, tail='{"step": 1, "objective/scores": null, "objective/kl": 0.5}\n')
    run = runs.read(folder)
    assert (run.last_of("objective/scores"), run.last_of("objective/kl"), run.best_score) == (None, 0.5, None)
    assert run.last_of("nosuch") is None


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("summary.json", '{"stat', "summary.json is no JSON: Unterminated string starting at: line 1 column 2 (char 1)"),
        ("summary.json", "[]", "summary.json holds no object"),
        ("metrics.jsonl", '{"step": 1}\nno\n{"step": 2}\n', "metrics.jsonl, line 2, is no JSON: Expecting value: line 1 column 1 (char 0)"),
        ("metrics.jsonl", "{}\n", "metrics.jsonl holds a line without a step"),
        ("config.yaml", "a: [", "config.yaml is no YAML: "),
        ("summary.json", b"\xff", "summary.json is no JSON: "),
    ],
)
def test_a_broken_folder_is_said_to_be_broken_and_why(tmp_path, name, text, reason):
    folder = write_run(tmp_path / "a", [1.0], status="finished" if name != "metrics.jsonl" else None)
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    run = runs.read(folder)
    assert run.status == "broken"
    assert run.reason.startswith(reason)


# finding them


def test_runs_and_sweeps_are_found_wherever_they_lie_and_recipes_are_none(tmp_path):
    write_run(tmp_path / "outputs" / "day" / "one", [1.0])
    write_run(tmp_path / "mine", [1.0])
    sweep = tmp_path / "multirun" / "day" / "time"
    for n in (0, 1, 10, 2):
        write_run(sweep / str(n), [1.0])
    write_run(sweep / "1" / "earlier" / "1", [9.0])
    (sweep / "multirun.yaml").touch()
    (sweep / ".sweep").mkdir()
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "config.yaml").write_text("seed: 1")
    found = list(runs.find(tmp_path))
    assert [f.path for f in found if isinstance(f, Run)] == [tmp_path / "mine", tmp_path / "outputs" / "day" / "one"]
    (only,) = (f for f in found if isinstance(f, Sweep))
    assert [m.number for m in only.members] == [0, 1, 2, 10]


def test_members_that_never_started_are_missing(tmp_path):
    write_run(tmp_path / "1", [1.0])
    (tmp_path / "sweep.json").write_text('{"members": [["seed=0"], ["seed=1"], ["seed=2"]]}')
    assert runs.read_sweep(tmp_path).missing == [0, 2]


# ranking, and the command to paste


def made(number: int, last: float | None, best: float | None = None, status: str = "finished", kl: float = 0.0) -> Run:
    last_metrics = {"objective/scores": last, "objective/kl": kl}
    return Run(Path(str(number)), status, last=last_metrics, best_score=best)


def numbers(ranked: list[Run]) -> list[int | None]:
    return [r.number for r in ranked]


def test_ranking():
    members = [made(0, 1.0, 9.0, kl=3.0), made(1, 2.0, 2.0, kl=1.0), made(2, None), made(3, 5.0, 5.0, "failed"), made(4, 2.0, 3.0, kl=2.0)]
    assert numbers(runs.ranked(members, "objective/scores")) == [1, 4, 0, 2, 3]
    assert numbers(runs.ranked(members, "best")) == [0, 4, 1, 2, 3]
    assert numbers(runs.ranked(members, "objective/kl")) == [0, 4, 1, 2, 3]
    assert numbers(runs.ranked(members, "-objective/kl")) == [2, 1, 4, 0, 3]
    assert numbers(runs.ranked([made(0, float("nan")), made(1, -1.0)], "objective/scores")) == [1, 0]


@pytest.mark.parametrize(
    ("command", "overrides", "pasted"),
    [
        ("rlctl train -m seed=0,1", ["seed=1"], "rlctl train seed=1"),
        ("rlctl train recipes/x -m seed=0,1", ["seed=1"], "rlctl train recipes/x seed=1"),
        ("rlctl train '/a b' --multirun seed=0,1", ["seed=1"], "rlctl train '/a b' seed=1"),
        ("rlctl train -m '~debug.x'", [], "rlctl train"),
        ("rlctl train --config-dir conf -m seed=0 --config-name=big", ["seed=0"], "rlctl train --config-dir conf --config-name=big seed=0"),
        ("rlctl train -m x", ["data.prompt_column=a b", "rollout.stop=[\"<|im_end|>\"]"],
         "rlctl train 'data.prompt_column=a b' 'rollout.stop=[\"<|im_end|>\"]'"),
        ("rlctl sft -m seed=0,1", ["seed=0"], "rlctl sft seed=0"),
        ("", ["seed=0"], "rlctl train seed=0"),
    ],
)  # fmt: skip
def test_the_winning_command_can_be_pasted(tmp_path, command, overrides, pasted):
    folder = write_run(tmp_path / "a", [1.0], overrides=overrides, command=command + "\nrlctl resume elsewhere" if command else command)
    assert runs.pasteable(runs.read(folder)) == pasted


# the command


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, list[str]]]:
    """`rlctl runs` in a folder of its own: exit status, lines printed to stdout or, in want of any, to stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> tuple[int, list[str]]:
        status = cli.main(["runs", *argv])
        out, err = capsys.readouterr()
        return status, [line.rstrip() for line in (out or err).splitlines()]

    return run


def write_many() -> None:
    write_run(Path("outputs/d/a"), [1.0, 2.0, 3.0], overrides=["algo=ppo", "algo.kl_coef=0.1"], minute=1)
    write_run(Path("outputs/d/b"), [], status="failed", reason="reward fn:m.f raised ValueError\nmore", minute=2)
    write_run(Path("outputs/d/c"), [1.0, 2.0], status=None, tail="{", overrides=["run.steps=100"], steps=100, minute=4)
    (write_run(Path("outputs/d/d"), [1.0], minute=3) / "summary.json").write_text("{")
    for n, (kl_coef, scores) in enumerate([(0.02, [1.0, 3.0, 2.0]), (0.2, [1.0, 2.0, 2.5]), (0.5, [])]):
        status, reason = ("finished", "") if scores else ("failed", "loss is nan")
        command, overrides = "rlctl train recipes/x -m algo.kl_coef=0.02,0.2,0.5", [f"algo.kl_coef={kl_coef}", "data.prompt_column=a b"]
        write_run(Path(f"multirun/d/t/{n}"), scores, status=status, reason=reason, overrides=overrides, command=command, minute=5 + n)
    Path("multirun/d/t/sweep.json").write_text(json.dumps({"members": [[], [], [], ["algo.kl_coef=1", "data.prompt_column=a b"]]}))


LISTED = [
    "started           status      steps  score   best      kl   time  run",
    "2026-12-01 09:05  sweep of 4   3/25  2.500  2.500  0.7500  1m20s  multirun/d/t  best: 1  algo.kl_coef=0.2"
    "  2 finished, 1 failed, 1 not run",
    "2026-12-01 09:04  unfinished  2/100  2.000  2.000  0.5000     3s  outputs/d/c   run.steps=100",
    "2026-12-01 09:03  broken          -      -      -       -      -  outputs/d/d   summary.json is no JSON: Expecting property name"
    " enclosed in double quotes: line 1 column 2 (char 1)",
    "2026-12-01 09:02  failed       0/25      -      -       -  1m20s  outputs/d/b   reward fn:m.f raised ValueError",
    "2026-12-01 09:01  finished     3/25  3.000  3.000  0.7500  1m20s  outputs/d/a   algo=ppo  algo.kl_coef=0.1",
]  # fmt: skip


def test_without_a_folder_all_runs_here_are_listed_newest_first(shown):
    write_many()
    assert shown() == (0, LISTED)
    assert folders(shown("outputs")) == ["outputs/d/c", "outputs/d/d", "outputs/d/b", "outputs/d/a"]


def folders(printed: tuple[int, list[str]]) -> list[str]:
    """The folder in each line of a list."""
    return [next(word for word in line.split() if "/d/" in word) for line in printed[1][1:]]


BOARD = [
    "#    score  first   best      kl   time  overrides that differ",
    "1    2.500  1.000  2.500  0.7500  1m20s  algo.kl_coef=0.2",
    "0    2.000  1.000  3.000  0.7500  1m20s  algo.kl_coef=0.02",
    "2   failed      -      -       -  1m20s  algo.kl_coef=0.5",
    "                                         loss is nan",
    "3  not run      -      -       -      -  algo.kl_coef=1",
    "",
    "best: 1  in multirun/d/t/1",
    "  rlctl train recipes/x algo.kl_coef=0.2 'data.prompt_column=a b'",
]


def test_a_sweep_is_ranked_and_its_winner_can_be_pasted(shown):
    write_many()
    assert shown("multirun/d/t") == (0, BOARD)


def test_sorted_by_the_best_score_another_wins(shown):
    write_many()
    _, lines = shown("multirun/d/t", "--sort", "best")
    assert [line.split()[0] for line in lines[1:4]] == ["0", "1", "2"]
    assert lines[-2:] == ["best: 0  in multirun/d/t/0", "  rlctl train recipes/x algo.kl_coef=0.02 'data.prompt_column=a b'"]


def test_what_it_is_sorted_by_has_a_column(shown):
    write_many()
    _, lines = shown("multirun/d/t", "--sort=-time/step")
    assert lines[0] == "#    score  first   best      kl   time  time/step  overrides that differ"
    assert lines[1] == "0    2.000  1.000  3.000  0.7500  1m20s      1.500  algo.kl_coef=0.02"
    assert "objective/kl" not in shown("multirun/d/t", "--sort", "objective/kl")[1][0]


def test_a_sorted_list_puts_a_sweep_where_its_best_member_belongs(shown):
    write_many()
    assert folders(shown("--sort", "objective/scores", "--all")) == [
        "outputs/d/a", "multirun/d/t/1", "multirun/d/t/0", "outputs/d/c", "outputs/d/d", "outputs/d/b", "multirun/d/t/2",
    ]  # fmt: skip
    assert folders(shown("--sort", "objective/scores")) == ["outputs/d/a", "multirun/d/t", "outputs/d/c", "outputs/d/d", "outputs/d/b"]


def test_only_the_newest_are_listed_unless_all_are_asked_for(shown):
    for i in range(23):
        write_run(Path(f"outputs/{i:02}"), [1.0], minute=i)
    _, lines = shown()
    assert (len(lines), lines[-1]) == (22, "and 3 more; --all shows them")
    assert lines[1].split()[-1] == "outputs/22"
    assert len(shown("--all")[1]) == 24


def test_several_sweeps_are_named(shown):
    write_many()
    write_run(Path("s/0"), [1.0], overrides=["seed=0"])
    Path("s/multirun.yaml").touch()
    _, lines = shown("multirun/d/t", "s", "outputs/d/a")
    assert [line for line in lines if line in ("multirun/d/t", "s")] == ["multirun/d/t", "s"]
    assert lines[-1].endswith("outputs/d/a  algo=ppo  algo.kl_coef=0.1")


def test_json_holds_all_runs_for_scripts(shown):
    write_many()
    status, lines = shown("--json")
    got = json.loads("\n".join(lines), parse_constant=lambda word: pytest.fail(word))
    assert status == 0
    assert [(g["path"], g["status"], g["number"], g["sweep"]) for g in got] == [
        ("multirun/d/t/1", "finished", 1, "multirun/d/t"),
        ("multirun/d/t/0", "finished", 0, "multirun/d/t"),
        ("multirun/d/t/2", "failed", 2, "multirun/d/t"),
        ("outputs/d/c", "unfinished", None, None),
        ("outputs/d/d", "broken", None, None),
        ("outputs/d/b", "failed", None, None),
        ("outputs/d/a", "finished", None, None),
    ]
    assert (got[0]["last"]["objective/scores"], got[0]["steps_done"], got[0]["steps"]) == (2.5, 3, 25)
    assert got[0]["started"].startswith("2026-12-01T09:06:00")
    assert got[0]["command"] == "rlctl train recipes/x algo.kl_coef=0.2 'data.prompt_column=a b'"


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (["nosuch"], ["error: there is no folder nosuch", "  try:  rlctl runs, without a folder, looks into ./outputs and ./multirun"]),
        (["."], ["error: there are no runs in .", "  why:  a run folder holds config.yaml, metrics.jsonl and summary.json"]),
        (["--sort"], ["error: --sort needs a metric", "  try:  rlctl runs --sort objective/kl"]),
        (["--jsn"], ["error: unknown option --jsn", "  try:  did you mean --json?"]),
        (
            [],
            [
                "error: there are no runs here",
                "  why:  neither ./outputs nor ./multirun is a folder",
                "  try:  rlctl train makes one; rlctl runs DIR looks elsewhere",
            ],
        ),
    ],
)
def test_what_cannot_be_shown_says_what_to_type_instead(shown, argv, lines):
    assert shown(*argv) == (2, lines)


@pytest.mark.parametrize("metric", ["objective/score", "-objective/score", "scores"])
def test_a_metric_that_no_run_has_is_an_error(shown, metric):
    write_many()
    name = metric.removeprefix("-")
    assert shown("--sort", metric) == (2, [f"error: no run here has a metric {name}", "  try:  did you mean objective/scores?"])


def test_help(shown):
    status, lines = shown("--help")
    assert (status, lines[0]) == (0, "rlctl runs [DIR ...] [--sort METRIC] [--json] [--all]")


def test_it_imports_nothing_heavy(tmp_path):
    write_run(tmp_path / "outputs" / "a", [1.0])
    heavy = "{m.partition('.')[0] for m in sys.modules} & {'torch', 'transformers', 'datasets', 'numpy', 'hydra', 'omegaconf'}"
    code = f"import sys\nfrom rlctl.cli import main\nassert main(['runs']) == 0\nsys.stderr.write(str({heavy}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == "set()"


# drawing


class Terminal:
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", self.text).splitlines()]


ROWS = [
    RunRow(
        None, ["algo=ppo", "algo.kl_coef=0.1"], "finished", last_score=3.0, seconds=80.0, steps_done=25, steps=25,
        date="2026-12-01 09:01", run_dir="outputs/2026-12-01/09-01-00",
    ),
    RunRow(
        None, ["model=hf:/data/models/" + "x" * 60], "failed", error="reward fn:m.f raised ValueError\nmore", date="2026-12-01 09:00",
        run_dir="outputs/2026-12-01/09-00-00",
    ),
]  # fmt: skip


def test_a_list_on_a_terminal_of_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_runs(ROWS, stream=(out := Terminal()))  # type: ignore[arg-type]
    assert out.lines == [
        "started           status    steps  score  best  kl   time  run",
        "2026-12-01 09:01  finished  25/25  3.000     -   -  1m20s",
        "    outputs/2026-12-01/09-01-00  algo=ppo  algo.kl_coef=0.1",
        "2026-12-01 09:00  failed        -      -     -   -      -",
        "    outputs/2026-12-01/09-00-00",
        f"    model=hf:/data/models/{'x' * 60}",
        "    reward fn:m.f raised ValueError",
    ]
    assert "\x1b[31mfailed\x1b[0m" in out.text


def test_a_list_on_a_terminal_of_140_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    print_runs(ROWS, hidden=4, stream=(out := Terminal()))  # type: ignore[arg-type]
    assert out.lines == [
        "started           status    steps  score  best  kl   time  run",
        "2026-12-01 09:01  finished  25/25  3.000     -   -  1m20s  outputs/2026-12-01/09-01-00  algo=ppo  algo.kl_coef=0.1",
        "2026-12-01 09:00  failed        -      -     -   -      -  outputs/2026-12-01/09-00-00",
        f"    model=hf:/data/models/{'x' * 60}  reward fn:m.f raised ValueError",
        "and 4 more; --all shows them",
    ]


def test_what_runs_write_cannot_steer_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    evil = "\x1b]0;x\x07[red]\u202e"
    rows = [RunRow(0, [evil], "failed", error=evil, run_dir=evil, remark=evil)]
    print_runs(rows, stream=(out := Terminal()))  # type: ignore[arg-type]
    print_leaderboard(rows, stream=out)  # type: ignore[arg-type]
    assert not {"\x07", "\u202e"} & set(out.text)
    assert "\x1b]" not in out.text
    assert "[red]" in out.text


def test_the_leaderboard_says_how_far_an_unfinished_member_came():
    rows = [
        RunRow(0, ["seed=0"], "running", last_score=2.0, steps_done=3, steps=25, run_dir="s/0"),
        RunRow(1, ["seed=1"], "finished", last_score=1.0, steps_done=25, steps=25, run_dir="s/1", remark="finished before, skipped"),
        RunRow(2, ["seed=2"], "not run", run_dir="s/2"),
    ]
    out = Plain()
    drawing.print_sweep(rows, out, go_on="rlctl train -m seed=0,1,2 hydra.sweep.dir=s")  # type: ignore[arg-type]
    assert out.lines == [
        "#    score  first  best  kl  time  overrides that differ",
        "0    2.000      -     -   -     -  seed=0",
        "                                   running after 3 of 25 steps",
        "1    1.000      -     -   -     -  seed=1",
        "                                   finished before, skipped",
        "2  not run      -     -   -     -  seed=2",
        "",
        "best: 0  in s/0",
        "  seed=0",
        "",
        "to go on:",
        "  rlctl train -m seed=0,1,2 hydra.sweep.dir=s",
    ]


class Plain(Terminal):
    """A stream that is none."""

    def isatty(self) -> bool:
        return False
