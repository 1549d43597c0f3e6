"""What a reward is: something that gives one finite number per sample, from text. Knows no model and no function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlctl.data import Prompts
from rlctl.errors import RewardError
from rlctl.report import Warning
from rlctl.rollout import Samples


@dataclass(frozen=True)
class Scored:
    """Scores of B samples and what they are made of."""

    scores: list[float]
    """(B)."""
    parts: dict[str, list[float | None]] = field(default_factory=dict)
    """Name -> (B); None where a part abstained."""


class Reward:
    """Scores samples. Frozen during a run: the same text always gets the same score from a reward model."""

    name: str
    """As the user wrote it, for messages."""
    runs_beside: bool = False
    """Whether it leaves the device alone, so that reference and value passes can go on meanwhile."""
    takes_penalty: bool = False
    """Whether it applies algo.missing_eos_penalty itself."""

    def check(self, prompts: Prompts) -> None:
        """Find out before training what the data lacks.

        Raises:
            RewardError, DataError: it lacks something.
        """

    def score(self, samples: Samples) -> list[float]:
        """One finite number per sample, in order.

        Raises:
            RewardError: it failed, or gave anything else.
        """
        raise NotImplementedError

    def scored(self, samples: Samples) -> Scored:
        """The scores with their parts."""
        return Scored(self.score(samples))

    def state(self) -> dict[str, Any]:
        """What a resumed run must know of this one's; plain data."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""

    def warnings(self) -> list[Warning]:
        """What looked wrong since the start, for the console."""
        return []


def checked(name: str, returned: Any, samples: Samples, may_abstain: bool = False) -> list[float | None]:
    """What a reward returned, as floats.

    Accepts a list, tuple, numpy array or tensor of ints, floats or bools of the length of the samples. Nothing is
    broadcast. None, to abstain, only where that has a meaning.

    Raises:
        RewardError: it names the reward, what was expected and the first bad sample.
    """
    expected = f"expected a list of {len(samples)} numbers, one per text"
    if hasattr(returned, "tolist") and not isinstance(returned, (list, tuple)):
        returned = returned.tolist()
    if isinstance(returned, str) or not isinstance(returned, Sequence):
        raise RewardError(f"reward {name} returned {_shown(returned)}", expected, _EXAMPLE)
    if len(returned) != len(samples):
        raise RewardError(f"reward {name} returned {len(returned)} scores", expected, _EXAMPLE)
    return [None if may_abstain and value is None else _number(name, value, i, samples) for i, value in enumerate(returned)]


_LARGEST = 3.4e38  # of a float32, which scores are from here on
_EXAMPLE = "return [float(...) for text in texts]"


def _number(name: str, value: Any, i: int, samples: Samples) -> float:
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # a numpy scalar or a tensor without a dimension
        value = value.item()
    # nan compares false; an int may be too large for a float
    if isinstance(value, (bool, int, float)) and -_LARGEST <= value <= _LARGEST:
        return float(value)
    why = f"the text of sample {i}: {shorten(samples.texts[i])!r}"
    if value is None:
        why = f"None (abstain) has a meaning only inside a weighted sum of rewards; {why}"
    raise RewardError(f"reward {name} returned {_shown(value)} for sample {i}, expected a finite number", why)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}" if value is not None else "None"


def shorten(text: str, length: int = 200) -> str:
    """A text cut to a length, its middle left out."""
    return text if len(text) <= length else f"{text[: length // 2]} ... {text[-length // 2 :]}"
