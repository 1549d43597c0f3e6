"""A sweep as a whole, in the process that was started: checks before, Ctrl-C meanwhile, the table after.

What became of the members is read from their folders: they may have run in other processes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from rlctl import lock, place, runs
from rlctl.commands.member import Member, SweepEnded
from rlctl.commands.notes import Notes, Stop
from rlctl.commands.runs import row_of
from rlctl.config import compose, explain
from rlctl.config.schema import Device
from rlctl.config.sweep import SweepPlan, decisive
from rlctl.console.runs import RunRow, print_sweep
from rlctl.errors import ConfigError


def run(plan: SweepPlan, argv: list[str], recipe: Path | None, command: str, show_traceback: bool) -> int:
    """Run the members that are not finished yet; the highest of their exit statuses, 130 after an interrupt.

    Raises:
        ConfigError: the folder is in use, or holds another sweep.
    """
    refuse_another(plan)
    plan.folder.mkdir(parents=True, exist_ok=True)
    notes = Notes(plan.folder)
    with lock.take(plan.folder):
        notes.clear()
        (plan.folder / "sweep.json").write_text(json.dumps({"command": command, "members": plan.members}) + "\n")
        gpus = tuple(visible_gpus()) if plan.gpus_wanted else ()
        several = [set(m) for m in plan.members or []]
        common = frozenset(set.intersection(*several)) if len(several) > 1 else frozenset()
        member = Member(plan.folder, command, show_traceback, plan.fail_fast, plan.here, plan.quiet, common, gpus)
        try:
            with _interrupts(notes):
                compose.run([*argv, *plan.overrides], recipe, member.run, member.refuse)
        except SweepEnded:
            pass
        except Exception:  # a launcher's processes take some signals, too, and it complains of their end
            if notes.stopped < Stop.interrupted:
                raise
        finally:
            found = notes.read()
            if (found or notes.stopped) and not plan.quiet:
                _print_table(rows(plan, notes), command, plan.folder)
    if notes.stopped >= Stop.interrupted:
        return 130
    return max((1 if note.status is None else note.status for note in found.values()), default=0)


def _print_table(table: list[RunRow], command: str, folder: Path) -> None:
    undone = any(row.status not in ("finished", "stopped") for row in table)
    sys.stdout.write("\n")
    print_sweep(table, go_on=again(command, folder) if undone else "")


def refuse_another(plan: SweepPlan) -> None:
    """Refuse a folder whose members are not this sweep's.

    Raises:
        ConfigError: a member's recorded overrides are others.
    """
    for number, now in enumerate(plan.members or []):
        recorded = plan.folder / str(number) / ".hydra" / "overrides.yaml"
        then = yaml.safe_load(recorded.read_text()) if recorded.is_file() else now
        if decisive(then) != decisive(now):
            raise ConfigError(
                f"{plan.folder} holds another sweep",
                f"member {number} there: {' '.join(then)}\nmember {number} here: {' '.join(now)}",
                "a new folder: leave hydra.sweep.dir out",
            )


def rows(plan: SweepPlan, notes: Notes) -> list[RunRow]:
    """One row a member, those that did not run too."""
    found, out = notes.read(), []
    for number in sorted({*found, *range(len(plan.members or []))}):
        note = found.get(number)
        if note is None:
            overrides = (plan.members or [])[number]
            out.append(RunRow(number, overrides, "not run", run_dir=str(plan.folder / str(number))))
        elif note.action == "refused":
            out.append(RunRow(number, note.overrides, "failed", error=note.remark, run_dir=note.run_dir))
        else:
            remark = f"{note.remark}, skipped" if note.action == "skipped" else ""
            out.append(row_of(runs.read(Path(note.run_dir)), number, note.overrides, remark))
    return out


def again(command: str, folder: Path) -> str:
    """The command that goes on with a sweep, ready to paste."""
    if any(word.startswith("hydra.sweep.dir=") for word in shlex.split(command)):
        return command
    override = f"hydra.sweep.dir={folder}"
    plain = re.fullmatch(r"[\w./=-]+", override) is not None
    return f"{command} {override if plain else explain.quoted(override)}"


@contextmanager
def _interrupts(notes: Notes) -> Iterator[None]:
    """Ctrl-C and SIGTERM become a note that all members read, wherever they run: an exception here would end them at once."""

    def asked(*_: object) -> None:
        if notes.stopped is Stop.killed:
            raise KeyboardInterrupt
        again = notes.stopped is Stop.interrupted
        notes.stop(Stop.killed if again else Stop.interrupted)
        os.write(2, b"interrupted again: what trains is ended\n" if again else b"interrupted: what trains ends in good order\n")

    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, asked)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def visible_gpus() -> list[str]:
    """The GPUs to share out, as CUDA_VISIBLE_DEVICES names them."""
    if (listed := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in listed.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    return [str(i) for i in range(place.visible_gpus(Device.auto, os.environ))]
