"""The keys of the config as text: name, type, default and the documentation that stands beneath each field."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from rlctl.config import judges, schema, stages, tasks
from rlctl.config.judges import JudgeConfig
from rlctl.config.tasks import TaskConfig


@dataclass(frozen=True)
class Key:
    """One config key."""

    name: str
    default: str
    doc: str
    takes: str = ""
    """Its values in words."""


@cache
def _field_docs() -> dict[str, dict[str, str]]:
    """Class name -> field name -> the string literal beneath the field."""
    docs: dict[str, dict[str, str]] = {}
    for node in [n for module in (schema, judges, tasks, stages) for n in ast.parse(inspect.getsource(module)).body]:
        if isinstance(node, ast.ClassDef):
            fields = docs.setdefault(node.name, {})
            for before, after in zip(node.body, node.body[1:], strict=False):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and is_text:
                    fields[before.target.id] = " ".join(str(after.value.value).split())
    return docs


def _doc(cls: type, name: str) -> str:
    return next((d for c in cls.__mro__ if (d := _field_docs().get(c.__name__, {}).get(name))), "")


def _default(f: dataclasses.Field[Any]) -> str:
    value = f.default if f.default is not dataclasses.MISSING else f.default_factory()  # type: ignore[misc]
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def keys(cls: type, prefix: str) -> list[Key]:
    """The keys of one config class in order, the ones it inherits first; a group inside it gives its own."""
    found, hints = list[Key](), get_type_hints(cls)
    for f in dataclasses.fields(cls):
        if dataclasses.is_dataclass(f.default_factory):
            found += keys(f.default_factory, f"{prefix}{f.name}.")  # type: ignore[arg-type]
        else:
            found.append(Key(f"{prefix}{f.name}", _default(f), _doc(cls, f.name), _takes(hints[f.name], f)))
    return found


_WORDS = {bool: "true, false", int: "integer", float: "number", str: "text", Any: "see there"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _takes(hint: Any, f: dataclasses.Field[Any]) -> str:
    """The values of a field in words."""
    parts = get_args(hint)
    if optional := type(None) in parts:
        hint = next(p for p in parts if p is not type(None))
        parts = get_args(hint)
    origin = get_origin(hint) or hint
    if origin is list:
        words = "list of texts" if parts == (str,) else "list of mappings"
    elif origin is dict:
        words = "mapping"
    elif inspect.isclass(hint) and issubclass(hint, StrEnum):
        words = ", ".join(hint)
    else:
        words = _WORDS[hint]
    bounds = " and ".join(f"{_BOUNDS[k]} {v:g}" for k, v in f.metadata.items())
    if "ge" in f.metadata and f.metadata["ge"] == f.metadata.get("le"):
        words, bounds = f"{f.metadata['ge']:g}", ""
    return words + (f" {bounds}" if bounds else "") + (", null" if optional else "")


def seed() -> Key:
    """The one key that stands in no group."""
    f = next(f for f in dataclasses.fields(schema.Config) if f.name == "seed")
    return Key("seed", _default(f), _doc(schema.Config, "seed"), _takes(int, f))


def groups(root: type = schema.Config) -> list[tuple[str, str, list[Key]]]:
    """(group, its one-line meaning, its keys) for every group; options with keys of their own follow as `algo=ppo`."""
    out: list[tuple[str, str, list[Key]]] = []
    for f in dataclasses.fields(root):
        if f.name in schema.OPTIONS:
            base = schema.AlgoConfig if f.name == "algo" else schema.RewardConfig
            shared = {g.name: _default(g) for g in dataclasses.fields(base)}
            told = ("name", "kind")
            out.append((f.name, title(base), keys(base, f"{f.name}.")))
            for option, cls in schema.OPTIONS[f.name].items():
                found = [(k.name.partition(".")[2], k) for k in keys(cls, f"{f.name}.")]
                own = [k for name, k in found if name == "path" or (name not in told and shared.get(name) != k.default)]
                own += keys(schema.TermConfig, "reward.terms[].") if cls is schema.WeightedRewardConfig else []
                out.append((f"{f.name}={option}", title(cls), own))
        elif f.name == "judges":
            listed = [Key("judges", "[]", _doc(schema.Config, "judges")), *keys(JudgeConfig, "judges[].")]
            out.append(("judges[]", "One judge: a list of them stands in `judges`.", listed))
        elif f.name == "tasks":
            listed = [Key("tasks", "{}", _doc(schema.Config, "tasks")), *keys(TaskConfig, "tasks.NAME.")]
            out.append(("tasks[]", title(TaskConfig), listed))
        elif f.default_factory is not dataclasses.MISSING:
            cls = f.default_factory
            out.append((f.name, title(cls), keys(cls, f"{f.name}.")))  # type: ignore[arg-type]
    return out


def title(cls: Any) -> str:
    """The first line of a class's documentation."""
    return (inspect.getdoc(cls) or "").splitlines()[0]


@cache
def known_keys(root: type = schema.Config) -> tuple[str, ...]:
    """Every key that any option has, groups included."""
    names = {"seed"}
    for f in dataclasses.fields(root):
        if f.default_factory is dataclasses.MISSING:
            continue
        names.add(f.name)
        if f.name in ("judges", "tasks"):
            continue
        for cls in schema.OPTIONS.get(f.name, {"": f.default_factory}).values():
            names |= {k.name for k in keys(cls, f"{f.name}.")}  # type: ignore[arg-type]
    return tuple(sorted(names))
