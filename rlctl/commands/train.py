"""`rlctl train [RECIPE_DIR] [overrides...]`: one run, or a sweep of them."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlctl.commands.recipe_dir import take_recipe
from rlctl.config import help as help_text
from rlctl.errors import ConfigError, RlctlError

if TYPE_CHECKING:
    from rlctl.config import compose


@dataclass
class _Single:
    """One run, in this process."""

    command: str
    show_traceback: bool
    status: int = 0

    def run(self, job: compose.Job) -> None:
        """Run it; what goes wrong before it starts is shown, and kept in a folder of its own."""
        from rlctl import launch, lock

        try:
            with lock.take(job.run_dir):
                self.status = self._run(job)
        except RlctlError as error:
            launch.report(error, self.show_traceback)
            self.status = error.exit_status

    def _run(self, job: compose.Job) -> int:
        from rlctl import continuing, launch
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
            compose.check(job.config)
            if there:
                continuing.take_up(compose.load(job.run_dir / "config.yaml"), job.config, job.run_dir)
        except RlctlError as error:
            if not there:
                write_record(job, self.command)
                write_summary(job.run_dir, "failed", error.what)
            raise
        write_record(job, self.command)
        compose.save(job.config, job.run_dir / "config.yaml")
        return launch.run(job.config, self.show_traceback)


def run(argv: list[str], show_traceback: bool) -> int:
    """The exit status: of a sweep, its members' highest."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(help_text.train())
        return 0
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "rlctl starts its processes itself",
            f"it was started as one of {os.environ['WORLD_SIZE']} (WORLD_SIZE is set)",
            "start it without accelerate launch or torchrun: rlctl train launch.processes=N ...",
        )
    typed, (recipe, argv) = argv, take_recipe(argv)
    from rlctl.config import compose, sweep

    command = shlex.join(["rlctl", "train", *typed])
    if (plan := sweep.plan(argv, recipe)) is not None:
        from rlctl.commands import sweep as members

        return members.run(plan, argv, recipe, command, show_traceback)
    single = _Single(command, show_traceback)
    compose.run(argv, recipe, single.run)
    return single.status
