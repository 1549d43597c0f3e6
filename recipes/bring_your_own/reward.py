"""Your reward goes here. It needs nothing of rlctl."""


def my_reward(prompts: list[str], responses: list[str]) -> list[float]:
    """One number for each response: here 1 if it holds the word "very", else 0.

    >>> my_reward(["The tea is", "The tea is"], [" very good.", " cold."])
    [1.0, 0.0]
    """
    return [float("very" in response.split()) for response in responses]
