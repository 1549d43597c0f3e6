"""`rlctl recipes`: what there is to copy; `--markdown` for the README of the recipes, with a name for that recipe's own."""

from __future__ import annotations

import sys
from pathlib import Path

from rlctl import expected, recipes_index
from rlctl.config import help as help_text
from rlctl.errors import ConfigError


def run(argv: list[str], show_traceback: bool) -> int:
    """List the recipes, or show the README of one."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(help_text.RECIPES)
        return 0
    markdown, rest = "--markdown" in argv, [a for a in argv if a != "--markdown"]
    if len(rest) > 1 or any(a.startswith("-") for a in rest):
        raise ConfigError(f"rlctl recipes does not take {rest[-1]}", hint="rlctl recipes, or rlctl recipes NAME")
    if rest:
        folder = recipes_index.find(rest[0])
        lines = expected.markdown(expected.read(folder)) if markdown else _readme(folder)
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    recipes = recipes_index.every()
    if markdown:
        sys.stdout.write("\n".join(recipes_index.markdown(recipes)) + "\n")
        return 0
    from rlctl.console.recipes import RecipeRow, print_recipes

    print_recipes([RecipeRow(r.name, r.expected.shows, r.expected.seconds, r.expected.hardware) for r in recipes])
    return 0


def _readme(folder: Path) -> list[str]:
    path = folder / "README.md"
    if not path.is_file():
        raise ConfigError(f"{folder} has no README.md")
    return path.read_text(encoding="utf-8").splitlines()
