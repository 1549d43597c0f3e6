"""The two judges of this recipe that are functions. They need nothing of rlctl: responses (and a column) in, verdicts out."""

import re


def no_word_twice(responses: list[str]) -> list[bool]:
    """No word occurs twice, punctuation and case aside (to `kind: no_repeat`, "very-very" is one word).

    >>> no_word_twice([" very good.", " very, very good.", " Very good, very kind.", ""])
    [True, False, False, True]
    """
    words = [re.findall(r"\w+", response.lower()) for response in responses]
    return [len(set(row)) == len(row) for row in words]


def closed(responses: list[str], kind: list[str]) -> list[bool]:
    """A sentence ends with a full stop and a sum is a number, by the data's column `kind`.

    >>> closed([" good.", " good", " 12", " very 12."], ["sentence", "sentence", "sum", "sum"])
    [True, False, True, False]
    """
    ends = {"sentence": r"[^.]+\.", "sum": r"\d+"}
    return [bool(re.fullmatch(ends[k], response.strip())) for response, k in zip(responses, kind, strict=True)]
