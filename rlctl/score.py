"""Tries a reward before training: samples (or takes answers from a column), scores them, and says what a training would find.

Nothing is trained. `findings` are pure functions of scores and texts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from rlctl import algos, models
from rlctl.assemble import Base, Stream, open_base
from rlctl.collect import Collector
from rlctl.config.schema import Config
from rlctl.data import Prompt, Prompts
from rlctl.errors import DataError, RewardError, of_task
from rlctl.judges.base import Verdicts, judge_all
from rlctl.report import Finding, ScoreReport, ScoreRow
from rlctl.rewards.base import Reward, Scored
from rlctl.rewards.calibrated import CalibratedReward, baseline_answer
from rlctl.rewards.function import FunctionReward
from rlctl.rollout import Samples
from rlctl.sample import seed_step
from rlctl.tensors import alone


def score(config: Config) -> dict[str, ScoreReport]:
    """Score `score.prompts` prompts of each task ("" where there is one) and judge whether training could learn from the result.

    Raises:
        RlctlError: policy, data or reward cannot be loaded.
    """
    base, reports = open_base(config), {}
    for name, stream in base.streams.items():
        with of_task(name):
            reports[name] = _score(stream.config, base, stream)
    return reports


def _score(config: Config, base: Base, stream: Stream) -> ScoreReport:
    k = 1 if config.score.column else config.score.samples_per_prompt
    wanted = replace(config, rollout=replace(config.rollout, prompts_per_step=config.score.prompts))
    prompts = stream.prompts.at(1, wanted.rollout.prompts_per_step)
    collector = Collector(
        wanted, base.lm, models.Policy(base.lm), None, None, stream.reward, base.source.tokenizer, stream.sampler,
        base.accelerator.autocast, alone,
    )  # fmt: skip
    seed_step(config.seed, 1, 0)
    if isinstance(stream.reward, CalibratedReward) and stream.reward.config.baseline == "sample":
        _, cut, drawn = collector.sample(prompts, 1)
        stream.reward.set_baselines(prompts, zip(drawn.responses, cut.tolist(), strict=True))
    samples = answers(prompts, config.score.column, stream.prompts) if config.score.column else collector.sample(prompts, k)[2]
    return _report(config, stream, samples, k)


def answers(prompts: list[Prompt], column: str, data: Prompts) -> Samples:
    """The answers in a column as finished responses.

    Raises:
        DataError: no such column, or a row without an answer.
    """
    if column not in data.columns:
        raise DataError(f"score.column={column}: the data has no such column", f"its columns are: {', '.join(data.columns) or 'none'}")
    responses = [baseline_answer(p, column, None, "answer") for p in prompts]
    chat = [p.messages for p in prompts if p.messages is not None]
    return Samples(
        [p.text for p in prompts],
        responses,
        [p.text + r for p, r in zip(prompts, responses, strict=True)],
        {name: [p.columns[name] for p in prompts] for name in prompts[0].columns},
        chat if len(chat) == len(prompts) else None,
        [False] * len(prompts),
        [p.row for p in prompts],
    )


def _report(config: Config, stream: Stream, samples: Samples, k: int) -> ScoreReport:
    reward, start = stream.reward, time.perf_counter()
    try:
        scored = reward.scored(samples)
    except RewardError as error:
        failed = Finding("stop", "failed", error.what, error.why or "", error.hint or "mend the reward")
        rows = [ScoreRow(p, r, None, {}, t) for p, r, t in zip(samples.prompts, samples.responses, samples.truncated, strict=True)]
        return ScoreReport(reward.name, rows, k, None, samples.texts[0], passed(reward, samples), (failed,))
    milliseconds = (time.perf_counter() - start) * 1000 / len(samples)
    verdicts = judge_all(stream.judges, samples)
    rows = [
        ScoreRow(
            samples.prompts[i], samples.responses[i], s, {n: v[i] for n, v in scored.parts.items()}, samples.truncated[i],
            {n: v[i] for n, v in verdicts.by_name.items()},
        )
        for i, s in enumerate(scored.scores)
    ]  # fmt: skip
    compares = not algos.build(config.algo).needs_value
    found = [*findings(samples, scored, k, compares), *_elsewhere(reward, samples, scored), *_unsatisfied(verdicts)]
    return ScoreReport(reward.name, rows, k, milliseconds, samples.texts[0], passed(reward, samples), tuple(found))


def passed(reward: Reward, samples: Samples) -> tuple[str, ...]:
    """What a function is given, as `name: first value`; empty for other rewards."""
    if isinstance(reward, CalibratedReward):
        return passed(reward.base, samples)
    if not isinstance(reward, FunctionReward):
        return ()
    constant = reward.config.args
    return tuple(f"{n}: {(v if n in constant else v[0])!r}" for n, v in reward.arguments(samples).items())


def findings(samples: Samples, scored: Scored, k: int, compares: bool) -> Iterator[Finding]:
    """What the scores alone show. k: responses to each prompt, side by side; compares: the algorithm sees differences inside
    a group only."""
    scores = scored.scores
    if len(set(scores)) == 1:
        yield Finding(
            "stop", "constant", f"every response gets the same score, {scores[0]:g}",
            "the reward does not tell responses apart, or none does yet what it rewards",
            "reward what comes closer, or look at what the reward sees (above)",
        )  # fmt: skip
        return
    groups = [range(i, i + k) for i in range(0, len(samples), k)]
    telling = [g for g in groups if len({samples.responses[i] for i in g}) > 1]
    tied = [g for g in telling if len({scores[i] for i in g}) == 1]
    if k > 1 and telling and len(tied) == len(telling):
        yield Finding(
            "stop", "tied", f"all {len(tied)} prompts give every one of their responses the same score",
            "the score depends on the prompt or its row alone, not on what the policy writes",
            "use the completions in the reward",
        )  # fmt: skip
    elif len(tied) > 0.5 * len(telling):
        yield Finding(
            "look", "mostly-tied", f"{len(tied)} of {len(telling)} prompts give all their responses the same score",
            "such a prompt teaches nothing" + (" under an algorithm that compares responses to one prompt" if compares else " by itself"),
            "algo.samples_per_prompt higher, a reward with steps in between, or easier prompts",
        )  # fmt: skip
    if all(samples.truncated):
        yield Finding(
            "look", "all-truncated", "every response was cut at the limit", "rollout.max_new_tokens is short, or the policy does not end",
            "a higher rollout.max_new_tokens, or algo.missing_eos_penalty",
        )  # fmt: skip
    rare = [s for s in scores if s != min(scores)]
    if len(rare) < 0.05 * len(scores):
        yield Finding(
            "look", "rare", f"only {len(rare)} of {len(scores)} responses score above the lowest", "the reward is sparse",
            "more samples a step, or a reward with steps in between",
        )  # fmt: skip


def _elsewhere(reward: Reward, samples: Samples, scored: Scored) -> Iterator[Finding]:
    """What needs another call of the reward: whether the prompt matters, whether scores repeat, what it says of itself."""
    for w in reward.warnings():
        yield Finding("look", w.key.split(" ")[0], w.what, w.cause, w.change)
    if not isinstance(reward, FunctionReward) or len(set(scored.scores)) == 1:
        return
    if reward.scored(samples).scores != scored.scores:
        yield Finding(
            "look", "noisy", "the same texts got other scores when scored again", "the function draws random numbers or keeps state",
            "make it a function of its arguments alone",
        )  # fmt: skip
    elif len(set(samples.prompts)) > 1 and reward.scored(_elsewhere_asked(samples)).scores == scored.scores:
        yield Finding(
            "look", "blind", "the scores stay the same when the responses are given to other prompts",
            "the function does not look at the prompt or at the columns of its row",
            "right for a reward of style; a reward that checks answers should use prompts or a column",
        )  # fmt: skip


def _unsatisfied(verdicts: Verdicts) -> Iterator[Finding]:
    """Whether anything passes every judge: what violates teaches only what to leave."""
    if verdicts.by_name and not any(verdicts.satisfied):
        never = [name for name, given in verdicts.by_name.items() if not any(given)]
        yield Finding(
            "stop", "unsatisfied", "no response passes every judge",
            f"none passes {', '.join(never)}" if never else "each passes some, none passes all",
            "easier judges or prompts, more samples a prompt, or a policy that can do it now and then",
        )  # fmt: skip


def _elsewhere_asked(samples: Samples) -> Samples:
    """The same responses under other prompts: each row takes prompt and columns of the nearest later row with another prompt."""
    n = len(samples)
    other = [next(j % n for j in range(i + 1, i + n) if samples.prompts[j % n] != samples.prompts[i]) for i in range(n)]

    def moved(values: list[Any]) -> list[Any]:
        return [values[j] for j in other]

    prompts = moved(samples.prompts)
    return Samples(
        prompts,
        samples.responses,
        [p + r for p, r in zip(prompts, samples.responses, strict=True)],
        {name: moved(values) for name, values in samples.columns.items()},
        moved(samples.messages) if samples.messages is not None else None,
        samples.truncated,
        moved(samples.rows),
    )


def as_json(report: ScoreReport) -> dict[str, Any]:
    """The report as plain data."""
    scores = torch.tensor([r.score for r in report.rows if r.score is not None], dtype=torch.float64)
    statistics = {}
    if len(scores):
        statistics = {"mean": scores.mean(), "std": scores.std(correction=0), "min": scores.min(), "max": scores.max()}
    return {
        "reward": report.reward,
        "learnable": report.learnable,
        "scores": {name: float(value) for name, value in statistics.items()},
        "milliseconds_per_response": report.milliseconds,
        "first_text": report.first_text,
        "passed": list(report.passed),
        "findings": [vars(f) for f in report.findings],
        "rows": [vars(r) for r in report.rows],
    }
