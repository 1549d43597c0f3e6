"""`rlctl score [RECIPE_DIR] [overrides...] [--json]`: try the reward before training."""

from __future__ import annotations

import shlex
import sys
import tempfile

from rlctl.commands.recipe_dir import take_recipe
from rlctl.config import help as help_text
from rlctl.errors import ConfigError, RlctlError


def run(argv: list[str], show_traceback: bool) -> int:
    """0 if training could learn from the reward, else 3."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(help_text.train())
        return 0
    as_json = "--json" in argv
    recipe, argv = take_recipe([a for a in argv if a != "--json"])
    if {"-m", "--multirun"} & set(argv):
        one = shlex.join(["rlctl", "score", *(a for a in argv if a not in ("-m", "--multirun"))])
        raise ConfigError("rlctl score looks at one config", "--multirun is for training", one)
    from rlctl import launch
    from rlctl.config import compose

    statuses: list[int] = []

    def task(job: compose.Job) -> None:
        try:
            compose.check(job.config)
            statuses.append(launch.score_here(job.config, as_json))
        except RlctlError as error:
            launch.report(error, show_traceback)
            statuses.append(error.exit_status)

    with tempfile.TemporaryDirectory(prefix="rlctl-score-") as scratch:  # nothing is left behind
        compose.run([*argv, f"hydra.run.dir={scratch}", "hydra.output_subdir=null"], recipe, task)
    return max(statuses, default=0)
