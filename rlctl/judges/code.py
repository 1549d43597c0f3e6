"""Judges a response by running its code against the tests in its row, in a child process: see `sandbox` for what that contains.

That is containment of accidents, not a security boundary against a determined attacker. Knows no model.
"""

from __future__ import annotations

import ast
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlctl.config.judges import JudgeConfig, judge_name
from rlctl.data import Prompt, Prompts
from rlctl.errors import DataError, RewardError
from rlctl.judges.base import Judge
from rlctl.judges.columns import cell, check_column
from rlctl.judges.rules import last_block
from rlctl.judges.sandbox import Isolation, Limits, Outcome, Program, run
from rlctl.report import Warning
from rlctl.rollout import Samples

_PYTHON = ("python", "py", "python3")


class CodeJudge(Judge):
    """Passes a response whose code runs its row's tests to their end without an exception, within its limits.

    The code is the last fenced block marked as Python, else the last fenced block, else the whole response. Code and tests run in
    one module, whose `__name__` is not `__main__`. A row without tests, or a child process that could not be started, is None.
    """

    def __init__(self, config: JudgeConfig):
        self.name, self.config = judge_name(config), config
        self.column = config.column or ""
        self.limits = Limits(config.timeout, config.memory_mb)
        self.isolation: Isolation | None = None
        """What the child processes could set up on this system; known after `check`."""
        self._not_run: list[str] = []

    def check(self, prompts: Prompts) -> None:
        """Every row must hold tests that compile, and a program must run here."""
        check_column(self.name, self.column, prompts)
        if self.config.entry_point_column is not None:
            check_column(self.name, self.config.entry_point_column, prompts)
        for prompt in prompts.items:
            self._check_row(prompt)
        tried = run(Program("x = 1", "assert x == 1"), self.limits)
        if not tried.passed:
            raise RewardError(f"judge {self.name} cannot run code here", tried.why, "a higher timeout or memory_mb")
        self.isolation = tried.isolation

    def _check_row(self, prompt: Prompt) -> None:
        tests = joined_tests(prompt.columns.get(self.column))
        if tests is None:
            raise DataError(
                f"judge {self.name}: row {prompt.row} has no tests",
                f"column {self.column!r} holds {prompt.columns.get(self.column)!r:.80}; expected Python code, or a list of it",
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of their escapes: the data's business
                tree = ast.parse(tests)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise DataError(
                f"judge {self.name}: the tests of row {prompt.row} are not Python", f"{type(error).__name__}: {error}"
            ) from error
        if self.config.entry_point_column is None:
            return
        entry = cell(prompt.columns, self.config.entry_point_column)
        if entry is None or not entry.isidentifier():
            why = f"column {self.config.entry_point_column!r} holds {entry!r:.80}"
            raise DataError(f"judge {self.name}: row {prompt.row} names no function", why)
        if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
            why = "with entry_point_column, check is called with the function"
            raise DataError(f"judge {self.name}: the tests of row {prompt.row} define no check(candidate)", why)

    def judge(self, samples: Samples) -> list[bool | None]:
        """Run every response, several at a time."""
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "code") as threads:
            outcomes = list(threads.map(lambda i: self.outcome(samples, i), range(len(samples))))
        self._not_run += [o.why for o in outcomes if o.passed is None]
        return [o.passed for o in outcomes]

    def outcome(self, samples: Samples, i: int) -> Outcome:
        """How sample i ended, with the reason."""
        row = {name: values[i] for name, values in samples.columns.items()}
        tests = joined_tests(row.get(self.column))
        if tests is None:
            return Outcome(None, f"no tests in column {self.column!r}")
        code = code_of(samples.responses[i])
        if self.config.with_prompt:
            code = samples.prompts[i] + code
        entry = self.config.entry_point_column
        return run(Program(code, tests, cell(row, entry) if entry else None), self.limits)

    def warnings(self) -> list[Warning]:
        """What the system does not enforce here, and responses that could not be run."""
        found = []
        if self.isolation is not None and (lacking := self.isolation.lacking()):
            found.append(
                Warning(
                    f"isolation {self.name}",
                    f"judge {self.name}: only Python's own hooks keep a response from {', '.join(lacking)}",
                    "this system does not let a process set up more",
                    "run in a container that can be thrown away",
                )
            )
        if self._not_run:
            found.append(
                Warning(
                    f"not run {self.name}",
                    f"judge {self.name} could not run {len(self._not_run)} responses; they count as not satisfied",
                    self._not_run[0],
                    "free memory, processes or disk, or fill the rows without tests",
                )
            )
        return found


def code_of(response: str) -> str:
    """The code of a response: its last fenced block (one marked as Python before others), or all of it.

    >>> code_of("Sure:\\n```python\\nx = 1\\n```\\nIt prints\\n```text\\n1\\n```")
    'x = 1\\n'
    >>> code_of("    return a + b")
    '    return a + b'
    """
    block = last_block(response, _PYTHON)
    return response if block is None else block


def joined_tests(value: Any) -> str | None:
    """A cell's tests as one text; None if there are none."""
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        value = "\n".join(value)
    return value if isinstance(value, str) and value.strip() else None
