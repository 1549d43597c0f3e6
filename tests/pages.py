"""What a page of the documentation holds that can be run: files to write, commands to type, overrides to set."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README, EXTENDING, KEYS = ROOT / "README.md", ROOT / "conf" / "EXTENDING.md", ROOT / "conf" / "README.md"
PAGES = (README, EXTENDING, KEYS)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_COMMAND = re.compile(r"(rlctl|python|pip|[A-Z_]+=\S+ (python|rlctl)) ")
_NAMES = ("rlctl", "python", "pip", "rlctl sft", "rlctl rm")
"""Spoken of, not typed like this."""
_OVERRIDE = re.compile(r"[a-z_]+(\.\w+)*=[^=]\S*")


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """(the paragraph before it, its text) of every fenced block of a language."""
    text = page.read_text()
    return [(text[: m.start()].rstrip().rpartition("\n\n")[2], m[2]) for m in _FENCE.finditer(text) if m[1] == language]


def files(page: Path) -> dict[str, str]:
    """File name -> text: a fenced block is the file that the paragraph before it names last."""
    found = {}
    for language in ("python", "yaml"):
        for before, text in blocks(page, language):
            if names := re.findall(r"`([\w/]+\.(?:py|yaml))`", before):
                found[names[-1]] = text
    return found


def commands(page: Path) -> list[str]:
    """Every command line: indented by four spaces, or in backticks inside a sentence; those joined by && apart."""
    text = _FENCE.sub("", page.read_text())
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    lines += [code for code in _code(text) if _COMMAND.match(f"{code} ") and code not in _NAMES]
    found = [part.strip() for line in lines for part in line.split("&&")]
    # what stands behind two blanks explains the command
    return list(dict.fromkeys(re.split(r"\s+#|  ", c)[0] for c in found))


def overrides(page: Path) -> list[str]:
    """Every override in backticks that is no pattern: `algo.kl_coef=0.1`; of `a=b|c` both."""
    found = []
    for code in _code(_FENCE.sub("", page.read_text())):
        if _OVERRIDE.fullmatch(code) and not re.search(r"[A-Z]{2}|=.*\b[A-Z]\b|group\.|:$", code):
            key, _, values = code.partition("=")
            found += [f"{key}={value}" for value in values.split("\\|" if "\\|" in values else "|")]
    return list(dict.fromkeys(found))


def _code(text: str) -> list[str]:
    """What stands in backticks; a line may end inside."""
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    return [" ".join(c.split()) for c in re.findall(r"`([^`]+)`", prose)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    heads = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads}


def links(page: Path) -> list[str]:
    """Every link that stays inside the project."""
    return [to for to in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in to]
