"""LoRA through peft: one frozen base, and beside it adapters of policy, reference and value model, each in a view of its own.

A view is a model with modules, buffers and trainable weights of its own whose frozen weights *are* those of the model it was
taken from. No adapter is ever switched: a switched one would be the wrong one when gradient checkpointing runs the forward
pass again, and what several processes average would depend on it. Knows no algorithm, no run folder and no reward.
"""

from __future__ import annotations

import copy
import ctypes
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlctl.config.schema import ModelConfig
from rlctl.errors import ConfigError, ModelError

_M_MMAP_THRESHOLD = -3
"""From glibc's malloc.h."""
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""peft's name of the model inside its wrapper; we put adapters into the model itself and add it in files only."""
_NOT_TRAINED_HERE = ("alora_invocation_tokens", "arrow_config", "monteclora_config", "velora_config")
"""Kinds of LoRA whose forward pass depends on more than the adapter and the tokens before."""


@dataclass(frozen=True)
class Adapter:
    """An adapter that is asked for, before any weights are read."""

    base: str
    """Folder or hub id of the frozen weights."""
    revision: str | None
    """Of the base."""
    config: Any
    """peft's LoraConfig."""
    folder: Path | None
    """Where its trained weights lie; None: a new one, which adds nothing yet."""

    @property
    def tokenizer(self) -> str:
        """Where its tokenizer lies: with it, or with its base."""
        own = self.folder is not None and (self.folder / "tokenizer_config.json").exists()
        return str(self.folder) if own else self.base


def open_adapter(config: ModelConfig, path: str, found: str | None) -> Adapter | None:
    """The adapter that model.path is (`found`: its adapter_config.json) or model.lora.r asks for; None without either.

    Raises:
        ConfigError: peft is missing, or keys that do not go together.
        ModelError: an adapter that cannot be trained on here.
    """
    if not found and not config.lora.r:
        if config.lora.merge:
            raise ConfigError("model.lora.merge=true: there is no adapter to merge", f"{config.path} is a whole model", "model.lora.r=16")
        return None
    if find_spec("peft") is None:
        asked = f"the policy {config.path} is an adapter, which" if found else f"model.lora.r={config.lora.r}"
        raise ConfigError(f"{asked} needs the library peft", "it is not installed", 'pip install peft, or pip install "rlctl[lora]"')
    if found and config.lora.r:
        raise ConfigError(
            f"model.lora.r={config.lora.r} asks for a new adapter, and the policy {config.path} is one already",
            "it is trained on as it is, with its own rank",
            "leave model.lora.r out, or merge the adapter into its base and start from that",
        )
    return _given(config, path, found) if found else _new(config, path)


def _new(config: ModelConfig, path: str) -> Adapter:
    from peft import LoraConfig, TaskType

    asked = config.lora
    targets = list(asked.target_modules) if asked.target_modules else "all-linear"
    made = LoraConfig(r=asked.r, lora_alpha=asked.alpha, target_modules=targets, task_type=TaskType.CAUSAL_LM, revision=config.revision)
    made.base_model_name_or_path = path
    return Adapter(path, config.revision, made, None)


def _given(config: ModelConfig, path: str, found: str) -> Adapter:
    from huggingface_hub import snapshot_download
    from peft import PeftConfig, TaskType

    what = f"the adapter {config.path}"
    if Path(path).is_dir():
        folder = Path(path)
    else:
        folder = Path(snapshot_download(path, revision=config.revision, ignore_patterns=["*.bin", "*.pt", "checkpoint-*"]))
    made: Any = PeftConfig.from_pretrained(str(folder))
    kind = str(getattr(made.peft_type, "value", made.peft_type))
    special = [key for key in _NOT_TRAINED_HERE if getattr(made, key, None)]
    if kind != "LORA" or special:
        raise ModelError(f"{what} is not a plain LoRA adapter", f"peft_type {kind}" + f", {', '.join(special)}" * bool(special))
    if not (folder / WEIGHTS).exists():
        raise ModelError(f"{what} has no weights", f"there is no {WEIGHTS} in {folder}", "an adapter saved in safetensors format")
    base = str(made.base_model_name_or_path or "")
    if not Path(base).exists() and (folder / base).exists():
        base = str((folder / base).resolve())
    hint = f"base_model_name_or_path in {found}"
    if not base or (base.startswith(("/", ".", "~")) and not Path(base).exists()):
        raise ModelError(f"{what} was trained on a model that is not there", f"its base is {base or 'not named'}", hint)
    if (Path(base) / "adapter_config.json").exists():
        raise ModelError(f"{what} was trained on another adapter", f"its base is {base}", "merge that one into its own base first")
    made.base_model_name_or_path, made.inference_mode = base, False
    made.task_type = made.task_type or TaskType.CAUSAL_LM
    return Adapter(base, made.revision, made, folder)


def attach(lm: nn.Module, adapter: Adapter, name: str, seed: int) -> None:
    """Freeze a model and put an adapter into it, its weights float32; a new one draws from a generator of its own.

    Raises:
        ModelError: no such layers, or the adapter's weights do not fit the model.
    """
    from peft import get_peft_model
    from transformers.pytorch_utils import Conv1D

    config = copy.deepcopy(adapter.config)
    if adapter.folder is None:  # peft would warn of every layer whose weight is stored the other way round
        config.fan_in_fan_out = any(isinstance(m, Conv1D) for m in lm.modules())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            get_peft_model(lm, config)
        except ValueError as error:
            names = sorted({n.rpartition(".")[2] for n, m in lm.named_modules() if isinstance(m, nn.Linear | Conv1D)})
            raise ModelError(f"no LoRA adapter can be put into {name}", str(error), f"its linear layers: {', '.join(names)}") from error
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules)
    if adapter.folder is not None:
        _fill(lm, load_file(adapter.folder / WEIGHTS), name)


def is_adapted(module: nn.Module) -> bool:
    """Whether a model, or one inside a module, is trained through an adapter."""
    return any("peft_config" in vars(m) for m in module.modules())


def config_of(model: nn.Module) -> Any:
    """peft's LoraConfig of an adapted model."""
    return model.peft_config["default"]  # type: ignore[index]


def give_memory_back(device: torch.device) -> None:
    """On a CPU, return a large tensor's memory to the system once it is freed, for the rest of the process.

    Who trains an adapter is short of memory. glibc learns to keep freed blocks of up to 32 MiB in its heap, where the next
    activations fit badly between what lives longer: measured, the peak grows by about half. Asking anew costs a fifth of time.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if device.type == "cpu" and sys.platform == "linux" else None
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, 2**20)


def describe(model: Any) -> str:
    """An adapter in words: `LoRA of rank 8, alpha 32, on q_proj, v_proj`."""
    config = config_of(model)
    where = config.target_modules
    if not isinstance(where, str):
        where = ", ".join(sorted({name.rpartition(".")[2] for name in where}))
    return f"LoRA of rank {config.r}, alpha {config.lora_alpha}, on {where}"


def view(model: Any) -> Any:
    """A model with modules and trainable weights of its own that shares every frozen weight and every buffer."""
    frozen = [t for t in [*model.parameters(), *model.buffers()] if not t.requires_grad]
    return copy.deepcopy(model, {id(t): t for t in frozen})


def reference(lm: Any) -> Any:
    """A view of the policy as it is now, frozen; without its adapter where that adds nothing yet."""
    taken = view(lm).requires_grad_(False)
    return _unwrapped(taken, merge=False) if _adds_nothing(lm) else taken


def classifier(lm: Any, empty: Any) -> Any:
    """A sequence classifier on a view of the policy's backbone: a second adapter, equal to the policy's as it is now, and a
    float32 head yet to be drawn. `empty` is the classifier on torch's meta device: all but its head is replaced."""
    from peft import TaskType

    setattr(empty, empty.base_model_prefix, view(lm.base_model))
    empty.score = empty.score.to(torch.float32).to_empty(device=lm.device)
    config = copy.deepcopy(config_of(lm))
    config.task_type = TaskType.SEQ_CLS
    config.modules_to_save = [*(m for m in config.modules_to_save or [] if m != "lm_head"), "score"]
    empty.peft_config = {"default": config}
    return empty


def merged(lm: Any) -> Any:
    """A model without an adapter that computes what the adapted one does; the weights that no adapter changes are shared."""
    return _unwrapped(view(lm).requires_grad_(False), merge=True)


def save(model: Any, folder: Path) -> None:
    """adapter_config.json and its tensors as peft reads them; for a classifier with its head."""
    config = copy.deepcopy(config_of(model))
    config.inference_mode = True
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(str(folder))
    save_file({n: t.contiguous() for n, t in _tensors(model).items()}, folder / WEIGHTS, metadata={"format": "pt"})


def restore(model: Any, folder: Path) -> None:
    """Fill an adapted model, in place, with what `save` wrote of one of the same shape.

    Raises:
        ModelError: it is of another shape.
    """
    _fill(model, load_file(folder / WEIGHTS), str(folder))


def _tensors(model: Any) -> dict[str, Tensor]:
    """Every weight that is trained, under its name in peft's files; the live ones, without gradients."""
    from peft import get_peft_model_state_dict

    found = get_peft_model_state_dict(model, save_embedding_layers=False)
    if "score" in (config_of(model).modules_to_save or []):
        found |= {f"score.{n}": p.detach() for n, p in model.score.named_parameters()}
    return {f"{_PREFIX}{name}": tensor for name, tensor in found.items()}


@torch.no_grad()
def _fill(model: Any, tensors: dict[str, Tensor], name: str) -> None:
    own, base = _tensors(model), model.state_dict()
    lacks = sorted(n for n, t in own.items() if n not in tensors or tensors[n].shape != t.shape)
    if lacks:
        raise ModelError(f"the adapter {name} lacks weights that its config names, or has them in another shape", "\n".join(lacks[:4]))
    for extra in tensors.keys() - own.keys():  # a file may repeat frozen weights, but not change them
        same = base.get(extra.removeprefix(_PREFIX))
        if same is None or same.shape != tensors[extra].shape or not torch.equal(same, tensors[extra].to(same)):
            raise ModelError(
                f"the adapter {name} changes weights outside the adapter", extra, "merge it into its base, and start from the whole model"
            )
    for key, tensor in own.items():
        tensor.copy_(tensors[key])


def _adds_nothing(model: nn.Module) -> bool:
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return all("lora_A" in n or ("lora_B" in n and not p.any()) for n, p in trained)


def _unwrapped(model: Any, merge: bool) -> Any:
    """Put every adapted layer's own layer back into its place, with the adapter merged into a copy of its weights or without."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    done: tuple[str, ...] = ()
    for name, module in list(model.named_modules()):
        if name.startswith(done):  # inside a layer that is no longer there
            continue
        if isinstance(module, AuxiliaryTrainingWrapper):
            layer = module.unload_and_optionally_merge_module(merge, False, None)
        elif isinstance(module, BaseTunerLayer):
            layer = module.get_base_layer()
            if merge:
                for key, weight in list(layer.named_parameters(recurse=False)):  # a copy: the views go on with the old ones
                    setattr(layer, key, nn.Parameter(weight.detach().clone(), requires_grad=False))
                module.merge()  # type: ignore[operator]
        else:
            continue
        model.set_submodule(name, layer)
        done += (f"{name}.",)
    del model.peft_config
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    if model.config.tie_word_embeddings and ends[1] is not None and ends[0].weight is not ends[1].weight:
        model.config.tie_word_embeddings = False
    return model
