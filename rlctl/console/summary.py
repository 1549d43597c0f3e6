"""The closing summary of a run, the same below a live view and below plain lines.

Samples are shortened; paths and commands never are, and no line break is put into them: they are there to be copied.
"""

from __future__ import annotations

from rich.console import Console

from rlctl.console.fields import fields_of
from rlctl.console.numbers import duration, number
from rlctl.console.stream import say
from rlctl.console.text import clean, clean_sample, fold
from rlctl.report import Sample, Summary

SAMPLE_ROWS = 3
READABLE = 110
"""Width of a sample's lines, where the terminal is not narrower or there is none."""

ENDINGS = {
    "finished": ("finished", "bold green", "next"),
    "stopped": ("stopped at a limit you set", "bold cyan", "to go on"),
    "interrupted": ("interrupted", "bold yellow", "to go on"),
    "failed": ("failed", "bold red", "next"),
}
"""status: (wording, style, heading of the commands)."""

COMPARED = ("objective/scores", "objective/kl", "sft/loss", "sft/held_out_loss", "rm/loss", "rm/accuracy", "rm/held_out_accuracy")
"""First and last value of these, of every task."""


def print_summary(console: Console, summary: Summary) -> None:
    """How it ended, what changed, one response before and after, what was written and what to type next."""
    wording, style, heading = ENDINGS.get(summary.status, (summary.status, "bold", "next"))
    steps = "1 step" if summary.steps_done == 1 else f"{summary.steps_done} steps"
    say(console, (wording, style), f" after {steps} in {duration(summary.seconds)}")
    if summary.reason:
        say(console, f"  {clean(summary.reason)}")
    _print_change(console, summary)
    _print_samples(console, summary)
    if summary.files:
        say(console)
        width = max(len(label) for label, _ in summary.files)
        for label, path in summary.files:
            say(console, (f"  {label:<{width}}  ", "dim"), clean(path))
    if summary.next_commands:
        say(console)
        say(console, (f"{heading}:", "bold"))
        for command in summary.next_commands:
            say(console, f"  {clean(command)}")


def _print_change(console: Console, summary: Summary) -> None:
    names = dict.fromkeys([*summary.first, *summary.last])
    rows = [(f.label, f.metric) for f in fields_of(names) if f.metric in names and f.metric.endswith(COMPARED)]
    if rows:
        say(console)
    width = max((len(label) for label, _ in rows), default=6)
    for label, name in rows:
        first, last = number(summary.first.get(name)), number(summary.last.get(name))
        best = ""
        if name == "objective/scores" and summary.best_step is not None:
            best = f"   best {number(summary.best_score)} at step {summary.best_step}"
        say(console, (f"  {clean(label):<{max(6, width)}}  ", "dim"), f"{first} -> ", (last, "bold"), (best, "dim"))


def _print_samples(console: Console, summary: Summary) -> None:
    pair = [(label, clean_sample(s)) for label, s in (("before", summary.before), ("after", summary.after)) if s]
    if not pair:
        return
    say(console)
    prompts = [sample.prompt for _, sample in pair]
    shared = len(set(prompts)) == 1
    if shared:
        _print_folded(console, "prompt", "", prompts[0], "dim")
    for label, sample in pair:
        if not shared:
            _print_folded(console, "prompt", "", sample.prompt, "dim")
        _print_folded(console, label, number(sample.score), *_response(sample))


def _response(sample: Sample) -> tuple[str, str]:
    return (sample.response, "") if sample.response else ("(empty)", "dim")


def _print_folded(console: Console, label: str, score: str, text: str, style: str) -> None:
    indent = f"  {label:<6}  {score:>7}  "
    width = min(READABLE, console.width - 1) if console.is_terminal else READABLE
    for i, line in enumerate(fold(text, width - len(indent), SAMPLE_ROWS) or [""]):
        say(console, (indent if i == 0 else " " * len(indent), "dim"), (line, style))
