"""Tasks and judges as a person sees them: the live view, plain lines, the summary, and `rlctl score`."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import test_cli
import test_console
import test_score
import test_tasks

from rlctl.console.fields import fields_of
from rlctl.console.frame import frame
from rlctl.console.plain import PlainConsole
from rlctl.console.stream import make_console
from rlctl.console.view import opening, with_step
from rlctl.report import Finding, ScoreRow, Step, Summary

folder, rlctl = test_cli.folder, test_cli.rlctl
ordinary_terminal = test_console.ordinary_terminal

JUDGED = {"judges/brief/pass": 0.75, "judges/no_repeat/pass": 0.5, "judges/no_repeat/unjudged": 0.25, "judges/satisfied": 0.375}
ONE = {"objective/scores": 0.5, "objective/kl": 1.25, "responses/truncated": 0.125}
SHARED = {"policy/lr": 1e-3, "tokens/per_second": 512.0, "time/step": 2.0, "time/generate": 1.0, "time/update": 1.0}
ALONE = {**ONE, **JUDGED, **SHARED}
TASKS = SHARED | {f"tasks/sums/{n}": v for n, v in {**ONE, **JUDGED}.items()} | {f"tasks/kind/{n}": v + 1 for n, v in ONE.items()}


def step(i: int, metrics: dict[str, float]) -> Step:
    return Step(i, 40, metrics, test_console.GOOD, test_console.BAD)


# --- what is shown


def test_every_judge_has_a_row_beneath_the_share_that_passes_all():
    shown = [(f.label, f.metric) for f in fields_of(ALONE)]
    assert shown[2:5] == [("satisfied", "judges/satisfied"), ("brief", "judges/brief/pass"), ("no_repeat", "judges/no_repeat/pass")]
    single = {n: v for n, v in ALONE.items() if "brief" not in n}
    assert "no_repeat" not in [f.label for f in fields_of(single)]  # it is what all of them pass


def test_every_task_has_its_own_rows_and_shared_ones_stand_once():
    shown = [f for f in fields_of(TASKS) if f.metric in TASKS]
    assert [f.label for f in shown] == [
        "sums score", "sums kl", "sums satisfied", "sums truncated", "sums brief", "sums no_repeat",
        "kind score", "kind kl", "kind truncated", "tokens/s", "learning rate",
    ]  # fmt: skip
    assert [f.metric for f in shown[:2]] == ["tasks/sums/objective/scores", "tasks/sums/objective/kl"]
    assert not {"objective/scores", "objective/kl"} & {f.metric for f in fields_of(TASKS)}


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (140, 40)])
@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (ALONE, ["score 0.5000", "kl 1.250", "satisfied 38%", "brief 75%", "no_repeat 50%", "truncated 12%"]),
        (TASKS, ["sums score 0.5000", "sums kl 1.250", "sums satisfied 38%", "kind score 1.500", "kind kl 2.250", "learning rate 0.0010"]),
    ],
    ids=["judges", "tasks"],
)  # fmt: skip
def test_the_live_view_shows_them_whole(columns, rows, metrics, expected):
    console, out = test_console.live(columns, rows)
    screen, stream = test_console.terminal(columns, rows)
    console.start(test_console.PLAN)
    for i in range(1, 4):
        console.step(step(i, {n: v * (i + 3) / 6 for n, v in metrics.items()}))
    console.refresh()
    stream.feed(out.getvalue())
    seen = test_console.shown(screen)
    test_console.assert_screen_ends_with_frame(seen, console, columns, rows)
    for text in expected:
        label, _, value = text.rpartition(" ")
        (row,) = [row for row in seen if re.match(rf"{label}  ", row)]
        assert re.match(rf"{label} +{re.escape(value)} ", row), row
        assert "▁▅█" in row
    console.close()


def test_names_that_are_long_or_hostile_stay_in_their_column():
    name, judge = "a" * 40, "j\x1b[31m" * 9
    metrics = SHARED | {f"tasks/{name}/objective/scores": 1.0, f"tasks/{name}/objective/kl": 2.0, f"tasks/b{name}/objective/scores": 3.0}
    metrics |= {"judges/satisfied": 0.5, f"judges/{judge}/pass": 0.25, "judges/brief/pass": 1.0}
    for width in (30, 44, 79, 139):
        lines = frame(with_step(opening(test_console.PLAN, 0.0), step(1, metrics), 1.0), width, 30, 1.0)
        assert all(line.cell_len <= width and "\x1b" not in line.plain for line in lines)
    rows = [line.plain for line in lines]
    for start, value in (("aaaaaaaaaaaa… score", "1.000"), ("aaaaaaaaaaaa… kl", "2.000"), ("baaaaaaaaaaa… score", "3.000")):
        assert test_console.row_with(rows, start).split()[2] == value


def test_a_very_small_terminal_shows_each_tasks_score():
    lines = frame(with_step(opening(test_console.PLAN, 0.0), step(1, TASKS), 1.0), 60, 3, 1.0)
    assert lines[1].plain == "sums score 0.5000  sums kl 1.250  kind score 1.500  kind kl…"
    before = frame(opening(test_console.PLAN, 0.0), 60, 3, 1.0)
    assert before[1].plain == "score -  kl -"


def test_a_plain_line_names_each_task():
    out = io.StringIO()
    console = PlainConsole(make_console(out), test_console.Clock())
    console.start(test_console.PLAN)
    console.step(step(1, TASKS))
    assert out.getvalue().splitlines()[-1] == (
        "step  1/40  sums  0.5000  kl  1.250  ok  38%  cut  12%  kind   1.500  kl  2.250  cut 112%    512 tok/s  eta 0s"
    )


def test_the_summary_compares_every_task():
    last = TASKS | {"tasks/sums/objective/scores": 0.75, "tasks/kind/objective/kl": 0.25}
    summary = Summary("finished", "", Path("run"), 40, 9.0, first=TASKS, last=last)
    lines = test_console.printed_summary(summary)
    assert [line.split() for line in lines if "->" in line] == [
        ["sums", "score", "0.5000", "->", "0.7500"], ["sums", "kl", "1.250", "->", "1.250"],
        ["kind", "score", "1.500", "->", "1.500"], ["kind", "kl", "2.250", "->", "0.2500"],
    ]  # fmt: skip


# --- rlctl score


@pytest.mark.parametrize("width", [80, 140])
def test_verdicts_stand_in_columns_and_passes_are_counted(monkeypatch, width):
    verdicts = [(True, True), (True, False), (False, None)]
    rows = [
        ScoreRow("Say hello", f" word {i}", float(i), {}, False, dict(zip(("brief", "polite"), v, strict=True)))
        for i, v in enumerate(verdicts)
    ]
    lines = test_score.shown(test_score.made(rows), monkeypatch, width)
    assert lines[2].split() == ["score", "brief", "polite", "prompt", "response"]
    assert [line.split()[:3] for line in lines[3:6]] == [["2.000", "fail", "?"], ["1.000", "pass", "fail"], ["0", "pass", "pass"]]
    assert [line for line in lines if line.startswith("judge  ")] == [
        "judge  brief passes 2 of 3",
        "judge  polite passes 1 of 3, 1 could not be judged",
        "judge  all pass 1 of 3",
    ]


@pytest.mark.parametrize("width", [80, 140])
def test_judges_without_room_are_named_and_still_counted(monkeypatch, width):
    names = [f"judge_number_{i:02}" for i in range(12)]
    rows = [ScoreRow("Say hello", " hello", float(i), {}, False, dict.fromkeys(names, True)) for i in range(2)]
    lines = test_score.shown(test_score.made(rows), monkeypatch, width)
    hidden = next(line for line in lines if line.startswith("not shown for want of room: "))
    shown = [name for name in names if name in lines[2]]
    assert [*shown, *hidden.partition(": ")[2].split(", ")][: len(shown) + 1] == names[: len(shown) + 1]
    assert sum(line.endswith("passes 2 of 2") for line in lines) == 12


SMALL = ["score.prompts=4", "score.samples_per_prompt=3", "rollout.max_new_tokens=4"]


def test_score_reports_every_task_apart(folder, rlctl):
    test_tasks.recipe(folder / "recipe")
    done = rlctl("score", "recipe", *SMALL)
    assert done.err == ""
    assert [line for line in done.out.splitlines() if line.startswith("task ")] == ["task a", "task b"]
    a, b = done.out.split("\ntask b\n")
    assert "fn:mine.spread" in a and "calibrated fn:mine.vowels" in b
    heads = [next(line.split() for line in part.splitlines() if line.split()[-2:] == ["prompt", "response"]) for part in (a, b)]
    assert heads == [
        ["score", "even", "prompt", "response"],
        ["score", "raw", "baseline", "difference", "doubtful", "length", "prompt", "response"],
    ]
    for part, judges in ((a, ["even"]), (b, ["doubtful", "length"])):
        for judge in judges:
            (count,) = re.findall(rf"^judge  {judge} passes (\d+) of 12", part, re.M)
            assert 0 <= int(count) <= 12
    assert re.search(r"^judge  all pass \d+ of 12$", b, re.M)
    assert done.status == 0, done.out

    as_json = test_cli._strict(rlctl("score", "recipe", *SMALL, "--json").out)
    assert sorted(as_json) == ["a", "b"]
    for name, judges in (("a", {"even"}), ("b", {"doubtful", "length"})):
        rows = as_json[name]["rows"]
        assert len(rows) == 12 and all(set(row["verdicts"]) == judges for row in rows)
        prompts = test_tasks.A if name == "a" else test_tasks.B
        assert {row["prompt"] for row in rows} <= set(prompts)
    for row in as_json["a"]["rows"]:
        assert row["verdicts"]["even"] is (len(row["response"]) % 2 == 0)
        assert row["score"] == sum(map(ord, row["response"])) % 7
    for row in as_json["b"]["rows"]:
        assert row["verdicts"]["doubtful"] is (None if len(row["response"]) % 3 == 0 else len(row["response"]) % 3 == 1)
    (count,) = re.findall(r"judge  even passes (\d+) of 12", a)
    assert int(count) == sum(row["verdicts"]["even"] for row in as_json["a"]["rows"])  # the same seed, the same responses


def test_a_judge_that_nothing_passes_is_found(folder, rlctl):
    judges = "judges=[{kind: length, max: 9}, {kind: regex, pattern: zzz}]"
    done = rlctl("score", *SMALL, "algo=cgpo", "reward=model", judges, "--json")
    report = test_cli._strict(done.out)
    assert (done.status, report["learnable"]) == (3, False)
    found = [Finding(**f) for f in report["findings"] if f["key"] == "unsatisfied"]
    assert [(f.level, f.what, f.cause) for f in found] == [("stop", "no response passes every judge", "none passes regex")]
    assert all(row["verdicts"] == {"length": True, "regex": False} for row in report["rows"])
