"""From a Config to everything a run needs, in the order in which mistakes are cheapest to find: functions, tokenizers and
data first, weights last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from accelerate.utils.imports import is_tensorboard_available
from torch import Tensor, nn

from rlctl import algos, models
from rlctl.collect import Collector
from rlctl.config.schema import CGPOConfig, Config, Device, MixedPrecision, ValueInit
from rlctl.control import KLController
from rlctl.data import Prompt, Prompts, build_prompts, context_length
from rlctl.errors import ConfigError
from rlctl.judges import build as judges_of
from rlctl.judges.base import Judge
from rlctl.models import Source, ValueModel
from rlctl.report import Plan, Reporter
from rlctl.rewards.base import Reward
from rlctl.rewards.build import load, open_leaves, value_source_of
from rlctl.sample import Sampler, end_ids
from rlctl.update import Updater, build_optimizer, default_learning_rate
from rlctl.value import Built, Choice, build, choose


@dataclass
class Clock:
    """Seconds spent in each phase of the current step; phases may overlap."""

    reporter: Reporter
    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.reporter.phase(phase)
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":  # kernels run behind; without this their time shows in a later phase
            torch.cuda.synchronize(self.device)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The seconds of each phase and of the whole since the last call, as metrics."""
        taken, now = self.seconds, time.perf_counter()
        whole, self.began, self.seconds = now - self.began, now, {}
        return {**{f"time/{phase}": s for phase, s in taken.items()}, "time/step": whole}


@dataclass
class Assembly:
    """A run, ready for its first step."""

    config: Config
    accelerator: Accelerator
    prompts: Prompts
    algorithm: algos.Algorithm
    collector: Collector
    updater: Updater
    kl: KLController
    clock: Clock
    plan: Plan

    def share(self, prompts: list[Prompt]) -> list[Prompt]:
        """This process's prompts of a step's; all responses to one prompt stay together."""
        size = len(prompts) // self.accelerator.num_processes
        start = size * self.accelerator.process_index
        return prompts[start : start + size]

    @property
    def value(self) -> ValueModel | None:
        """The value model itself, without wrappers."""
        return self.collector.value


@dataclass
class Base:
    """What sampling and scoring need: everything but what learns."""

    accelerator: Accelerator
    source: Source
    prompts: Prompts
    reward: Reward
    lm: Any
    sampler: Sampler
    judges: list[Judge]


def open_base(config: Config, check: Callable[[Source, Source | None], None] = lambda policy, reward: None) -> Base:
    """Load and check policy, prompts and reward; `check` may refuse them before any weights are read.

    Raises:
        RlctlError: whatever is wrong.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    accelerator = open_accelerator(config)
    opened, asked = open_leaves(config.reward), judges_of.open_judges(config.judges)
    source = models.open_source(config.model, "policy")
    check(source, value_source_of(config.reward, opened))
    prompts = build_prompts(config, source.tokenizer, context_length(source.hf_config))
    for one in opened:
        if one.function is not None:
            one.function.check(prompts)
    judges = judges_of.load(asked, accelerator.device)
    for judge in judges:
        judge.check(prompts)
    reward = load(config, opened, source, accelerator.device)
    reward.check(prompts)
    lm = models.load_policy(source).to(accelerator.device)
    ends = end_ids(source.tokenizer, lm.generation_config)
    pad = models.pad_id(source, ends, lm.get_input_embeddings().num_embeddings)
    return Base(accelerator, source, prompts, reward, lm, Sampler(config.rollout, source.tokenizer, ends, pad), judges)


def assemble(config: Config, reporter: Reporter) -> Assembly:
    """Load and check everything.

    Raises:
        RlctlError: whatever is wrong, before the first step.
    """
    algorithm = algos.build(config.algo)
    choice = Choice(ValueInit.policy, "")

    def check(policy: Source, reward: Source | None) -> None:
        nonlocal choice
        if algorithm.needs_value:
            choice = choose(config, policy, reward)

    base = open_base(config, check)
    if config.model.gradient_checkpointing:
        base.lm.gradient_checkpointing_enable({"use_reentrant": False})
    value = build(config, choice, base.source, base.lm, base.reward) if algorithm.needs_value else None
    return _put_together(config, base, algorithm, value, reporter)


def open_accelerator(config: Config) -> Accelerator:
    """The devices, as asked.

    Raises:
        ConfigError: a device or tracker that is not there.
    """
    device, tracker = config.launch.device, config.run.tracker
    if device is Device.cuda and not torch.cuda.is_available():
        raise ConfigError(
            "launch.device=cuda: torch sees no CUDA GPU", f"torch {torch.__version__}", "launch=cpu, or install torch with CUDA"
        )
    if device is Device.mps and not torch.backends.mps.is_available():
        raise ConfigError("launch.device=mps: torch sees no Apple GPU", hint="launch=cpu")
    if tracker == "auto":
        tracker = "tensorboard" if is_tensorboard_available() else "none"
    precision = config.launch.mixed_precision
    if precision is MixedPrecision.auto:
        gpu = device is not Device.cpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        precision = MixedPrecision.bf16 if gpu else MixedPrecision.no
    where = ProjectConfiguration(project_dir=config.run.dir, logging_dir=str(Path(config.run.dir) / "tensorboard"))
    try:
        accelerator = Accelerator(
            cpu=device is Device.cpu,
            mixed_precision=str(precision),
            log_with=None if tracker == "none" else tracker,
            project_config=where,
        )
        if tracker != "none" and not accelerator.log_with:
            raise ValueError(f"{tracker} is not installed")
    except ValueError as error:
        hint = f"pip install {tracker}, or run.tracker=none"
        raise ConfigError(f"run.tracker={tracker} cannot be used", str(error), hint) from error
    return accelerator


def _put_together(config: Config, base: Base, algorithm: algos.Algorithm, built: Built | None, reporter: Reporter) -> Assembly:
    accelerator, lm, value = base.accelerator, base.lm, built.model.to(base.accelerator.device) if built else None
    policy = models.Policy(lm)
    needs_reference = config.algo.kl_coef > 0 or config.algo.max_kl is not None or algorithm.needs_reference
    reference = models.reference_of(lm) if needs_reference else None
    parameters = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    lr = config.optim.lr if config.optim.lr is not None else default_learning_rate(parameters)
    optimizer = build_optimizer(policy, value, config, lr)
    wrapped: list[nn.Module] = [accelerator.prepare(m) for m in (policy, value) if m is not None]
    prepared = accelerator.prepare(optimizer)

    def total(x: Tensor) -> Tensor:
        if accelerator.num_processes == 1:
            return x
        summed: Tensor = accelerator.reduce(x.to(accelerator.device), "sum")
        return summed.to(x.device)

    collector = Collector(
        config, lm, policy, reference, value, base.reward, base.source.tokenizer, base.sampler, accelerator.autocast, total,
        base.judges, algorithm.wants_baselines,
    )  # fmt: skip
    wrapped_value = wrapped[1] if value is not None else None
    updater = Updater(config, algorithm, wrapped[0], wrapped_value, prepared, accelerator, total)
    clock = Clock(reporter, accelerator.device)
    plan = Plan(f"{config.algo.name}  {base.reward.name}", Path(config.run.dir), config.steps, ())
    run = Assembly(config, accelerator, base.prompts, algorithm, collector, updater, KLController.of(config.algo), clock, plan)
    run.plan = replace(plan, facts=tuple(facts(run, built, lr)))
    return run


def facts(run: Assembly, built: Built | None, lr: float) -> Iterator[tuple[str, str]]:
    """What is printed before the first step: the choices made, with reasons, and the sizes that follow from the config."""
    c, a, size = run.config, run.config.algo, run.config.samples_per_step
    ends = len(run.collector.sampler.end_ids)
    count = sum(p.numel() for p in run.collector.lm.parameters())
    yield "policy", f"{c.model.path}, {_millions(count)} parameters, {ends} end token{'s' if ends != 1 else ''}"
    yield "reward", run.collector.reward.name
    if built is not None:
        yield "value", f"{built.model.origin}: {built.why}; {_millions(sum(p.numel() for p in built.model.parameters()))} parameters"
    yield "reference", "the policy as it starts" if run.collector.reference else "none: algo.kl_coef=0 needs no KL"
    dropped = f", {run.prompts.dropped} of {len(run.prompts) + run.prompts.dropped} dropped as too long" if run.prompts.dropped else ""
    yield "prompts", f"{len(run.prompts)} from {c.data.path}{dropped}"
    accumulate = -(-c.minibatch_size // (c.optim.microbatch_size * run.accelerator.num_processes))
    yield (
        "step",
        (
            f"{c.rollout.prompts_per_step} prompts x {a.samples_per_prompt} = {size} responses; {a.epochs} epochs x {a.minibatches} "
            f"minibatches of {c.minibatch_size} = {a.epochs * a.minibatches} updates; {accumulate} microbatches an update"
        ),
    )
    chosen = "" if c.optim.lr is not None else " by the policy's size"
    yield "optimizer", f"AdamW, lr {lr:.2g}{chosen}, {c.optim.schedule} over {c.updates} updates"
    if run.collector.judges:
        yield "judges", ", ".join(j.name for j in run.collector.judges)
    where = "(sum_t lp - lq)^2 / 2 in the loss" if getattr(a, "kl_in_loss", False) else f"{a.kl_estimator} in the reward"
    if isinstance(a, CGPOConfig):
        yield "KL", "any" if a.kl_max is None or a.optimizer == "codpo" else f"at most {a.kl_max:g} nats a response"
    else:
        yield "KL", f"{where}, kl_coef {a.kl_coef:g}" + (f" steered to {a.kl_target:g} nats" if a.kl_target else "")
    several = f"{run.accelerator.num_processes} x " if run.accelerator.num_processes > 1 else ""
    yield "device", f"{several}{run.accelerator.device.type}, mixed precision {run.accelerator.mixed_precision}"


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"
