"""Judges a response by the right answer in its row: extracts what the response answers, and compares. Knows no model."""

from __future__ import annotations

import re
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

from rlctl.config.judges import Compare, Extract, JudgeConfig, judge_name
from rlctl.config.schema import FunctionRewardConfig, OnTimeout
from rlctl.data import Prompts
from rlctl.errors import DataError, RewardError
from rlctl.judges import mathematics
from rlctl.judges.base import Judge
from rlctl.judges.columns import cell, check_column
from rlctl.rewards.call import Caller
from rlctl.rollout import Samples

MATH_SECONDS = 30.0


class AnswerJudge(Judge):
    """Passes a response whose answer is the row's. What is extracted from a response is looked for in the row's cell too
    (`... #### 18`); a cell without it is taken whole."""

    def __init__(self, config: JudgeConfig):
        self.name, self.config = judge_name(config), config
        self.column = config.column or ""
        if config.compare is Compare.math and find_spec("math_verify") is None:
            raise RewardError(
                f"judge {self.name}: compare: math needs the library math-verify", "it is not installed", "pip install math-verify"
            )
        # in a process of its own, because the library limits its time with a signal, which only a main thread can receive
        asked = FunctionRewardConfig(path="rlctl.judges.mathematics.equal", workers=1, timeout=MATH_SECONDS, on_timeout=OnTimeout.score)
        self._math = Caller(asked, mathematics.equal)

    def check(self, prompts: Prompts) -> None:
        """Every row must hold an answer that can be compared."""
        check_column(self.name, self.column, prompts)
        for prompt in prompts.items:
            if self._right(cell(prompt.columns, self.column)) is None:
                raise DataError(
                    f"judge {self.name}: row {prompt.row} has no answer to compare with",
                    f"column {self.column!r} holds {prompt.columns.get(self.column)!r:.80}; compare: {self.config.compare}",
                    "compare: text, or leave the row out",
                )

    def judge(self, samples: Samples) -> list[bool | None]:
        """Compare every response; None where the row has nothing to compare with."""
        cells = samples.columns[self.column]
        return [self._one(samples.responses[i], cells[i]) for i in range(len(samples))]

    def _one(self, response: str, right: Any) -> bool | None:
        wanted = self._right(None if right is None else str(right))
        found = extracted(response, self.config.extract, self.config.delimiter)
        if wanted is None or found is None:
            return None if wanted is None else False
        if self.config.compare is Compare.number:
            return number(found) == number(wanted)
        if self.config.compare is Compare.math:
            (equal,) = self._math({"right": [wanted], "answers": [found]}, 1)
            return None if equal is None else bool(equal)
        fold = str.casefold if self.config.ignore_case else str
        return fold(found.strip()) == fold(wanted.strip())

    def _right(self, text: str | None) -> str | None:
        if text is None or not text.strip():
            return None
        found = extracted(text, self.config.extract, self.config.delimiter)
        wanted = text if found is None else found
        return None if self.config.compare is Compare.number and number(wanted) is None else wanted


_NUMBER = re.compile(
    r"""(?<![\w.])(?:(?<![\w)\]}])[-+−])?          # a sign only where it does not stand between two numbers
        (?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))  # 1,234.5  12  .5
        (?:[eE][-+]?\d{1,3}(?!\d))?
        (?:\s?/\s?\d+(?:\.\d+)?(?![\d/]))?""",
    re.VERBOSE,
)


def extracted(text: str, how: Extract, delimiter: str) -> str | None:
    r"""What a text answers, None if it gives no answer.

    >>> extracted("6 x 3 = 18, so it costs $1,018.50.", Extract.last_number, "")
    '1,018.50'
    >>> extracted("It is 18 #### 18 \nBye", Extract.delimited, "####")
    '18'
    >>> extracted(r"Thus \boxed{1}, no, \boxed{\frac{1}{2}}.", Extract.delimited, r"\boxed{}")
    '\\frac{1}{2}'
    """
    if how is Extract.whole:
        return text.strip() or None
    if how is Extract.last_number:
        found = _NUMBER.findall(text)
        return found[-1] if found else None
    opening = delimiter[:-1] if delimiter.endswith("{}") else delimiter
    _, at, rest = text.rpartition(opening)
    if not at:
        return None
    inner = _braced(rest) if opening != delimiter else rest.partition("\n")[0]
    return (inner or "").strip() or None


def _braced(rest: str) -> str | None:
    """What stands before the brace that closes the one just opened."""
    depth = 1
    for i, ch in enumerate(rest):
        depth += (ch == "{") - (ch == "}")
        if depth == 0:
            return rest[:i]
    return None


_LATEX = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_AROUND = re.compile(r"\\[,;! ]|\\text\{[^{}]*\}|[$€£%\s*`]|\\(?=[$%])")
_DIGITS = 200


def number(text: str) -> Fraction | None:
    r"""The exact number that a text is, or the only one that it holds; None if it is none or holds several.

    Currency and percent signs, blanks and thousands' commas are left out: 50% is 50. Fractions may be written 1/2 or \frac{1}{2}.

    >>> [str(number(t)) for t in ("1,234.50", "-3", "1e3", "1/4", r"-\frac{3}{4}", "$18", "18 dollars", "18 or 19", "x", "1/0")]
    ['2469/2', '-3', '1000', '1/4', '-3/4', '18', '18', 'None', 'None', 'None']
    """
    plain = _LATEX.sub(r"\1/\2", text)
    whole = _AROUND.sub("", plain).rstrip(".")
    if _NUMBER.fullmatch(whole):
        return _exact(whole)
    found = _NUMBER.findall(plain)
    return _exact(found[0]) if len(found) == 1 else None


def _exact(text: str) -> Fraction | None:
    digits = text.replace(",", "").replace("−", "-").replace(" ", "")
    if len(digits) > _DIGITS:  # what no answer needs, and what costs seconds
        return None
    above, _, below = digits.partition("/")
    try:
        return Fraction(above) / Fraction(below or 1)
    except (ValueError, ZeroDivisionError):
        return None
