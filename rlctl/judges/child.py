"""The child's side of `sandbox.py`: gives up what it can, then runs a program and says how it ended.

Started by its path with `python -I`: imports nothing of this package. Says one line of JSON when it is ready and one at the end,
to the file descriptor that it is given; the program's own output goes nowhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import resource
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

_NEWNET, _NEWUSER = 0x40000000, 0x10000000
_PDEATHSIG, _KEEPCAPS, _NO_NEW_PRIVS = 1, 8, 38
_DAC_READ_SEARCH = 1 << 2
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MB = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_LINUX = sys.platform == "linux"


def main() -> None:
    """Read the job, set up, run, report."""
    job_path, out = sys.argv[1], int(sys.argv[2])
    os.set_inheritable(out, False)
    say = _speaker(out)
    try:
        with open(job_path, encoding="utf-8") as f:
            job = json.load(f)
        os.unlink(job_path)
        folder = os.path.realpath(os.path.dirname(job_path))
        isolation = _give_up(job, folder)
        module = types.ModuleType("solution")  # a real module: dataclasses and pickle look theirs up
        sys.modules["solution"] = module
        sys.argv[:] = ["solution"]
        vars(signal).pop("pidfd_send_signal", None)  # the one way to send a signal that no hook hears of
        sys.path[:0] = [folder]
        sys.addaudithook(_guard(folder, job["files"], say))
    except BaseException as error:
        say({"failed": f"{type(error).__name__}: {error}"})
        os._exit(1)
    say({"ready": isolation})
    token = job.pop("token")
    failed = _run(job, module.__dict__)
    say({"failed": failed} if failed else {"passed": token})
    os._exit(0)  # nothing that the program registered for the end is run


def _speaker(out: int) -> Callable[[dict[str, Any]], None]:
    write, dumps = os.write, json.dumps

    def say(what: dict[str, Any]) -> None:
        write(out, (dumps(what) + "\n").encode())

    return say


def _run(job: dict[str, Any], names: dict[str, Any]) -> str | None:
    """None if the tests passed, else what went wrong."""
    stage = "the response"
    try:
        exec(compile(job["code"], "<response>", "exec", dont_inherit=True), names)
        stage = "the tests"
        exec(compile(job["tests"], "<tests>", "exec", dont_inherit=True), names)
        if job["entry_point"] is not None:
            names["check"](names[job["entry_point"]])
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the tests did not come to their end
        return f"{stage}: {_described(error)}"[:300]
    return None


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # an exception of the program's own, whose text fails
        return type(error).__name__


def _give_up(job: dict[str, Any], folder: str) -> dict[str, bool]:
    """Network, user, privileges, then limits; says what came of it."""
    as_root = os.getuid() == 0
    no_network = _LINUX and _leave_network(as_root)
    other_user = as_root and _become_nobody(folder)
    if _LINUX:
        _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
        _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # a clock of its own, should the parent be gone when the time is up
    signal.setitimer(signal.ITIMER_REAL, job["seconds"] + 1)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(used.ru_utime + used.ru_stime + job["seconds"]) + 2
    _limit(resource.RLIMIT_CPU, cpu)
    _limit(resource.RLIMIT_FSIZE, job["file_mb"] * _MB)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, 64)
    memory = _limit(resource.RLIMIT_AS, job["memory_mb"] * _MB)
    # counted per user, so that 0 forbids every further process and thread; root alone is not bound by it
    no_processes = _limit(resource.RLIMIT_NPROC, 0) and os.getuid() != 0
    return {"memory": memory, "no_processes": no_processes, "other_user": other_user, "no_network": no_network}


def _limit(which: int, most: int) -> bool:
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    try:
        resource.setrlimit(which, (most, most))
    except (OSError, ValueError):  # macOS does not limit the address space
        return False
    return True


def _leave_network(as_root: bool) -> bool:
    """A network namespace without devices; a user needs a user namespace for it, which some systems forbid."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_NEWNET if as_root else _NEWNET | _NEWUSER) != 0:
        return False
    if not as_root:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)
        _set_capabilities(0)
    return True


def _become_nobody(folder: str) -> bool:
    """Root becomes `nobody`. It keeps the right to read everything only where the standard library could not be read without."""
    try:
        nobody = pwd.getpwnam("nobody")
        user, group = nobody.pw_uid, nobody.pw_gid
    except KeyError:
        user = group = 65534
    os.chown(folder, user, group)
    if _LINUX:
        _libc.prctl(_KEEPCAPS, 1, 0, 0, 0)
    try:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
    except PermissionError:  # root of a container that may not change user
        os.chown(folder, os.getuid(), os.getgid())
        return False
    if _LINUX:
        _set_capabilities(0 if os.access(os.__file__, os.R_OK) else _DAC_READ_SEARCH)
    return True


def _set_capabilities(allowed: int) -> None:
    """Effective and permitted capabilities; capset(2), version 3 of its header."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(allowed, allowed, 0, 0, 0, 0)
    if _libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


# what an argument of these events is: a path that would be changed
_CHANGES = {
    "os.mkdir": (0,), "os.remove": (0,), "os.rmdir": (0,), "os.rename": (0, 1), "os.link": (0, 1), "os.symlink": (1,),
    "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,), "os.setxattr": (0,), "os.removexattr": (0,),
    "sqlite3.connect": (0,),
}  # fmt: skip
_MAKES = {"os.mkdir", "os.link", "os.symlink"}
_FORBIDDEN = (
    "os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "subprocess.Popen", "pty.spawn",
    "os.kill", "os.killpg", "signal.pthread_kill", "resource.prlimit", "syslog.", "socket.connect", "socket.bind", "socket.getaddrinfo",
    "socket.gethostby", "socket.sendto", "ctypes.dlsym", "ctypes.dlopen", "ctypes.call_function",
)  # fmt: skip


def _guard(folder: str, files: int, say: Callable[[dict[str, Any]], None]) -> Callable[[str, tuple[Any, ...]], None]:
    """Ends the program at its first step outside what it may do: a refusal alone it could catch, and pass."""
    realpath, fsdecode, end = os.path.realpath, os.fsdecode, os._exit
    inside, made = folder + os.sep, [0]

    def stop(what: str) -> None:
        say({"failed": what[:300]})
        end(1)

    def changes(event: str, path: Any, makes: bool) -> None:
        if isinstance(path, int):  # an open file
            return
        where = realpath(fsdecode(path))
        if where != "/dev/null" and not (where + os.sep).startswith(inside):
            stop(f"{event} outside its folder: {where}")
        made[0] += makes
        if made[0] > files:
            stop(f"made more than {files} files")

    def guard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(arguments[2], int) and arguments[2] & _WRITES:
                changes(event, arguments[0], True)
        elif event in _CHANGES:
            for i in _CHANGES[event]:
                changes(event, arguments[i], event in _MAKES)
        elif event.startswith(_FORBIDDEN) and not (event == "ctypes.dlopen" and arguments[0] is None):
            stop(f"{event} is not allowed")

    return guard


if __name__ == "__main__":
    main()
