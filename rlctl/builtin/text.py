"""Seeded generator of the text the built-in models learn from: small sentences and small sums.

Pure functions of a `random.Random`; the standard library only. Knows the grammar, which ending is
kinder than which, and which sum is right. Knows nothing of tokens, models or files.
"""

from random import Random
from typing import NamedTuple

from rlctl.builtin.words import (
    DEEDS,
    EVENTS,
    FEELINGS,
    LEADS,
    NEUTRAL,
    PEOPLE,
    POSITIVE,
    SENSES,
    SENTIMENTS,
    TOPICS,
    WHEN,
)

GOOD_SHARE = 0.3    # of the positive adjectives: rare in the text, yet found by sampling
SUM_SHARE = 0.25    # of all samples
RIGHT_SHARE = 0.7   # of the sums in the policy's text: room for a checker to improve on
MAX_WORDS = 12
ALL_WORDS = sorted({word for topic in TOPICS.values() for group in topic.values()
                    for phrase in group for word in phrase.split()})


class Opening(NamedTuple):
    """The start of a sentence and the phrases that fit after it, by sentiment."""

    text: str
    phrases: dict[str, list[str]]
    shape: str  # "is", "felt" or "deed"


class Sample(NamedTuple):
    """A prompt and a response; the response carries its leading space."""

    prompt: str
    response: str
    kind: str   # "sentence" or "sum"


class Pair(NamedTuple):
    """Two responses to one prompt, the better first; `*_ended`: whether the response is closed."""

    prompt: str
    chosen: str
    rejected: str
    rejected_ended: bool  # the chosen one always is
    why: str              # "sentiment", "sum", "cut" or "salad"


def opening(rng: Random) -> Opening:
    """Draws the start of a sentence, as "The soup was"; any sentiment can follow."""
    topic = rng.choice(sorted(TOPICS))
    noun = rng.choice(TOPICS[topic]["nouns"])
    shape = rng.choice(("is", "is", "is", "felt", "deed"))
    if shape == "felt":
        event = rng.choice(EVENTS)
        return Opening(f"{rng.choice(WHEN)} {event}, {rng.choice(PEOPLE)} felt", FEELINGS, shape)
    if shape == "deed":
        who = rng.choice(PEOPLE)
        return Opening(f"When {who} {rng.choice(SENSES)} the {noun}, we", DEEDS, shape)
    return Opening(f"{rng.choice(LEADS)} {noun} {rng.choice(('was', 'is'))}", TOPICS[topic], shape)


def _phrase(rng: Random, start: Opening, sentiment: str) -> str:
    if sentiment == POSITIVE and start.shape != "deed" and rng.random() < GOOD_SHARE:
        return "good"
    return rng.choice(start.phrases[sentiment])


def ending(rng: Random, start: Opening, sentiment: str) -> str:
    """Draws a finished ending of `start` in one sentiment, with its leading space and full stop.

    The whole sentence has at most 12 words.
    """
    while True:
        text = f" {rng.choice(_forms(rng, start, sentiment))}."
        if len((start.text + text).split()) <= MAX_WORDS:
            return text


def _forms(rng: Random, start: Opening, sentiment: str) -> list[str]:
    first, second, third = (_phrase(rng, start, sentiment) for _ in range(3))
    if start.shape == "deed" or sentiment == NEUTRAL:
        forms = [first, first] + ([f"{first} and {second}"] if first != second else [])
    else:
        # The repeating forms teach that a word may come again, which is what lets a policy be
        # moved towards any one word.
        forms = [first, first, f"very {first}", f"very, very {first}", f"{first}, so {first}",
                 f"so {first} that we smiled" if sentiment == POSITIVE else f"far too {first}"]
        if first != second:
            forms += [f"{first} and {second}"] * 2
        if len({first, second, third}) == 3:
            forms += [f"{first}, {second} and {third}"]
    return forms


def sum_prompt(a: int, b: int) -> str:
    """The prompt of one sum of two digits.

    >>> sum_prompt(3, 4)
    '3 + 4 ='
    """
    return f"{a} + {b} ="


def wrong_sum(rng: Random, right: int) -> int:
    """Draws a wrong answer near `right`, never below zero."""
    return rng.choice([n for n in range(right - 3, right + 4) if n != right and n >= 0])


def sample(rng: Random) -> Sample:
    """Draws one sample of the policy's text: sentiments alike often, RIGHT_SHARE of sums right."""
    if rng.random() < SUM_SHARE:
        a, b = rng.randrange(10), rng.randrange(10)
        answer = a + b if rng.random() < RIGHT_SHARE else wrong_sum(rng, a + b)
        return Sample(sum_prompt(a, b), f" {answer}", "sum")
    start = opening(rng)
    return Sample(start.text, ending(rng, start, rng.choice(SENTIMENTS)), "sentence")


def cut(rng: Random, response: str) -> str:
    """The response without its end: some words kept, perhaps none, and no full stop."""
    words = response.split(" ")[1:]
    kept = words[: rng.randrange(len(words))]
    return "".join(f" {word.rstrip(',.')}" for word in kept)


def salad(rng: Random, response: str) -> str:
    """Words in no order: drawn at random, one repeated, shuffled, or all said twice."""
    how = rng.choice(("random", "repeat", "shuffle", "twice"))
    words = response.strip(" .").split(" ")
    if how == "shuffle" and len(set(words)) > 2:
        return "".join(f" {word}" for word in rng.sample(words, len(words)) + words[:1])
    if how == "twice":
        return response * rng.choice((2, 3))
    if how == "repeat":
        return f" {rng.choice(words)}" * rng.randrange(3, 12)
    return "".join(f" {rng.choice(ALL_WORDS)}" for _ in range(rng.randrange(3, 14)))


def pair(rng: Random, avoid: frozenset[str] = frozenset()) -> Pair:
    """Draws a preference pair whose prompt is not in `avoid`: kinder, right or finished is better.

    Every finished response is better than every cut or senseless one, whatever its sentiment.
    """
    if rng.random() < SUM_SHARE:
        a, b = rng.randrange(10), rng.randrange(10)
        prompt, right, wrong = sum_prompt(a, b), f" {a + b}", f" {wrong_sum(rng, a + b)}"
        if rng.random() < 0.8:
            return Pair(prompt, right, wrong, True, "sum")
        return Pair(prompt, rng.choice((right, wrong)), salad(rng, right), rng.random() < 0.5,
                    "salad")
    start = opening(rng)
    while start.text in avoid:
        start = opening(rng)
    better, worse = sorted(rng.sample(SENTIMENTS, 2), key=SENTIMENTS.index)
    chosen, rejected = ending(rng, start, better), ending(rng, start, worse)
    draw = rng.random()
    if draw < 0.6:
        return Pair(start.text, chosen, rejected, True, "sentiment")
    # A full response that never closes counts as cut too.
    loser, winner = (chosen, rejected) if rng.random() < 0.5 else (rejected, chosen)
    if draw < 0.8:
        ended = rng.random() < 0.5
        text = loser if not ended and rng.random() < 0.3 else cut(rng, loser)
        return Pair(start.text, winner, text, ended, "cut")
    return Pair(start.text, winner, salad(rng, loser), rng.random() < 0.5, "salad")


def prompt_rows(seed: int, sentences: int, sums: int) -> list[dict[str, str]]:
    """The rows of `prompts.jsonl`: distinct prompts, each with a kind or right reference."""
    rng = Random(seed)
    rows = {}
    while len(rows) < sentences:
        start = opening(rng)
        rows[start.text] = {"prompt": start.text, "reference": ending(rng, start, POSITIVE),
                            "answer": POSITIVE, "kind": "sentence"}
    for a, b in rng.sample([(a, b) for a in range(10) for b in range(10)], sums):
        rows[sum_prompt(a, b)] = {"prompt": sum_prompt(a, b), "reference": f" {a + b}",
                                  "answer": str(a + b), "kind": "sum"}
    return rng.sample(list(rows.values()), len(rows))
