"""How a user's function is called: once for all texts or shared among processes, with a limit on time, repeated after a passing
error. Imports no torch: worker processes use it too."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from rlctl.config.schema import FunctionRewardConfig, OnTimeout
from rlctl.rewards.importing import load_function

_OWN = str(Path(__file__).parent)


class CallFailed(Exception):
    """A call ended without a result: how (for the headline), what, the function's own traceback, and what to change."""

    def __init__(self, how: str, what: str, traceback: str = "", hint: str | None = None, names: tuple[str, ...] = ()):
        super().__init__(what)
        self.how, self.what, self.traceback, self.hint, self.names = how, what, traceback, hint, names


class TimedOut(Exception):
    """A call took longer than it may."""


class Caller:
    """Calls one function by the rules of its config."""

    def __init__(self, config: FunctionRewardConfig, function: Callable[..., Any]):
        self.config, self.function = config, function
        self.timed_out = 0
        """Texts that got the timeout score since the start."""
        self._pool: ProcessPoolExecutor | None = None

    def __call__(self, arguments: dict[str, Any], count: int) -> Any:
        """What the function returns for `count` samples.

        Raises:
            CallFailed: it raised, or took too long under reward.on_timeout=error.
        """
        pause = self.config.retry_pause
        for attempt in range(self.config.retries + 1):
            try:
                return self._shared(arguments, count) if self.config.workers else self._here(arguments, count)
            except CallFailed as failed:
                passing = set(failed.names) & set(self.config.retry_on)
                if not passing or attempt == self.config.retries:
                    if passing and self.config.retries:
                        failed.how += f", {self.config.retries + 1} times"
                    raise
                time.sleep(pause)
                pause *= 2
        raise AssertionError("unreachable")

    def _here(self, arguments: dict[str, Any], count: int) -> Any:
        """In this process: directly, or beside a clock in a thread of its own."""
        try:
            if self.config.timeout is None:
                return _call(self.function, arguments)
            return _within(self.config.timeout, lambda: _call(self.function, arguments))
        except TimedOut:
            return self._too_long(count)
        except (Exception, SystemExit) as error:  # whatever a user's function raises
            raise _failed(_described(error)) from error

    def _too_long(self, count: int) -> list[float]:
        if self.config.on_timeout is OnTimeout.error:
            hint = "a higher reward.timeout, or reward.on_timeout=score with reward.timeout_score"
            raise CallFailed("took too long", f"longer than reward.timeout={self.config.timeout:g} seconds", "", hint)
        self.timed_out += count
        return [self.config.timeout_score] * count

    def _shared(self, arguments: dict[str, Any], count: int) -> list[Any]:
        """Every worker gets an even share of the texts; a share that takes too long ends all processes."""
        pool = self._ready_pool()
        size = -(-count // self.config.workers)
        constant = set(self.config.args)
        futures: list[tuple[int, Future[Any]]] = []
        for start in range(0, count, size):
            share = {k: (v if k in constant else v[start : start + size]) for k, v in arguments.items()}
            futures.append((min(size, count - start), pool.submit(_work, share)))
        deadline = None if self.config.timeout is None else time.monotonic() + self.config.timeout
        results: list[Any] = []
        for n, future in futures:
            # once the pool was ended for one share, those that were not done by then have taken too long as well
            ended = self._pool is None
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                results += self._share(future.result(left), n)
            except FutureTimeout:
                self._end_pool()
                results += self._too_long(n)
            except (BrokenProcessPool, CancelledError) as error:
                self._end_pool()
                if not ended:
                    raise CallFailed("ended its worker process", f"{type(error).__name__}: {error}") from error
                results += self._too_long(n)
        return results

    def _ready_pool(self) -> ProcessPoolExecutor:
        """The workers, started: their start does not count as the call."""
        if self._pool is None:
            self._pool = _open_pool(self.config)
            try:
                for future in [self._pool.submit(_nothing) for _ in range(self.config.workers)]:
                    future.result()
            except BrokenProcessPool as error:
                self._end_pool()
                raise CallFailed("could not be loaded in a worker process", str(error), "", "reward.workers=0 shows why") from error
        return self._pool

    def _share(self, answer: tuple[str, Any], n: int) -> list[Any]:
        kind, value = answer
        if kind == "raised":
            raise _failed(value)
        if not isinstance(value, (list, tuple)) or len(value) != n:
            size = f"{len(value)} scores" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"
            raise CallFailed(f"returned {size} for {n} texts", "expected a list of numbers, one per text")
        return list(value)

    def _end_pool(self) -> None:
        if self._pool is not None:
            for process in list(self._pool._processes.values()):
                process.kill()  # a function that computes for ever does not listen
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    named = dict(arguments)
    try:
        only = [p.name for p in inspect.signature(function).parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    except (TypeError, ValueError):  # a builtin without a signature
        only = []
    returned = function(*[named.pop(name) for name in only if name in named], **named)
    return asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned


async def _awaited(value: Any) -> Any:
    return await value


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """The result of a call, or TimedOut; a call that hangs is left behind in its daemon thread."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((True, call()))
        except (Exception, SystemExit) as error:  # handed to the caller's thread
            outcome.append((False, error))

    thread = threading.Thread(target=run, daemon=True, name="reward")
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimedOut
    good, value = outcome[0]
    if good:
        return value
    raise value


def _described(error: BaseException) -> tuple[str, str, tuple[str, ...]]:
    """(what, traceback without this package's frames, names of the error's classes)."""
    frames = [f for f in traceback.format_exception(error) if _OWN not in f and "/asyncio/" not in f]
    return f"{type(error).__name__}: {error}", "".join(frames), tuple(c.__name__ for c in type(error).__mro__)


def _failed(described: tuple[str, str, tuple[str, ...]]) -> CallFailed:
    what, text, names = described
    return CallFailed(f"raised {names[0]}", what, text, names=names)


_worker_function: Callable[..., Any] | None = None


def _open_pool(config: FunctionRewardConfig) -> ProcessPoolExecutor:
    # spawn: a forked process would share torch's threads and the GPU's context
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(config.workers, context, _start_worker, (config.path, list(sys.path)))


def _start_worker(path: str, search: list[str]) -> None:
    global _worker_function
    sys.path[:] = search
    _worker_function = load_function(path)


def _nothing() -> None:
    pass


def _work(arguments: dict[str, Any]) -> tuple[str, Any]:
    assert _worker_function is not None
    try:
        returned = _call(_worker_function, arguments)
        return "returned", returned.tolist() if hasattr(returned, "tolist") else returned
    except (Exception, SystemExit) as error:  # not every exception survives the way to another process
        return "raised", _described(error)
