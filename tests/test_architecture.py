"""The shape of the code itself: who may import whom, sizes, documentation, and names that must be explained."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlctl
from rlctl.metrics import METRICS

ROOT = Path(rlctl.__file__).resolve().parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {".".join(["rlctl", *p.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__"): p for p in FILES}
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def _imports(tree: ast.AST) -> set[str]:
    """Every module that a file imports, wherever in it. `from a import b` is a.b where that is a module of ours, else a and a.b."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= set(MODULES) else names | {node.module or ""}
    return found


IMPORTS = {name: _imports(tree) for name, tree in TREES.items()}


def _ours(name: str) -> set[str]:
    """The modules of this package that one imports."""
    return {m for m in IMPORTS[name] if m in MODULES} - {"rlctl"}


def _of(package: str) -> set[str]:
    return {name for name in MODULES if name == package or name.startswith(f"{package}.")}


def _who_imports(*roots: str) -> set[str]:
    """Modules that import one of these packages, or anything inside one."""
    return {name for name, found in IMPORTS.items() if any(m == r or m.startswith(f"{r}.") for m in found for r in roots)}


def test_all_modules_are_seen():
    assert {"rlctl", "rlctl.cli", "rlctl.train", "rlctl.algos.ppo", "rlctl.config.compose", "rlctl.console"} <= set(MODULES)
    assert "rlctl.config.compose" in _ours("rlctl.launch")
    assert "torch" in IMPORTS["rlctl.tensors"]


# imports


@pytest.mark.parametrize("name", sorted(_of("rlctl.algos")))
def test_algorithms_see_torch_the_rollout_tensors_and_their_config_only(name):
    # what comes from outside must be found, and refused in words
    more = {"rlctl.importing", "rlctl.errors"} if name == "rlctl.algos.custom" else set()
    assert _ours(name) <= {"rlctl.rollout", "rlctl.tensors", "rlctl.config.schema", "rlctl.config"} | _of("rlctl.algos") | more
    outside = {m.partition(".")[0] for m in IMPORTS[name]} - {"rlctl"}
    assert outside <= {"torch", *sys.stdlib_module_names}


def test_only_the_config_sees_hydra_and_omegaconf():
    assert _who_imports("hydra", "omegaconf") <= _of("rlctl.config") | _of("rlctl.commands")
    assert "rlctl.config.compose" in _who_imports("hydra")


def test_only_the_console_sees_rich():
    assert _who_imports("rich") <= _of("rlctl.console")
    assert _who_imports("rich")


def test_nobody_imports_the_command_line_or_the_loop_but_those_that_start_them():
    assert _who_imports("rlctl.cli") <= {"rlctl.__main__"}
    assert _who_imports("rlctl.train") <= {"rlctl.launch", "rlctl.worker"}
    assert _who_imports("rlctl.commands") <= _of("rlctl.commands") | {"rlctl.cli"}


def test_the_launcher_and_the_worker_are_started_by_the_command_line_only():
    assert _who_imports("rlctl.worker") == set()
    assert _who_imports("rlctl.launch") <= {"rlctl.cli", "rlctl.worker"} | _of("rlctl.commands")


@pytest.mark.parametrize("name", sorted(_of("rlctl.console")))
def test_the_console_knows_only_itself_and_what_is_reported(name):
    assert _ours(name) <= _of("rlctl.console") | {"rlctl.report"}
    assert not {m.partition(".")[0] for m in IMPORTS[name]} & {"torch", "transformers", "hydra", "omegaconf"}


@pytest.mark.parametrize("name", sorted(_of("rlctl.config")))
def test_the_config_knows_only_itself_and_the_errors(name):
    assert _ours(name) <= _of("rlctl.config") | {"rlctl.errors"}


@pytest.mark.parametrize("name", ["rlctl.rollout", "rlctl.tensors", "rlctl.report", "rlctl.errors", "rlctl.config.schema"])
def test_the_lowest_layer_knows_nothing_above_it(name):
    assert _ours(name) <= {"rlctl.tensors", "rlctl.config", "rlctl.config.fields", "rlctl.config.judges", "rlctl.config.tasks"}


def test_rewards_see_text_and_never_the_loop():
    for name in _of("rlctl.rewards"):
        assert not _ours(name) & {"rlctl.collect", "rlctl.sample", "rlctl.update", "rlctl.assemble", "rlctl.record", *_of("rlctl.algos")}


def test_imports_do_not_go_in_circles():
    below = {name: _ours(name) - {name} for name in MODULES}
    while free := {name for name, deps in below.items() if not deps}:
        below = {name: deps - free for name, deps in below.items() if name not in free}
    assert not below, f"circle among {sorted(below)}"


LIGHT = sorted(
    {
        *_of("rlctl.config"),
        *_of("rlctl.console"),
        *_of("rlctl.commands"),
        "rlctl",
        "rlctl.cli",
        "rlctl.launch",
        "rlctl.worker",
        "rlctl.report",
    }
)
HEAVY = {"torch", "transformers", "datasets", "accelerate", "trl", "numpy"}


def test_light_modules_import_nothing_heavy():
    code = f"import importlib, sys\nfor m in {LIGHT!r}: importlib.import_module(m)\n"
    code += f"sys.stdout.write(' '.join({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_importing_the_package_imports_nothing_but_itself():
    assert IMPORTS["rlctl"] == set()


# style


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@pytest.mark.parametrize("name", sorted(set(MODULES) - {"rlctl.builtin.make"}))
def test_nothing_is_printed(name):
    lines = [n.lineno for n in ast.walk(TREES[name]) if isinstance(n, ast.Call) and _is_name(n.func, "print")]
    assert lines == []


def test_every_module_says_what_it_is():
    assert [n for n, tree in TREES.items() if not ast.get_docstring(tree) and MODULES[n].read_text().strip()] == []


def _undocumented(tree: ast.Module) -> Iterator[str]:
    """Public functions, classes and methods without a docstring. A method that overrides is explained where it is declared."""
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node) and not _is_enum(node):
            yield node.name
        if isinstance(node, ast.ClassDef) and not node.bases and node.name not in _IMPLEMENTS:
            yield from (f"{node.name}.{f.name}" for f in node.body if _is_open(f) and not ast.get_docstring(f))


# a Reporter's and a stream's methods are explained by what they implement
_IMPLEMENTS = {"LiveConsole", "PlainConsole", "QuietConsole", "Outlet"}


def _is_enum(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(_is_name(b, "StrEnum") for b in node.bases)


def _is_open(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_everything_public_is_documented(name):
    assert list(_undocumented(TREES[name])) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_files_and_functions_are_short(name):
    if name != "rlctl.config.schema":  # a table of keys, one after the other
        assert len(MODULES[name].read_text().splitlines()) <= 300
    long = {f.name: f.end_lineno - f.lineno + 1 for f in _functions(TREES[name]) if f.end_lineno and f.end_lineno - f.lineno >= 60}
    assert long == {}


_UNITS = {"tokens/s"}


def _metric_names() -> Iterator[tuple[str, str]]:
    """Every literal in the code that has the form of a metric's name."""
    groups = {name.partition("/")[0] for name in METRICS}
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                group, slash, rest = node.value.partition("/")
                if slash and group in groups and rest.replace("_", "").isalnum() and node.value not in _UNITS:
                    yield module, node.value


def test_every_metric_named_in_the_code_has_a_formula():
    found = set(_metric_names())
    assert len({name for _, name in found}) > 30
    assert sorted((module, name) for module, name in found if name not in METRICS) == []


def test_every_metric_with_a_formula_is_measured_somewhere():
    """A name in the table that no code outside it writes explains nothing."""
    source = "".join(path.read_text() for name, path in MODULES.items() if name != "rlctl.metrics")
    table = ast.get_source_segment(MODULES["rlctl.metrics"].read_text(), _table()) or ""
    source += MODULES["rlctl.metrics"].read_text().replace(table, "")
    phases = {f"time/{p}" for p in ("generate", "score", "judge", "forward", "update", "save")}
    patterns = {name for name in METRICS if "<" in name}
    assert sorted(name for name in METRICS if f'"{name}"' not in source and name not in phases | patterns) == []


def _table() -> ast.AST:
    return next(n for n in TREES["rlctl.metrics"].body if isinstance(n, ast.AnnAssign) and _is_name(n.target, "METRICS"))
