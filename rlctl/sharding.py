"""How several processes hold the trained models: whole in each (ddp), sharded over them (fsdp), or in DeepSpeed's engines.

Sharding is torch's FSDP2, in place: the language model itself is a root, so that sampling and updates go through the same
module, and the value model another. What must be whole is made so on all processes together: those functions are called by
every process. Knows no algorithm.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

_GATHER = dcp.StateDictOptions(full_state_dict=True, cpu_offload=True)
_SPREAD = dcp.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)


@dataclass
class Learner:
    """The models as they learn, with their optimizer: one update is forward passes, `backward`, `clip`, `step`."""

    policy: nn.Module
    value: nn.Module | None
    optimizer: Any
    accelerator: Accelerator
    in_step: bool = False
    """Whether gradients travel in every backward pass, as those of sharded models do, and not in a minibatch's last alone."""
    by_name: bool = False
    """Whether the optimizer's state goes by names of weights, as it must where they are sharded, instead of by their order."""

    @contextmanager
    def gradients(self, last: bool) -> Iterator[None]:
        """Around one microbatch: gradients travel between processes once a minibatch, with its last microbatch."""
        with ExitStack() as stack:
            for module in (self.policy, self.value):
                if module is not None and not last and not self.in_step:
                    stack.enter_context(self.accelerator.no_sync(module))
            yield

    def microbatches(self, own: int) -> int:
        """How many microbatches this process runs, of which `own` hold rows; called by every process.

        Equally many everywhere: wrappers talk to the other processes in forward passes too, of two models in turn. A process with
        fewer would only wait for the others.
        """
        if self.accelerator.num_processes == 1:
            return own
        return int(self.accelerator.gather(torch.tensor([own], device=self.accelerator.device)).max())

    def backward(self, loss: Tensor) -> None:
        """Add to the gradients. A loss is a share of the global mean, and processes average: hence the factor."""
        self.accelerator.backward(loss * self.accelerator.num_processes)

    def clip(self, modules: dict[str, nn.Module], limit: float) -> dict[str, float]:
        """Scale each module's gradient down to the limit, and give the norms from before."""
        self.accelerator.unscale_gradients()
        norms = {}
        for name, module in modules.items():
            norm = torch.nn.utils.clip_grad_norm_(module.parameters(), limit)
            norms[name] = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
        return norms

    @property
    def scale(self) -> float | None:
        """The factor on the loss that keeps fp16's gradients from vanishing; None without one."""
        return float(self.accelerator.scaler.get_scale()) if self.accelerator.scaler is not None else None

    def step(self) -> None:
        """One optimizer update; under fp16 none where a gradient overflowed, and the scale is lowered."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def optimizer_state(self) -> dict[str, Any]:
        """The optimizer's state, for `load_optimizer_state`; called by every process, whole on the main one."""
        if not self.by_name:
            return self.optimizer.state_dict()
        return dcp.get_optimizer_state_dict(self._both(), self.optimizer.optimizer, options=_GATHER)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Take in the moments of such a state; rates, decays and the like stay as they are. Called by every process; where the
        models are sharded, the main process's state counts."""
        inner = self.optimizer.optimizer
        if not self.by_name:
            inner.load_state_dict({**state, "param_groups": inner.state_dict()["param_groups"]})
            return
        kept = [{k: v for k, v in group.items() if k != "params"} for group in inner.param_groups]
        alone = self.accelerator.num_processes == 1
        own = state if self.accelerator.is_main_process else {}
        dcp.set_optimizer_state_dict(self._both(), inner, own, options=_GATHER if alone else _SPREAD)
        for group, rates in zip(inner.param_groups, kept, strict=True):
            group.update(rates)

    def _both(self) -> nn.Module:
        """The trained models under one roof: the optimizer is over both."""
        return nn.ModuleDict({n: m for n, m in (("policy", self.policy), ("value", self.value)) if m is not None})


def leave(accelerator: Accelerator) -> None:
    """End trackers, and part from the other processes."""
    if accelerator.num_processes > 1:
        # gloo's thread needs Python's lock to drop the last barrier; DDP's wrappers, when they go, join that thread with the lock held
        time.sleep(0.3)
    accelerator.end_training()


def agreed(word: Any) -> Any:
    """What the main process says; asked by every process."""
    said = [word]
    broadcast_object_list(said)
    return said[0]


def shard(root: nn.Module, precision: str) -> None:
    """Shard a module in place over all processes: each block of the transformer, and the rest, is gathered when it is used.

    In bf16 weights are gathered as such and gradients reduced in float32; the shards and the optimizer's state are float32.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if precision == "bf16" else MixedPrecisionPolicy()
    blocks = {name for module in root.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    for module in list(root.modules()):
        if type(module).__name__ in blocks:
            fully_shard(module, mp_policy=policy)
    fully_shard(root, mp_policy=policy)


def roots(module: nn.Module) -> list[FSDPModule]:
    """The sharded modules inside one, itself included; none if it is whole."""
    return [m for m in module.modules() if isinstance(m, FSDPModule)]


@contextmanager
def whole(module: nn.Module) -> Iterator[None]:
    """All weights on every process meanwhile: inside, passes without gradient talk to nobody, and each process may do its own number.

    Entered and left by every process together. Nothing happens to a module that is not sharded.
    """
    parts = roots(module)
    with torch.no_grad():
        for part in parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True, recurse=False)


def gathered(module: nn.Module) -> dict[str, Tensor] | None:
    """`full_state` of a sharded model, for whoever writes it; None of one that can be written as it is. Called by every process."""
    return full_state(module) if roots(module) else None


def full_state(module: nn.Module) -> dict[str, Tensor]:
    """Every weight of a model under its own name, shared ones once, on the CPU of the main process; elsewhere nothing.

    Called by every process. Of a model that is not sharded, every process gets its state dict.
    """
    if not roots(module):
        return module.state_dict()
    own = {name for name, _ in [*module.named_parameters(), *module.named_buffers()]}
    return {k: v for k, v in dcp.get_model_state_dict(module, options=_GATHER).items() if k in own}


def plain_class(module: nn.Module) -> Any:
    """What a model's class was before it was sharded."""
    return next(c for c in type(module).__mro__ if not issubclass(c, FSDPModule))


def reads(module: nn.Module) -> bool:
    """Whether this process's state counts in `load_full_state`: of a sharded model the main process's alone."""
    return not roots(module) or torch.distributed.get_rank() == 0


def load_full_state(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Take in what `full_state` gave. A sharded model is loaded by every process together, from what the main process has."""
    if roots(module):
        dcp.set_model_state_dict(module, state, options=_SPREAD)
    else:
        module.load_state_dict(state)
