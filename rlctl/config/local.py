"""Relative paths in a config: those a recipe's files hold are meant from the recipe, typed ones from the working folder."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from rlctl.config.judges import JudgeConfig, JudgeKind
from rlctl.config.schema import Config, DataConfig, RewardConfig


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


def resolve_paths(config: Any, overrides: list[str], recipe: Path | None) -> Any:
    """Make the local paths of a config absolute: models, data, templates, reward models, judges' models, a task's own too."""
    places = _Places(frozenset(key for text in overrides for key in _typed(text)), recipe)
    model = replace(config.model, path=places.resolved(config.model.path, "model", "model.path"))
    if not isinstance(config, Config):  # a stage before PPO
        return replace(config, model=model, data=_data(places, config.data, "data"))
    tasks = {}
    for name, task in config.tasks.items():
        where = f"tasks.{name}"
        tasks[name] = replace(
            task,
            data=_data(places, task.data, f"{where}.data", config.data),
            reward=_reward(places, task.reward, f"{where}.reward", config.reward),
            judges=_judges(places, task.judges, f"{where}.judges"),
        )
    given = config.launch.accelerate_config
    return replace(
        config,
        model=model,
        data=_data(places, config.data, "data"),
        reward=_reward(places, config.reward, "reward"),
        judges=_judges(places, config.judges, "judges"),
        launch=replace(config.launch, accelerate_config=given and places.resolved(given, "launch.accelerate_config")),
        tasks=tasks,
    )


def _typed(override: str) -> list[str]:
    """The keys that an override sets: of `key={a: 1, b: 2}`, key.a and key.b. `data=mine` names an option: a path in its file was not
    typed, as that of `data=file:mine.jsonl` was."""
    key, _, value = override.lstrip("+").partition("=")
    if key in ("model", "data", "reward") and ":" not in value:
        return []
    if not value.startswith("{"):
        return [key]
    parsed = OverridesParser.create().parse_override(override).value()
    return [f"{key}.{inner}" for inner in parsed] if isinstance(parsed, dict) else [key]


def _keys(node: Any, name: str, where: str, run: Any) -> tuple[str, str]:
    """What a field may have been typed as; a task's field that is as in the run's node was taken from there."""
    if run is not None and getattr(node, name) == getattr(run, name, None):
        where = where.rpartition(".")[2]
    return where, f"{where}.{name}"


def _data(places: _Places, data: DataConfig | None, where: str, run: DataConfig | None = None) -> Any:
    if data is None:
        return None
    held = {name: value for name in ("path", "chat_template") if isinstance(value := getattr(data, name), str)}
    return replace(data, **{name: places.resolved(value, *_keys(data, name, where, run)) for name, value in held.items()})


def _reward(places: _Places, reward: RewardConfig | None, where: str, run: RewardConfig | None = None) -> Any:
    if reward is None:
        return None

    def spec(text: str | None, name: str) -> str | None:
        kind, colon, value = (text or "").partition(":")
        return f"model:{places.resolved(value, *_keys(reward, name, where, run))}" if colon and kind == "model" else text

    changes: dict[str, Any] = {}
    names = {f.name for f in fields(reward)}
    if "base" in names:
        changes["base"] = spec(reward.base, "base")  # type: ignore[attr-defined]
    if "terms" in names:
        terms = reward.terms  # type: ignore[attr-defined]
        changes["terms"] = [replace(t, reward=spec(t.reward, "terms")) for t in terms]
    if reward.kind not in ("fn", "class"):
        changes["path"] = places.resolved(reward.path, *_keys(reward, "path", where, run))
    return replace(reward, **changes)


def _judges(places: _Places, judges: list[JudgeConfig] | None, where: str) -> Any:
    if judges is None:
        return None
    return [replace(j, path=places.resolved(j.path, where)) if j.kind is JudgeKind.llm and j.path else j for j in judges]


def _looks_local(value: str) -> bool:
    """A path by its form, so that a missing file is never taken for the name of something on a hub."""
    return value.startswith((".", "/", "~")) or value.endswith((".jsonl", ".json", ".csv", ".parquet", ".jinja"))
