"""What is printed before the first step: the choices made, with reasons, and the sizes that follow from the config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlctl import lora
from rlctl.assembly import Assembly
from rlctl.config.schema import CGPOConfig, CGPOOptimizer, CustomAlgoConfig
from rlctl.task import Task
from rlctl.update import value_learning_rate
from rlctl.value import Built


def facts(run: Assembly, built: Built | None, lr: float) -> Iterator[tuple[str, str]]:
    """(label, text) in the order to show."""
    c, collector = run.config, run.collector
    ends = len(collector.sampler.end_ids)
    yield "policy", f"{c.model.path}, {_size(collector.lm)}, {ends} end token{'s' if ends != 1 else ''}"
    if not c.tasks:
        yield "reward", collector.reward.name
    if built is not None:
        size = _size(built.model.classifier, "the rest is the policy's")
        yield "value", f"{built.model.origin}: {built.why}; {size}"
    yield "reference", "the policy as it starts" if collector.reference else "none: algo.kl_coef=0 needs no KL"
    if not c.tasks:
        yield "prompts", _prompts(run.tasks[0])
    yield "step", _step(run)
    chosen = "" if c.optim.lr is not None else " by the policy's size" + ", ten times for an adapter" * lora.is_adapted(collector.lm)
    own = value_learning_rate(collector.policy, built.model, c, lr) if built is not None else lr
    chosen += f", {own:.2g} for the value model" * (own != lr)
    yield "optimizer", f"AdamW, lr {lr:.2g}{chosen}, {c.optim.schedule} over {c.updates} updates"
    if c.tasks:
        for task in run.tasks:
            yield f"task {task.name}", _task(task)
    else:
        if collector.judges:
            yield "judges", ", ".join(j.name for j in collector.judges)
        yield "KL", _kl(run.tasks[0])
    strategy = f", {run.config.launch.strategy}" if run.config.launch.strategy and run.accelerator.num_processes > 1 else ""
    several = f"{run.accelerator.num_processes} x " if run.accelerator.num_processes > 1 else ""
    yield "device", f"{several}{run.accelerator.device.type}, mixed precision {run.accelerator.mixed_precision}{strategy}"


def _prompts(task: Task) -> str:
    kept, dropped = len(task.prompts), task.prompts.dropped
    return f"{kept} from {task.config.data.path}" + (f", {dropped} of {kept + dropped} dropped as too long" if dropped else "")


def _step(run: Assembly) -> str:
    c, a = run.config, run.config.algo
    accumulate = -(-c.minibatch_size // (c.optim.microbatch_size * run.accelerator.num_processes))
    each = [f"{t.config.rollout.prompts_per_step} prompts x {t.config.algo.samples_per_prompt}" for t in run.tasks]
    return (
        f"{' + '.join(each)} = {c.samples_per_step} responses; {a.epochs} epochs x {a.minibatches} "
        f"minibatches of {c.minibatch_size} = {a.epochs * a.minibatches} updates; {accumulate} microbatches an update"
    )


def _task(task: Task) -> str:
    judges = ", ".join(j.name for j in task.collector.judges) or "no judges"
    algo = task.config.algo
    how = algo.optimizer if isinstance(algo, CGPOConfig) else algo.title
    return f"{_prompts(task)}; {task.collector.reward.name}; {judges}; {how}; KL {_kl(task)}; weight {task.weight:g}"


def _kl(task: Task) -> str:
    a = task.config.algo
    if isinstance(a, CGPOConfig):
        bounded = a.kl_max is not None and a.kl_max != float("inf") and a.optimizer is not CGPOOptimizer.codpo
        return f"at most {a.kl_max:g} nats a response" if bounded else "any"
    if isinstance(a, CustomAlgoConfig):
        return f"kl_coef {a.kl_coef:g}, used by {a.title} as it sees fit"
    where = "(sum_t lp - lq)^2 / 2 in the loss" if getattr(a, "kl_in_loss", False) else f"{a.kl_estimator} in the reward"
    return f"{where}, kl_coef {a.kl_coef:g}" + (f" steered to {a.kl_target:g} nats" if a.kl_target else "")


def _size(model: Any, of_adapter: str | None = None) -> str:
    count, trained = (sum(p.numel() for p in model.parameters() if p.requires_grad or every) for every in (True, False))
    if not lora.is_adapted(model):
        return f"{_short(count)} parameters, all trained"
    return f"{_short(count)} parameters, {_short(trained)} trained ({of_adapter or lora.describe(model)})"


def _short(count: int) -> str:
    if count < 1e5:
        return f"{count / 1e3:.1f}K"
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"
