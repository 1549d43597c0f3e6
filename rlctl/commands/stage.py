"""A stage before PPO, composed and kept as `rlctl train` does it: one run, in a folder of its own."""

from __future__ import annotations

import os
import shlex
import sys

from rlctl.commands.recipe_dir import take_recipe
from rlctl.config import help as help_text
from rlctl.config.roots import Root
from rlctl.errors import ConfigError, RlctlError


def run(argv: list[str], show_traceback: bool, root: Root) -> int:
    """The exit status of `rlctl sft` or `rlctl rm`."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(help_text.stage(root))
        return 0
    command = shlex.join(["rlctl", root.command, *argv])
    if {"-m", "--multirun"} & set(argv):
        one = shlex.join(["rlctl", root.command, *(a for a in argv if a not in ("-m", "--multirun"))])
        raise ConfigError(f"rlctl {root.command} makes one run", "--multirun is for rlctl train", one)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            f"rlctl {root.command} starts its processes itself",
            f"it was started as one of {os.environ['WORLD_SIZE']} (WORLD_SIZE is set)",
            f"rlctl {root.command} launch.processes=N ...",
        )
    recipe, argv = take_recipe(argv, root)
    from rlctl import launch, lock
    from rlctl.commands.run_folder import claim, write_record, write_summary
    from rlctl.config import compose

    statuses: list[int] = []

    def task(job: compose.Job) -> None:
        try:
            with lock.take(job.run_dir):
                claim(job.run_dir)
                write_record(job, command)
                try:
                    compose.check(job.config)
                except RlctlError as error:
                    write_summary(job.run_dir, "failed", error.what)
                    raise
                compose.save(job.config, job.run_dir / "config.yaml")
                statuses.append(launch.run_stage(job.config, show_traceback))
        except RlctlError as error:
            launch.report(error, show_traceback)
            statuses.append(error.exit_status)

    compose.run(argv, recipe, task, root=root)
    return max(statuses, default=0)
