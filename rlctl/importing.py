"""What comes from outside: finds a function or class by its dotted path, says exactly what is wrong when it cannot, and holds what a
class of the user's keeps to plain data. Imports no torch: worker processes use it."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlctl.errors import RewardError, RlctlError, TrainingError, nearest


def load(path: str, written: str, error: type[RlctlError] = RewardError) -> Any:
    """What stands at a dotted path. Nothing is looked up anywhere but on sys.path.

    written: how it is asked for on the command line, such as `reward=fn:`.

    Raises:
        RlctlError: of the type `error`: no such module, no such name in it, or the module's own failure; it says which.
    """
    module_name, _, name = path.rpartition(".")
    called = f"{written.replace('=', ' ')}{path}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as failure:
        if failure.name and (module_name == failure.name or module_name.startswith(f"{failure.name}.")):
            here = ", ".join(p for p in sys.path[:2])
            raise error(
                f"{called}: there is no module {failure.name!r}",
                f"looked first in {here}",
                f"run where {failure.name.split('.')[0]}.py lies, or install its package",
            ) from failure
        raise error(*_own_failure(called, module_name, failure)) from failure
    except (Exception, SystemExit) as failure:  # whatever a user's module raises while it is imported
        raise error(*_own_failure(called, module_name, failure)) from failure
    if not hasattr(module, name):
        near = nearest(name, [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")])
        raise error(
            f"{called}: module {module_name} has no {name!r}",
            f"the module is {getattr(module, '__file__', None) or 'built in'}",
            f"{written}{module_name}.{near}" if near else None,
        )
    return getattr(module, name)


def _own_failure(called: str, module_name: str, failure: BaseException) -> tuple[str, str]:
    frames = [f for f in traceback.extract_tb(failure.__traceback__) if "importlib" not in f.filename and f.filename != __file__]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else getattr(failure, "filename", module_name)
    return f"{called}: module {module_name!r} was found but failed while being imported", f"{where}\n{type(failure).__name__}: {failure}"


def construct(group: str, path: str, first: Sequence[Any], args: dict[str, Any], error: type[RlctlError]) -> Any:
    """An object of the user's class at a dotted path, made of `first` and the arguments of the config.

    Raises:
        RlctlError: of the type `error`: it cannot be imported, is no class, has no such parameter, lacks an argument, or fails.
    """
    cls, called = load(path, f"{group}=class:", error), f"{group} class:{path}"
    if not inspect.isclass(cls):
        raise error(f"{called} is not a class", f"it is a {type(cls).__name__}", f"{group}=class:MODULE.CLASS")
    parameters = list(inspect.signature(cls).parameters.values())
    names = [p.name for p in parameters[len(first) :] if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if not takes_all and (extra := [a for a in args if a not in names]):
        near = nearest(extra[0], names)
        raise error(
            f"{called} has no parameter {extra[0]!r}",
            f"its parameters are: {', '.join(names) or 'none'}",
            f"{group}.args.{near}={args[extra[0]]}" if near else f"leave {group}.args.{extra[0]} out, or add the parameter",
        )
    try:
        inspect.signature(cls).bind(*first, **args)
    except TypeError as failure:
        raise error(f"{called} cannot be made", str(failure), f"{group}.args.NAME=VALUE gives it an argument") from failure
    try:
        return cls(*first, **args)
    except RlctlError:
        raise
    except Exception as failure:  # whatever a user's class raises
        raise error(f"{called} raised {type(failure).__name__}", f"{failure}\n{own_traceback(failure)}".rstrip()) from failure


def own_traceback(failure: BaseException) -> str:
    """An exception's traceback without this package's frames."""
    package = str(Path(__file__).parent)
    return "".join(f for f in traceback.format_exception(failure) if package not in f)


def kept(state: Any, called: str) -> dict[str, Any]:
    """A copy of what a class asks to be kept in checkpoints.

    Raises:
        TrainingError: it is not plain data, which a checkpoint could not be read back from.
    """
    if not isinstance(state, dict):
        raise TrainingError(f"{called}.state() returned a {type(state).__name__}, expected a dictionary")
    if (bad := _not_plain(state)) is not None:
        raise TrainingError(
            f"{called}.state() holds a {type(bad).__name__}",
            "a checkpoint keeps numbers, texts, None, tensors, and lists, tuples and dictionaries of them",
            "dict(...) of a Counter, list(...) of a set, float(...) of a numpy number",
        )
    return copy.deepcopy(state)


def _not_plain(value: Any) -> Any | None:
    """The first thing inside that is not plain data."""
    if type(value) is dict:
        inside = [*value.keys(), *value.values()]
    elif type(value) in (list, tuple):
        inside = list(value)
    else:
        cls = type(value)
        plain = value is None or cls in (bool, int, float, str) or f"{cls.__module__}.{cls.__name__}" == "torch.Tensor"
        return None if plain else value
    return next((bad for v in inside if (bad := _not_plain(v)) is not None), None)
