"""A Python function as the reward, found by its dotted path and called with what its parameters name.

`def f(texts)` is enough. By name a function also gets prompts, completions (or responses), any data column, or with **kwargs
all of them; functions written for TRL's trainers run unchanged, async ones too. Knows no model and no token ids.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from typing import Any

from rlctl.config.schema import FunctionFormat, FunctionRewardConfig
from rlctl.errors import RewardError, nearest
from rlctl.rewards.base import checked, shorten
from rlctl.rollout import Samples

_OURS = ("texts", "prompts", "completions", "responses")


def load_function(path: str) -> Callable[..., Any]:
    """The function at a dotted path. Nothing is looked up anywhere but on sys.path.

    Raises:
        RewardError: no such module, no such name in it, the module's own failure, or not callable; it says which.
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            here = ", ".join(p for p in sys.path[:2])
            raise RewardError(
                f"reward fn:{path}: there is no module {error.name!r}",
                f"looked first in {here}",
                f"run where {error.name.split('.')[0]}.py lies, or install its package",
            ) from error
        raise _own_failure(path, module_name, error) from error
    except Exception as error:  # whatever a user's module raises while it is imported
        raise _own_failure(path, module_name, error) from error
    if not hasattr(module, name):
        near = nearest(name, [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")])
        raise RewardError(
            f"reward fn:{path}: module {module_name} has no {name!r}",
            f"the module is {getattr(module, '__file__', None) or 'built in'}",
            f"reward=fn:{module_name}.{near}" if near else None,
        )
    function = getattr(module, name)
    if not callable(function):
        raise RewardError(f"reward fn:{path} is not callable", f"it is a {type(function).__name__}", "reward=fn:MODULE.FUNCTION")
    return function  # type: ignore[no-any-return]


def _own_failure(path: str, module_name: str, error: Exception) -> RewardError:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename and "/rlctl/" not in f.filename]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else getattr(error, "filename", module_name)
    return RewardError(
        f"reward fn:{path}: module {module_name!r} was found but failed while being imported",
        f"{where}\n{type(error).__name__}: {error}",
    )


class FunctionReward:
    """A function with its arguments bound by name."""

    def __init__(self, config: FunctionRewardConfig, function: Callable[..., Any]):
        self.name = f"fn:{config.path}"
        self.function = function
        self.format = config.format
        self.parameters = _parameters(function)

    def check_columns(self, columns: list[str]) -> None:
        """Every required parameter must be something that a sample has.

        Raises:
            RewardError: it lists what there is.
        """
        known = {*_OURS, *columns}
        required = [p.name for p in self.parameters if _is_required(p)]
        missing = [name for name in required if name not in known and name != self._text_parameter()]
        if missing:
            raise RewardError(
                f"reward {self.name} requires {', '.join(map(repr, missing))}, which no column of the data is called",
                f"columns: {', '.join(columns) or 'none'}; always there: {', '.join(_OURS)}",
                f"give the parameter a default, or name a column: def {getattr(self.function, '__name__', 'f')}(texts, {columns[0] if columns else 'answer'}, ...)",
            )

    def score(self, samples: Samples) -> list[float]:
        """Call the function once with all samples."""
        try:
            returned = self.function(**self.arguments(samples))
            if inspect.isawaitable(returned):
                returned = asyncio.run(_awaited(returned))
        except Exception as error:  # whatever a user's function raises
            frames = traceback.format_exception(error)
            why = f"{type(error).__name__}: {error}\nfirst text: {shorten(samples.texts[0])!r}\n{''.join(_below(frames))}"
            raise RewardError(f"reward {self.name} raised {type(error).__name__}", why.rstrip()) from error
        return checked(self.name, returned, samples)

    def arguments(self, samples: Samples) -> dict[str, Any]:
        """What the function will be called with: parameter name -> values aligned with the samples."""
        available = {**samples.columns, "texts": samples.texts, "responses": samples.responses}
        names = {p.name: p for p in self.parameters}
        available["prompts"] = self._as_asked("prompts", names, samples)
        available["completions"] = self._as_asked("completions", names, samples)
        if text_parameter := self._text_parameter():
            available[text_parameter] = samples.texts
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in self.parameters):
            return available
        return {name: available[name] for name in names if name in available}

    def _text_parameter(self) -> str | None:
        """The only required parameter, whatever it is called: it gets the texts, unless its name asks for something else."""
        required = [p.name for p in self.parameters if _is_required(p)]
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


async def _awaited(value: Any) -> Any:
    return await value


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.kind is not inspect.Parameter.VAR_POSITIONAL]


def _is_required(p: inspect.Parameter) -> bool:
    return p.default is inspect.Parameter.empty and p.kind is not inspect.Parameter.VAR_KEYWORD


def _below(frames: list[str]) -> list[str]:
    """A formatted traceback without this package's own frames."""
    return [f for f in frames if "/rlctl/rewards/" not in f and "/asyncio/" not in f]
