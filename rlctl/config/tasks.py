"""Several tasks in one run: each with its own prompts, reward, judges and settings of cgpo, all training one policy.

Source: Xu et al., "The Perfect Blend" (CGPO), arXiv 2409.20370, section 4.2 and Algorithm 2. A task says only where it differs from
the run. No torch, no Hydra.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, List, Optional

from rlctl.config.fields import CGPOOptimizer, bounded
from rlctl.config.judges import JudgeConfig


@dataclass  # not frozen: OmegaConf makes frozen entries of a mapping read-only, and no override could reach them
class TaskConfig:
    """One task of several. What it leaves null is as in the rest of the config."""

    data: Any = None
    """Its prompts: file:PATH, hf:NAME, or a mapping with keys of `data`."""
    reward: Any = None
    """Its reward: fn:MODULE.FUNCTION, class:MODULE.CLASS, model:PATH, calibrated:PATH, or a mapping with `kind` and the keys of
    that reward."""
    judges: Optional[List[JudgeConfig]] = None
    """Its judges, in place of the run's; [] for none."""
    optimizer: Optional[CGPOOptimizer] = None
    """crpg, crraft or codpo."""
    prompts_per_step: Optional[int] = bounded(None, ge=1)
    """Its prompts in one step: its share of the batch."""
    samples_per_prompt: Optional[int] = bounded(None, ge=1)
    """K."""
    max_new_tokens: Optional[int] = bounded(None, ge=1)
    """Longest response in tokens."""
    kl_max: Optional[float] = bounded(None, gt=0)
    """Nats of KL per response that are allowed (crpg, crraft); .inf (typed: inf): any."""
    beta: Optional[float] = bounded(None, gt=0)
    """Sharpness of the preference (codpo)."""
    lam: Optional[float] = bounded(None, ge=0)
    """Weight of the likelihood of the preferred response, per token (codpo)."""
    missing_eos_penalty: Optional[float] = bounded(None, ge=0)
    """Subtracted from the score of a response that was cut."""
    weight: float = bounded(1.0, gt=0)
    """rho, the weight of this task's gradient in the update."""


# of `algo` and of `rollout`, what a task may have of its own
ALGO = ("optimizer", "samples_per_prompt", "kl_max", "beta", "lam", "missing_eos_penalty")
ROLLOUT = ("prompts_per_step", "max_new_tokens")


def with_own(config: Any, task: TaskConfig) -> Any:
    """A run's config with a task's own prompts, reward, judges and settings in their places."""

    def own(holder: Any, names: tuple[str, ...]) -> dict[str, Any]:
        return {n: v for n in names if (v := getattr(task, n)) is not None and hasattr(holder, n)}

    return replace(
        config,
        tasks={},
        data=task.data if task.data is not None else config.data,
        reward=task.reward if task.reward is not None else config.reward,
        judges=task.judges if task.judges is not None else config.judges,
        algo=replace(config.algo, **own(config.algo, ALGO)),
        rollout=replace(config.rollout, **own(config.rollout, ROLLOUT)),
    )


def not_its_own(config: Any, task: TaskConfig) -> Iterator[str]:
    """What a task sets of the algorithm that the algorithm does not have."""
    return (name for name in ALGO if getattr(task, name) is not None and not hasattr(config.algo, name))


def task_keys() -> Iterator[str]:
    """Names of a task's keys."""
    return (f.name for f in fields(TaskConfig))
