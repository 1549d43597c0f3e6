"""Sampling responses with transformers' generate: exactly the distribution the log-probabilities are taken from.

A model's own generation settings (top-k 50, repetition penalty, ...) are not used: they would sample from another policy
than the one being trained. Only its end tokens are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from rlctl.config.schema import RolloutConfig
from rlctl.data import decode
from rlctl.rollout import Sequences
from rlctl.tensors import left_pad, response_mask


@dataclass(frozen=True)
class Sampler:
    """How to sample from one model."""

    config: RolloutConfig
    tokenizer: Any
    end_ids: tuple[int, ...]
    pad_id: int

    def __call__(self, lm: Any, prompts: list[list[int]]) -> tuple[Sequences, Tensor]:
        """Token ids of prompts -> sequences on the model's device, truncated (B,) bool.

        Draws from torch's generator of the device. Sampled tokens are never replaced: a cut response keeps its last one.
        """
        size = self.config.batch_size or len(prompts)
        width = max(map(len, prompts))
        responses, masks, ended = [], [], []
        all_ids, all_mask = left_pad(prompts, self.pad_id)
        all_ids, all_mask = all_ids.to(lm.device), all_mask.to(lm.device)
        for start in range(0, len(prompts), size):
            rows = slice(start, start + size)
            # the padding that this batch does not need is cut off before generating
            first = width - max(map(len, prompts[rows]))
            ids, mask, end = self._generate(lm, all_ids[rows, first:], all_mask[rows, first:])
            responses.append(ids)
            masks.append(mask)
            ended.append(end)
        response_ids = _cat_right(responses, self.pad_id)
        mask = _cat_right(masks, False)
        return Sequences(all_ids, all_mask, response_ids.masked_fill(~mask, self.pad_id), mask), ~torch.cat(ended)

    def _generate(self, lm: Any, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad(), _generation_config(lm, self._settings()):
            stops = StoppingCriteriaList([_StopTexts(self, ids.shape[1])] if self.config.stop else [])
            # not synced: the weights are whole (see sharding.whole), and a process whose rows have all ended need not wait for the others
            out = lm.generate(input_ids=ids, attention_mask=mask.long(), stopping_criteria=stops, synced_gpus=False)
        response = out[:, ids.shape[1] :]
        real, ended = response_mask(response, self.end_ids)
        if self.config.stop:
            real, ended = self._stop_at_texts(response, real, ended)
        return response, real, ended

    def _stop_at_texts(self, response: Tensor, real: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
        """Shorten each row's mask to end with the token that completes a stop text."""
        real, ended = real.clone(), ended.clone()
        for row, ids in enumerate(response.tolist()):
            length = int(real[row].sum())
            if not self.stops(ids[:length]):
                continue
            n = next(n for n in range(1, length + 1) if self.stops(ids[:n]))
            real[row, n:] = False
            ended[row] = True
        return real, ended

    def stops(self, response: list[int]) -> bool:
        """Whether a stop text stands in a response; one that begins in the prompt does not count."""
        text = decode(self.tokenizer, response, keep_special_tokens=True)
        return any(s in text for s in self.config.stop)

    def _settings(self) -> GenerationConfig:
        c = self.config
        return GenerationConfig(
            do_sample=True,
            temperature=c.temperature,
            top_k=c.top_k,
            top_p=c.top_p,
            max_new_tokens=c.max_new_tokens,
            eos_token_id=list(self.end_ids) or None,
            pad_token_id=self.pad_id,
            use_cache=True,
        )


class _StopTexts(StoppingCriteria):
    """Ends each row once its response holds a stop text. transformers' own criterion also looks into the prompt."""

    def __init__(self, sampler: Sampler, prompt_width: int):
        self.sampler, self.prompt_width = sampler, prompt_width

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        rows = input_ids[:, self.prompt_width :].tolist()
        return torch.tensor([self.sampler.stops(row) for row in rows], device=input_ids.device)


@contextmanager
def _generation_config(lm: Any, settings: GenerationConfig) -> Iterator[None]:
    """Generate takes what it is not told from the model's own settings; so they are set aside meanwhile."""
    own = lm.generation_config
    lm.generation_config = settings
    try:
        yield
    finally:
        lm.generation_config = own


def _cat_right(parts: list[Tensor], fill: int | bool) -> Tensor:
    width = max(p.shape[1] for p in parts)
    return torch.cat([torch.nn.functional.pad(p, (0, width - p.shape[1]), value=fill) for p in parts])


def end_ids(tokenizer: Any, generation_config: Any) -> tuple[int, ...]:
    """Every end token of a model: all of its generation config's, and its tokenizer's."""
    own = generation_config.eos_token_id if generation_config is not None else None
    ids = own if isinstance(own, list) else [own]
    return tuple(sorted({i for i in [*ids, tokenizer.eos_token_id] if i is not None}))


def seed_step(seed: int, step: int, process: int) -> None:
    """Seed sampling by seed, step and process, so that nothing a reward draws can change what is sampled next.

    Python's and numpy's generators too: what a reward draws from them then repeats with the run, and after a resume.
    """
    number = ((seed * 1_000_003 + step) * 1_009 + process) % 2**63
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number % 2**32)
