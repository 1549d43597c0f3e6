"""Why a calibrated reward: `python tests/bench/prompt_shift.py`.

The true reward is the built-in reward model's score. What training sees is that score plus a constant of each prompt, drawn
once from N(0, SHIFT^2): scores that cannot be compared across prompts, as of a reward model that likes some topics. PPO on the
shifted reward, PPO on the same reward calibrated against each row's reference answer, and RLOO, whose baseline is taken among
responses to one prompt and so cancels the shift by itself, are compared by the true reward of their last responses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = '''"""The true reward, and the same shifted by a constant of each prompt."""
import random
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from rlctl.builtin import path

tokenizer = AutoTokenizer.from_pretrained(path("reward"))
model = AutoModelForSequenceClassification.from_pretrained(path("reward"), dtype=torch.float32).eval()

@torch.no_grad()
def true(texts):
    rows = [[*tokenizer(t).input_ids, tokenizer.eos_token_id] for t in texts]
    width = max(map(len, rows))
    ids = torch.tensor([r + [tokenizer.pad_token_id] * (width - len(r)) for r in rows])
    return model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long()).logits[:, 0].tolist()

def shifted(texts, prompts):
    return [r + random.Random("shift " + p).gauss(0.0, SHIFT) for r, p in zip(true(texts), prompts)]
'''

SIDES = {
    "ppo": ["algo=ppo", "reward=fn:shift.shifted"],
    "ppo, calibrated": ["algo=ppo", "reward=calibrated", "reward.base=fn:shift.shifted"],
    "rloo": ["algo=rloo", "reward=fn:shift.shifted"],
}


def true_reward(folder: Path, run: Path, steps: int) -> tuple[float, float]:
    """Mean true reward of the responses of the first step and of the last three."""
    sys.path.insert(0, str(folder))
    from shift import true  # type: ignore[import-not-found]

    def mean(step: int) -> float:
        rows = [json.loads(line) for line in (run / "samples" / f"step_{step:06d}.jsonl").open()]
        return statistics.mean(true([r["prompt"] + r["response"] for r in rows]))

    return mean(1), statistics.mean(mean(steps - i) for i in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shift", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    a, *_ = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "shift.py").write_text(MODULE.replace("SHIFT", str(a.shift)))
        for name, overrides in SIDES.items():
            for seed in range(a.seeds):
                run = folder / f"{name}-{seed}"
                command = [sys.executable, "-m", "rlctl", "train", *overrides, f"seed={seed}", f"run.steps={a.steps}"]
                more = ["optim.lr=5.466e-4", "console=quiet", "run.tracker=none", f'hydra.run.dir="{run}"']
                subprocess.run([*command, *more], cwd=folder, check=True)
                first, last = true_reward(folder, run, a.steps)
                sys.stdout.write(json.dumps({"side": name, "seed": seed, "first": round(first, 3), "last": round(last, 3)}) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
