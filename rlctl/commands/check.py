"""`rlctl check RECIPE [overrides...]`: run a recipe and compare with the numbers of its expected.json."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from rlctl import expected, recipes_index
from rlctl.config import help as help_text
from rlctl.errors import ConfigError

MISSED = 4
"""Exit status of a recipe that ran and did not show its numbers."""


def run(argv: list[str], show_traceback: bool) -> int:
    """0: all numbers were seen. 4: some were not. Else the exit status of the command that failed."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(help_text.CHECK)
        return 0
    if not argv or argv[0].startswith("-") or "=" in argv[0]:
        why = f"there are: {', '.join(recipes_index.names())}"
        raise ConfigError("rlctl check takes a recipe, by name or folder", why, "rlctl check count_good")
    if {"-m", "--multirun"} & set(argv):
        raise ConfigError("rlctl check looks at one run", "a sweep has no single number", f"rlctl check {argv[0]} seed=1")
    folder = recipes_index.find(argv[0])
    promised = expected.read(folder)
    where, overrides = _run_dir(folder.name, argv[1:])
    from rlctl.console.recipes import CheckRow, print_check

    started = time.monotonic()
    for command in promised.commands:
        if status := _run(_words(command, folder, where, overrides, show_traceback)):
            return status
    seconds = time.monotonic() - started
    results = expected.compare(promised, where)
    rows = [CheckRow(r.check.means, r.check.name, r.check.when, r.check.limits, r.seen, r.ok) for r in results]
    print_check(folder.name, rows, seconds, promised.seconds, promised.hardware, str(where))
    return 0 if all(r.ok for r in results) else MISSED


def _run_dir(name: str, overrides: list[str]) -> tuple[Path, list[str]]:
    """A new folder outputs/check/NAME, or the one asked for, and the other overrides."""
    asked = [o.partition("=")[2] for o in overrides if o.startswith("hydra.run.dir=")]
    rest = [o for o in overrides if not o.startswith("hydra.run.dir=")]
    if asked:
        return Path(asked[-1]).expanduser().resolve(), rest
    base = Path("outputs/check").resolve()
    base.mkdir(parents=True, exist_ok=True)
    for suffix in ["", *(f"_{i}" for i in range(2, 1000))]:
        path = base / f"{name}{suffix}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path, rest
    raise ConfigError(f"no free run folder {base / name}", hint="hydra.run.dir=PATH")


def _words(command: tuple[str, ...], folder: Path, run: Path, overrides: list[str], show_traceback: bool) -> list[str]:
    """The command line of a process: overrides go to rlctl's commands, not to scripts."""
    words = expected.filled(command, folder, run)
    if words[0] == "python":
        return [sys.executable, *words[1:]]
    if not any("{run}" in part for part in command):
        words += [f"hydra.run.dir={run}", f"hydra.sweep.dir={run}"]  # a recipe's config may make it a sweep
    return [sys.executable, "-m", "rlctl", *words, *overrides, *(["--traceback"] if show_traceback else [])]


def _run(words: list[str]) -> int:
    """The exit status of a process; an interrupt is left to it, which ends in its own time."""
    process = subprocess.Popen(words)
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            continue
        return status if status >= 0 else 128 - status
