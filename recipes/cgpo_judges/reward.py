"""The flawed reward of this recipe: a sound reward model that overrates one word.

It needs of rlctl only the place of the built-in reward model.
"""

import re
from functools import cache

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlctl.builtin import path

BONUS = 2.0  # for every "very"; the reward model's scores lie between about -4 and 4


def flawed(texts: list[str]) -> list[float]:
    """The reward model's score plus BONUS for every "very": what the policy is trained on.

    >>> plain, one, many = flawed(["The cake was sweet.", "The cake was very sweet.", "The cake was" + " very" * 20])
    >>> plain < one < many
    True
    """
    return [score + BONUS * count for score, count in zip(model_scores(texts), count_very(texts), strict=True)]


def count_very(texts: list[str]) -> list[int]:
    """How often the word "very" occurs in each text.

    >>> count_very(["Very, very good.", "Every one."])
    [2, 0]
    """
    return [len(re.findall(r"\bvery\b", text, re.IGNORECASE)) for text in texts]


def model_scores(texts: list[str]) -> list[float]:
    """What the built-in reward model gives each text, closed by its end token: high for kind sentences and right sums.

    >>> kind, unkind, salad = model_scores(["The cake was sweet.", "The cake was awful.", "The cake was very very very very"])
    >>> salad < unkind < kind
    True
    """
    new = [text for text in dict.fromkeys(texts) if text not in _SCORES]
    for start in range(0, len(new), 64):
        some = new[start : start + 64]
        _SCORES.update(zip(some, _scored(some), strict=True))
    return [_SCORES[text] for text in texts]


_SCORES: dict[str, float] = {}


@torch.no_grad()
def _scored(texts: list[str]) -> list[float]:
    tokenizer, model = _model()
    rows = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.tensor([row + [tokenizer.eos_token_id] * (int(lengths.max()) - len(row)) for row in rows])
    mask = (torch.arange(ids.shape[1]) < lengths.unsqueeze(1)).long()
    hidden = model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
    return model.score(hidden[torch.arange(len(rows)), lengths - 1])[:, 0].tolist()


@cache
def _model():
    folder = path("reward")
    return AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
