"""TRL's logs -> rlctl's metrics, lines and files. Knows what TRL calls its numbers; decides nothing about training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rlctl.errors import TrainingError
from rlctl.metrics import MetricsFile
from rlctl.report import Reporter, Step

SHARED = {"grad_norm": "stage/grad_norm", "num_tokens": "stage/tokens", "epoch": "progress/epoch"}
SFT_NAMES = {"loss": "sft/loss", "mean_token_accuracy": "sft/token_accuracy", "entropy": "sft/entropy"}
RM_NAMES = {"loss": "rm/loss", "accuracy": "rm/accuracy", "margin": "rm/margin", "mean_reward": "rm/score"}
SFT_HELD_OUT = {"eval_loss": "sft/held_out_loss", "eval_mean_token_accuracy": "sft/held_out_token_accuracy"}
RM_HELD_OUT = {"eval_loss": "rm/held_out_loss", "eval_accuracy": "rm/held_out_accuracy", "eval_margin": "rm/held_out_margin"}
"""TRL's name -> ours."""


def renamed(names: Mapping[str, str], logs: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of `logs` that `names` knows, under our names."""
    return {ours: float(logs[theirs]) for theirs, ours in names.items() if theirs in logs}


class Bridge(TrainerCallback):
    """Listens to a trainer: a line of metrics.jsonl and of the console at the first update, every n-th, and the last."""

    def __init__(self, names: Mapping[str, str], reporter: Reporter, run_dir: Path, count: Callable[[int], None]):
        self.names, self.reporter, self.count = {**SHARED, **names}, reporter, count
        self.file = MetricsFile(run_dir)
        self.history: list[dict[str, float]] = []
        self.measure: Callable[[], dict[str, float]] = dict
        """Measures what is held out; told with the first line and the last."""
        self._before: dict[str, float] = {}
        self._lr = 0.0
        self._mark, self._tokens = time.perf_counter(), 0.0
        self._last: tuple[int, int, dict[str, float]] | None = None
        self._is_main = True

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        # not earlier: a model that the trainer measures first is not prepared for several processes when it trains
        self._before = self.measure()
        self._mark, self._is_main = time.perf_counter(), state.is_world_process_zero

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.reporter.phase("update", state.global_step, state.max_steps)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **more: Any) -> None:
        # here the update is made and the schedule has not moved on yet
        self._lr = float(optimizer.param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        self.count(state.global_step)
        if state.global_step >= state.max_steps:
            control.should_log = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if logs is None or "loss" not in logs:  # what was held out is measured elsewhere; totals are ours
            return
        if not math.isfinite(float(logs["loss"])):
            raise TrainingError(
                f"the loss is {float(logs['loss'])} at update {state.global_step}", "the weights have diverged", "a lower optim.lr"
            )
        metrics = {**renamed(self.names, logs), "stage/lr": self._lr}
        now, tokens = time.perf_counter(), metrics["stage/tokens"]
        metrics["stage/tokens_per_second"] = (tokens - self._tokens) / (now - self._mark)
        self._mark, self._tokens = now, tokens
        if not self.history:
            metrics |= self._before
        self.history.append(metrics)
        if state.global_step >= state.max_steps:
            self._last = (state.global_step, state.max_steps, metrics)  # told when what was held out is measured
        else:
            self._tell(state.global_step, state.max_steps, metrics)

    def close(self) -> None:
        """Measure after training, and tell the last line."""
        if self._last is not None:
            step, steps, metrics = self._last
            metrics |= self.measure()
            self._tell(step, steps, metrics)

    def _tell(self, step: int, steps: int, metrics: dict[str, float]) -> None:
        if self._is_main:
            self.file.write(step, metrics)
        self.reporter.step(Step(step, steps, metrics))
