"""How a reward function is called: limits on time, repeats, worker processes, and what runs beside it."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_cli
import tiny
import torch

from rlctl.config.schema import FunctionRewardConfig, OnTimeout
from rlctl.errors import RewardError
from rlctl.rewards import call
from rlctl.rewards.function import FunctionReward
from rlctl.rollout import Samples

TEXTS = ["alpha", "be", "gam", "d", "epsil", "zetaze", ""]


def samples(n: int = 2) -> Samples:
    texts = TEXTS[:n]
    return Samples(["p"] * n, texts, texts, {"answer": [f"{i}" for i in range(n)]}, None, [False] * n)


def reward(function: Callable[..., Any], **config: Any) -> FunctionReward:
    return FunctionReward(FunctionRewardConfig(path="mypkg.f", **config), function)


def refused(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(RewardError) as caught:
        call()
    assert caught.value.exit_status == 3
    return caught.value.lines()


# --- a limit on time


@pytest.fixture
def hangs() -> Iterator[Callable[..., Any]]:
    """A function that waits until the test is over."""
    over = threading.Event()

    def f(texts):
        over.wait(60)
        return [9.0] * len(texts)

    yield f
    over.set()


def test_a_call_that_takes_too_long_is_an_error(hangs):
    assert refused(lambda: reward(hangs, timeout=0.05).score(samples())) == [
        "error: reward fn:mypkg.f took too long",
        "  why:  longer than reward.timeout=0.05 seconds",
        "        first text: 'alpha'",
        "  try:  a higher reward.timeout, or reward.on_timeout=score with reward.timeout_score",
    ]


def test_or_its_texts_get_a_score_and_are_counted(hangs):
    slow = reward(hangs, timeout=0.05, on_timeout=OnTimeout.score, timeout_score=-1.5)
    assert slow.warnings() == []
    assert slow.score(samples(3)) == [-1.5] * 3
    assert slow.score(samples(2)) == [-1.5] * 2
    (warning,) = slow.warnings()
    assert warning.what == "5 texts got reward.timeout_score=-1.5"
    assert warning.cause == "fn:mypkg.f took longer than reward.timeout=0.05 seconds"


def test_a_call_in_time_is_as_without_a_limit():
    assert reward(lambda texts: [1.0, 2.0], timeout=30.0).score(samples()) == [1.0, 2.0]

    async def later(texts):
        return [3.0, 4.0]

    assert reward(later, timeout=30.0).score(samples()) == [3.0, 4.0]


def test_an_exception_in_a_call_with_a_limit_is_shown_as_without_one():
    def f(texts):
        return [1 / 0]

    lines = refused(lambda: reward(f, timeout=30.0).score(samples()))
    assert lines[0] == "error: reward fn:mypkg.f raised ZeroDivisionError"
    files = {line.split('"')[1] for line in lines if line.strip().startswith("File ")}
    assert files == {__file__}


ENDLESS = """\
    def f(texts):
        while True:
            pass

    def g(texts):
        while any("a" in t for t in texts):
            pass
        return [1.0] * len(texts)
    """


def train(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which must end by itself."""
    command = [sys.executable, "-m", "rlctl", "train", "hydra.run.dir=run", *test_cli.TINY, *argv]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90, check=False)


def children(marker: str) -> list[int]:
    """Processes whose environment holds a marker."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            held, state = (entry / "environ").read_bytes(), (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in held and state != "Z" and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def test_an_endless_function_ends_the_run_with_its_error(tmp_path):
    test_cli._write(tmp_path, "endless.py", ENDLESS)
    done = train(tmp_path, "reward=fn:endless.f", "reward.timeout=0.3")
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == "error: reward fn:endless.f took too long"
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "failed"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_run_goes_on_without_an_endless_worker_and_leaves_no_process(tmp_path, monkeypatch):
    marker = f"RLCTL_TEST_MARKER_{os.getpid()}"
    monkeypatch.setenv(marker, "1")
    test_cli._write(tmp_path, "endless.py", ENDLESS)
    keys = ["reward.timeout=1.5", "reward.on_timeout=score", "reward.timeout_score=-2", "reward.workers=2"]
    done = train(tmp_path, "reward=fn:endless.g", *keys)
    assert done.returncode == 0, done.stderr
    assert "got reward.timeout_score=-2" in done.stdout
    scores = {row["score"] for p in (tmp_path / "run/samples").iterdir() for row in map(json.loads, p.read_text().splitlines())}
    assert -2.0 in scores
    assert children(marker) == []


# --- repeats


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between calls, which then take no time."""
    slept: list[float] = []
    monkeypatch.setattr(call.time, "sleep", slept.append)
    return slept


class Flaky:
    """Raises the given errors, one a call, then answers."""

    def __init__(self, *errors: BaseException):
        self.errors, self.calls = list(errors), 0

    def __call__(self, texts):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return [1.0] * len(texts)


class TransportError(Exception):
    """As clients of web services call theirs."""


class ReadTimeout(TransportError):
    pass


def test_a_passing_error_is_repeated_after_pauses_that_double(pauses):
    f = Flaky(OSError(), ConnectionResetError(), TimeoutError(), ReadTimeout())  # one of the listed, or of their children
    assert reward(f, retries=4, retry_pause=0.5).score(samples()) == [1.0, 1.0]
    assert f.calls == 5
    assert pauses == [0.5, 1.0, 2.0, 4.0]


def test_each_call_has_repeats_of_its_own(pauses):
    f = Flaky(OSError())
    one = reward(f, retries=1, retry_pause=0.5)
    one.score(samples())
    f.errors.append(OSError())
    assert one.score(samples()) == [1.0, 1.0]
    assert (f.calls, pauses) == (4, [0.5, 0.5])


def test_other_errors_are_not_repeated(pauses):
    f = Flaky(ValueError("bad"), OSError())
    assert refused(lambda: reward(f, retries=5).score(samples()))[0] == "error: reward fn:mypkg.f raised ValueError"
    assert (f.calls, pauses) == (1, [])


@pytest.mark.parametrize(("listed", "error", "calls"), [("KeyError", KeyError("k"), 2), ("LookupError", KeyError("k"), 2),
                                                       ("ValueError", OSError(), 1)])  # fmt: skip
def test_which_errors_pass_is_a_matter_of_the_config(pauses, listed, error, calls):
    f = Flaky(error)
    one = reward(f, retries=1, retry_on=[listed])
    if calls == 2:
        assert one.score(samples()) == [1.0, 1.0]
    else:
        refused(lambda: one.score(samples()))
    assert f.calls == calls


def test_an_error_that_does_not_pass_is_shown_with_the_number_of_calls(pauses):
    f = Flaky(*[OSError("down")] * 9)
    lines = refused(lambda: reward(f, retries=2, retry_pause=1.0).score(samples()))
    assert lines[0] == "error: reward fn:mypkg.f raised OSError, 3 times"
    assert (f.calls, pauses) == (3, [1.0, 2.0])
    alone = Flaky(OSError("down"))
    assert refused(lambda: reward(alone).score(samples()))[0] == "error: reward fn:mypkg.f raised OSError"
    assert (alone.calls, len(pauses)) == (1, 2)


# --- worker processes

WORKERS = """\
import os
import sys
import time


def length(texts, answer, scale=1.0):
    return [scale * len(t) + 100.0 * int(a) for t, a in zip(texts, answer, strict=True)]


def share(texts):
    return [float(len(texts))] * len(texts)


def process(texts):
    return [float(os.getpid())] * len(texts)


def torch_there(texts):
    return [float("torch" in sys.modules or "transformers" in sys.modules)] * len(texts)


async def later(texts):
    return [float(len(t)) for t in texts]


def flaky(texts):
    try:
        os.close(os.open("flaky.txt", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return [1.0] * len(texts)
    raise ConnectionResetError("once")


def inner(text):
    return {}[text]


def broken(texts):
    return [inner(t) for t in texts]


def short(texts):
    return [1.0]


def loops_on_alpha(texts):
    while "alpha" in texts or "d" in texts:
        pass
    return [1.0] * len(texts)


def leaves(texts):
    sys.exit(0)


def dies(texts):
    os._exit(7)
"""


@pytest.fixture
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FunctionReward]]:
    """Rewards of the functions above, called in processes of their own; none of these is there afterwards."""
    (tmp_path / "inworkers.py").write_text(textwrap.dedent(WORKERS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    made: list[FunctionReward] = []

    def make(name: str, count: int = 2, **config: Any) -> FunctionReward:
        made.append(FunctionReward(FunctionRewardConfig(path=f"inworkers.{name}", workers=count, **config)))
        return made[-1]

    yield make
    for one in made:
        one.caller._end_pool()
    for child in multiprocessing.active_children():
        child.join(5)
    sys.modules.pop("inworkers", None)


def test_workers_give_the_scores_of_one_process_for_any_number_of_texts(workers):
    here, there = workers("length", 0, args={"scale": 0.5}), workers("length", 3, args={"scale": 0.5})
    for n in range(1, len(TEXTS) + 1):  # fewer texts than workers too
        assert there.score(samples(n)) == here.score(samples(n)) == [0.5 * len(t) + 100.0 * i for i, t in enumerate(TEXTS[:n])]
    assert not here.caller._pool and there.caller._pool


def test_texts_are_shared_evenly_among_processes_other_than_this_one(workers):
    assert workers("share", 3).score(samples(7)) == [3.0] * 6 + [1.0]
    ids = workers("process", 2).score(samples(6))
    assert os.getpid() not in ids


def test_workers_import_no_torch_for_a_function_that_does_not(workers):
    assert "torch" in sys.modules
    assert workers("torch_there").score(samples()) == [0.0, 0.0]


def test_a_function_that_waits_runs_in_workers_too(workers):
    assert workers("later").score(samples(3)) == [5.0, 2.0, 3.0]


def test_a_passing_error_in_a_worker_is_repeated(workers, pauses):
    assert workers("flaky", 1, retries=1, retry_pause=0.25).score(samples()) == [1.0, 1.0]
    assert pauses == [0.25]


def test_an_exception_in_a_worker_is_shown_with_the_functions_own_lines(workers, tmp_path):
    lines = refused(lambda: workers("broken").score(samples()))
    assert lines[:3] == [
        "error: reward fn:inworkers.broken raised KeyError",
        "  why:  KeyError: 'alpha'",
        "        first text: 'alpha'",
    ]
    files = [line.split('"')[1] for line in lines if line.strip().startswith("File ")]
    assert files and set(files) == {str(tmp_path / "inworkers.py")}
    assert "in inner" in "\n".join(lines)


def test_a_worker_that_returns_too_little_is_refused(workers):
    lines = refused(lambda: workers("short").score(samples(4)))
    assert lines[0] == "error: reward fn:inworkers.short returned 1 scores for 2 texts"
    assert lines[1] == "  why:  expected a list of numbers, one per text"


def test_an_endless_worker_is_ended_and_others_keep_their_scores(workers):
    slow = workers("loops_on_alpha", 2, timeout=3.0, on_timeout=OnTimeout.score, timeout_score=-1.0)
    assert slow.score(_without_d(6, first="beta")) == [1.0] * 6
    assert slow.score(_without_d(6)) == [-1.0] * 3 + [1.0] * 3
    for child in multiprocessing.active_children():
        child.join(5)
    assert multiprocessing.active_children() == []  # the idle one goes too
    assert slow.warnings()[0].what == "3 texts got reward.timeout_score=-1"
    assert slow.score(_without_d(6, first="beta")) == [1.0] * 6  # new processes take over


def _without_d(n: int, first: str = "alpha") -> Samples:
    texts = [first, *("x" * i for i in range(1, n))]
    return Samples(["p"] * n, texts, texts, {}, None, [False] * n)


def test_an_endless_worker_is_an_error_and_is_ended(workers):
    slow = workers("loops_on_alpha", 1, timeout=1.0)
    assert refused(lambda: slow.score(samples()))[0] == "error: reward fn:inworkers.loops_on_alpha took too long"
    for child in multiprocessing.active_children():
        child.join(5)
    assert multiprocessing.active_children() == []


def test_several_endless_workers_get_the_score_however_soon_their_end_is_noticed(workers, monkeypatch):
    slow = workers("loops_on_alpha", 2, timeout=1.0, on_timeout=OnTimeout.score)
    end = slow.caller._end_pool

    def end_and_be_noticed():
        end()
        time.sleep(0.5)

    monkeypatch.setattr(slow.caller, "_end_pool", end_and_be_noticed)
    assert slow.score(samples(6)) == [0.0] * 6  # alpha in the one half, d in the other


def test_starting_the_workers_does_not_count_as_the_call(workers, tmp_path):
    (tmp_path / "heavy.py").write_text("import time\ntime.sleep(1.0)\n\n\ndef f(texts):\n    return [1.0] * len(texts)\n")
    slow = FunctionReward(FunctionRewardConfig(path="heavy.f", workers=1, timeout=0.5))
    try:
        assert slow.score(samples()) == [1.0, 1.0]
    finally:
        slow.caller._end_pool()


@pytest.mark.parametrize("config", [{"count": 0}, {"count": 0, "timeout": 30.0}, {"count": 1}], ids=["here", "with a limit", "in a worker"])
def test_a_function_that_leaves_ends_the_run_with_an_error(workers, config):
    """sys.exit in a scorer is no reason for a run to end as if all were well."""
    leaving = workers("leaves", **config)
    try:
        lines = refused(lambda: leaving.score(samples()))
    except SystemExit:
        pytest.fail("SystemExit came through")
    assert lines[0] == "error: reward fn:inworkers.leaves raised SystemExit"


def test_a_worker_that_dies_is_an_error_of_the_reward(workers):
    lines = refused(lambda: workers("dies", 1).score(samples()))
    assert lines[0].startswith("error: reward fn:inworkers.dies ")


# --- beside the forward passes


def test_a_function_runs_beside_the_passes(env, tmp_path):
    """Both wait for the other to have begun: one after the other, one of them would wait in vain."""
    run = env.build(tmp_path / "run")
    scoring, passing, met = threading.Event(), threading.Event(), []

    def f(texts):
        scoring.set()
        met.append(passing.wait(10))
        return [1.0] * len(texts)

    real = run.collector._passes

    def passes(sequences):
        passing.set()
        met.append(scoring.wait(10))
        return real(sequences)

    run.collector.reward = reward(f)
    run.collector._passes = passes
    collected = tiny.collect(run)
    assert met == [True, True]
    assert collected.scores.tolist() == [1.0] * 8


def test_what_is_collected_beside_is_what_is_collected_in_turn(env, tmp_path):
    apart, beside = (env.build(tmp_path / name) for name in ("apart", "beside"))
    apart.collector.reward.runs_beside = False
    assert beside.collector.reward.runs_beside
    a, b = tiny.collect(apart), tiny.collect(beside)
    for name in ("scores", "old_logprobs", "ref_logprobs", "values", "entropy"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


def test_a_function_may_set_signal_handlers(env, tmp_path):
    run, before = env.build(tmp_path / "run"), signal.getsignal(signal.SIGALRM)

    def f(texts):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        return [float(threading.current_thread() is threading.main_thread())] * len(texts)

    run.collector.reward = reward(f)
    try:
        assert tiny.collect(run).scores.tolist() == [1.0] * 8
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_error_of_the_reward_comes_through_while_the_passes_go_on(env, tmp_path):
    run = env.build(tmp_path / "run")

    def f(texts):
        raise ValueError("bad")

    run.collector.reward = reward(f)
    assert refused(lambda: tiny.collect(run))[0] == "error: reward fn:mypkg.f raised ValueError"
