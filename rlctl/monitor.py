"""Looks at the numbers of the last steps for known ways in which a run goes wrong, and says what to change.

Pure functions of logged metrics; shows nothing itself.
"""

from __future__ import annotations

from rlctl.report import Warning

PATIENCE = 3
"""Steps in a row that must look wrong before a warning."""


def diagnose(history: list[dict[str, float]], max_new_tokens: int) -> list[Warning]:
    """Warnings for the newest steps of a run; `history` holds the metrics of every step so far, oldest first."""
    recent = history[-PATIENCE:]
    if len(recent) < PATIENCE:
        return []

    def always(name: str, low: float = -float("inf"), high: float = float("inf")) -> bool:
        return all(name in m and low <= m[name] <= high for m in recent)

    found = []
    if always("responses/truncated", low=1.0):
        found.append(
            Warning(
                "all-truncated",
                f"every response is cut at {max_new_tokens} tokens",
                "the limit is short, or the policy does not know how to end",
                f"rollout.max_new_tokens={2 * max_new_tokens}, or algo.missing_eos_penalty=1",
            )
        )
    if always("objective/scores_std", high=0.0):
        found.append(
            Warning(
                "constant-score",
                f"all responses get the same score, {recent[-1]['objective/scores']:.4g}",
                "the reward never sees a difference, or it is 0 for everything the policy writes",
                "look at samples/ in the run folder; reward what comes closer, or prompt for it",
            )
        )
    if always("objective/kl", high=-0.5):
        found.append(
            Warning(
                "negative-kl",
                f"the estimated KL stays below 0 ({recent[-1]['objective/kl']:.3g} nats)",
                "sampling differs from the policy whose log-probabilities are taken",
                "rollout.top_p=1 rollout.top_k=0; or algo.kl_estimator=k3, which cannot be negative",
            )
        )
    if always("objective/kl_k3", low=50.0):
        found.append(
            Warning(
                "large-kl",
                f"the policy is {recent[-1]['objective/kl_k3']:.3g} nats per response from where it started",
                "updates are too large, or the KL costs too little for this reward",
                "a lower optim.lr, a higher algo.kl_coef, or algo.target_kl=0.1",
            )
        )
    if always("policy/approxkl", low=0.5):
        found.append(
            Warning(
                "large-updates",
                f"one step moves the policy by {recent[-1]['policy/approxkl']:.3g} nats per token",
                "the learning rate or the number of inner epochs is too high",
                "a lower optim.lr, algo.epochs=1, or algo.target_kl=0.1",
            )
        )
    if always("value/explained_variance", high=-0.5) and len(history) >= 4 * PATIENCE:
        found.append(
            Warning(
                "value-lags",
                f"the value model explains the returns worse than a constant ({recent[-1]['value/explained_variance']:.2f})",
                "it learns too slowly for how the scores move",
                "a higher value.lr, algo.value_warmup_steps=5, or algo.clip_range_value=null",
            )
        )
    if always("objective/entropy", high=0.02):
        found.append(
            Warning(
                "entropy-collapse",
                f"the policy has become deterministic ({recent[-1]['objective/entropy']:.3g} nats per token)",
                "it has settled on one response",
                "algo.entropy_coef=0.01, or a higher algo.kl_coef",
            )
        )
    return found
