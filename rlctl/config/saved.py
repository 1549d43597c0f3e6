"""A resolved config as text, in a run folder or told to another process, and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlctl.config import explain
from rlctl.config.roots import ROOTS, TRAIN, Root
from rlctl.config.schema import OPTIONS, AlgoConfig, Config, RewardConfig
from rlctl.config.stages import Stage
from rlctl.config.typed import open_schema, typed_tasks
from rlctl.errors import ConfigError


def root_schema(root: Root) -> DictConfig:
    """The schema of a whole config."""
    # the groups with typed options start from what the options share, so that any of them can be merged in
    return open_schema(Config(algo=AlgoConfig(), reward=RewardConfig()) if root is TRAIN else root.schema)


def save(config: Config | Stage, path: Path) -> None:
    """Write the resolved config as YAML; `load` reads it back to an equal Config."""
    path.write_text(dumps(config))


def dumps(config: Config | Stage) -> str:
    """The resolved config as YAML."""
    return OmegaConf.to_yaml(OmegaConf.create(plain(config)))


def plain(node: Any) -> Any:
    """Dataclasses as dictionaries, enums as their words."""
    if is_dataclass(node):
        return {f.name: plain(getattr(node, f.name)) for f in fields(node)}
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [plain(v) for v in node]
    return str(node) if isinstance(node, str) else node


def load(path: Path) -> Any:
    """Read a resolved config written by `save`.

    Raises:
        ConfigError: the file is missing, or holds keys or values that this version does not know.
    """
    if not path.is_file():
        raise ConfigError(f"no resolved config at {path}", hint="a run folder made by `rlctl train` holds config.yaml")
    return loads(path.read_text(), str(path))


def loads(text: str, source: str) -> Any:
    """The config that `dumps` wrote; `source` is what messages call the text.

    Raises:
        ConfigError: it holds keys or values that this version does not know.
    """
    try:
        return typed_of(node_of(OmegaConf.create(text)))
    except (OmegaConfBaseException, KeyError) as error:
        raise ConfigError(f"{source} cannot be read", explain.composition(error)) from error


def node_of(raw: Any) -> Any:
    """A saved config as a typed node."""
    root = ROOTS[raw["stage"]] if "stage" in raw else TRAIN
    schema = root_schema(root)
    for group, field in (("algo", "name"), ("reward", "kind")) if root is TRAIN else ():
        schema = OmegaConf.merge(schema, {group: open_schema(OPTIONS[group][raw[group][field]])})
    return OmegaConf.merge(schema, raw)


def typed_of(node: Any) -> Any:
    """The config that a typed node holds."""
    config: Any = OmegaConf.to_object(node)
    return typed_tasks(config) if isinstance(config, Config) else config
