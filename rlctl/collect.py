"""Prompts -> responses -> scores -> log-probabilities and values: a Rollout. Nothing here is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rlctl.config.schema import AlgoConfig, Config, ScoreNormalization
from rlctl.data import Prompt, decode
from rlctl.errors import TrainingError
from rlctl.judges.base import Judge, Verdicts, judge_all
from rlctl.models import Policy, ValueModel
from rlctl.rewards.base import Reward, Scored
from rlctl.rewards.calibrated import CalibratedReward
from rlctl.rollout import Forward, Rollout, Samples, Sequences
from rlctl.sample import Sampler
from rlctl.sharding import whole
from rlctl.tensors import Total, left_pad, length_groups, moments, right_pad

Passes = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
Clock = Callable[[str], AbstractContextManager[None]]


@dataclass
class ScoreScaler:
    """Running mean and standard deviation of all scores so far, over all devices."""

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared distances from the mean."""

    def update(self, scores: Tensor, total: Total) -> None:
        """Take in a step's scores (B,); merging counts, means and squares as in Chan et al. (1979)."""
        # in double: rounding must not look like a spread where all scores are equal
        n, mean, variance = (float(x) for x in moments(scores.cpu().double(), torch.ones(len(scores), dtype=torch.bool), total))
        both, delta = self.count + n, mean - self.mean
        self.squares += variance * n + delta**2 * self.count * n / both
        self.mean += delta * n / both
        self.count = both

    def __call__(self, scores: Tensor) -> Tensor:
        """Scores (B,) with the running mean taken off, in running standard deviations."""
        deviation = (self.squares / max(self.count, 1.0)) ** 0.5
        return ((scores.cpu().double() - self.mean) / (deviation + 1e-8)).float().to(scores.device)


@dataclass(frozen=True)
class Collected:
    """A rollout with the text it was scored by."""

    rollout: Rollout
    samples: Samples
    parts: dict[str, list[float | None]]
    """What the scores are made of, by name, each (B)."""
    verdicts: Verdicts


@dataclass
class Collector:
    """Everything a rollout needs, assembled once."""

    config: Config
    lm: Any
    policy: Policy
    reference: Policy | None
    """None when nothing needs the KL."""
    value: ValueModel | None
    reward: Reward
    tokenizer: Any
    sampler: Sampler
    autocast: Callable[[], AbstractContextManager[Any]]
    total: Total
    judges: list[Judge] = field(default_factory=list)
    wants_baselines: bool = False
    """Whether the algorithm learns from baselines too."""
    scaler: ScoreScaler = field(default_factory=ScoreScaler)

    def __call__(self, prompts: list[Prompt], clock: Clock) -> Collected:
        """One rollout of samples_per_prompt responses to each prompt, rows of one prompt side by side.

        Raises:
            RewardError: the reward failed.
            TrainingError: a log-probability is not finite.
        """
        algo = self.config.algo
        with clock("generate"), self.autocast():
            sequences, truncated, samples = self.sample(prompts, algo.samples_per_prompt)
        scored, verdicts, passes = self._score_beside_passes(samples, sequences, clock)
        scores = torch.tensor(scored.scores, device=truncated.device)
        satisfied = torch.tensor(verdicts.satisfied, device=truncated.device) if self.judges else None
        adjusted = self._adjust(scores, truncated, algo)
        if satisfied is not None and algo.violation_score is not None:
            adjusted = torch.where(satisfied, adjusted, algo.violation_score)
        old, entropy, ref, values = passes
        _finite(old, ref, values)
        raw = scored.parts.get("difference")  # before the sigmoid, where it makes no ties
        rollout = Rollout(
            sequences, old, entropy, ref, values, scores, adjusted, truncated, algo.samples_per_prompt, satisfied,
            torch.tensor(raw, device=truncated.device) if raw is not None else None, *self._baselines(prompts, samples),
        )  # fmt: skip
        return Collected(rollout, samples, scored.parts, verdicts)

    def _baselines(self, prompts: list[Prompt], samples: Samples) -> tuple[Sequences | None, Tensor | None]:
        """Each prompt's baseline as token ids, and whether it passes every judge; for an algorithm that learns from them."""
        if not self.wants_baselines or not isinstance(self.reward, CalibratedReward):
            return None, None
        known = self.reward.baseline_samples(samples, list(range(0, len(samples), self.config.algo.samples_per_prompt)))
        answers = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in known.responses]
        ends = [list(self.sampler.end_ids[:1]) if not cut else [] for cut in known.truncated]
        prompt_ids, prompt_mask = left_pad([p.ids for p in prompts], self.sampler.pad_id)
        ids, mask = right_pad([a + e for a, e in zip(answers, ends, strict=True)], self.sampler.pad_id)
        sequences = Sequences(*(x.to(self.lm.device) for x in (prompt_ids, prompt_mask, ids, mask)))
        return sequences, torch.tensor(judge_all(self.judges, known).satisfied, device=self.lm.device)

    def _score_beside_passes(self, samples: Samples, sequences: Sequences, clock: Clock) -> tuple[Scored, Verdicts, Passes]:
        """Scores, verdicts and passes; what leaves the device alone is computed while the passes go on.

        The reward keeps the main thread, which functions that set signal handlers need.
        """

        def judged() -> tuple[Scored, Verdicts]:
            with clock("score"):
                scored = self.reward.scored(samples)
            with clock("judge") if self.judges else nullcontext():
                return scored, judge_all(self.judges, samples)

        if not (self.reward.runs_beside and all(j.runs_beside for j in self.judges)):
            scored, verdicts = judged()
            with clock("forward"):
                return scored, verdicts, self._passes(sequences)

        def timed() -> Passes:
            with clock("forward"):
                return self._passes(sequences)

        with ThreadPoolExecutor(1, "passes") as beside:
            passes = beside.submit(timed)
            scored, verdicts = judged()
            return scored, verdicts, passes.result()

    def _passes(self, sequences: Sequences) -> Passes:
        """Old log-probabilities, entropy, reference log-probabilities and values of every response token, each (B, R)."""
        temperature, reference, value = self.config.rollout.temperature, self.reference, self.value
        old, entropy = self._per_token(lambda s: _both(self.policy(s, temperature, True)), sequences)
        ref = values = None
        if reference is not None:
            (ref,) = self._per_token(lambda s: (reference(s, temperature).logprobs,), sequences)
        if value is not None:
            (values,) = self._per_token(lambda s: (value(s),), sequences)
        return old, entropy, ref, values

    def sample(self, prompts: list[Prompt], count: int) -> tuple[Sequences, Tensor, Samples]:
        """`count` responses to each prompt, as ids and as text; truncated (B,) bool."""
        repeated = [p for p in prompts for _ in range(count)]
        with whole(self.lm):
            sequences, truncated = self.sampler(self.lm, [p.ids for p in repeated])
        return sequences, truncated, self._texts(repeated, sequences, truncated)

    def _texts(self, prompts: list[Prompt], sequences: Sequences, truncated: Tensor) -> Samples:
        keep = self.config.reward.keep_special_tokens
        lengths = sequences.response_mask.sum(1).tolist()
        responses = [
            response_text(self.tokenizer, p.ids, ids[:n], keep)
            for p, ids, n in zip(prompts, sequences.response_ids.tolist(), lengths, strict=True)
        ]
        # a chat prompt is told apart by special tokens; a text prompt is shown as it was written
        asked = [decode(self.tokenizer, p.ids, True) if keep and p.messages is not None else p.text for p in prompts]
        texts = [p + r for p, r in zip(asked, responses, strict=True)]
        columns = {name: [p.columns[name] for p in prompts] for name in prompts[0].columns}
        chat = [p.messages for p in prompts if p.messages is not None]
        messages, rows = chat if len(chat) == len(prompts) else None, [p.row for p in prompts]
        return Samples(asked, responses, texts, columns, messages, truncated.tolist(), rows)

    def _adjust(self, scores: Tensor, truncated: Tensor, algo: AlgoConfig) -> Tensor:
        """Normalise, clip, then subtract the missing-end penalty. (B,) -> (B,)."""
        if algo.score_normalization is ScoreNormalization.running:
            self.scaler.update(scores, self.total)
            scores = self.scaler(scores)
        if algo.score_clip is not None:
            scores = scores.clamp(-algo.score_clip, algo.score_clip)
        return scores if self.reward.takes_penalty else scores - algo.missing_eos_penalty * truncated

    @torch.no_grad()
    def _per_token(self, call: Callable[[Sequences], tuple[Tensor, ...]], sequences: Sequences) -> list[Tensor]:
        """What a model says of every response token, each (B, R), in microbatches of like length."""
        outs: list[Tensor] = []
        for rows in length_groups(sequences.lengths, self.config.optim.microbatch_size):
            part = sequences.select(rows)
            with self.autocast():
                results = call(part)
            outs = outs or [torch.zeros(sequences.response_mask.shape, device=r.device) for r in results]
            for out, result in zip(outs, results, strict=True):
                out[rows, : result.shape[1]] = result
        return outs


def _both(new: Forward) -> tuple[Tensor, Tensor]:
    assert new.logprobs is not None and new.entropy is not None
    return new.logprobs, new.entropy


def response_text(tokenizer: Any, prompt_ids: list[int], response_ids: list[int], keep_special_tokens: bool) -> str:
    """The text that the response adds to its prompt.

    Decoded together with the prompt: alone, many tokenizers drop a leading blank.
    """
    before = decode(tokenizer, prompt_ids, keep_special_tokens)
    both = decode(tokenizer, [*prompt_ids, *response_ids], keep_special_tokens)
    # a character of several tokens can straddle the seam; then the response is decoded alone
    return both[len(before) :] if both.startswith(before) else decode(tokenizer, response_ids, keep_special_tokens)


def _finite(old: Tensor, ref: Tensor | None, values: Tensor | None) -> None:
    for name, tensor in (("the policy's log-probabilities", old), ("the reference's log-probabilities", ref), ("the values", values)):
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            raise TrainingError(f"{name} are not finite", "the model gives NaN or infinity", "model.dtype=float32, or a lower optim.lr")
