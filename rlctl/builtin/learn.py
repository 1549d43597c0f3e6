"""How the built-in tokenizer, policy and reward model are trained on generated text.

Knows token ids, shapes and losses. Knows nothing of files or of what is said about the results.
"""

from collections.abc import Iterable
from random import Random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn.functional import logsigmoid
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlctl.builtin import text

VOCABULARY = 1024
POSITIONS = 256
BATCH = 64           # samples, or pairs, a step
PEAK_RATE = 3e-3
CERTAINTY = 0.97     # the share a pair's better side is said to win: keeps score gaps near 3
CENTRE = 0.01        # weight of the pull of a pair's scores towards zero
IGNORED = -100


def train_tokenizer(samples: Iterable[text.Sample]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits; <bos> is put before every text, <eos> never after."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        (sample.prompt + sample.response for sample in samples),
        trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<pad>", "<bos>", "<eos>"],
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                            show_progress=False),
    )
    bpe.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B",
        special_tokens=[("<bos>", bpe.token_to_id("<bos>"))])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>",
        padding_side="left", model_max_length=POSITIONS, clean_up_tokenization_spaces=False)


def new_policy(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A policy of under a million weights, drawn from `seed`."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=320, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=POSITIONS,
        tie_word_embeddings=True, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id))


def pad(rows: list[list[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token rows as [rows, longest] ids and 0/1 mask, padded on the right."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad_id] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str], ended: list[bool]) -> tuple:
    """Texts as padded ids and mask, with <eos> after those that ended."""
    rows = tokenizer(texts)["input_ids"]
    close = [tokenizer.eos_token_id]
    return pad([row + close * end for row, end in zip(rows, ended, strict=True)], tokenizer.pad_token_id)


def _optimiser(model: torch.nn.Module, steps: int, peak: float):
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98),
                                  weight_decay=0.01)
    return optimiser, torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=peak, total_steps=steps, pct_start=0.1, cycle_momentum=False)


def _step(model, loss: torch.Tensor, optimiser, schedule) -> float:
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    schedule.step()
    return loss.item()


def train_policy(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, rng: Random,
                 steps: int) -> float:
    """Next-token training on fresh samples; returns the mean loss of the last fifty steps (nats).

    Prompts are learned as well as responses: it makes the policy a model of the whole text.
    """
    model.train()
    optimiser, schedule = _optimiser(model, steps, PEAK_RATE)
    losses = []
    for _ in range(steps):
        drawn = [text.sample(rng) for _ in range(BATCH)]
        ids, mask = encode(tokenizer, [s.prompt + s.response for s in drawn], [True] * BATCH)
        labels = ids.masked_fill(mask == 0, IGNORED)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        losses.append(_step(model, loss, optimiser, schedule))
    return sum(losses[-50:]) / len(losses[-50:])


def score_pairs(model, tokenizer: PreTrainedTokenizerFast,
                pairs: list[text.Pair]) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores of the better and of the worse responses, [pairs] each, read at the last token."""
    texts = [p.prompt + p.chosen for p in pairs] + [p.prompt + p.rejected for p in pairs]
    ended = [True] * len(pairs) + [p.rejected_ended for p in pairs]
    ids, mask = encode(tokenizer, texts, ended)
    better, worse = model(input_ids=ids, attention_mask=mask).logits[:, 0].chunk(2)
    return better, worse


def train_reward(model, tokenizer: PreTrainedTokenizerFast, rng: Random, steps: int,
                 avoid: frozenset[str]) -> float:
    """Bradley-Terry training on fresh pairs; returns the mean loss of the last fifty steps (nats).

    `avoid` holds prompts kept back for the check afterwards.
    """
    model.train()
    optimiser, schedule = _optimiser(model, steps, PEAK_RATE / 3)
    losses = []
    for _ in range(steps):
        better, worse = score_pairs(model, tokenizer,
                                    [text.pair(rng, avoid) for _ in range(BATCH)])
        gap = better - worse
        loss = -(CERTAINTY * logsigmoid(gap) + (1 - CERTAINTY) * logsigmoid(-gap)).mean()
        loss = loss + CENTRE * (better + worse).square().mean()
        losses.append(_step(model, loss, optimiser, schedule))
    return sum(losses[-50:]) / len(losses[-50:])
