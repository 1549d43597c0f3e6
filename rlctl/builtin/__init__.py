"""What rlctl ships so that a run needs no download: a small policy, a reward model, prompts.

Knows where the files lie and one plain reward function. Knows nothing of torch, of training or of
how the files were made (`make.py` and `text.py` make them).
"""

import re
from pathlib import Path

NAMES = ("policy", "reward", "prompts.jsonl")
_GOOD = re.compile(r"\bgood\b", re.IGNORECASE)


def count_good(texts: list[str]) -> list[float]:
    """How often the whole word "good" occurs in each text, in any case; one float per text.

    >>> count_good(["The soup was good.", "Good, so good!", "Goodness, a goods train.", ""])
    [1.0, 2.0, 0.0, 0.0]
    """
    return [float(len(_GOOD.findall(text))) for text in texts]


def path(name: str) -> Path:
    """The place of one shipped thing: "policy", "reward" (model folders) or "prompts.jsonl".

    >>> path("prompts.jsonl").name
    'prompts.jsonl'
    """
    if name not in NAMES:
        raise ValueError(f"no built-in {name!r}; there are: {', '.join(NAMES)}")
    return Path(__file__).resolve().parent / name
