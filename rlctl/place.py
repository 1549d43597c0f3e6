"""Where a run stands: alone, one of several processes that a launcher started, one of several machines. Fills in what
`launch` leaves open. Reads the environment and counts GPUs; imports torch only where something suggests that there are any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlctl.config import accelerate_file, compose
from rlctl.config.fields import Dtype
from rlctl.config.schema import Config, Device, LaunchConfig, MixedPrecision, Strategy
from rlctl.errors import ConfigError

DEFAULT_PORT = 29500
Environment = Mapping[str, str]


@dataclass(frozen=True)
class Place:
    """This process among those that a launcher of the user's started."""

    launcher: str
    """What to call it in messages."""
    rank: int
    world: int
    """Processes on all machines."""
    local_world: int
    """Processes on this machine."""


def started_by(env: Environment) -> Place | None:
    """The launcher that started this process (torchrun, accelerate launch, or one that sets the same variables); None: a user did.

    Raises:
        ConfigError: one of several, without the variables that they find each other by.
    """
    accelerate = "ACCELERATE_MIXED_PRECISION" in env
    world = int(env.get("WORLD_SIZE", "1"))
    if "RANK" not in env or (world == 1 and "LOCAL_RANK" not in env):
        # for one process, and for several on a CPU where it finds no mpirun, accelerate launch starts one and sets no rank
        return Place("accelerate launch", 0, 1, 1) if accelerate else None
    if missing := [name for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in env]:
        raise ConfigError(
            f"started as one of {world} processes (RANK and WORLD_SIZE are set), but {', '.join(missing)} is not",
            "they are what processes find each other by",
            "torchrun sets them all; or start one process a machine with RANK and WORLD_SIZE unset: "
            "rlctl train launch.machines=N launch.machine_rank=K launch.main_address=HOST ...",
        )
    name = "accelerate launch" if accelerate else "torchrun" if "TORCHELASTIC_RUN_ID" in env else "a launcher (WORLD_SIZE is set)"
    return Place(name, int(env["RANK"]), world, int(env.get("LOCAL_WORLD_SIZE", world)))


def machine_rank(launch: LaunchConfig, env: Environment) -> int:
    """Which of the machines this one is."""
    if launch.machine_rank is not None:
        return launch.machine_rank
    return int(env.get("SLURM_NODEID", "0")) if (launch.machines or 1) > 1 else 0


def is_other_machine(argv: list[str], env: Environment) -> bool:
    """Whether the command line, or SLURM, says that this is not machine 0; known before anything is composed."""
    given = dict(a.lstrip("+").split("=", 1) for a in argv if a.startswith(("launch.machine", "+launch.machine")) and "=" in a)
    rank = given.get("launch.machine_rank")
    if rank is None and given.get("launch.machines", "1") != "1":
        rank = env.get("SLURM_NODEID")
    return rank not in (None, "0", "null")


def resolve(config: Config, place: Place | None, env: Environment) -> Config:
    """The config with nothing of `launch` left open but mixed_precision=auto and device=auto, which the devices decide.

    Raises:
        ConfigError: keys, file and launcher contradict each other, or this machine has fewer GPUs than asked for.
    """
    asked = config.launch
    said = accelerate_file.read(asked.accelerate_config) if asked.accelerate_config else {}
    launch = _filled(asked, {**(_accelerate_words(env, asked) if place else {}), **said})
    stage = 2 if launch.zero_stage is None else launch.zero_stage
    launch = replace(launch, strategy=launch.strategy or Strategy.ddp, main_port=launch.main_port or DEFAULT_PORT, zero_stage=stage)
    launch = _among(launch, place) if place else _of_machines(launch, env)
    if launch.processes is None:
        launch = replace(launch, processes=max(1, visible_gpus(launch.device, env)))
    elif launch.processes > 1 and 0 < (gpus := visible_gpus(launch.device, env)) < launch.processes:
        shown = f"this machine shows {gpus} GPU" + ("s" if gpus > 1 else "")
        raise ConfigError(f"launch.processes={launch.processes}: {shown}", hint=f"launch.processes={gpus}, or launch=cpu")
    return replace(config, launch=launch)


def ready(config: Config, place: Place | None, env: Environment, sweep: bool = False) -> Config:
    """A config of which nothing about the launch is left open, and that has no problem.

    Raises:
        ConfigError: it has.
    """
    compose.check(config)
    config = resolve(config, place, env)
    compose.check(config)
    check(config, sweep, env)
    return config


def check(config: Config, sweep: bool, env: Environment) -> None:
    """What a resolved launch cannot do together.

    Raises:
        ConfigError: one of these.
    """
    launch, dtype = config.launch, config.model.dtype
    several = (launch.processes or 1) * (launch.machines or 1) > 1
    if sweep and (launch.machines or 1) > 1 and "SUBMITIT_EXECUTOR" not in env:
        raise ConfigError(
            "a sweep over several machines needs something that starts its members on them",
            f"launch.machines={launch.machines}",
            "rlctl train -m hydra/launcher=submitit_slurm hydra.launcher.nodes=N ... (pip install hydra-submitit-launcher)",
        )
    if dtype is Dtype.float16:
        raise ConfigError(
            "model.dtype=float16 cannot be trained: small updates are lost in it, and its gradients cannot be unscaled",
            hint="launch.mixed_precision=fp16 computes in float16 and keeps the weights in float32",
        )
    if launch.mixed_precision is MixedPrecision.fp16 and dtype is Dtype.bfloat16:
        raise ConfigError("launch.mixed_precision=fp16 needs model.dtype=float32", "model.dtype=bfloat16", "launch.mixed_precision=bf16")
    if launch.mixed_precision is MixedPrecision.fp16 and several and launch.strategy is not Strategy.ddp:
        raise ConfigError(f"launch.mixed_precision=fp16 is for launch.strategy=ddp, not {launch.strategy}", hint="bf16, or no")
    if launch.strategy is Strategy.deepspeed and find_spec("deepspeed") is None:
        raise ConfigError("launch.strategy=deepspeed: deepspeed is not installed", hint="pip install deepspeed, or launch=fsdp")


def _filled(asked: LaunchConfig, said: dict[str, Any]) -> LaunchConfig:
    """What is not asked for by a key, as said elsewhere."""
    free = (None, Device.auto, MixedPrecision.auto)
    return replace(asked, **{k: v for k, v in said.items() if getattr(asked, k) in free})


# what accelerate launch may tell its processes, with the values that rlctl does as they say or that change nothing here
_UNDERSTOOD: dict[str, tuple[str, ...]] = {
    "ACCELERATE_MIXED_PRECISION": ("no", "bf16", "fp16"),
    "ACCELERATE_DYNAMO_BACKEND": ("no",),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("1", "auto"),
    "ACCELERATE_USE_MEGATRON_LM": ("false",),
    "ACCELERATE_USE_PARALLELISM_CONFIG": ("false",),
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": ("1", "2"),
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": ("none",),
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": ("none",),
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": ("none",),
    "FSDP_OFFLOAD_PARAMS": ("false",),
    "FSDP_ACTIVATION_CHECKPOINTING": ("false",),
}


def _accelerate_words(env: Environment, asked: LaunchConfig) -> dict[str, Any]:
    """What accelerate launch tells its processes, as keys of `launch`."""
    for name, understood in _UNDERSTOOD.items():
        if env.get(name, "").lower() not in ("", *understood):
            raise ConfigError(
                f"accelerate launch says {name}={env[name]}, which rlctl cannot do",
                f"it can do: {', '.join(understood)}",
                "another accelerate config, or rlctl train without accelerate launch",
            )
    said: dict[str, Any] = {}
    if precision := env.get("ACCELERATE_MIXED_PRECISION"):
        said["mixed_precision"] = MixedPrecision(precision.lower())
    if stage := env.get("ACCELERATE_DEEPSPEED_ZERO_STAGE"):
        said["zero_stage"] = int(stage)
    if env.get("ACCELERATE_USE_CPU", "").lower() == "true":
        said["device"] = Device.cpu
    for word, strategy in (("ACCELERATE_USE_FSDP", Strategy.fsdp), ("ACCELERATE_USE_DEEPSPEED", Strategy.deepspeed)):
        if env.get(word, "").lower() == "true":
            if asked.strategy not in (None, strategy):
                raise ConfigError(f"launch.strategy={asked.strategy}, but accelerate launch says {strategy}", hint="leave one of them out")
            said["strategy"] = strategy
    if said.get("strategy") is Strategy.fsdp and env.get("FSDP_VERSION", "1") != "2":
        raise ConfigError("accelerate launch says FSDP of version 1", "rlctl shards with FSDP2", "fsdp_version: 2 in its config file")
    return said


def _among(launch: LaunchConfig, place: Place) -> LaunchConfig:
    """As many processes and machines as the launcher started."""
    processes, machines = place.local_world, place.world // place.local_world
    started = f"{place.launcher} started {processes} process{'es' if processes > 1 else ''} on this machine"
    if place.launcher == "accelerate launch" and place.world == 1 and (launch.processes or 1) > 1:
        started += " (on a CPU it starts one, whatever its num_processes)"
    runs = f"{place.launcher} runs on {machines} machine{'s' if machines > 1 else ''}"
    for key, own, value, fact in (
        ("processes", launch.processes, processes, started), ("machines", launch.machines, machines, runs),
    ):  # fmt: skip
        if own not in (None, value):
            raise ConfigError(
                f"launch.{key}={own}, but {fact}",
                "where a launcher started the processes, it decides",
                f"leave launch.{key} out, or the launcher: rlctl train launch.{key}={own} ...",
            )
    return replace(launch, processes=processes, machines=machines, machine_rank=place.rank // processes)


def _of_machines(launch: LaunchConfig, env: Environment) -> LaunchConfig:
    machines, rank = launch.machines or 1, machine_rank(launch, env)
    address = launch.main_address or (first_host(env["SLURM_JOB_NODELIST"]) if env.get("SLURM_JOB_NODELIST") else None)
    if rank >= machines:
        raise ConfigError(f"launch.machine_rank={rank} is not one of launch.machines={machines}", hint=f"0 to {machines - 1}")
    if machines > 1 and address is None:
        raise ConfigError(
            f"launch.machines={machines} needs launch.main_address, the address of machine 0",
            hint="launch.main_address=HOST on every machine",
        )
    return replace(launch, machines=machines, machine_rank=rank, main_address=address)


def first_host(nodes: str) -> str:
    """The first host of SLURM's list of nodes.

    >>> first_host("gpu[03-05,9],login"), first_host("a,b"), first_host("rack1-node[7,9]")
    ('gpu03', 'a', 'rack1-node7')
    """
    match = re.match(r"([^\[,]*)(?:\[([^\],-]+))?", nodes)
    return f"{match[1]}{match[2] or ''}" if match else nodes


def visible_gpus(device: Device, env: Environment) -> int:
    """CUDA GPUs that a run on this device could use; torch is asked only where there is something like one."""
    if device in (Device.cpu, Device.mps) or env.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles"):
        return 0
    signs = [*Path("/dev").glob("nvidia[0-9]*"), *(p for p in (Path("/dev/kfd"), Path("/dev/dxg")) if p.exists())]
    if sys.platform == "linux" and not signs:
        return 0
    import torch

    return torch.cuda.device_count()
