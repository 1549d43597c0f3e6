"""Whether two answers are mathematically equal, by the library math-verify. Runs in a worker process; imports no torch."""

from __future__ import annotations

from typing import Any


def equal(right: list[str], answers: list[str]) -> list[bool | None]:
    """One verdict per pair; None where the right answer cannot be read. The library gives up after 5 seconds a step."""
    from math_verify import verify

    pairs = [(_read(r), _read(a)) for r, a in zip(right, answers, strict=True)]
    return [bool(verify(gold, target)) if gold else None for gold, target in pairs]


def _read(text: str) -> list[Any]:
    """Bare LaTeX is read as mathematics; a text that marks its mathematics itself is searched for it."""
    from math_verify import parse

    marked = any(mark in text for mark in ("$", r"\boxed", r"\(", r"\["))
    return list(parse(text) if marked else (parse(f"${text}$") or parse(text)))
