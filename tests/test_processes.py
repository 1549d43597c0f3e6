"""Several real processes give what one gives, and behave as one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

# Responses are a function of the prompt alone, so that every number of processes learns from the same batch.
MODULE = '''
import os
import torch
from rlctl.rollout import Sequences
from rlctl.sample import Sampler
from rlctl.tensors import left_pad, right_pad

def fixed(self, lm, prompts):
    seen, rows = {}, []
    for p in prompts:
        n = seen[tuple(p)] = seen.get(tuple(p), -1) + 1
        draw = torch.Generator().manual_seed(sum(p) * 31 + n)
        length = int(torch.randint(2, 9, (1,), generator=draw))
        ids = torch.randint(5, 200, (length,), generator=draw).tolist()
        rows.append(ids if length == 8 else ids + [self.end_ids[0]])
    ids, mask = left_pad(prompts, self.pad_id)
    response, real = right_pad(rows, self.pad_id)
    ids, mask, response, real, cut = (x.to(lm.device) for x in (ids, mask, response, real, torch.tensor([len(r) == 8 for r in rows])))
    return Sequences(ids, mask, response, real), cut

Sampler.__call__ = fixed

def score(texts):
    with open(f"pid-{os.getpid()}", "w"):
        pass
    return [float(sum(map(ord, t)) % 17) / 8 for t in texts]

def passes(texts):
    return [sum(map(ord, t)) % 3 > 0 for t in texts]

def seldom_passes(texts):
    return [sum(map(ord, t)) % 3 == 0 for t in texts]

def only_in_the_second(texts):
    if os.environ.get("RANK") == "1":
        raise ValueError("the second process cannot")
    return [1.0] * len(texts)
'''
TINY = [
    "run.steps=2", "rollout.prompts_per_step=8", "rollout.max_new_tokens=8", "optim.microbatch_size=1", "optim.lr=1e-4",
    "console=plain", "run.tracker=none", "launch=cpu", "algo.minibatches=2", "algo.missing_eos_penalty=0.5",
    "algo.score_normalization=running",
]  # fmt: skip


# two tasks of unlike sizes; the second learns from baselines too
RECIPE = """
defaults: [base, override algo: cgpo, _self_]
tasks:
  a: {reward: fn:fixed.score, judges: [{kind: fn, path: fixed.passes}], samples_per_prompt: 3, prompts_per_step: 4, kl_max: .inf}
  b:
    data: {limit: 40}
    reward: {kind: calibrated, base: fn:fixed.score}
    judges: [{kind: fn, path: fixed.seldom_passes}]
    optimizer: crraft
    samples_per_prompt: 2
    weight: 0.5
"""


def train(folder: Path, out: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    """`rlctl train` in a folder holding the module, which is a recipe of two tasks as well."""
    (folder / "fixed.py").write_text(MODULE)
    (folder / "config.yaml").write_text(RECIPE)
    recipe = [o for o in overrides if o == "."]
    overrides = tuple(o for o in overrides if o != ".")
    command = [sys.executable, "-m", "rlctl", "train", *recipe, *TINY, "reward=fn:fixed.score", f"hydra.run.dir={out}", *overrides]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def lines(run: Path) -> list[dict[str, float]]:
    """The metrics of every step, without times."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "tokens/"))} for row in rows]


ALGORITHMS = {
    "ppo": ["algo=ppo", "algo.mask_truncated=true"],
    "cgpo": [
        "algo=cgpo", "algo.samples_per_prompt=3", "rollout.prompts_per_step=8", "algo.minibatches=1", "algo.score_normalization=none",
        "judges=[{kind: fn, path: fixed.passes}]",
    ],
    "tasks": [".", "algo.minibatches=1", "algo.score_normalization=none"],
    "rloo": ["algo=rloo", "algo.samples_per_prompt=3", "rollout.prompts_per_step=8"],
}


@pytest.mark.parametrize("algo", ["ppo", *(pytest.param(a, marks=pytest.mark.slow) for a in ("cgpo", "rloo", "tasks"))])
def test_two_processes_equal_one(tmp_path: Path, algo: str) -> None:
    for n in (1, 2):
        done = train(tmp_path, f"run{n}", *ALGORITHMS[algo], f"launch.processes={n}")
        assert done.returncode == 0, done.stderr
    one, two = lines(tmp_path / "run1"), lines(tmp_path / "run2")
    near = 1e-5 if algo in ("cgpo", "tasks") else 1e-4  # one update a step: nothing adds up
    assert [row["step"] for row in two] == [1, 2]
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, rel=near, abs=near)
    ours, theirs = (load_file(tmp_path / f"run{n}" / "policy" / "model.safetensors") for n in (1, 2))
    start = load_file(Path(__file__).parents[1] / "rlctl" / "builtin" / "policy" / "model.safetensors")
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=near, rtol=near)
    if algo == "tasks":
        assert all(row["tasks/b/cgpo/baselines"] > 0 and row["tasks/b/cgpo/skipped"] < 1 for row in one)
    assert any(not torch.allclose(tensor, start[name].float(), atol=5e-5) for name, tensor in ours.items())  # and it did learn


def test_two_processes_are_one_run(tmp_path: Path) -> None:
    done = train(tmp_path, "run", "launch.processes=2", "run.save_every=1")
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("pid-*"))) == 2  # each scored its own responses
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir() and p.name != "__pycache__") == ["run"]
    run = tmp_path / "run"
    rows = [json.loads(line) for line in (run / "samples" / "step_000001.jsonl").open()]
    assert len(rows) == 8 and len({row["prompt"] for row in rows}) == 8
    first = lines(run)[0]
    scores = [row["score"] for row in rows]
    assert first["objective/scores"] == pytest.approx(sum(scores) / 8, abs=1e-5)
    assert (first["objective/scores_min"], first["objective/scores_max"]) == (min(scores), max(scores))
    assert [p.name for p in sorted((run / "checkpoints").iterdir())] == ["step_000001", "step_000002"]
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert done.stdout.count("step 1/2") == 1 and "2 x cpu" in done.stdout


def test_a_failure_in_one_process_ends_all_and_is_told_once(tmp_path: Path) -> None:
    done = train(tmp_path, "run", "launch.processes=2", "reward=fn:fixed.only_in_the_second")
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("error:") == 1
    assert done.stderr.startswith("error: reward fn:fixed.only_in_the_second raised ValueError\n")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["reason"]) == ("failed", "reward fn:fixed.only_in_the_second raised ValueError")


def test_a_mistake_that_every_process_sees_is_told_once(tmp_path: Path) -> None:
    done = train(tmp_path, "run", "launch.processes=2", "reward=fn:fixed.nosuch")
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("error: reward fn:fixed.nosuch: module fixed has no 'nosuch'") == 1


def test_a_split_that_does_not_work_is_refused_with_the_nearest(tmp_path: Path) -> None:
    done = train(tmp_path, "run", "launch.processes=3")
    assert done.returncode == 2
    assert (
        "rollout.prompts_per_step=8 cannot be shared evenly by launch.processes=3; nearest: rollout.prompts_per_step=6 or 9, "
        "or launch.processes=2 or 4" in done.stderr
    )
