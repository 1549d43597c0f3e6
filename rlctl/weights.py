"""The weights of policy and value model as folders that transformers and peft load, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlctl import lora, sharding

State = dict[str, Any] | None
"""What `sharding.gathered` gives of a model."""


def save_policy(folder: Path, lm: Any, tokenizer: Any, merge: bool = False, state: State = None) -> None:
    """A plain transformers folder: AutoModelForCausalLM and AutoTokenizer load it.

    Under LoRA the adapter alone, which peft.AutoPeftModelForCausalLM loads onto its base; with `merge` the whole model.
    """
    if lora.is_adapted(lm) and not merge:
        lora.save(lm, folder)
    else:
        whole = lora.merged(lm) if lora.is_adapted(lm) else lm
        whole.save_pretrained(folder, state_dict=state, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def save_value(folder: Path, classifier: Any, tokenizer: Any, state: State = None) -> None:
    """A plain transformers folder: AutoModelForSequenceClassification loads it, its one label is the value.

    Under LoRA adapter and head, which peft.AutoPeftModelForSequenceClassification loads onto the base with num_labels=1.
    """
    if lora.is_adapted(classifier):
        lora.save(classifier, folder)
    else:
        classifier.save_pretrained(folder, state_dict=state, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def restore(folder: Path, model: Any) -> None:
    """Fill a policy or a classifier, in place and bit for bit, with what save_policy or save_value wrote of it.

    Nothing else changes: a reference or a value model that shares frozen weights with it stays what it was.
    """
    if lora.is_adapted(model):
        lora.restore(model, folder)
    else:
        plain = sharding.plain_class(model)
        state = plain.from_pretrained(folder, dtype=model.dtype).state_dict() if sharding.reads(model) else {}
        sharding.load_full_state(model, state)
