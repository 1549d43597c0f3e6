"""Runs a Python program in a child process with limits on what it may take, and leaves nothing behind.

This contains accidents: loops without end, memory and output without end, stray processes and files, a program that kills what
it can reach. It is not a security boundary against a determined attacker: for that, run the whole training in a container or
virtual machine whose loss would not matter. What is guaranteed where is said by `Isolation`, which the child itself reports.

Knows no judge and no sample. The child's side is `child.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHILD = Path(__file__).with_name("child.py")
_START_SECONDS = 30.0
_MOST_BYTES = 4096
FILE_MB = 1
FILES = 100


@dataclass(frozen=True)
class Program:
    """Code, then tests in the same module; with an entry point, then check(entry point)."""

    code: str
    tests: str
    entry_point: str | None = None


@dataclass(frozen=True)
class Limits:
    """What one program may take."""

    seconds: float
    """Wall-clock time from the moment its code starts; processor time is limited to a second more."""
    memory_mb: int
    """Address space, Python itself included."""


@dataclass(frozen=True)
class Isolation:
    """What the child could set up on this system.

    Everywhere (Linux, macOS): an own session and temporary folder, an environment of six fixed variables, no standard input,
    output thrown away, limits on wall-clock and processor time, files of at most 1 MB and at most 100 of them, no core dumps,
    and from Python no writing outside the folder, no process, no signal to another process, no network: the attempt ends
    the program, which fails. What the system itself enforces besides, against compiled code too, is in these fields.
    """

    memory: bool
    """The address space is limited (Linux; macOS refuses)."""
    no_processes: bool
    """No process or thread can be started (Linux and macOS, unless run by root without the right to change user)."""
    other_user: bool
    """It runs as `nobody` (where rlctl runs as root): it can change no file of others but what anybody may write, and signal nobody."""
    no_network: bool
    """It has a network namespace of its own without any device (Linux: as root, or where users may make namespaces)."""

    def lacking(self) -> list[str]:
        """What only Python's own hooks keep it from here, in words."""
        words = {
            "memory": "taking more memory than it may",
            "no_processes": "starting processes",
            "no_network": "reaching the network",
        }
        return [text for name, text in words.items() if not getattr(self, name)]


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    passed: bool | None
    """None: the program was never started, and nothing is known of it."""
    why: str
    """For messages: `passed`, what it raised, or what ended it."""
    isolation: Isolation | None = None


def run(program: Program, limits: Limits) -> Outcome:
    """Run a program to its end or its limit. Afterwards neither its process nor its folder is there."""
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="rlctl-judge-"))
        token = secrets.token_hex(16)
        return _in(folder, program, limits, token)
    except OSError as error:  # no memory, processes, file handles or disk left: nothing that the program did
        return Outcome(None, f"{type(error).__name__}: {error}")
    finally:
        if folder is not None:
            remove(folder)


def _in(folder: Path, program: Program, limits: Limits, token: str) -> Outcome:
    job = folder / "job.json"
    # the token proves that the tests were run to their end: a program that exits early does not know it
    job.write_text(json.dumps({**vars(program), **vars(limits), "token": token, "file_mb": FILE_MB, "files": FILES}))
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(_CHILD), str(job), str(writing)],
            cwd=folder, env=_environment(folder), start_new_session=True, pass_fds=(writing,),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    try:
        lines, late = _listen(reading, limits.seconds)
    finally:
        os.close(reading)
        _end(process)
    return _outcome(lines, late, process.returncode, token, limits)


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of this process's own. One thread each, because none can be started."""
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    return {**threads, "HOME": str(folder), "TMPDIR": str(folder), "LC_ALL": "C.UTF-8"}


def _listen(reading: int, seconds: float) -> tuple[list[str], bool]:
    """What the child says until it closes its end, says too much or is late; its time begins when it says that it is ready."""
    said, ready = b"", False
    deadline = time.monotonic() + _START_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while len(said) < _MOST_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return said.decode(errors="replace").splitlines(), True
            part = os.read(reading, _MOST_BYTES - len(said))
            if not part:
                break
            said += part
            if not ready and b"\n" in said:
                ready, deadline = True, time.monotonic() + seconds
    return said.decode(errors="replace").splitlines(), False


def _end(process: subprocess.Popen[Any]) -> None:
    """Kill the whole group before its leader is waited for: until then nobody else can get its number."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS answers EPERM for a group that has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _outcome(lines: list[str], late: bool, status: int, token: str, limits: Limits) -> Outcome:
    first = _parsed(lines[0]) if lines else {}
    if "ready" not in first:
        said = first.get("failed") or ("it did not start in time" if late else f"it ended with status {status}")
        return Outcome(None, f"the child process could not be set up: {said}")
    isolation = Isolation(**first["ready"])
    last = _parsed(lines[-1]) if len(lines) > 1 else {}
    if last.get("passed") == token:
        return Outcome(True, "passed", isolation)
    if "failed" in last:
        return Outcome(False, str(last["failed"]), isolation)
    if late:
        return Outcome(False, f"took longer than {limits.seconds:g} seconds", isolation)
    ended = f"was ended by {signal.Signals(-status).name}" if status < 0 else "ended before its tests did"
    return Outcome(False, ended, isolation)


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:  # the program can write here as well
        return {}
    return value if isinstance(value, dict) else {}


def remove(folder: Path) -> None:
    """Remove a folder, also where the program took away the right to look into it."""
    for root, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(root, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    shutil.rmtree(folder)
