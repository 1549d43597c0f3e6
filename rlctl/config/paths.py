"""Where the built-in config options lie."""

from __future__ import annotations

from pathlib import Path


def conf_dir() -> Path:
    """The folder of built-in options: inside an installed wheel, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
