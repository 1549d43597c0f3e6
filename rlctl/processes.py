"""A child process that ends as it wants to: signals meant for the parent are its own. No torch."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Mapping
from types import FrameType


def run_child(command: list[str], environment: Mapping[str, str]) -> int:
    """Run a command and wait for it; its exit status, 128 + n where signal n ended it, as shells show it.

    SIGINT and SIGTERM are passed on, and the child takes the time it needs: it saves. (subprocess.run would kill it after a quarter
    of a second.)
    """
    before = {}
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: FrameType | None) -> None:
        if child is not None:
            child.send_signal(number)

    main = threading.current_thread() is threading.main_thread()
    if main:
        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        child = subprocess.Popen(command, env=dict(environment))
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status
