"""What a judge is: something that passes or fails each sample, from text. Knows no model, no function and no config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlctl.data import Prompts
from rlctl.report import Warning
from rlctl.rollout import Samples


class Judge:
    """Passes or fails samples."""

    name: str
    """Its name in metrics and sample files."""
    runs_beside: bool = True
    """Whether it leaves the device alone, so that reference and value passes can go on meanwhile."""

    def check(self, prompts: Prompts) -> None:
        """Find out before training what the data lacks.

        Raises:
            RewardError, DataError: it lacks something.
        """

    def judge(self, samples: Samples) -> list[bool | None]:
        """One verdict per sample, in order; None where it could not judge.

        Raises:
            RewardError: the judge itself failed, on whatever sample.
        """
        raise NotImplementedError

    def warnings(self) -> list[Warning]:
        """What looked wrong since the start, for the console."""
        return []


@dataclass(frozen=True)
class Verdicts:
    """What every judge said of B samples."""

    by_name: dict[str, list[bool | None]]
    """Judge -> (B); None where it could not judge."""
    count: int
    """B."""

    def __post_init__(self) -> None:
        for name, verdicts in self.by_name.items():
            if len(verdicts) != self.count:
                raise ValueError(f"judge {name}: {len(verdicts)} verdicts for {self.count} samples")

    @property
    def satisfied(self) -> list[bool]:
        """(B) True where every judge passed; one that could not judge did not pass. All True without judges.

        >>> Verdicts({"short": [True, True, True], "polite": [True, False, None]}, 3).satisfied
        [True, False, False]
        """
        return [all(verdicts[i] is True for verdicts in self.by_name.values()) for i in range(self.count)]


def judge_all(judges: Sequence[Judge], samples: Samples) -> Verdicts:
    """Every judge's verdict on every sample.

    Raises:
        RewardError: a judge failed.
    """
    return Verdicts({judge.name: judge.judge(samples) for judge in judges}, len(samples))
