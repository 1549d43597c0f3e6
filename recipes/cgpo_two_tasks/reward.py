"""The reward of the task `sums`. It needs nothing of rlctl: responses and a column of the data in, one number per response out."""

import re


def near(responses: list[str], answer: list[str]) -> list[float]:
    """1 where the last number of the response is the row's `answer`, 1 / (1 + distance) where it is another, 0 without a number.

    >>> near([" 12", " 1 2, so 12.", " 13", " 8", " many"], ["12"] * 5)
    [1.0, 1.0, 0.5, 0.2, 0.0]
    """
    said = [re.findall(r"\d+", response) for response in responses]
    return [1 / (1 + abs(int(numbers[-1]) - int(right))) if numbers else 0.0 for numbers, right in zip(said, answer, strict=True)]
