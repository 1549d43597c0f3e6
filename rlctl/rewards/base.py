"""What a reward is: something that gives one finite number per sample, from text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from rlctl.errors import RewardError
from rlctl.rollout import Samples


class Reward(Protocol):
    """Scores samples. Frozen during a run: the same text always gets the same score from a reward model."""

    name: str
    """As the user wrote it, for messages."""

    def score(self, samples: Samples) -> list[float]:
        """One finite number per sample, in order.

        Raises:
            RewardError: it failed, or gave anything else.
        """


def checked(name: str, returned: Any, samples: Samples) -> list[float]:
    """What a reward returned, as floats.

    Accepts a list, tuple, numpy array or tensor of ints, floats or bools of the length of the samples. Nothing is
    broadcast.

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
    return [_number(name, value, i, samples) for i, value in enumerate(returned)]


_EXAMPLE = "return [float(...) for text in texts]"


def _number(name: str, value: Any, i: int, samples: Samples) -> float:
    if hasattr(value, "item"):  # a numpy scalar or a tensor of one element
        value = value.item()
    if isinstance(value, (bool, int, float)) and math.isfinite(value):
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
