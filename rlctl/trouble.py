"""Errors of the machine that a user can act on: memory that runs out, a disk that is full or cannot be written."""

from __future__ import annotations

import errno
import re

import torch

from rlctl.assembly import Assembly
from rlctl.config.schema import Config
from rlctl.errors import TrainingError

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


def understood(error: BaseException, run: Assembly) -> BaseException:
    """The error itself, or one that says what to change."""
    if is_out_of_memory(error):
        phase = run.clock.failed or "start"
        return TrainingError(
            f"out of memory in the phase {phase!r}", f"{needed(error)}\n{first_line(error)}", smaller(phase, run.config, processes(run))
        )
    if isinstance(error, OSError) and error.errno in _DISK and str(error.filename or "").startswith(run.config.run.dir):
        return TrainingError(
            f"cannot write {error.filename}", error.strerror, "make room, or make it writable; then: rlctl resume " + run.config.run.dir
        )
    return error


def processes(run: Assembly) -> int:
    """Among how many a step's responses are shared."""
    count: int = run.accelerator.num_processes
    return count


def is_out_of_memory(error: BaseException) -> bool:
    """A GPU's memory, or what the CPU's allocator could not get."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def needed(error: BaseException) -> str:
    """How much was asked for, from the allocator's message."""
    text = str(error)
    if found := re.search(r"tried to allocate (\d+) bytes", text):
        return f"it needed {int(found[1]) / 2**30:,.2f} GiB more at once"
    if found := re.search(r"Tried to allocate ([\d.]+ \wiB)", text):
        return f"it needed {found[1]} more at once"
    return "how much more it needed is not told"


def first_line(error: BaseException) -> str:
    """The allocator's own words."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def smaller(phase: str, config: Config, processes: int) -> str:
    """The setting that lowers the memory of a phase, halved."""
    if phase == "generate":
        now = config.rollout.batch_size or -(-config.samples_per_step // processes)
        return f"rollout.batch_size={max(1, now // 2)} (sequences generated at once; now {now})"
    if phase == "score":
        size = getattr(config.reward, "batch_size", None)
        lower = f"reward.batch_size={max(1, size // 2)} (texts scored at once; now {size})" if size else None
        return lower or "score fewer texts at once in the reward"
    if phase == "judge":
        return "a smaller batch_size of the language model among the judges"
    if phase in ("forward", "update"):
        now = config.optim.microbatch_size
        lower = f"optim.microbatch_size={now // 2} (sequences in one pass; now {now}; results stay the same)"
        return lower if now > 1 else "model.gradient_checkpointing=true, a smaller rollout.max_new_tokens, or model.dtype=bfloat16"
    return "a smaller model, or model.dtype=bfloat16"
