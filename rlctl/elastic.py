"""Several processes, on this machine or with others, through torch's elastic launcher. Imports torch when it starts them.

The launcher hands signals on to the processes, and ends them all when one fails.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlctl.config.schema import Config
from rlctl.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

INTERRUPTED = 130


def start(config: Config, arguments: list[str]) -> int:
    """Run Python with these arguments in launch.processes processes; the exit status of the one that failed first, or 0.

    Raises:
        ConfigError: the machines did not find each other.
    """
    with _without_socket_messages():
        from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the worker has told what went wrong
    os.environ.pop("HYDRA_FULL_ERROR", None)
    launch = config.launch
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // (launch.processes or 1))))
    try:
        elastic_launch(_meeting(config), sys.executable)(*arguments)
        return 0
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        return int(first.exitcode) if first.exitcode >= 0 else 128 - int(first.exitcode)
    except (DistError, RendezvousError) as error:
        raise ConfigError(
            f"machine {launch.machine_rank} of {launch.machines} did not meet the others at {launch.main_address}:{launch.main_port} "
            f"within {launch.wait} s",
            f"{type(error).__name__}: {str(error).splitlines()[0]}",
            "the same command on every machine, each with its own launch.machine_rank; is the port free and open?",
        ) from error
    except (KeyboardInterrupt, SignalException):
        return INTERRUPTED


def _meeting(config: Config) -> LaunchConfig:
    """How many processes there are, and where they meet."""
    from torch.distributed.launcher.api import LaunchConfig

    launch = config.launch
    assert launch.processes is not None and launch.machines is not None
    if launch.machines == 1:
        return LaunchConfig(
            1, 1, launch.processes, run_id=Path(config.run.dir).name, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0
        )  # fmt: skip
    # static: machine 0 is the one that says so, for there the run folder is
    return LaunchConfig(
        launch.machines, launch.machines, launch.processes, run_id="rlctl", rdzv_backend="static", max_restarts=0,
        rdzv_endpoint=f"{launch.main_address}:{launch.main_port}",
        rdzv_configs={"rank": launch.machine_rank, "timeout": launch.wait},
    )  # fmt: skip


@contextmanager
def _without_socket_messages() -> Iterator[None]:
    """torch reads this level when it is imported; what its sockets say is said here in fewer words. Workers keep their own."""
    before = os.environ.get("TORCH_CPP_LOG_LEVEL")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        yield
    finally:
        if before is None:
            del os.environ["TORCH_CPP_LOG_LEVEL"]
