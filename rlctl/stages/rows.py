"""Rows of the data -> token ids to train on, checked row by row. Knows tokenizers, no models and no trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlctl.config.schema import Overlong
from rlctl.config.stages import RMDataConfig, SFTDataConfig
from rlctl.data import Prompt, context_length, decode, encode_prompt, need_column, read_rows, read_template
from rlctl.errors import ConfigError, DataError
from rlctl.models import Source
from rlctl.report import Warning
from rlctl.rewards.model import encode, longest
from rlctl.rollout import Samples

IGNORED = -100
"""The label of a token that is not learnt."""


@dataclass(frozen=True)
class Rows:
    """What is trained on."""

    columns: dict[str, list[list[int]]]
    """input_ids and labels (sft), or chosen_ids and rejected_ids (rm)."""
    left_out: int
    why: str
    """Why rows were left out, for the plan."""
    example: str
    """The first row as text, special tokens shown, for the plan."""
    warnings: tuple[Warning, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Split:
    """Rows to train on, and rows that are only measured, as data sets of the `datasets` library."""

    train: Any
    held_out: Any | None


def sft_rows(data: SFTDataConfig, source: Source) -> Rows:
    """Prompt and response as token ids: the prompt exactly as PPO gives it to the policy, the response closed by the end token.

    Raises:
        DataError: a missing column, an empty or unusable row, or one past the limit under data.overlong=error.
        ConfigError: chat messages without a chat template, or limits that do not fit the model.
    """
    tokenizer, limit = source.tokenizer, _limit(data, source)
    _check_end(source)
    _set_template(data.chat_template, tokenizer)
    rows = _read(data)
    reader = data.prompts(data.prompt_column)
    ids: list[list[int]] = []
    labels: list[list[int]] = []
    seams = 0
    for number, row in enumerate(rows):
        value, response = _prompt_and_response(data, number, row)
        prompt = encode_prompt(reader, tokenizer, None, number, {data.prompt_column: value})
        seams += prompt.messages is None and prompt.text[-1].isalnum() and response[0].isalnum()
        tail = _tail(tokenizer, prompt, response)
        head = _shortened(data, prompt, tail, limit)
        if head is None:
            continue
        ids.append(head + tail)
        labels.append((head if data.learn_prompt else [IGNORED] * len(head)) + tail)
    if not ids:
        raise DataError(f"all {len(rows)} rows are longer than {limit} tokens", hint="data.overlong=cut")
    example = decode(tokenizer, ids[0], keep_special_tokens=True)
    return Rows({"input_ids": ids, "labels": labels}, len(rows) - len(ids), "too long", example, _seam(seams, len(rows)))


def rm_rows(data: RMDataConfig, source: Source) -> Rows:
    """Both texts of each pair as token ids, made by the function that makes them when PPO asks the reward model for a score.

    So: the whole text tokenised once, never prompt and response apart; too long a text loses its front; with data.append_eos
    both are closed by the end token, as a response that ended is in PPO. PPO leaves a response that was cut unclosed.

    Raises:
        DataError: a missing column, or an empty or unusable row.
        ConfigError: chat messages without a chat template, or limits that do not fit the model.
    """
    tokenizer = source.tokenizer
    _limit(data, source)
    _check_end(source)
    _set_template(data.chat_template, tokenizer)
    if data.max_length is not None:  # saved with the tokenizer: PPO then cuts where training did
        tokenizer.model_max_length = min(data.max_length, tokenizer.model_max_length)
    limit = longest(data.max_length, source)
    rows = _read(data)
    chosen: list[list[int]] = []
    rejected: list[list[int]] = []
    seams = 0
    for number, row in enumerate(rows):
        pair = [_as_shown(data, tokenizer, number, row, column) for column in (data.chosen_column, data.rejected_column)]
        seams += all(s.messages is None and s.prompts[0][-1:].isalnum() and s.responses[0][:1].isalnum() for s in pair)
        better, worse = (encode(tokenizer, shown, 0, limit, data.append_eos) for shown in pair)
        if better != worse:
            chosen.append(better)
            rejected.append(worse)
    if not chosen:
        raise DataError(f"none of the {len(rows)} pairs can be learnt from", "chosen and rejected are the same in all of them")
    example = decode(tokenizer, chosen[0], keep_special_tokens=True)
    left = len(rows) - len(chosen)
    return Rows({"chosen_ids": chosen, "rejected_ids": rejected}, left, "chosen = rejected", example, _seam(seams, len(rows)))


def _columns(data: SFTDataConfig | RMDataConfig) -> Iterator[tuple[str, str]]:
    """(config key, column) of every column that must be there."""
    if isinstance(data, SFTDataConfig):
        keys = ("messages_column",) if data.messages_column is not None else ("prompt_column", "response_column")
    else:
        keys = (*(("prompt_column",) if data.prompt_column is not None else ()), "chosen_column", "rejected_column")
    return ((f"data.{key}", getattr(data, key)) for key in keys)


def _read(data: SFTDataConfig | RMDataConfig) -> list[dict[str, Any]]:
    (key, first), *others = _columns(data)
    rows = read_rows(data.prompts(first), key)
    for key, column in others:
        need_column(data.path, list(rows[0]), column, key)
    return rows


def _limit(data: SFTDataConfig | RMDataConfig, source: Source) -> int | None:
    context = context_length(source.hf_config)
    if data.max_length is not None and context is not None and data.max_length > context:
        raise ConfigError(f"data.max_length={data.max_length} passes the context of {context} tokens", hint=f"data.max_length={context}")
    return data.max_length if data.max_length is not None else context


def _check_end(source: Source) -> None:
    if source.tokenizer.eos_token_id is None:
        raise ConfigError(
            f"the tokenizer of {source.name} has no end token", "a response could never be told to be finished", "another model"
        )


def _set_template(path: str | None, tokenizer: Any) -> None:
    template = read_template(path)
    if template is not None:  # saved with the tokenizer, so that what comes next uses it too
        tokenizer.chat_template = template


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "role" in m and "content" in m for m in value)


def _split(number: int, column: str, value: Any) -> tuple[list[dict[str, str]], str]:
    """A whole conversation -> what comes before the last message, and the last message's text."""
    if not _is_conversation(value) or len(value) < 2 or value[-1]["role"] != "assistant":
        raise DataError(
            f"row {number} has no usable conversation",
            f"column {column!r} holds {value!r:.80}; expected messages {{role, content}}, the last one the assistant's",
        )
    return value[:-1], _text(number, column, value[-1]["content"])


def _text(number: int, column: str, value: Any) -> str:
    """A response's text, given as text or as one message."""
    if _is_conversation(value) and len(value) == 1 and value[0]["role"] == "assistant":
        value = value[0]["content"]
    if value is None or value == "" or value == []:
        raise DataError(f"row {number} has an empty response", f"column {column!r} holds {value!r}")
    if not isinstance(value, str):
        raise DataError(
            f"row {number} has no usable response",
            f"column {column!r} holds {value!r:.80}; expected a text or a list of one message of the assistant",
        )
    return value


def _prompt_and_response(data: SFTDataConfig, number: int, row: dict[str, Any]) -> tuple[Any, str]:
    if data.messages_column is not None:
        return _split(number, data.messages_column, row[data.messages_column])
    return row[data.prompt_column], _text(number, data.response_column, row[data.response_column])


def _tail(tokenizer: Any, prompt: Prompt, response: str) -> list[int]:
    """The response's ids as they follow the prompt's, closed by one end token.

    Tokenised together with the prompt where that leaves the prompt's ids as PPO has them, else apart.
    """
    if prompt.messages is None:
        whole = list(tokenizer(prompt.text + response)["input_ids"])
    else:
        messages = [*prompt.messages, {"role": "assistant", "content": response}]
        whole = list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False))
    n, end = len(prompt.ids), tokenizer.eos_token_id
    same = len(whole) > n and whole[:n] == prompt.ids
    tail = whole[n:] if same else list(tokenizer(response, add_special_tokens=False)["input_ids"])
    # what a template puts after the last end token (a newline) is never sampled
    last = len(tail) - tail[::-1].index(end) if prompt.messages is not None and end in tail else len(tail)
    tail = tail[:last]
    return tail if tail[-1:] == [end] else [*tail, end]


def _shortened(data: SFTDataConfig, prompt: Prompt, tail: list[int], limit: int | None) -> list[int] | None:
    """The prompt's ids, cut to leave room for the response; None leaves the row out."""
    size = len(prompt.ids) + len(tail)
    if limit is None or size <= limit:
        return prompt.ids
    if data.overlong is Overlong.drop:
        return None
    if data.overlong is Overlong.cut and len(tail) < limit:
        return prompt.ids[len(tail) - limit :]
    raise DataError(
        f"row {prompt.row} has {size} tokens, the limit is {limit}",
        f"the limit is data.max_length, or the model's context; its response alone has {len(tail)}; it begins: {prompt.text[:60]!r}",
        "data.overlong=drop leaves such rows out, data.overlong=cut removes the front of their prompts",
    )


def _as_shown(data: RMDataConfig, tokenizer: Any, number: int, row: dict[str, Any], column: str) -> Samples:
    """One side of a pair as PPO shows a sample to a reward model."""
    value, messages, prompt = row[column], None, ""
    if data.prompt_column is None:
        if isinstance(value, list):
            messages, response = _split(number, column, value)
        else:
            response = _text(number, column, value)
    else:
        response, given = _text(number, column, value), row[data.prompt_column]
        encoded = encode_prompt(data.prompts(data.prompt_column), tokenizer, None, number, {data.prompt_column: given})
        messages, prompt = encoded.messages, encoded.text
    if messages is not None and not tokenizer.chat_template:
        raise ConfigError(
            "the pairs are chat messages and the model's tokenizer has no chat template",
            f"row {number} of {data.path}",
            "data.chat_template=FILE.jinja, or a chat model: model=hf:PATH",
        )
    return Samples([prompt], [response], [prompt + response], {}, None if messages is None else [messages], [False])


def _seam(count: int, rows: int) -> tuple[Warning, ...]:
    if 2 * count <= rows:
        return ()
    what = f"{count} of {rows} rows join a prompt and a response without a blank between them"
    return (Warning("seam", what, "texts are joined as they stand", "begin the responses with a blank, or end the prompts with one"),)
