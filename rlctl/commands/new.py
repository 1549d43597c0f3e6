"""`rlctl new RECIPE DEST`: a copy of a recipe to make one's own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rlctl import expected, recipes_index
from rlctl.config import help as help_text
from rlctl.errors import ConfigError


def run(argv: list[str], show_traceback: bool) -> int:
    """Copy it and print the next command."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(help_text.NEW)
        return 0
    if len(argv) != 2 or any(a.startswith("-") for a in argv):
        example = argv[0] if argv and argv[0] in recipes_index.names() else "count_good"
        why = f"there are: {', '.join(recipes_index.names())}"
        raise ConfigError("rlctl new takes a recipe and a folder to copy it to", why, f"rlctl new {example} mine")
    folder, destination = recipes_index.find(argv[0]), Path(argv[1]).expanduser()
    promised = expected.read(folder) if (folder / expected.FILE).is_file() else None
    made = recipes_index.copy(folder, destination)
    from rlctl.console.recipes import print_copied

    commands = promised.commands if promised else (("train", "{recipe}"),)
    print_copied(folder.name, str(destination), [str(path) for path in made], [_shown(c, destination) for c in commands])
    return 0


def _shown(command: tuple[str, ...], destination: Path) -> str:
    """A command as it is typed: into the copied folder, its runs under outputs/."""
    words = expected.filled(command, destination, Path("outputs") / destination.name)
    return shlex.join(words if words[0] == "python" else ["rlctl", *words])
