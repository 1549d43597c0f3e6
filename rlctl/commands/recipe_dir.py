"""A command's leading argument: the recipe folder."""

from __future__ import annotations

from pathlib import Path

from rlctl import recipes_index
from rlctl.config.roots import TRAIN, Root
from rlctl.errors import ConfigError


def take_recipe(argv: list[str], root: Root = TRAIN) -> tuple[Path | None, list[str]]:
    """Take a leading recipe folder off the arguments; it must hold the file that the command reads."""
    if not argv or argv[0].startswith(("-", "+")) or "=" in argv[0] or (argv[0].startswith("~") and argv[0][1:2] != "/"):
        return None, argv
    folder, file = Path(argv[0]).resolve(), f"{root.recipe}.yaml"
    if not (folder / file).is_file():
        why = f"it has no {file}" if folder.is_dir() else "there is no such folder"
        ships = not folder.exists() and argv[0] in recipes_index.names()
        hint = f"rlctl new {argv[0]} {argv[0]}" if ships else f"rlctl {root.command} RECIPE_DIR [key=value ...]"
        raise ConfigError(f"{argv[0]} is not a recipe folder", why, hint)
    return folder, argv[1:]
