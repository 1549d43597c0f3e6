"""What a sweep's command line asks for as a whole, known before any member is composed: its folder, its members, how they are run.

Which of the members need not run, and what became of them, is not known here.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlctl.config import compose, explain
from rlctl.config.paths import conf_dir
from rlctl.config.schema import ConsoleMode
from rlctl.errors import ConfigError

_HERE, _JOBLIB = "BasicLauncher", "JoblibLauncher"
# overrides that do not change what is trained
_ASIDE = ("sweep", "console", "score", "launch", "run.resume")


@dataclass(frozen=True)
class SweepPlan:
    """A sweep as a whole."""

    folder: Path
    overrides: list[str]
    """What the command line needs besides, so that every process understands it alike."""
    members: list[list[str]] | None
    """The overrides of each member, as typed; None if the sweeper chooses them as it goes."""
    fail_fast: bool
    here: bool
    """The members run one after the other on this terminal; else a launcher starts them in processes of its own."""
    local: bool
    """They run on this machine."""
    quiet: bool
    gpus_wanted: bool


def plan(argv: list[str], recipe: Path | None) -> SweepPlan | None:
    """The sweep that a command line asks for; None if it asks for anything else.

    Raises:
        ConfigError: it cannot be read or composed, or sweep.parallel needs what is not installed.
    """
    line = compose.read(argv, recipe)
    if any((line.args.cfg, line.args.info, line.args.run, line.args.hydra_help, line.args.shell_completion)):
        return None
    if not (line.args.multirun or recipe or any("hydra.mode" in o for o in line.args.overrides)):
        return None
    given = explain.parse_overrides(line.args.overrides)
    if swept := [o.input_line for o in given if _is_of(o.key_or_group, ("sweep",)) and o.is_sweep_override()]:
        raise ConfigError(f"{swept[0]} holds several values", "sweep is about the whole sweep, not about a member")
    early = [o for o in given if o.key_or_group in line.groups or _is_of(o.key_or_group, ("hydra", "sweep", "console", "launch"))]
    early_lines = [str(o.input_line) for o in early if not o.is_sweep_override()]
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            cfg = hydra_compose(line.args.config_name or line.name, early_lines, return_hydra_config=True)
            if not line.args.multirun and str(cfg.hydra.mode).rpartition(".")[2] != "MULTIRUN":
                return None
            members = _members(cfg, [str(o.input_line) for o in given if not o.is_hydra_override()])
    except (HydraException, OmegaConfBaseException) as error:
        raise compose.explained(error, line, list(line.args.overrides)) from error
    return _plan(cfg, members, any(_is_of(o.key_or_group, ("hydra/launcher",)) for o in given))


def _plan(cfg: Any, members: list[list[str]] | None, own_launcher: bool) -> SweepPlan:
    folder = Path(str(cfg.hydra.sweep.dir)).resolve()
    # resolved once: every process would find a fresh folder of its own
    overrides = ['hydra.sweep.dir="' + str(folder).replace("\\", "\\\\").replace('"', '\\"') + '"']
    launcher, parallel = str(cfg.hydra.launcher._target_).rpartition(".")[2], int(cfg.sweep.parallel)
    if parallel > 1 and launcher not in (_HERE, _JOBLIB):
        raise ConfigError(
            f"sweep.parallel={parallel} and hydra.launcher={launcher} both say how many members train at once",
            "sweep.parallel starts them by joblib on this machine",
            "leave sweep.parallel out",
        )
    if parallel > 1:
        if not _installed("hydra_plugins.hydra_joblib_launcher"):
            why = "several members at once are started by hydra-joblib-launcher, which is not installed"
            raise ConfigError(f"sweep.parallel={parallel} needs one more package", why, 'pip install "rlctl[sweep]"')
        overrides += [*([] if own_launcher else ["hydra/launcher=joblib"]), f"hydra.launcher.n_jobs={parallel}"]
        overrides.append("hydra.launcher.batch_size=1")  # joblib would put quick members, those skipped, in one batch with slow ones
        launcher = _JOBLIB
    quiet = str(cfg.console.mode).rpartition(".")[2] == ConsoleMode.quiet
    here, local = launcher == _HERE, launcher in (_HERE, _JOBLIB)
    gpus = launcher == _JOBLIB and str(cfg.launch.device).rpartition(".")[2] != "cpu"
    return SweepPlan(folder, overrides, members, bool(cfg.sweep.fail_fast), here, local, quiet, gpus)


def _members(cfg: Any, task: list[str]) -> list[list[str]] | None:
    if not str(cfg.hydra.sweeper._target_).endswith("BasicSweeper"):
        return None
    params = OmegaConf.to_container(cfg.hydra.sweeper.params or OmegaConf.create({}), resolve=True)
    assert isinstance(params, dict)
    lines = [*(f"{k}={v}" for k, v in params.items()), *task]
    try:
        parsed = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader()).parse_overrides(lines)
        (batch,) = BasicSweeper.split_arguments(parsed, None)
    except HydraException:  # what the sweeper does not take it refuses itself, in a moment
        return None
    return [explain.of_one_run(member) for member in batch]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def _is_of(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}/")) for name in names)


def decisive(overrides: list[str]) -> list[str]:
    """Those that say what is trained, in a fixed order."""
    return sorted(o for o in overrides if not _is_of(o.lstrip("+~").partition("=")[0], _ASIDE))
