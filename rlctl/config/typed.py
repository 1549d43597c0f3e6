"""From the free forms in which a task writes its prompts and its reward to typed configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlctl.config import explain
from rlctl.config.paths import KINDS
from rlctl.config.schema import OPTIONS, Config, DataConfig, RewardConfig
from rlctl.config.tasks import TaskConfig
from rlctl.errors import ConfigError, nearest

_REWARDS = OPTIONS["reward"]


def open_schema(schema: Any) -> DictConfig:
    """The schema of a frozen dataclass that can still be overridden: OmegaConf makes frozen classes read-only."""
    node = OmegaConf.structured(schema)

    def thaw(n: DictConfig) -> None:
        OmegaConf.set_readonly(n, None)
        for key in n:
            child = n._get_node(key)
            if isinstance(child, DictConfig) and not child._is_none():
                thaw(child)

    thaw(node)
    return node


def typed_tasks(config: Config) -> Config:
    """The config with every task's data and reward typed.

    Raises:
        ConfigError: one of them is not what it can be; every task's problems in one message.
    """
    tasks, lines = {}, []
    for name, task in config.tasks.items():
        try:
            tasks[name] = _typed(config, task)
        except ValueError as error:
            lines.append(f"tasks.{name}.{error}")
    if lines:
        raise ConfigError("the config cannot be composed", "\n".join(lines), "rlctl train --help lists every option and key")
    return replace(config, tasks=tasks)


def _typed(config: Config, task: TaskConfig) -> TaskConfig:
    data, reward = task.data, task.reward
    if isinstance(data, str):
        data = _data_of(data)
    if isinstance(reward, str):
        reward = _reward_of(reward)
    if isinstance(data, Mapping):
        data = _merged("data", config.data, data)
    if isinstance(reward, Mapping):
        kind = reward.get("kind", config.reward.kind)
        if kind not in _REWARDS:
            raise ValueError(f"reward.kind={kind}: one of {', '.join(_REWARDS)}")
        start = config.reward if kind == config.reward.kind and "kind" not in reward else _REWARDS[kind]()
        reward = _merged("reward", start, reward)
    for what, value, cls in (("data", data, DataConfig), ("reward", reward, RewardConfig)):
        if value is not None and not isinstance(value, cls):
            raise ValueError(f"{what}={value}: expected a text such as {'file:PATH' if what == 'data' else 'fn:mypkg.f'}, or a mapping")
    return replace(task, data=data, reward=reward)


def _data_of(text: str) -> dict[str, Any]:
    kind, colon, value = text.partition(":")
    if text == "builtin":
        return {"path": text}
    if not colon or ("data", kind) not in KINDS:
        raise ValueError(f"data={text}: expected file:PATH, hf:NAME or builtin")
    return {"path": f"./{value}" if kind == "file" and not value.startswith(("/", ".", "~")) else value}


def _reward_of(text: str) -> dict[str, Any]:
    kind, colon, value = text.partition(":")
    if not colon or ("reward", kind) not in KINDS:
        raise ValueError(f"reward={text}: expected fn:MODULE.FUNCTION, class:MODULE.CLASS, model:PATH or calibrated:PATH")
    return {"kind": kind, "path": value}


def _merged(what: str, start: Any, own: Mapping[str, Any]) -> Any:
    node = open_schema(start)
    unknown = [k for k in own if k not in node]
    if unknown:
        near = nearest(unknown[0], [str(k) for k in node])
        raise ValueError(f"{what}: there is no key {unknown[0]!r}" + (f"; did you mean {near}?" if near else ""))
    try:
        return OmegaConf.to_object(OmegaConf.merge(node, own))
    except OmegaConfBaseException as error:
        raise ValueError(f"{what}: {explain.composition(error)}") from error
