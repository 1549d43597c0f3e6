"""A Python function as the reward, called with what its parameters name.

`def f(texts)` is enough. By name a function also gets prompts, completions (or responses), any data column, or with **kwargs
all of them; functions written for TRL's trainers run unchanged, async ones too. Knows no model and no token ids.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rlctl.config.schema import FunctionFormat, FunctionRewardConfig
from rlctl.data import Prompts
from rlctl.errors import RewardError
from rlctl.report import Warning
from rlctl.rewards.base import Reward, Scored, checked, shorten
from rlctl.rewards.call import Caller, CallFailed
from rlctl.rewards.importing import load_function
from rlctl.rollout import Samples

_OURS = ("texts", "prompts", "completions", "responses")


class FunctionReward(Reward):
    """A function with its arguments bound by name."""

    runs_beside = True

    def __init__(self, config: FunctionRewardConfig, function: Callable[..., Any] | None = None, may_abstain: bool = False):
        self.name = f"fn:{config.path}"
        self.config = config
        self.function = function if function is not None else load_function(config.path)
        self.format = config.format
        self.parameters = _parameters(self.function, self.name)
        self.may_abstain = may_abstain
        self.caller = Caller(config, self.function)

    @property
    def is_async(self) -> bool:
        """Whether it waits rather than computes, so that several can wait at once."""
        return inspect.iscoroutinefunction(self.function)

    def check(self, prompts: Prompts) -> None:
        """Every parameter must have something to be given."""
        self.check_columns(prompts.columns)

    def check_columns(self, columns: list[str]) -> None:
        """Every required parameter must be something that a sample has, and every argument a parameter.

        Raises:
            RewardError: it lists what there is.
        """
        names = {p.name for p in self.parameters}
        extra = [a for a in self.config.args if a not in names and not self._takes_all]
        if extra:
            raise RewardError(
                f"reward {self.name} has no parameter {extra[0]!r}",
                f"its parameters are: {', '.join(sorted(names))}",
                f"leave reward.args.{extra[0]} out, or add the parameter",
            )
        known = {*_OURS, *columns, *self.config.args}
        missing = [name for name in self._required() if name not in known and name != self._text_parameter()]
        if missing:
            example = columns[0] if columns else "answer"
            raise RewardError(
                f"reward {self.name} requires {', '.join(map(repr, missing))}, which no column of the data is called",
                f"columns: {', '.join(columns) or 'none'}; always there: {', '.join(_OURS)}",
                f"give the parameter a default, or name a column: def {self._called}(texts, {example}, ...)",
            )

    @property
    def _called(self) -> str:
        return getattr(self.function, "__name__", "f")

    def score(self, samples: Samples) -> list[float]:
        """Call the function with all samples; one number each."""
        return [s for s in self.scored_or_none(samples) if s is not None]

    def scored(self, samples: Samples) -> Scored:
        """The scores; a function has no parts."""
        return Scored(self.score(samples))

    def scored_or_none(self, samples: Samples) -> list[float | None]:
        """As score, with None where the function abstained and may."""
        try:
            returned = self.caller(self.arguments(samples), len(samples))
        except CallFailed as failed:
            why = f"{failed.what}\nfirst text: {shorten(samples.texts[0])!r}\n{failed.traceback}"
            raise RewardError(f"reward {self.name} {failed.how}", why.rstrip(), failed.hint) from failed.__cause__
        return checked(self.name, returned, samples, self.may_abstain)

    def warnings(self) -> list[Warning]:
        """A count of the texts that took too long."""
        if not self.caller.timed_out:
            return []
        return [
            Warning(
                f"timeout {self.name}",
                f"{self.caller.timed_out} texts got reward.timeout_score={self.config.timeout_score:g}",
                f"{self.name} took longer than reward.timeout={self.config.timeout:g} seconds",
                "a higher reward.timeout, reward.workers for a function that computes, or a faster function",
            )
        ]

    def arguments(self, samples: Samples) -> dict[str, Any]:
        """What the function will be called with: parameter name -> values aligned with the samples."""
        available = {**samples.columns, "texts": samples.texts, "responses": samples.responses}
        names = {p.name: p for p in self.parameters}
        available["prompts"] = self._as_asked("prompts", names, samples)
        available["completions"] = self._as_asked("completions", names, samples)
        if text_parameter := self._text_parameter():
            available[text_parameter] = samples.texts
        if not self._takes_all:
            available = {name: available[name] for name in names if name in available}
        return {**available, **self.config.args}

    @property
    def _takes_all(self) -> bool:
        return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self.parameters)

    def _required(self) -> list[str]:
        return [p.name for p in self.parameters if _is_required(p) and p.name not in self.config.args]

    def _text_parameter(self) -> str | None:
        """The only required parameter, whatever it is called: it gets the texts, unless its name asks for something else."""
        required = self._required()
        return required[0] if len(required) == 1 and required[0] not in _OURS else None

    def _as_asked(self, name: str, names: dict[str, inspect.Parameter], samples: Samples) -> list[Any]:
        """Prompts or completions as text, or as TRL's lists of messages."""
        annotation = str(names[name].annotation) if name in names else ""
        wants = self.format is FunctionFormat.messages or (
            self.format is FunctionFormat.auto and (samples.messages is not None or "dict" in annotation.lower())
        )
        if name == "completions":
            return [[{"role": "assistant", "content": r}] for r in samples.responses] if wants else samples.responses
        if not wants:
            return samples.prompts
        return samples.messages if samples.messages is not None else [[{"role": "user", "content": p}] for p in samples.prompts]


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise RewardError(f"reward {name} does not say what it takes", str(error), "wrap it: def reward(texts): ...") from error
    return [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_POSITIONAL]


def _is_required(p: inspect.Parameter) -> bool:
    return p.default is inspect.Parameter.empty and p.kind is not inspect.Parameter.VAR_KEYWORD
