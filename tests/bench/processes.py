"""What several processes and lower precision do on this machine's GPUs: `python tests/bench/processes.py`.

Every check is a real run, compared with one process in float32 on the same responses (1e-4). `--device cpu` tries the script
itself, on two processes. Exit status 1 if a check fails; what cannot be checked here is said.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parents[1]))
import test_processes as tools


def difference(one: Path, other: Path) -> float:
    """The largest one between two runs' metrics, relative where they are above 1, and between their final weights."""
    found = [0.0]
    for a, b in zip(tools.lines(one), tools.lines(other), strict=True):
        assert a.keys() == b.keys()
        found += [abs(a[k] - b[k]) / max(1.0, abs(a[k])) for k in a if a[k] is not None]
    x, y = (load_file(run / "policy" / "model.safetensors") for run in (one, other))
    return max([*found, *(float((x[k] - y[k]).abs().max()) for k in x)])


class Checks:
    """Runs in a folder of their own, and what came of them."""

    def __init__(self, folder: Path, device: str):
        self.folder, self.device, self.failed = folder, device, 0

    def train(self, name: str, *overrides: str) -> Path:
        """A run; RuntimeError with what it printed if it fails."""
        done = tools.train(self.folder, name, f"launch.device={self.device}", *overrides)
        if done.returncode:
            raise RuntimeError(f"exit status {done.returncode}\n{done.stderr[-3000:]}")
        return self.folder / name

    def check(self, what: str, call: Callable[[], str]) -> None:
        """One line of the report."""
        try:
            word, detail = "ok", call()
        except (RuntimeError, AssertionError) as error:
            word, detail, self.failed = "FAILED", str(error), self.failed + 1
        sys.stdout.write(f"{word:<7} {what}: {detail}\n")
        sys.stdout.flush()

    def same(self, name: str, *overrides: str) -> Callable[[], str]:
        """A run equals that of one process."""

        def call() -> str:
            found = difference(self.folder / "one", self.train(name, *overrides))
            assert found < 1e-4, f"differs by {found:.2e}"
            return f"largest difference {found:.1e}"

        return call

    def runs(self, name: str, *overrides: str) -> Callable[[], str]:
        """A run with responses really sampled takes its updates, every number finite."""

        def call() -> str:
            run = self.train(name, "reward=fn:rlctl.builtin.count_good", "rollout.max_new_tokens=24", *overrides)
            last = tools.lines(run)[-1]
            assert last["policy/updates"] > 0 and last["loss/policy"] is not None, last
            skipped = f", {last['policy/skipped_updates']:g} skipped in the last step" if "policy/skipped_updates" in last else ""
            return f"{last['policy/updates']:g} updates{skipped}"

        return call


def main() -> int:
    """Run what this machine can; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args().device
    gpus = torch.cuda.device_count() if device == "cuda" else 2
    if not gpus:
        parser.error("there is no GPU here")
    n = max(k for k in (1, 2, 4, 8) if k <= gpus)
    full, missing = ("launch.mixed_precision=no", f"launch.processes={n}"), []
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(Path(folder), device)
        one = ("launch.mixed_precision=no", "launch.processes=1")
        checks.check("one process in float32", lambda: str(checks.train("one", *one).name))
        checks.check("one process, sampled, bf16", checks.runs("bf16", "launch.mixed_precision=bf16", "launch.processes=1"))
        if device == "cuda":
            checks.check("one process, sampled, fp16", checks.runs("fp16", "launch.mixed_precision=fp16", "launch.processes=1"))
        else:
            missing.append("fp16: needs a GPU")
        if n == 1:
            missing.append("several processes: needs two GPUs")
        else:
            checks.check(f"{n} processes, ddp", checks.same("ddp", *full))
            checks.check(f"{n} processes, fsdp", checks.same("fsdp", *full, "launch.strategy=fsdp"))
            sharded = (f"launch.processes={n}", "launch.strategy=fsdp", "launch.mixed_precision=bf16")
            checks.check(f"{n} processes, fsdp, sampled, bf16", checks.runs("sharded", *sharded))
            if find_spec("deepspeed"):
                for stage in (1, 2):
                    asked = (*full, "launch.strategy=deepspeed", f"launch.zero_stage={stage}")
                    checks.check(f"{n} processes, deepspeed, stage {stage}", checks.same(f"deepspeed{stage}", *asked))
            else:
                missing.append("deepspeed: is not installed")
    for line in missing:
        sys.stdout.write(f"not checked: {line}\n")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
