"""An environment small enough to know the best policy exactly.

Vocabulary of 8, three prompts of different lengths, responses of at most 2 tokens: 57 responses a prompt, each with a fixed
standard-normal reward. For a KL-regularised objective the best policy is pi*(y|x) = pi_ref(y|x) exp(r(x,y)/beta) / Z(x), worth
J* = beta log Z(x). The policy is a GPT-2 with absolute positions, dropout in its config, tied weights and pad == end token.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

WORDS = ["a", "b", "c", "d", "e", "f", "p", "<eos>"]
END = WORDS.index("<eos>")
PROMPTS = ["p", "b p", "a c p"]
LENGTH = 2

REWARD = '''"""A fixed normal reward per text."""
import random

def score(texts):
    return [random.Random("{seed} " + " ".join(text.split())).gauss(0.0, 1.0) for text in texts]

def passes(texts):
    return [random.Random("judge {seed} " + " ".join(text.split())).random() > 1 / 3 for text in texts]
'''


def reward(seed: int, text: str) -> float:
    """The same number as the written module gives."""
    return random.Random(f"{seed} " + " ".join(text.split())).gauss(0.0, 1.0)


def passes(seed: int, text: str) -> bool:
    """The verdict of a judge that fails a random third of all texts."""
    return random.Random(f"judge {seed} " + " ".join(text.split())).random() > 1 / 3


def reference(seed: int, prompt: str) -> str:
    """The response of median reward to a prompt."""
    words = [" ".join(WORDS[i] for i in s if i != END) for s in responses()[0]]
    return " " + sorted(words, key=lambda w: reward(seed, f"{prompt} {w}"))[len(words) // 2]


def make(folder: Path, seed: int) -> None:
    """policy/, prompts.jsonl and tablereward.py."""
    torch.manual_seed(seed)
    word_level = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="p"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_level, eos_token="<eos>", pad_token="<eos>")
    config = GPT2Config(
        vocab_size=8, n_embd=64, n_layer=2, n_head=2, n_positions=16, initializer_range=0.1,
        eos_token_id=END, pad_token_id=END, bos_token_id=None,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder / "policy")
    tokenizer.save_pretrained(folder / "policy")
    rows = [{"prompt": p, "reference": reference(seed, p)} for p in PROMPTS]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(rows[i % 3]) + "\n" for i in range(768)))
    (folder / "tablereward.py").write_text(REWARD.replace("{seed}", str(seed)))


@dataclass(frozen=True)
class Verdict:
    """How near a policy is to the optimum."""

    captured: float
    """(J - J_ref) / (J* - J_ref)."""
    kl: float
    """KL(pi || pi*), nats, mean over prompts."""


def responses() -> tuple[list[list[int]], torch.Tensor]:
    """Every response, ended or cut, and the mask (57, LENGTH)."""
    ended = [[*s, END] for n in range(LENGTH) for s in itertools.product(range(END), repeat=n)]
    every = ended + [list(s) for s in itertools.product(range(END), repeat=LENGTH)]
    return every, torch.tensor([[1.0] * len(s) + [0.0] * (LENGTH - len(s)) for s in every])


@torch.no_grad()
def sequence_logprobs(lm: GPT2LMHeadModel, prompt: list[int]) -> torch.Tensor:
    """(57,) float64 log-probability of every response to a prompt, without padding on the left."""
    every, mask = responses()
    ids = torch.tensor([prompt + s + [0] * (LENGTH - len(s)) for s in every])
    logprobs = torch.log_softmax(lm(input_ids=ids).logits[:, -LENGTH - 1 : -1].double(), -1)
    return (logprobs.gather(-1, ids[:, -LENGTH:, None]).squeeze(-1) * mask).sum(1)


def rewards(seed: int, prompt: str) -> torch.Tensor:
    """(57,) float64."""
    texts = [" ".join([prompt, *(WORDS[i] for i in s if i != END)]) for s in responses()[0]]
    return torch.tensor([reward(seed, t) for t in texts], dtype=torch.float64)


def evaluate(folder: Path, policy: Path, seed: int, beta: float) -> Verdict:
    """Exact verdict on a trained policy."""
    start, trained = (AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32).eval() for p in (folder / "policy", policy))
    gained = possible = distance = 0.0
    for prompt in PROMPTS:
        ids, r = [WORDS.index(w) for w in prompt.split()], rewards(seed, prompt)
        ref, new = sequence_logprobs(start, ids), sequence_logprobs(trained, ids)
        best = beta * torch.logsumexp(ref + r / beta, 0)

        def value(logprobs: torch.Tensor, r: torch.Tensor = r, ref: torch.Tensor = ref) -> float:
            return float((logprobs.exp() * (r - beta * (logprobs - ref))).sum())

        gained += value(new) - value(ref)
        possible += float(best) - value(ref)
        distance += float((new.exp() * (new - (ref + (r - best) / beta))).sum())
    return Verdict(gained / possible, distance / len(PROMPTS))


@dataclass(frozen=True)
class Constrained:
    """What a policy is worth under a judge."""

    satisfied: float
    """Probability that a response passes the judge, mean over prompts."""
    kl: float
    """E[D], nats from the start."""
    reward: float
    """E[r]."""


def constrained(folder: Path, policy: Path, seed: int) -> Constrained:
    """Exact expectations of a trained policy under the judge."""
    start, trained = (AutoModelForCausalLM.from_pretrained(p, dtype=torch.float32).eval() for p in (folder / "policy", policy))
    mass = distance = worth = 0.0
    for prompt in PROMPTS:
        ids, r = [WORDS.index(w) for w in prompt.split()], rewards(seed, prompt)
        good = torch.tensor([passes(seed, " ".join([prompt, *(WORDS[i] for i in s if i != END)])) for s in responses()[0]])
        ref, new = sequence_logprobs(start, ids), sequence_logprobs(trained, ids)
        mass += float(new.exp()[good].sum())
        distance += float((new.exp() * (new - ref)).sum())
        worth += float((new.exp() * r).sum())
    return Constrained(mass / len(PROMPTS), distance / len(PROMPTS), worth / len(PROMPTS))
