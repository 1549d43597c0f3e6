"""A reward from outside: an object of a class of the user's that derives from `Reward`, held to what a reward is."""

from __future__ import annotations

from typing import Any

from rlctl.config.schema import ClassRewardConfig
from rlctl.data import Prompts
from rlctl.errors import RewardError, RlctlError
from rlctl.importing import construct, kept, own_traceback
from rlctl.report import Warning
from rlctl.rewards.base import Reward, Scored, checked, shorten
from rlctl.rollout import Samples


class ClassReward(Reward):
    """The user's object behind the checks of what it gives."""

    def __init__(self, config: ClassRewardConfig, may_abstain: bool = False):
        self.name = f"class:{config.path}"
        self.called = f"reward {self.name}"
        self.may_abstain = may_abstain
        self.inner: Any = construct("reward", config.path, [], config.args, RewardError)
        if not isinstance(self.inner, Reward):
            raise RewardError(
                f"{self.called} is not a reward",
                f"{type(self.inner).__name__} does not derive from rlctl.rewards.base.Reward",
                f"from rlctl.rewards.base import Reward; class {type(self.inner).__name__}(Reward): ...",
            )
        if type(self.inner).score is Reward.score and type(self.inner).scored is Reward.scored:
            raise RewardError(f"{self.called} gives no scores", "it has neither score nor scored", "def score(self, samples): return [...]")
        self.runs_beside = self.inner.runs_beside
        self.takes_penalty = self.inner.takes_penalty

    def check(self, prompts: Prompts) -> None:
        """The object's own check."""
        self._guarded("check", prompts)

    def score(self, samples: Samples) -> list[float]:
        """One finite number per sample."""
        return self.scored(samples).scores

    def scored(self, samples: Samples) -> Scored:
        """The scores and their parts, checked."""
        scored = self._scored(samples)
        return Scored([s for s in checked(self.name, scored.scores, samples) if s is not None], self._parts(scored, samples))

    def scored_or_none(self, samples: Samples) -> list[float | None]:
        """The scores, with None where it abstained and may."""
        return checked(self.name, self._scored(samples).scores, samples, self.may_abstain)

    def state(self) -> dict[str, Any]:
        """The object's own."""
        return kept(self.inner.state(), self.called)

    def restore(self, state: dict[str, Any]) -> None:
        """The object's own."""
        self.inner.restore(state)

    def warnings(self) -> list[Warning]:
        """The object's own."""
        return list(self.inner.warnings())

    def _scored(self, samples: Samples) -> Scored:
        scored = self._guarded("scored", samples)
        if not isinstance(scored, Scored):
            raise RewardError(f"{self.called}: scored returned a {type(scored).__name__}", "expected a rlctl.rewards.base.Scored")
        return scored

    def _parts(self, scored: Scored, samples: Samples) -> dict[str, list[float | None]]:
        return {name: checked(f"{self.name}, part {name!r},", values, samples, True) for name, values in scored.parts.items()}

    def _guarded(self, method: str, argument: Any) -> Any:
        """What a method of the object's returns; whatever it raises is told as its own failure."""
        try:
            return getattr(self.inner, method)(argument)
        except RlctlError:
            raise
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            if isinstance(argument, Samples):
                why += f"\nfirst text: {shorten(argument.texts[0])!r}"
            raise RewardError(f"{self.called} raised {type(error).__name__}", f"{why}\n{own_traceback(error)}".rstrip()) from error
