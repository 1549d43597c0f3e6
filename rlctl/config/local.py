"""Relative paths in a config: those a recipe's files hold are meant from the recipe, typed ones from the working folder."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from rlctl.config.judges import JudgeConfig, JudgeKind
from rlctl.config.schema import Config, RewardConfig


@dataclass(frozen=True)
class _Places:
    typed: frozenset[str]
    """Keys on the command line."""
    recipe: Path | None

    def resolved(self, value: str, *keys: str) -> str:
        """The value of a key, absolute if it is a path on this machine; `keys`: the key and what it may have been typed as part of."""
        if value in ("", "builtin", "?"):
            return value
        path = Path(value).expanduser()
        base = self.recipe if self.recipe is not None and not self.typed & set(keys) else Path.cwd()
        full = path if path.is_absolute() else base / path
        return str(full) if full.exists() or _looks_local(value) else value


def resolve_paths(config: Config, overrides: list[str], recipe: Path | None) -> Config:
    """Make the local paths of a config absolute: models, data, templates, reward models, judges' models, a task's own too."""
    places = _Places(frozenset(text.lstrip("+").partition("=")[0] for text in overrides), recipe)
    tasks = {}
    for name, task in config.tasks.items():
        where = f"tasks.{name}"
        tasks[name] = replace(
            task,
            data=_keys(places, task.data, f"{where}.data", "path", "chat_template"),
            reward=_reward(places, task.reward, f"{where}.reward"),
            judges=_judges(places, task.judges, f"{where}.judges"),
        )
    return replace(
        config,
        model=_keys(places, config.model, "model", "path"),
        data=_keys(places, config.data, "data", "path", "chat_template"),
        reward=_reward(places, config.reward, "reward"),
        judges=_judges(places, config.judges, "judges"),
        tasks=tasks,
    )


def _keys(places: _Places, node: Any, where: str, *names: str) -> Any:
    if node is None:
        return None
    held = {name: value for name in names if isinstance(value := getattr(node, name), str)}
    return replace(node, **{name: places.resolved(value, where, f"{where}.{name}") for name, value in held.items()})


def _reward(places: _Places, reward: RewardConfig | None, where: str) -> Any:
    if reward is None:
        return None

    def spec(text: str | None, key: str) -> str | None:
        kind, colon, value = (text or "").partition(":")
        return f"model:{places.resolved(value, where, key)}" if colon and kind == "model" else text

    changes: dict[str, Any] = {}
    names = {f.name for f in fields(reward)}
    if "base" in names:
        changes["base"] = spec(reward.base, f"{where}.base")  # type: ignore[attr-defined]
    if "terms" in names:
        terms = reward.terms  # type: ignore[attr-defined]
        changes["terms"] = [replace(t, reward=spec(t.reward, f"{where}.terms")) for t in terms]
    if reward.kind != "fn":
        changes["path"] = places.resolved(reward.path, where, f"{where}.path")
    return replace(reward, **changes)


def _judges(places: _Places, judges: list[JudgeConfig] | None, where: str) -> Any:
    if judges is None:
        return None
    return [replace(j, path=places.resolved(j.path, where)) if j.kind is JudgeKind.llm and j.path else j for j in judges]


def _looks_local(value: str) -> bool:
    """A path by its form, so that a missing file is never taken for the name of something on a hub."""
    return value.startswith((".", "/", "~")) or value.endswith((".jsonl", ".json", ".csv", ".parquet", ".jinja"))
