"""Writing folders so that a crash at any moment leaves either the old one or the new one, never half of one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlctl import lora

_NAME = re.compile(r"step_(\d{6,})")


def write_folder(path: Path, write: Callable[[Path], None]) -> Path:
    """Fill a folder beside `path`, flush it to disk, then rename it into place.

    An older folder of the name is moved aside first and removed last; if a kill came between, the next write brings it back.
    """
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        old.rename(path)
    aside = path.with_name(f".{path.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    write(aside)
    for file in aside.rglob("*"):
        _flush(file)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        try:
            aside.rename(path)
        except BaseException:
            old.rename(path)
            raise
        shutil.rmtree(old)
    else:
        aside.rename(path)
    _flush(path.parent)
    return path


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def checkpoints(run_dir: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints of a run as (step, folder), oldest first."""
    found = [(int(m[1]), p) for p in (run_dir / "checkpoints").glob("step_*") if (m := _NAME.fullmatch(p.name))]
    return sorted(found)


def save(run_dir: Path, step: int, keep: int, write: Callable[[Path], None]) -> Path:
    """Write checkpoints/step_NNNNNN, then remove all but the newest `keep`."""
    path = write_folder(run_dir / "checkpoints" / f"step_{step:06d}", write)
    for _, old in checkpoints(run_dir)[:-keep]:
        shutil.rmtree(old)
    return path


def save_policy(folder: Path, lm: Any, tokenizer: Any, merge: bool = False) -> None:
    """A plain transformers folder: AutoModelForCausalLM and AutoTokenizer load it.

    Under LoRA the adapter alone, which peft.AutoPeftModelForCausalLM loads onto its base; with `merge` the whole model.
    """
    if lora.is_adapted(lm) and not merge:
        lora.save(lm, folder)
    else:
        whole = lora.merged(lm) if lora.is_adapted(lm) else lm
        whole.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def save_value(folder: Path, classifier: Any, tokenizer: Any) -> None:
    """A plain transformers folder: AutoModelForSequenceClassification loads it, its one label is the value.

    Under LoRA adapter and head, which peft.AutoPeftModelForSequenceClassification loads onto the base with num_labels=1.
    """
    if lora.is_adapted(classifier):
        lora.save(classifier, folder)
    else:
        classifier.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)


def restore(folder: Path, model: Any) -> None:
    """Fill a policy or a classifier, in place and bit for bit, with what save_policy or save_value wrote of it.

    Nothing else changes: a reference or a value model that shares frozen weights with it stays what it was.
    """
    if lora.is_adapted(model):
        lora.restore(model, folder)
    else:
        model.load_state_dict(type(model).from_pretrained(folder, dtype=model.dtype).state_dict())
