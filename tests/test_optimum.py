"""The proof that the training is right: through the command line, to the known optimum of an enumerable environment."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import enumerable
import pytest
import torch

BETA = 0.7
OVERRIDES = [
    "data=file:prompts.jsonl", "model=hf:./policy", "reward=fn:tablereward.score", f"algo.kl_coef={BETA}", "run.steps=200",
    "rollout.max_new_tokens=2", "optim.microbatch_size=512", "optim.lr=1e-3",
    "algo.epochs=2", "run.samples_every=100", "run.tracker=none", "console=quiet", "hydra.run.dir=out",
]  # fmt: skip


CGPO = """
defaults: [base, override algo: cgpo, override reward: calibrated, _self_]
reward: {base: "fn:tablereward.score"}
judges: [{kind: fn, path: tablereward.passes}]
model: {path: ./policy}
data: {path: ./prompts.jsonl}
rollout: {prompts_per_step: 51, max_new_tokens: 2}
algo: {samples_per_prompt: 10, kl_max: 2.0}
optim: {lr: 1e-3, microbatch_size: 512}
run: {steps: 200, samples_every: 100, tracker: none}
console: {mode: quiet}
"""


def run(folder: Path, *more: str, recipe: bool = False) -> None:
    """`rlctl train` in the folder."""
    start = [".", "hydra.run.dir=out"] if recipe else OVERRIDES
    command = [sys.executable, "-m", "rlctl", "train", *start, *more]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=900)


# 512 samples a step each
ALGORITHMS = {
    "ppo": ["rollout.prompts_per_step=512"],
    "rloo": ["rollout.prompts_per_step=32", "algo.samples_per_prompt=16"],
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_training_reaches_the_exact_optimum(tmp_path: Path, algo: str, seed: int) -> None:
    enumerable.make(tmp_path, seed)
    run(tmp_path, f"algo={algo}", *ALGORITHMS[algo], f"seed={seed}")
    verdict = enumerable.evaluate(tmp_path, tmp_path / "out" / "policy", seed, BETA)
    assert verdict.captured >= 0.995, verdict
    assert verdict.kl <= 0.005, verdict


# satisfied mass at least, E[D] at most
BARS = {"crpg": (0.99, 2.0), "crraft": (0.97, 2.0), "codpo": (0.99, math.inf)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("optimizer", BARS)
def test_cgpo_learns_to_satisfy_a_judge_within_its_kl(tmp_path: Path, optimizer: str, seed: int) -> None:
    """A judge fails a random third of all responses; the untrained policy satisfies it with about 0.7 of its mass."""
    enumerable.make(tmp_path, seed)
    start = enumerable.constrained(tmp_path, tmp_path / "policy", seed)
    (tmp_path / "config.yaml").write_text(CGPO)
    run(tmp_path, f"algo.optimizer={optimizer}", f"seed={seed}", recipe=True)
    end, (satisfied, kl) = enumerable.constrained(tmp_path, tmp_path / "out" / "policy", seed), BARS[optimizer]
    assert start.satisfied < 0.85 and start.kl == pytest.approx(0.0, abs=1e-9)
    assert end.satisfied >= satisfied, end
    assert end.kl <= kl, end
    assert end.reward > start.reward + 0.3, (start, end)


def test_the_judge_itself_knows_the_start_and_the_optimum(tmp_path: Path) -> None:
    """An untrained policy captures nothing, and its probabilities over all responses sum to one."""
    enumerable.make(tmp_path, 0)
    verdict = enumerable.evaluate(tmp_path, tmp_path / "policy", 0, BETA)
    assert verdict.captured == pytest.approx(0.0, abs=1e-9)
    assert verdict.kl > 0.1
    lm = enumerable.AutoModelForCausalLM.from_pretrained(tmp_path / "policy").eval()
    total = torch.logsumexp(enumerable.sequence_logprobs(lm, [6]), 0)
    assert float(total) == pytest.approx(math.log(1.0), abs=1e-5)
