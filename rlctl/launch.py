"""Runs a composed config: here, or in a process of its own. Imports torch only where training happens."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlctl import elastic, handover
from rlctl.config import compose
from rlctl.config.schema import Config, LaunchConfig, RunConfig
from rlctl.config.stages import Stage
from rlctl.console import open_console, print_error, print_score
from rlctl.errors import RlctlError, TrainingError
from rlctl.place import Place
from rlctl.processes import Child, run_child
from rlctl.report import Reporter, Summary

INTERRUPTED = elastic.INTERRUPTED


def log_to(run_dir: Path) -> None:
    """Log into the run folder; each process its own file."""
    rank = os.environ.get("RANK", "0")
    name = "rlctl.log" if rank == "0" else f"rlctl-{rank}.log"
    form = "[%(asctime)s][%(name)s][%(levelname)s] %(message)s"
    logging.basicConfig(filename=run_dir / name, level=logging.INFO, format=form)


def run_here(config: Config | Stage, show_traceback: bool = False) -> int:
    """Train in this process; the exit status."""
    logging.captureWarnings(True)  # Python's warnings go to the log file: the terminal belongs to the console
    compose.use_import_paths(config)
    # a tokenizer's thread pool and the processes of a reward function do not mix; transformers warns about it once a fork
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # of several processes the first one shows and writes
    mode = config.console.mode if isinstance(config, Config) or config.console.mode != "live" else "plain"  # the view is PPO's
    reporter = open_console(mode if int(os.environ.get("RANK", "0")) == 0 else "quiet")
    try:
        return INTERRUPTED if _work_of(config)(config, reporter).status == "interrupted" else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except RlctlError as error:
        reporter.close()
        logging.getLogger("rlctl").error("%s", error, exc_info=True)
        report(error, show_traceback)
        return error.exit_status
    except Exception as error:
        reporter.close()
        logging.getLogger("rlctl").exception("unexpected")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            time.sleep(4.0)  # a lost connection follows from what another process is about to tell; then this one is ended
            if _is_lost_connection(error):  # and if it is not, the other is on another machine
                why = str(error).splitlines()[0]
                report(TrainingError("another process has ended", why, "see what it says, on its machine"), show_traceback)
                return TrainingError.exit_status
        traceback.print_exc()
        print_error(["", f"error: unexpected {type(error).__name__}: {error}", f"  log:  {Path(config.run.dir) / 'rlctl.log'}"])
        return 1
    finally:
        reporter.close()


def _work_of(config: Config | Stage) -> Callable[[Any, Reporter], Summary]:
    if isinstance(config, Config):
        from rlctl.train import train

        return train
    from rlctl.stages.run import run as run_stage

    return run_stage


def _is_lost_connection(error: Exception) -> bool:
    from torch.distributed import DistError

    return isinstance(error, DistError) or "closed by peer" in str(error) or "Connection reset" in str(error)


def score_here(config: Config, as_json: bool) -> int:
    """Try the reward in this process; 0 if training could learn from it, else 3."""
    logging.captureWarnings(True)
    compose.use_import_paths(config)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from rlctl.score import as_json as plain
    from rlctl.score import score

    reports = score(config)
    if as_json:
        data: dict[str, object] = {name: plain(r) for name, r in reports.items()}
        sys.stdout.write(json.dumps(data.get("", data), ensure_ascii=False, default=str) + "\n")
    else:
        for name, one in reports.items():
            if name:
                sys.stdout.write(f"\ntask {name}\n")
            print_score(one)
    return 0 if all(r.learnable for r in reports.values()) else 3


def report(error: RlctlError, show_traceback: bool) -> None:
    """Print an error a user can act on; its traceback only if asked.

    What goes wrong in every process is told by the first: the others wait, and are ended with it.
    """
    if int(os.environ.get("RANK", "0")) > 0:
        time.sleep(6.0)
    if show_traceback:
        traceback.print_exception(error)
    print_error(error.lines())


def run(config: Config, show_traceback: bool = False, place: Place | None = None) -> int:
    """Train a resolved, saved config and return the exit status: here, or in several processes.

    place: where a launcher of the user's put this process, if one started it.
    """
    if place is not None:
        if place.world > 1:
            handover.tell(handover.Word(compose.dumps(config)))
        return run_here(config, show_traceback)
    if (config.launch.processes or 1) * (config.launch.machines or 1) > 1:
        return elastic.start(config, worker_arguments(config, show_traceback))
    return run_here(config, show_traceback)


def run_stage(config: Stage, show_traceback: bool = False) -> int:
    """Run a saved config of a stage before PPO and return the exit status: here, or in several processes of this machine."""
    if config.launch.processes == 1:
        return run_here(config, show_traceback)
    where = Config(run=RunConfig(dir=config.run.dir), launch=LaunchConfig(processes=config.launch.processes, machines=1, machine_rank=0))
    return elastic.start(where, worker_arguments(where, show_traceback))


def together(place: Place, command: Callable[[], int], show_traceback: bool) -> int:
    """Of several processes that a launcher started, the first runs the command, and the others train what it composes; if it
    composes nothing they end with its status."""
    if place.rank > 0:
        return follow(show_traceback)
    status = 1
    try:
        status = command()
    except RlctlError as error:
        report(error, show_traceback)
        status = error.exit_status
    finally:
        handover.tell_and_wait(handover.Word(None, status), place.world - 1)
    return status


def follow(show_traceback: bool) -> int:
    """Train what the first process tells; the exit status."""
    word = handover.hear()
    if word.config is None:
        return word.status
    config = compose.loads(word.config, "the config of the first process")
    if Path(config.run.dir).is_dir():  # another machine need not see it
        log_to(Path(config.run.dir))
    return run_here(config, show_traceback)


def worker_arguments(config: Config, show_traceback: bool) -> list[str]:
    """The worker's arguments: on another machine than the first there is no run folder to read from."""
    several = ["--tell"] if (config.launch.machines or 1) > 1 else []
    where = [config.run.dir, *several] if not config.launch.machine_rank else []
    return ["-m", "rlctl.worker", *where, *(["--traceback"] if show_traceback else [])]


def run_process(config: Config, show_traceback: bool, child: Child) -> int:
    """Train in a new process, `child`, that reads the run folder's config.yaml; the exit status."""
    environment = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"} | child.environment
    return run_child([sys.executable, *worker_arguments(config, show_traceback)], replace(child, environment=environment))
