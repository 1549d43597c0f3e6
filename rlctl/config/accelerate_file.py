"""A user's own accelerate config file (`accelerate config`), read as defaults for the keys of `launch`. No accelerate, no torch.

Knows which of its entries rlctl does as they say, and which values of the others change nothing; the rest is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlctl.config.schema import Device, MixedPrecision, Strategy
from rlctl.errors import ConfigError

_STRATEGIES = {
    "NO": None, "MULTI_CPU": Strategy.ddp, "MULTI_GPU": Strategy.ddp, "FSDP": Strategy.fsdp, "DEEPSPEED": Strategy.deepspeed,
}  # fmt: skip
# entries that change nothing here at these values; None stands for any value
_NEUTRAL: dict[str, tuple[Any, ...] | None] = {
    "compute_environment": ("LOCAL_MACHINE",),
    "debug": (False,),
    "downcast_bf16": ("no", False),
    "enable_cpu_affinity": (False,),
    "gpu_ids": ("all", None),
    "main_training_function": None,
    "rdzv_backend": ("static",),
    "same_network": None,
    "tpu_env": ([],),
    "tpu_use_cluster": (False,),
    "tpu_use_sudo": (False,),
    "dynamo_config": ({}, {"dynamo_backend": "NO"}, {"dynamo_backend": "no"}),
    "mpirun_config": ({},),
    "fp8_config": ({},),
    "ipex_config": ({}, {"ipex": False}),
    "megatron_lm_config": ({},),
    "parallelism_config": ({},),
    "num_cpu_threads_per_process": None,
    "fsdp_config.fsdp_version": (2,),
    "fsdp_config.fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP",),
    "fsdp_config.fsdp_reshard_after_forward": (True, "true"),
    "fsdp_config.fsdp_offload_params": (False,),
    "fsdp_config.fsdp_activation_checkpointing": (False,),
    "fsdp_config.fsdp_cpu_ram_efficient_loading": None,
    "fsdp_config.fsdp_state_dict_type": None,
    "fsdp_config.fsdp_use_orig_params": None,
    "fsdp_config.fsdp_sync_module_states": None,
    "deepspeed_config.gradient_accumulation_steps": (1,),
    "deepspeed_config.offload_optimizer_device": ("none", None),
    "deepspeed_config.offload_param_device": ("none", None),
    "deepspeed_config.zero3_init_flag": (False,),
    "deepspeed_config.zero3_save_16bit_model": (False,),
    "deepspeed_config.deepspeed_multinode_launcher": ("standard",),
}
_INSTEAD = {
    "gpu_ids": "CUDA_VISIBLE_DEVICES chooses GPUs",
    "fsdp_config.fsdp_version": "launch.strategy=fsdp is FSDP2",
    "fsdp_config.fsdp_activation_checkpointing": "model.gradient_checkpointing=true",
    "deepspeed_config.gradient_accumulation_steps": "optim.microbatch_size decides how a minibatch is cut",
}


def read(path: str) -> dict[str, Any]:
    """Keys of `launch` -> what the file says of them.

    Raises:
        ConfigError: no such file, no YAML, or entries that rlctl cannot do as they say: all of them named.
    """
    if not Path(path).is_file():
        raise ConfigError(f"no accelerate config at {path}", f"there is no such file (looked from {Path.cwd()})", "accelerate config")
    try:
        raw = OmegaConf.to_container(OmegaConf.load(path))
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"the accelerate config {path} cannot be read", str(error)) from error
    if not isinstance(raw, dict):
        raise ConfigError(f"the accelerate config {path} holds no keys")
    entries = {str(k): v for k, v in raw.items()}
    keys, wrong = _taken(entries), list(_refused(entries))
    if wrong:
        what = f"the accelerate config {path} asks for what rlctl cannot do"
        raise ConfigError(what, "\n".join(wrong), "take the entries out, or leave launch.accelerate_config out")
    return keys


def _taken(entries: dict[str, Any]) -> dict[str, Any]:
    """The entries that have a key of `launch`; those are taken off."""
    kind, machines = entries.pop("distributed_type", "NO"), entries.pop("num_machines", 1)
    total, precision = entries.pop("num_processes", None), entries.pop("mixed_precision", None)
    keys: dict[str, Any] = {"strategy": _STRATEGIES.get(str(kind)), "machines": machines}
    if str(kind) not in _STRATEGIES:
        entries["distributed_type"] = kind
    if isinstance(total, int) and isinstance(machines, int) and machines > 0 and total > 0 and total % machines == 0:
        keys["processes"] = total // machines
    elif total is not None:
        entries["num_processes"] = total
    # YAML reads a bare no as false
    if (word := "no" if precision is False else precision) in ("no", "bf16", "fp16"):
        keys["mixed_precision"] = MixedPrecision(str(word))
    elif precision is not None:
        entries["mixed_precision"] = precision
    if entries.pop("use_cpu", False) or kind == "MULTI_CPU":
        keys["device"] = Device.cpu
    for name, key in (("machine_rank", "machine_rank"), ("main_process_ip", "main_address"), ("main_process_port", "main_port")):
        keys[key] = entries.pop(name, None)
    deepspeed = entries.get("deepspeed_config")
    if isinstance(deepspeed, dict) and deepspeed.get("zero_stage") in (1, 2):
        keys["zero_stage"] = deepspeed.pop("zero_stage")
    return {k: v for k, v in keys.items() if v is not None}


def _refused(entries: dict[str, Any]) -> Iterator[str]:
    flat: dict[str, Any] = {}
    for name, value in entries.items():
        if name in ("fsdp_config", "deepspeed_config") and isinstance(value, dict):
            flat |= {f"{name}.{k}": v for k, v in value.items()}
        else:
            flat[name] = value
    for name, value in flat.items():
        if name in _NEUTRAL and (_NEUTRAL[name] is None or value in (_NEUTRAL[name] or ())):
            continue
        instead = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
        yield f"{name}: {value}{instead}"
