"""Writes data/: texts for the first stage, labelled pairs for the second, prompts for the third, and prompts none of them sees.

    python recipes/pipeline/make_data.py

Deterministic: the same files every time. A pair's labels follow the true measure, but one in ten is turned round.
"""

import json
from pathlib import Path
from random import Random

from true import true_measure

from rlctl.builtin import text
from rlctl.builtin.text import SENTIMENTS, Opening
from rlctl.builtin.words import TOPICS

HERE = Path(__file__).resolve().parent
TEXTS, PAIRS, PROMPTS, HELD_OUT = 2400, 2000, 200, 200
NOISE = 0.1
OTHERS = {noun for name, topic in TOPICS.items() if name not in ("food", "weather", "people") for noun in topic["nouns"]}
"""Nouns that no prompt is about: three topics of eight can be learnt in half a minute."""
SENSELESS = 0.45
"""Share of the responses in pairs that belong to another prompt, are cut short, or are words in no order."""

Row = dict[str, str]


def response(rng: Random, start: Opening) -> str:
    """An ending in any sentiment, or, now and then, nonsense."""
    said = text.ending(rng, start, rng.choice(SENTIMENTS))
    if rng.random() > SENSELESS:
        return said
    how = rng.choice(("off topic", "off topic", "cut", "salad"))
    if how == "off topic":
        return text.ending(rng, openings(rng, 1, set())[0], rng.choice(SENTIMENTS))
    return (text.cut if how == "cut" else text.salad)(rng, said) or " "


def pair(rng: Random, start: Opening) -> Row:
    """Two responses that the true measure tells apart; with probability NOISE the worse one is called chosen."""
    while True:
        first, second = response(rng, start), response(rng, start)
        a, b = true_measure([start.text] * 2, [first, second])
        if a != b:
            better, worse = (first, second) if (a > b) != (rng.random() < NOISE) else (second, first)
            return {"prompt": start.text, "chosen": better, "rejected": worse}


def openings(rng: Random, count: int, avoid: set[str]) -> list[Opening]:
    """Distinct prompts that are not in `avoid`."""
    found: dict[str, Opening] = {}
    while len(found) < count:
        start = text.opening(rng)
        if start.text not in avoid and not OTHERS & set(start.text.replace(",", "").split()):
            found[start.text] = start
    return list(found.values())


def rows() -> dict[str, list[Row]]:
    """File name -> its rows."""
    rng = Random(1)
    held_out = openings(rng, HELD_OUT, set())
    avoid = {start.text for start in held_out}
    prompts = openings(rng, PROMPTS, avoid)

    def starts(count: int) -> list[Opening]:
        return [openings(rng, 1, avoid)[0] for _ in range(count)]

    return {
        "texts": [{"prompt": s.text, "response": text.ending(rng, s, rng.choice(SENTIMENTS))} for s in starts(TEXTS)],
        "pairs": [pair(rng, s) for s in starts(PAIRS)],
        "prompts": [{"prompt": s.text} for s in prompts],
        "held_out": [{"prompt": s.text} for s in held_out],
    }


def main() -> None:
    """Writes the files."""
    (HERE / "data").mkdir(exist_ok=True)
    for name, found in rows().items():
        (HERE / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")


if __name__ == "__main__":
    main()
