"""From judges' configs to judges. Cheap mistakes are found by `open_judges`, before any weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlctl.config.judges import JudgeConfig, JudgeKind, all_problems
from rlctl.errors import ConfigError
from rlctl.judges.answer import AnswerJudge
from rlctl.judges.base import Judge
from rlctl.judges.code import CodeJudge
from rlctl.judges.function import FunctionJudge
from rlctl.judges.llm import LlmJudge, check_tokens, load_judge, open_judge
from rlctl.judges.rules import RULES, RuleJudge
from rlctl.models import Source


@dataclass(frozen=True)
class Opened:
    """A judge that is ready, or the source of the language model that it still needs."""

    config: JudgeConfig
    judge: Judge | None
    source: Source | None


def open_judges(configs: Sequence[JudgeConfig]) -> list[Opened]:
    """Import every function, open every model's config and tokenizer, find its tokens.

    Raises:
        ConfigError: the configs themselves are wrong.
        RewardError, ModelError: a function, library or model is not what it should be.
    """
    if found := all_problems(configs):
        raise ConfigError("the judges cannot be as asked", "\n".join(found))
    opened = []
    for config in configs:
        source = None
        if config.kind is JudgeKind.llm:
            source = open_judge(config)
            check_tokens(config, source)
        opened.append(Opened(config, _ready(config), source))
    return opened


def _ready(config: JudgeConfig) -> Judge | None:
    if config.kind in RULES:
        return RuleJudge(config)
    kinds: dict[JudgeKind, type[FunctionJudge] | type[AnswerJudge] | type[CodeJudge]] = {
        JudgeKind.fn: FunctionJudge,
        JudgeKind.answer: AnswerJudge,
        JudgeKind.code: CodeJudge,
    }
    return kinds[config.kind](config) if config.kind in kinds else None


def load(opened: Sequence[Opened], device: torch.device, read: dict[object, Any] | None = None) -> list[Judge]:
    """The judges in order, with their weights; a model that several judges ask, or that `read` holds, is read once."""
    read = {} if read is None else read
    judges: list[Judge] = []
    for one in opened:
        if one.judge is not None:
            judges.append(one.judge)
            continue
        assert one.source is not None
        key = ("judge", one.source.path, one.config.revision, one.config.dtype)
        if key not in read:
            read[key] = load_judge(one.config, one.source, device)
        judges.append(LlmJudge(one.config, one.source, read[key], device))
    return judges


def build_judges(configs: Sequence[JudgeConfig], device: torch.device) -> list[Judge]:
    """Open and load in one go."""
    return load(open_judges(configs), device)
