"""A run, put together: what the loop works with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator

from rlctl.algos import Algorithm
from rlctl.collect import Collector
from rlctl.config.schema import Config
from rlctl.control import KLController
from rlctl.data import Prompt, Prompts
from rlctl.models import ValueModel
from rlctl.report import Plan, Reporter
from rlctl.task import Task
from rlctl.update import Updater


@dataclass
class Clock:
    """Seconds spent in each phase of the current step; phases may overlap."""

    reporter: Reporter
    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)
    failed: str | None = None
    """The phase that an error came out of."""

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.reporter.phase(phase)
        start = time.perf_counter()
        try:
            yield
        except BaseException:
            self.failed = self.failed or phase
            raise
        if self.device.type == "cuda":  # kernels run behind; without this their time shows in a later phase
            torch.cuda.synchronize(self.device)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The seconds of each phase and of the whole since the last call, as metrics."""
        taken, now = self.seconds, time.perf_counter()
        whole, self.began, self.seconds = now - self.began, now, {}
        return {**{f"time/{phase}": s for phase, s in taken.items()}, "time/step": whole}


@dataclass
class Assembly:
    """A run, ready for its first step."""

    config: Config
    accelerator: Accelerator
    tasks: list[Task]
    """One, or each of the config's tasks; they share policy, reference and tokenizer."""
    updater: Updater
    kl: KLController
    clock: Clock
    plan: Plan

    def share(self, prompts: list[Prompt]) -> list[Prompt]:
        """This process's prompts of a step's; all responses to one prompt stay together."""
        size = len(prompts) // self.accelerator.num_processes
        start = size * self.accelerator.process_index
        return prompts[start : start + size]

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm whose loss is taken."""
        return self.tasks[0].algorithm

    @property
    def collector(self) -> Collector:
        """The first task's."""
        return self.tasks[0].collector

    @property
    def prompts(self) -> Prompts:
        """The first task's."""
        return self.tasks[0].prompts

    @property
    def value(self) -> ValueModel | None:
        """The value model itself, without wrappers."""
        return self.collector.value
