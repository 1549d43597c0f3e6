"""Judges that are pure functions of the response's text. They know no model, no data column and no randomness."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import regex

from rlctl.config.judges import JudgeConfig, JudgeKind, Unit, judge_name
from rlctl.judges.base import Judge
from rlctl.rollout import Samples

Rule = Callable[[str], bool]
# quotes, brackets and emphasis on either side, punctuation at the end; a sign in front (-3) and 50%, C#, @ keep what they mean
_AROUND = regex.compile(r"""^[\p{Ps}\p{Pi}\p{Pf}"'*_¿¡]+|[[\p{P}]--[%#&@/]]+$""", regex.VERSION1)


class RuleJudge(Judge):
    """One rule, asked of every response."""

    def __init__(self, config: JudgeConfig):
        self.name = judge_name(config)
        self.rule = rule(config)

    def judge(self, samples: Samples) -> list[bool | None]:
        """The rule's answers; a rule can always judge."""
        return [self.rule(response) for response in samples.responses]


def rule(config: JudgeConfig) -> Rule:
    """The rule that a sound config describes."""
    return RULES[config.kind](config)


def length(config: JudgeConfig) -> Rule:
    """At least `min` and at most `max` words (what blanks separate) or characters (Unicode code points, blanks too).

    >>> two_to_four = length(JudgeConfig(kind=JudgeKind.length, min=2, max=4))
    >>> [two_to_four(t) for t in ("one", "one  two", "it's one-two, three four", "1 2 3 4 5", "")]
    [False, True, True, False, False]
    """
    low, high = config.min or 0, config.max if config.max is not None else float("inf")
    if config.unit is Unit.characters:
        return lambda text: low <= len(text) <= high
    return lambda text: low <= len(text.split()) <= high


def pattern(config: JudgeConfig) -> Rule:
    r"""The pattern is found somewhere in the response (`re.search`), or with must_match: false nowhere.

    >>> [pattern(JudgeConfig(kind=JudgeKind.regex, pattern=r"^\d+$", must_match=m))("12") for m in (True, False)]
    [True, False]
    """
    compiled = re.compile(config.pattern or "", re.IGNORECASE if config.ignore_case else 0)
    return lambda text: (compiled.search(text) is not None) is config.must_match


def keywords(config: JudgeConfig) -> Rule:
    """At least one of `any`, every one of `all` and none of `none` occurs; a list that is empty asks nothing.

    A whole word is one that no letter, digit or underscore touches. Blanks inside a keyword match any blanks.

    >>> polite = keywords(JudgeConfig(kind=JudgeKind.keywords, any=["please", "thank you"], none=["now"]))
    >>> [polite(t) for t in ("please sit", "displeased", "thank  you!", "please, now", "please, nowhere", "Please")]
    [True, False, True, False, True, False]
    """

    def finder(word: str) -> re.Pattern[str]:
        inner = r"\s+".join(map(re.escape, word.split())) or re.escape(word)
        return re.compile(rf"(?<!\w){inner}(?!\w)" if config.whole_words else inner, re.IGNORECASE if config.ignore_case else 0)

    some, every, no = ([finder(w) for w in words] for words in (config.any, config.all, config.none))

    def holds(text: str) -> bool:
        found = not some or any(f.search(text) for f in some)
        return found and all(f.search(text) for f in every) and not any(f.search(text) for f in no)

    return holds


def valid_json(config: JudgeConfig) -> Rule:
    """The whole response, or its last fenced block (one marked json before others), is one JSON value, with blanks around it allowed.

    NaN and Infinity, which Python reads, are not JSON. With required_keys the value is an object that has them all.

    >>> has_a = valid_json(JudgeConfig(kind=JudgeKind.json, required_keys=["a"]))
    >>> [has_a(t) for t in ('{"a": 1, "b": 2}', ' {"a": null} ', '{"b": 2}', '["a"]', '{"a": NaN}', '{"a": 1} ok', "")]
    [True, True, False, False, False, False, False]
    """

    def holds(text: str) -> bool:
        found = last_block(text, ("json",)) if config.fenced else text
        if found is None:
            return False
        try:
            value = json.loads(found, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return False
        return not config.required_keys or (isinstance(value, dict) and all(k in value for k in config.required_keys))

    return holds


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def ends_with(config: JudgeConfig) -> Rule:
    """The response ends with one of `endings`; blanks and line ends after it do not count.

    >>> closed = ends_with(JudgeConfig(kind=JudgeKind.ends_with, endings=[".", "!"]))
    >>> [closed(t) for t in ("Done.", "Done! ", "Done", "")]
    [True, True, False, False]
    """
    fold = str.casefold if config.ignore_case else str
    endings = tuple(fold(e.rstrip()) for e in config.endings)
    return lambda text: fold(text.rstrip()).endswith(endings)


def no_repeat(config: JudgeConfig) -> Rule:
    """No sequence of n words occurs more than max_count times, overlaps counted.

    Words are what blanks separate, without the quotes, brackets and punctuation around them: "very, very." is the same word twice.
    What has nothing else is a word as it stands, so that "! ! !" repeats.

    >>> fresh = no_repeat(JudgeConfig(kind=JudgeKind.no_repeat, n=2, max_count=1))
    >>> [fresh(t) for t in ("a b c a c b", "a b c a b", "a, b. (a) b!", "a a a", "! ! !", "a", "")]
    [True, False, False, False, False, True, True]
    """
    n = config.n or 1

    def holds(text: str) -> bool:
        words = [_AROUND.sub("", w) or w for w in (text.casefold() if config.ignore_case else text).split()]
        counts = Counter(zip(*(words[i:] for i in range(n)), strict=False))
        return all(c <= config.max_count for c in counts.values())

    return holds


def characters(config: JudgeConfig) -> Rule:
    """Every character is in one of the sets of `allowed`.

    ascii: U+0000 to U+007F. A script (Latin, Han, ...): its letters, and what all scripts share: digits, punctuation, blanks,
    symbols, combining marks. A block (InArrows): its code points alone. A class such as '[a-z ]': as in Python's `re`.

    >>> latin = characters(JudgeConfig(kind=JudgeKind.characters, allowed=["Latin"]))
    >>> [latin(t) for t in ("Déjà vu, 100 %!", "Ωmega", "漢字", "")]
    [True, False, False, True]
    >>> characters(JudgeConfig(kind=JudgeKind.characters, allowed=["ascii", "[é]"]))("café!")
    True
    """
    sets = [s for s in config.allowed if not s.startswith("[")]
    names = [r"\x00-\x7F" if s == "ascii" else rf"\p{{{s}}}" for s in sets]
    if any(_is_script(s) for s in sets):
        names.append(r"\p{Script=Common}\p{Script=Inherited}")
    known = [regex.compile(f"[{''.join(names)}]*")] if names else []
    classes = [re.compile(s) for s in config.allowed if s.startswith("[")]

    def holds(text: str) -> bool:
        return all(any(k.fullmatch(ch) for k in known) or any(c.fullmatch(ch) for c in classes) for ch in set(text))

    return holds


def _is_script(name: str) -> bool:
    if name == "ascii":
        return False
    try:
        regex.compile(rf"\p{{Script={name}}}")
    except regex.error:
        return False
    return True


@dataclass(frozen=True)
class Block:
    """A fenced block of a response."""

    language: str
    """The first word behind the opening fence, in lower case; empty without one."""
    text: str


_FENCE = re.compile(r"([ \t]*)(`{3,})([^`]*)")


def fenced_blocks(text: str) -> Iterator[Block]:
    """The blocks between lines of three or more backticks. One that is never closed reaches to the end of the response.

    >>> list(fenced_blocks("Here:\\n```python\\nx = 1\\n```\\nand\\n  ```\\n  y\\n  ```"))
    [Block(language='python', text='x = 1\\n'), Block(language='', text='y\\n')]
    """
    opened: tuple[str, str, str] | None = None
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        fence = _FENCE.fullmatch(line.rstrip())
        if opened is None:
            if fence:
                opened, lines = (fence[1], fence[2], fence[3]), []
        elif fence and not fence[3] and len(fence[2]) >= len(opened[1]):
            yield Block(_language(opened[2]), "".join(lines))
            opened = None
        else:  # a block that stands indented is read without that indentation
            lines.append(line.removeprefix(opened[0]))
    if opened is not None:
        yield Block(_language(opened[2]), "".join(lines))


def _language(info: str) -> str:
    return (info.split() or [""])[0].lower()


def last_block(text: str, languages: tuple[str, ...]) -> str | None:
    """The last block marked as one of these languages, else the last block, else None."""
    blocks = list(fenced_blocks(text))
    marked = [b for b in blocks if b.language in languages]
    return (marked or blocks)[-1].text if blocks else None


RULES: dict[JudgeKind, Callable[[JudgeConfig], Rule]] = {
    JudgeKind.length: length,
    JudgeKind.regex: pattern,
    JudgeKind.keywords: keywords,
    JudgeKind.json: valid_json,
    JudgeKind.ends_with: ends_with,
    JudgeKind.no_repeat: no_repeat,
    JudgeKind.characters: characters,
}
