"""Runs a composed config: here, or in a process of its own. Imports torch only where training happens."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path

from rlctl.config import compose
from rlctl.config.schema import Config
from rlctl.console import open_console, print_error, print_score
from rlctl.errors import RlctlError

INTERRUPTED = 130


def run_here(config: Config, show_traceback: bool = False) -> int:
    """Train in this process; the exit status."""
    logging.captureWarnings(True)  # Python's warnings go to the log file: the terminal belongs to the console
    compose.use_import_paths(config)
    # a tokenizer's thread pool and the processes of a reward function do not mix; transformers warns about it once a fork
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    reporter = open_console(config.console.mode)
    try:
        from rlctl.train import train

        train(config, reporter)
        return 0
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

    report = score(config)
    if as_json:
        sys.stdout.write(json.dumps(plain(report), ensure_ascii=False, default=str) + "\n")
    else:
        print_score(report)
    return 0 if report.learnable else 3


def report(error: RlctlError, show_traceback: bool) -> None:
    """Print an error a user can act on; its traceback only if asked."""
    if show_traceback:
        traceback.print_exception(error)
    print_error(error.lines())


def run_process(config: Config, show_traceback: bool = False) -> int:
    """Train in a new process that reads the run folder's config.yaml; the exit status."""
    environment = {k: v for k, v in os.environ.items() if k != "HYDRA_FULL_ERROR"}
    flags = ["--traceback"] if show_traceback else []
    done = subprocess.run([sys.executable, "-m", "rlctl.worker", config.run.dir, *flags], env=environment, check=False)
    # a negative code is the signal that ended it; shells show it as 128 + n
    return done.returncode if done.returncode >= 0 else 128 - done.returncode
