"""What a run leaves behind: metrics, samples, trackers, environment, summary. Only the main process writes."""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object

from rlctl import checkpoint
from rlctl.assemble import Assembly
from rlctl.collect import Collected
from rlctl.metrics import MetricsFile, sample_rows, without_nan
from rlctl.monitor import diagnose
from rlctl.report import Reporter, Sample, Step, Summary, Warning

_PACKAGES = ("rlctl", "torch", "transformers", "accelerate", "datasets", "hydra-core", "omegaconf", "trl")


@dataclass
class Recorder:
    """Takes in finished steps; knows what the closing summary needs."""

    run: Assembly
    reporter: Reporter
    run_dir: Path
    started: float = field(default_factory=time.perf_counter)
    history: list[dict[str, float]] = field(default_factory=list)
    before: Sample | None = None
    probe: int = 0
    """Row in the first step whose prompt is answered again at the end."""

    def open(self) -> None:
        """Write what is known before the first step, and start the tracker."""
        self.run.accelerator.init_trackers("rlctl")
        if not self.is_main:
            return
        _write_json(self.run_dir / "env.json", environment(self.run))
        _write_json(self.run_dir / "plan.json", dict(self.run.plan.facts))

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and shows."""
        main: bool = self.run.accelerator.is_main_process
        return main

    def step(self, step: int, metrics: dict[str, float], collected: Collected) -> None:
        """Write and show one finished step, with the responses of all processes."""
        config = self.run.config
        rows = gather_object(sample_rows(collected, config.algo.kl_estimator))
        scores = [row["score"] for row in rows]
        extremes = {"objective/scores_min": min(scores), "objective/scores_max": max(scores)}
        metrics = {**metrics, **extremes, **self._progress(step, metrics)}
        self.history.append(metrics)
        if not self.is_main:
            return
        if step % config.run.samples_every == 0 or step in (1, config.steps):
            folder = self.run_dir / "samples"
            folder.mkdir(exist_ok=True)
            text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in without_nan(rows))
            (folder / f"step_{step:06d}.jsonl").write_text(text, encoding="utf-8")
        MetricsFile(self.run_dir).write(step, metrics)
        self.run.accelerator.log(metrics, step=step)
        ranked = sorted(rows, key=lambda r: r["score"])
        if self.before is None:
            self.probe = rows.index(ranked[len(ranked) // 2])
            self.before = _sample(rows[self.probe])
        self.reporter.step(Step(step, config.steps, metrics, _sample(ranked[-1]), _sample(ranked[0])))
        for warning in [*diagnose(self.history, config.rollout.max_new_tokens), *self._others()]:
            self.reporter.warn(warning)

    def _others(self) -> list[Warning]:
        collector = self.run.collector
        return [*collector.reward.warnings(), *(w for judge in collector.judges for w in judge.warnings())]

    def _progress(self, step: int, metrics: dict[str, float]) -> dict[str, float]:
        config, seconds = self.run.config, self.run.clock.take()
        whole = seconds["time/step"]
        tokens = metrics["responses/length"] * config.samples_per_step
        return {
            **seconds,
            "tokens/per_second": tokens / whole,
            "progress/samples": float(step * config.samples_per_step),
            "progress/epoch": step * config.rollout.prompts_per_step / len(self.run.prompts),
        }

    def summary(self, status: str, reason: str, after: Sample | None = None) -> Summary:
        """Write summary.json and return what it holds."""
        scores = [m["objective/scores"] for m in self.history]
        best = max(range(len(scores)), key=scores.__getitem__) if scores else None
        made = [("metrics", "metrics.jsonl"), ("samples", "samples"), ("final policy", "policy"), ("value model", "value")]
        files = [(label, str(self.run_dir / name)) for label, name in made if (self.run_dir / name).exists()]
        if kept := checkpoint.checkpoints(self.run_dir):
            files.append(("checkpoints", str(kept[-1][1].parent)))
        if (self.run_dir / "tensorboard").exists():
            files.append(("TensorBoard", str(self.run_dir / "tensorboard")))
        summary = Summary(
            status, reason, self.run_dir, len(self.history), time.perf_counter() - self.started,
            self.history[0] if self.history else {}, self.history[-1] if self.history else {},
            best + 1 if best is not None else None, scores[best] if best is not None else None,
            self.before, after, tuple(files), self._next_commands(),
        )  # fmt: skip
        if self.is_main:
            write_summary(summary)
        return summary

    def _next_commands(self) -> tuple[str, ...]:
        commands = []
        if (self.run_dir / "policy").exists():
            commands.append(f"rlctl train model=hf:{_quote(self.run_dir / 'policy')}")
        if (self.run_dir / "tensorboard").exists():
            commands.append(f"tensorboard --logdir {_quote(self.run_dir.parent)}")
        return tuple(commands)


def write_summary(summary: Summary) -> None:
    """summary.json in the run folder."""
    _write_json(summary.run_dir / "summary.json", {**asdict(summary), "run_dir": str(summary.run_dir)})


def environment(run: Assembly) -> dict[str, Any]:
    """Versions, machine and devices, for env.json."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": versions,
        "device": str(run.accelerator.device),
        "processes": run.accelerator.num_processes,
        "mixed_precision": run.accelerator.mixed_precision,
        "gpus": gpus,
        "torch_threads": torch.get_num_threads(),
    }


def _sample(row: dict[str, Any]) -> Sample:
    return Sample(row["prompt"], row["response"], row["score"], row["truncated"], row["kl"])


def _quote(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(without_nan(value), indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
