"""Who is at work in a folder: a lock that ends with the last process that holds it, however it ends. No file is written.

On a file system without locks nothing is ever held.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlctl.errors import ConfigError

_PATIENCE = 0.3
"""Seconds: somebody who only asks whether a folder is held holds it for a moment."""


@contextmanager
def hold(path: Path, patience: float = _PATIENCE) -> Iterator[int | None]:
    """Hold an existing folder or file: the lock's descriptor, for a child to hold it too; None if somebody else does.

    A child keeps it through `pass_fds`, so that a folder stays held while its training outlives whoever started it.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle if _lock(handle, patience) else None
    finally:
        os.close(handle)


@contextmanager
def take(folder: Path) -> Iterator[int]:
    """`hold`, for who cannot go on without it.

    Raises:
        ConfigError: somebody else holds it.
    """
    with hold(folder) as handle:
        if handle is None:
            raise ConfigError(f"{folder} is in use", "another process trains there", "wait for it, or end it")
        yield handle


def held(path: Path) -> bool:
    """Whether somebody holds it."""
    with hold(path, 0.0) as handle:
        return handle is None


def _lock(handle: int, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        except OSError:  # there are no locks on this file system
            return True
