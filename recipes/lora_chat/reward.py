"""The reward of this recipe. It needs nothing of rlctl: chat messages in, one number per answer out."""

WORDS = "beautiful calm charming cheerful friendly gentle good happy helpful kind lovely perfect pleasant"


def kind_words(completions: list[list[dict[str, str]]]) -> list[float]:
    """1 for an answer with a kind word, else 0. A completion is a list of messages, as in TRL: the assistant's answer.

    >>> said = [" lovely.", " kind, so kind.", " unkind."]
    >>> kind_words([[{"role": "assistant", "content": text}] for text in said])
    [1.0, 1.0, 0.0]
    """
    kind = set(WORDS.split())
    answers = [messages[-1]["content"] for messages in completions]
    return [float(any(word.strip(".,!").lower() in kind for word in answer.split())) for answer in answers]
