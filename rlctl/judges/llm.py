"""A language model as a judge: it passes a response if it finds the positive token likelier than the negative one as the next.

The question is text, tokenised anew by the judge's own tokenizer: no token id of the policy reaches the model. Nothing is sampled.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rlctl.config.judges import JudgeConfig, judge_name
from rlctl.config.schema import ModelConfig
from rlctl.data import context_length
from rlctl.errors import ModelError
from rlctl.judges.base import Judge
from rlctl.models import Source, is_causal, load_weights, open_source
from rlctl.rollout import Samples
from rlctl.tensors import length_groups, right_pad

NEEDS_DECODER = "a decoder-only language model (AutoModelForCausalLM): {kind: llm, path: PATH_OR_HUB_ID, ...}"


def open_judge(config: JudgeConfig) -> Source:
    """Config and tokenizer of the judge's model.

    Raises:
        ModelError: nothing there, or transformers cannot read it.
    """
    asked = ModelConfig(config.path or "", config.revision, config.dtype, trust_remote_code=config.trust_remote_code)
    try:
        return open_source(asked, "judge model")
    except ModelError as error:
        raise ModelError(f"judge {judge_name(config)}: {error.what}", error.why, NEEDS_DECODER) from error


def load_judge(config: JudgeConfig, source: Source, device: torch.device) -> Any:
    """The judge's language model, frozen, in eval mode, dropout off.

    Raises:
        ModelError: it is not a decoder-only language model.
    """
    model = load_weights(AutoModelForCausalLM, source, "judge model", NEEDS_DECODER)
    if not is_causal(model):
        raise ModelError(f"judge {judge_name(config)}: {source.name} sees later tokens: it is an encoder", hint=NEEDS_DECODER)
    return model.to(device).requires_grad_(False)


def token_id(config: JudgeConfig, source: Source, text: str) -> int:
    """The one token that a text is.

    Raises:
        ModelError: it is none or several; it names the text and what it is split into.
    """
    tokenizer = source.tokenizer
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if len(ids) == 1 and (ids[0] != tokenizer.unk_token_id or text == tokenizer.unk_token):
        return int(ids[0])
    vocabulary = tokenizer.get_vocab()
    if text in vocabulary:  # as the vocabulary itself writes it
        return int(vocabulary[text])
    parts = " ".join(repr(t) for t in tokenizer.convert_ids_to_tokens(ids)) or "nothing"
    raise ModelError(
        f"judge {judge_name(config)}: {text!r} is not a single token of {source.name}",
        f"it is read as: {parts}",
        "positive and negative with other words; a blank in front, or its absence, matters",
    )


class LlmJudge(Judge):
    """Asks one question about each response. None where even without the response it is longer than the model takes, or where
    the model's probabilities are not numbers."""

    runs_beside = False

    def __init__(self, config: JudgeConfig, source: Source, model: Any, device: torch.device):
        self.name, self.config, self.source, self.device = judge_name(config), config, source, device
        self.tokens = check_tokens(config, source)
        self.model = model
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.limit = self._limit()

    def _limit(self) -> int | None:
        limits = [self.config.max_length, context_length(self.source.hf_config)]
        if self.source.tokenizer.model_max_length < 10**9:  # transformers' word for "not set" is 1e30
            limits.append(self.source.tokenizer.model_max_length)
        return min((x for x in limits if x is not None), default=None)

    def judge(self, samples: Samples) -> list[bool | None]:
        """P(positive) > P(negative); equal probabilities do not pass."""
        found: list[bool | None] = []
        for positive, negative in self.logprobs(samples):
            found.append(None if positive != positive or negative != negative else positive > negative)
        return found

    @torch.no_grad()
    def logprobs(self, samples: Samples) -> list[tuple[float, float]]:
        """log P of the positive and of the negative token after each question, NaN where it is too long to be put."""
        encoded = [self.encode(samples.prompts[i], samples.responses[i]) for i in range(len(samples))]
        put = [(i, ids) for i, ids in enumerate(encoded) if ids]
        found = [(float("nan"), float("nan"))] * len(samples)
        for group in length_groups(torch.tensor([len(ids) for _, ids in put]), self.config.batch_size) if put else ():
            rows = [put[int(g)] for g in group]
            for (i, _), pair in zip(rows, self._forward([ids for _, ids in rows]), strict=True):
                found[i] = (pair[0], pair[1])
        return found

    def encode(self, prompt: str, response: str) -> list[int] | None:
        """The question as token ids. Too long a one loses the front of its response, never the question; None if that is not enough."""
        ids = self._ids(prompt, response)
        if self.limit is None or len(ids) <= self.limit:
            return ids
        tokenizer = self.source.tokenizer
        own = list(tokenizer(response, add_special_tokens=False)["input_ids"])
        excess = len(ids) - self.limit
        while excess < len(own):  # tokens merge anew where the front was cut, so one cut may not be enough
            rest = tokenizer.decode(own[excess:], clean_up_tokenization_spaces=False)
            ids = self._ids(prompt, rest)
            if len(ids) <= self.limit:
                return ids
            excess += len(ids) - self.limit
        ids = self._ids(prompt, "")
        return ids if len(ids) <= self.limit and not response else None

    def _ids(self, prompt: str, response: str) -> list[int]:
        given = {"{prompt}": prompt, "{response}": response}
        # in one pass: a prompt that holds "{response}" stays as it is
        text = re.sub(r"\{prompt\}|\{response\}", lambda m: given[m[0]], self.config.template or "")
        tokenizer = self.source.tokenizer
        if tokenizer.chat_template:
            messages = [{"role": "user", "content": text}]
            return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False))
        ids = list(tokenizer(text)["input_ids"])
        # some tokenizers close every text with their end token; the question is to be continued
        while ids and ids[-1] == tokenizer.eos_token_id and not text.endswith(tokenizer.eos_token):
            ids.pop()
        return ids

    def _forward(self, rows: list[list[int]]) -> list[list[float]]:
        """(positive, negative) log-probabilities at each row's last token; logits exist for last tokens only."""
        ids, mask = right_pad(rows, 0)
        ids, mask = ids.to(self.device), mask.to(self.device)
        last = mask.sum(1) - 1
        ends, which = last.unique(return_inverse=True)
        inputs = {"input_ids": ids, "attention_mask": mask.long(), "use_cache": False}
        logits = self.model(**inputs, logits_to_keep=ends).logits if self._keeps else self.model(**inputs).logits[:, ends]
        after = logits[torch.arange(len(rows), device=self.device), which].float()
        return torch.log_softmax(after, -1)[:, list(self.tokens)].cpu().tolist()  # type: ignore[no-any-return]


def check_tokens(config: JudgeConfig, source: Source) -> tuple[int, int]:
    """Ids of the positive and the negative token.

    Raises:
        ModelError: one of them is not a single token, or both are the same.
    """
    positive, negative = (token_id(config, source, text) for text in (config.positive, config.negative))
    if positive == negative:
        what = f"judge {judge_name(config)}: {config.positive!r} and {config.negative!r} are the same token of {source.name}"
        raise ModelError(what, hint="positive and negative with other words")
    return positive, negative
