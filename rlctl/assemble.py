"""From a Config to everything a run needs, in the order in which mistakes are cheapest to find: functions, tokenizers and
data first, weights last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from rlctl.config.schema import Config, Device, FunctionRewardConfig, MixedPrecision, ModelRewardConfig, ValueInit
from rlctl.control import KLController
from rlctl.data import Prompts, build_prompts, context_length
from rlctl.errors import ConfigError, ModelError
from rlctl.models import Source, ValueModel
from rlctl.report import Plan, Reporter
from rlctl.rewards.base import Reward
from rlctl.rewards.function import FunctionReward, load_function
from rlctl.rewards.model import ModelReward, check_source
from rlctl.sample import Sampler, end_ids
from rlctl.update import Updater, build_optimizer, default_learning_rate


@dataclass
class Clock:
    """Seconds spent in each phase of the current step."""

    reporter: Reporter
    device: torch.device
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.reporter.phase(phase)
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":  # kernels run behind; without this their time shows in a later phase
            torch.cuda.synchronize(self.device)
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """The seconds since the last call, as metrics."""
        taken, self.seconds = self.seconds, {}
        return {f"time/{phase}": s for phase, s in taken.items()}


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

    @property
    def value(self) -> ValueModel | None:
        """The value model itself, without wrappers."""
        return self.collector.value


def assemble(config: Config, reporter: Reporter) -> Assembly:
    """Load and check everything.

    Raises:
        RlctlError: whatever is wrong, before the first step.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    accelerator = open_accelerator(config)
    algorithm = algos.build(config.algo)
    function = load_function(config.reward.path) if isinstance(config.reward, FunctionRewardConfig) else None
    policy_source = models.open_source(config.model, "policy")
    reward_source = None
    if isinstance(config.reward, ModelRewardConfig):
        reward_source = models.open_source(config.reward, "reward model")
        check_source(reward_source)
    value_init, why = choose_value(config, policy_source, reward_source)
    prompts = build_prompts(config, policy_source.tokenizer, context_length(policy_source.hf_config))
    reward: Reward
    if function is not None:
        assert isinstance(config.reward, FunctionRewardConfig)
        reward = FunctionReward(config.reward, function)
        reward.check_columns(prompts.columns)
    else:
        assert isinstance(config.reward, ModelRewardConfig) and reward_source is not None
        reward = ModelReward(config.reward, reward_source, policy_source, accelerator.device)
    lm = models.load_policy(policy_source).to(accelerator.device)
    if config.model.gradient_checkpointing:
        lm.gradient_checkpointing_enable({"use_reentrant": False})
    value = None
    if algorithm.needs_value:
        value_init, why = _decoder_only(value_init, why, config, reward)
        value = _build_value(value_init, policy_source, lm, reward, config).to(accelerator.device)
    return _put_together(config, accelerator, algorithm, prompts, policy_source, lm, value, reward, why, reporter)


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


def choose_value(config: Config, policy: Source, reward: Source | None) -> tuple[ValueInit, str]:
    """What the value model starts from, and why, in words.

    Raises:
        ModelError: value=reward with a reward model of another vocabulary; it names both.
    """
    asked = config.value.init
    if asked is ValueInit.policy:
        return asked, "as asked"
    if reward is None:  # value=reward with a function is refused by the config checks
        return ValueInit.policy, "the reward is a function, there is no reward model to start from"
    if reward.shares_vocabulary(policy):
        return ValueInit.reward, "as asked" if asked is ValueInit.reward else "the reward model has the policy's vocabulary"
    if asked is ValueInit.reward:
        raise ModelError(
            "value=reward needs a reward model of the policy's vocabulary",
            f"policy: {policy.vocabulary}\nreward model: {reward.vocabulary}",
            "value=policy",
        )
    return ValueInit.policy, f"the reward model has another vocabulary: {reward.vocabulary}"


def _decoder_only(init: ValueInit, why: str, config: Config, reward: Reward) -> tuple[ValueInit, str]:
    """A value before token t must not see later tokens: an encoder cannot give one."""
    if init is ValueInit.policy or (isinstance(reward, ModelReward) and reward.is_decoder):
        return init, why
    if config.value.init is ValueInit.reward:
        raise ModelError(f"value=reward needs a decoder, and {reward.name} sees later tokens", hint="value=policy")
    return ValueInit.policy, f"{reward.name} is an encoder: it sees later tokens"


def _build_value(init: ValueInit, source: Source, lm: Any, reward: Reward, config: Config) -> ValueModel:
    if init is ValueInit.reward:
        assert isinstance(reward, ModelReward)
        value = models.value_from_reward(reward.model)
    else:
        value = models.value_from_policy(source, lm, config.seed)
    if config.model.gradient_checkpointing:
        value.classifier.gradient_checkpointing_enable({"use_reentrant": False})
    return value


def _put_together(
    config: Config, accelerator: Accelerator, algorithm: algos.Algorithm, prompts: Prompts, source: Source,
    lm: Any, value: ValueModel | None, reward: Reward, why: str, reporter: Reporter,
) -> Assembly:  # fmt: skip
    policy = models.Policy(lm)
    needs_reference = config.algo.kl_coef > 0 or config.algo.max_kl is not None
    reference = models.reference_of(lm) if needs_reference else None
    parameters = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    lr = config.optim.lr if config.optim.lr is not None else default_learning_rate(parameters)
    optimizer = build_optimizer(policy, value, config, lr)
    wrapped: list[nn.Module] = [accelerator.prepare(m) for m in (policy, value) if m is not None]
    prepared = accelerator.prepare(optimizer)

    def total(x: Tensor) -> Tensor:
        summed: Tensor = accelerator.reduce(x, "sum")
        return summed

    ends = end_ids(source.tokenizer, lm.generation_config)
    pad = models.pad_id(source, ends, lm.get_input_embeddings().num_embeddings)
    sampler = Sampler(config.rollout, source.tokenizer, ends, pad)
    collector = Collector(config, lm, policy, reference, value, reward, source.tokenizer, sampler, accelerator.autocast, total)
    wrapped_value = wrapped[1] if value is not None else None
    updater = Updater(config, algorithm, wrapped[0], wrapped_value, prepared, accelerator, total)
    clock = Clock(reporter, accelerator.device)
    plan = Plan(f"{config.algo.name}  {reward.name}", Path(config.run.dir), config.steps, ())
    run = Assembly(config, accelerator, prompts, algorithm, collector, updater, KLController.of(config.algo), clock, plan)
    run.plan = Plan(plan.title, plan.run_dir, plan.steps, tuple(facts(run, value, why, lr, len(ends))))
    return run


def facts(run: Assembly, value: ValueModel | None, why: str, lr: float, ends: int) -> Iterator[tuple[str, str]]:
    """What is printed before the first step: the choices made, with reasons, and the sizes that follow from the config."""
    c, a, size = run.config, run.config.algo, run.config.samples_per_step
    count = sum(p.numel() for p in run.collector.lm.parameters())
    yield "policy", f"{c.model.path}, {_millions(count)} parameters, {ends} end token{'s' if ends != 1 else ''}"
    yield "reward", run.collector.reward.name
    if value is not None:
        yield "value", f"{value.origin}: {why}; {_millions(sum(p.numel() for p in value.parameters()))} parameters"
    yield "reference", "the policy as it starts" if run.collector.reference else "none: algo.kl_coef=0 needs no KL"
    dropped = f", {run.prompts.dropped} of {len(run.prompts) + run.prompts.dropped} dropped as too long" if run.prompts.dropped else ""
    yield "prompts", f"{len(run.prompts)} from {c.data.path}{dropped}"
    accumulate = -(-c.minibatch_size // c.optim.microbatch_size)
    yield (
        "step",
        (
            f"{c.rollout.prompts_per_step} prompts x {a.samples_per_prompt} = {size} responses; {a.epochs} epochs x {a.minibatches} "
            f"minibatches of {c.minibatch_size} = {a.epochs * a.minibatches} updates; {accumulate} microbatches an update"
        ),
    )
    chosen = "" if c.optim.lr is not None else " by the policy's size"
    yield "optimizer", f"AdamW, lr {lr:.2g}{chosen}, {c.optim.schedule} over {c.updates} updates"
    yield "KL", f"{a.kl_estimator} in the reward, kl_coef {a.kl_coef:g}" + (f" steered to {a.kl_target:g} nats" if a.kl_target else "")
    yield "device", f"{run.accelerator.device}, mixed precision {run.accelerator.mixed_precision}"


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"
