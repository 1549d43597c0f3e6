"""The reward of this recipe. It needs nothing of rlctl: responses in, one number per response out."""


def says_very(responses: list[str]) -> list[float]:
    """1 for a response with the word "very", else 0.

    >>> says_very([" very good.", " cold."])
    [1.0, 0.0]
    """
    return [float("very" in response.replace(",", "").split()) for response in responses]
