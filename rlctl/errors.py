"""Errors a user can act on. Each says what happened, why, and what to type instead; nothing here prints."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def nearest(word: str, words: Iterable[str], cutoff: float = 0.7) -> str | None:
    """The word most like the given one, for "did you mean"; None if none is close."""
    match = difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)
    return match[0] if match else None


class RlctlError(Exception):
    """An error with an exit status and a text in three parts.

    what: one line, the fact.  why: the cause, may hold several lines.  hint: what to type or change instead.
    """

    exit_status = 1

    def __init__(self, what: str, why: str | None = None, hint: str | None = None):
        super().__init__(what)
        self.what, self.why, self.hint = what, why, hint

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The message, one element a line, continuation lines aligned under their label."""
        lines = [f"error: {self.what}"]
        for label, text in (("why:", self.why), ("try:", self.hint)):
            for i, part in enumerate(text.splitlines() if text else []):
                lines.append(f"  {label if i == 0 else '    '}  {part}")
        return lines


class ConfigError(RlctlError):
    """The command line or a config file asks for something that cannot be."""

    exit_status = 2


class ModelError(ConfigError):
    """A policy or reward model path does not hold what the config says it holds."""


class DataError(RlctlError):
    """The prompts cannot be used as asked."""

    exit_status = 3


class RewardError(RlctlError):
    """The reward cannot be loaded, or did not return one finite number per sample."""

    exit_status = 3


class TrainingError(RlctlError):
    """Training cannot go on: a loss, gradient or log-probability is not finite, or a device gave up."""

    exit_status = 4


@contextmanager
def of_task(name: str) -> Iterator[None]:
    """Errors raised inside say which of several tasks they are about; "" is the only one of a run without tasks."""
    try:
        yield
    except RlctlError as error:
        if name:
            error.what = f"task {name}: {error.what}"
            error.args = (error.what,)
        raise
