"""A child process that ends as it wants to: whoever started it waits, and passes on that it should. No torch."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PATIENCE = 10.0
"""Seconds that a child has to end at once."""


@dataclass(frozen=True)
class Child:
    """How a child process is run."""

    environment: dict[str, str] = field(default_factory=dict)
    output: Path | None = None
    """A file that what it writes is added to, instead of this terminal."""
    keep: tuple[int, ...] = ()
    """Descriptors that stay open in it."""
    asked: Callable[[], int] = lambda: 0
    """Called a few times a second: how often it was asked to end."""


def run_child(command: list[str], child: Child) -> int:
    """Run a command and wait for it; its exit status, 128 + n where signal n ended it, as shells show it.

    What asks it to end comes as SIGTERM, and it takes the time it needs: it saves. Asked twice it has ten seconds more. Of Ctrl-C,
    which reaches every process of a terminal, it sees nothing: two signals for one would be taken for more.
    """
    with child.output.open("ab") if child.output is not None else nullcontext() as sink:
        streams: dict[str, Any] = {} if sink is None else {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": subprocess.STDOUT}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process = subprocess.Popen(command, env=child.environment, pass_fds=child.keep, **streams)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            _wait(process, child.asked)
        finally:
            if process.poll() is None:  # something went wrong here: it does not go on without its parent
                process.kill()
                process.wait()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _wait(process: subprocess.Popen[bytes], asked: Callable[[], int]) -> None:
    told, deadline = 0, float("inf")
    while True:
        try:
            process.wait(0.2)
            return
        except subprocess.TimeoutExpired:
            now = asked()
        if now > told:
            process.send_signal(signal.SIGTERM)
            told, deadline = now, time.monotonic() + _PATIENCE if now > 1 else deadline
        if time.monotonic() > deadline:
            process.kill()
