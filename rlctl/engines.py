"""launch.strategy=deepspeed: the trained models in DeepSpeed's engines, one each, so that each gradient is clipped by its own norm.

ZeRO of stage 1 or 2: every process has the whole weights, so sampling, scoring and writing are as without it. Weights stay in the
type they are in; autocast is ours. Imports deepspeed only when it is asked for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from rlctl.config.schema import Config
from rlctl.rollout import Forward
from rlctl.sharding import Learner


class Engine(nn.Module):
    """A model in its engine. Its outputs are cut off from it, and `backward` gives each its gradient: an engine takes its own
    backward pass, and one loss is of two models."""

    def __init__(self, engine: Any, accelerator: Accelerator):
        super().__init__()
        self.engine = engine
        self._autocast = accelerator.autocast
        self._cuts: list[tuple[Tensor, Tensor]] = []

    def forward(self, *inputs: Any) -> Forward | Tensor:
        """What the model gives."""
        with self._autocast():
            out = self.engine(*inputs)
        if isinstance(out, Tensor):
            return self._cut(out)
        return replace(out, **{n: self._cut(t) for n in ("logprobs", "entropy") if (t := getattr(out, n)) is not None})

    def _cut(self, out: Tensor) -> Tensor:
        leaf = out.detach().requires_grad_()
        self._cuts.append((out, leaf))
        return leaf

    def backward(self) -> None:
        """Pass on the gradients that a loss has left at the outputs."""
        given = [(out, leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)) for out, leaf in self._cuts]
        self._cuts = []
        if given:
            self.engine.backward(torch.stack([(out * grad).sum() for out, grad in given]).sum())


@dataclass
class _Optimizers:
    """The engines' optimizers as one."""

    engines: list[Engine]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of all."""
        return [group for e in self.engines for group in e.engine.optimizer.param_groups]

    def step(self) -> None:
        """Nothing: an engine steps where it clips."""

    def zero_grad(self) -> None:
        """Drop what gradients there are."""
        for e in self.engines:
            e.engine.optimizer.zero_grad()


class EngineLearner(Learner):
    """A Learner whose models are `Engine`s."""

    @contextmanager
    def gradients(self, last: bool) -> Iterator[None]:
        for engine in self.optimizer.engines:
            engine.engine.set_gradient_accumulation_boundary(last)
        yield

    def backward(self, loss: Tensor) -> None:
        (loss * self.accelerator.num_processes).backward()
        for engine in self.optimizer.engines:
            engine.backward()

    def optimizer_state(self) -> dict[str, Any]:
        """Nothing: a checkpoint has the weights alone."""
        return {}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """For a run that ends with the weights of a checkpoint; one that would go on is refused by `resume`."""
        for engine in self.optimizer.engines:
            engine.engine.optimizer.refresh_fp32_params()

    def clip(self, modules: dict[str, nn.Module], limit: float) -> dict[str, float]:
        """Clips, and takes the update too; an engine whose gradient is not finite takes none, nor do those after it."""
        norms = {}
        for name, module in reversed(modules.items()):
            assert isinstance(module, Engine)
            module.engine.step()
            norms[name] = float(module.engine.get_global_grad_norm())
            if not math.isfinite(norms[name]):
                break
        return norms


def engines(config: Config, accelerator: Accelerator, models: list[nn.Module], optimizer: torch.optim.Optimizer) -> EngineLearner:
    """The policy, and the value model if there is one, in engines; of an optimizer with a group for each."""
    if accelerator.device.type == "cpu":  # of itself it would take a GPU that is not to be used
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    settings = {
        "train_micro_batch_size_per_gpu": config.optim.microbatch_size,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optim.max_grad_norm,
        "zero_optimization": {"stage": config.launch.zero_stage},
        "zero_allow_untested_optimizer": True,
    }
    made = []
    for model, group in zip(models, optimizer.param_groups, strict=True):
        engine, *_ = deepspeed.initialize(model=model, optimizer=type(optimizer)([group]), config=settings)
        made.append(Engine(engine, accelerator))
    return EngineLearner(made[0], made[1] if len(made) > 1 else None, _Optimizers(made), accelerator, in_step=True)
