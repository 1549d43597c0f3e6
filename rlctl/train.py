"""The loop. One step: prompts -> responses -> scores -> what to learn from -> a few updates. Read it top to bottom."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from rlctl import checkpoint
from rlctl.assemble import assemble
from rlctl.assembly import Assembly
from rlctl.config.schema import Config
from rlctl.errors import RlctlError, TrainingError
from rlctl.record import Recorder, write_summary
from rlctl.report import Reporter, Sample, Summary
from rlctl.rewards.calibrated import CalibratedReward
from rlctl.rollout import Batch
from rlctl.sample import seed_step
from rlctl.task import Taken, Task, measure

logger = logging.getLogger("rlctl")


def train(config: Config, reporter: Reporter) -> Summary:
    """Run a whole training and leave its run folder behind.

    Raises:
        RlctlError: something the user can act on. The run folder says so too; the last complete checkpoint stays.
    """
    run_dir = Path(config.run.dir)
    recorder: Recorder | None = None
    try:
        run = assemble(config, reporter)
        recorder = Recorder(run, reporter, run_dir)
        recorder.open()
        reporter.start(run.plan)
        sample_baselines(run, reporter)
        stopped = loop(run, recorder, reporter)
        summary = finish(run, recorder, *(stopped or ("finished", f"all {config.steps} steps done")))
        reporter.finish(summary)
        return summary
    except KeyboardInterrupt:
        if recorder is not None:
            reporter.finish(finish(recorder.run, recorder, "interrupted", "interrupted from the keyboard"))
        raise
    except BaseException as error:
        reason = error.what if isinstance(error, RlctlError) else f"{type(error).__name__}: {error}"
        known = isinstance(error, RlctlError)
        # of several processes the one that knows why writes: what the others see is a lost connection
        if known or int(os.environ.get("WORLD_SIZE", "1")) == 1 or not (run_dir / "summary.json").exists():
            write_summary(recorder.summary("failed", reason) if recorder is not None else Summary("failed", reason, run_dir, 0, 0.0))
        raise
    finally:
        if recorder is not None:
            recorder.run.accelerator.end_training()


def loop(run: Assembly, recorder: Recorder, reporter: Reporter) -> tuple[str, str] | None:
    """Every step; returns (status, reason) if a limit of the user's ended it early."""
    config = run.config
    for step in range(1, config.steps + 1):
        seed_step(config.seed, step, run.accelerator.process_index)
        taken = [take(run, task, step) for task in run.tasks]
        check_start(config, step, taken)
        if (kl := past_limit(config, taken)) is not None:
            return "stopped", back_to_good(run, recorder, step, kl)
        with run.clock("update"):
            batch = prepare(run, taken)
            updated = run.updater(batch, step)
        run.kl.update(taken[0].metrics.get("objective/kl", 0.0), config.samples_per_step)
        if config.run.save_every is not None and step % config.run.save_every == 0:
            with run.clock("save"):
                if recorder.is_main:
                    path = checkpoint.save(recorder.run_dir, step, config.run.keep, lambda folder: write_models(run, folder))
                    logger.info("checkpoint %s", path)
                    reporter.note(f"checkpoint {path}")
                run.accelerator.wait_for_everyone()
        recorder.step(step, taken, updated)
    return None


def take(run: Assembly, task: Task, step: int) -> Taken:
    """A task's rollout of a step, and what it shows."""
    prompts = task.prompts.at(step, task.config.rollout.prompts_per_step)
    return measure(task, task.collector(run.share(prompts), run.clock), run.kl.coef)


def prepare(run: Assembly, taken: list[Taken]) -> Batch:
    """What the step's update learns from; of several tasks one batch, each with its weight."""
    batches = []
    for one in taken:
        batch, targets = one.task.algorithm.prepare(one.collected.rollout, run.kl.coef, one.task.collector.total)
        one.metrics.update(targets)
        batches.append(batch)
    return batches[0] if len(batches) == 1 else run.algorithm.combine(batches, [one.task.weight for one in taken])


def past_limit(config: Config, taken: list[Taken]) -> float | None:
    """The largest KL per response of a task, if it is past algo.max_kl."""
    worst = max((one.metrics.get("objective/kl", 0.0) for one in taken), default=0.0)
    return worst if config.algo.max_kl is not None and worst > config.algo.max_kl else None


def sample_baselines(run: Assembly, reporter: Reporter) -> None:
    """reward.baseline=sample: before training, one response of the starting policy to every prompt the run will use."""
    for task in run.tasks:
        config, reward = task.config, task.collector.reward
        if not isinstance(reward, CalibratedReward) or reward.config.baseline != "sample":
            continue
        per_step = config.rollout.prompts_per_step
        used = {p.row: p for step in range(1, config.steps + 1) for p in task.prompts.at(step, per_step)}
        prompts = list(used.values())
        seed_step(config.seed, 0, 0)
        for start in range(0, len(prompts), config.samples_per_step):
            reporter.phase("generate", start, len(prompts))
            chunk = prompts[start : start + config.samples_per_step]
            _, truncated, samples = task.collector.sample(chunk, 1)
            reward.set_baselines(chunk, zip(samples.responses, truncated.tolist(), strict=True))
        reporter.note(f"drew {len(prompts)} baselines from the starting policy")


def check_start(config: Config, step: int, taken: list[Taken]) -> None:
    """debug.checks: before any update the policy is its own reference."""
    kl = max(one.metrics.get("objective/kl_k3", 0.0) for one in taken)
    if config.debug.checks and step == 1 and kl > 1e-4:
        raise TrainingError(f"the KL is {kl:.2e} nats before the first update", "debug.checks=true asks for this check")


def back_to_good(run: Assembly, recorder: Recorder, step: int, kl: float) -> str:
    """After max_kl: make the last checkpoint whose KL was seen to be within the limit the final policy; say so.

    The KL of the checkpoint of step s is measured by the rollout of step s + 1; this rollout condemns that of step - 1.
    """
    reason = f"objective/kl {kl:.3g} passed algo.max_kl={run.config.algo.max_kl:g} in step {step}"
    if not recorder.is_main:
        return reason
    good = [path for s, path in checkpoint.checkpoints(recorder.run_dir) if s <= step - 2]
    if not good:
        return f"{reason}; no checkpoint from before it, so policy/ is the one past the limit (set run.save_every)"
    checkpoint.restore(good[-1] / "policy", run.collector.lm)
    if run.value is not None and (good[-1] / "value").exists():
        checkpoint.restore(good[-1] / "value", run.value.classifier)
    return f"{reason}; policy/ is the one of {good[-1].name}"


def write_models(run: Assembly, folder: Path) -> None:
    """policy/, and value/ when asked, inside a checkpoint."""
    checkpoint.save_policy(folder / "policy", run.collector.lm, run.collector.tokenizer)
    if run.value is not None and run.config.run.save_value:
        checkpoint.save_value(folder / "value", run.value.classifier, run.collector.tokenizer)


def finish(run: Assembly, recorder: Recorder, status: str, reason: str) -> Summary:
    """Write the final models, answer the first step's prompt once more, sum up."""
    if not recorder.is_main:
        run.accelerator.wait_for_everyone()
        return recorder.summary(status, reason)
    if not (recorder.run_dir / "policy").exists():
        tokenizer = run.collector.tokenizer
        merge = run.config.model.lora.merge
        checkpoint.write_folder(recorder.run_dir / "policy", lambda p: checkpoint.save_policy(p, run.collector.lm, tokenizer, merge))
        if run.value is not None and run.config.run.save_value:
            classifier = run.value.classifier
            checkpoint.write_folder(recorder.run_dir / "value", lambda p: checkpoint.save_value(p, classifier, tokenizer))
    after = answer_again(run, recorder) if status != "interrupted" and recorder.before is not None else None
    summary = recorder.summary(status, reason, after)
    run.accelerator.wait_for_everyone()
    return summary


def answer_again(run: Assembly, recorder: Recorder) -> Sample:
    """A response of the trained policy to the prompt that was answered in the first step."""
    config = run.tasks[0].config
    prompts = run.prompts.at(1, config.rollout.prompts_per_step)
    prompt = prompts[recorder.probe // config.algo.samples_per_prompt]
    seed_step(config.seed, 0, run.accelerator.process_index)
    _, truncated, samples = run.collector.sample([prompt], 1)
    score = run.collector.reward.score(samples)[0]
    return Sample(samples.prompts[0], samples.responses[0], score, bool(truncated[0]))
