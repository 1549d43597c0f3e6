"""Policy, reference and value model: loading, checking, and one forward pass over response tokens. No training here."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
)
from transformers.utils import find_adapter_config_file

from rlctl import lora
from rlctl.builtin import path as builtin_path
from rlctl.config.schema import Dtype, ModelConfig, ModelRewardConfig
from rlctl.errors import ModelError
from rlctl.rollout import Forward, Sequences
from rlctl.tensors import logprobs_and_entropy, masked, token_logprobs

_DTYPES = {Dtype.auto: torch.float32, Dtype.float32: torch.float32, Dtype.bfloat16: torch.bfloat16, Dtype.float16: torch.float16}


@dataclass(frozen=True)
class Source:
    """Where a model comes from and what can be known of it before its weights are loaded."""

    name: str
    """As the user wrote it."""
    path: str
    """Of the weights; of an adapter, its base."""
    hf_config: Any
    tokenizer: Any
    arguments: dict[str, Any]
    """For from_pretrained."""
    adapter: lora.Adapter | None = None
    """Trained in place of the weights."""

    @property
    def vocabulary(self) -> str:
        """For messages that compare two vocabularies."""
        return f"{len(self.tokenizer)} tokens ({type(self.tokenizer).__name__} of {self.name})"

    def shares_vocabulary(self, other: Source) -> bool:
        """Whether every token has the same id in both."""
        same: bool = self.tokenizer.get_vocab() == other.tokenizer.get_vocab()
        return same


def open_source(config: ModelConfig | ModelRewardConfig, what: str) -> Source:
    """Config and tokenizer of the policy or the reward model; `what` is what messages call it.

    Raises:
        ModelError: nothing there, or transformers cannot read it.
        ConfigError: model.lora asks for what cannot be.
    """
    folder = "policy" if isinstance(config, ModelConfig) else "reward"
    path = str(builtin_path(folder)) if config.path == "builtin" else config.path
    if (path.startswith(("/", ".", "~")) or path.count("/") > 1) and not Path(path).exists():  # a hub id has one slash at most
        key = "model=hf" if isinstance(config, ModelConfig) else "reward=model"
        raise ModelError(f"no {what} at {path}", "there is no such folder", f"{key}:PATH_OR_HUB_ID")
    name, adapter = config.path, None
    shared = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    if isinstance(config, ModelConfig):
        with _opening(f"{what} {name}"):
            found = find_adapter_config_file(path, revision=config.revision)
        if adapter := lora.open_adapter(config, path, found):
            path, shared["revision"] = adapter.base, adapter.revision
            name += f" (an adapter of {path})" if adapter.folder else ""
    with _opening(f"{what} {name}"):
        hf_config = AutoConfig.from_pretrained(path, **shared)
        tokenizer = AutoTokenizer.from_pretrained(adapter.tokenizer if adapter else path, **shared)
    arguments = {**shared, "dtype": _DTYPES[config.dtype], "use_safetensors": True}
    if isinstance(config, ModelConfig) and config.attn_implementation:
        arguments["attn_implementation"] = config.attn_implementation
    return Source(name, path, hf_config, tokenizer, arguments, adapter)


@contextmanager
def _opening(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # OSError, ValueError, hub errors: one cause for the user, shown whole
        raise ModelError(f"the {what} cannot be opened", f"{type(error).__name__}: {error}") from error


def load_weights(auto_class: Any, source: Source, what: str, needed: str, **more: Any) -> Any:
    """A model with every weight from its files, in eval mode, dropout off.

    Raises:
        ModelError: the files lack weights that the class needs, or hold a value head.
    """
    try:
        model, info = auto_class.from_pretrained(source.path, output_loading_info=True, **source.arguments, **more)
    except Exception as error:  # see open_source
        raise ModelError(f"the {what} {source.name} cannot be loaded", f"{type(error).__name__}: {error}", needed) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelError(f"the {what} {source.name} lacks weights: {', '.join(missing[:4])}", "they would be random", needed)
    if any(k.startswith("v_head") for k in info["unexpected_keys"]):
        raise ModelError(f"the {what} {source.name} is a checkpoint with a value head", hint=needed)
    disable_dropout(model)
    return model.eval()


def disable_dropout(model: nn.Module) -> None:
    """Dropout off for good, also in train mode: two passes over the same tokens must give the same log-probabilities."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("dropout" in name or "pdrop" in name):
                setattr(module, name, 0.0)


def recompute_activations(model: Any) -> None:
    """Let a model compute its activations anew in the backward pass. transformers 5.24 renamed the switch; 5.0 has the old name."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


NEEDS_DECODER = "a decoder-only language model (AutoModelForCausalLM), such as a GPT-2, Llama or Qwen folder: model=hf:PATH"


def check_decoder(source: Source) -> None:
    """Refuse what the config alone shows to be no decoder-only language model.

    Raises:
        ModelError: it is none.
    """
    config = source.hf_config
    kinds = " ".join(config.architectures or [])
    if config.is_encoder_decoder or (type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not hasattr(config, "auto_map")):
        raise ModelError(f"the policy {source.name} is {kinds or type(config).__name__}, not a decoder", hint=NEEDS_DECODER)


def load_policy(source: Source, seed: int = 0) -> Any:
    """The policy's language model, with its adapter if it has one; the seed is for a new adapter.

    Raises:
        ModelError: it is not a decoder-only language model, or the adapter is none of it.
    """
    check_decoder(source)
    kinds = " ".join(source.hf_config.architectures or [])
    lm = load_weights(AutoModelForCausalLM, source, "policy", NEEDS_DECODER)
    if not is_causal(lm):
        raise ModelError(f"the policy {source.name} ({kinds}) sees later tokens: it is an encoder", hint=NEEDS_DECODER)
    if source.adapter is not None:
        lora.attach(lm, source.adapter, source.name, seed)
        disable_dropout(lm)
    return lm.eval()


@torch.no_grad()
def is_causal(model: nn.Module) -> bool:
    """Whether a later token leaves what comes before it unchanged, tried on two tokens."""
    backbone = model.base_model
    first, second = (backbone(input_ids=torch.tensor([[1, t]], device=model.device)).last_hidden_state[:, 0] for t in (0, 2))
    return torch.equal(first, second) or bool((first - second).abs().max() <= 1e-6 * first.abs().max())


def pad_id(source: Source, end_ids: tuple[int, ...], embeddings: int) -> int:
    """An id to fill padding with that the model can embed; masks, not ids, tell padding from tokens."""
    own = source.tokenizer.pad_token_id
    if own is not None and own < embeddings:
        return int(own)
    return end_ids[0] if end_ids else 0


def _inputs(module: nn.Module, sequences: Sequences) -> dict[str, Any]:
    """What the module takes of ids, mask and positions (a model with relative biases takes no positions), without a cache."""
    takes = inspect.signature(module.forward).parameters
    any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values())
    given = {**sequences.inputs(), "use_cache": False}
    return {k: v for k, v in given.items() if k in takes or (any_name and k != "position_ids")}


class Policy(nn.Module):
    """A language model whose forward pass gives log-probabilities of response tokens, so that wrappers see one call."""

    def __init__(self, lm: Any):
        super().__init__()
        self.lm = lm
        self._keeps = "logits_to_keep" in inspect.signature(lm.forward).parameters

    def forward(self, sequences: Sequences, temperature: float, with_entropy: bool = False) -> Forward:
        """(b, r) log-probabilities, and entropies if asked. Logits exist for response positions only, and not after."""
        inputs, emitting = _inputs(self.lm, sequences), sequences.emitting()
        logits = self.lm(**inputs, logits_to_keep=emitting).logits if self._keeps else self.lm(**inputs).logits[:, emitting]
        mask = sequences.response_mask
        if not with_entropy:
            return Forward(logprobs=masked(token_logprobs(logits, sequences.response_ids, temperature), mask))
        logprobs, entropy = logprobs_and_entropy(logits, sequences.response_ids, temperature)
        return Forward(logprobs=masked(logprobs, mask), entropy=masked(entropy, mask))


class ValueModel(nn.Module):
    """A sequence classifier with one label, read before every response token rather than at the last."""

    def __init__(self, classifier: Any, origin: str):
        super().__init__()
        self.classifier = classifier
        self.origin = origin
        """What it started from: policy or reward-model."""

    def forward(self, sequences: Sequences) -> Tensor:
        """(b, r) values: column t from the hidden state that emits token t. 0 where masked."""
        backbone, head = self.classifier.base_model, self.classifier.score
        hidden = backbone(**_inputs(backbone, sequences)).last_hidden_state[:, sequences.emitting()]
        return masked(head(hidden.to(head.weight.dtype)).squeeze(-1).float(), sequences.response_mask)


def reference_of(lm: Any) -> Policy:
    """The policy as it is now, frozen; under LoRA on the policy's own base."""
    taken = lora.reference(lm) if lora.is_adapted(lm) else copy.deepcopy(lm)
    return Policy(taken).requires_grad_(False).eval()


def value_from_policy(source: Source, lm: Any, seed: int) -> ValueModel:
    """The policy's backbone with a fresh scalar head, N(0, 1 / (hidden + 1)) from its own seed: first values are near 0.

    Under LoRA the backbone is the policy's frozen one with a second adapter, else a copy.

    Raises:
        ModelError: transformers has no sequence classifier for this architecture.
    """
    config = copy.deepcopy(source.hf_config)
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise ModelError(f"transformers has no sequence classifier for {config.model_type}, so no value model of it", hint="another policy")
    config.num_labels = 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        attention = {k: v for k, v in source.arguments.items() if k == "attn_implementation"}
        with torch.device("meta") if lora.is_adapted(lm) else nullcontext():
            classifier = AutoModelForSequenceClassification.from_config(config, dtype=lm.dtype, **attention)
        if lora.is_adapted(lm):
            lora.classifier(lm, classifier)
        else:
            classifier.base_model.load_state_dict(lm.base_model.state_dict())
        head = _head(classifier, source.name)
        nn.init.normal_(head.weight, std=1.0 / (head.in_features + 1))
        if head.bias is not None:
            nn.init.zeros_(head.bias)
    if classifier.config.pad_token_id is None:  # only now: known to an embedding, it would get no gradient there
        classifier.config.pad_token_id = 0
    disable_dropout(classifier)
    return ValueModel(classifier.eval(), "policy")


def value_from_reward(classifier: Any) -> ValueModel:
    """A trainable copy of the reward model, backbone and head."""
    return ValueModel(copy.deepcopy(classifier).requires_grad_(True).eval(), "reward-model")


def _head(classifier: Any, name: str) -> nn.Linear:
    head = getattr(classifier, "score", None)
    if not isinstance(head, nn.Linear):
        raise ModelError(f"the sequence classifier of {name} has no linear `score` head to read values from", hint="another policy")
    return head
