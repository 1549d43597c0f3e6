"""The three terms of this recipe's reward. They need nothing of rlctl: responses (and a column) in, one number each out.

None means that a term does not speak of a response: it abstains, and the other terms decide.
"""

import re


def length(responses: list[str], kind: list[str], words: int = 6) -> list[float | None]:
    """1 at `words` words, less by 1/words for each word more or fewer, never below -1; sums have no length to keep.

    >>> length([" very good and very kind indeed.", " good.", " 12"], ["sentence", "sentence", "sum"], words=6)
    [1.0, 0.16666666666666663, None]
    """
    missed = [abs(len(response.split()) - words) / words for response in responses]
    return [None if k == "sum" else max(-1.0, 1.0 - m) for m, k in zip(missed, kind, strict=True)]


def plain(responses: list[str], kind: list[str]) -> list[float]:
    """1 for one sentence of words that a full stop closes, and for a sum that is a number, else 0.

    >>> plain([" very good.", " very, very good.", " good", " 12", " 12."], ["sentence"] * 3 + ["sum"] * 2)
    [1.0, 0.0, 0.0, 1.0, 0.0]
    """
    forms = {"sentence": r"[\w ]+\.", "sum": r"\d+"}
    return [float(bool(re.fullmatch(forms[k], response.strip()))) for response, k in zip(responses, kind, strict=True)]


def no_word_twice(responses: list[str]) -> list[float]:
    """0 where no word occurs twice, else -1 for each word that does.

    >>> no_word_twice([" good and kind.", " very, very good.", " so so so good."])
    [0.0, -1.0, -2.0]
    """
    words = [re.findall(r"\w+", response.lower()) for response in responses]
    return [float(len(set(row)) - len(row)) for row in words]
