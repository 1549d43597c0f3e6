"""One member of a sweep, in whichever process a launcher chose: skip it, start it or let it go on, and note what became of it.

It knows nothing of the other members but that the sweep was asked to stop.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rlctl import continuing, lock, place, runs
from rlctl.commands.notes import Note, Notes, Stop
from rlctl.commands.run_folder import holds_run, summary_of, write_record, write_summary
from rlctl.config import compose
from rlctl.config.schema import Config, Resume
from rlctl.console.numbers import duration, number
from rlctl.errors import ConfigError, RlctlError


class SweepEnded(BaseException):
    """Leaves a launcher that works in this process: after an ordinary exception it would go on with the next member."""


@dataclass(frozen=True)
class Member:
    """What every member needs to know. Plain data: launchers pickle it."""

    sweep: Path
    command: str
    show_traceback: bool
    fail_fast: bool
    here: bool
    """On this terminal; else what a member prints goes to console.log in its folder, and one line tells how it went."""
    quiet: bool
    common: frozenset[str]
    """Overrides that all members have."""
    gpus: tuple[str, ...]
    """Devices to share out, as CUDA_VISIBLE_DEVICES names them."""

    def run(self, job: compose.Job) -> None:
        """Do with a member what is to be done; what goes wrong with it is shown and noted."""
        assert job.number is not None
        if place.machine_rank(job.config.launch, os.environ) > 0:
            return self._join(job)
        if not self.here:  # Ctrl-C reaches a launcher's processes as well; the sweep's own process passes it on
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        notes = Notes(self.sweep)
        self._end_if_stopped(notes)
        if notes.stopped:
            return
        note = Note(job.number, str(job.run_dir), job.overrides)
        try:
            note = self._run(replace(job, config=self._resolved(job.config)), note, notes)
        except RlctlError as error:
            note = self._refused(note, error)
        self._done(note, notes)

    def _join(self, job: compose.Job) -> None:
        """On another machine of several that one member was given: the first one keeps every record."""
        from rlctl import launch

        try:
            launch.run(place.ready(job.config, None, os.environ, sweep=True), self.show_traceback)
        except RlctlError as error:
            launch.report(error, self.show_traceback)

    def refuse(self, refused: compose.Refused) -> None:
        """Note that a member's config cannot be."""
        assert refused.number is not None
        notes = Notes(self.sweep)
        self._end_if_stopped(notes)
        if notes.stopped:
            return
        note = Note(refused.number, str(refused.run_dir), refused.overrides)
        with lock.hold(refused.run_dir):
            if not holds_run(refused.run_dir):
                write_summary(refused.run_dir, "failed", refused.error.what)
        self._done(self._refused(note, refused.error), notes)

    def _resolved(self, config: Config) -> Config:
        """The config with nothing of `launch` left open; where devices are shared out, a member takes one."""
        if self.gpus and config.launch.processes is None:
            config = replace(config, launch=replace(config.launch, processes=1))
        return place.resolve(config, None, os.environ)

    def _end_if_stopped(self, notes: Notes) -> None:
        if self.here and notes.stopped:
            raise SweepEnded

    def _run(self, job: compose.Job, note: Note, notes: Notes) -> Note:
        with lock.take(job.run_dir) as held:
            note = decide(job, note)
            self._say(note)
            if note.action == "skipped":
                return replace(note, status=0)
            notes.write(note)
            if note.action == "goes on":
                job = take_up(job)
            elif note.action == "starts anew":
                set_aside(job.run_dir)
            self._prepare(job)
            with self._gpu(job) as environment:
                status = self._train(job.config, environment, held, notes)
            if status > 128 and notes.stopped >= Stop.interrupted:  # a signal of ours that came before it could take it in good order
                status = 130
            settle(job.run_dir, status)
            return replace(note, status=status)

    def _prepare(self, job: compose.Job) -> None:
        """Write what belongs into the folder before training.

        Raises:
            RlctlError: the config has a problem; summary.json says so.
        """
        write_record(job, self.command)
        try:
            compose.check(job.config)
            place.check(job.config, True, os.environ)
        except RlctlError as error:
            write_summary(job.run_dir, "failed", error.what)
            raise
        compose.save(job.config, job.run_dir / "config.yaml")

    def _train(self, config: Config, environment: dict[str, str], held: int, notes: Notes) -> int:
        from rlctl import launch
        from rlctl.processes import Child

        output = None if self.here else Path(config.run.dir) / "console.log"
        level = {Stop.interrupted: 1, Stop.killed: 2}
        child = Child(environment, output, (held,), lambda: level.get(notes.stopped, 0))
        return launch.run_process(config, self.show_traceback, child)

    @contextmanager
    def _gpu(self, job: compose.Job) -> Iterator[dict[str, str]]:
        """The devices of a member: the first free ones from its number on; with fewer devices than members at once, shared."""
        size = job.config.launch.processes or 1
        sets = [self.gpus[i : i + size] for i in range(0, len(self.gpus) - size + 1, size)]
        if not sets:
            yield {}
            return
        assert job.number is not None
        order = [(job.number + i) % len(sets) for i in range(len(sets))]
        with ExitStack() as stack:
            free = (i for i in order if stack.enter_context(lock.hold(self._slot(i), 0.0)) is not None)
            yield {"CUDA_VISIBLE_DEVICES": ",".join(sets[next(free, order[0])])}

    def _slot(self, number: int) -> Path:
        path = Notes(self.sweep).folder / f"gpu-{number}"
        path.touch()
        return path

    def _refused(self, note: Note, error: RlctlError) -> Note:
        from rlctl import launch

        launch.report(error, self.show_traceback)
        return replace(note, action="refused", status=error.exit_status, remark=error.what)

    def _done(self, note: Note, notes: Notes) -> None:
        notes.write(note)
        if note.status == 130:
            notes.stop(Stop.interrupted)
        elif note.status and self.fail_fast:
            notes.stop(Stop.failed)
        self._say_end(note)
        self._end_if_stopped(notes)

    def _say(self, note: Note) -> None:
        if not self.quiet:
            remark = f"{note.remark}, " if note.remark else ""
            line = f"member {note.number}: {remark}{note.action}: {self._told(note)}"
            say(f"\n{line}" if self.here and note.action != "skipped" else line)

    def _told(self, note: Note) -> str:
        return " ".join(o for o in note.overrides if o not in self.common) or "no overrides"

    def _say_end(self, note: Note) -> None:
        from rlctl.console import print_error

        run = runs.read(Path(note.run_dir))
        if note.status and note.status != 130:
            lines = [f"error: member {note.number} failed with exit status {note.status}: {' '.join(note.overrides)}"]
            if not self.here and note.action != "refused":
                lines += [f"  why:  {run.reason}", f"  see:  {run.path / 'console.log'}"]
            print_error(lines)
        elif not self.here and not self.quiet and note.action != "skipped":
            score = f", score {number(run.last_of(runs.SCORE))}" if runs.SCORE in run.last else ""
            say(f"member {note.number}: {run.status} in {duration(run.seconds)}{score}: {self._told(note)}")


def say(line: str) -> None:
    """One line, in one piece: several processes may write."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def decide(job: compose.Job, note: Note) -> Note:
    """What is to be done with a member by what its folder holds.

    Raises:
        ConfigError: it holds a finished run of another config.
    """
    folder = job.run_dir
    if not holds_run(folder):
        return note
    status = str(summary_of(folder).get("status", "unfinished"))
    differing = _differing(folder, job.config)
    if status in ("finished", "stopped"):
        if differing:
            raise ConfigError(
                f"member {job.number} has {status} before with another config",
                "\n".join(differing),
                "a new folder: leave hydra.sweep.dir out",
            )
        return replace(note, action="skipped", remark=f"{status} before")
    if not differing and (step := continuing.steps_done(folder)):
        return replace(note, action="goes on", remark=f"{status} before, after step {step}")
    return replace(note, action="starts anew", remark=f"{status} before")


def _differing(folder: Path, config: Config) -> list[str]:
    if not (folder / "config.yaml").is_file():
        return ["it has no config.yaml"]
    try:
        found = continuing.changes(compose.load(folder / "config.yaml"), config)
    except ConfigError as error:
        return [error.what, *(error.why or "").splitlines()]
    aside = [c.key for c in found if c.key.startswith(("score.", "launch.")) and c.key != "launch.strategy"]
    return [str(change) for change in found if change.key not in aside]


def take_up(job: compose.Job) -> compose.Job:
    """The job of a run that goes on from its newest checkpoint, which the run's record is told."""
    if continuing.steps_done(job.run_dir) < job.config.steps:  # else only its end is missing
        continuing.take_up(compose.load(job.run_dir / "config.yaml"), job.config, job.run_dir)
    (job.run_dir / "summary.json").unlink(missing_ok=True)
    return replace(job, config=replace(job.config, run=replace(job.config.run, resume=Resume.auto)))


def set_aside(folder: Path) -> None:
    """Move what an earlier attempt left to earlier/N/ in the same folder."""
    earlier = folder / "earlier"
    moved = [p for p in folder.iterdir() if p != earlier]
    target = earlier / str(sum(1 for _ in earlier.glob("*")) + 1)
    target.mkdir(parents=True)
    for path in moved:
        path.rename(target / path.name)


def settle(folder: Path, status: int) -> None:
    """Say how a training ended that could not say it itself."""
    if (folder / "summary.json").exists():
        return
    if status == 130:
        write_summary(folder, "interrupted", "interrupted from outside")
    elif status > 128:
        name = signal.Signals(status - 128).name if status - 128 in {int(s) for s in signal.Signals} else str(status - 128)
        write_summary(folder, "failed", f"its process was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else ""))
    elif status:
        write_summary(folder, "failed", f"its process ended with status {status}; see rlctl.log")
