"""`rlctl runs [DIR ...] [--sort METRIC] [--json] [--all]`: what the run folders hold, listed, or a sweep's members ranked."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from rlctl import runs
from rlctl.console.runs import RunRow, print_leaderboard, print_runs
from rlctl.errors import ConfigError, nearest
from rlctl.runs import SCORE, Run, Sweep

SHOWN = 20
_SHOWN_ANYWAY = ("best", SCORE, "objective/kl")
HELP = """\
rlctl runs [DIR ...] [--sort METRIC] [--json] [--all]

  DIR             a run, a sweep, or a folder that holds some; without it, ./outputs and ./multirun
  --sort METRIC   by a metric's last value, highest first (-METRIC: lowest first), or by `best`, the best score;
                  without it a sweep is ranked by its last scores, and other runs are listed newest first
  --json          every run as an object, for scripts
  --all           all runs, members of sweeps too, instead of the newest 20 and a line for a sweep
"""


def run(argv: list[str], show_traceback: bool) -> int:
    """0; what a run ended with is no matter of this command."""
    if any(a in ("-h", "--help") for a in argv):
        sys.stdout.write(HELP)
        return 0
    folders, sort, flags = _arguments(argv)
    found = _found(folders)
    everything = [r for f in found for r in (f.members if isinstance(f, Sweep) else [f])]
    if sort is not None:
        _check_metric(sort, everything)
    if "--json" in flags:
        _print_json(found, sort)
        return 0
    whole = [f for f in found if isinstance(f, Sweep) and any(f.path == d for d in folders)] if "--all" not in flags else []
    for i, sweep in enumerate(whole):
        if len(whole) > 1:
            sys.stdout.write(f"{'' if i == 0 else chr(10)}{sweep.path}\n")
        _print_sweep(sweep, sort)
    rest = everything if "--all" in flags else [f for f in found if f not in whole]
    if rest:
        sys.stdout.write("\n" if whole else "")
        _print_list(rest, sort, "--all" in flags)
    return 0


def _arguments(argv: list[str]) -> tuple[list[Path], str | None, set[str]]:
    folders, flags, sort, words = [], set(), None, iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--sort":
            sort = value if equals else next(words, None)
            if not sort:
                raise ConfigError("--sort needs a metric", hint="rlctl runs --sort objective/kl")
        elif word in ("--json", "--all"):
            flags.add(word)
        elif word.startswith("-"):
            near = nearest(word, ("--sort", "--json", "--all"))
            raise ConfigError(f"unknown option {word}", hint=f"did you mean {near}?" if near else "rlctl runs --help")
        else:
            folders.append(Path(word))
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}", hint="rlctl runs, without a folder, looks into ./outputs and ./multirun")
    if not folders and not (folders := [p for p in (Path("outputs"), Path("multirun")) if p.is_dir()]):
        why = "neither ./outputs nor ./multirun is a folder"
        raise ConfigError("there are no runs here", why, "rlctl train makes one; rlctl runs DIR looks elsewhere")
    return folders, sort, flags


def _found(folders: list[Path]) -> list[Run | Sweep]:
    found = {f.path: f for folder in folders for f in runs.find(folder)}
    if not found:
        where = " and ".join(str(f) for f in folders)
        raise ConfigError(f"there are no runs in {where}", "a run folder holds config.yaml, metrics.jsonl and summary.json")
    return sorted(found.values(), key=lambda f: -f.started)


def _check_metric(sort: str, found: list[Run]) -> None:
    name = sort.removeprefix("-")
    known = sorted({m for r in found for m in r.last} - {"step"})
    if name == "best" or name in known or not known:
        return
    near = nearest(name, known) or nearest(name, [k.rpartition("/")[2] for k in known])
    near = next((k for k in known if near in (k, k.rpartition("/")[2])), None) if near else None
    hint = f"did you mean {near}?" if near else "--sort best, or one of " + ", ".join(known)
    raise ConfigError(f"no run here has a metric {name}", hint=hint)


def row_of(run: Run, number: int | None, overrides: list[str], remark: str = "", sort: str | None = None) -> RunRow:
    """A run as a table shows it."""
    return RunRow(
        number=number,
        overrides=overrides,
        status=run.status,
        first_score=run.first.get(SCORE),
        last_score=run.last.get(SCORE),
        best_score=run.best_score,
        last_kl=run.last.get("objective/kl"),
        seconds=run.seconds,
        error=run.reason if run.status in ("failed", "broken") else None,
        run_dir=str(run.path),
        steps_done=run.steps_done,
        steps=run.steps,
        date=time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)),
        remark=remark,
        extra=runs.value_of(run, sort) if sort is not None and _extra(sort) else None,
        command=runs.pasteable(run),
    )


def _extra(sort: str | None) -> str:
    """The heading of the column that a table needs for what it is sorted by."""
    name = (sort or SCORE).removeprefix("-")
    return "" if name in _SHOWN_ANYWAY else name


def _print_sweep(sweep: Sweep, sort: str | None) -> None:
    rows = [row_of(m, m.number, m.overrides, sort=sort) for m in runs.ranked(sweep.members, sort or SCORE)]
    rows += [RunRow(n, sweep.planned[n], "not run", run_dir=str(sweep.path / str(n))) for n in sweep.missing]
    print_leaderboard(rows, _extra(sort))


def _print_list(found: list[Any], sort: str | None, everything: bool) -> None:
    if sort is not None:
        best = {id(f): _best(f, sort) for f in found}
        singles = runs.ranked([r for r in best.values() if r is not None], sort)
        order = {r.path: i for i, r in enumerate(singles)}
        found = sorted(found, key=lambda f: order[b.path] if (b := best[id(f)]) is not None else len(order))
    shown = found if everything else found[:SHOWN]
    print_runs([_line(f, sort) for f in shown], _extra(sort), len(found) - len(shown))


def _best(found: Run | Sweep, sort: str | None) -> Run | None:
    if isinstance(found, Run):
        return found
    return next(iter(runs.ranked(found.members, sort or SCORE)), None)


def _line(found: Run | Sweep, sort: str | None) -> RunRow:
    """A run; or a sweep as its best member, with how its members stand."""
    if isinstance(found, Run):
        return row_of(found, None, found.overrides, found.reason if found.status == "stopped" else "", sort)
    best, count = _best(found, sort), len(found.planned) or len(found.members)
    states = [m.status for m in found.members] + ["not run"] * len(found.missing)
    told = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.started))
    if best is None:
        return RunRow(None, [], f"sweep of {count}", run_dir=str(found.path), date=date, remark=told)
    common = set.intersection(*(set(m.overrides) for m in found.members)) if len(found.members) > 1 else set()
    row = row_of(best, None, [f"best: {best.path.name}", *(o for o in best.overrides if o not in common)], told, sort)
    return RunRow(**{**vars(row), "status": f"sweep of {count}", "error": None, "run_dir": str(found.path), "date": date})


def _print_json(found: list[Run | Sweep], sort: str | None) -> None:
    out = []
    for f in found:
        members = runs.ranked(f.members, sort or SCORE) if isinstance(f, Sweep) else [f]
        out += [_plain(m, f.path if isinstance(f, Sweep) else None) for m in members]
    sys.stdout.write(json.dumps(out, ensure_ascii=False, indent=2) + "\n")


def _plain(run: Run, sweep: Path | None) -> dict[str, Any]:
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(run.started))
    plain = {**vars(run), "path": str(run.path), "sweep": str(sweep) if sweep else None, "number": run.number if sweep else None}
    return {**_without_nan(plain), "started": started, "command": runs.pasteable(run)}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
