"""Sweeps that last: what is skipped, starts anew and goes on; several at once; interrupts; and nothing that grows.

Most tests replace a member's training by a script that leaves the same files behind in milliseconds; those at the end train.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import test_cli

from rlctl import cli, launch, lock, place, processes, runs
from rlctl.commands import member, sweep
from rlctl.commands.notes import Note, Notes, Stop
from rlctl.config import compose
from rlctl.config import sweep as planning
from rlctl.config.schema import Config
from rlctl.errors import ConfigError

FAKE = '''
"""Takes the place of a training: what it does is in deeds.json of the working folder, by seed."""
import json, os, signal, sys, time
from pathlib import Path

run_dir = Path(sys.argv[-1])
config = (run_dir / "config.yaml").read_text()
seed = next(line.split()[1] for line in config.splitlines() if line.startswith("seed:"))
deeds = json.loads(Path("deeds.json").read_text()) if Path("deeds.json").exists() else {}
deed = deeds.get(seed, "finish")
with open("begun.txt", "a") as file:
    file.write(f"{seed} {'auto' if 'resume: auto' in config else 'never'} {os.environ.get('CUDA_VISIBLE_DEVICES')}\\\\n")


def end(status, reason=""):
    metrics = {"objective/scores": float(seed), "objective/kl": 0.5}
    ends = {"first": metrics, "last": metrics, "best_score": float(seed)}
    told = {"status": status, "reason": reason, "steps_done": 2, "seconds": 3.0, **ends}
    (run_dir / "summary.json").write_text(json.dumps(told))


(run_dir / "metrics.jsonl").write_text("")
print("output of", seed, flush=True)
if deed == "fail":
    end("failed", "told to")
    print("told to", file=sys.stderr)
    sys.exit(3)
if deed == "die":
    os.kill(os.getpid(), signal.SIGKILL)
if deed == "interrupt the sweep":
    def listen(*_):
        end("interrupted")
        sys.exit(130)
    signal.signal(signal.SIGTERM, listen)
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(20)
end("finished")
'''

Rlctl = Callable[..., test_cli.Done]


@contextmanager
def faked(folder: Path) -> Iterator[None]:
    """In a folder where members are trained by the script above."""
    (folder / "fake.py").write_text(FAKE.replace("\\\\n", "\\n"))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(launch, "worker_arguments", lambda config, show_traceback: [str(folder / "fake.py"), config.run.dir])
        yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """An empty working folder."""
    with faked(tmp_path):
        yield tmp_path


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with faked(folder):
        assert cli.main(["train", "-m", "seed=1,2,3", "run.steps=9", "hydra.sweep.dir=s"]) == 0
    return folder / "s"


@pytest.fixture
def finished(here: Path, finished_once: Path) -> None:
    """A finished sweep of the seeds 1, 2 and 3 lies in s/."""
    shutil.copytree(finished_once, here / "s")


@pytest.fixture
def rlctl(here: Path, capfd: pytest.CaptureFixture[str]) -> Rlctl:
    """`rlctl train -m seed=... hydra.sweep.dir=s` and more, in this process."""

    def run(seeds: str, *more: str) -> test_cli.Done:
        compose._fresh_dir.cache_clear()
        status = cli.main(["train", "-m", f"seed={seeds}", "hydra.sweep.dir=s", *more])
        return test_cli.Done(status, *capfd.readouterr())

    return run


def deeds(**by_seed: str) -> None:
    """What the members of some seeds do; the others finish."""
    Path("deeds.json").write_text(json.dumps({name.removeprefix("s"): deed for name, deed in by_seed.items()}))


def begun() -> list[str]:
    """Seeds of the members that were started since the last call, in order."""
    path = Path("begun.txt")
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.split()[0] for line in lines]


def statuses(count: int) -> list[str]:
    return [runs.read(Path("s") / str(i)).status if (Path("s") / str(i)).exists() else "none" for i in range(count)]


def table(out: str) -> list[str]:
    """The closing table and what follows."""
    lines = [line.rstrip() for line in out.splitlines()]
    start = max(i for i, line in enumerate(lines) if line.startswith("# "))
    return lines[start:]


# again in the same folder


def test_finished_members_are_skipped_and_stand_in_the_table(finished, rlctl):
    done = rlctl("1,2,3", "run.steps=9")
    assert (done.status, done.err, begun()) == (0, "", [])
    assert done.out.splitlines()[:3] == [f"member {i}: finished before, skipped: seed={i + 1}" for i in range(3)]
    assert table(done.out) == [
        "#  score  first   best      kl  time  overrides that differ",
        "2  3.000  3.000  3.000  0.5000    3s  seed=3",
        "                                      finished before, skipped",
        "1  2.000  2.000  2.000  0.5000    3s  seed=2",
        "                                      finished before, skipped",
        "0  1.000  1.000  1.000  0.5000    3s  seed=1",
        "                                      finished before, skipped",
        "",
        f"best: 2  in {Path.cwd() / 's' / '2'}",
        "  rlctl train seed=3 run.steps=9",
    ]


def replace_status(number: int, status: str) -> None:
    path = Path("s") / str(number) / "summary.json"
    path.write_text(path.read_text().replace('"finished"', f'"{status}"'))


def test_each_member_by_what_its_folder_holds(finished, rlctl):
    """Stopped at a limit: skipped. Without a summary, or with half of one: starts anew. A fourth is new."""
    replace_status(0, "stopped")
    Path("s/1/summary.json").unlink()
    Path("s/2/summary.json").write_text('{"status": "fini')
    done = rlctl("1,2,3,4", "run.steps=9")
    assert done.status == 0
    assert begun() == ["2", "3", "4"]
    assert [line for line in done.out.splitlines() if line.startswith("member")] == [
        "member 0: stopped before, skipped: seed=1",
        "member 1: unfinished before, starts anew: seed=2",
        "member 2: unfinished before, starts anew: seed=3",
        "member 3: starts: seed=4",
    ]


def test_a_failed_member_starts_anew_and_what_it_left_is_kept(rlctl):
    deeds(s2="fail")
    first = rlctl("1,2")
    assert first.status == 3
    assert statuses(2) == ["finished", "failed"]
    assert first.err.splitlines() == ["told to", "error: member 1 failed with exit status 3: seed=2"]
    assert table(first.out)[-2:] == ["to go on:", "  rlctl train -m seed=1,2 hydra.sweep.dir=s"]
    left = {p.name for p in Path("s/1").iterdir()}
    deeds()
    begun()
    second = rlctl("1,2")
    assert (second.status, begun()) == (0, ["2"])
    assert "member 1: failed before, starts anew: seed=2\n" in second.out
    assert {p.name for p in Path("s/1/earlier/1").iterdir()} == left
    assert json.loads(Path("s/1/earlier/1/summary.json").read_text())["reason"] == "told to"
    assert statuses(2) == ["finished"] * 2
    assert "to go on" not in second.out


def test_a_member_whose_process_died_is_failed_and_the_next_ones_run(rlctl):
    deeds(s1="die")
    done = rlctl("1,2")
    assert done.status == 128 + signal.SIGKILL
    assert runs.read(Path("s/0")).reason == "its process was ended by SIGKILL (out of memory?)"
    assert (statuses(2), begun()) == (["failed", "finished"], ["1", "2"])


def test_an_unfinished_member_with_a_checkpoint_goes_on_in_its_folder(finished, rlctl):
    """And one that lacks only its end, too: both are started with run.resume=auto."""
    for number, step in ((0, 7), (1, 9)):
        (Path("s") / str(number) / "checkpoints" / f"step_{step:06}").mkdir(parents=True)
        (Path("s") / str(number) / "checkpoints" / ".step_000008.partial").mkdir()
        replace_status(number, "interrupted")
    done = rlctl("1,2,3", "run.steps=9")
    assert Path("begun.txt").read_text() == "1 auto None\n2 auto None\n"
    assert "member 0: interrupted before, after step 7, goes on: seed=1\n" in done.out
    assert "member 1: interrupted before, after step 9, goes on: seed=2\n" in done.out
    assert not list(Path("s").glob("*/earlier"))
    assert json.loads(Path("s/0/resumes.jsonl").read_text())["after_step"] == 7
    assert len(Path("s/0/command.txt").read_text().splitlines()) == 2
    assert begun() == ["1", "2"]
    assert rlctl("1,2,3", "run.steps=9").status == 0
    assert begun() == []  # that it went on makes it no other run


def test_another_sweep_in_the_folder_is_refused_before_anything_runs(finished, rlctl):
    before = {p: p.stat().st_mtime_ns for p in Path("s").rglob("*")}
    done = rlctl("1,3", "run.steps=9")
    assert done.status == 2
    assert done.err.splitlines() == [
        f"error: {Path.cwd() / 's'} holds another sweep",
        "  why:  member 1 there: seed=2 run.steps=9",
        "        member 1 here: seed=3 run.steps=9",
        "  try:  a new folder: leave hydra.sweep.dir out",
    ]
    assert begun() == []
    assert {p: p.stat().st_mtime_ns for p in Path("s").rglob("*")} == before


def test_how_it_is_shown_and_run_makes_it_no_other_sweep(finished, rlctl):
    done = rlctl("1,2,3", "console=quiet", "run.steps=9", "sweep.fail_fast=true", "launch.processes=2")
    assert (done.status, done.out, done.err, begun()) == (0, "", "", [])


def test_a_finished_member_whose_config_has_changed_is_refused_and_left_alone(rlctl, here):
    """Same overrides, but a file of the recipe says something else now."""
    (here / "recipe").mkdir()
    recipe = "defaults:\n  - base\n  - _self_\nrun:\n  steps: {}\n"
    (here / "recipe" / "config.yaml").write_text(recipe.format(3))
    argv = ["train", "recipe", "-m", "seed=1,2", "hydra.sweep.dir=s"]
    assert cli.main(argv) == 0
    (here / "s" / "1" / "summary.json").unlink()
    begun()
    (here / "recipe" / "config.yaml").write_text(recipe.format(4))
    before = (here / "s" / "0" / "summary.json").read_text()
    assert cli.main(argv) == 2
    assert begun() == ["2"], "one that is not finished starts anew with the config of now"
    assert compose.load(here / "s" / "1" / "config.yaml").run.steps == 4
    assert compose.load(here / "s" / "0" / "config.yaml").run.steps == 3
    assert (here / "s" / "0" / "summary.json").read_text() == before


def test_the_error_of_a_changed_config_names_the_keys(finished):
    config = compose.load(Path("s/0/config.yaml"))
    job = compose.Job(replace(config, seed=7, score=replace(config.score, prompts=3)), Path("s/0").resolve(), ["seed=1"], 0, {})
    with pytest.raises(ConfigError) as caught:
        member.decide(job, Note(0, "s/0", ["seed=1"]))
    assert caught.value.lines() == [
        "error: member 0 has finished before with another config",
        "  why:  seed=7 (was 1)",
        "  try:  a new folder: leave hydra.sweep.dir out",
    ]


def test_a_member_whose_config_cannot_be_is_refused_and_the_others_run(rlctl):
    done = rlctl("1", "algo.minibatches=1,7")
    assert done.status == 2
    assert statuses(2) == ["finished", "failed"]
    assert "error: the config has a problem" in done.err
    assert done.err.splitlines()[-1] == "error: member 1 failed with exit status 2: seed=1 algo.minibatches=7"
    assert "the config has a problem" in "\n".join(table(done.out))


def test_a_folder_where_somebody_trains_is_left_alone(finished, rlctl):
    Path("s/0/summary.json").unlink()
    with lock.hold(Path("s/0")):
        done = rlctl("1", "run.steps=9")
    assert done.status == 2
    assert done.err.splitlines()[:2] == [f"error: {Path.cwd() / 's' / '0'} is in use", "  why:  another process trains there"]
    assert begun() == []
    assert not Path("s/0/earlier").exists()


def test_two_sweeps_never_share_a_folder(rlctl):
    Path("s").mkdir()
    with lock.hold(Path("s")):
        done = rlctl("1,2")
    assert (done.status, begun()) == (2, [])
    assert done.err.splitlines()[0] == f"error: {Path.cwd() / 's'} is in use"


# stopping


def test_fail_fast_starts_no_member_after_a_failed_one(rlctl):
    deeds(s2="fail")
    done = rlctl("1,2,3,4", "sweep.fail_fast=true")
    assert done.status == 3
    assert begun() == ["1", "2"]
    assert not Path("s/2").exists()
    assert [line.split()[:3] for line in table(done.out)[1:6]] == [
        ["0", "1.000", "1.000"], ["1", "failed", "2.000"], ["told", "to"], ["2", "not", "run"], ["3", "not", "run"],
    ]  # fmt: skip


def test_an_interrupt_ends_the_running_member_in_good_order_and_starts_no_other(rlctl):
    _listen()
    deeds(s2="interrupt the sweep")
    done = rlctl("1,2,3")
    assert done.status == 130
    assert "interrupted: what trains ends in good order" in done.err
    assert begun() == ["1", "2"]
    assert statuses(3) == ["finished", "interrupted", "none"]
    shown = table(done.out)
    assert [line.split()[:2] for line in shown if line[:1] in "012" and line] == [["1", "2.000"], ["0", "1.000"], ["2", "not"]]
    assert "interrupted after 2 of 25 steps" in "\n".join(shown)
    assert shown[-1] == "  rlctl train -m seed=1,2,3 hydra.sweep.dir=s"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_highest_wish_to_stop_wins(tmp_path):
    notes = Notes(tmp_path)
    notes.clear()
    assert notes.stopped is Stop.no
    notes.stop(Stop.interrupted)
    notes.stop(Stop.failed)
    assert notes.stopped is Stop.interrupted
    notes.stop(Stop.killed)
    assert notes.stopped is Stop.killed
    notes.clear()
    assert notes.stopped is Stop.no


STUBBORN = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\nprint('ready', flush=True)\ntime.sleep(60)"


def test_a_child_that_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_PATIENCE", 0.5)
    output, since = tmp_path / "out", time.monotonic()

    def asked() -> int:
        return 0 if not output.read_text() else 1 if time.monotonic() < since + 1.0 else 2

    child = processes.Child(dict(os.environ), output, asked=asked)
    assert processes.run_child([sys.executable, "-c", STUBBORN], child) == 128 + signal.SIGKILL


def test_ctrl_c_reaches_a_child_once(tmp_path):
    """A terminal sends SIGINT to every process; the child sees only what its parent passes on."""
    code = "import os, signal\nprint(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    child = processes.Child(dict(os.environ), tmp_path / "out")
    assert processes.run_child([sys.executable, "-c", code], child) == 0
    assert (tmp_path / "out").read_text() == "True\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


# the plan of a sweep


def plan(*argv: str, recipe: Path | None = None) -> planning.SweepPlan | None:
    compose._fresh_dir.cache_clear()
    return planning.plan(list(argv), recipe)


def members(*argv: str) -> list[list[str]]:
    found = plan(*argv)
    assert found is not None and found.members is not None
    return found.members


@pytest.mark.parametrize("argv", [[], ["seed=1"], ["--cfg", "job"], ["sweep.parallel=2"]])
def test_what_is_no_sweep_has_no_plan_and_no_folder(here, argv):
    assert plan(*argv) is None
    assert not Path("multirun").exists()


def test_the_members_foreseen_are_those_that_hydra_makes(here):
    argv = [
        "algo=ppo,rloo", "reward=fn:a.b,fn:c.d", "model=hf:org/m-1.5", "data=file:/a.jsonl", "reward.args.words=[a,b]", "hydra.sweep.dir=x",
        'rollout.stop=["<|im_end|>"]', "optim.lr=1e-3", "seed=range(1,2)",
    ]  # fmt: skip
    seen: list[compose.Job] = []
    compose.run(["-m", *argv], None, seen.append)
    assert len(seen) == 4
    assert members("-m", *argv) == [job.overrides for job in seen]


def test_a_sweep_that_a_recipe_asks_for(here):
    (here / "r").mkdir()
    text = "defaults:\n  - base\n  - _self_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 1,2\n      optim.lr: 0.1\n"
    (here / "r" / "config.yaml").write_text(text)
    found = plan("algo.kl_coef=0.5", recipe=here / "r")
    assert found is not None
    assert found.members == [["seed=1", "optim.lr=0.1", "algo.kl_coef=0.5"], ["seed=2", "optim.lr=0.1", "algo.kl_coef=0.5"]]


def test_what_is_said_about_the_whole_sweep_is_none_of_its_members_overrides(here):
    assert members("-m", "seed=1,2", "sweep.fail_fast=true", "sweep.parallel=1") == [["seed=1"], ["seed=2"]]


def test_members_at_once_are_started_by_joblib(here):
    found = plan("-m", "seed=1,2", "sweep.parallel=2", "hydra.sweep.dir=a b")
    assert found is not None and not found.here and found.gpus_wanted
    assert found.overrides == [
        f'hydra.sweep.dir="{here / "a b"}"', "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.launcher.batch_size=1",
    ]  # fmt: skip
    one = plan("-m", "seed=1,2")
    assert one is not None and one.here and not one.gpus_wanted and len(one.overrides) == 1
    cpu = plan("-m", "seed=1,2", "sweep.parallel=2", "launch=cpu")
    assert cpu is not None and not cpu.gpus_wanted


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (
            ["sweep.parallel=1,2"],
            ["error: sweep.parallel=1,2 holds several values", "  why:  sweep is about the whole sweep, not about a member"],
        ),
        (
            ["sweep.paralel=2"],
            [
                "error: unknown key",
                "  why:  sweep.paralel=2: there is no key 'sweep.paralel'; did you mean sweep.parallel?",
                "  try:  rlctl train --help lists every key",
            ],
        ),
        (
            ["sweep.parallel=0"],
            ["error: the config has a problem", "  why:  sweep.parallel=0: must be at least 1"],
        ),
    ],
)
def test_bad_words_about_a_sweep(rlctl, argv, lines):
    done = rlctl("1,2", *argv)
    assert done.status == 2
    assert done.err.splitlines()[: len(lines)] == lines


def test_a_missing_launcher_is_an_error_with_what_to_install(rlctl, monkeypatch):
    monkeypatch.setattr(planning, "_installed", lambda module: False)
    done = rlctl("1,2", "sweep.parallel=2")
    assert (done.status, done.err.splitlines(), begun()) == (
        2,
        [
            "error: sweep.parallel=2 needs one more package",
            "  why:  several members at once are started by hydra-joblib-launcher, which is not installed",
            '  try:  pip install "rlctl[sweep]"',
        ],
        [],
    )


def test_whether_a_module_is_there():
    assert planning._installed("hydra_plugins.hydra_joblib_launcher")
    assert not planning._installed("hydra_plugins.hydra_nosuch_launcher")
    assert not planning._installed("nosuch_package.nosuch_module")


@pytest.mark.parametrize(
    ("folder", "pasted"),
    [("/a/multirun/2026-12-01/09", "hydra.sweep.dir=/a/multirun/2026-12-01/09"), ("/a b", "'hydra.sweep.dir=\"/a b\"'")],
)
def test_the_command_to_go_on_names_the_folder(folder, pasted):
    assert sweep.again("rlctl train -m seed=0,1", Path(folder)) == f"rlctl train -m seed=0,1 {pasted}"
    assert sweep.again("rlctl train -m hydra.sweep.dir=x", Path(folder)) == "rlctl train -m hydra.sweep.dir=x"


# GPUs


def devices(sweep_dir: Path, number: int, gpus: str, processes: int = 1) -> Any:
    """The context manager that gives a member its devices."""
    config = Config()
    config = replace(config, launch=replace(config.launch, processes=processes))
    one = member.Member(sweep_dir, "", False, False, False, False, frozenset(), tuple(gpus.split()))
    return one._gpu(compose.Job(config, sweep_dir / str(number), [], number, {}))


def test_each_member_gets_a_gpu_of_its_own(tmp_path):
    Notes(tmp_path).clear()
    with devices(tmp_path, 0, "4 5 6") as a, devices(tmp_path, 1, "4 5 6") as b, devices(tmp_path, 5, "4 5 6") as c:
        assert [x["CUDA_VISIBLE_DEVICES"] for x in (a, b, c)] == ["4", "5", "6"]
    with devices(tmp_path, 4, "4 5 6") as a, devices(tmp_path, 1, "4 5 6") as b:
        assert (a["CUDA_VISIBLE_DEVICES"], b["CUDA_VISIBLE_DEVICES"]) == ("5", "6"), "the next free one"
        with devices(tmp_path, 2, "4 5 6") as c, devices(tmp_path, 7, "4 5 6") as d:
            assert (c["CUDA_VISIBLE_DEVICES"], d["CUDA_VISIBLE_DEVICES"]) == ("4", "5"), "none is free: by number"


def test_a_member_of_several_processes_gets_as_many_gpus(tmp_path):
    Notes(tmp_path).clear()
    with devices(tmp_path, 0, "0 1 2 3 4", 2) as a, devices(tmp_path, 1, "0 1 2 3 4", 2) as b:
        assert [x["CUDA_VISIBLE_DEVICES"] for x in (a, b)] == ["0,1", "2,3"]


def test_without_gpus_nothing_is_set(tmp_path):
    with devices(tmp_path, 0, "") as a, devices(tmp_path, 1, "0", 2) as b:
        assert a == b == {}


def test_gpus_that_are_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8932f937")
    assert sweep.visible_gpus() == ["3", "GPU-8932f937"]
    for none in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert sweep.visible_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(place, "visible_gpus", lambda device, environment: 2)
    assert sweep.visible_gpus() == ["0", "1"]


# nothing grows


@dataclass
class Held:
    """What a process holds."""

    files: int
    threads: int
    children: int

    @classmethod
    def by(cls, process: psutil.Process) -> Held:
        return cls(process.num_fds(), process.num_threads(), len(process.children(recursive=True)))


def test_nothing_grows_over_ten_members(rlctl, monkeypatch):
    me, seen = psutil.Process(), []
    run = processes.run_child

    def counted(*args: Any) -> int:
        seen.append(Held.by(me))
        return run(*args)

    monkeypatch.setattr(launch, "run_child", counted)
    deeds(s3="fail")
    gc.collect()  # what other tests in this process have dropped
    before, threads = Held.by(me), threading.active_count()
    assert rlctl(",".join(map(str, range(10)))).status == 3
    assert len(seen) == 10
    assert len(set(map(repr, seen))) == 1, seen
    after = Held.by(me)
    assert (after.files <= before.files, after.threads <= before.threads, after.children <= before.children) == (True, True, True), after
    assert threading.active_count() == threads


# with members that train


REWARD = """\
    import os, time
    from pathlib import Path

    HERE = Path(__file__).parent

    def score(texts):
        (HERE / f"gpus-{os.getpid()}").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "none"))
        if (HERE / "fail").exists():
            raise ValueError("told to")
        if (HERE / "slow").exists():
            time.sleep(0.5)
        return [float(len(text)) for text in texts]
    """
SMALLEST = ["rollout.prompts_per_step=2", "rollout.max_new_tokens=2", "algo.epochs=1", "run.tracker=none", "run.samples_every=100"]


def _listen() -> None:
    """Tests that run in the background ignore Ctrl-C, and what they start inherits that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Started:
    """A sweep in a process of its own, in a process group of its own."""

    def __init__(self, folder: Path, *argv: str):
        self.folder = folder
        environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS", "CUDA_VISIBLE_DEVICES")} | self.variables
        command = [sys.executable, "-m", "rlctl", "train", "-m", *argv, "hydra.sweep.dir=s", "reward=fn:own.score", *SMALLEST]
        with (folder / "out.txt").open("w") as out, (folder / "err.txt").open("w") as err:
            self.process = psutil.Popen(
                command, cwd=folder, env=environment, stdout=out, stderr=err, start_new_session=True, preexec_fn=_listen
            )  # fmt: skip

    variables: dict[str, str] = {}  # noqa: RUF012

    def until_steps(self, count: int, *numbers: int) -> None:
        """Wait until these members have done so many steps."""
        for n in numbers:
            path, deadline = self.folder / "s" / str(n) / "metrics.jsonl", time.monotonic() + 300
            while not path.exists() or path.read_text().count("\n") < count:
                assert self.process.poll() is None and time.monotonic() < deadline, self.err
                time.sleep(0.05)

    def end(self) -> int:
        """Wait for its end; its exit status. Nothing it started may be left."""
        status = self.process.wait(600)
        deadline = time.monotonic() + 30  # a launcher's helpers see their parent's end a moment later
        while left := [p.cmdline() for p in psutil.process_iter() if self._is_of_it(p)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
        return int(status)

    def _is_of_it(self, process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False

    @property
    def out(self) -> str:
        return (self.folder / "out.txt").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err.txt").read_text()


class OnGpus(Started):
    """The same on a machine that is told it has two GPUs."""

    variables = {"CUDA_VISIBLE_DEVICES": "6,7"}  # noqa: RUF012


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(textwrap.dedent(REWARD))
    return tmp_path


def steps(folder: Path, number: int) -> list[dict[str, float]]:
    """A member's metrics, without times."""
    rows = runs.metrics(folder / "s" / str(number))
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "tokens/"))} for row in rows]


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on_exactly_where_it_was(folder, tmp_path_factory):
    """Ctrl-C after a step; the same command again gives what an undisturbed sweep gives."""
    (folder / "slow").touch()
    first = Started(folder, "seed=0", "run.steps=4")
    first.until_steps(1, 0)
    os.killpg(first.process.pid, signal.SIGINT)
    assert first.end() == 130
    assert runs.read(folder / "s" / "0").status == "interrupted"
    assert first.err == "interrupted: what trains ends in good order\n"
    (folder / "slow").unlink()
    second = Started(folder, "seed=0", "run.steps=4")
    assert second.end() == 0, second.err
    assert re.search(r"member 0: interrupted before, after step [123], goes on: ", second.out)

    other = tmp_path_factory.mktemp("undisturbed")
    (other / "own.py").write_text(textwrap.dedent(REWARD))
    assert Started(other, "seed=0", "run.steps=4").end() == 0
    assert [row["step"] for row in steps(folder, 0)] == [1, 2, 3, 4]
    assert steps(folder, 0) == steps(other, 0)


def test_several_at_once_each_on_its_gpu_with_output_of_their_own(folder):
    started = OnGpus(folder, "seed=0,1", "run.steps=1", "sweep.parallel=2")
    assert started.end() == 0, started.err
    lines = started.out.splitlines()
    assert sorted(lines[:2]) == ["member 0: starts: seed=0", "member 1: starts: seed=1"]
    assert [re.sub(r"\d+s, score [\d.]+", "3s, score 9", line) for line in sorted(lines[2:4])] == [
        "member 0: finished in 3s, score 9: seed=0", "member 1: finished in 3s, score 9: seed=1",
    ]  # fmt: skip
    assert lines[5].startswith("#  score")
    assert started.err == ""
    assert sorted(path.read_text() for path in folder.glob("gpus-*")) == ["6", "7"]
    for n in range(2):
        assert "finished after 1 step" in (folder / "s" / str(n) / "console.log").read_text()
        assert compose.load(folder / "s" / str(n) / "config.yaml").run.dir == str(folder / "s" / str(n))


@pytest.mark.slow
@pytest.mark.parametrize("to_the_group", [True, False])
def test_ctrl_c_while_several_train_at_once(folder, to_the_group):
    (folder / "slow").touch()
    started = Started(folder, "seed=0,1,2", "run.steps=60", "sweep.parallel=2")
    started.until_steps(1, 0, 1)
    (os.killpg if to_the_group else os.kill)(started.process.pid, signal.SIGINT)
    assert started.end() == 130
    assert [runs.read(folder / "s" / str(n)).status for n in range(2)] == ["interrupted", "interrupted"]
    assert "2  not run" in started.out
    assert started.err == "interrupted: what trains ends in good order\n"


@pytest.mark.slow
def test_a_failed_member_among_several_at_once_is_told_and_starts_anew(folder):
    (folder / "fail").touch()
    first = Started(folder, "seed=0,1,2", "run.steps=1", "sweep.parallel=2", "sweep.fail_fast=true")
    assert first.end() == 3
    assert "  why:  reward fn:own.score raised ValueError\n" in first.err
    assert not (folder / "s" / "2" / "config.yaml").exists()
    (folder / "fail").unlink()
    second = Started(folder, "seed=0,1,2", "run.steps=1", "sweep.parallel=2")
    assert second.end() == 0, second.err
    assert [runs.read(folder / "s" / str(n)).status for n in range(3)] == ["finished"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2])
def test_nothing_grows_over_ten_members_that_train(folder, parallel):
    """Open files, threads and processes of the sweep, seen from outside whenever a member's training begins."""
    started = Started(folder, "seed=0,1,2,3,4,5,6,7,8,9", "run.steps=1", f"sweep.parallel={parallel}", "console=plain")
    seen: dict[str, Held] = {}
    while started.process.poll() is None:
        for begun in (folder / "s").glob("*/metrics.jsonl"):
            if begun.parent.name not in seen:
                seen[begun.parent.name] = Held.by(started.process)
        time.sleep(0.02)
    assert started.end() == 0, started.err
    assert len(seen) == 10
    counts = list(seen.values())
    for name in ("files", "threads", "children"):
        early, late = ([getattr(held, name) for held in half] for half in (counts[:5], counts[5:]))
        assert max(late) <= max(early), (name, counts)
