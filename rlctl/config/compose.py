"""From the command line to a typed, checked Config: the only module, with its neighbours here, that sees Hydra.

`run` hands each composed job to a task, once for a single run and once per member of a sweep. `--cfg`, `--info` and the
other flags of Hydra's own are left to Hydra.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlctl.config import explain, shorthand
from rlctl.config.checks import problems
from rlctl.config.local import resolve_paths
from rlctl.config.paths import conf_dir
from rlctl.config.roots import ROOTS, TRAIN, Root
from rlctl.config.saved import dumps as dumps
from rlctl.config.saved import load as load
from rlctl.config.saved import loads as loads
from rlctl.config.saved import node_of, plain, root_schema, typed_of
from rlctl.config.saved import save as save
from rlctl.config.schema import OPTIONS, Config
from rlctl.config.stages import Stage
from rlctl.config.typed import open_schema
from rlctl.errors import ConfigError


@dataclass(frozen=True)
class Job:
    """One composed run."""

    config: Any
    """Of the root's schema."""
    run_dir: Path
    overrides: list[str]
    number: int | None
    """Number of the sweep member; None for a single run."""
    hydra_files: dict[str, str]
    """Hydra's own record of the job, for .hydra/: file name -> YAML. Hydra would write it over an older run's."""


@dataclass(frozen=True)
class Refused:
    """A member of a sweep whose config cannot be."""

    run_dir: Path
    overrides: list[str]
    number: int | None
    error: ConfigError


@functools.cache
def _fresh_dir(base: str) -> str:
    """base/DATE/TIME, made here so that two runs started in one second do not share a folder."""
    day = Path(base) / time.strftime("%Y-%m-%d")
    day.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%H-%M-%S")
    for suffix in ["", *(f"_{i}" for i in range(2, 1000))]:
        path = day / f"{stamp}{suffix}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return str(path)
    raise ConfigError(f"no free run folder under {day}", hint="hydra.run.dir=PATH")


def _register(recipe: Path | None) -> None:
    store = ConfigStore.instance()
    for root in ROOTS.values():
        store.store(group="schema", name=root.recipe, node=root_schema(root))
    for group, options in OPTIONS.items():
        for name, cls in options.items():
            store.store(group=f"schema/{group}", name=name, node=open_schema(cls))
    shorthand.register(str(recipe) if recipe else None)
    OmegaConf.register_new_resolver("rlctl_fresh_dir", _fresh_dir, replace=True)


def _groups(recipe: Path | None, root: Root = TRAIN) -> set[str]:
    tops = [conf_dir(), *([recipe] if recipe else [])]
    found = {str(p.relative_to(top)) for top in tops for p in top.rglob("*") if p.is_dir() and any(p.glob("*.yaml"))}
    return found if root is TRAIN else found & {f.name for f in fields(root.schema)}


@dataclass(frozen=True)
class Line:
    """A command line, read and checked as far as that goes without composing anything."""

    parser: Any
    args: Any
    """Of Hydra's own parser."""
    groups: set[str]
    name: str
    """The config file at the root."""
    root: Root = TRAIN


def read(argv: list[str], recipe: Path | None, root: Root = TRAIN) -> Line:
    """Read a command line, and make the schema and the recipe known to Hydra.

    Raises:
        ConfigError: it does not parse, or names keys that there are not.
    """
    parser = get_args_parser()
    explain.raise_unknown_option(argv, parser._option_string_actions, root.command)
    args = parser.parse_args(argv)
    _register(recipe)
    groups = _groups(recipe, root)
    _check_overrides(explain.parse_overrides(args.overrides), groups, root)
    name = root.recipe if recipe and (recipe / f"{root.recipe}.yaml").is_file() else root.base
    # Hydra wants to be told of new keys: the arguments of a function, and what a task did not say of its data or reward before
    args.overrides = [f"++{o}" if explain.takes_new_keys(o) else o for o in args.overrides]
    return Line(parser, args, groups, name, root)


def run(
    argv: list[str], recipe: Path | None, task: Callable[[Job], None], refuse: Callable[[Refused], None] | None = None, root: Root = TRAIN
) -> None:
    """Compose from `root` and run `task` for each job; or print what --cfg, --info, ... ask for.

    refuse: takes a member of a sweep whose config cannot be, in place of `task`; without it the first such ends the command.
    A launcher may carry both to other processes: plain functions of plain data.

    Raises:
        ConfigError: anything wrong with the command line or the config, all problems in one.
    """
    line = read(argv, recipe, root)
    refused: list[ConfigError] = []

    def compose_and_run(cfg: DictConfig) -> None:
        # Hydra reports what its task raises in its own words; what we refuse is kept and raised outside
        try:
            job = _job(cfg, recipe)
        except (ConfigError, OmegaConfBaseException) as error:
            if refuse is not None:
                known = error if isinstance(error, ConfigError) else _cannot_compose([explain.composition(error)])
                refuse(Refused(*_place(), known))
            elif isinstance(error, ConfigError):
                refused.append(error)
            else:
                raise
        else:
            task(job)

    # Hydra prints and exits on its own errors unless asked for the exceptions themselves
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    user_overrides = list(line.args.overrides)
    try:
        _run_hydra(line.args, line.parser, compose_and_run, str(conf_dir()), line.name)
        if refused:
            raise refused[0]
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, line, user_overrides) from error
    except ValueError as error:  # Hydra's word for flags that exclude each other; a task raises nothing
        raise ConfigError(str(error), hint=f"rlctl {root.command} --help") from error
    except OSError as error:  # Hydra makes the folder before it hands the config on
        raise ConfigError(f"the run folder {error.filename} cannot be made", error.strerror, "hydra.run.dir=PATH") from error
    finally:
        os.environ.pop("HYDRA_FULL_ERROR", None)
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before


def _check_overrides(overrides: list[Any], groups: set[str], root: Root = TRAIN) -> None:
    lines = explain.unknown_keys(overrides, groups, root.schema)
    if lines:
        raise ConfigError("unknown key" + ("s" if len(lines) > 1 else ""), "\n".join(lines), f"rlctl {root.command} --help lists every key")


def explained(error: Exception, line: Line, overrides: list[str]) -> ConfigError:
    """Every override that cannot be composed, found by composing each alone beside the choices of options."""
    from hydra import compose, initialize_config_dir

    lines: list[str] = []
    parsed = explain.parse_overrides(overrides)
    choices = [o.input_line for o in parsed if o.key_or_group in line.groups and not o.is_sweep_override()]
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        for o in parsed:
            alone = [o.input_line] if o.input_line in choices else [*choices, o.input_line]
            try:
                if not o.is_sweep_override():
                    compose(line.name, alone)
            except (HydraException, OmegaConfBaseException) as e:
                if o.key_or_group.partition(".")[0] == "tasks":
                    lines.append(explain.task_key(o.key_or_group, compose(line.name, choices).tasks, e))
                else:
                    lines.append(explain.composition(e, line.root.schema))
    return _cannot_compose(list(dict.fromkeys(lines)) or [explain.composition(error, line.root.schema)], line.root)


def _cannot_compose(lines: list[str], root: Root = TRAIN) -> ConfigError:
    return ConfigError("the config cannot be composed", "\n".join(lines), f"rlctl {root.command} --help lists every option and key")


def _place() -> tuple[Path, list[str], int | None]:
    """Folder, overrides and sweep number of the job that Hydra is about to run."""
    hydra = HydraConfig.get()
    number = int(hydra.job.num) if hydra.mode == RunMode.MULTIRUN else None
    return Path(hydra.runtime.output_dir).resolve(), explain.of_one_run(hydra.overrides.task), number


def _job(cfg: DictConfig, recipe: Path | None) -> Job:
    hydra, (run_dir, overrides, number) = HydraConfig.get(), _place()
    if "algo" in cfg and (why := explain.misplaced_arguments(cfg)):
        raise _cannot_compose([why])
    paths = [str(p) for p in ([recipe] if recipe else [])] + [os.getcwd()]
    typed = typed_of(cfg)
    typed = resolve_paths(replace(typed, run=replace(typed.run, dir=str(run_dir), import_paths=paths)), overrides, recipe)
    record = {"config.yaml": cfg, "overrides.yaml": OmegaConf.create(overrides), "hydra.yaml": OmegaConf.create({"hydra": hydra})}
    files = {name: OmegaConf.to_yaml(node) for name, node in record.items()}
    return Job(typed, run_dir, overrides, number, files)


def check(config: Config | Stage) -> None:
    """Raise one ConfigError with every problem that the config alone shows."""
    found = problems(config)
    if found:
        what = "the config has a problem" if len(found) == 1 else f"the config has {len(found)} problems"
        raise ConfigError(what, "\n".join(found))


def changed(config: Config, overrides: list[str]) -> Config:
    """A resolved config with some keys changed as on the command line.

    Raises:
        ConfigError: an override cannot be read, names no key, chooses another option, or has a value of the wrong type.
    """
    parsed = explain.parse_overrides(overrides)
    for o in parsed:
        if o.key_or_group in OPTIONS or o.key_or_group in _groups(None) or o.is_sweep_override():
            why = "a run goes on with the options it has; single keys can change"
            raise ConfigError(f"{o.input_line} cannot be given here", why, "rlctl train --help lists every key")
    _check_overrides(parsed, set())
    node, lines = node_of(OmegaConf.create(plain(config))), []
    for o in parsed:
        try:
            OmegaConf.update(node, o.key_or_group, o.value())
        except OmegaConfBaseException as error:
            lines.append(explain.composition(error))
    if lines:
        raise _cannot_compose(lines)
    found: Config = resolve_paths(typed_of(node), overrides, None)
    return found


def use_import_paths(config: Config | Stage) -> None:
    """Put the recipe folder, then the working folder, first on sys.path: a console script has neither."""
    for path in reversed(config.run.import_paths):
        if path in sys.path:
            sys.path.remove(path)
        sys.path.insert(0, path)
