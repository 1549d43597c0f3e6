"""Writing folders so that a crash at any moment leaves either the old one or the new one, never half of one. No torch."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from rlctl.errors import TrainingError

_NAME = re.compile(r"step_(\d{6,})")


def write_folder(path: Path, write: Callable[[Path], None]) -> Path:
    """Fill a folder beside `path`, flush it to disk, then rename it into place.

    An older folder of the name is moved aside first and removed last; if a kill came between, the next write brings it back.

    Raises:
        TrainingError: it cannot be written; what was there before is whole.
    """
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        old.rename(path)
    aside = path.with_name(f".{path.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        write(aside)
        for file in aside.rglob("*"):
            _flush(file)
        _into_place(aside, path, old)
    except Exception as error:  # a full disk is told by torch, safetensors and Python each in its own words
        shutil.rmtree(aside, ignore_errors=True)
        raise TrainingError(
            f"cannot write {path}",
            f"{type(error).__name__}: {error}\n{_free(path)}",
            "make room, or make it writable; checkpoints written before are whole, `rlctl resume RUN_DIR` goes on from the last",
        ) from error
    return path


def _into_place(aside: Path, path: Path, old: Path) -> None:
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


def _free(path: Path) -> str:
    there = next(p for p in path.parents if p.exists())
    return f"{shutil.disk_usage(there).free / 2**20:,.0f} MiB are free at {there}"


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
