"""Where the built-in config options and the recipes lie, and which shorthand there is."""

from __future__ import annotations

from pathlib import Path

# (group, kind) -> the option file the shorthand starts from, and what follows the colon
KINDS: dict[tuple[str, str], tuple[str, str]] = {
    ("algo", "class"): ("class", "MODULE.CLASS"),
    ("reward", "fn"): ("fn", "MODULE.FUNCTION"),
    ("reward", "class"): ("class", "MODULE.CLASS"),
    ("reward", "model"): ("model", "PATH_OR_HUB_ID"),
    ("reward", "calibrated"): ("calibrated", "PATH_OR_HUB_ID"),
    ("model", "hf"): ("builtin", "PATH_OR_HUB_ID"),
    ("data", "file"): ("builtin", "PATH"),
    ("data", "hf"): ("builtin", "NAME"),
}


def conf_dir() -> Path:
    """The folder of built-in options: inside an installed wheel, or at the top of a checkout."""
    return _shipped("conf")


def recipes_dir() -> Path:
    """The folder of the recipes that ship with rlctl, in the same two places."""
    return _shipped("recipes")


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / name
    return inside if inside.is_dir() else package.parent / name
