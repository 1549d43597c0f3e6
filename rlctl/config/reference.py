"""conf/README.md: every config group, option, key, metric and exit status, from the code that has them. No torch.

`python -m rlctl.config.reference` writes it anew; a test checks that it is current. Metrics are read from the source of
rlctl/metrics.py, exit statuses from the error classes.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlctl import errors
from rlctl.config import describe
from rlctl.config.paths import KINDS, conf_dir
from rlctl.config.roots import RM, SFT

_HEAD = """\
# Every key, option and metric

Made by `python -m rlctl.config.reference` from the code; do not edit. `rlctl train --help` shows the same keys in the terminal, and
`rlctl train --cfg job` what a command line composes to. Rewards and algorithms of your own: [EXTENDING.md](EXTENDING.md).

On the command line `GROUP=OPTION` chooses an option and `group.key=value` sets a key. An option sets defaults for the keys of its group; a
key on the command line wins over a recipe's `config.yaml`, which wins over the option. In a value, `null` is "none", a list is
`[a,b]`; a value with `= # < > & ,` or blanks needs quotes inside the shell's.

"""


def text() -> str:
    """The whole page."""
    found = describe.groups()
    return "".join([_HEAD, _contents(found), *_sections(found), *_stages(), *_metrics(), *_exits()])


def write() -> Path:
    """Write the page; returns where."""
    path = conf_dir() / "README.md"
    path.write_text(text(), encoding="utf-8")
    return path


def _contents(found: list[tuple[str, str, list[describe.Key]]]) -> str:
    groups = [name for name, _, _ in found if "=" not in name]
    links = [f"[`{_plain(name)}`](#{_plain(name)})" for name in groups]
    last = [f"[`rlctl {root.command}`](#rlctl-{root.command})" for root in (SFT, RM)]
    last += ["[metrics](#metrics)", "[exit statuses](#exit-statuses)"]
    return " · ".join(["[`seed`](#seed)", *links, *last]) + "\n\n"


def _plain(name: str) -> str:
    return name.removesuffix("[]")


def _sections(found: list[tuple[str, str, list[describe.Key]]]) -> Iterator[str]:
    yield "## seed\n\n" + _table(["key", "default", "takes", "meaning"], [_row(describe.seed())])
    for name, title, keys in found:
        if "=" in name:
            yield f"### {name}\n\n{title}\n\n"
        else:
            yield f"## {_plain(name)}\n\n{title}\n\n" + _options(name)
        yield _table(["key", "default", "takes", "meaning"], [_row(k) for k in keys]) if keys else "No keys of its own.\n\n"


def _stages() -> Iterator[str]:
    """The keys of the commands before training, each in one table: their groups are few."""
    for root in (SFT, RM):
        keys = [key for _, _, own in describe.groups(root.schema) for key in own]
        yield f"## rlctl {root.command}\n\n{describe.title(root.schema)} `rlctl {root.command} --help` shows the same.\n\n"
        yield _table(["key", "default", "takes", "meaning"], [_row(k) for k in [describe.seed(), *keys]])


def _row(key: describe.Key) -> list[str]:
    return [f"`{key.name}`", f"`{key.default}`", key.takes, key.doc]


def _options(group: str) -> str:
    """The option files of a group with what they say of themselves and set, and its shorthand."""
    lines = [[f"`{p.stem}`", _comment(p), _set(p, group)] for p in sorted((conf_dir() / group).glob("*.yaml"))]
    for (of, kind), (option, value) in KINDS.items():
        if of == group:
            lines.append([f"`{kind}:{value}`", f"The same as `{option}`, with a path of yours.", f"`{group}.path`"])
    return _table([f"`{group}=`", "", "sets"], lines) if lines else ""


def _comment(path: Path) -> str:
    """The comment at the head of an option file."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ") and not line.startswith("# @")]
    return " ".join(line[2:] for line in lines)


def _set(path: Path, group: str) -> str:
    """The keys that an option file sets by itself."""
    prefix = "" if path.read_text(encoding="utf-8").startswith("# @package _global_") else f"{group}."
    found = _leaves({k: v for k, v in dict(OmegaConf.to_container(OmegaConf.load(path)) or {}).items() if k != "defaults"}, prefix)  # type: ignore[call-overload]
    return ", ".join(f"`{name}={value}`" for name, value in found)


def _leaves(node: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", str(value).lower() if isinstance(value, bool) else str(value)


def _metrics() -> Iterator[str]:
    yield "## metrics\n\nOne line a step in `metrics.jsonl`, the same in TensorBoard. Sums run over real tokens, or responses, of the\n"
    yield "whole step on all devices; `kl_t` is the configured estimator of log pi_old - log pi_ref at the sampling temperature.\n\n"
    yield _table(["metric", "is"], [[f"`{name}`", formula] for name, formula in metrics().items()])


def metrics() -> dict[str, str]:
    """The table of rlctl/metrics.py, read from its source: importing it would need torch."""
    spec = find_spec("rlctl.metrics")
    assert spec is not None and spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "METRICS" and node.value is not None:
            return dict(ast.literal_eval(node.value))
    raise LookupError("rlctl/metrics.py has no METRICS")


def _exits() -> Iterator[str]:
    yield "## exit statuses\n\nOf every command; of a sweep, its members' highest. `--traceback` shows where an error came from.\n\n"
    meant = {0: ["Done. `rlctl score`: training could learn from the reward."], 1: ["Unexpected, with its traceback."]}
    for _, cls in inspect.getmembers(errors, inspect.isclass):
        if issubclass(cls, errors.RlctlError) and cls is not errors.RlctlError:
            meant.setdefault(cls.exit_status, []).append((inspect.getdoc(cls) or "").splitlines()[0])
    meant[130] = ["Interrupted (Ctrl-C, SIGTERM)."]
    yield _table(["status", "means"], [[str(status), " ".join(sorted(meant[status]))] for status in sorted(meant)])


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(c) for c in line)} |\n" for line in lines) + "\n"


def _cell(content: str) -> str:
    """Markdown reads | as the end of a cell, even in code; a pattern of < > outside code as HTML."""
    content = content.replace("|", "\\|")
    return content if content.startswith("`") else re.sub(r"<(\w+)>", r"\\<\1\\>", content)


if __name__ == "__main__":
    sys.stdout.write(f"{write()}\n")
