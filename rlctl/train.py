"""The loop. One step: prompts -> responses -> scores -> what to learn from -> a few updates. Read it top to bottom."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch

from rlctl import checkpoint, resume, sharding, weights
from rlctl.assemble import assemble
from rlctl.assembly import Assembly
from rlctl.config.schema import Config, Resume, Strategy
from rlctl.errors import RlctlError, TrainingError, of_task
from rlctl.interrupt import Interrupts
from rlctl.record import Recorder, write_summary
from rlctl.report import Reporter, Sample, Summary
from rlctl.rewards.calibrated import CalibratedReward
from rlctl.rollout import Batch
from rlctl.sample import seed_step
from rlctl.task import Taken, Task, measure
from rlctl.trouble import understood

logger = logging.getLogger("rlctl")


def train(config: Config, reporter: Reporter) -> Summary:
    """Run a whole training, or go on with one, and leave its run folder behind. An interrupted one says so in its summary.

    Raises:
        RlctlError: something the user can act on. The run folder says so too; the last complete checkpoint stays.
        KeyboardInterrupt: it was interrupted before its first step, or a second time.
    """
    run_dir, recorder = Path(config.run.dir), None
    with Interrupts(may_abandon=int(os.environ.get("WORLD_SIZE", "1")) == 1, tell=reporter.note) as interrupts:
        try:
            run = assemble(config, reporter)
            recorder = Recorder(run, reporter, run_dir)
            first = begin(run, recorder)
            status, reason = loop(run, recorder, interrupts, first)
            summary = finish(run, recorder, status, reason)
            reporter.finish(summary)
            return summary
        except KeyboardInterrupt:
            told(run_dir, recorder, "interrupted", f"stopped at once by {interrupts.asked or 'the keyboard'}")
            raise
        except BaseException as error:
            why = understood(error, run) if recorder is not None else error
            if isinstance(why, RlctlError):
                told(run_dir, recorder, "failed", why.what)
            else:
                told(run_dir, recorder, "failed", f"{type(error).__name__}: {error}", known=False)
            if why is error:
                raise
            raise why from error
        finally:
            if recorder is not None:
                sharding.leave(recorder.run.accelerator)


def told(run_dir: Path, recorder: Recorder | None, status: str, reason: str, known: bool = True) -> None:
    """Leave word in the run folder of how it ended; a disk that cannot take it must not hide why."""
    # of several processes the one that knows why writes: what the others see is a lost connection
    if status == "failed" and int(os.environ.get("WORLD_SIZE", "1")) > 1 and not known and (run_dir / "summary.json").exists():
        return
    try:
        write_summary(recorder.summary(status, reason) if recorder is not None else Summary(status, reason, run_dir, 0, 0.0))
    except OSError as error:
        logger.error("no summary: %s", error)


def begin(run: Assembly, recorder: Recorder) -> int:
    """Everything before the first step, or before the step after the last checkpoint's; returns that step."""
    state = last_state(run, recorder.run_dir)
    if state is not None:
        resume.check_prompts(run, state)
        resume.restore_rewards(run, state)
        recorder.go_on(state.moment.step, state.told)
    elif run.config.run.resume is Resume.auto:
        recorder.start_over()
    recorder.open()
    recorder.reporter.start(run.plan)
    sample_baselines(run, recorder.reporter)  # by the policy of the start, which it still is
    if state is None:
        return 1
    resume.restore(run, state)
    recorder.reporter.note(f"goes on after step {state.moment.step}")
    return state.moment.step + 1


def last_state(run: Assembly, run_dir: Path) -> resume.State | None:
    """What to go on from; None for a run that starts."""
    if run.config.run.resume is Resume.never:
        return None
    kept = checkpoint.checkpoints(run_dir)
    if sharding.agreed(len(kept)) != len(kept):
        raise TrainingError(
            f"this machine does not see the checkpoints in {run_dir}",
            "every process reads the one that the run goes on from",
            "a run folder on a file system that all machines share, or a copy of it at the same path",
        )
    if not kept:
        return None
    if run.config.launch.strategy is Strategy.deepspeed:
        raise TrainingError(
            "a run under launch.strategy=deepspeed cannot go on: its checkpoints have no optimizer state",
            hint=f"start a new run from its policy: rlctl train model=hf:{kept[-1][1] / 'policy'}",
        )
    return resume.read(kept[-1][1])


def loop(run: Assembly, recorder: Recorder, interrupts: Interrupts, first: int) -> tuple[str, str]:
    """Every step; returns (status, reason), also if a limit of the user's or a signal ended it early."""
    config, total = run.config, run.collector.total
    for step in range(first, config.steps + 1):
        before = resume.moment(run, step - 1)
        seed_step(config.seed, step, run.accelerator.process_index)
        try:
            taken = [take(run, task, step) for task in run.tasks]
        except KeyboardInterrupt:
            with interrupts.held():
                save(run, recorder, before)
            return "interrupted", f"{interrupts.asked or 'interrupt'} in step {step}, which was given up"
        check_start(config, step, taken)
        if (kl := past_limit(config, taken)) is not None:
            return "stopped", back_to_good(run, recorder, step, kl)
        with interrupts.held():
            with run.clock("update"):
                batch = prepare(run, taken)
                updated = run.updater(batch, step)
            run.kl.update(taken[0].metrics.get("objective/kl", 0.0), config.samples_per_step)
            recorder.step(step, taken, updated)
            asked = bool(total(torch.tensor(float(interrupts.asked is not None))))  # any process's signal is everyone's
            if asked or (config.run.save_every is not None and step % config.run.save_every == 0):
                save(run, recorder, resume.moment(run, step))
        if asked and step < config.steps:
            return "interrupted", f"{interrupts.asked or 'a signal to another process'} after step {step}"
    return "finished", f"all {config.steps} steps done"


def save(run: Assembly, recorder: Recorder, at: resume.Moment) -> None:
    """A checkpoint of the run as it stands; none before its first step, and none twice."""
    there = [step for step, _ in checkpoint.checkpoints(recorder.run_dir)]
    if sharding.agreed(at.step == 0 or at.step in there):  # another machine may not see the folder
        return
    with run.clock("save"):
        write = resume.writer(run, at, recorder.told())
        if recorder.is_main:
            path = checkpoint.save(recorder.run_dir, at.step, run.config.run.keep, write)
            logger.info("checkpoint %s", path)
            recorder.reporter.note(f"checkpoint {path}")
        run.accelerator.wait_for_everyone()


def take(run: Assembly, task: Task, step: int) -> Taken:
    """A task's rollout of a step, and what it shows."""
    prompts = task.prompts.at(step, task.config.rollout.prompts_per_step)
    with of_task(task.name):
        return measure(task, task.collector(run.share(prompts), run.clock), run.kl.coef)


def prepare(run: Assembly, taken: list[Taken]) -> Batch:
    """What the step's update learns from; of several tasks one batch, each with its weight."""
    batches = []
    for one in taken:
        batch, targets = one.task.algorithm.prepare(one.collected.rollout, run.kl.coef, one.task.collector.total)
        one.metrics.update(targets)
        batches.append(batch)
    return run.algorithm.combine(batches, [one.task.weight for one in taken]) if run.config.tasks else batches[0]


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
        prompts = [p for row, p in used.items() if row not in reward.baselines]
        if not prompts:
            continue
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
    """After max_kl: go back to the last checkpoint whose KL was seen to be within the limit; say so.

    The KL of the checkpoint of step s is measured by the rollout of step s + 1; this rollout condemns that of step - 1.
    """
    reason = f"objective/kl {kl:.3g} passed algo.max_kl={run.config.algo.max_kl:g} in step {step}"
    good = [path for s, path in checkpoint.checkpoints(recorder.run_dir) if s <= step - 2]
    if not good:
        return f"{reason}; no checkpoint from before it, so policy/ is the one past the limit (set run.save_every)"
    resume.restore(run, resume.read(good[-1]))
    return f"{reason}; policy/ is the one of {good[-1].name}"


def finish(run: Assembly, recorder: Recorder, status: str, reason: str) -> Summary:
    """Write the final models, answer the first step's prompt once more, sum up."""
    again = bool(recorder.history) and status != "interrupted"
    for name, write in (writers(run) if recorder.history else {}).items():
        if recorder.is_main:
            checkpoint.write_folder(recorder.run_dir / name, write)
    after = answer_again(run, recorder) if again and recorder.is_main else None
    if again and not recorder.is_main:
        with sharding.whole(run.collector.lm):  # for the main process's answer
            pass
    summary = recorder.summary(status, reason, after)
    run.accelerator.wait_for_everyone()
    return summary


def writers(run: Assembly) -> dict[str, Callable[[Path], None]]:
    """Folder -> what writes a final model into it; asked for by every process, used by the main one."""
    lm, tokenizer, merge = run.collector.lm, run.collector.tokenizer, run.config.model.lora.merge
    found = {"policy": functools.partial(weights.save_policy, lm=lm, tokenizer=tokenizer, merge=merge, state=sharding.gathered(lm))}
    if run.value is not None and run.config.run.save_value:
        one = run.value.classifier
        found["value"] = functools.partial(weights.save_value, classifier=one, tokenizer=tokenizer, state=sharding.gathered(one))
    return found


def answer_again(run: Assembly, recorder: Recorder) -> Sample:
    """A response of the trained policy to the prompt that was answered in the first step."""
    config = run.tasks[0].config
    prompts = run.prompts.at(1, config.rollout.prompts_per_step)
    prompt = prompts[recorder.probe // config.algo.samples_per_prompt]
    seed_step(config.seed, 0, run.accelerator.process_index)
    _, truncated, samples = run.collector.sample([prompt], 1)
    score = run.collector.reward.score(samples)[0]
    return Sample(samples.prompts[0], samples.responses[0], score, bool(truncated[0]))
