"""Looks at the numbers of the last steps for known ways in which a run goes wrong, and says what to change.

Pure functions of logged metrics; shows nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlctl.report import Warning

PATIENCE = 3
"""Steps in a row that must look wrong before a warning."""
RECENT = 4 * PATIENCE
"""Steps before a value model is judged."""


def diagnose(history: list[dict[str, float]], max_new_tokens: int) -> list[Warning]:
    """Warnings for the newest steps of a run; `history` holds the metrics of its last steps, at least RECENT of them if it has as
    many, oldest first."""
    recent = history[-PATIENCE:]
    if len(recent) < PATIENCE:
        return []
    found = [*_responses(recent, max_new_tokens), *_kl(recent), *_updates(recent)]
    if len(history) >= RECENT:  # a value model may start badly
        found += _value(recent)
    return found


def _always(recent: list[dict[str, float]], name: str, low: float = -math.inf, high: float = math.inf) -> bool:
    return all(name in m and low <= m[name] <= high for m in recent)


def _responses(recent: list[dict[str, float]], max_new_tokens: int) -> Iterator[Warning]:
    score = recent[-1].get("objective/scores", 0.0)
    if _always(recent, "responses/truncated", low=1.0):
        yield Warning(
            "all-truncated",
            f"every response is cut at {max_new_tokens} tokens",
            "the limit is short, or the policy does not know how to end",
            f"rollout.max_new_tokens={2 * max_new_tokens}, or algo.missing_eos_penalty=1",
        )
    # equal scores spread by no more than rounding
    if _always(recent, "objective/scores_std", high=1e-6 * max(1.0, abs(score))):
        yield Warning(
            "constant-score",
            f"all responses get the same score, {score:.4g}",
            "the reward never sees a difference, or it is 0 for everything the policy writes",
            "rlctl score shows what it sees; reward what comes closer, or prompt for it",
        )
    if _always(recent, "objective/entropy", high=0.02):
        yield Warning(
            "entropy-collapse",
            f"the policy has become deterministic ({recent[-1]['objective/entropy']:.3g} nats per token)",
            "it has settled on one response",
            "algo.entropy_coef=0.01, or a higher algo.kl_coef",
        )


def _kl(recent: list[dict[str, float]]) -> Iterator[Warning]:
    if _always(recent, "objective/kl", high=-0.5):
        yield Warning(
            "negative-kl",
            f"the estimated KL stays below 0 ({recent[-1]['objective/kl']:.3g} nats)",
            "sampling differs from the policy whose log-probabilities are taken",
            "rollout.top_p=1 rollout.top_k=0; or algo.kl_estimator=k3, which cannot be negative",
        )
    if _always(recent, "objective/kl", low=50.0):
        yield Warning(
            "large-kl",
            f"the policy is {recent[-1]['objective/kl']:.3g} nats per response from where it started",
            "updates are too large, or the KL costs too little for this reward",
            "a lower optim.lr, a higher algo.kl_coef, or algo.target_kl=0.1",
        )


def _updates(recent: list[dict[str, float]]) -> Iterator[Warning]:
    if _always(recent, "policy/approxkl", low=0.5):
        yield Warning(
            "large-updates",
            f"one step moves the policy by {recent[-1]['policy/approxkl']:.3g} nats per token",
            "the learning rate or the number of inner epochs is too high",
            "a lower optim.lr, algo.epochs=1, or algo.target_kl=0.1",
        )


def _value(recent: list[dict[str, float]]) -> Iterator[Warning]:
    if _always(recent, "value/explained_variance", high=-0.5):
        yield Warning(
            "value-lags",
            f"the value model explains the returns worse than a constant ({recent[-1]['value/explained_variance']:.2f})",
            "it learns too slowly for how the scores move",
            "a higher value.lr, algo.value_warmup_steps=5, or algo.clip_range_value=null",
        )
