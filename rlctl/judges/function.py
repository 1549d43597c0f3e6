"""A Python function as a judge. Its arguments, its call and its import are those of a reward function; its answers are verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlctl.config.judges import JudgeConfig, judge_name
from rlctl.config.schema import FunctionRewardConfig
from rlctl.data import Prompts
from rlctl.errors import RewardError
from rlctl.judges.base import Judge
from rlctl.rewards.base import shorten
from rlctl.rewards.function import FunctionReward
from rlctl.rollout import Samples


class FunctionJudge(Judge):
    """A function that returns True or False (or 1 or 0) for each sample, or None where it cannot judge."""

    def __init__(self, config: JudgeConfig, function: Callable[..., Any] | None = None):
        self.name = judge_name(config)
        asked = FunctionRewardConfig(path=config.path or "", args=dict(config.args))
        try:
            self.inner = FunctionReward(asked, function, may_abstain=True)
        except RewardError as error:
            raise self._named(error) from error

    def check(self, prompts: Prompts) -> None:
        """Every parameter must have something to be given."""
        try:
            self.inner.check(prompts)
        except RewardError as error:
            raise self._named(error) from error

    def judge(self, samples: Samples) -> list[bool | None]:
        """Call the function with all samples."""
        try:
            returned = self.inner.scored_or_none(samples)
        except RewardError as error:
            raise self._named(error) from error
        return [self._verdict(value, i, samples) for i, value in enumerate(returned)]

    def _verdict(self, value: float | None, i: int, samples: Samples) -> bool | None:
        if value is None or value in (0.0, 1.0):
            return None if value is None else bool(value)
        raise RewardError(
            f"judge {self.name} returned {value:g} for sample {i}, expected True, False or None",
            f"the text of sample {i}: {shorten(samples.texts[i])!r}",
            "return [score(text) > 0.5 for text in texts]",
        )

    def _named(self, error: RewardError) -> RewardError:
        """The same error in a judge's words: the function was called as a reward's is."""
        hint = error.hint
        for theirs, ours in (("reward=fn:", "path: "), ("reward.args.", "args."), ("float(...)", "bool(...)")):
            hint = hint.replace(theirs, ours) if hint else hint
        return RewardError(f"judge {self.name}: {error.what.removeprefix('reward ')}", error.why, hint)
