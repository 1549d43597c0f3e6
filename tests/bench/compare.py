"""Seconds of a step under two sets of overrides, in turn: `python tests/bench/compare.py A B [common ...]`.

    python tests/bench/compare.py reward=model reward=calibrated data.limit=64 value=policy
    python tests/bench/compare.py algo=ppo algo=rloo

A and B may hold several overrides, separated by blanks. The first step of each run is left out (calibrated: it fills the cache).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 5


def steps(overrides: list[str], out: Path) -> list[float]:
    """Seconds of every step of a run but its first."""
    command = [sys.executable, "-m", "rlctl", "train", *overrides, "console=quiet", "run.tracker=none", f"hydra.run.dir={out}"]
    subprocess.run(command, check=True)
    return [json.loads(line)["time/step"] for line in (out / "metrics.jsonl").open()][1:]


def main() -> None:
    first, second, *common = sys.argv[1:]
    seconds: dict[str, list[float]] = {first: [], second: []}
    ratios = []
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(ROUNDS):
            medians = []
            for j, side in enumerate((first, second)):
                # optim.lr=0: both sides keep writing what the starting policy writes, so that only the cost differs
                times = steps([*side.split(), "run.steps=9", "optim.lr=0", *common], Path(scratch) / f"{i}-{j}")
                seconds[side] += times
                medians.append(statistics.median(times))
            ratios.append(medians[1] / medians[0])
    result = {side: round(statistics.median(times), 4) for side, times in seconds.items()}
    result["ratio"] = round(statistics.median(ratios), 3)
    sys.stdout.write(json.dumps({**result, "of rounds": [round(r, 3) for r in ratios]}) + "\n")


if __name__ == "__main__":
    main()
