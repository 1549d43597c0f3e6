"""A reward model: a sequence classifier with one label, over text, with its own tokenizer and chat template.

Text is tokenised anew: no token id of the policy reaches the model. The score is read at the last real token, found from
lengths: transformers' own search for the last id that is not the pad id misses the end token when the two are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification

from rlctl.config.schema import AppendEos, ModelRewardConfig
from rlctl.data import context_length
from rlctl.errors import ModelError
from rlctl.models import Source, is_causal, load_weights
from rlctl.rewards.base import Reward
from rlctl.rollout import Samples
from rlctl.tensors import length_groups, right_pad

NEEDS_CLASSIFIER = "a sequence classifier with one label (AutoModelForSequenceClassification, num_labels=1): reward=model:PATH"


def check_source(source: Source) -> None:
    """Refuse what the config alone shows to be no reward model.

    Raises:
        ModelError: a language model without a score head, or more than one label.
    """
    kinds = [a for a in source.hf_config.architectures or [] if "SequenceClassification" not in a]
    if kinds:
        raise ModelError(
            f"the reward model {source.name} is a {kinds[0]}: its score head is missing", "a new head would be random", NEEDS_CLASSIFIER
        )
    if source.hf_config.num_labels != 1:
        raise ModelError(f"the reward model {source.name} has {source.hf_config.num_labels} labels, expected 1", hint=NEEDS_CLASSIFIER)


def load_classifier(source: Source, device: torch.device) -> Any:
    """The frozen weights of a reward model.

    Raises:
        ModelError: they are not those of one.
    """
    model = load_weights(AutoModelForSequenceClassification, source, "reward model", NEEDS_CLASSIFIER, num_labels=1)
    return model.to(device).requires_grad_(False)


def longest(asked: int | None, source: Source) -> int | None:
    """Most tokens of a text that a reward model reads; None if nothing limits it."""
    limits = [asked, context_length(source.hf_config)]
    if source.tokenizer.model_max_length < 10**9:  # transformers' word for "not set" is 1e30
        limits.append(source.tokenizer.model_max_length)
    return min((x for x in limits if x is not None), default=None)


def encode(tokenizer: Any, samples: Samples, i: int, limit: int | None, close: bool) -> list[int]:
    """Sample i as a reward model's own token ids, at most `limit` of them, closed by its end token if `close`.

    `rlctl rm` trains on exactly this: what a reward model has learnt from and what it scores are made alike.
    """
    tokenizer.truncation_side = "left"  # too long a text loses its front: the response is at the end
    if samples.messages is not None and tokenizer.chat_template:
        messages = [*samples.messages[i], {"role": "assistant", "content": samples.responses[i]}]
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        return list(ids if limit is None else ids[-limit:])
    close = close and tokenizer.eos_token_id is not None
    limit = limit - close if limit is not None else None
    ids = list(tokenizer(samples.texts[i], truncation=limit is not None, max_length=limit)["input_ids"])
    return [*ids, tokenizer.eos_token_id] if close and ids[-1:] != [tokenizer.eos_token_id] else ids


class ModelReward(Reward):
    """A frozen reward model."""

    def __init__(self, config: ModelRewardConfig, source: Source, policy: Source, device: torch.device, classifier: Any = None):
        check_source(source)
        self.name = f"model:{source.name}"
        self.config, self.source, self.device = config, source, device
        self.model: Any = classifier if classifier is not None else load_classifier(source, device)
        self.embeddings = self.model.get_input_embeddings().num_embeddings
        # a decoder is read by us at the last real token; an encoder's own head sees the whole text anyway
        self.is_decoder = isinstance(getattr(self.model, "score", None), nn.Linear) and is_causal(self.model)
        self.append_eos = config.append_eos is AppendEos.always or (
            config.append_eos is AppendEos.auto and source.shares_vocabulary(policy)
        )
        self.tokenizer = source.tokenizer
        own = self.tokenizer.pad_token_id
        self.pad_id = own if own is not None and own < self.embeddings else 0
        self.limit = longest(config.max_length, source)

    @torch.no_grad()
    def score(self, samples: Samples) -> list[float]:
        """The classifier's raw logit for each sample."""
        rows = [self.encode(samples, i) for i in range(len(samples))]
        scores = torch.empty(len(rows))
        for group in length_groups(torch.tensor([len(r) for r in rows]), self.config.batch_size):
            scores[group] = self._forward([rows[int(i)] for i in group]).float().cpu()
        return scores.tolist()  # type: ignore[no-any-return]

    def too_long(self, samples: Samples, i: int) -> bool:
        """Whether sample i would lose its front."""
        # a token is at least a byte; a chat template may add more of its own
        if self.limit is None or (samples.messages is None and len(samples.texts[i].encode()) + 8 < self.limit):
            return False
        limit, self.limit = self.limit, None
        try:
            return len(self.encode(samples, i)) > limit
        finally:
            self.limit = limit

    def encode(self, samples: Samples, i: int) -> list[int]:
        """Sample i as the reward model's own token ids; closed by its end token if it ended and that is asked for."""
        return encode(self.tokenizer, samples, i, self.limit, self.append_eos and not samples.truncated[i])

    def _forward(self, rows: list[list[int]]) -> torch.Tensor:
        ids, mask = right_pad(rows, self.pad_id)
        ids, mask = ids.to(self.device), mask.to(self.device)
        if not self.is_decoder:
            return self.model(input_ids=ids, attention_mask=mask.long()).logits[:, 0]
        hidden = self.model.base_model(input_ids=ids, attention_mask=mask.long(), use_cache=False).last_hidden_state
        last = mask.sum(1) - 1
        return self.model.score(hidden[torch.arange(len(rows), device=self.device), last])[:, 0]
