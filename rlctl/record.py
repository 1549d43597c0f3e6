"""What a run leaves behind: metrics, samples, trackers, environment, summary. Only the main process writes."""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from rlctl import checkpoint
from rlctl.assembly import Assembly
from rlctl.metrics import MetricsFile, sample_rows, without_nan
from rlctl.monitor import RECENT, diagnose
from rlctl.report import Reporter, Sample, Step, Summary, Warning
from rlctl.task import Taken, Task

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
    spent: float = 0.0
    """Seconds of the run before it was stopped."""
    probe: int = 0
    """Row in the first step whose prompt is answered again at the end."""

    def go_on(self, step: int, told: dict[str, Any]) -> None:
        """Take up the record of a run that stopped after `step`: what was written of later steps is gone."""
        self.history = [row for row in MetricsFile(self.run_dir).read() if row.pop("step") <= step]
        self.before = Sample(**told["before"]) if told["before"] else None
        self.probe, self.spent = told["probe"], told["seconds"]
        self.run.plan = replace(self.run.plan, facts=(("goes on", f"after step {step}"), *self.run.plan.facts))
        self._cut(step)

    def start_over(self) -> None:
        """Remove what a run left that came to no checkpoint."""
        self._cut(0)

    def _cut(self, step: int) -> None:
        if self.is_main:
            MetricsFile(self.run_dir).cut(step)
            for file in (self.run_dir / "samples").glob("step_*.jsonl"):
                if int(file.stem.removeprefix("step_")) > step:
                    file.unlink()

    def told(self) -> dict[str, Any]:
        """What `go_on` needs beside the files."""
        return {"before": asdict(self.before) if self.before else None, "probe": self.probe, "seconds": self.seconds}

    @property
    def seconds(self) -> float:
        """Seconds of the run so far, those before it was stopped included."""
        return self.spent + time.perf_counter() - self.started

    def open(self) -> None:
        """Write what is known before the first step, and start the tracker."""
        # a tracker that was ahead of the checkpoint is set back
        self.run.accelerator.init_trackers("rlctl", init_kwargs={"tensorboard": {"purge_step": len(self.history) + 1}})
        if not self.is_main:
            return
        (self.run_dir / "summary.json").unlink(missing_ok=True)  # of a run under way there is none
        write_json(self.run_dir / "env.json", environment(self.run.accelerator))
        write_json(self.run_dir / "plan.json", dict(self.run.plan.facts))

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and shows."""
        main: bool = self.run.accelerator.is_main_process
        return main

    def step(self, step: int, taken: list[Taken], updated: dict[str, float]) -> None:
        """Write and show one finished step, with the responses of all processes."""
        config, metrics, by_task = self.run.config, dict(updated), []
        for one in taken:
            rows = gather_object(sample_rows(one.collected, one.task.config.algo.kl_estimator))
            by_task.append([{"task": one.task.name, **row} if one.task.name else row for row in rows])
            scores = [row["score"] for row in rows]
            one.metrics.update({"objective/scores_min": min(scores), "objective/scores_max": max(scores)})
            one.metrics["progress/epoch"] = step * one.task.config.rollout.prompts_per_step / len(one.task.prompts)
            metrics |= one.named()
        metrics |= self._progress(step, taken)
        self.history.append(metrics)
        if not self.is_main:
            return
        rows = [row for task in by_task for row in task]
        if step % config.run.samples_every == 0 or step in (1, config.steps):
            folder = self.run_dir / "samples"
            folder.mkdir(exist_ok=True)
            text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in without_nan(rows))
            (folder / f"step_{step:06d}.jsonl").write_text(text, encoding="utf-8")
        MetricsFile(self.run_dir).write(step, metrics)
        self.run.accelerator.log(metrics, step=step)
        if self.before is None:
            ranked = sorted(by_task[0], key=lambda r: r["score"])
            self.probe = by_task[0].index(ranked[len(ranked) // 2])
            self.before = _sample(by_task[0][self.probe])
        # scores of different tasks do not compare: the tasks take turns
        ranked = sorted(by_task[step % len(by_task)], key=lambda r: r["score"])
        self.reporter.step(Step(step, config.steps, metrics, _sample(ranked[-1]), _sample(ranked[0])))
        for warning in [w for task in self.run.tasks for w in self._warnings(task)]:
            self.reporter.warn(warning)

    def _warnings(self, task: Task) -> list[Warning]:
        found = diagnose([_without(task.prefix, m) for m in self.history[-RECENT:]], task.config.rollout.max_new_tokens)
        found += [*task.collector.reward.warnings(), *(w for judge in task.collector.judges for w in judge.warnings())]
        return [replace(w, key=f"{task.name} {w.key}", what=f"task {task.name}: {w.what}") for w in found] if task.name else found

    def _progress(self, step: int, taken: list[Taken]) -> dict[str, float]:
        seconds = self.run.clock.take()
        tokens = sum(one.metrics["responses/length"] * one.task.config.samples_per_step for one in taken)
        return {
            **seconds,
            "tokens/per_second": tokens / seconds["time/step"],
            "progress/samples": float(step * self.run.config.samples_per_step),
        }

    def summary(self, status: str, reason: str, after: Sample | None = None) -> Summary:
        """Write summary.json and return what it holds."""
        scores = [m["objective/scores"] for m in self.history if "objective/scores" in m]  # of several tasks there is no best
        best = max(range(len(scores)), key=scores.__getitem__) if scores else None
        made = [("metrics", "metrics.jsonl"), ("samples", "samples"), ("final policy", "policy"), ("value model", "value")]
        files = [(label, str(self.run_dir / name)) for label, name in made if (self.run_dir / name).exists()]
        if kept := checkpoint.checkpoints(self.run_dir):
            files.append(("checkpoints", str(kept[-1][1].parent)))
        if (self.run_dir / "tensorboard").exists():
            files.append(("TensorBoard", str(self.run_dir / "tensorboard")))
        summary = Summary(
            status, reason, self.run_dir, len(self.history), self.seconds,
            self.history[0] if self.history else {}, self.history[-1] if self.history else {},
            best + 1 if best is not None else None, scores[best] if best is not None else None,
            self.before, after, tuple(files), self._next_commands(status),
        )  # fmt: skip
        if self.is_main:
            write_summary(summary)
        return summary

    def _next_commands(self, status: str) -> tuple[str, ...]:
        commands = []
        if status in ("interrupted", "failed") and checkpoint.checkpoints(self.run_dir):
            commands.append(f"rlctl resume {_quote(self.run_dir)}")
        if (self.run_dir / "policy").exists():
            commands.append(f"rlctl train model=hf:{_quote(self.run_dir / 'policy')}")
        if (self.run_dir / "tensorboard").exists():
            commands.append(f"tensorboard --logdir {_quote(self.run_dir.parent)}")
        return tuple(commands)


def write_summary(summary: Summary) -> None:
    """summary.json in the run folder."""
    write_json(summary.run_dir / "summary.json", {**asdict(summary), "run_dir": str(summary.run_dir)})


def environment(accelerator: Accelerator) -> dict[str, Any]:
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
        "device": str(accelerator.device),
        "processes": accelerator.num_processes,
        "mixed_precision": accelerator.mixed_precision,
        "gpus": gpus,
        "torch_threads": torch.get_num_threads(),
    }


def _sample(row: dict[str, Any]) -> Sample:
    return Sample(row["prompt"], row["response"], row["score"], row["truncated"], row["kl"])


def _without(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    """A task's metrics under their plain names, beside those of the whole run."""
    return {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix) or not name.startswith("tasks/")}


def _quote(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)


def write_json(path: Path, value: Any) -> None:
    """A value as indented JSON, whole or not at all; NaN and infinity become null."""
    aside = path.with_name(f".{path.name}.partial")
    aside.write_text(json.dumps(without_nan(value), indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    aside.replace(path)
