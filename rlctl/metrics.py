"""Every logged name with its formula, one table; and the files a run's numbers go to.

Sums run over real tokens (mask True) or responses of the whole step, all devices. `kl_t` is the configured estimator
of log pi_old - log pi_ref at the sampling temperature.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlctl.collect import Collected
from rlctl.judges.base import Verdicts
from rlctl.rollout import Rollout
from rlctl.tensors import Total, kl_estimate, masked, moments

METRICS: dict[str, str] = {
    "objective/scores": "mean of what the reward returned, untouched",
    "objective/scores_std": "standard deviation of the scores over the step",
    "objective/scores_min": "lowest score of the step",
    "objective/scores_max": "highest score of the step",
    "objective/adjusted_scores": "mean score after normalisation, clipping and the missing-end penalty",
    "objective/kl": "mean over responses of sum_t kl_t, in nats; kl_t by algo.kl_estimator",
    "objective/kl_k3": "mean over responses of sum_t k3_t, in nats; never negative",
    "objective/kl_coef": "beta used in this step",
    "objective/rlhf_reward": "objective/adjusted_scores - objective/kl_coef * objective/kl",
    "objective/entropy": "mean over tokens of the entropy of the sampling policy, in nats, at the sampling temperature",
    "policy/clipfrac": "share of tokens (ppo) whose ratio lies outside 1 +- clip_range, mean over the step's updates",
    "policy/approxkl": "mean over tokens of (r - 1) - log r, r = pi_new / pi_old, mean over the step's updates",
    "policy/ratio": "mean over tokens of pi_new / pi_old, mean over the step's updates",
    "policy/grad_norm": "norm of the policy's gradient before clipping, mean over the step's updates",
    "policy/lr": "learning rate of the step's last update",
    "policy/updates": "optimizer updates done since the start",
    "policy/skipped_updates": "updates of the step skipped because a gradient overflowed under fp16's loss scale, which is then lowered",
    "policy/epochs": "inner epochs done in this step; fewer than algo.epochs after a target_kl stop",
    "value/explained_variance": "1 - Var(G - V) / Var(G) over tokens, before the step's updates; 1 is perfect",
    "value/clipfrac": "share of tokens whose clipped value loss is the larger one, mean over the step's updates",
    "value/mean": "mean value over tokens, before the step's updates",
    "value/grad_norm": "norm of the value model's gradient before clipping, mean over the step's updates",
    "loss/policy": "policy loss, mean over the step's updates",
    "loss/value": "value loss before vf_coef, mean over the step's updates",
    "loss/entropy": "mean entropy of the policy in training, only with entropy_coef > 0",
    "loss/kl": "mean over responses of (sum_t lp - lq)^2 / 2, only with kl_in_loss",
    "groups/tied": "share of prompts whose responses all got the same score, untouched (rloo)",
    "reward/<part>": "mean over responses of a part of the score: a term of reward=weighted before its weight, or of "
    "reward=calibrated the raw score, the baseline's (both less the missing-end penalty) and their difference",
    "reward/<part>_std": "standard deviation of that part over the step",
    "reward/<part>_abstained": "share of responses on which that term abstained; logged where any did",
    "reward/saturated": "share of responses whose difference to the baseline is beyond 5",
    "algo/<name>": "what an algorithm of your own measures (algo=class:...), mean over the step's updates where its loss does",
    "cgpo/satisfied": "share of responses that pass every judge",
    "cgpo/reward": "mean of max(1 - D / kl_max, 0) * R over responses, R = 0 where a judge fails (crpg)",
    "cgpo/zeroed_by_kl": "share of responses that are satisfied and have D >= kl_max (crpg)",
    "cgpo/baselines": "share of prompts learnt from their baseline for want of an allowed response (crraft)",
    "cgpo/skipped": "share of prompts without anything to learn from (crraft, codpo)",
    "tasks/<name>/...": "any of these measured on one task of several; a task's figures are its own alone",
    "judges/satisfied": "share of responses that pass every judge",
    "judges/<name>/pass": "share of responses that pass this judge",
    "judges/<name>/unjudged": "share of responses that this judge could not judge; they count as not satisfied",
    "responses/length": "mean response length in tokens, the end token included",
    "responses/truncated": "share of responses cut at max_new_tokens without an end",
    "prompts/length": "mean prompt length in tokens",
    "tokens/per_second": "response tokens of the step / its seconds",
    "tokens/padding": "share of the positions in the step's update passes that are padding",
    "time/step": "seconds of the step",
    "time/generate": "seconds sampling responses",
    "time/score": "seconds in the reward",
    "time/judge": "seconds in the judges",
    "time/forward": "seconds for log-probs of policy and reference and for values, without gradient",
    "time/update": "seconds in the inner epochs",
    "time/save": "seconds writing the checkpoint after the step before",
    "sft/loss": "mean over learnt tokens of -log p, in nats, over the updates since the line before (rlctl sft)",
    "sft/token_accuracy": "share of learnt tokens that the model finds likeliest, since the line before",
    "sft/entropy": "mean over learnt tokens of the model's entropy, in nats, since the line before",
    "sft/held_out_loss": "sft/loss on the rows held out: in the first line before training, in the last one after it",
    "sft/held_out_token_accuracy": "sft/token_accuracy on the rows held out, likewise",
    "rm/loss": "mean over pairs of -log sigmoid(chosen - rejected) + optim.center_scores * (chosen + rejected)^2, since the line "
    "before (rlctl rm)",
    "rm/accuracy": "share of pairs whose chosen response scores higher, since the line before",
    "rm/margin": "mean over pairs of score of chosen - score of rejected, since the line before",
    "rm/score": "mean score of all responses, since the line before",
    "rm/held_out_loss": "rm/loss on the pairs held out: in the first line before training, in the last one after it",
    "rm/held_out_accuracy": "rm/accuracy on the pairs held out, likewise",
    "rm/held_out_margin": "rm/margin on the pairs held out, likewise",
    "stage/lr": "learning rate of the last update (rlctl sft and rm)",
    "stage/grad_norm": "norm of the last update's gradient before clipping",
    "stage/tokens": "tokens trained on since the start, prompts included",
    "stage/tokens_per_second": "tokens trained on since the line before / its seconds",
    "progress/samples": "responses since the start",
    "progress/epoch": "passes over the prompts, or a stage's rows, since the start",
}


def check_names(metrics: dict[str, float]) -> None:
    """Refuse a metric that the table does not explain.

    Raises:
        KeyError: it is not in METRICS.
    """
    plain = {n: n.split("/", 2)[2] if n.startswith("tasks/") else n for n in metrics}
    if unknown := sorted(n for n, p in plain.items() if p not in METRICS and not p.startswith(("reward/", "judges/", "algo/"))):
        raise KeyError(f"metrics without a formula in METRICS: {', '.join(unknown)}")


class MetricsFile:
    """metrics.jsonl: one line a step, the step first."""

    def __init__(self, run_dir: Path):
        self.path = run_dir / "metrics.jsonl"

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """Append a step's line. NaN and infinity, which JSON lacks, become null."""
        check_names(metrics)
        numbers = without_nan(dict(sorted(metrics.items())))
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")

    def read(self) -> list[dict[str, float]]:
        """Every whole line; a kill may have cut the last one. null is NaN again."""
        rows = []
        for line in self.path.read_text().splitlines(keepends=True) if self.path.exists() else []:
            if line.endswith("\n"):
                rows.append({k: math.nan if v is None else v for k, v in json.loads(line).items()})
        return rows

    def cut(self, step: int) -> None:
        """Leave out what stands after a step."""
        if not self.path.exists():
            return
        kept = [line for line in self.path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        aside = self.path.with_name(f".{self.path.name}.partial")
        aside.write_text("".join(line for line in kept if json.loads(line)["step"] <= step))
        aside.replace(self.path)


def rollout_metrics(rollout: Rollout, kl_coef: float, estimator: str, total: Total) -> dict[str, float]:
    """What a rollout shows, over all devices."""
    rows = torch.ones_like(rollout.scores, dtype=torch.bool)
    mask = rollout.mask

    def mean(x: Tensor) -> float:
        return float(moments(x.float(), rows, total)[1])

    _, scores, variance = moments(rollout.scores, rows, total)
    adjusted, kl = mean(rollout.adjusted_scores), 0.0
    metrics = {
        "objective/scores": float(scores),
        "objective/scores_std": float(variance) ** 0.5,
        "objective/adjusted_scores": adjusted,
        "objective/kl_coef": kl_coef,
        "objective/entropy": float(moments(rollout.entropy, mask, total)[1]),
        "responses/length": mean(mask.sum(1)),
        "responses/truncated": mean(rollout.truncated),
        "prompts/length": mean(rollout.sequences.prompt_mask.sum(1)),
    }
    if rollout.ref_logprobs is not None:
        kl = mean(sequence_kl(rollout, estimator))
        metrics |= {"objective/kl": kl, "objective/kl_k3": mean(sequence_kl(rollout, "k3"))}
    return metrics | {"objective/rlhf_reward": adjusted - kl_coef * kl}


def without_nan(value: Any) -> Any:
    """The same data with NaN and infinity, which JSON lacks, as null."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def part_metrics(parts: dict[str, list[float | None]], total: Total) -> dict[str, float]:
    """Mean and spread of what the scores are made of, over all devices."""
    metrics = {}
    for name, values in parts.items():
        given = torch.tensor([v is not None for v in values])
        x = torch.tensor([v if v is not None else 0.0 for v in values])
        count, mean, variance = (float(v) for v in moments(x, given, total))
        metrics |= {f"reward/{name}": mean, f"reward/{name}_std": variance**0.5}
        every = float(total(torch.tensor(float(len(values)))))
        if count < every:
            metrics[f"reward/{name}_abstained"] = 1.0 - count / every
        if name == "difference":
            metrics["reward/saturated"] = float(moments((x.abs() > 5.0).float(), given, total)[1])
    return metrics


def verdict_metrics(verdicts: Verdicts, total: Total) -> dict[str, float]:
    """Share of responses that each judge, and all of them, pass, over all devices; nothing without judges."""
    if not verdicts.by_name:
        return {}

    def share(flags: list[bool]) -> float:
        x = torch.tensor(flags)
        return float(moments(x.float(), torch.ones_like(x), total)[1])

    metrics = {"judges/satisfied": share(verdicts.satisfied)}
    for name, given in verdicts.by_name.items():
        metrics[f"judges/{name}/pass"] = share([v is True for v in given])
        metrics[f"judges/{name}/unjudged"] = share([v is None for v in given])
    return metrics


def sequence_kl(rollout: Rollout, estimator: str) -> Tensor:
    """(B,) KL of each response from the reference in nats, summed over its tokens."""
    assert rollout.ref_logprobs is not None
    return masked(kl_estimate(rollout.old_logprobs, rollout.ref_logprobs, estimator), rollout.mask).sum(1)


def sample_rows(collected: Collected, estimator: str) -> list[dict[str, Any]]:
    """One record per response, for samples/step_NNNNNN.jsonl."""
    rollout, samples, parts, verdicts = collected.rollout, collected.samples, collected.parts, collected.verdicts.by_name
    kl = sequence_kl(rollout, estimator).tolist() if rollout.ref_logprobs is not None else [None] * len(samples)
    lengths = rollout.mask.sum(1).tolist()
    return [
        {
            "prompt": samples.prompts[i],
            "response": samples.responses[i],
            "score": float(rollout.scores[i]),
            "adjusted_score": float(rollout.adjusted_scores[i]),
            "parts": {name: values[i] for name, values in parts.items()},
            "verdicts": {name: values[i] for name, values in verdicts.items()},
            "kl": kl[i],
            "length": lengths[i],
            "truncated": samples.truncated[i],
            "columns": {name: values[i] for name, values in samples.columns.items()},
        }
        for i in range(len(samples))
    ]
