"""Peak memory of three PPO steps under LoRA beside the bare model's forward and backward pass:
`OMP_NUM_THREADS=1 python tests/bench/lora_memory.py MODEL_FOLDER`.

The bare side trains every weight (gradients, no optimizer) on one batch as large as rlctl's microbatch, in float32, its
loss that of transformers. rlctl's side holds policy, reference and value model on one base, samples, scores and updates.
Each is a process of its own; peak resident memory is the kernel's, given whole and less what the imports alone take.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

MEBI = 1024.0  # ru_maxrss counts in KiB on Linux


def peak() -> float:
    """Largest resident size of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MEBI


def bare(a: argparse.Namespace) -> dict[str, float]:
    """Forward and backward of the whole model, once for each step."""
    import torch
    from transformers import AutoModelForCausalLM

    imports = peak()
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float32)
    loaded = peak()
    torch.manual_seed(0)
    for _ in range(a.steps):
        ids = torch.randint(model.config.vocab_size, (a.micro, a.prompt + a.response))
        model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, use_cache=False).loss.backward()
        model.zero_grad()
    return {"imports": imports, "loaded": loaded, "peak": peak()}


def ours(a: argparse.Namespace) -> dict[str, float]:
    """Three steps of PPO through the command line."""
    from rlctl import assemble, cli, train

    assert assemble and train  # imported for their size
    imports = peak()
    folder = Path(a.folder)
    lines = [json.dumps({"prompt": " ".join(["the"] * a.prompt)}) + "\n"] * a.batch
    (folder / "prompts.jsonl").write_text("".join(lines))
    status = cli.main(
        [
            "train", f"model=hf:{a.model}", f"data=file:{folder}/prompts.jsonl", "reward=fn:rlctl.builtin.count_good", "algo=ppo",
            f"model.lora.r={a.rank}", f"run.steps={a.steps}", f"rollout.prompts_per_step={a.batch}", f"algo.epochs={a.epochs}",
            f"rollout.max_new_tokens={a.response}", f"optim.microbatch_size={a.micro}", "run.tracker=none", "console=quiet",
            "launch=cpu", f"hydra.run.dir={folder}/run", *a.overrides,
        ]
    )  # fmt: skip
    if status:
        raise SystemExit(status)
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").open()]
    length = sum(row["responses/length"] for row in rows) / len(rows)
    return {"imports": imports, "peak": peak(), "mean response": length, "kl at first": rows[0]["objective/kl"]}


def measured(side: str, a: argparse.Namespace) -> dict[str, float]:
    """One side in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--folder", folder]
        subprocess.run(command, check=True)
        found: dict[str, float] = json.loads((Path(folder) / "measured.json").read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of a causal language model")
    parser.add_argument("overrides", nargs="*", help="more overrides for rlctl")
    for name, default in {"micro": 8, "batch": 8, "prompt": 64, "response": 64, "rank": 16, "epochs": 2, "steps": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--side", choices=["bare", "ours"])
    parser.add_argument("--folder")
    a = parser.parse_intermixed_args()
    if a.side:
        found = bare(a) if a.side == "bare" else ours(a)
        (Path(a.folder) / "measured.json").write_text(json.dumps(found))
        return
    floor, run = measured("bare", a), measured("ours", a)
    result = {
        "bare, MiB": {k: round(v) for k, v in floor.items()},
        "rlctl, MiB": {k: round(v) for k, v in run.items()},
        "ratio": round(run["peak"] / floor["peak"], 3),
        "ratio less imports": round((run["peak"] - run["imports"]) / (floor["peak"] - floor["imports"]), 3),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
