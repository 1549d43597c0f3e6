"""`rlctl train [RECIPE_DIR] [overrides...]`: one run, or a sweep of them."""

from __future__ import annotations

import functools
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlctl.commands.recipe_dir import take_recipe
from rlctl.config import help as help_text
from rlctl.errors import ConfigError, RlctlError

if TYPE_CHECKING:
    from rlctl.config import compose
    from rlctl.place import Place


@dataclass
class _Single:
    """One run, in this process."""

    command: str
    show_traceback: bool
    place: Place | None
    """Where a launcher put this process, if one started it."""
    scratch: bool
    """Whether the folder that Hydra made is not to be kept: on another machine than the first."""
    status: int = 0

    def run(self, job: compose.Job) -> None:
        """Run it; what goes wrong before it starts is shown, and kept in a folder of its own."""
        from rlctl import launch, lock, place

        try:
            if place.machine_rank(job.config.launch, os.environ) > 0:
                self.status = self._join(job)
                return
            with lock.take(job.run_dir):
                self.status = self._run(job)
        except RlctlError as error:
            launch.report(error, self.show_traceback)
            self.status = error.exit_status

    def _run(self, job: compose.Job) -> int:
        from rlctl import continuing, launch, place
        from rlctl.commands.run_folder import claim, write_record, write_summary
        from rlctl.config import compose
        from rlctl.config.schema import Resume

        there = job.config.run.resume is Resume.auto and (job.run_dir / "config.yaml").is_file()
        if there and continuing.is_finished(job.run_dir):
            sys.stdout.write(f"finished before: {job.run_dir}\n")
            return 0
        if not there:
            claim(job.run_dir)
        try:
            config = place.ready(job.config, self.place, os.environ)
            if there:
                continuing.take_up(compose.load(job.run_dir / "config.yaml"), config, job.run_dir)
        except RlctlError as error:
            if not there:
                write_record(job, self.command)
                write_summary(job.run_dir, "failed", error.what)
            raise
        write_record(job, self.command)
        compose.save(config, job.run_dir / "config.yaml")
        return launch.run(config, self.show_traceback, self.place)

    def _join(self, job: compose.Job) -> int:
        """On another machine than the first: its processes train what the first machine's tell them."""
        from rlctl import launch, place

        if not self.scratch:
            what = f"launch.machine_rank={job.config.launch.machine_rank} stands in a config file"
            raise ConfigError(what, "it differs on every machine", "launch.machine_rank=K on the command line")
        return launch.run(place.ready(job.config, self.place, os.environ), self.show_traceback, self.place)


def run(argv: list[str], show_traceback: bool) -> int:
    """The exit status: of a sweep, its members' highest."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(help_text.train())
        return 0
    from rlctl import launch, place

    own = place.started_by(os.environ)
    command = functools.partial(_run, argv, show_traceback, own)
    return launch.together(own, command, show_traceback) if own is not None and own.world > 1 else command()


def _run(argv: list[str], show_traceback: bool, own: Place | None) -> int:
    typed, (recipe, argv) = argv, take_recipe(argv)
    from rlctl import place
    from rlctl.config import compose, sweep

    command = shlex.join(["rlctl", "train", *typed])
    if (plan := sweep.plan(argv, recipe)) is not None:
        if own is not None:
            started = f"{own.launcher} started this one" + (f" as one of {own.world}" if own.world > 1 else "")
            raise ConfigError("a sweep starts its own processes", started, command)
        from rlctl.commands import sweep as members

        return members.run(plan, argv, recipe, command, show_traceback)
    other = own is None and place.is_other_machine(argv, os.environ)
    single = _Single(command, show_traceback, own, other)
    with tempfile.TemporaryDirectory(prefix="rlctl-") as scratch:
        compose.run([*argv, *([f"hydra.run.dir={scratch}"] if other else [])], recipe, single.run)
    return single.status
