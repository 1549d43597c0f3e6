"""The recipes that ship with rlctl: where they lie, what they say of themselves, and how one is copied.

Knows folders and files. Knows nothing of configs or of training. No torch.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from rlctl import expected
from rlctl.config.paths import recipes_dir
from rlctl.errors import ConfigError, nearest

_LEFT_OUT = ("__pycache__", "outputs", "multirun")


@dataclass(frozen=True)
class Recipe:
    """A recipe folder."""

    folder: Path
    expected: expected.Expected

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name


def names() -> list[str]:
    """The names of the recipes that ship with rlctl."""
    return sorted(path.parent.name for path in recipes_dir().glob("*/config.yaml"))


def every() -> list[Recipe]:
    """The recipes that ship with rlctl, by name.

    Raises:
        ConfigError: one of them has no usable expected.json.
    """
    return [Recipe(recipes_dir() / name, expected.read(recipes_dir() / name)) for name in names()]


def find(name_or_folder: str) -> Path:
    """The folder of a recipe: a folder of your own with a config.yaml, or the name of one that ships with rlctl.

    Raises:
        ConfigError: it is neither.
    """
    own = Path(name_or_folder).expanduser()
    if (own / "config.yaml").is_file():
        return own.resolve()
    if name_or_folder in names():
        return recipes_dir() / name_or_folder
    near = nearest(name_or_folder, names(), 0.5)
    why = f"there are: {', '.join(names())}; and no folder of that name with a config.yaml"
    raise ConfigError(f"there is no recipe {name_or_folder}", why, f"did you mean {near}?" if near else "rlctl recipes")


def files(folder: Path) -> list[Path]:
    """What belongs to a recipe, relative to its folder: no caches, no run folders, nothing hidden."""
    inside = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in inside if not any(part in _LEFT_OUT or part.startswith(".") for part in path.parts))


def copy(folder: Path, destination: Path) -> list[Path]:
    """Copy a recipe into a folder that is new or empty; the files, relative to it.

    Raises:
        ConfigError: something lies there already: nothing is written over.
    """
    if destination.exists() and not (destination.is_dir() and not any(destination.iterdir())):
        free = next(name for i in range(2, 1000) if not (name := destination.with_name(f"{destination.name}_{i}")).exists())
        why = "nothing is written over; a new or an empty folder is needed"
        raise ConfigError(f"{destination} exists already", why, f"rlctl new {folder.name} {free}")
    made = files(folder)
    for path in made:
        (destination / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / path, destination / path)  # the contents alone: an installed file may be read-only
    return made


def markdown(recipes: list[Recipe]) -> list[str]:
    """The table of recipes/README.md."""
    lines = ["| recipe | shows | you should see | time | hardware |", "|---|---|---|---|---|"]
    for recipe in recipes:
        e = recipe.expected
        seen = "; ".join(f"{c.means}: {c.limits}" for c in e.checks if not c.at.startswith("first"))
        lines.append(f"| [{recipe.name}]({recipe.name}/README.md) | {e.shows} | {seen} | {e.seconds:g} s | {e.hardware} |")
    return lines
