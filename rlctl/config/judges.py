"""One judge as a typed config, and everything that can be wrong with it. No torch; the judges themselves are in `rlctl.judges`.

One dataclass serves all kinds, so that a typed list can hold them; a key that a judge's kind does not use is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Dict, List, Optional

from rlctl.config.fields import Dtype, bounded
from rlctl.errors import nearest


class JudgeKind(StrEnum):
    """The judges there are."""

    fn = "fn"
    length = "length"
    regex = "regex"
    keywords = "keywords"
    json = "json"
    ends_with = "ends_with"
    no_repeat = "no_repeat"
    characters = "characters"
    answer = "answer"
    code = "code"
    llm = "llm"


class Unit(StrEnum):
    """What a length counts."""

    words = "words"
    characters = "characters"


class Extract(StrEnum):
    """Where in a response its answer stands."""

    last_number = "last_number"
    delimited = "delimited"
    whole = "whole"


class Compare(StrEnum):
    """When two answers are the same."""

    number = "number"
    text = "text"
    math = "math"


@dataclass(frozen=True)
class JudgeConfig:
    """One judge: pass or fail for each response."""

    kind: JudgeKind = "???"  # type: ignore[assignment]  # OmegaConf's word for a key that must be given
    """fn, length, regex, keywords, json, ends_with, no_repeat, characters, answer, code or llm."""
    name: Optional[str] = None
    """Its name in metrics and samples. null: the function's name, or the kind."""
    path: Optional[str] = None
    """fn: dotted path of the function. llm: a folder or hub id of a decoder-only language model; `builtin` is rlctl's tiny one."""
    args: Dict[str, Any] = field(default_factory=dict)
    """fn: keyword arguments for the function."""
    min: Optional[int] = bounded(None, ge=0)
    """length: fewest words or characters of the response."""
    max: Optional[int] = bounded(None, ge=0)
    """length: most words or characters of the response."""
    unit: Unit = Unit.words
    """length: words (what blanks separate) or characters."""
    pattern: Optional[str] = None
    """regex: a Python regular expression, looked for anywhere in the response; (?s), (?m), ^ and $ as in Python's `re`."""
    must_match: bool = True
    """regex: true passes where the pattern is found, false where it is not."""
    any: List[str] = field(default_factory=list)
    """keywords: at least one of these must occur."""
    all: List[str] = field(default_factory=list)
    """keywords: every one of these must occur."""
    none: List[str] = field(default_factory=list)
    """keywords: none of these may occur."""
    whole_words: bool = True
    """keywords: only where neither end lies inside a word; false finds `art` in `start` too."""
    ignore_case: bool = False
    """regex, keywords, ends_with, no_repeat, answer with compare: text: upper and lower case are the same."""
    fenced: bool = False
    """json: take the last fenced block of the response; false takes the whole response."""
    required_keys: List[str] = field(default_factory=list)
    """json: the value must be an object with all of these keys."""
    endings: List[str] = field(default_factory=list)
    """ends_with: the response, blanks at its end left out, ends with one of these."""
    n: Optional[int] = bounded(None, ge=1)
    """no_repeat: length of the sequences that are counted, in words without the punctuation around them."""
    max_count: int = bounded(1, ge=1)
    """no_repeat: how often the same n words may occur."""
    allowed: List[str] = field(default_factory=list)
    """characters: ascii, Unicode scripts (Latin, Han, ...) or blocks (InArrows), or character classes such as '[a-z0-9 ]'."""
    column: Optional[str] = None
    """answer: column with the right answer. code: column with Python tests, a text or a list of texts."""
    extract: Extract = Extract.last_number
    """answer: what of the response is its answer: the last number in it, what stands at the last delimiter, or all of it."""
    delimiter: str = "####"
    r"""answer with extract: delimited: the answer follows on the same line; \boxed{} means what its braces hold."""
    compare: Compare = Compare.number
    """answer: number compares exact values (0.5 = 1/2 = 50/100); text the characters; math uses the library math-verify."""
    entry_point_column: Optional[str] = None
    """code: column with the name of the function that the tests' check(candidate) is called with, as in HumanEval."""
    with_prompt: bool = False
    """code: put the prompt in front of the response's code, for models that continue a program."""
    timeout: float = bounded(5.0, gt=0, le=600)
    """code: seconds that one response may take."""
    memory_mb: int = bounded(1024, ge=64)
    """code: address space that one response may take, Python itself included."""
    template: Optional[str] = None
    """llm: the question put to the judge, with {prompt} and {response} in it."""
    positive: str = "Yes"
    """llm: the token whose probability must be the higher one; exactly one token, a blank in front is part of it."""
    negative: str = "No"
    """llm: the other token."""
    batch_size: int = bounded(16, ge=1)
    """llm: questions put at once on a device."""
    max_length: Optional[int] = bounded(None, ge=1)
    """llm: longest question in tokens; a longer one loses the front of its response. null: what the model takes."""
    dtype: Dtype = Dtype.auto
    """llm: type of the judge's weights. auto: float32."""
    revision: Optional[str] = None
    """llm: branch, tag or commit of a hub id."""
    trust_remote_code: bool = False
    """llm: run Python code that a model repository brings. Off unless you trust it."""


_LLM = {"path", "template", "positive", "negative", "batch_size", "max_length", "dtype", "revision", "trust_remote_code"}
USES: dict[JudgeKind, set[str]] = {
    JudgeKind.fn: {"path", "args"},
    JudgeKind.length: {"min", "max", "unit"},
    JudgeKind.regex: {"pattern", "must_match", "ignore_case"},
    JudgeKind.keywords: {"any", "all", "none", "whole_words", "ignore_case"},
    JudgeKind.json: {"fenced", "required_keys"},
    JudgeKind.ends_with: {"endings", "ignore_case"},
    JudgeKind.no_repeat: {"n", "max_count", "ignore_case"},
    JudgeKind.characters: {"allowed"},
    JudgeKind.answer: {"column", "extract", "delimiter", "compare", "ignore_case"},
    JudgeKind.code: {"column", "entry_point_column", "with_prompt", "timeout", "memory_mb"},
    JudgeKind.llm: _LLM,
}
_NEEDS = {
    JudgeKind.fn: ("path",),
    JudgeKind.regex: ("pattern",),
    JudgeKind.ends_with: ("endings",),
    JudgeKind.no_repeat: ("n",),
    JudgeKind.characters: ("allowed",),
    JudgeKind.answer: ("column",),
    JudgeKind.code: ("column",),
    JudgeKind.llm: ("path", "template"),
}
_BOUNDS = {
    "ge": (lambda v, b: v >= b, "at least"),
    "gt": (lambda v, b: v > b, "greater than"),
    "le": (lambda v, b: v <= b, "at most"),
}


def judge_name(config: JudgeConfig) -> str:
    """A judge's name in metrics: its own, the last part of a function's path, or its kind.

    >>> judge_name(JudgeConfig(kind=JudgeKind.fn, path="mypkg.is_polite"))
    'is_polite'
    """
    if config.name is None and config.kind == JudgeKind.fn:
        return (config.path or "fn").rpartition(".")[2]
    return config.name or str(config.kind)


def problems(config: JudgeConfig, where: str) -> list[str]:
    """Everything wrong with one judge that can be seen without loading anything, one line each; empty if sound.

    where: how the user writes the judge, such as `judges[0]`.
    """
    if config.kind not in USES:
        return [f"{where}.kind is missing; one of: {', '.join(JudgeKind)}"]
    return [*_keys(config, where), *_values(config, where), *_together(config, where)]


def all_problems(configs: Sequence[JudgeConfig], where: str = "judges") -> list[str]:
    """Everything wrong with a list of judges: each by itself, then two of one name."""
    found = [line for i, config in enumerate(configs) for line in problems(config, f"{where}[{i}]")]
    names = [judge_name(c) for c in configs if c.kind in USES]
    twice = sorted({n for n in names if names.count(n) > 1})
    return found + [f"{where}: two judges are called {n!r}; give each a name of its own" for n in twice]


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default


def _keys(config: JudgeConfig, where: str) -> Iterator[str]:
    uses = USES[config.kind]
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if f.name not in {"kind", "name", *uses} and value != _default(f):
            takes = ", ".join(k.name for k in dataclasses.fields(config) if k.name in uses)
            yield f"{where}.{f.name} has no meaning for kind: {config.kind}, which takes {takes}"
    for name in _NEEDS.get(config.kind, ()):
        if getattr(config, name) in (None, []):
            yield f"{where}: kind: {config.kind} needs {name}"


def _values(config: JudgeConfig, where: str) -> Iterator[str]:
    for f in dataclasses.fields(config):
        value, name = getattr(config, f.name), f"{where}.{f.name}"
        for key, bound in f.metadata.items():
            holds, words = _BOUNDS[key]
            # `not holds` rather than the opposite comparison: NaN fails every bound
            if value is not None and not holds(value, bound):
                yield f"{name}={value}: must be {words} {bound}"
        if type(value) is str and value == "":
            yield f"{name} is empty"
        if isinstance(value, list) and "" in value:
            yield f"{name} holds an empty text"
    if config.name and not re.fullmatch(r"[\w.-]+", config.name):
        yield f"{where}.name={config.name}: only letters, digits and . _ - may be in a judge's name"


def _together(config: JudgeConfig, where: str) -> Iterator[str]:
    if config.kind is JudgeKind.fn and config.path and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", config.path):
        yield f"{where}.path={config.path}: expected the dotted path of a function, such as mypkg.is_polite"
    if config.kind is JudgeKind.length:
        if config.min is None and config.max is None:
            yield f"{where}: kind: length needs min, max or both"
        elif config.min is not None and config.max is not None and config.min > config.max:
            yield f"{where}: min={config.min} is more than max={config.max}: no response could pass"
    if config.kind is JudgeKind.keywords:
        yield from _keywords(config, where)
    if config.kind is JudgeKind.regex and config.pattern and (wrong := _pattern_error(config.pattern)):
        yield f"{where}.pattern={config.pattern}: not a regular expression: {wrong}"
    if config.kind is JudgeKind.characters:
        for one in config.allowed:
            if one and (wrong := _class_error(one)):
                yield f"{where}.allowed: {one!r}: {wrong}"
    if config.kind is JudgeKind.answer:
        if config.extract is not Extract.delimited and config.delimiter != "####":
            yield f"{where}.delimiter has no meaning without extract: delimited"
        if config.ignore_case and config.compare is not Compare.text:
            yield f"{where}.ignore_case has no meaning without compare: text"
    if config.kind is JudgeKind.llm:
        if config.template and "{response}" not in config.template:
            yield f"{where}.template has no {{response}} in it: the judge would not see what it judges"
        if config.positive == config.negative:
            yield f"{where}: positive and negative are both {config.positive!r}"


def _keywords(config: JudgeConfig, where: str) -> Iterator[str]:
    if not (config.any or config.all or config.none):
        yield f"{where}: kind: keywords needs any, all or none"
    for word in sorted({w for w in config.none if w in config.all}):
        yield f"{where}: {word!r} is in all and in none: no response could pass"


def _pattern_error(pattern: str) -> str | None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None


def _class_error(one: str) -> str | None:
    if one == "ascii":
        return None
    if one.startswith("["):
        return None if one.endswith("]") and not _pattern_error(one) else "not a character class such as '[a-z0-9 ]'"
    import regex  # comes with transformers; Python's `re` knows no scripts

    try:
        regex.compile(rf"\p{{{one}}}")
    except regex.error:
        common = ("Latin", "Greek", "Cyrillic", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", "Hebrew", "Devanagari", "Thai", "ascii")
        near = nearest(one, common)
        return f"no Unicode script or block of that name; did you mean {near}?" if near else "no Unicode script or block of that name"
    return None
