"""One process composes the run, the others are told: through the store by which torch's processes find each other.

Knows nothing of what a config is. Imports torch when something is told or heard.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

_TOLD, _HEARD = "rlctl/told", "rlctl/heard"
_store: list[Any] = []
"""Held for the life of the process: the first one's serves the others until they have opened theirs."""


@dataclass(frozen=True)
class Word:
    """What the first process tells the others: a config to train, or the status to end with."""

    config: str | None
    status: int = 0


def tell(word: Word) -> None:
    """Tell all others; only the first word counts."""
    if _store:
        return
    _open().set(_TOLD, json.dumps(asdict(word)))


def tell_and_wait(word: Word, others: int, seconds: float = 10.0) -> None:
    """Tell all others, and wait until they have heard it, so that this process's end does not take it from them."""
    if _store:
        return
    tell(word)
    until = time.monotonic() + seconds
    while _store[0].add(_HEARD, 0) < others and time.monotonic() < until:
        time.sleep(0.05)


def hear() -> Word:
    """Wait for the first process's word."""
    store = _open()
    word = Word(**json.loads(store.get(_TOLD)))
    store.add(_HEARD, 1)
    return word


def _open() -> Any:
    from torch.distributed import rendezvous

    store = next(rendezvous("env://", timeout=timedelta(minutes=15)))[0]
    _store.append(store)
    return store
