"""What a run must remember to go on exactly where it stopped, and putting it back.

Sampling, and random numbers of the user's reward, are seeded by seed, step and process; the order of prompts by seed and epoch; so
neither generators nor a position in the data have to be kept. The policy and the value model lie in a checkpoint as ordinary
folders; the rest is `training.pt`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rlctl import algos, sharding, weights
from rlctl.assembly import Assembly
from rlctl.errors import DataError, TrainingError
from rlctl.report import Sample

FILE = "training.pt"


@dataclass(frozen=True)
class Moment:
    """The small part of a run's state, as it was when a step ended. Weights and optimizer move in updates alone."""

    step: int
    kl_coef: float
    updates_done: int
    tasks: dict[str, dict[str, Any]]


def moment(run: Assembly, step: int) -> Moment:
    """The state after `step` steps."""
    tasks = {
        t.name: {
            "scaler": asdict(t.collector.scaler),
            "reward": t.collector.reward.state(),
            "algorithm": algos.state_of(t.algorithm),
            "prompts": t.prompts.fingerprint,
        }
        for t in run.tasks
    }
    return Moment(step, run.kl.coef, run.updater.updates_done, tasks)


def writer(run: Assembly, at: Moment, told: dict[str, Any]) -> Callable[[Path], None]:
    """What writes everything a run goes on from into a folder: asked for by every process, used by the main one.

    told: what the run's recorder has to remember.
    """
    lm, tokenizer, classifier = run.collector.lm, run.collector.tokenizer, run.value.classifier if run.value is not None else None
    policy, value = sharding.gathered(lm), sharding.gathered(classifier) if classifier is not None else None
    scaler = run.accelerator.scaler
    state = {
        "moment": asdict(at),
        "told": told,
        "optimizer": run.updater.learner.optimizer_state(),
        "grad_scaler": scaler.state_dict() if scaler is not None else None,
    }

    def write(folder: Path) -> None:
        weights.save_policy(folder / "policy", lm, tokenizer, state=policy)
        if classifier is not None:
            weights.save_value(folder / "value", classifier, tokenizer, value)
        torch.save(state, folder / FILE)

    return write


@dataclass(frozen=True)
class State:
    """A checkpoint's training.pt, read."""

    path: Path
    moment: Moment
    told: dict[str, Any]
    optimizer: dict[str, Any]
    grad_scaler: dict[str, Any] | None

    @property
    def before(self) -> Sample | None:
        """The first step's response that the closing summary compares with."""
        return Sample(**self.told["before"]) if self.told.get("before") else None


def read(path: Path) -> State:
    """A checkpoint's state.

    Raises:
        TrainingError: the checkpoint has none that can be read.
    """
    try:
        raw = torch.load(path / FILE, map_location="cpu", weights_only=True)
        return State(path, Moment(**raw["moment"]), raw["told"], raw["optimizer"], raw["grad_scaler"])
    except Exception as error:  # a missing, cut or foreign file: torch, pickle and zip each have their own errors
        raise TrainingError(
            f"{path} cannot be resumed from",
            f"{FILE}: {type(error).__name__}: {error}",
            f"start a new run from its policy: rlctl train model=hf:{path / 'policy'}",
        ) from error


def check_prompts(run: Assembly, state: State) -> None:
    """Refuse prompts that are not those of the run so far: the place in them would mean nothing.

    Raises:
        DataError: they changed.
    """
    for task in run.tasks:
        then = state.moment.tasks.get(task.name, {}).get("prompts")
        if then != task.prompts.fingerprint:
            where = f"the data of task {task.name}" if task.name else "the data"
            raise DataError(
                f"{where} has changed since step {state.moment.step}",
                f"{task.config.data.path} now gives {len(task.prompts)} other prompts",
                f"put it back, or start a new run from the policy so far: rlctl train model=hf:{state.path / 'policy'}",
            )


def restore_rewards(run: Assembly, state: State) -> None:
    """Baselines and their scores, as they were."""
    for task in run.tasks:
        task.collector.reward.restore(state.moment.tasks[task.name]["reward"])


def restore(run: Assembly, state: State) -> None:
    """Weights, optimizer, schedule, KL controller and running statistics, as they were. The reference stays the policy of the
    start."""
    weights.restore(state.path / "policy", run.collector.lm)
    if run.value is not None:
        weights.restore(state.path / "value", run.value.classifier)
    # moments come from the checkpoint; rates, decays and the like from the config, where they may have been changed
    run.updater.learner.load_optimizer_state(state.optimizer)
    if state.grad_scaler is not None and run.accelerator.scaler is not None:
        run.accelerator.scaler.load_state_dict(state.grad_scaler)
    run.kl.coef, run.updater.updates_done = state.moment.kl_coef, state.moment.updates_done
    for task in run.tasks:
        algos.restore(task.algorithm, state.moment.tasks[task.name]["algorithm"])
        for name, value in state.moment.tasks[task.name]["scaler"].items():
            setattr(task.collector.scaler, name, value)
