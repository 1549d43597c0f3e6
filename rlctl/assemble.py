"""From a Config to everything a run needs, in the order in which mistakes are cheapest to find: functions, tokenizers and
data first, weights last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers
from accelerate import Accelerator
from torch import Tensor

from rlctl import algos, lora, models
from rlctl.algos.custom import Custom
from rlctl.assembly import Assembly, Clock
from rlctl.collect import Collector
from rlctl.config.schema import Config, ValueInit
from rlctl.control import KLController
from rlctl.data import Prompts, build_prompts, context_length
from rlctl.devices import open_accelerator
from rlctl.distribute import distribute
from rlctl.errors import ConfigError, of_task
from rlctl.facts import facts
from rlctl.judges import build as judges_of
from rlctl.judges.base import Judge
from rlctl.models import Source
from rlctl.report import Plan, Reporter
from rlctl.rewards.base import Reward
from rlctl.rewards.build import load, open_leaves, value_source_of
from rlctl.sample import Sampler, end_ids
from rlctl.task import Task
from rlctl.update import Updater, build_optimizer, default_learning_rate
from rlctl.value import Built, Choice, build, choose


@dataclass
class Stream:
    """One task's prompts and what scores them."""

    config: Config
    prompts: Prompts
    reward: Reward
    judges: list[Judge]
    sampler: Sampler


@dataclass
class Base:
    """What sampling and scoring need: everything but what learns."""

    accelerator: Accelerator
    source: Source
    lm: Any
    streams: dict[str, Stream]
    """By task; "" for the only one of a run without tasks."""


def open_base(config: Config, check: Callable[[Source, Source | None], None] = lambda policy, reward: None) -> Base:
    """Load and check policy, prompts and rewards; `check` may refuse them before any weights are read.

    Raises:
        RlctlError: whatever is wrong.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    accelerator = open_accelerator(config)
    tasks = config.by_task
    opened = {}
    for name, c in tasks.items():
        with of_task(name):
            opened[name] = open_leaves(c.reward), judges_of.open_judges(c.judges)
    source = models.open_source(config.model, "policy")
    check(source, value_source_of(config.reward, opened[""][0]) if "" in opened else None)
    prompts: dict[str, Prompts] = {}
    for name, (leaves, _) in opened.items():
        with of_task(name):
            prompts[name] = build_prompts(tasks[name], source.tokenizer, context_length(source.hf_config))
            for one in leaves:
                if one.function is not None:
                    one.function.check(prompts[name])
    read: dict[object, Any] = {}
    scorers: dict[str, tuple[Reward, list[Judge]]] = {}
    for name, (leaves, asked) in opened.items():
        with of_task(name):
            judges = judges_of.load(asked, accelerator.device, read)
            for judge in judges:
                judge.check(prompts[name])
            reward = load(tasks[name], leaves, source, accelerator.device, read)
            reward.check(prompts[name])
            scorers[name] = reward, judges
    if source.adapter is not None:
        lora.give_memory_back(accelerator.device)
    lm = models.load_policy(source, config.seed).to(accelerator.device)
    ends = end_ids(source.tokenizer, lm.generation_config)
    pad = models.pad_id(source, ends, lm.get_input_embeddings().weight.shape[0])
    samplers = {name: Sampler(c.rollout, source.tokenizer, ends, pad) for name, c in tasks.items()}
    streams = {name: Stream(c, prompts[name], *scorers[name], samplers[name]) for name, c in tasks.items()}
    return Base(accelerator, source, lm, streams)


def assemble(config: Config, reporter: Reporter) -> Assembly:
    """Load and check everything.

    Raises:
        RlctlError: whatever is wrong, before the first step.
    """
    algorithms = {name: algos.build(c.algo) for name, c in config.by_task.items()}
    needs_value = any(a.needs_value for a in algorithms.values())
    check_custom(config, algorithms)
    choice = Choice(ValueInit.policy, "")

    def check(policy: Source, reward: Source | None) -> None:
        nonlocal choice
        if needs_value:
            choice = choose(config, policy, reward)

    base = open_base(config, check)
    if config.model.gradient_checkpointing:
        models.recompute_activations(base.lm)
    value = build(config, choice, base.source, base.lm, base.streams[""].reward) if needs_value else None
    return _put_together(config, base, algorithms, value, reporter)


def check_custom(config: Config, algorithms: dict[str, algos.Algorithm]) -> None:
    """What the config asks of a class from outside, that only the class itself can tell.

    Raises:
        ConfigError: a value model or tasks, and it has no use for them.
    """
    for algorithm in algorithms.values():
        if not isinstance(algorithm, Custom):
            continue
        if config.tasks and (algorithm.needs_value or not algorithm.has_tasks):
            why = "it needs a value model, which tasks lack" if algorithm.needs_value else "it has no function combine"
            raise ConfigError(f"{algorithm.called} cannot have tasks", why)
        asked = config.value.init is not ValueInit.auto or config.value.lr is not None or config.run.save_value
        if asked and not algorithm.needs_value:
            raise ConfigError(
                f"{algorithm.called} has no value model: its needs_value is False", "value.* or run.save_value is set", "leave them out"
            )


def _put_together(config: Config, base: Base, algorithms: dict[str, algos.Algorithm], built: Built | None, reporter: Reporter) -> Assembly:
    accelerator, lm, value = base.accelerator, base.lm, built.model.to(base.accelerator.device) if built else None
    policy = models.Policy(lm)
    needs_reference = config.algo.kl_coef > 0 or config.algo.max_kl is not None or any(a.needs_reference for a in algorithms.values())
    reference = models.reference_of(lm) if needs_reference else None
    parameters = sum(p.numel() for p in policy.parameters())
    lr = config.optim.lr if config.optim.lr is not None else default_learning_rate(parameters, lora.is_adapted(lm))
    learner = distribute(config, accelerator, policy, value, reference, lambda p, v: build_optimizer(p, v, config, lr))

    def total(x: Tensor) -> Tensor:
        if accelerator.num_processes == 1:
            return x
        summed: Tensor = accelerator.reduce(x.to(accelerator.device), "sum")
        return summed.to(x.device)

    tasks = []
    for name, s in base.streams.items():
        collector = Collector(
            s.config, lm, policy, reference, value, s.reward, base.source.tokenizer, s.sampler, accelerator.autocast, total,
            s.judges, algorithms[name].wants_baselines,
        )  # fmt: skip
        rho = config.tasks[name].weight if name else 1.0
        tasks.append(Task(name, s.config, s.prompts, algorithms[name], collector, rho))
    updater = Updater(config, tasks[0].algorithm, learner, total)
    clock = Clock(reporter, accelerator.device)
    what = ", ".join(config.tasks) or base.streams[""].reward.name
    plan = Plan(f"{config.algo.title}  {what}", Path(config.run.dir), config.steps, ())
    run = Assembly(config, accelerator, tasks, updater, KLController.of(config.algo), clock, plan)
    run.plan = replace(plan, facts=tuple(facts(run, built, lr)))
    return run
