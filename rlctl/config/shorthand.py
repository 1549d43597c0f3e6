"""The shorthand `reward=fn:mypkg.count_good`, `model=hf:PATH`, `data=file:PATH` as a native Hydra config source.

Each shorthand names an option `GROUP/KIND:VALUE` that no file holds; this source answers for it with a node that takes the
option's file from `conf/` and sets its path. Because Hydra itself composes it, it works in sweeps and recipes alike.
"""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from rlctl.config.paths import KINDS

_recipe: str | None = None


def parse(config_path: str) -> tuple[str, str, str] | None:
    """`reward/fn:a.b` -> (reward, fn, a.b); None for anything else. The group ends at the first slash: values hold slashes."""
    group, _, option = config_path.partition("/")
    kind, colon, value = option.partition(":")
    if not colon or (group, kind) not in KINDS:
        return None
    return group, kind, value


class ShorthandSource(ConfigSource):
    """Answers for shorthand options and for nothing else."""

    @staticmethod
    def scheme() -> str:
        return "rlctl-shorthand"

    def available(self) -> bool:
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        parsed = parse(config_path)
        assert parsed is not None, config_path
        group, kind, value = parsed
        if kind == "file" and not value.startswith(("/", ".", "~")):
            value = f"./{value}"  # a file whatever it is called: never the name of something on a hub
        node = OmegaConf.create({"defaults": [KINDS[group, kind][0], "_self_"], "path": value})
        return ConfigResult(config=node, path=f"{self.scheme()}://", provider=self.provider, header={"package": None})

    def is_group(self, config_path: str) -> bool:
        return False

    def is_config(self, config_path: str) -> bool:
        return parse(config_path) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []


class RlctlSearchPath(SearchPathPlugin):
    """Puts the recipe folder first, so that its options win over the built-in ones, and the shorthand last."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if _recipe is not None:
            search_path.prepend("recipe", f"file://{_recipe}")
        search_path.append("rlctl-shorthand", "rlctl-shorthand://")


def register(recipe: str | None) -> None:
    """Make the shorthand and the recipe folder known to Hydra for the commands that follow in this process."""
    global _recipe
    _recipe = recipe
    Plugins.instance().register(ShorthandSource)
    Plugins.instance().register(RlctlSearchPath)
