"""The types that flow through a step. Shapes are written once, here, and checked once, when an object is made.

Legend: B sequences, P prompt tokens, R response tokens, G samples per prompt. A mask is True where the token counts; it is
carried, never derived from ids again, for the pad token may be the end token. Masked positions hold 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from rlctl.tensors import position_ids


@dataclass(frozen=True)
class Samples:
    """What a reward or a judge sees of B responses: text, never the policy's token ids."""

    prompts: list[str]
    """(B) as in the data; for chat, the rendered prompt without special tokens."""
    responses: list[str]
    """(B) decoded, without special tokens unless the reward asked to keep them."""
    texts: list[str]
    """(B) prompt + response."""
    columns: dict[str, list[Any]]
    """Every other column of the data, each (B)."""
    messages: list[list[dict[str, str]]] | None
    """(B) chat prompts as messages; None for text prompts."""
    truncated: list[bool]
    """(B) True where the response was cut at the limit."""
    rows: list[int] = field(default_factory=list)
    """(B) number of each prompt's row in the data."""

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Sequences:
    """Prompts and responses as token ids."""

    prompt_ids: Tensor
    """(B, P) left-padded."""
    prompt_mask: Tensor
    """(B, P) bool."""
    response_ids: Tensor
    """(B, R) right-padded."""
    response_mask: Tensor
    """(B, R) bool, True up to and including the end token."""

    def __len__(self) -> int:
        return len(self.prompt_ids)

    @property
    def lengths(self) -> Tensor:
        """(B,) real tokens of prompt and response."""
        return self.prompt_mask.sum(1) + self.response_mask.sum(1)

    def select(self, rows: Tensor) -> Sequences:
        """Some rows, with the padding that all of them share cut off."""
        prompt = int(self.prompt_mask[rows].sum(1).max())
        response = max(1, int(self.response_mask[rows].sum(1).max()))
        start = self.prompt_ids.shape[1] - prompt
        return Sequences(
            self.prompt_ids[rows, start:],
            self.prompt_mask[rows, start:],
            self.response_ids[rows, :response],
            self.response_mask[rows, :response],
        )

    def inputs(self) -> dict[str, Tensor]:
        """input_ids, attention_mask and position_ids, each (B, P + R), for a forward pass over the whole sequence."""
        mask = torch.cat([self.prompt_mask, self.response_mask], 1)
        ids = torch.cat([self.prompt_ids, self.response_ids], 1)
        return {"input_ids": ids, "attention_mask": mask.long(), "position_ids": position_ids(mask)}

    def emitting(self) -> Tensor:
        """(R,) positions whose hidden state emits the response tokens: P - 1 ... P + R - 2."""
        start = self.prompt_ids.shape[1] - 1
        return torch.arange(start, start + self.response_ids.shape[1], device=self.prompt_ids.device)


@dataclass(frozen=True)
class Rollout:
    """One step's responses of one device with everything an algorithm needs to learn from them."""

    sequences: Sequences
    old_logprobs: Tensor
    """(B, R) float32, of the policy that sampled, at the sampling temperature; 0 where masked."""
    entropy: Tensor
    """(B, R) float32 in nats, of the policy that sampled; 0 where masked."""
    ref_logprobs: Tensor | None
    """(B, R) float32, of the reference, at the same temperature; None when nothing needs it."""
    values: Tensor | None
    """(B, R) float32, before token t is emitted; None without a value model."""
    scores: Tensor
    """(B,) float32, what the reward gave."""
    adjusted_scores: Tensor
    """(B,) float32, after normalisation, clipping and the missing-end penalty."""
    truncated: Tensor
    """(B,) bool, hit the length limit without an end."""
    group_size: int = 1
    """G: rows p*G .. p*G+G-1 share a prompt."""
    satisfied: Tensor | None = None
    """(B,) bool, True where every judge passed; None without judges."""
    raw_scores: Tensor | None = None
    """(B,) float32, what orders the responses to one prompt, before a sigmoid makes ties; None where scores do it."""
    baselines: Sequences | None = None
    """(P) known answers, one a prompt; None where no algorithm asks for them."""
    baseline_satisfied: Tensor | None = None
    """(P,) bool, True where the answer passes every judge."""

    @property
    def mask(self) -> Tensor:
        """(B, R) bool, the response mask."""
        return self.sequences.response_mask

    def __post_init__(self) -> None:
        b, r = self.mask.shape
        per_token = {name: getattr(self, name) for name in ("old_logprobs", "entropy", "ref_logprobs", "values")}
        per_row = {"scores": self.scores, "adjusted_scores": self.adjusted_scores, "truncated": self.truncated}
        for name, tensor in per_token.items():
            if tensor is not None and (tensor.shape != (b, r) or tensor.dtype != torch.float32):
                raise ValueError(f"{name}: expected float32 ({b}, {r}), got {tensor.dtype} {tuple(tensor.shape)}")
            if tensor is not None and bool(tensor[~self.mask].any()):
                raise ValueError(f"{name}: masked positions must hold 0")
        for name, tensor in per_row.items():
            if tensor.shape != (b,):
                raise ValueError(f"{name}: expected ({b},), got {tuple(tensor.shape)}")
        if b % self.group_size or (self.baselines is not None and len(self.baselines) * self.group_size != b):
            raise ValueError(f"{b} rows are not whole groups of {self.group_size}")


@dataclass(frozen=True)
class Forward:
    """What one forward pass says about a batch's response tokens."""

    logprobs: Tensor | None = None
    """(b, r) float32 at the sampling temperature, 0 where masked."""
    values: Tensor | None = None
    """(b, r) float32, 0 where masked."""
    entropy: Tensor | None = None
    """(b, r) float32 in nats, 0 where masked."""


@dataclass(frozen=True)
class Batch:
    """What an algorithm learns from: sequences and per-token or per-row tensors aligned with them. Subclasses add fields."""

    sequences: Sequences
    loss_mask: Tensor
    """(B, R) bool, the tokens that count in the loss."""

    def __len__(self) -> int:
        return len(self.sequences)

    def select(self, rows: Tensor) -> Batch:
        """Some rows; every tensor with a token axis is cut to the width of the selected responses."""
        sequences = self.sequences.select(rows)
        width = sequences.response_ids.shape[1]
        cut = {}
        for f in fields(self):
            tensor = getattr(self, f.name)
            if isinstance(tensor, Tensor):
                cut[f.name] = tensor[rows, :width] if tensor.dim() == 2 else tensor[rows]
        return type(self)(**{**{f.name: getattr(self, f.name) for f in fields(self)}, **cut, "sequences": sequences})
