"""The true quality, which no variant is trained on: what one would want of a response, the flaw left out."""

from judges import closed, no_word_twice
from reward import model_scores

MAX_WORDS = 6  # as the judge `length` of config.yaml
BROKEN = -3.0  # for a response that breaks a rule: about what the reward model gives words in no order


def keeps_rules(responses: list[str], kind: list[str]) -> list[bool]:
    """Whether each response keeps all rules that the judges of config.yaml know.

    >>> keeps_rules([" very sweet.", " sweet", " sweet, so sweet.", " a b c d e f g."], ["sentence"] * 4)
    [True, False, False, False]
    """
    short = [len(response.split()) <= MAX_WORDS for response in responses]
    return [all(row) for row in zip(short, no_word_twice(responses), closed(responses, kind), strict=True)]


def true_quality(prompts: list[str], responses: list[str], kind: list[str]) -> list[float]:
    """The reward model's score without any bonus where the response keeps all rules, else BROKEN.

    >>> kept, broken = true_quality(["The cake was"] * 2, [" very sweet.", " very, very sweet."], ["sentence"] * 2)
    >>> broken == BROKEN and kept > 2
    True
    """
    scores = model_scores([p + r for p, r in zip(prompts, responses, strict=True)])
    return [score if kept else BROKEN for score, kept in zip(scores, keeps_rules(responses, kind), strict=True)]
