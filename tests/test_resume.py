"""A run that was stopped goes on exactly: metrics, samples and weights as if it had not been, whatever stopped it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file

from rlctl import checkpoint, resume
from rlctl.config.fields import CGPOOptimizer
from rlctl.config.judges import JudgeConfig, JudgeKind
from rlctl.config.schema import (
    CalibratedRewardConfig,
    CGPOConfig,
    Config,
    PPOConfig,
    Resume,
    RLOOConfig,
    ScoreNormalization,
    TaskConfig,
)
from rlctl.errors import DataError, TrainingError
from rlctl.interrupt import Interrupts
from rlctl.metrics import MetricsFile
from rlctl.train import train
from rlctl.trouble import is_out_of_memory, needed, smaller

STEPS, AT = 5, 2

# draws from every generator that a reward may use
DRAWING = '''
import random
import numpy as np
import torch

def score(texts):
    return [len(set(t)) + random.random() + float(np.random.rand()) + float(torch.rand(())) for t in texts]

def passes(texts):
    return [len(t) % 3 > 0 for t in texts]
'''

PPO = {"algo_type": PPOConfig, "reward": "drawing.score"}
CGPO = {"algo_type": CGPOConfig, "rollout": {"prompts_per_step": 4}, "reward": "drawing.score"}
JUDGES = [JudgeConfig(kind=JudgeKind.fn, path="drawing.passes")]
VARIANTS: dict[str, dict[str, Any]] = {
    "ppo": PPO | {
        "algo": {
            "epochs": 2, "minibatches": 2, "kl_target": 0.01, "kl_horizon": 20, "score_normalization": ScoreNormalization.running,
        },
    },
    "rloo": {"algo_type": RLOOConfig, "rollout": {"prompts_per_step": 4}, "algo": {"epochs": 2, "samples_per_prompt": 3}},
    "crpg": CGPO | {"algo": {"samples_per_prompt": 3, "optimizer": CGPOOptimizer.crpg}, "judges": JUDGES},
    "crraft": CGPO | {"algo": {"samples_per_prompt": 3, "optimizer": CGPOOptimizer.crraft}, "judges": JUDGES},
    "codpo": CGPO | {"algo": {"samples_per_prompt": 3, "optimizer": CGPOOptimizer.codpo}, "judges": JUDGES},
    "tasks": CGPO | {
        "algo": {"samples_per_prompt": 3},
        "tasks": {"a": TaskConfig(judges=JUDGES), "b": TaskConfig(optimizer=CGPOOptimizer.crraft, prompts_per_step=6, weight=0.5)},
    },
}  # fmt: skip


@pytest.fixture
def drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "drawing.py").write_text(DRAWING)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("drawing", None)


def config(env: Any, run_dir: Path, **changes: Any) -> Config:
    """Checkpoints at AT and 2 * AT of STEPS steps."""
    run = {"steps": STEPS, "save_every": AT, "keep": 9, **changes.pop("run", {})}
    return env.config(run_dir, **{"run": run, **changes})


def stopped_after(run_dir: Path, copy: Path, step: int) -> Path:
    """A copy of a run's folder as a kill shortly after a checkpoint leaves it: later lines and samples, but no later checkpoint."""
    shutil.copytree(run_dir, copy)
    for s, path in checkpoint.checkpoints(copy):
        if s > step:
            shutil.rmtree(path)
    for name in ("policy", "value"):
        shutil.rmtree(copy / name, ignore_errors=True)
    (copy / "summary.json").unlink()
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[: step + 1]) + "".join(lines[step + 1 :])[:40])
    return copy


def going_on(c: Config, run_dir: Path) -> Config:
    return replace(c, run=replace(c.run, dir=str(run_dir), resume=Resume.auto))


def lines(run_dir: Path) -> list[dict[str, Any]]:
    """Every step's metrics, without times."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "tokens/per"))} for row in rows]


def written(run_dir: Path) -> dict[str, str]:
    """Every samples file."""
    return {p.name: p.read_text() for p in sorted((run_dir / "samples").iterdir())}


def assert_same(one: Path, other: Path) -> None:
    """Metrics, samples, weights and the last optimizer state, bit for bit."""
    assert lines(one) == lines(other)
    assert written(one) == written(other)
    a, b = (load_file(run / "policy" / "model.safetensors") for run in (one, other))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    (last, x), (again, y) = (checkpoint.checkpoints(run)[-1] for run in (one, other))
    assert last == again
    x, y = (resume.read(path) for path in (x, y))
    assert x.moment == y.moment
    for i, state in x.optimizer["state"].items():
        assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(y.optimizer["state"][i][k])) for k, v in state.items())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_run_is_the_run(env, drawing, tmp_path, variant):
    c = config(env, tmp_path / "whole", **VARIANTS[variant])
    train(c, tiny.Recording())
    copy = stopped_after(tmp_path / "whole", tmp_path / "stopped", AT)
    shown = tiny.Recording()
    summary = train(going_on(c, copy), shown)
    assert_same(tmp_path / "whole", copy)
    assert [row["step"] for row in lines(copy)] == list(range(1, STEPS + 1))
    assert [s.step for s in shown.steps] == list(range(AT + 1, STEPS + 1))
    assert (summary.status, summary.steps_done) == ("finished", STEPS)
    whole, mine = (json.loads((run / "summary.json").read_text()) for run in (tmp_path / "whole", copy))
    for name in ("first", "before", "after", "best_step", "best_score"):  # the first step is not the resumed run's own
        assert whole[name] == mine[name], name


@pytest.mark.parametrize("baseline", ["column", "sample"])
def test_baselines_and_their_scores_are_kept(tmp_path, baseline):
    from rlctl.config.schema import Device, LaunchConfig, MixedPrecision, RolloutConfig, RunConfig

    def made(run_dir: Path) -> Config:
        run_dir.mkdir(exist_ok=True)
        return Config(
            rollout=RolloutConfig(prompts_per_step=4, max_new_tokens=8), reward=CalibratedRewardConfig(baseline=baseline),
            algo=RLOOConfig(samples_per_prompt=2, missing_eos_penalty=0.5),
            run=RunConfig(steps=STEPS, save_every=AT, keep=9, tracker="none", dir=str(run_dir)),
            launch=LaunchConfig(device=Device.cpu, mixed_precision=MixedPrecision.no),
        )  # fmt: skip

    train(made(tmp_path / "whole"), tiny.Recording())
    copy = stopped_after(tmp_path / "whole", tmp_path / "stopped", AT)
    shown = tiny.Recording()
    train(going_on(made(copy), copy), shown)
    assert_same(tmp_path / "whole", copy)
    assert not any("drew" in note for note in shown.notes)


FORGOTTEN = {
    "optimizer": lambda run, state: run.updater.optimizer.load_state_dict({**state.optimizer, "state": {}}),
    "KL coefficient": lambda run, state: setattr(run.kl, "coef", run.config.algo.kl_coef),
    "running scores": lambda run, state: setattr(run.collector.scaler, "count", 0.0),
    "value model": lambda run, state: run.value.load_state_dict(run.start_value),
}


@pytest.mark.parametrize("part", FORGOTTEN)
def test_every_part_of_the_state_matters(env, drawing, tmp_path, monkeypatch, part):
    """The comparison above would notice it missing."""
    c = config(env, tmp_path / "whole", **VARIANTS["ppo"])
    train(c, tiny.Recording())
    copy, restore = stopped_after(tmp_path / "whole", tmp_path / "stopped", AT), resume.restore

    def forgetful(run: Any, state: resume.State) -> None:
        run.start_value = tiny.weights(run.value)
        restore(run, state)
        FORGOTTEN[part](run, state)

    monkeypatch.setattr(resume, "restore", forgetful)
    train(going_on(c, copy), tiny.Recording())
    assert lines(tmp_path / "whole") != lines(copy)
    assert lines(tmp_path / "whole")[:AT] == lines(copy)[:AT]


def test_the_reference_stays_the_policy_of_the_start(env, tmp_path):
    c = config(env, tmp_path / "whole", optim={"lr": 1e-2})
    train(c, tiny.Recording())
    copy = stopped_after(tmp_path / "whole", tmp_path / "stopped", 2 * AT)
    shown = tiny.Recording()
    train(going_on(c, copy), shown)
    assert shown.steps[0].metrics["objective/kl_k3"] > 1e-3  # from the start; from the checkpoint it would be 0


def test_longer_and_at_another_rate(env, tmp_path):
    """Keys may change: the steps before stay, the ones after follow the new values."""
    c = config(env, tmp_path / "run", run={"steps": 2})
    train(c, tiny.Recording())
    before = lines(tmp_path / "run")
    longer = replace(going_on(c, tmp_path / "run"), optim=replace(c.optim, lr=5e-4))
    train(replace(longer, run=replace(longer.run, steps=4)), tiny.Recording())
    after = lines(tmp_path / "run")
    assert after[:2] == before and [row["step"] for row in after] == [1, 2, 3, 4]
    assert after[2]["policy/lr"] == pytest.approx(5e-4 * 0.5)  # linear over four updates: the third is half way
    assert after[2]["policy/updates"] == 3


def test_changed_prompts_are_noticed(env, tmp_path):
    data = tmp_path / "prompts.jsonl"
    shutil.copy(env.prompts, data)
    c = replace(config(env, tmp_path / "run"), data=replace(config(env, tmp_path / "run").data, path=str(data)))
    train(c, tiny.Recording())
    copy = stopped_after(tmp_path / "run", tmp_path / "stopped", AT)
    rows = data.read_text().splitlines()
    data.write_text("\n".join([*rows[1:], rows[0]]) + "\n")  # the same rows in another order
    with pytest.raises(DataError) as caught:
        train(going_on(c, copy), tiny.Recording())
    assert caught.value.what == f"the data has changed since step {AT}"
    assert caught.value.why == f"{data} now gives {len(rows)} other prompts"
    assert len(lines_of(copy)) == AT + 2  # nothing was cut: the folder is as it was
    data.unlink()
    with pytest.raises(DataError, match="no data at"):
        train(going_on(c, copy), tiny.Recording())
    assert checkpoint.checkpoints(copy)[-1][0] == AT


def lines_of(run_dir: Path) -> list[str]:
    return (run_dir / "metrics.jsonl").read_text().splitlines()


def test_a_checkpoint_without_its_state_is_told(env, tmp_path):
    c = config(env, tmp_path / "run")
    train(c, tiny.Recording())
    copy = stopped_after(tmp_path / "run", tmp_path / "stopped", AT)
    path = checkpoint.checkpoints(copy)[-1][1]
    (path / resume.FILE).write_bytes((path / resume.FILE).read_bytes()[:1000])
    with pytest.raises(TrainingError, match="cannot be resumed from") as caught:
        train(going_on(c, copy), tiny.Recording())
    assert caught.value.hint == f"start a new run from its policy: rlctl train model=hf:{path / 'policy'}"


def test_without_a_checkpoint_auto_starts_over(env, tmp_path):
    c = config(env, tmp_path / "run", run={"save_every": None, "steps": 2})
    train(c, tiny.Recording())
    first = lines(tmp_path / "run")
    train(going_on(replace(c, run=replace(c.run, steps=1)), tmp_path / "run"), tiny.Recording())
    again = lines(tmp_path / "run")
    assert [row["step"] for row in again] == [1]
    assert again[0]["objective/scores"] == first[0]["objective/scores"]
    assert sorted(written(tmp_path / "run")) == ["step_000001.jsonl"]


def test_a_cut_last_line_is_left_out(tmp_path):
    file = MetricsFile(tmp_path)
    file.path.write_text('{"step": 1, "objective/kl": null}\n{"step": 2, "objective/kl": 0.5}\n{"step": 3, "obj')
    assert [row["step"] for row in file.read()] == [1, 2]
    assert file.read()[0]["objective/kl"] != file.read()[0]["objective/kl"]  # NaN
    file.cut(1)
    assert file.path.read_text() == '{"step": 1, "objective/kl": null}\n'


# --- signals


def test_the_first_signal_waits_for_what_is_held_and_the_second_does_not(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("rlctl.interrupt.time.monotonic", lambda: now[0])
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts(may_abandon=True) as interrupts, interrupts.held():
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.asked == "SIGTERM"
        now[0] += 0.5
        os.kill(os.getpid(), signal.SIGTERM)  # the same one, delivered twice
        now[0] += 1.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.at_once
    assert signal.getsignal(signal.SIGTERM) is before


def test_outside_of_what_is_held_the_first_signal_breaks_off():
    with Interrupts(may_abandon=True) as interrupts:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.asked == "SIGINT" and not interrupts.at_once
    heard: list[str] = []
    with Interrupts(may_abandon=False, tell=heard.append) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)  # of several processes each would break off elsewhere
        assert interrupts.asked == "SIGINT"
    assert heard == ["SIGINT: stops after this step; once more stops at once"]


@pytest.mark.parametrize("where", ["reward", "update"])
def test_an_interrupted_run_goes_on_exactly(env, drawing, tmp_path, monkeypatch, where):
    """In the reward the step is given up, with what it had counted already; in the update it is finished."""
    c = config(env, tmp_path / "whole", **VARIANTS["ppo"])
    train(c, tiny.Recording())
    cut = replace(c, run=replace(c.run, dir=str(tmp_path / "cut"), save_every=None))
    (tmp_path / "cut").mkdir()
    from rlctl import train as module
    from rlctl.collect import Collector
    from rlctl.update import Updater

    calls = []
    owner, name = (Collector, "_adjust") if where == "reward" else (Updater, "_step")
    real = getattr(owner, name)

    def signalled(self, *args):
        result = real(self, *args)
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalled)
        shown = tiny.Recording()
        summary = module.train(cut, shown)
    done = 2 if where == "reward" else 1
    assert (summary.status, summary.steps_done) == ("interrupted", done)
    assert summary.reason == ("SIGTERM in step 3, which was given up" if where == "reward" else "SIGTERM after step 1")
    assert [s for s, _ in checkpoint.checkpoints(tmp_path / "cut")] == [done]
    assert summary.next_commands[0] == f"rlctl resume {tmp_path / 'cut'}"
    assert (tmp_path / "cut" / "policy" / "model.safetensors").exists()
    train(going_on(replace(cut, run=replace(cut.run, save_every=AT)), tmp_path / "cut"), tiny.Recording())
    assert_same(tmp_path / "whole", tmp_path / "cut")


# --- the command line, with real processes

SMALL = [
    "rollout.prompts_per_step=4", "rollout.max_new_tokens=8", "console=plain", "run.tracker=none", "launch=cpu", "reward=fn:slow.score",
]  # fmt: skip
SLOW = '''
import os
import time
from pathlib import Path

def score(texts):
    calls = Path("calls")
    with calls.open("a") as file:
        file.write("x")
    time.sleep(float(os.environ.get("SLOW", "0")))
    return [float(len(t)) for t in texts]
'''


def rlctl(folder: Path, *argv: str, **environment: str) -> subprocess.Popen[str]:
    (folder / "slow.py").write_text(SLOW)
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "rlctl", *argv], cwd=folder, env=env, **pipes)


def until(what: Any, seconds: float = 120.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_a_terminated_command_saves_says_so_and_resumes(tmp_path):
    calls = tmp_path / "calls"
    run = rlctl(tmp_path, "train", *SMALL, "run.steps=6", "hydra.run.dir=out", SLOW="1.5")
    until(lambda: calls.exists() and len(calls.read_text()) == 3)
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert "interrupted after 2 steps" in out and "SIGTERM in step 3, which was given up" in out
    assert f"to go on:\n  rlctl resume {tmp_path / 'out'}\n" in out
    assert "Traceback" not in err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "interrupted"

    again = rlctl(tmp_path, "resume", "out", "run.steps=4", "optim.lr=1e-4")
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert out.startswith("changed: optim.lr=0.0001 (was None)\nchanged: run.steps=4 (was 6)\n")
    assert "goes on     after step 2" in out and "finished after 4 steps" in out
    assert [row["step"] for row in lines(tmp_path / "out")] == [1, 2, 3, 4]
    (record,) = [json.loads(line) for line in (tmp_path / "out" / "resumes.jsonl").read_text().splitlines()]
    assert record["after_step"] == 2 and record["changes"] == ["optim.lr=0.0001 (was None)", "run.steps=4 (was 6)"]
    assert (tmp_path / "out" / "command.txt").read_text().splitlines()[1] == "rlctl resume out run.steps=4 optim.lr=1e-4"

    once_more = rlctl(tmp_path, "resume", "out")
    _, err = once_more.communicate(timeout=120)
    # the last checkpoint is that of step 2: the run's end wrote none
    assert once_more.returncode == 0, err


def test_a_second_signal_stops_at_once(tmp_path):
    """Here the reward catches the first and goes on."""
    calls = tmp_path / "calls"
    (tmp_path / "stubborn.py").write_text(
        "import time\nfrom slow import score as slow\ndef score(texts):\n    try:\n        return slow(texts)\n"
        "    except KeyboardInterrupt:\n        return slow(texts)\n"
    )
    overrides = ["run.steps=3", "hydra.run.dir=out2", "reward=fn:stubborn.score"]
    run = rlctl(tmp_path, "train", *SMALL, *overrides, SLOW="60")
    until(lambda: calls.exists() and len(calls.read_text()) == 1)
    run.send_signal(signal.SIGINT)
    until(lambda: len(calls.read_text()) == 2)
    time.sleep(1.2)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=30)
    assert run.returncode == 130, err


ERRORS = {
    "no folder": (["nowhere"], ["error: no run at nowhere", "  why:  there is no such folder", "  try:  rlctl resume RUN_DIR"]),
    "not a run": (
        ["."],
        ["error: . is not the folder of a run", "  why:  it holds runs: early, run, stage", "  try:  rlctl resume ./early"],
    ),
    "nothing": ([], ["error: rlctl resume needs the folder of a run", "  try:  rlctl resume RUN_DIR [key=value ...]"]),
    "a stage": (
        ["stage"],
        ["error: the run in {root}/stage is of rlctl sft, which starts anew", "  try:  start it again: rlctl sft data=file:x.jsonl"],
    ),
    "an option": (
        ["run", "algo=rloo"],
        [
            "error: algo=rloo cannot be given here",
            "  why:  a run goes on with the options it has; single keys can change",
            "  try:  rlctl train --help lists every key",
        ],
    ),
    "a typo": (
        ["run", "optim.lrr=1"],
        [
            "error: unknown key",
            "  why:  optim.lrr=1: there is no key 'optim.lrr'; did you mean optim.lr?",
            "  try:  rlctl train --help lists every key",
        ],
    ),
    "a wrong type": (
        ["run", "run.steps=many"],
        [
            "error: the config cannot be composed",
            "  why:  run.steps: Value 'many' of type 'str' could not be converted to Integer",
            "  try:  rlctl train --help lists every option and key",
        ],
    ),
    "out of bounds": (
        ["run", "optim.beta1=2"], ["error: the config has a problem", "  why:  optim.beta1=2.0: must be less than 1"],
    ),
    "another run": (
        ["run", "seed=1", "data.limit=5"],
        [
            "error: the run in {root}/run cannot go on with other seed, data.limit",
            "  why:  seed=1 (was 0)",
            "        data.limit=5 (was None)",
            "  try:  leave it out, or start a run of its own: rlctl train model=hf:{root}/run/policy",
        ],
    ),
    "finished": (
        ["run", "run.steps=2"],
        [
            "error: the run in {root}/run is finished: 2 of 2 steps are done",
            "  try:  rlctl resume {root}/run run.steps=4 goes on to step 4",
        ],
    ),
    "no checkpoint": (
        ["early"],
        [
            "error: the run in {root}/early has no checkpoint to go on from",
            "  why:  it stopped before its first one (run.save_every, and an interrupt, write them)",
            "  try:  start it again: rlctl train run.steps=4",
        ],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(env, tmp_path_factory) -> Path:
    """run/: four steps planned, checkpoint of step 2.  early/: none."""
    from rlctl.config import compose
    from rlctl.config.stages import SFTDataConfig, SFTStage

    root = tmp_path_factory.mktemp("resume")
    c = config(env, root / "run", run={"steps": 2})
    train(c, tiny.Recording())
    (root / "stage").mkdir()
    compose.save(SFTStage(data=SFTDataConfig(path="x.jsonl")), root / "stage" / "config.yaml")
    (root / "stage" / "command.txt").write_text("rlctl sft data=file:x.jsonl\n")
    for name in ("run", "early"):
        (root / name).mkdir(exist_ok=True)
        compose.save(replace(c, run=replace(c.run, steps=4, dir=str(root / name))), root / name / "config.yaml")
        (root / name / "command.txt").write_text("rlctl train run.steps=4\n")
    return root


@pytest.mark.parametrize("what", ERRORS)
def test_errors_come_before_any_model_is_loaded(folders, monkeypatch, capsys, what):
    from rlctl import launch
    from rlctl.cli import main

    argv, expected = ERRORS[what]
    monkeypatch.chdir(folders)
    monkeypatch.setattr(launch, "run", lambda *_: pytest.fail("it started"))
    before = (folders / "run" / "config.yaml").read_text()
    assert main(["resume", *argv]) == 2
    assert capsys.readouterr().err.splitlines() == [line.replace("{root}", str(folders)) for line in expected]
    assert (folders / "run" / "config.yaml").read_text() == before and not (folders / "run" / "resumes.jsonl").exists()


def test_a_run_folder_that_cannot_be_made_is_an_error(tmp_path, monkeypatch, capsys):
    from rlctl.cli import main

    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"hydra.run.dir={tmp_path}/file/run"]) == 2
    expected = [f"error: the run folder {tmp_path}/file/run cannot be made", "  why:  Not a directory", "  try:  hydra.run.dir=PATH"]
    assert capsys.readouterr().err.splitlines() == expected


# --- kills

KILLS = 20
DRIVER = '''
"""Trains RUN_DIR's config in forked children, each killed after a while, until one comes to its end; prints how often it was killed."""
import os, random, signal, sys, time
from dataclasses import replace
from pathlib import Path
from rlctl import launch
from rlctl.config import compose
from rlctl.config.schema import Resume
import rlctl.train, rlctl.judges.build, torch, transformers.models.gpt2.modeling_gpt2

run_dir, seconds, kills, seed = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
rng, killed = random.Random(seed), 0
config = compose.load(run_dir / "config.yaml")
while True:
    pid = os.fork()
    if pid == 0:
        os._exit(launch.run_here(replace(config, run=replace(config.run, resume=Resume.auto))))
    if killed < kills:
        time.sleep(rng.uniform(0.0, seconds))
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        break
    killed += 1
print(killed, os.waitstatus_to_exitcode(status))
'''


def killed_run(env: Any, tmp_path: Path, seconds: float, kills: int, seed: int, **changes: Any) -> tuple[int, int]:
    """A run in tmp_path/killed that is killed again and again; (how often, exit status of the last child)."""
    from rlctl.config import compose

    c = config(env, tmp_path / "killed", **changes)
    compose.save(replace(c, run=replace(c.run, import_paths=[str(tmp_path)])), tmp_path / "killed" / "config.yaml")
    driver = [sys.executable, "-c", DRIVER, str(tmp_path / "killed"), str(seconds), str(kills), str(seed)]
    done = subprocess.run(driver, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    killed, status = done.stdout.split()[-2:]
    return int(killed), int(status)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["ppo", "tasks"])
def test_twenty_kills_change_nothing(env, drawing, tmp_path, variant):
    """A checkpoint every step, so that many of the kills fall into one being written."""
    changes = VARIANTS[variant] | {"run": {"steps": 30, "save_every": 1, "keep": 2}}
    start = time.monotonic()
    train(config(env, tmp_path / "whole", **changes), tiny.Recording())
    seconds = (time.monotonic() - start) / 4
    killed, status = killed_run(env, tmp_path, seconds, KILLS, 0, **changes)
    assert (killed, status) == (KILLS, 0)
    assert_same(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_kill_within_a_save_leaves_the_checkpoint_before(env, tmp_path, monkeypatch, nth):
    """SIGKILL at the nth flush of the second checkpoint, in a process of its own."""
    c = config(env, tmp_path / "run", run={"steps": 4, "save_every": 1})
    pid = os.fork()
    if pid == 0:
        flush, flushed = checkpoint._flush, []

        def deadly(path: Path) -> None:
            flush(path)
            flushed.append("step_000002" in str(path))
            if sum(flushed) == nth:
                os.kill(os.getpid(), signal.SIGKILL)

        checkpoint._flush = deadly
        train(c, tiny.Recording())
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert [s for s, _ in checkpoint.checkpoints(tmp_path / "run")] == [1]
    train(going_on(c, tmp_path / "run"), tiny.Recording())
    whole = config(env, tmp_path / "whole", run={"steps": 4, "save_every": 1})
    train(whole, tiny.Recording())
    assert_same(tmp_path / "whole", tmp_path / "run")
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


# --- disk and memory


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="tmpfs is Linux's")
def test_a_full_disk_loses_nothing(env, tmp_path, small_disk):
    """It fills up while a later checkpoint is being written; with room made, the run goes on exactly."""
    changes = {"run": {"steps": 6, "save_every": 1, "keep": 9}}
    c = config(env, small_disk / "run", **changes)
    with pytest.raises(TrainingError) as caught:
        train(c, tiny.Recording())
    kept = checkpoint.checkpoints(small_disk / "run")
    last = kept[-1][0]
    assert 1 <= last < 6
    assert caught.value.what == f"cannot write {small_disk / 'run' / 'checkpoints' / f'step_{last + 1:06d}'}"
    assert f"MiB are free at {small_disk / 'run' / 'checkpoints'}" in str(caught.value)
    assert not list((small_disk / "run" / "checkpoints").glob(".*"))  # the half of it gives its room back
    for step, path in kept:
        assert resume.read(path).moment.step == step
    for _, path in kept[:-1]:
        shutil.rmtree(path)
    roomier = replace(going_on(c, small_disk / "run"), run=replace(c.run, dir=str(small_disk / "run"), resume=Resume.auto, keep=1))
    train(roomier, tiny.Recording())
    train(config(env, tmp_path / "whole", **changes), tiny.Recording())
    assert_same(tmp_path / "whole", small_disk / "run")


def test_want_of_memory_names_the_setting(env, tmp_path, monkeypatch):
    """The allocator's real error, in the update."""
    from rlctl.algos.ppo import PPO as Algorithm

    def greedy(self, *args):
        return torch.empty(2**50, dtype=torch.float32)

    monkeypatch.setattr(Algorithm, "loss", greedy)
    c = config(env, tmp_path / "run", optim={"microbatch_size": 6})
    with pytest.raises(TrainingError) as caught:
        train(c, tiny.Recording())
    assert caught.value.what == "out of memory in the phase 'update'"
    assert caught.value.why.startswith("it needed 4,194,304.00 GiB more at once\n")
    assert caught.value.hint == "optim.microbatch_size=3 (sequences in one pass; now 6; results stay the same)"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["reason"] == caught.value.what


def test_want_of_memory_in_other_phases(env, tmp_path):
    c = env.config(tmp_path, reward=env.reward)
    assert smaller("generate", c, 2) == "rollout.batch_size=2 (sequences generated at once; now 4)"
    assert smaller("score", c, 1) == "reward.batch_size=16 (texts scored at once; now 32)"
    assert smaller("forward", c, 1).startswith("optim.microbatch_size=8 ")
    least = replace(c, optim=replace(c.optim, microbatch_size=1))
    assert smaller("update", least, 1).startswith("model.gradient_checkpointing=true")
    cuda = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB")
    assert is_out_of_memory(cuda) and needed(cuda) == "it needed 2.50 GiB more at once"
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_memory_stays_flat(env, tmp_path):
    """Resident memory over 50 steps, after the first ones have warmed the allocators."""
    resident = []

    class Watching(tiny.Recording):
        def step(self, step: Any) -> None:
            super().step(step)
            resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)

    train(config(env, tmp_path / "run", run={"steps": 50, "save_every": None}), Watching())
    assert len(resident) == 50
    assert resident[-1] - resident[9] < 8.0, resident


@pytest.mark.slow
def test_two_processes_stop_together_and_go_on_exactly(tmp_path):
    """The launcher hands the signal on; each finishes the step, and one checkpoint is written."""
    two = [*SMALL, "run.steps=5", "launch.processes=2"]
    calls = tmp_path / "calls"
    run = rlctl(tmp_path, "train", *two, "hydra.run.dir=out", SLOW="1.0")
    until(lambda: calls.exists() and len(calls.read_text()) >= 4)
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 130, err
    (done, _), *others = checkpoint.checkpoints(tmp_path / "out")
    assert others == [] and 1 <= done < 5
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["status"] == "interrupted"
    assert out.count("stops after this step") == 1
    for command in (["resume", "out"], ["train", *two, "hydra.run.dir=whole"]):
        again = rlctl(tmp_path, *command)
        _, err = again.communicate(timeout=240)
        assert again.returncode == 0, err
    assert lines(tmp_path / "out") == lines(tmp_path / "whole")
    a, b = (load_file(tmp_path / run / "policy" / "model.safetensors") for run in ("out", "whole"))
    assert all(torch.equal(a[name], b[name]) for name in a)
