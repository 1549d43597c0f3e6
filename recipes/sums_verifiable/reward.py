"""A reward that can be verified: the response is right or wrong. It needs nothing of rlctl."""

import re


def right_answer(responses: list[str], answer: list[str]) -> list[float]:
    """1 where the last number of the response is the row's `answer`, else 0; `answer` is a column of data/prompts.jsonl.

    >>> right_answer([" 12", " 1 2, so 12.", " 13", " many"], ["12"] * 4)
    [1.0, 1.0, 0.0, 0.0]
    """
    said = [re.findall(r"-?\d+", response) for response in responses]
    return [float(bool(numbers) and numbers[-1] == right) for numbers, right in zip(said, answer, strict=True)]
