"""Rows -> prompts as token ids, with limits; and which prompts a step takes. Knows tokenizers, no models.

The order of prompts depends on the seed and the epoch alone: nothing that a reward or a sampler draws can change it.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlctl.builtin import path as builtin_path
from rlctl.config.schema import Config, DataConfig, Overlong
from rlctl.errors import ConfigError, DataError

_READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class Prompt:
    """One row of the data, ready to be sampled from."""

    row: int
    """Its number in the data, from 0."""
    ids: list[int]
    text: str
    messages: list[dict[str, str]] | None
    columns: dict[str, Any]
    """Every other column."""
    whole: str | None = None
    """The text as it stands in the data, where data.overlong=cut took its front off."""


@dataclass(frozen=True)
class Prompts:
    """All prompts of the run and the order they come in."""

    items: list[Prompt]
    columns: list[str]
    """Names of the columns beside the prompt."""
    dropped: int
    shuffle: bool
    seed: int

    def __len__(self) -> int:
        return len(self.items)

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same prompts with the same columns in the same order."""
        digest = hashlib.sha256()
        for p in self.items:
            digest.update(json.dumps([p.row, p.ids, p.columns], default=str, sort_keys=True).encode())
        return digest.hexdigest()

    def at(self, step: int, per_step: int) -> list[Prompt]:
        """The prompts of a step (from 1). Epochs follow each other without a gap, so every step has exactly `per_step`."""
        n, orders, out = len(self.items), {}, []
        for position in range((step - 1) * per_step, step * per_step):
            epoch = position // n
            if epoch not in orders:
                order = list(range(n))
                if self.shuffle:
                    random.Random(f"{self.seed}/{epoch}").shuffle(order)
                orders[epoch] = order
            out.append(self.items[orders[epoch][position % n]])
        return out


def read_rows(config: DataConfig, key: str = "data.prompt_column") -> list[dict[str, Any]]:
    """The rows of the data as dictionaries, through the `datasets` library; `key` is the one that names the prompt column.

    Raises:
        DataError: nothing there, unreadable, without rows, or without the prompt column.
    """
    import datasets

    datasets.disable_progress_bars()
    where = str(builtin_path("prompts.jsonl")) if config.path == "builtin" else config.path
    data = _load(datasets, where, config)
    if isinstance(data, dict):
        raise DataError(f"data {where} has several splits", f"there are: {', '.join(data)}", f"data.split={next(iter(data))}")
    if config.limit is not None:
        data = data.select(range(min(config.limit, len(data))))
    if len(data) == 0:
        raise DataError(f"data {where} has no rows")
    need_column(where, data.column_names, config.prompt_column, key)
    return list(data)


def need_column(where: str, names: list[str], column: str, key: str) -> None:
    """Raise the DataError of a missing column; `key` is the config key that names it."""
    if column not in names:
        raise DataError(f"data {where} has no column {column!r}", f"its columns are: {', '.join(names)}", f"{key}={names[0]}")


def _load(datasets: Any, where: str, config: DataConfig) -> Any:
    path = Path(where)
    local = path.suffix in _READERS or where.startswith(("/", ".", "~"))
    if local and not path.exists():
        raise DataError(
            f"no data at {where}", f"there is no such file or folder (looked from {Path.cwd()})", "data=file:PATH or data=hf:NAME"
        )
    try:
        if path.is_file():
            if path.suffix not in _READERS:
                raise DataError(f"cannot read {where}", f"known endings: {', '.join(_READERS)}")
            return datasets.load_dataset(_READERS[path.suffix], data_files=str(path), split="train")
        if path.is_dir() and ((path / "state.json").exists() or (path / "dataset_dict.json").exists()):
            saved = datasets.load_from_disk(str(path))
            return saved[config.split] if isinstance(saved, datasets.DatasetDict) and config.split in saved else saved
        return datasets.load_dataset(where, config.name, split=config.split)
    except DataError:
        raise
    except ValueError as error:
        if "corresponds to no data" in str(error):  # the library's words for an empty file
            raise DataError(f"data {where} has no rows") from error
        raise DataError(f"data {where} cannot be loaded", f"{type(error).__name__}: {error}") from error
    except Exception as error:  # datasets raises its own, pyarrow's, pandas' and the hub's; the cause is shown whole
        raise DataError(f"data {where} cannot be loaded", f"{type(error).__name__}: {error}") from error


def context_length(hf_config: Any) -> int | None:
    """Most tokens the model takes, from its config; None if it sets no limit."""
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"):
        if isinstance(value := getattr(hf_config, name, None), int) and value > 0:
            return value
    return None


def prompt_limit(config: Config, context: int | None) -> int | None:
    """Longest prompt in tokens that leaves room for the response; None if there is no limit.

    Raises:
        ConfigError: the context has no room for what the config asks.
    """
    asked, new = config.data.max_prompt_tokens, config.rollout.max_new_tokens
    if context is None:
        return asked
    room = context - new
    if room < 1:
        raise ConfigError(
            f"rollout.max_new_tokens={new} leaves no room for a prompt",
            f"the context of {config.model.path} is {context} tokens",
            f"rollout.max_new_tokens={max(1, context // 2)}",
        )
    if asked is not None and asked > room:
        raise ConfigError(
            f"data.max_prompt_tokens={asked} and rollout.max_new_tokens={new} together pass the context of {context} tokens",
            hint=f"data.max_prompt_tokens={room}",
        )
    return asked if asked is not None else room


def build_prompts(config: Config, tokenizer: Any, context: int | None) -> Prompts:
    """Read, tokenise and limit the prompts.

    Raises:
        DataError: a row has no prompt, is too long under data.overlong=error, or none is left.
        ConfigError: chat messages without a chat template, or limits that do not fit the context.
    """
    limit = prompt_limit(config, context)
    rows = read_rows(config.data)
    template = read_template(config.data.chat_template)
    items: list[Prompt] = []
    for number, row in enumerate(rows):
        prompt = encode_prompt(config.data, tokenizer, template, number, row)
        if limit is not None and len(prompt.ids) > limit:
            cut = _too_long(config, tokenizer, prompt, limit)
            if cut is None:
                continue
            prompt = cut
        items.append(prompt)
    if not items:
        raise DataError(f"all {len(rows)} prompts are longer than {limit} tokens", hint="data.overlong=cut")
    columns = [c for c in rows[0] if c != config.data.prompt_column]
    return Prompts(items, columns, len(rows) - len(items), config.data.shuffle, config.seed)


def read_template(path: str | None) -> str | None:
    """The chat template in a file; None without one.

    Raises:
        ConfigError: no such file.
    """
    if path is None:
        return None
    if not Path(path).is_file():
        why = f"there is no such file (looked from {Path.cwd()})"
        raise ConfigError(f"no chat template at {path}", why, "data.chat_template=FILE.jinja")
    return Path(path).read_text()


def encode_prompt(config: DataConfig, tokenizer: Any, template: str | None, number: int, row: dict[str, Any]) -> Prompt:
    """The prompt of a row as the policy is given it; `number` is the row's, for messages.

    Raises:
        DataError: the row has no prompt.
        ConfigError: chat messages without a chat template.
    """
    value = row[config.prompt_column]
    columns = {k: v for k, v in row.items() if k != config.prompt_column}
    if value == "":
        raise DataError(f"row {number} has an empty prompt", f"column {config.prompt_column!r} holds {value!r}")
    if isinstance(value, str) and config.wrap_as_chat:
        value = [{"role": "user", "content": value}]
    if isinstance(value, str):
        ids = list(tokenizer(value)["input_ids"])
        # some tokenizers close every text with their end token; a prompt is to be continued
        while ids and ids[-1] == tokenizer.eos_token_id and not value.endswith(tokenizer.eos_token):
            ids.pop()
        if not ids:
            raise DataError(f"row {number} has an empty prompt", f"column {config.prompt_column!r} holds {value!r}")
        return Prompt(number, ids, value, None, columns)
    if not isinstance(value, list) or not value or not all(isinstance(m, dict) and "role" in m for m in value):
        raise DataError(
            f"row {number} has no usable prompt",
            f"column {config.prompt_column!r} holds {value!r:.80}; expected a text or a list of messages {{role, content}}",
        )
    messages = [{k: v for k, v in m.items() if v is not None} for m in value]
    if template is None and not tokenizer.chat_template:
        raise ConfigError(
            "the prompts are chat messages and the policy's tokenizer has no chat template",
            f"row {number} of {config.path}",
            "data.chat_template=FILE.jinja, or a chat model: model=hf:PATH",
        )
    ids = tokenizer.apply_chat_template(messages, chat_template=template, add_generation_prompt=True, tokenize=True, return_dict=False)
    return Prompt(number, list(ids), decode(tokenizer, ids), messages, columns)


def _too_long(config: Config, tokenizer: Any, prompt: Prompt, limit: int) -> Prompt | None:
    if config.data.overlong is Overlong.drop:
        return None
    if config.data.overlong is Overlong.cut:
        ids = prompt.ids[-limit:]
        return Prompt(prompt.row, ids, decode(tokenizer, ids), prompt.messages, prompt.columns, prompt.text)
    raise DataError(
        f"the prompt of row {prompt.row} has {len(prompt.ids)} tokens, the limit is {limit}",
        "the limit is data.max_prompt_tokens, or what the model's context leaves beside "
        f"rollout.max_new_tokens={config.rollout.max_new_tokens}; the prompt begins: {prompt.text[:60]!r}",
        "data.overlong=drop leaves such rows out, data.overlong=cut removes their front",
    )


def decode(tokenizer: Any, ids: list[int], keep_special_tokens: bool = False) -> str:
    """Token ids -> text exactly as encoded, without the tokenizer's cosmetic clean-up."""
    text: str = tokenizer.decode(ids, skip_special_tokens=not keep_special_tokens, clean_up_tokenization_spaces=False)
    return text
