"""The models that the stages train: a language model, with its weights or fresh ones, and a classifier with one label."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

from rlctl.errors import ModelError
from rlctl.models import NEEDS_DECODER, Source, check_decoder, disable_dropout, load_policy

_ANOTHER = "a decoder-only language model, or a sequence classifier with one label: model=hf:PATH"


def check_language_model(source: Source) -> None:
    """Refuse what the config alone shows to be no decoder-only language model.

    Raises:
        ModelError: it is none, or one whose head has been replaced by a score head.
    """
    check_decoder(source)
    if is_classifier(source):
        kind = " ".join(source.hf_config.architectures)
        raise ModelError(f"the model {source.name} is a {kind}, not a language model", "its words would be random", NEEDS_DECODER)


def load_language_model(source: Source, from_scratch: bool, seed: int) -> Any:
    """The policy of `rlctl train`, or its architecture with fresh weights. Dropout is off, as it is in PPO."""
    if not from_scratch:
        return load_policy(source)
    keep = {k: v for k, v in source.arguments.items() if k in ("dtype", "attn_implementation", "trust_remote_code")}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        lm = AutoModelForCausalLM.from_config(source.hf_config, **keep)
    disable_dropout(lm)
    return lm


def check_classifier(source: Source) -> None:
    """Refuse what the config alone shows not to become a reward model.

    Raises:
        ModelError: no sequence classifier of this architecture, or one with several labels.
    """
    config = source.hf_config
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING and not hasattr(config, "auto_map"):
        raise ModelError(f"transformers has no sequence classifier for {config.model_type}, so no reward model of it", hint=_ANOTHER)
    if is_classifier(source) and config.num_labels != 1:
        raise ModelError(f"the model {source.name} is a classifier with {config.num_labels} labels, expected 1", hint=_ANOTHER)


def is_classifier(source: Source) -> bool:
    """Whether the folder holds a score head already."""
    return any("SequenceClassification" in a for a in source.hf_config.architectures or [])


def load_classifier(source: Source, seed: int) -> Any:
    """A classifier with one label: a classifier's own head goes on, a language model gets a fresh one. Dropout is off.

    Raises:
        ModelError: it cannot be read, or lacks weights other than the head's.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            model, info = AutoModelForSequenceClassification.from_pretrained(
                source.path, output_loading_info=True, num_labels=1, **source.arguments
            )
        except Exception as error:  # OSError, ValueError, a library's own: one cause for the user, shown whole
            raise ModelError(f"the model {source.name} cannot be loaded", f"{type(error).__name__}: {error}", _ANOTHER) from error
    backbone = f"{model.base_model_prefix}."
    missing = sorted(k for k in info["missing_keys"] if is_classifier(source) or k.startswith(backbone))
    if missing:
        raise ModelError(f"the model {source.name} lacks weights: {', '.join(missing[:4])}", "they would be random", _ANOTHER)
    disable_dropout(model)
    return model
