"""The true measure: what one would want of a response. It labels the pairs, with noise; no stage is trained on it.

python recipes/pipeline/true.py "The soup was" " warm and fresh."
"""

import re
import sys

from rlctl.builtin.words import DEEDS, FEELINGS, NEGATIVE, NEUTRAL, POSITIVE, TOPICS

VALUE = {POSITIVE: 1.0, NEUTRAL: 0.0, NEGATIVE: -1.0}
NONSENSE = -2.0
"""Of a response that does not end the sentence: unfinished, off topic, words in no order."""

_FILLER = r"(?:far too |very, very |very |so )?"
_JOINED = r"(?:, so |, very |, | and )"


def phrases(prompt: str) -> dict[str, str]:
    """What may be said after a prompt -> its sentiment.

    >>> phrases("The soup was")["stale"], phrases("After the trip, we felt")["proud"], phrases("When we saw the dog, we")["cried"]
    ('negative', 'positive', 'negative')
    """
    words = prompt.split()
    if words[-1] == "felt":
        known = FEELINGS
    elif words[0] == "When":
        known = DEEDS
    else:
        known = next(topic for topic in TOPICS.values() if words[-2] in topic["nouns"])
    said = {phrase: sentiment for sentiment in VALUE for phrase in known[sentiment]}
    return said if known is DEEDS else {**said, "good": POSITIVE}


def true_measure(prompts: list[str], responses: list[str]) -> list[float]:
    """From 1 (kind throughout) to -1 (unkind throughout) for a sentence that fits its prompt, else NONSENSE.

    >>> true_measure(["The soup was"] * 5, [" very warm.", " warm and stale.", " on the table.", " warm", " rude."])
    [1.0, 0.0, 0.0, -2.0, -2.0]
    """
    return [_one(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]


def _one(prompt: str, response: str) -> float:
    known = phrases(prompt)
    phrase = "(?:" + "|".join(sorted(map(re.escape, known), key=len, reverse=True)) + ")"
    sentence = f" {_FILLER}{phrase}(?:{_JOINED}{phrase}){{0,2}}(?: that we smiled)?\\."
    if not re.fullmatch(sentence, response):
        return NONSENSE
    said = re.findall(rf"\b{phrase}\b", response)
    return sum(VALUE[known[p]] for p in said) / len(said)


if __name__ == "__main__":
    print(true_measure([sys.argv[1]], [sys.argv[2]])[0])
