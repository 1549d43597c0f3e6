"""Turns what Hydra and OmegaConf say about a command line into errors with a cause and something to type instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError

from rlctl.config.describe import known_keys
from rlctl.config.paths import KINDS
from rlctl.config.schema import OPTIONS, Config
from rlctl.config.tasks import task_keys
from rlctl.errors import ConfigError, nearest

# what the same thing is called elsewhere
_ALIASES = {
    "learning_rate": "optim.lr",
    "lr": "optim.lr",
    "batch_size": "rollout.prompts_per_step",
    "per_device_train_batch_size": "optim.microbatch_size",
    "micro_batch_size": "optim.microbatch_size",
    "num_ppo_epochs": "algo.epochs",
    "ppo_epochs": "algo.epochs",
    "num_mini_batches": "algo.minibatches",
    "cliprange": "algo.clip_range",
    "cliprange_value": "algo.clip_range_value",
    "beta": "algo.kl_coef",
    "init_kl_coef": "algo.kl_coef",
    "gamma": "algo.discount",
    "lam": "algo.gae_lambda",
    "num_generations": "algo.samples_per_prompt",
    "response_length": "rollout.max_new_tokens",
    "max_completion_length": "rollout.max_new_tokens",
    "total_steps": "run.steps",
    "max_steps": "run.steps",
    "stop_token": "rollout.stop",
    "lora_r": "model.lora.r",
    "lora_rank": "model.lora.r",
    "lora_alpha": "model.lora.alpha",
    "lora_target_modules": "model.lora.target_modules",
}


_LISTS = ("rollout.stop", "model.lora.target_modules")


def nearest_key(key: str, root: type = Config) -> str | None:
    """The config key most like `key`; a key whose last part is right in the wrong group counts as near."""
    last, known = key.rsplit(".", 1)[-1], known_keys(root)
    same = [k for k in known if k.rsplit(".", 1)[-1] == last]
    if same:
        return nearest(key, same) or same[0]
    if alias := nearest(last, [a for a, k in _ALIASES.items() if k in known]):
        return _ALIASES[alias]
    group, dot, _ = key.partition(".")
    # inside the right group compare the last parts alone: a shared prefix would make everything look alike
    inside = {k.rsplit(".", 1)[-1]: k for k in known if dot and k.startswith(f"{group}.")}
    if inside and (found := nearest(last, inside)):
        return inside[found]
    return None if inside else nearest(key, known)


def parse_overrides(texts: list[str]) -> list[Override]:
    """Parse overrides; every one that does not parse is named, with a form that does.

    Raises:
        ConfigError: some override is not `key=value`, or its value needs quotes.
    """
    parser, parsed, bad = OverridesParser.create(), [], []
    for text in texts:
        try:
            parsed += parser.parse_overrides([text])
        except HydraException:
            bad.append(text)
    if bad:
        why = [f"{text}: {_why_unparsed(text)}" for text in bad]
        hints = [quoted(text) for text in bad if "=" in text]
        raise ConfigError("the command line cannot be read", "\n".join(why), "\n".join(hints) or "rlctl train algo.kl_coef=0.1")
    return parsed


def _why_unparsed(text: str) -> str:
    if "=" not in text:
        return "an override has the form key=value"
    return "a value with = # < > & { } [ ] , ' or blanks needs quotes inside the shell's own"


def quoted(text: str) -> str:
    """`stop=a=b` -> `'stop="a=b"'`, ready to paste into a shell."""
    key, _, value = text.partition("=")
    is_list = key in _LISTS
    items = value.strip("[]").split(",") if is_list else [value]
    items = [i.strip().strip("\"'").replace("\\", "\\\\").replace('"', '\\"') for i in items]
    form = f'{key}=["' + '","'.join(items) + '"]' if is_list else f'{key}="{items[0]}"'
    return "'" + form.replace("'", "'\\''") + "'"


def is_argument(key: str) -> bool:
    """The places where a key may be new: keyword arguments of the user's function or class."""
    return key in ("reward.args", "algo.args") or key.startswith(("reward.args.", "algo.args."))


def misplaced_arguments(cfg: Any) -> str | None:
    """Arguments where nothing takes any: they are the one kind of key that a command line may add."""
    takes = {group: {name for name, cls in found.items() if "args" in {f.name for f in fields(cls)}} for group, found in OPTIONS.items()}
    if "args" in cfg.reward and cfg.reward.kind not in takes["reward"]:
        return f"reward.args: reward={cfg.reward.kind} takes no arguments; reward=fn and class have them, and the terms of reward=weighted"
    if "args" in cfg.algo and cfg.algo.name not in takes["algo"]:
        return f"algo.args: algo={cfg.algo.name} takes no arguments; algo=class has them"
    return None


def of_one_run(overrides: Iterable[str]) -> list[str]:
    """A job's overrides as they can be typed to run it alone.

    A sweep escapes colons, new keys were marked as such, and what is said about the sweep as a whole is left out.
    """
    plain = [o.removeprefix("++") if takes_new_keys(o[2:]) else o for o in overrides]
    return [o.replace("\\:", ":") for o in plain if not o.startswith(("sweep=", "sweep."))]


def takes_new_keys(override: str) -> bool:
    """Whether an override may bring keys that Hydra does not know: those of a function, or a mapping for a task's data or reward."""
    key, _, value = override.partition("=")
    return is_argument(key) or (value.startswith("{") and re.fullmatch(r"tasks\.[^.]+\.(data|reward)", key) is not None)


def unknown_keys(overrides: list[Override], groups: Iterable[str], root: type = Config) -> list[str]:
    """One line for every override whose key no option has, and for every + that would add a dead key."""
    groups, lines = set(groups), []
    for o in overrides:
        key = o.key_or_group
        if key == "hydra" or key.startswith(("hydra.", "hydra/")) or key in groups:
            continue
        if is_argument(key) and root is Config:
            continue
        if key.startswith("tasks.") and root is Config:
            lines += _unknown_task_key(o)
        elif key not in known_keys(root):
            near = nearest_key(key, root)
            lines.append(f"{o.input_line}: there is no key {key!r}" + (f"; did you mean {near}?" if near else ""))
        elif o.is_add() or o.is_force_add():
            lines.append(f"{o.input_line}: {key} exists already; write it without +")
        elif o.is_delete():
            lines.append(f"{o.input_line}: {key} cannot be removed; write {key}=null for no value")
    return lines


def _unknown_task_key(o: Override) -> list[str]:
    """Whether tasks.NAME.KEY is one a task has; a task's name, and what is in its data and reward, shows when composing."""
    own = o.key_or_group.split(".")[2:]
    if own and own[0] not in task_keys():
        near = nearest(own[0], task_keys())
        return [f"{o.input_line}: a task has no key {own[0]!r}" + (f"; did you mean {near}?" if near else "")]
    # added to data that a file gives as a text, a key would put a mapping without that text in its place
    return [f"{o.input_line}: {_as_mapping(o.key_or_group)}"] if len(own) > 1 and (o.is_add() or o.is_force_add()) else []


def _as_mapping(key: str) -> str:
    _, name, what, *inner = key.split(".")
    return f"a task's {what} takes new keys as a mapping: 'tasks.{name}.{what}={{{'.'.join(inner)}: VALUE}}'"


def task_key(key: str, tasks: Iterable[str], error: Exception) -> str:
    """Why `tasks...` cannot be overridden: no such task, its data or reward does not hold the key, or the value is wrong."""
    tasks, (_, *parts) = list(tasks), key.split(".")
    if parts and parts[0] in tasks:
        return f"{key}: {_as_mapping(key)}" if len(parts) > 2 and str(error).startswith("Could not override") else composition(error)
    what = f"there is no task {parts[0]!r}" if parts else "there are no tasks"
    near = nearest(parts[0], tasks) if parts else None
    there = f"there are: {', '.join(tasks)}" if tasks else "tasks are written in a recipe's config.yaml"
    return f"{key}: {what}; " + (f"did you mean {near}?" if near else there)


def composition(error: Exception, root: type = Config) -> str:
    """One readable line for an error that Hydra or OmegaConf raised while composing."""
    text = str(error)
    if found := re.search(r"Could not find '([^']+)'.*?Available options in '[^']+':\n(.*?)(?:\nConfig search path|\Z)", text, re.S):
        group, _, option = found[1].partition("/")
        options = [o.strip() for o in found[2].splitlines() if o.strip()]
        kinds = [k for g, k in KINDS if g == group]
        near = nearest(option.partition(":")[0], [*options, *kinds], 0.6) or nearest(option, options, 0.6)
        listing = ", ".join([*options, *(f"{k}:..." for k in kinds)])
        return f"{group}={option}: no such option" + (f"; did you mean {group}={near}?" if near else "") + f" (there are: {listing})"
    if found := re.search(r"Could not override '([^']+)'", text):
        return f"{found[1]}: the chosen options have no such key" + _owners(found[1])
    cause: BaseException = error
    while (inner := cause.__cause__ or cause.__context__) is not None and not getattr(cause, "full_key", None):
        cause = inner
    key = getattr(cause, "full_key", None)
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and key:
        if key in known_keys(root):  # a recipe's file sets a key of the option that the command line replaced
            return f"{key}: the chosen options have no such key" + _owners(key)
        near = nearest_key(key, root)
        return f"there is no key {key!r}" + (f"; did you mean {near}?" if near else "")
    lines = [line.strip() for line in str(cause).strip().splitlines()]
    message = next((line for line in lines if not line.endswith("raised while composing config:")), lines[0])
    return f"{key}: {message}" if key and key not in message else message


def _owners(key: str) -> str:
    group, _, name = key.partition(".")
    owners = [o for o, cls in OPTIONS.get(group, {}).items() if name in {f.name for f in fields(cls)}]
    return "; " + " and ".join(f"{group}={o}" for o in owners) + (" has it" if len(owners) == 1 else " have it") if owners else ""


def raise_unknown_option(argv: list[str], known: Iterable[str], command: str = "train") -> None:
    """Refuse an option (`--cgf`) that the command does not have, with the nearest one that it has."""
    known = list(known)
    for arg in argv:
        if not arg.startswith("-") or arg == "-" or "=" in arg.split("--", 1)[0]:
            continue
        name = arg.partition("=")[0]
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"rlctl {command} --help"
            raise ConfigError(f"unknown option {name}", hint=hint)
