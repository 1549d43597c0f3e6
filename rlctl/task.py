"""One stream of prompts with what samples and scores it. A run has one, or several that train the same policy."""

from __future__ import annotations

from dataclasses import dataclass

from rlctl.algos import Algorithm
from rlctl.collect import Collected, Collector
from rlctl.config.schema import Config
from rlctl.data import Prompts
from rlctl.metrics import part_metrics, rollout_metrics, verdict_metrics


@dataclass
class Task:
    """Its config is the run's with its own prompts, reward, judges and settings in their places."""

    name: str
    """As in `tasks`; empty for the only one of a run without tasks."""
    config: Config
    prompts: Prompts
    algorithm: Algorithm
    collector: Collector
    weight: float = 1.0
    """rho: factor on its gradient."""

    @property
    def prefix(self) -> str:
        """What stands before the names of its metrics."""
        return f"tasks/{self.name}/" if self.name else ""


@dataclass(frozen=True)
class Taken:
    """What one task brought in one step."""

    task: Task
    collected: Collected
    metrics: dict[str, float]
    """Without the task's prefix."""

    def named(self) -> dict[str, float]:
        """The metrics under the task's prefix."""
        return {f"{self.task.prefix}{name}": value for name, value in self.metrics.items()}


def measure(task: Task, collected: Collected, kl_coef: float) -> Taken:
    """What a task's rollout shows, over all devices."""
    total = task.collector.total
    metrics = rollout_metrics(collected.rollout, kl_coef, task.config.algo.kl_estimator, total)
    metrics |= part_metrics(collected.parts, total) | verdict_metrics(collected.verdicts, total)
    return Taken(task, collected, metrics)
