"""Hands the models that learn to the processes, by launch.strategy."""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import Accelerator
from torch import nn

from rlctl import sharding
from rlctl.config.schema import Config, Strategy
from rlctl.engines import engines
from rlctl.errors import ConfigError
from rlctl.lora import is_adapted
from rlctl.models import Policy, ValueModel
from rlctl.sharding import Learner

Build = Callable[[nn.Module, nn.Module | None], torch.optim.Optimizer]


def distribute(
    config: Config, accelerator: Accelerator, policy: Policy, value: ValueModel | None, reference: Policy | None, build: Build
) -> Learner:
    """Hand the models to their devices by launch.strategy; `build` makes the optimizer, once the parameters are what they stay.

    Raises:
        ConfigError: an adapter, whose frozen weights are shared between the models, under another strategy than ddp.
    """
    strategy = config.launch.strategy if accelerator.num_processes > 1 else Strategy.ddp
    if strategy in (Strategy.fsdp, Strategy.deepspeed) and is_adapted(policy):
        why = "policy, reference and value model share the frozen weights of one base, and would each get a copy"
        raise ConfigError(f"launch.strategy={strategy} cannot be used with a LoRA adapter", why, "launch.strategy=ddp")
    if strategy is Strategy.fsdp:
        for root in (policy.lm, value, *([reference.lm] if reference is not None else [])):
            if root is not None:
                sharding.shard(root, accelerator.mixed_precision)
        return Learner(policy, value, accelerator.prepare(build(policy, value)), accelerator, in_step=True, by_name=True)
    if strategy is Strategy.deepspeed:
        return engines(config, accelerator, [m for m in (policy, value) if m is not None], build(policy, value))
    wrapped = [accelerator.prepare(m) for m in (policy, value) if m is not None]
    optimizer = accelerator.prepare(build(policy, value))
    by_name = config.launch.strategy is Strategy.fsdp
    return Learner(wrapped[0], wrapped[1] if value is not None else None, optimizer, accelerator, by_name=by_name)
