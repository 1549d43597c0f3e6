"""The reward of this recipe. It needs nothing of rlctl: texts in, one number per text out."""

import re


def count_good(texts: list[str]) -> list[float]:
    """How often the word "good" occurs in each text.

    >>> count_good(["All is good.", "goods", "Good, good!"])
    [1.0, 0.0, 2.0]
    """
    return [float(len(re.findall(r"\bgood\b", text, re.IGNORECASE))) for text in texts]
