"""A weighted sum of rewards. Every term is logged by name; a function or class abstains on a sample by returning None for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rlctl.data import Prompts
from rlctl.errors import RewardError
from rlctl.report import Warning
from rlctl.rewards.base import Reward, Scored
from rlctl.rewards.custom import ClassReward
from rlctl.rewards.function import FunctionReward
from rlctl.rollout import Samples


@dataclass(frozen=True)
class Term:
    """One reward with its weight."""

    name: str
    reward: Reward
    weight: float
    clip: float | None

    def scores(self, samples: Samples) -> list[float | None]:
        """Clipped, not yet weighted.

        Raises:
            RewardError: the term failed; it names the term.
        """
        try:
            one = self.reward
            found = one.scored_or_none(samples) if isinstance(one, (FunctionReward, ClassReward)) else [*one.score(samples)]
        except RewardError as error:
            raise RewardError(f"term {self.name!r}: {error.what}", error.why, error.hint) from error
        if self.clip is None:
            return found
        return [None if s is None else max(-self.clip, min(self.clip, s)) for s in found]


class WeightedReward(Reward):
    """sum_i weight_i * clip(score_i); a term that abstains on a sample adds nothing to it."""

    def __init__(self, terms: list[Term]):
        self.terms = terms
        self.name = " + ".join(f"{t.weight:g} {t.name}" for t in terms)
        self.runs_beside = all(t.reward.runs_beside for t in terms)

    def check(self, prompts: Prompts) -> None:
        """Every term must find what it needs."""
        for term in self.terms:
            term.reward.check(prompts)

    def score(self, samples: Samples) -> list[float]:
        """The sums."""
        return self.scored(samples).scores

    def scored(self, samples: Samples) -> Scored:
        """The sums, and every term's clipped score before its weight."""
        parts = dict(zip((t.name for t in self.terms), self._every(samples), strict=True))
        sums = [0.0] * len(samples)
        for term in self.terms:
            for i, score in enumerate(parts[term.name]):
                sums[i] += 0.0 if score is None else term.weight * score
        if silent := [i for i in range(len(samples)) if all(p[i] is None for p in parts.values())]:
            raise RewardError(
                f"every term abstained on sample {silent[0]}",
                f"its text: {samples.texts[silent[0]]!r:.200}",
                "let one term answer for every sample",
            )
        return Scored(sums, parts)

    def _every(self, samples: Samples) -> list[list[float | None]]:
        """Each term's scores; terms that wait (async functions) wait together."""
        waiting = [t for t in self.terms if isinstance(t.reward, FunctionReward) and t.reward.is_async]
        with ThreadPoolExecutor(max(1, len(waiting)), "reward") as threads:
            futures = {t.name: threads.submit(t.scores, samples) for t in waiting}
            return [futures[t.name].result() if t.name in futures else t.scores(samples) for t in self.terms]

    def state(self) -> dict[str, Any]:
        """Every term's."""
        return {t.name: t.reward.state() for t in self.terms}

    def restore(self, state: dict[str, Any]) -> None:
        """Every term's."""
        for term in self.terms:
            term.reward.restore(state[term.name])

    def warnings(self) -> list[Warning]:
        """Every term's."""
        return [w for t in self.terms for w in t.reward.warnings()]
