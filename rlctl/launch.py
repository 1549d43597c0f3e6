"""Runs a composed config: here, or in a process of its own. Imports torch only where training happens."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from rlctl.config import compose
from rlctl.config.schema import Config
from rlctl.console import open_console, print_error, print_score
from rlctl.errors import RlctlError
from rlctl.processes import Child, run_child

INTERRUPTED = 130


def log_to(run_dir: Path) -> None:
    """Log into the run folder; each process its own file."""
    rank = os.environ.get("RANK", "0")
    name = "rlctl.log" if rank == "0" else f"rlctl-{rank}.log"
    form = "[%(asctime)s][%(name)s][%(levelname)s] %(message)s"
    logging.basicConfig(filename=run_dir / name, level=logging.INFO, format=form)


def run_here(config: Config, show_traceback: bool = False) -> int:
    """Train in this process; the exit status."""
    logging.captureWarnings(True)  # Python's warnings go to the log file: the terminal belongs to the console
    compose.use_import_paths(config)
    # a tokenizer's thread pool and the processes of a reward function do not mix; transformers warns about it once a fork
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # of several processes the first one shows and writes
    reporter = open_console(config.console.mode if int(os.environ.get("RANK", "0")) == 0 else "quiet")
    try:
        from rlctl.train import train

        return INTERRUPTED if train(config, reporter).status == "interrupted" else 0
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
        traceback.print_exc()
        print_error(["", f"error: unexpected {type(error).__name__}: {error}", f"  log:  {Path(config.run.dir) / 'rlctl.log'}"])
        return 1
    finally:
        reporter.close()


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


def run(config: Config, show_traceback: bool = False) -> int:
    """Train a saved config and return the exit status: here, or in several processes."""
    return run_several(config, show_traceback) if config.launch.processes > 1 else run_here(config, show_traceback)


def _worker(config: Config, show_traceback: bool) -> list[str]:
    return ["-m", "rlctl.worker", config.run.dir, *(["--traceback"] if show_traceback else [])]


def run_process(config: Config, show_traceback: bool, child: Child) -> int:
    """Train in a new process, `child`, that reads the run folder's config.yaml; the exit status."""
    environment = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"} | child.environment
    return run_child([sys.executable, *_worker(config, show_traceback)], replace(child, environment=environment))


def run_several(config: Config, show_traceback: bool) -> int:
    """Train in several processes, started by torch's elastic launcher, which ends them all when one fails; the exit status of
    the one that failed first."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the worker has told what went wrong
    os.environ.pop("HYDRA_FULL_ERROR", None)
    n = config.launch.processes
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // n)))
    where = LaunchConfig(
        1, 1, n, run_id=Path(config.run.dir).name, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0
    )  # fmt: skip
    try:
        elastic_launch(where, sys.executable)(*_worker(config, show_traceback))
        return 0
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        return int(first.exitcode) if first.exitcode >= 0 else 128 - int(first.exitcode)
    except (KeyboardInterrupt, SignalException):
        return INTERRUPTED
