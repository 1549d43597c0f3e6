"""The devices a process works on: which, in what precision, and how it talks to the others. Knows no model.

What accelerate launch has told through the environment is in the config by now (see `place`); accelerate itself is not to
act on it a second time.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, ProjectConfiguration
from accelerate.utils.imports import is_tensorboard_available

from rlctl.config.schema import Config, Device, MixedPrecision
from rlctl.errors import ConfigError

_TOLD = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS")


def check_device(device: Device, world: int) -> None:
    """Refuse a device that is not there for that many processes.

    Raises:
        ConfigError: it is not.
    """
    if device is Device.cuda and not torch.cuda.is_available():
        raise ConfigError(
            "launch.device=cuda: torch sees no CUDA GPU", f"torch {torch.__version__}", "launch=cpu, or install torch with CUDA"
        )
    if device is Device.mps and not torch.backends.mps.is_available():
        raise ConfigError("launch.device=mps: torch sees no Apple GPU", hint="launch=cpu")
    if device is Device.mps and world > 1:
        raise ConfigError(f"launch.device=mps: {world} processes cannot share one Apple GPU", hint="launch.processes=1, or launch=cpu")


def open_accelerator(config: Config) -> Accelerator:
    """The devices, as asked.

    Raises:
        ConfigError: a device, precision or tracker that is not there.
    """
    device, tracker, world = config.launch.device, config.run.tracker, int(os.environ.get("WORLD_SIZE", "1"))
    check_device(device, world)
    # several processes meet over NCCL or, on CPUs, gloo; accelerate takes the second only where it is told that there is no GPU
    on_cpu = device is Device.cpu or (device is Device.auto and world > 1 and not torch.cuda.is_available())
    if tracker == "auto":
        tracker = "tensorboard" if is_tensorboard_available() else "none"
    for name in _TOLD:
        os.environ.pop(name, None)
    try:
        accelerator = Accelerator(
            cpu=on_cpu,
            mixed_precision=str(precision(config.launch.mixed_precision, on_cpu)),
            log_with=None if tracker == "none" else tracker,
            project_config=ProjectConfiguration(project_dir=config.run.dir, logging_dir=str(Path(config.run.dir) / "tensorboard")),
            kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],  # ours never change
        )
        if tracker != "none" and not accelerator.log_with:
            raise ValueError(f"{tracker} is not installed")
    except ValueError as error:
        if tracker == "none":
            raise
        hint = f"pip install {tracker}, or run.tracker=none"
        raise ConfigError(f"run.tracker={tracker} cannot be used", str(error), hint) from error
    if accelerator.num_processes != world:
        raise ConfigError(f"of {world} processes accelerate sees {accelerator.num_processes}", f"on {accelerator.device}", "launch=cpu")
    return accelerator


def precision(asked: MixedPrecision, on_cpu: bool) -> MixedPrecision:
    """What autocast computes in: as asked, or by the hardware.

    Raises:
        ConfigError: fp16 without a CUDA GPU.
    """
    cuda = not on_cpu and torch.cuda.is_available()
    if asked is MixedPrecision.fp16 and not cuda:
        raise ConfigError(
            "launch.mixed_precision=fp16 needs a CUDA GPU",
            "on a CPU accelerate does not scale the loss, and small gradients would become 0",
            "launch.mixed_precision=bf16, or no",
        )
    if asked is not MixedPrecision.auto:
        return asked
    if not cuda:
        return MixedPrecision.no
    # emulated bf16 is slower than float32; tensor cores came with compute capability 7
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return MixedPrecision.bf16
    return MixedPrecision.fp16 if torch.cuda.get_device_capability() >= (7, 0) else MixedPrecision.no
