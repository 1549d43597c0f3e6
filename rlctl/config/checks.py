"""Checks that need no torch and no model: bounds of single keys, then keys against each other, all reported together."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from rlctl.config import judges, stages
from rlctl.config.leaves import leaves, value_source
from rlctl.config.schema import (
    CGPOConfig,
    CGPOOptimizer,
    ClassRewardConfig,
    Config,
    CustomAlgoConfig,
    FunctionRewardConfig,
    LoraConfig,
    PPOConfig,
    RLOOConfig,
    TermConfig,
    ValueInit,
    WeightedRewardConfig,
)
from rlctl.config.tasks import ALGO, ROLLOUT, not_its_own

_BOUNDS = {
    "ge": (lambda v, b: v >= b, "at least"),
    "gt": (lambda v, b: v > b, "greater than"),
    "le": (lambda v, b: v <= b, "at most"),
    "lt": (lambda v, b: v < b, "less than"),
}
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")


def problems(config: Config | stages.Stage) -> list[str]:
    """Everything wrong with a config that can be seen without loading anything, one line each; empty if sound."""
    found = [*_bounds(config, ""), *_null_words(config, "")]
    if not isinstance(config, Config):
        return [*found, *stages.together(config)]
    found += _tasks(config)
    if not config.tasks or isinstance(config.algo, (CGPOConfig, CustomAlgoConfig)):
        found += _of_the_run(config)
        for name, one in config.by_task.items():
            found += [_of_a_task(name, line) for line in _own(one)] if name else _own(one)
    return list(dict.fromkeys(found))


def _tasks(config: Config) -> Iterator[str]:
    # whether a class of the user's can have tasks shows when it is imported
    if config.tasks and not isinstance(config.algo, (CGPOConfig, CustomAlgoConfig)):
        yield f"tasks are for algo=cgpo; algo={config.algo.name} trains on one reward"
    for name, task in config.tasks.items():
        if isinstance(config.algo, CustomAlgoConfig):
            yield from (f"tasks.{name}.{key}: algo={config.algo.title} has no algo.{key}" for key in not_its_own(config, task))
        if not re.fullmatch(r"[\w.-]+", name):
            yield f"tasks.{name}: only letters, digits and . _ - may be in a task's name"
        yield from _bounds(task, f"tasks.{name}.")
        yield from _null_words(task, f"tasks.{name}.")


def _of_a_task(name: str, line: str) -> str:
    """A problem with the keys of one task, as they are written there."""
    for group, keys in (("algo", ALGO), ("rollout", ROLLOUT)):
        for key in keys:
            line = line.replace(f"{group}.{key}", f"tasks.{name}.{key}")
    return line if line.startswith(f"tasks.{name}.") else f"tasks.{name}: {line}"


def _bounds(node: Any, prefix: str) -> Iterator[str]:
    for f in dataclasses.fields(node):
        value, name = getattr(node, f.name), f"{prefix}{f.name}"
        if dataclasses.is_dataclass(value):
            yield from _bounds(value, f"{name}.")
            continue
        for key, bound in f.metadata.items():
            holds, words = _BOUNDS[key]
            # `not holds` rather than the opposite comparison: NaN fails every bound
            if value is not None and not holds(value, bound):
                yield f"{name}={value}: must be {words} {bound}"


def _null_words(node: Any, prefix: str) -> Iterator[str]:
    """On the command line `none` is a string; a key that takes text would look for a file of that name."""
    for f in dataclasses.fields(node):
        value, name = getattr(node, f.name), f"{prefix}{f.name}"
        if dataclasses.is_dataclass(value):
            yield from _null_words(value, f"{name}.")
        elif type(value) is str and value.lower() in ("none", "~") and name != "run.tracker":
            instead = f"{name}=null for no value" if "Optional" in str(f.type) else f"{name}={f.default} for the default"
            yield f"{name}={value}: this is the word {value!r}; write {instead}"
        elif type(value) is str and value == "" and name != "run.dir":
            yield f"{name} is empty"


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]


def _nearest(wanted: int, valid: list[int]) -> str:
    below = [d for d in valid if d <= wanted][-1:]
    above = [d for d in valid if d > wanted][:1]
    return " or ".join(str(d) for d in below + above)


def _of_the_run(config: Config) -> Iterator[str]:
    """What no task has of its own."""
    algo, total = config.algo, config.samples_per_step
    if algo.minibatches >= 1 and total >= 1 and total % algo.minibatches:
        yield (
            f"algo.minibatches={algo.minibatches} does not divide the {total} samples of a step "
            f"(rollout.prompts_per_step={config.rollout.prompts_per_step} x algo.samples_per_prompt={algo.samples_per_prompt}); "
            f"nearest: algo.minibatches={_nearest(algo.minibatches, divisors(total))}"
        )
    if algo.kl_target is not None and algo.kl_coef == 0:
        yield "algo.kl_target needs algo.kl_coef > 0 to start from: the controller multiplies it"
    if algo.max_kl is not None and config.run.save_every is not None and config.run.keep < 2:
        yield "algo.max_kl needs run.keep of at least 2: the newest checkpoint may be the one past the limit"
    if isinstance(algo, PPOConfig) and algo.value_warmup_steps >= config.steps > 0:
        yield f"algo.value_warmup_steps={algo.value_warmup_steps} leaves none of the {config.steps} steps for the policy"
    yield from _lora(config.model.lora)
    if isinstance(algo, CustomAlgoConfig):
        if not _DOTTED.fullmatch(algo.path):
            yield f"algo=class:{algo.path}: expected the dotted path of a class, such as class:mypkg.MyAlgorithm"
    elif not isinstance(algo, PPOConfig):
        if config.value.init is not ValueInit.auto or config.value.lr is not None:
            yield f"value={config.value.init}: algo={algo.name} has no value model; leave value out, or write algo=ppo"
        if config.run.save_value:
            yield f"run.save_value=true: algo={algo.name} has no value model"
    if isinstance(algo, RLOOConfig) and algo.kl_in_loss and algo.kl_target is not None:
        yield "algo.kl_target steers the KL in the reward; with algo.kl_in_loss=true the coefficient is fixed"
    if config.optim.warmup_updates > config.updates:
        yield f"optim.warmup_updates={config.optim.warmup_updates} is more than the {config.updates} updates of the run"


def _lora(lora: LoraConfig) -> Iterator[str]:
    if lora.target_modules == []:
        yield "model.lora.target_modules is empty; write model.lora.target_modules=null for every linear layer"
    for key, default in (("alpha", LoraConfig.alpha), ("target_modules", None)):
        if not lora.r and getattr(lora, key) != default:
            yield f"model.lora.{key} shapes a new adapter, and there is none without model.lora.r"


def _own(config: Config) -> Iterator[str]:
    """What each task has: of a run without tasks, the rest."""
    yield from _split(config)
    yield from _reward(config)
    yield from _judges(config)


def _split(config: Config) -> Iterator[str]:
    """Prompts are shared evenly, so that responses to one prompt stay together; the number of processes may not be known yet."""
    prompts, processes, machines = config.rollout.prompts_per_step, config.launch.processes, config.launch.machines or 1
    if processes is None or processes < 1 or machines < 1 or prompts < 1 or prompts % (world := processes * machines) == 0:
        return
    near = " or ".join(str(n) for n in (prompts // world * world, (prompts // world + 1) * world) if n)
    among = f"launch.processes={processes}" + (f" on each of launch.machines={machines}" if machines > 1 else "")
    valid = [n for n in divisors(prompts) if prompts % (n * machines) == 0]
    instead = f", or launch.processes={_nearest(processes, valid)}" if valid else ""
    yield f"rollout.prompts_per_step={prompts} cannot be shared evenly by {among}; nearest: rollout.prompts_per_step={near}{instead}"


def _judges(config: Config) -> Iterator[str]:
    algo = config.algo
    yield from judges.all_problems(config.judges)
    if isinstance(algo, CGPOConfig):
        if algo.violation_score is not None:
            yield "algo.violation_score is for ppo and rloo: cgpo treats what violates by itself"
        if algo.optimizer is CGPOOptimizer.codpo and algo.samples_per_prompt < 2:
            yield "algo.optimizer=codpo compares two responses to a prompt: algo.samples_per_prompt must be at least 2"
    elif config.judges and algo.violation_score is None and not isinstance(algo, CustomAlgoConfig):
        yield f"judges under algo={algo.name} need algo.violation_score, the score of a response that a judge does not pass"
    elif algo.violation_score is not None and not config.judges:
        yield f"algo.violation_score={algo.violation_score:g} has no effect without judges"


def _reward(config: Config) -> Iterator[str]:
    reward = config.reward
    try:
        found = leaves(reward)
    except ValueError as error:
        yield f"{'reward.base' if reward.kind == 'calibrated' else 'reward.terms'}: {error}"
        return
    for leaf in found:
        if isinstance(leaf, FunctionRewardConfig) and not _DOTTED.fullmatch(leaf.path):
            yield f"reward=fn:{leaf.path}: expected the dotted path of a function, such as fn:mypkg.count_good"
        if isinstance(leaf, ClassRewardConfig) and not _DOTTED.fullmatch(leaf.path):
            yield f"reward=class:{leaf.path}: expected the dotted path of a class, such as class:mypkg.MyReward"
    if isinstance(reward, WeightedRewardConfig):
        if not reward.terms:
            yield "reward=weighted needs reward.terms, such as 'reward.terms=[{reward: fn:mypkg.count_good, weight: 1.0}]'"
        names = [term_name(t) for t in reward.terms]
        for name in sorted({n for n in names if names.count(n) > 1}):
            yield f"reward.terms: two terms are called {name!r}; give each a name of its own"
        for i, term in enumerate(reward.terms):
            yield from _bounds(term, f"reward.terms[{i}].")
    if config.value.init is ValueInit.reward and isinstance(config.algo, (PPOConfig, CustomAlgoConfig)) and value_source(reward) is None:
        kinds = ["class" if isinstance(leaf, ClassRewardConfig) else "function" for leaf in found]
        what = f"the {kinds[0]} {found[0].path}" if len(found) == 1 else "a sum of several"
        yield f"value=reward needs a reward model to start from, and the reward is {what}; write value=policy, or reward=model:PATH"


def term_name(term: TermConfig) -> str:
    """A term's name in metrics: its own, or the last part of its path."""
    return term.name or term.reward.partition(":")[2].rstrip("/").rpartition("/")[2].rpartition(".")[2]
