"""argv -> command. Every error a user can act on becomes one clear message and an exit status.

0 ok, 2 usage or config, 3 data or reward, 4 training, 130 interrupted, 1 anything unexpected.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl import __version__
from rlctl.config import help as help_text
from rlctl.errors import ConfigError, RlctlError, nearest

if TYPE_CHECKING:
    from rlctl.config import compose

COMMANDS = ("train", "score")


def main(argv: list[str] | None = None) -> int:
    """The `rlctl` command; returns its exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in argv
    argv = [a for a in argv if a != "--traceback"]
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            sys.stdout.write(help_text.overview())
            return 0
        if argv[0] in ("-V", "--version"):
            sys.stdout.write(f"rlctl {__version__}\n")
            return 0
        if argv[0] not in COMMANDS:
            raise _unknown_command(argv[0])
        return (train if argv[0] == "train" else score)(argv[1:], show_traceback)
    except KeyboardInterrupt:
        return 130
    except RlctlError as error:
        from rlctl import launch

        launch.report(error, show_traceback)
        return error.exit_status


def _unknown_command(word: str) -> ConfigError:
    near = nearest(word, COMMANDS)
    if near is None and "=" in word:
        near = f"train {word}"
    return ConfigError(f"unknown command {word}", f"there are: {', '.join(COMMANDS)}", f"rlctl {near}" if near else "rlctl --help")


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
        from rlctl import launch
        from rlctl.config import compose

        try:
            _claim(job.run_dir)
        except RlctlError as error:
            launch.report(error, self.show_traceback)
            return error.exit_status
        (job.run_dir / ".hydra").mkdir(exist_ok=True)
        for name, text in job.hydra_files.items():
            (job.run_dir / ".hydra" / name).write_text(text)
        (job.run_dir / "command.txt").write_text(self.command + "\n")
        try:
            compose.check(job.config)
            compose.save(job.config, job.run_dir / "config.yaml")
            return launch.run(job.config, job.number is None, self.show_traceback)
        except RlctlError as error:
            launch.report(error, self.show_traceback)
            (job.run_dir / "summary.json").write_text(json.dumps({"status": "failed", "reason": error.what}))
            return error.exit_status


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


def train(argv: list[str], show_traceback: bool) -> int:
    """`rlctl train [RECIPE_DIR] [overrides...]`."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(help_text.train())
        return 0
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "rlctl starts its processes itself",
            f"it was started as one of {os.environ['WORLD_SIZE']} (WORLD_SIZE is set)",
            "start it without accelerate launch or torchrun: rlctl train launch.processes=N ...",
        )
    typed, (recipe, argv) = argv, _recipe(argv)
    from rlctl.config import compose

    outcomes = _Outcomes(shlex.join(["rlctl", "train", *typed]), show_traceback)
    compose.run(argv, recipe, outcomes.run)
    if outcomes.members and outcomes.members[0].number is not None:  # type: ignore[attr-defined]
        _sweep_table(outcomes)
    return max(outcomes.statuses, default=0)


def score(argv: list[str], show_traceback: bool) -> int:
    """`rlctl score [RECIPE_DIR] [overrides...] [--json]`: 0 if training could learn from the reward, else 3."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(help_text.train())
        return 0
    as_json = "--json" in argv
    recipe, argv = _recipe([a for a in argv if a != "--json"])
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


def _recipe(argv: list[str]) -> tuple[Path | None, list[str]]:
    """Take a leading recipe folder off the arguments."""
    if not argv or argv[0].startswith(("-", "+")) or "=" in argv[0] or (argv[0].startswith("~") and argv[0][1:2] != "/"):
        return None, argv
    folder = Path(argv[0]).resolve()
    if not (folder / "config.yaml").is_file():
        why = "it has no config.yaml" if folder.is_dir() else "there is no such folder"
        raise ConfigError(f"{argv[0]} is not a recipe folder", why, "rlctl train RECIPE_DIR [key=value ...]")
    return folder, argv[1:]


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
