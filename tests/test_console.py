"""What a person sees of a run: every assertion is on text as it arrives at a terminal, a pipe or a log."""

from __future__ import annotations

import io
import logging
import math
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyte
import pytest
from rich.cells import cell_len

from rlctl.console import (
    RunRow,
    number,
    open_console,
    print_error,
    print_summary,
    print_sweep,
    sparkline,
)
from rlctl.console.blocks import bar, progress
from rlctl.console.frame import frame
from rlctl.console.live import LiveConsole
from rlctl.console.numbers import duration, percent, short_duration, time_left
from rlctl.console.plain import PlainConsole
from rlctl.console.stream import Outlet, make_console
from rlctl.console.text import clean, fold, shorten, shorten_path
from rlctl.console.view import View, opening, with_note, with_phase, with_step, with_warning
from rlctl.report import Plan, Sample, Step, Summary, Warning

ESC = "\x1b"
NAN = math.nan


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def ordinary_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


RUN_DIR = "outputs/2025-06-01/12-00-00"
PLAN = Plan("ppo  fn:mypkg.count_good", Path(RUN_DIR), 40, (("policy", "tiny"), ("value model", "auto")))
GOOD = Sample("Say something\nnice", "[red]good[/red] day\nand [bold]more", 1.5, kl=0.25)
BAD = Sample("How is the weather?", "bad", -2.25, truncated=True)
KL_WARNING = Warning("kl", "KL is 9 nats", "algo.kl_coef is too small", "raise algo.kl_coef to 0.05")


def metrics(i: int) -> dict[str, float]:
    return {
        "objective/scores": i / 8,
        "objective/kl": 0.05,
        "objective/entropy": 2.314,
        "responses/length": 12.34,
        "responses/truncated": 0.25,
        "policy/clipfrac": 0.042,
        "value/explained_variance": NAN if i == 1 else 0.3125,
        "tokens/per_second": 1234.4,
        "policy/lr": 3e-6,
        "time/step": 4.0,
        "time/generate": 2.0,
        "time/score": 0.5,
        "time/forward": 0.5,
        "time/update": 1.0,
    }


def step(i: int, steps: int = 40) -> Step:
    return Step(i, steps, metrics(i), GOOD, BAD)


def seen(raw: str, columns: int, rows: int) -> list[str]:
    """The rows of a terminal of that size after it was sent `raw`."""
    screen, stream = terminal(columns, rows)
    stream.feed(raw)
    return shown(screen)


def terminal(columns: int, rows: int) -> tuple[pyte.Screen, pyte.Stream]:
    screen = pyte.Screen(columns, rows)
    screen.set_mode(pyte.modes.LNM)  # what a terminal driver does: a newline also returns the carriage
    return screen, pyte.Stream(screen)


def shown(screen: pyte.Screen) -> list[str]:
    return [row.rstrip() for row in screen.display]


def live(columns: int, rows: int, clock: Clock | None = None) -> tuple[LiveConsole, Terminal]:
    """A live view that paints when told to, and what it wrote."""
    out = Terminal()
    console = make_console(out)
    console.size = (columns, rows)
    return LiveConsole(console, clock or Clock(), repaints_per_second=0), out


def after_steps(n: int, steps: int = 40) -> View:
    view = opening(replace(PLAN, steps=steps), 0.0)
    for i in range(1, n + 1):
        view = with_step(view, step(i, steps), 4.0 * i)
    return view


def row_with(rows: list[str], start: str) -> str:
    found = [row for row in rows if row.startswith(start)]
    assert len(found) == 1, f"{start!r} begins {len(found)} rows of\n" + "\n".join(rows)
    return found[0]


# --- numbers and pictures


@pytest.mark.parametrize(
    ("values", "width", "picture"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], 8, "▁▂▃▄▅▆▇█"),
        ([8, 1], 8, "█▁"),
        ([3, 3, 3], 8, "▄▄▄"),
        ([5], 8, "▄"),
        ([], 8, ""),
        ([1, 2], 0, ""),
        ([None, 1, 2], 8, " ▁█"),
        ([NAN, 0, 1, math.inf], 8, "·▁█·"),
        ([None, None], 8, "  "),
        ([NAN], 8, "·"),
        ([0, 0, 7, 7, 14, 14], 3, "▁▅█"),
        ([0, 10, 4, 6, 5, 5, 9, 9], 4, "▁▁▁█"),
        ([0, None, 14, 14], 2, "▁█"),
        ([0, NAN, 14, 14], 2, "·▄"),
        ([-1e308, 1e308], 8, "▁█"),
    ],
)
def test_sparkline(values, width, picture):
    assert sparkline(values, width) == picture


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (None, "-"),
        (NAN, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (0, "0"),
        (1.23456, "1.235"),
        (0.052, "0.0520"),
        (-12.3456, "-12.35"),
        (1234.5678, "1235"),
        (123456.7, "123457"),
        (3e-6, "3e-6"),
        (1.23456e-5, "1.235e-5"),
        (2e6, "2e6"),
    ],
)
def test_number(x, text):
    assert number(x) == text


def test_other_numbers():
    assert [percent(x) for x in (None, NAN, 0.0, 0.0004, 0.042, 0.07, 0.0996, 0.42, 1.0)] == [
        *("-", "nan", "0%", "<.1%", "4.2%", "7%", "10%", "42%", "100%"),
    ]
    assert [duration(x) for x in (None, 9.4, 80, 7500, 3 * 86400 + 4 * 3600)] == ["-", "9s", "1m20s", "2h05m", "3d04h"]
    assert [short_duration(x) for x in (0.0421, 1.2, 12.34, 80)] == ["42ms", "1.20s", "12.3s", "1m20s"]


def test_time_left():
    assert time_left([0.0], 5, now=3.0) is None
    assert time_left([0.0, 10.0, 20.0], 3, now=20.0) == 30.0
    assert time_left([0.0, 10.0, 20.0], 3, now=24.0) == 26.0
    assert time_left([0.0, 10.0, 20.0], 3, now=99.0) == 20.0, "a slow step leaves the others to do"
    assert time_left([0.0, 10.0], 0, now=11.0) == 0.0


def test_bars():
    assert [bar(x, 4) for x in (0, 1 / 32, 0.5, 1, 7, NAN)] == ["", "▏", "██", "████", "████", ""]
    assert progress(0, 3, 4) == ("", "────")
    assert progress(999, 1000, 4) == ("━━━", "─"), "full only when done"
    assert progress(3, 3, 4) == ("━━━━", "")
    assert progress(0, 0, 4) == ("", "────")


# --- foreign text


def test_clean():
    assert clean("a\nb\r\nc\td") == "a↵b↵c d"
    assert clean("\x1b[31mred\x07\x00\x7f") == "␛[31mred␇␀␡"
    assert clean("\x9b31m") == "�31m", "one-byte CSI"
    assert clean("a\u202eb\u200bc\ufe0fd\ud800e\u2028f") == "abcd�e↵f"
    assert clean("naïve 日本語 [b]") == "naïve 日本語 [b]"


def test_shortening():
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abcde…"
    assert cell_len(shorten("日本語日本語", 6)) <= 6
    assert shorten_path("outputs/a/b", 6) == "…s/a/b"
    assert fold("the quick brown fox", 10, 3) == ["the quick", "brown fox"]
    assert fold("the quick brown fox jumps over", 10, 2) == ["the quick", "brown fox…"]
    assert fold("x" * 25, 10, 9) == ["x" * 10, "x" * 10, "x" * 5]
    assert fold("", 10, 3) == []
    assert all(cell_len(line) <= 7 for line in fold("日本語" * 9, 7, 99))
    assert len(fold("日本", 1, 9)) == 2, "no endless loop where nothing fits"


# --- which reporter


def test_modes(monkeypatch, capsys):
    assert isinstance(open_console("live", Terminal()), LiveConsole)
    assert isinstance(open_console("plain", Terminal()), PlainConsole)
    assert isinstance(open_console("live", io.StringIO()), PlainConsole)
    with pytest.raises(ValueError, match="live, plain, quiet"):
        open_console("loud")
    ascii_only = Terminal()
    ascii_only.encoding = "ascii"
    assert isinstance(open_console("live", ascii_only), PlainConsole)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(open_console("live", Terminal()), PlainConsole)

    run_through(open_console("quiet"))
    assert capsys.readouterr() == ("", "")


def run_through(console) -> None:
    console.start(PLAN)
    console.phase("generate", 1, 2)
    console.step(step(1))
    console.warn(KL_WARNING)
    console.note("checkpoint written")
    console.finish(SUMMARY)
    console.close()


@pytest.mark.parametrize("mode", ["live", "plain"])
@pytest.mark.parametrize("setting", ["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"])
def test_no_escapes_without_a_terminal(mode, setting, monkeypatch):
    monkeypatch.setenv(setting, "1")
    out = io.StringIO()
    run_through(open_console(mode, out))
    print_sweep(MEMBERS, out)
    print_error(["error: no"], out)
    assert "finished" in out.getvalue()
    assert ESC not in out.getvalue()


COLOUR = re.compile(r"\x1b\[(\d+;)*(3[0-8]|4[0-8]|9[0-7])(;\d+)*m")


def test_no_color(monkeypatch):
    def written() -> str:
        console, out = live(80, 24)
        run_through(console)
        print_sweep(MEMBERS, out)
        print_error(["error: no"], out)
        return out.getvalue()

    assert COLOUR.search(written())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not COLOUR.search(written())


def test_dumb_terminal_gets_no_escapes(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    run_through(open_console("live", out))
    assert "step  1/40" in out.getvalue()
    assert ESC not in out.getvalue()


def test_a_lost_reader_or_character_does_not_stop_training():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

    run_through(open_console("plain", Closed()))

    raw = io.BytesIO()
    outlet = Outlet(io.TextIOWrapper(raw, encoding="ascii", newline="\n"))
    outlet.write("é→x\n")
    outlet.flush()
    assert raw.getvalue() == b"??x\n"


# --- plain


def test_plain_lines():
    clock, out = Clock(), io.StringIO()
    console = PlainConsole(make_console(out), clock)
    console.start(PLAN)
    for i in (1, 2):
        clock.now += 10
        console.step(step(i))
    assert out.getvalue().splitlines() == [
        "ppo  fn:mypkg.count_good",
        "  run folder   outputs/2025-06-01/12-00-00",
        "  steps        40",
        "  policy       tiny",
        "  value model  auto",
        "step  1/40  score  0.1250  kl 0.0500  ent  2.31  len 12.3  cut  25%  clip 4.2%  ev   nan   1234 tok/s"
        "  eta 6m30s",
        "step  2/40  score  0.2500  kl 0.0500  ent  2.31  len 12.3  cut  25%  clip 4.2%  ev  0.31   1234 tok/s"
        "  eta 6m20s",
    ]


def test_plain_leaves_out_what_was_never_measured():
    out = io.StringIO()
    console = PlainConsole(make_console(out), Clock())
    console.start(PLAN)
    for values in (
        {"objective/scores": 1.0},
        {"objective/scores": 2.0, "objective/kl": 0.5},
        {"objective/scores": 3.0},
    ):
        console.step(replace(step(1), metrics=values))
    assert [line.rpartition("  eta")[0] for line in out.getvalue().splitlines()[-3:]] == [
        "step  1/40  score   1.000",
        "step  1/40  score   2.000  kl 0.5000",
        "step  1/40  score   3.000  kl      -",
    ]


def test_plain_flushes_each_line():
    class Flushed(io.StringIO):
        kept = ""

        def flush(self):
            self.kept = self.getvalue()

    out = Flushed()
    console = open_console("plain", out)
    console.start(PLAN)
    for i in (1, 2, 3):
        console.step(step(i))
        assert out.kept.splitlines()[-1].startswith(f"step  {i}/40")


def test_plain_never_breaks_a_step_line_on_a_narrow_terminal():
    out = Terminal()
    console = make_console(out)
    console.size = (60, 24)
    plain = PlainConsole(console, Clock())
    plain.start(PLAN)
    plain.step(step(1))
    assert out.getvalue().splitlines()[-1].endswith("eta 0s")


def test_plain_warns_once_a_key():
    out = io.StringIO()
    console = open_console("plain", out)
    for warning in (KL_WARNING, replace(KL_WARNING, what="KL is 10 nats"), Warning("b", "\x1b[2Jboo", "c", "d")):
        console.warn(warning)
    console.note("saved\nit")
    assert out.getvalue().splitlines() == [
        "warning: KL is 9 nats",
        "  cause:   algo.kl_coef is too small",
        "  change:  raise algo.kl_coef to 0.05",
        "warning: ␛[2Jboo",
        "  cause:   c",
        "  change:  d",
        "note: saved↵it",
    ]


# --- live: the layout


def test_frame_at_80_columns():
    view = with_phase(after_steps(12), "update", 3, 16, now=48.0)
    rows = [line.plain.rstrip() for line in frame(view, 79, 23, now=49.5)]
    assert rows[0].split() == ["ppo", "fn:mypkg.count_good", "outputs/2025-06-01/12-00-00"]
    assert row_with(rows, "step 12/40").endswith(" 30%  elapsed 50s  eta 1m50s")
    assert "last 12 steps" in rows[3]
    assert re.match(r"score +1\.500  ▁[▁-█]{10}█ +generate █+▌ +50%  2\.00s$", row_with(rows, "score"))
    assert re.match(r"kl   +0\.0500  ▄{12} +score +[▉-▏] +12%  0\.50s$", row_with(rows, "kl  "))
    assert "2.314" in row_with(rows, "entropy")
    assert "12.34" in row_with(rows, "length")
    assert "25%" in row_with(rows, "truncated")
    assert "4.2%" in row_with(rows, "clip fraction")
    assert "0.3125  ·▄" in row_with(rows, "expl. variance")
    assert "1234" in row_with(rows, "tokens/s")
    assert "3e-6" in row_with(rows, "learning rate")
    assert any("▸ update" in row for row in rows)
    assert any("update 3/16  for 1.50s" in row for row in rows)
    assert any(row.endswith("save") for row in rows), "a phase without seconds is listed"


def test_a_phase_has_its_own_clock_and_ends_with_the_step():
    def current(view: View, now: float) -> list[str]:
        return [line.plain[46:].strip() for line in frame(view, 79, 23, now) if "for " in line.plain[46:]]

    view = with_phase(after_steps(1), "generate", 1, 8, now=10.0)
    view = with_phase(view, "generate", 2, 8, now=11.0)
    assert current(view, 12.5) == ["generate 2/8  for 2.50s"]
    assert current(with_phase(view, "update", 1, 4, now=12.0), 12.5) == ["update 1/4  for 0.50s"]
    assert current(with_phase(view, "generate", 1, 8, now=12.0), 12.5) == ["generate 1/8  for 0.50s"], (
        "of the next step"
    )
    assert current(with_phase(view, "judge", 0, 0, now=12.0), 12.5) == ["judge  for 0.50s"]
    assert current(with_step(view, step(2), 12.0), 12.5) == []


def test_frame_shows_the_first_step_beside_the_last_when_wide():
    rows = [line.plain for line in frame(after_steps(12), 139, 39, now=50.0)]
    assert re.match(r"score +1\.500 +0\.1250  ▁", row_with(rows, "score"))
    assert not re.match(
        r"score +1\.500 +0\.1250  ▁", row_with([r.plain for r in frame(after_steps(12), 79, 23, 50.0)], "score")
    )


@pytest.mark.parametrize("columns", [1, 7, 30, 43, 44, 60, 71, 72, 79, 100, 139, 300])
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 12, 23, 39])
def test_frame_fits(columns, rows):
    long = Sample("日本語 " * 300, "wide 日本語 and " * 200, -1.23456e-5, True, kl=1.5)
    view = replace(after_steps(12), best=long, worst=long, title="t" * 200, run_dir="/very/long" * 20)
    view = with_phase(view, "generate", 1, 1000, 50.0)
    for i in range(5):
        view = with_note(with_warning(view, Warning(str(i), "what " * 40, "cause " * 40, "change " * 40)), "note " * 40)
    lines = frame(view, columns, rows, 50.0)
    assert 0 < len(lines) <= rows
    assert max(line.cell_len for line in lines) <= columns
    assert all("\n" not in line.plain for line in lines)


def test_frame_gives_up_the_less_important_when_low():
    view = with_note(with_warning(after_steps(12), KL_WARNING), "checkpoint written")

    def parts(rows: int) -> list[str]:
        text = "\n".join(line.plain for line in frame(view, 79, rows, 50.0))
        names = ("step 12/40", "KL is 9 nats", "score ", "learning rate", "[red]good", "checkpoint written")
        return [name.strip() for name in names if name in text]

    assert parts(39) == ["step 12/40", "KL is 9 nats", "score", "learning rate", "[red]good", "checkpoint written"]
    assert parts(23) == parts(39)
    assert parts(19) == ["step 12/40", "KL is 9 nats", "score", "learning rate", "[red]good"]
    assert parts(16) == ["step 12/40", "KL is 9 nats", "score", "learning rate"]
    assert parts(11) == ["step 12/40", "KL is 9 nats", "score"]
    assert parts(3) == ["step 12/40", "score"]


def test_frame_shows_the_latest_warnings_that_fit_and_counts_the_others():
    view = after_steps(3)
    for i in range(4):
        view = with_warning(view, Warning(f"k{i}", f"what {i}", f"cause {i}", f"change {i}"))
    text = "\n".join(line.plain for line in frame(view, 79, 15, 50.0))
    assert [i for i in range(4) if f"▲ what {i}" in text and f"cause   cause {i}" in text] == [2, 3]
    assert "what 2   (+2 earlier)" in text


def test_frame_leaves_out_metrics_the_algorithm_does_not_have():
    values = {k: v for k, v in metrics(1).items() if k != "value/explained_variance"}
    start = opening(PLAN, 0.0)
    before = [line.plain for line in frame(start, 79, 23, 0.0)]
    after = [line.plain for line in frame(with_step(start, replace(step(1), metrics=values), 1.0), 79, 23, 1.0)]
    assert row_with(before, "expl. variance").split() == ["expl.", "variance", "-"]
    assert not [row for row in after if row.startswith("expl. variance")]


def test_a_metric_measured_late_keeps_its_place_in_time():
    view = opening(PLAN, 0.0)
    for i, values in enumerate(({}, {}, {"objective/kl": 1.0}, {"objective/kl": 2.0})):
        view = with_step(view, replace(step(i + 1), metrics={"objective/scores": 1.0, **values}), float(i))
    assert "2.000    ▁█" in row_with([line.plain for line in frame(view, 79, 23, 5.0)], "kl  ")


# --- live: on a terminal


def assert_screen_ends_with_frame(screen_rows: list[str], console: LiveConsole, columns: int, rows: int) -> int:
    """The frame stands on the screen row by row: nothing wrapped, nothing left over. Returns its first row."""
    expected = [line.plain.rstrip() for line in console._lines(columns - 1, rows - 1)]
    last = max(i for i, row in enumerate(screen_rows) if row)
    top = last + 1 - len(expected)
    assert screen_rows[top : last + 1] == expected
    return top


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (140, 40), (60, 12), (30, 5)])
def test_every_repaint_leaves_exactly_one_frame(columns, rows):
    clock = Clock()
    console, out = live(columns, rows, clock)
    screen, stream = terminal(columns, rows)
    sent = 0

    def paint() -> None:
        nonlocal sent
        console.refresh()
        stream.feed(out.getvalue()[sent:])
        sent = len(out.getvalue())
        assert_screen_ends_with_frame(shown(screen), console, columns, rows)
        assert "\n".join(shown(screen)).count("step ") <= 1 + 3, "an older frame is still there"

    console.start(PLAN)
    paint()
    for i in range(29, 41):
        console.phase("generate", 1, 2)
        clock.now += 1
        paint()
        if i == 31:
            console.warn(KL_WARNING)
            console.warn(replace(KL_WARNING, what="KL is 10 nats"))
            console.note("checkpoint written")
        console.step(step(i))
        paint()
    assert screen.cursor.hidden
    text = "\n".join(shown(screen))
    assert "step 40/40" in text
    assert "100%" in text
    if rows >= 24:
        assert text.count("▲") == 1
        assert "KL is 9 nats" in text
        assert "[red]good[/red] day↵and [bold]more" in text
        assert "-2.250" in text


def test_progress_is_100_percent_only_after_the_last_step():
    for done, shown_percent in ((0, "0%"), (1, "0%"), (398, "99%"), (399, "99%"), (400, "100%")):
        view = replace(after_steps(1, steps=400), step=done)
        row = row_with([line.plain for line in frame(view, 79, 23, 50.0)], f"step {done}/400")
        assert re.search(r"(\d+%)", row).group(1) == shown_percent
        assert ("─" not in row) == (done == 400)


def test_what_a_model_writes_cannot_reach_the_terminal_as_control():
    console, out = live(80, 24)
    console.start(replace(PLAN, title="t\x1b[5m"))
    evil = Sample("\x1b]0;title\x07", "\x1b[2J\x1b[31m\x9b1m\x08\r[blink]", 1.0)
    console.step(replace(step(1), best=evil))
    console.note("\x1b[5m")
    console.warn(Warning("k", "\x1b[5m", "\x1b[5m", "\x1b[5m"))
    console.refresh()
    blink = "\x1b[5m"
    console.finish(replace(SUMMARY, reason=blink, before=evil, next_commands=(blink,), files=(("l", blink),)))
    raw = out.getvalue()
    assert not re.search(r"\x1b\[5m|\x1b\[2J|\x1b\]|\x9b|\x07|\x08", raw)
    assert "␛[2J␛[31m�1m␈␍[blink]" in "\n".join(seen(raw, 80, 99))


def test_prompt_is_dim_and_response_is_not():
    console, out = live(80, 24)
    console.start(PLAN)
    console.step(step(1))
    console.refresh()
    raw = out.getvalue()
    assert re.search(r"\x1b\[2m[^\x1b]*Say something↵nice", raw)
    assert re.search(r"\x1b\[0m\[red\]good\[/red\]", raw)


def test_final_frame_stays_with_warnings_and_summary_below_and_history_above():
    console, out = live(80, 24)
    out.write("my history\n")
    console.start(PLAN)
    for i in range(1, 41):
        console.step(step(i))
    console.warn(KL_WARNING)
    console.refresh()
    console.finish(SUMMARY)
    console.close()
    rows = seen(out.getvalue(), 80, 99)
    assert rows[0] == "my history"
    assert "100%" in row_with(rows, "step 40/40")
    assert row_with(rows, "step 40/40").endswith("finished")
    order = [row for row in rows if row.startswith(("step 40/40", "warning: KL is 9", "finished after"))]
    assert [row.split()[0] for row in order] == ["step", "warning:", "finished"], "each once, in this order"
    assert "▲" not in "\n".join(rows)


def test_terminal_is_given_back_after_an_exception(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    console = LiveConsole(make_console(), repaints_per_second=100)
    screen, stream = terminal(80, 60)
    with pytest.raises(KeyboardInterrupt):
        try:
            console.start(PLAN)
            console.step(step(1))
            assert sys.stdout is not out, "prints are led above the frame"
            raise KeyboardInterrupt
        finally:
            console.close()
            console.close()
    assert sys.stdout is out
    stream.feed(out.getvalue())
    assert not screen.cursor.hidden
    assert screen.cursor.x == 0, "the prompt starts on a line of its own"
    assert "step 1/40" in "\n".join(shown(screen))
    painted = len(out.getvalue())
    time.sleep(0.05)
    assert len(out.getvalue()) == painted, "nothing is painted afterwards"


def test_it_repaints_by_itself(monkeypatch):
    console = LiveConsole(make_console(out := Terminal()), repaints_per_second=100)
    console.start(PLAN)
    console.step(step(7))
    deadline = time.monotonic() + 2
    while "step 7/40" not in out.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    written = out.getvalue()
    console.close()
    assert "step 7/40" in written


def test_prints_and_logs_of_others_go_above_the_frame(monkeypatch):
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    handler = logging.StreamHandler(out)
    logger = logging.getLogger("rlctl.test_console")
    logger.addHandler(handler)
    rich_console = make_console()
    rich_console.size = (80, 24)
    console = LiveConsole(rich_console, Clock(), repaints_per_second=0)
    try:
        console.start(PLAN)
        console.step(step(1))
        console.refresh()
        sys.stdout.write("reward says [red]hi[/red]\n")
        sys.stdout.write("[red]thinking[/red]")
        sys.stdout.flush()
        logger.error("library says no")
        rows = seen(out.getvalue(), 80, 60)
        top = assert_screen_ends_with_frame(rows, console, 80, 24)
        assert rows[top - 3 : top] == ["reward says [red]hi[/red]", "[red]thinking[/red]", "library says no"]
    finally:
        console.close()
        logger.removeHandler(handler)
    assert handler.stream is out


def test_resizing_leaves_no_remains():
    out = Terminal()
    rich_console = make_console(out)
    rich_console.size = (120, 40)
    console = LiveConsole(rich_console, Clock(), repaints_per_second=0)
    console.start(PLAN)
    console.step(step(1))
    console.refresh()
    before = len(out.getvalue())

    # a terminal that became narrower shows what it held as if it had been written there at once: long rows wrap
    screen, stream = terminal(70, 60)
    lines = seen(out.getvalue(), 120, 60)
    while not lines[-1]:
        lines.pop()
    stream.feed("\n".join(lines))
    assert "█" in "\n".join(shown(screen))
    rich_console.size = (70, 30)
    console.refresh()
    stream.feed(out.getvalue()[before:])
    rows = shown(screen)
    top = assert_screen_ends_with_frame(rows, console, 70, 30)
    assert rows[: top - 1] == [line for line in lines[: top - 1]]
    assert rows[top - 1] == ""
    assert rows[top - 2] == "  value model  auto"

    before = len(out.getvalue())
    rich_console.size = (120, 40)
    screen.resize(60, 120)
    console.refresh()
    stream.feed(out.getvalue()[before:])
    assert assert_screen_ends_with_frame(shown(screen), console, 120, 40) == top


# --- summary

COMMAND = (
    "rlctl resume outputs/2025-06-01/12-00-00 run.steps=80 reward.args.pattern='a b' algo.kl_coef=0.05 optim.lr=1e-6"
)
SUMMARY = Summary(
    status="finished",
    reason="all 40 steps done",
    run_dir=PLAN.run_dir,
    steps_done=40,
    seconds=83.0,
    first={"objective/scores": 0.125, "objective/kl": 0.0},
    last={"objective/scores": 5.0, "objective/kl": 0.05},
    best_step=37,
    best_score=5.125,
    before=Sample("Say\nit", "dull [x]", 0.0),
    after=Sample("Say\nit", "bright", 5.0),
    files=(("policy", "outputs/2025-06-01/12-00-00/" + "long/" * 20), ("metrics", "m.jsonl")),
    next_commands=(COMMAND,),
)


def printed_summary(summary: Summary, columns: int = 80) -> list[str]:
    console = make_console(out := io.StringIO())
    console.size = (columns, 24)
    print_summary(console, summary)
    return out.getvalue().splitlines()


def test_summary():
    assert printed_summary(SUMMARY) == [
        "finished after 40 steps in 1m23s",
        "  all 40 steps done",
        "",
        "  score   0.1250 -> 5.000   best 5.125 at step 37",
        "  kl      0 -> 0.0500",
        "",
        "  prompt           Say↵it",
        "  before        0  dull [x]",
        "  after     5.000  bright",
        "",
        "  policy   outputs/2025-06-01/12-00-00/" + "long/" * 20,
        "  metrics  m.jsonl",
        "",
        "next:",
        f"  {COMMAND}",
    ]


def test_summary_keeps_commands_whole_on_a_narrow_terminal():
    out = Terminal()
    console = make_console(out)
    console.size = (40, 24)
    print_summary(console, replace(SUMMARY, after=Sample("Say\nit", "word " * 99, 5.0)))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert f"  {COMMAND}" in lines
    sample = lines[lines.index("") :]
    assert all(len(line) < 40 for line in sample if "word" in line), "samples are fitted, unlike commands"
    assert sum("word" in line for line in sample) == 3


def test_summary_of_an_early_end():
    early = Summary("failed", "the loss is nan", PLAN.run_dir, steps_done=0, seconds=1.0)
    assert printed_summary(early) == ["failed after 0 steps in 1s", "  the loss is nan"]
    for status, words in (
        ("stopped", "stopped at a limit you set after 1 step "),
        ("interrupted", "interrupted after 1 step "),
    ):
        lines = printed_summary(replace(SUMMARY, status=status, steps_done=1))
        assert lines[0].startswith(words)
        assert "to go on:" in lines


def test_summary_colours_tell_the_endings_apart():
    styles = set()
    for status in ("finished", "stopped", "interrupted", "failed"):
        out = Terminal()
        print_summary(make_console(out), replace(SUMMARY, status=status))
        styles.add(out.getvalue().partition("m")[0])
    assert len(styles) == 4


def test_summary_names_both_prompts_when_they_differ():
    lines = printed_summary(replace(SUMMARY, after=Sample("Other", "bright", 5.0)))
    assert [line.split()[-1] for line in lines if line.startswith("  prompt")] == ["Say↵it", "Other"]


# --- sweep and errors


def member(number: int, last: float | None, *overrides: str, **more) -> RunRow:
    common = ["algo=ppo", "reward=fn:mypkg.count_good"]
    facts = {"status": "finished", "error": None, **more}
    return RunRow(
        number, [*common, *overrides], first_score=0.5, last_score=last, best_score=last, last_kl=0.25, seconds=80.0,
        run_dir=f"multirun/x/{number}", **facts,
    )  # fmt: skip


MEMBERS = [
    member(0, 9.0, "algo.kl_coef=0.1", status="failed", error="error: loss [red]is nan[/red]\n  why: x"),
    member(1, 1.0, "algo.kl_coef=0.2"),
    member(2, NAN, "algo.kl_coef=0.3", status="interrupted"),
    member(3, 2.5, "algo.kl_coef=0.4", "data.prompt_column='a b'"),
    member(4, None, "algo.kl_coef=0.5"),
    member(5, -1.0, "algo.kl_coef=0.6"),
]


def printed_sweep(rows: list[RunRow]) -> list[str]:
    print_sweep(rows, out := io.StringIO())
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_sweep_ranks_members():
    assert printed_sweep(MEMBERS) == [
        "#   score   first    best      kl   time  overrides that differ",
        "3   2.500  0.5000   2.500  0.2500  1m20s  algo.kl_coef=0.4  data.prompt_column='a b'",
        "1   1.000  0.5000   1.000  0.2500  1m20s  algo.kl_coef=0.2",
        "5  -1.000  0.5000  -1.000  0.2500  1m20s  algo.kl_coef=0.6",
        "2     nan  0.5000     nan  0.2500  1m20s  algo.kl_coef=0.3",
        "                                          interrupted",
        "4       -  0.5000       -  0.2500  1m20s  algo.kl_coef=0.5",
        "0  failed  0.5000   9.000  0.2500  1m20s  algo.kl_coef=0.1",
        "                                          error: loss [red]is nan[/red]",
        "",
        "best: 3  in multirun/x/3",
        """  algo=ppo reward=fn:mypkg.count_good algo.kl_coef=0.4 'data.prompt_column='"'"'a b'"'"''""",
    ]


def test_sweep_fits_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    long = [
        replace(row, overrides=[*row.overrides, f"optim.lr={row.number}", f"model=hf:{'x' * 60}{row.number}"])
        for row in MEMBERS
    ]
    out = Terminal()
    print_sweep(long, out)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    table, rest = lines[: lines.index("")], lines[lines.index("") :]
    assert max(map(len, table)) <= 80
    assert re.search(r"\x1b\[31m *failed", out.getvalue())
    assert rest[-1].endswith(f"optim.lr=3 model=hf:{'x' * 60}3"), "what is to be copied is whole"


def test_sweep_without_a_winner():
    assert printed_sweep(MEMBERS[:1])[-1] == "no member ended with a score"
    assert printed_sweep([]) == ["nothing ran"]


def test_sweep_of_one_shows_its_overrides():
    assert "algo=ppo" in printed_sweep([MEMBERS[1]])[1]


LINES = ["error: no such [bold]reward[/bold]: " + "x" * 100 + " 123", "  why:  'a' is not 1.5", "  try:  reward=fn:a.b"]


def test_error_without_a_terminal(capsys):
    print_error(LINES)
    out, err = capsys.readouterr()
    assert err.splitlines() == LINES
    assert out == ""


def test_error_on_a_terminal():
    print_error(LINES, out := Terminal())
    lines = out.getvalue().splitlines()
    assert lines[0] == "\x1b[1;31merror:\x1b[0m" + LINES[0].removeprefix("error:")
    assert lines[1:] == LINES[1:]


def test_importing_the_console_imports_nothing_heavy():
    heavy = ("torch", "transformers", "hydra", "omegaconf")
    code = f"import sys, rlctl.console; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
