"""The policies of the first and the last stage on prompts that none has seen, under the reward model and the true measure.

    python mine/compare.py outputs/pipeline     # a folder with the runs sft, rm and ppo
    python mine/compare.py --seeds 2            # runs the three commands on seeds 0 and 1 first, where they have not finished

Samples come from `rlctl score`, at temperature 1. The numbers of a folder go to its compare/metrics.jsonl, those of --seeds also to
results.md.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

from true import NONSENSE, true_measure

HERE = Path(__file__).resolve().parent
PROMPTS, SAMPLES = 200, 4
MEASURES = ["reward model", "true measure", "nonsense"]

Row = dict[str, float]


def rlctl(*argv: str, allowed: tuple[int, ...] = (0,)) -> str:
    """What an rlctl command prints; it must succeed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "rlctl", *argv], check=False, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode not in allowed:
        raise SystemExit(f"rlctl {argv[0]} ended with exit status {done.returncode}")
    return done.stdout


def commands(runs: Path, seed: int, steps: int | None) -> dict[str, list[str]]:
    """The three commands of the README, by their run folders in `runs`.

    >>> [command[0] for command in commands(Path("out"), 0, None).values()]
    ['sft', 'rm', 'train']
    """
    policy, reward = f"model=hf:{runs}/sft/policy", f"reward=model:{runs}/rm/reward"
    found = {"sft": ["sft", str(HERE)], "rm": ["rm", str(HERE), policy], "ppo": ["train", str(HERE), policy, reward]}
    more = [f"seed={seed}", "console=quiet", *([f"run.steps={steps}"] if steps else [])]
    return {name: [*words, f"hydra.run.dir={runs}/{name}", *more] for name, words in found.items()}


def measure(runs: Path, stage: str) -> Row:
    """Means over PROMPTS x SAMPLES responses of the stage's policy to the prompts held out."""
    where = [f"model=hf:{runs}/{stage}/policy", f"reward=model:{runs}/rm/reward", f"data=file:{HERE}/data/held_out.jsonl"]
    sizes = [f"score.prompts={PROMPTS}", f"score.samples_per_prompt={SAMPLES}"]
    # its exit status 3 says that there is little left to learn: no fault here
    rows = json.loads(rlctl("score", *where, *sizes, "--json", allowed=(0, 3)))["rows"]
    true = true_measure([r["prompt"] for r in rows], [r["response"] for r in rows])
    values = [mean(r["score"] for r in rows), mean(true), mean(value == NONSENSE for value in true)]
    return dict(zip(MEASURES, values, strict=True))


def compare(runs: Path) -> dict[str, Row]:
    """Both policies measured, and written down beside them."""
    runs = runs.resolve()
    found = {stage: measure(runs, stage) for stage in ("sft", "ppo")}
    line = {f"{stage}: {name}": value for stage, row in found.items() for name, value in row.items()}
    line |= {f"gain under the {name}": found["ppo"][name] - found["sft"][name] for name in MEASURES[:2]}
    (runs / "compare").mkdir(exist_ok=True)
    (runs / "compare" / "metrics.jsonl").write_text(json.dumps({"step": 1, **line}) + "\n", encoding="utf-8")
    return found


def table(found: dict[str, dict[str, Row]]) -> str:
    """Markdown: one line a policy.

    >>> row = {"reward model": 1.0, "true measure": -0.5, "nonsense": 0.25}
    >>> print(table({"seed 0": {"sft": row}}).splitlines()[-1])
    | seed 0: sft policy | 1.00 | -0.50 | 25% |
    """
    lines = ["| | under the reward model | under the true measure | nonsense |", "|---|---|---|---|"]
    for name, stages in found.items():
        for stage, row in stages.items():
            cells = [f"{row['reward model']:.2f}", f"{row['true measure']:.2f}", f"{row['nonsense']:.0%}"]
            lines.append(f"| {name}: {stage} policy | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, and runs before if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="?", help="folder with finished runs sft, rm and ppo")
    parser.add_argument("--seeds", type=int, default=2, help="without a folder: run seeds 0, 1, ...")
    parser.add_argument("--steps", type=int, help="steps of every stage, to make it short")
    parser.add_argument("--out", type=Path, default=Path("outputs/pipeline_seeds"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=HERE, help="folder of results.md")
    args = parser.parse_args()
    if args.runs is not None:
        print(table({str(args.runs): compare(args.runs)}))
        return
    found = {}
    for seed in range(args.seeds):
        runs = args.out.resolve() / str(seed)
        for name, command in commands(runs, seed, args.steps).items():
            if not (runs / name / "summary.json").exists():
                rlctl(*command)
                print(f"{name}, seed {seed}: {runs / name}", flush=True)
        found[f"seed {seed}"] = compare(runs)
    (args.results / "results.md").write_text(table(found) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
