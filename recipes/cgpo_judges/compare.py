"""Trains every variant on every seed through the command line, measures what was sampled, and writes results.md and results.svg.

    python recipes/cgpo_judges/compare.py --seeds 3

A finished run in the output folder is read, not repeated.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

from true import keeps_rules, true_quality

HERE = Path(__file__).resolve().parent
PPO = ["algo=ppo", "algo.samples_per_prompt=4", "algo.epochs=2", "algo.kl_coef=0.01", "optim.lr=5e-4"]
VARIANTS = {
    "PPO, reward alone": [*PPO, "judges=[]"],
    "CRPG, no judges": ["judges=[]"],
    "PPO, gated by judges": [*PPO, "algo.violation_score=0"],
    "CRPG, judges": [],
    "CRRAFT, judges": ["algo.optimizer=crraft"],
    "CODPO, judges": ["algo.optimizer=codpo"],
}
COLORS = ["#d62728", "#ff7f0e", "#7f7f7f", "#1f77b4", "#2ca02c", "#9467bd"]
MEASURES = ["training reward", "true quality", "satisfied", "KL"]
EDGE = 3  # steps averaged at the start and at the end

Rows = list[dict[str, float]]  # the measures of a run, step by step


def folder(out: Path, variant: str, steps: int, seed: int) -> Path:
    """The run folder of one variant on one seed.

    >>> folder(Path("out"), "CRPG, judges", 30, 1).as_posix()
    'out/crpg-judges-30-1'
    """
    return out / f"{variant.lower().replace(',', '').replace(' ', '-')}-{steps}-{seed}"


def train(out: Path, variant: str, steps: int, seed: int) -> Path:
    """`rlctl train` for one variant, unless it has finished before."""
    run = folder(out, variant, steps, seed)
    if not (run / "summary.json").exists():
        settings = [f"run.steps={steps}", f"seed={seed}", "run.tracker=none", "console=quiet", f"hydra.run.dir={run}"]
        command = [sys.executable, "-m", "rlctl", "train", str(HERE), *VARIANTS[variant], *settings]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        print(f"{variant}, seed {seed}: {run}", flush=True)
    return run


def measure(run: Path) -> Rows:
    """The means over each step's samples. Training reward is the calibrated score, before any gate; KL is in nats."""
    rows = []
    for path in sorted((run / "samples").glob("step_*.jsonl")):
        samples = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        prompts, responses = ([s[key] for s in samples] for key in ("prompt", "response"))
        kind = [s["columns"]["kind"] for s in samples]
        values = [
            [s["score"] for s in samples],
            true_quality(prompts, responses, kind),
            keeps_rules(responses, kind),
            [s["kl"] for s in samples],
        ]
        rows.append(dict(zip(MEASURES, map(mean, values), strict=True)))
    return rows


def table(runs: dict[str, list[Rows]]) -> str:
    """Markdown: the first and last EDGE steps of each variant; beside the mean over seeds, the lowest and highest at the end.

    >>> run = [dict.fromkeys(MEASURES, float(step)) for step in range(9)]
    >>> print(table({"a": [run]}).splitlines()[-1])
    | a | 1.00 -> 7.00 (7.00 to 7.00) | 1.00 -> 7.00 (7.00 to 7.00) | 1.00 -> 7.00 (7.00 to 7.00) | 1.00 -> 7.00 (7.00 to 7.00) |
    """
    lines = ["| variant | " + " | ".join(MEASURES) + " |", "|---" * (len(MEASURES) + 1) + "|"]
    for variant, seeds in runs.items():
        cells = []
        for name in MEASURES:
            first = mean(mean(row[name] for row in run[:EDGE]) for run in seeds)
            last = [mean(row[name] for row in run[-EDGE:]) for run in seeds]
            cells.append(f"{first:.2f} -> {mean(last):.2f} ({min(last):.2f} to {max(last):.2f})")
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(runs: dict[str, list[Rows]], name: str = "true quality") -> str:
    """SVG: one measure against steps, each variant's mean over seeds."""
    lines = {variant: [mean(row[name] for row in rows) for rows in zip(*seeds, strict=True)] for variant, seeds in runs.items()}
    left, top, width, height = 60, 20, 440, 280
    values = [y for line in lines.values() for y in line]
    low, high = min(values), max(values)
    low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
    steps = max(len(line) for line in lines.values())

    def x(step: int) -> float:
        return left + width * (step - 1) / max(steps - 1, 1)

    def y(value: float) -> float:
        return top + height * (high - value) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 190}" height="{top + height + 45}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>',
        f'<text x="{left + width / 2}" y="{top + height + 38}" text-anchor="middle">step</text>',
        f'<text transform="translate(16 {top + height / 2}) rotate(-90)" text-anchor="middle">{name}</text>',
    ]
    for i in range(5):
        value, step = low + (high - low) * i / 4, 1 + round((steps - 1) * i / 4)
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.1f}</text>')
        parts.append(f'<text x="{x(step):.1f}" y="{top + height + 18}" text-anchor="middle">{step}</text>')
    for i, (variant, line) in enumerate(lines.items()):
        color, at = COLORS[i % len(COLORS)], top + 20 * i + 10
        points = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in enumerate(line, 1))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<line x1="{left + width + 12}" x2="{left + width + 32}" y1="{at}" y2="{at}" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{left + width + 38}" y="{at + 4}">{variant}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Trains, measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... of every variant")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=Path("outputs/cgpo_judges"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=HERE, help="folder of results.md and results.svg")
    args = parser.parse_args()
    members = [(args.out.resolve(), variant, args.steps, seed) for seed in range(args.seeds) for variant in VARIANTS]
    with ThreadPoolExecutor(args.jobs) as pool:
        found = list(pool.map(lambda member: train(*member), members))
    runs: dict[str, list[Rows]] = {variant: [] for variant in VARIANTS}
    for (_, variant, _, _), run in zip(members, found, strict=True):
        runs[variant].append(measure(run))
    text = (
        f"{args.steps} steps of 128 responses, {args.seeds} seed{'s' * (args.seeds > 1)}. Mean of the first {EDGE} steps -> of the last "
        f"{EDGE} (lowest to highest seed at the end).\n\n{table(runs)}\n"
    )
    (args.results / "results.md").write_text(text, encoding="utf-8")
    (args.results / "results.svg").write_text(plot(runs), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
