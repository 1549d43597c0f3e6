"""The recipe cgpo_judges: its functions, its measures, and two steps of every variant through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "cgpo_judges"

# in a process of its own: the recipe's modules have names that other recipes use too
DOCTESTS = "import doctest, compare, judges, reward, true; print([tuple(doctest.testmod(m)) for m in (compare, judges, reward, true)])"
TRAIN = """
import json, sys
from pathlib import Path
from compare import EDGE, HERE, VARIANTS, folder, measure, plot, table
from rlctl.cli import main

out = Path(sys.argv[1])
small = ["run.steps=2", "rollout.prompts_per_step=8", "run.tracker=none", "console=quiet"]
runs = {}
for variant, overrides in VARIANTS.items():
    run = folder(out, variant, 2, 0)
    assert main(["train", str(HERE), *overrides, *small, f"hydra.run.dir={run}"]) == 0, variant
    runs[variant] = [measure(run)]
(out / "runs.json").write_text(json.dumps(runs))
(out / "results.md").write_text(table(runs))
(out / "results.svg").write_text(plot(runs))
"""


def python(code: str, *args: str) -> str:
    """What Python code prints that is run in the recipe's folder."""
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=RECIPE, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_doctests() -> None:
    """Every module has some, and all pass."""
    results = json.loads(python(DOCTESTS).replace("(", "[").replace(")", "]"))
    assert all(failed == 0 and attempted > 0 for failed, attempted in results), results


def test_every_variant_trains_and_is_measured(tmp_path: Path) -> None:
    """The judges of config.yaml and the rules of true.py are the same; the table has a row and the plot a line a variant."""
    python(TRAIN, str(tmp_path))
    runs = json.loads((tmp_path / "runs.json").read_text())
    assert len(runs) == 6
    for (rows,) in runs.values():
        assert len(rows) == 2
        assert rows[0]["KL"] == pytest.approx(0.0, abs=1e-4)
    for name, (rows,) in runs.items():
        if "no judges" in name or "alone" in name:
            continue
        (run,) = tmp_path.glob(name.lower().replace(",", "").replace(" ", "-") + "-*")
        metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [row["satisfied"] for row in rows] == pytest.approx([m["judges/satisfied"] for m in metrics])
    assert len((tmp_path / "results.md").read_text().splitlines()) == 2 + len(runs)
    svg = ElementTree.parse(tmp_path / "results.svg").getroot()
    assert len(svg.findall("{*}polyline")) == len(runs)


def test_measures_of_a_made_up_run(tmp_path: Path) -> None:
    """Two steps of two samples: one keeps the rules, one says "very" twice, is cut or is no sum."""
    (tmp_path / "samples").mkdir()
    made = [[("The cake was", " sweet.", "sentence"), ("The cake was", " very, very sweet.", "sentence")]]
    made += [[("1 + 1 =", " 2", "sum"), ("1 + 1 =", " very", "sum")]]
    for step, samples in enumerate(made, 1):
        rows = [{"prompt": p, "response": r, "columns": {"kind": k}, "score": i, "kl": 2.0 * i} for i, (p, r, k) in enumerate(samples)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "samples" / f"step_{step:06d}.jsonl").write_text(text)
    code = "import json, sys; from pathlib import Path; from compare import measure; print(json.dumps(measure(Path(sys.argv[1]))))"
    rows = json.loads(python(code, str(tmp_path)))
    assert [row["training reward"] for row in rows] == [0.5, 0.5]
    assert [row["satisfied"] for row in rows] == [0.5, 0.5]
    assert [row["KL"] for row in rows] == [1.0, 1.0]
    assert all(-1.5 < row["true quality"] < 1.0 for row in rows), rows
