"""`rlctl score`: every planted fault of a reward is found before training, and what is shown can be read."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import test_cli
from rich.cells import cell_len

from rlctl.console.score import ROWS, print_score
from rlctl.report import Finding, ScoreReport, ScoreRow

folder, rlctl = test_cli.folder, test_cli.rlctl

MODULE = """\
    import random

    def constant(texts):
        return [2.5] * len(texts)

    def nan(texts):
        return [float("nan") if i == 5 else float(len(t)) for i, t in enumerate(texts)]

    def blind(completions):
        return [float(len(c)) for c in completions]

    def tied(prompts):
        return [float(len(p)) for p in prompts]

    def good(prompts, completions, answer, kind):
        rows = zip(prompts, completions, answer, kind, strict=True)
        return [float(a in c) if k == "sum" else len(c) / len(p) for p, c, a, k in rows]

    def noisy(prompts, completions):
        return [random.random() for p in prompts]

    def steep(prompts, completions):
        return [1000.0 * len(c) for c in completions]

    def rare(prompts, completions):
        best = max(range(len(prompts)), key=lambda i: len(completions[i]))
        return [float(i == best) for i in range(len(prompts))]

    def scaled(texts, scale):
        return [scale * len(t) for t in texts]
    """
SMALL = ["score.prompts=8", "score.samples_per_prompt=4", "rollout.max_new_tokens=8"]


@pytest.fixture
def score(rlctl, folder: Path):
    """`rlctl score` in a folder with MODULE as faults.py."""
    test_cli._write(folder, "faults.py", MODULE)
    return lambda *argv: rlctl("score", *SMALL, *argv)


def report(done: test_cli.Done) -> dict[str, Any]:
    assert done.err == "", done.err
    found = test_cli._strict(done.out)
    found["keys"] = {f["key"]: f["level"] for f in found["findings"]}
    return found


# --- planted faults


@pytest.mark.parametrize(
    ("function", "status", "findings"),
    [
        ("constant", 3, {"constant": "stop"}),
        ("nan", 3, {"failed": "stop"}),
        ("tied", 3, {"tied": "stop"}),
        ("blind", 0, {"blind": "look"}),
        ("noisy", 0, {"noisy": "look"}),
        ("good", 0, {}),
    ],
)
def test_each_fault_is_found_under_its_key(score, function, status, findings):
    done = score(f"reward=fn:faults.{function}", "--json")
    assert done.status == status
    found = report(done)
    got = {k: v for k, v in found["keys"].items() if k != "mostly-tied"}  # whether it is depends on what was drawn
    assert got == findings
    assert found["learnable"] == (status == 0)


def test_a_score_that_is_no_number_names_its_sample(score):
    done = score("reward=fn:faults.nan", "--json")
    found = report(done)
    (finding,) = found["findings"]
    assert finding["what"] == "reward fn:faults.nan returned float nan for sample 5, expected a finite number"
    row = found["rows"][5]
    assert finding["cause"] == f"the text of sample 5: {row['prompt'] + row['response']!r}"
    assert len(found["rows"]) == 32 and all(r["score"] is None for r in found["rows"])
    shown = score("reward=fn:faults.nan")
    assert shown.status == 3 and "for sample 5" in shown.out and "training could not learn from it" in shown.out


def test_a_saturated_calibration_is_found(score):
    done = score("reward=calibrated", "reward.base=fn:faults.steep", "--json")
    found = report(done)
    assert done.status == 0 and found["keys"]["saturated"] == "look"
    for row in found["rows"]:
        assert set(row["parts"]) == {"raw", "baseline", "difference"}
        assert row["parts"]["difference"] == row["parts"]["raw"] - row["parts"]["baseline"]


def test_a_calibration_against_samples_needs_no_column(score):
    found = report(score("reward=calibrated:builtin", "reward.baseline=sample", "--json"))
    scores = [row["score"] for row in found["rows"]]
    assert found["learnable"] and 0 < min(scores) < max(scores) < 1


def test_a_sparse_reward_is_found(score):
    done = score("reward=fn:faults.rare", "--json")
    assert done.status == 0 and report(done)["keys"]["rare"] == "look"


def test_responses_that_are_all_cut_are_found(score):
    done = score("reward=fn:faults.good", "rollout.max_new_tokens=1", "--json")
    found = report(done)
    assert found["keys"]["all-truncated"] == "look" and all(row["truncated"] for row in found["rows"])


# --- what is reported


def test_json_holds_what_was_seen_and_given(score):
    found = report(score("reward=fn:faults.good", "--json"))
    assert set(found) - {"keys"} == {
        "reward", "learnable", "scores", "milliseconds_per_response", "first_text", "passed", "findings", "rows",
    }  # fmt: skip
    rows = found["rows"]
    assert len(rows) == 32 and all(set(row) == {"prompt", "response", "score", "parts", "truncated", "verdicts"} for row in rows)
    assert found["first_text"] == rows[0]["prompt"] + rows[0]["response"]
    passed = dict(line.split(": ", 1) for line in found["passed"])
    assert set(passed) == {"prompts", "completions", "answer", "kind"}  # what it takes, columns too
    assert (passed["prompts"], passed["completions"]) == (repr(rows[0]["prompt"]), repr(rows[0]["response"]))
    scores = [row["score"] for row in rows]
    mean = sum(scores) / 32
    deviation = (sum((s - mean) ** 2 for s in scores) / 32) ** 0.5
    assert found["scores"] == pytest.approx({"mean": mean, "std": deviation, "min": min(scores), "max": max(scores)})
    assert all(len({row["prompt"] for row in rows[i : i + 4]}) == 1 for i in range(0, 32, 4))


def test_json_holds_the_parts_of_a_sum(score):
    terms = "[{reward: fn:faults.blind, weight: 2}, {reward: fn:faults.scaled, name: long, args: {scale: 0.5}}]"
    rows = report(score("reward=weighted", f"reward.terms={terms}", "--json"))["rows"]
    for row in rows:
        n, m = len(row["response"]), len(row["prompt"])
        assert row["parts"] == {"blind": n, "long": 0.5 * (n + m)}
        assert row["score"] == pytest.approx(2 * n + 0.5 * (n + m))


def test_the_same_seed_shows_the_same_responses(score):
    first, again, other = (report(score("reward=fn:faults.good", "--json", f"seed={seed}"))["rows"] for seed in (0, 0, 1))
    assert first == again != other


def test_the_text_says_what_the_reward_saw(score):
    done = score("reward=fn:faults.good")
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines()[0] == "fn:faults.good"
    assert "training could learn from this reward" in done.out.splitlines()
    assert "\n  passed  prompts: '" in done.out and "\x1b" not in done.out


# --- answers of a column instead of samples


def test_answers_of_a_column_are_scored(score):
    done = score("reward=fn:faults.good", "score.column=reference", "--json")
    rows = report(done)["rows"]
    data = {(r["prompt"], r["reference"]) for r in test_cli._lines(test_cli.builtin.path("prompts.jsonl"))}
    assert len(rows) == 8 and {(r["prompt"], r["response"]) for r in rows} <= data
    assert not any(r["truncated"] for r in rows)


def test_the_baseline_itself_scores_one_half(score):
    found = report(score("reward=calibrated:builtin", "score.column=reference", "--json"))
    assert [row["score"] for row in found["rows"]] == pytest.approx([0.5] * 8, abs=1e-6)


def test_a_column_that_is_not_there(score):
    done = score("reward=fn:faults.good", "score.column=gold")
    assert (done.status, done.out) == (3, "")
    assert done.err.splitlines() == [
        "error: score.column=gold: the data has no such column",
        "  why:  its columns are: reference, answer, kind",
    ]


def test_an_answer_that_is_not_there_names_its_row(score, folder):
    (folder / "rows.jsonl").write_text('{"prompt": "a", "gold": "b"}\n{"prompt": "c", "gold": ""}\n')
    done = score("reward=fn:faults.blind", "data=file:rows.jsonl", "score.column=gold")
    assert done.status == 3
    assert done.err.startswith("error: row 1 ") and "column 'gold' holds ''" in done.err
    assert "baseline" not in done.err  # there is none in this command


# --- the command


def test_a_config_that_cannot_be_is_refused(score):
    assert score("reward=fn:faults.good", "score.prompts=0").status == 2
    assert score("reward=fn:faults.nosuch").status == 3


@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_a_sweep_is_refused_and_the_hint_can_be_typed(rlctl, flag):
    for argv in ([flag, "reward=fn:faults.good", "seed=1"], ["reward=fn:faults.good", "seed=1", flag]):
        done = rlctl("score", *argv)
        assert (done.status, done.out) == (2, "")
        assert done.err.splitlines() == [
            "error: rlctl score looks at one config",
            "  why:  --multirun is for training",
            "  try:  rlctl score reward=fn:faults.good seed=1",
        ]


def test_nothing_is_left_in_the_folder(score, folder):
    for argv in (["reward=fn:faults.good"], ["reward=fn:faults.constant", "--json"], ["reward=fn:faults.nosuch"]):
        score(*argv)
        assert [p.name for p in folder.iterdir()] == ["faults.py"]


def test_the_installed_command(tmp_path):
    test_cli._write(tmp_path, "faults.py", MODULE)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    script = [Path(sys.executable).with_name("rlctl"), "score", *SMALL, "reward=fn:faults.tied", "--json"]
    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3, done.stderr
    assert report(test_cli.Done(3, done.stdout, done.stderr))["keys"] == {"tied": "stop"}
    assert [p.name for p in tmp_path.iterdir()] == ["faults.py"]


# --- how it looks


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(given: ScoreReport, monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    print_score(given, out)
    text = out.getvalue()
    for style in ("\x1b[1m", "\x1b[2m", "\x1b[0m"):
        text = text.replace(style, "")
    return text.splitlines()


def made(rows: list[ScoreRow], *findings: Finding) -> ScoreReport:
    return ScoreReport("fn:mypkg.f", rows, 1, 0.5, rows[0].prompt + rows[0].response, ("texts: 'a'",), findings)


LONG = {
    "words": ("Tell me about the weather in the north " * 5, "It is cold and it rains on most days of the year " * 5),
    "wide": ("天気を教えてください" * 12, "寒くて雨が多いです" * 20),
    "lines": ("one\ntwo\r\nthree\t" * 9, "\n\n1.\tfirst\n2.\tsecond" * 9),
}


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize(
    "parts", [{}, {"raw": -12.3456, "baseline": 1.25, "difference": 0.0012}, {"count_of_good_sentences": 1.25, "penalty_of_length": None}],
    ids=["plain", "calibrated", "long names"],
)  # fmt: skip
def test_a_row_of_the_table_is_one_line_with_its_numbers_whole(monkeypatch, width, kind, parts):
    prompt, response = LONG[kind]
    rows = [ScoreRow(prompt, response, 123.4 + i, parts, i % 2 == 0) for i in range(3)]
    lines = shown(made(rows), monkeypatch, width)
    assert lines[2].split()[0] == "score" and lines[6] == ""
    for i, line in enumerate(lines[3:6]):
        assert cell_len(line) <= width
        assert line.lstrip().startswith(str(125.4 - i))
        assert f"{1.25:.3f}" in line or not parts
        assert (" cut" in line) == (i % 2 == 0)  # ranked: 2, 1, 0


@pytest.mark.parametrize("width", [80, 140])
def test_every_word_of_a_finding_is_there(monkeypatch, width):
    words = "the scores stay the same when the responses are given to other prompts " * 3
    finding = Finding("look", "blind", words, "first line of a cause\nsecond line", words)
    lines = shown(made([ScoreRow("p", "r", 1.0, {}, False)], finding), monkeypatch, width)
    text = " ".join(" ".join(lines).split())
    assert text.count(words.strip()) == 2 and "first line of a cause second line" in text
    assert max(cell_len(line) for line in lines) <= width


def test_of_many_responses_the_best_and_the_worst_are_shown(monkeypatch):
    rows = [ScoreRow("p", f"response {i}.", float(i), {}, False) for i in range(100)]
    text = "\n".join(shown(made(rows), monkeypatch, 100))
    there = [i for i in range(100) if f"response {i}." in text]
    assert len(there) == ROWS and there == [*range(ROWS // 2), *range(100 - ROWS // 2, 100)]


NASTY = "[b]x[/b] :smile: \x1b[31mred\x07 \u202egnp\u200b"
SHOWN = "[b]x[/b] :smile: ␛[31mred␇ gnp"


@pytest.mark.parametrize("width", [80, 140])
def test_markup_and_control_characters_are_shown_and_not_obeyed(monkeypatch, width):
    lines = shown(made([ScoreRow(NASTY, NASTY, 1.0, {}, False)]), monkeypatch, width)
    text = "\n".join(lines)
    assert SHOWN in lines[3]
    assert not set(text) & {"\x1b", "\x07", "\u202e", "\u200b"}


def test_the_name_of_a_part_is_shown_as_safely(monkeypatch):
    text = "\n".join(shown(made([ScoreRow("p", "r", 1.0, {NASTY: 2.0}, False)]), monkeypatch, 140))
    assert SHOWN in text and not set(text) & {"\x1b", "\x07", "\u202e", "\u200b"}


def test_markup_and_control_characters_through_the_command(score, folder):
    rows = [{"prompt": "[green]ask[/green] ", "gold": f"{NASTY} {i}"} for i in range(3)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    done = score("reward=fn:faults.blind", "data=file:rows.jsonl", "score.column=gold", "score.prompts=3")
    assert "[green]ask[/green]" in done.out and SHOWN in done.out
    assert not set(done.out) & {"\x1b", "\x07", "\u202e", "\u200b"}
    as_json = score("reward=fn:faults.blind", "data=file:rows.jsonl", "score.column=gold", "score.prompts=3", "--json")
    assert {row["response"] for row in report(as_json)["rows"]} == {r["gold"] for r in rows}
