"""Finds a function by its dotted path, and says exactly what is wrong when it cannot. Imports no torch: worker processes use it."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlctl.errors import RewardError, nearest


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
    except (Exception, SystemExit) as error:  # whatever a user's module raises while it is imported
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


def _own_failure(path: str, module_name: str, error: BaseException) -> RewardError:
    own = str(Path(__file__).parent)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename and not f.filename.startswith(own)]
    where = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else getattr(error, "filename", module_name)
    return RewardError(
        f"reward fn:{path}: module {module_name!r} was found but failed while being imported",
        f"{where}\n{type(error).__name__}: {error}",
    )
