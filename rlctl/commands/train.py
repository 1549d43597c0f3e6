"""`rlctl train [RECIPE_DIR] [overrides...]`: one run, or a sweep of them."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.commands.recipe_dir import take_recipe
from rlctl.config import help as help_text
from rlctl.errors import ConfigError, RlctlError

if TYPE_CHECKING:
    from rlctl.config import compose


@dataclass
class _Outcomes:
    """What became of the jobs of one command."""

    command: str
    show_traceback: bool
    statuses: list[int] = field(default_factory=list)
    members: list[object] = field(default_factory=list)

    def run(self, job: object) -> None:
        """Run one composed job; never raises but for an interrupt, so that the rest of a sweep goes on."""
        from rlctl.config import compose
        from rlctl.console import print_error

        assert isinstance(job, compose.Job)
        if job.number is not None and job.config.console.mode != "quiet":
            sys.stdout.write(f"\nmember {job.number}: {' '.join(job.overrides)}\n")
            sys.stdout.flush()
        status = self._run(job)
        if status == 130:
            raise KeyboardInterrupt
        if job.number is not None and status:
            print_error([f"error: member {job.number} failed with exit status {status}: {' '.join(job.overrides)}"])
        self.statuses.append(status)
        self.members.append(job)

    def _run(self, job: compose.Job) -> int:
        """The exit status of one job; what goes wrong before it starts is shown, and kept in a folder of its own."""
        from rlctl import continuing, launch
        from rlctl.config import compose
        from rlctl.config.schema import Resume

        try:
            there = job.config.run.resume is Resume.auto and (job.run_dir / "config.yaml").is_file()
            if there and continuing.is_finished(job.run_dir):
                sys.stdout.write(f"finished before: {job.run_dir}\n")
                return 0
            if not there:
                _claim(job.run_dir)
        except RlctlError as error:
            launch.report(error, self.show_traceback)
            return error.exit_status
        try:
            compose.check(job.config)
            if there:
                continuing.take_up(compose.load(job.run_dir / "config.yaml"), job.config, job.run_dir)
            _write_hydra(job, self.command)
            compose.save(job.config, job.run_dir / "config.yaml")
            return launch.run(job.config, job.number is None, self.show_traceback)
        except RlctlError as error:
            launch.report(error, self.show_traceback)
            if there:
                return error.exit_status
            _write_hydra(job, self.command)
            (job.run_dir / "summary.json").write_text(json.dumps({"status": "failed", "reason": error.what}))
            return error.exit_status


def _write_hydra(job: compose.Job, command: str) -> None:
    """What was typed, and Hydra's record of it; of a run that goes on, beside what was typed first."""
    (job.run_dir / ".hydra").mkdir(exist_ok=True)
    for name, text in job.hydra_files.items():
        (job.run_dir / ".hydra" / name).write_text(text)
    with (job.run_dir / "command.txt").open("a") as file:
        file.write(command + "\n")


def _claim(run_dir: Path) -> None:
    """Refuse a folder that holds a run already.

    Raises:
        ConfigError: it does.
    """
    if any((run_dir / name).exists() for name in ("config.yaml", "metrics.jsonl", "summary.json")):
        raise ConfigError(
            f"the run folder {run_dir} holds a run already",
            "a run never writes over another",
            "leave hydra.run.dir out, or give it a new folder",
        )


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
    from rlctl.config import compose

    outcomes = _Outcomes(shlex.join(["rlctl", "train", *typed]), show_traceback)
    compose.run(argv, recipe, outcomes.run)
    if outcomes.members and outcomes.members[0].number is not None:  # type: ignore[attr-defined]
        _sweep_table(outcomes)
    return max(outcomes.statuses, default=0)


def _sweep_table(outcomes: _Outcomes) -> None:
    from rlctl.config.compose import Job
    from rlctl.console import SweepRow, print_sweep

    rows = []
    for job in outcomes.members:
        assert isinstance(job, Job)
        path = job.run_dir / "summary.json"
        s = json.loads(path.read_text()) if path.is_file() else {"status": "failed", "reason": "the process died; see rlctl.log"}
        first, last = s.get("first") or {}, s.get("last") or {}
        rows.append(
            SweepRow(
                number=job.number if job.number is not None else 0,
                overrides=job.overrides,
                status=s["status"],
                first_score=first.get("objective/scores"),
                last_score=last.get("objective/scores"),
                best_score=s.get("best_score"),
                last_kl=last.get("objective/kl"),
                seconds=s.get("seconds"),
                error=s["reason"] if s["status"] == "failed" else None,
                run_dir=str(job.run_dir),
            )
        )
    print_sweep(rows)
