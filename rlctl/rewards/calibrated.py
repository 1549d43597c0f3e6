"""A reward calibrated against a known answer: sigmoid(r(response) - r(baseline)).

Source: Xu et al., "The Perfect Blend" (CGPO), arXiv 2409.20370, section 4.1.1, eq. 5. With a Bradley-Terry model r it is the
probability that the response is preferred to the baseline. It makes scores of different prompts comparable and bounded; the order
of responses to one prompt stays. The missing-end penalty, which the paper lacks, comes off both sides before the sigmoid.

A baseline belongs to a row of the data, never to a prompt's text, and is scored once in a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rlctl.config.schema import Batching, CalibratedRewardConfig
from rlctl.data import Prompt, Prompts
from rlctl.errors import DataError
from rlctl.report import Warning
from rlctl.rewards.base import Reward, Scored
from rlctl.rewards.model import ModelReward
from rlctl.rollout import Samples

SATURATED = 5.0
"""Differences beyond this are told apart by less than 0.007."""


class CalibratedReward(Reward):
    """Any reward, seen from a baseline."""

    takes_penalty = True

    def __init__(self, config: CalibratedRewardConfig, base: Reward, penalty: float):
        self.name = f"calibrated {base.name}"
        self.config, self.base, self.penalty = config, base, penalty
        self.runs_beside = base.runs_beside
        self.baselines: dict[int, tuple[str, bool]] = {}
        """Row -> (answer without its prompt, whether it was cut)."""
        self._scores: dict[int, float] = {}
        self._differences: list[float] = []

    def check(self, prompts: Prompts) -> None:
        """Take every row's baseline from its column (unless they are to be sampled) and refuse what cannot be one.

        Raises:
            DataError: the column or a row's answer is missing, or too long for the reward model; it names the row.
        """
        self.base.check(prompts)
        if self.config.baseline != "column":
            return
        column = self.config.baseline_column
        if column not in prompts.columns:
            raise DataError(
                f"reward=calibrated needs a baseline for each prompt, and the data has no column {column!r}",
                f"its columns are: {', '.join(prompts.columns) or 'none'}",
                "reward.baseline_column=NAME, or reward.baseline=sample",
            )
        answers = (baseline_answer(p, column, self.config.baseline_includes_prompt) for p in prompts.items)
        self.set_baselines(prompts.items, ((answer, False) for answer in answers))

    def set_baselines(self, prompts: list[Prompt], answers: Iterable[tuple[str, bool]]) -> None:
        """Give each prompt's row its baseline: (answer without the prompt, whether it was cut).

        Raises:
            DataError: a baseline would be truncated by the reward model.
        """
        for prompt, (answer, cut) in zip(prompts, answers, strict=True):
            self.baselines[prompt.row] = (answer, cut)
            one = self._as_samples([prompt.row], [prompt.text], [prompt.messages], [prompt.columns])
            if isinstance(self.base, ModelReward) and self.base.too_long(one, 0):
                raise DataError(
                    f"the baseline of row {prompt.row} is longer than the reward model's {self.base.limit} tokens",
                    "cut, it would be another answer; with its prompt it begins: " + repr(one.texts[0][:60]),
                    "data.overlong=drop with a lower data.max_prompt_tokens, or leave the row out",
                )

    def score(self, samples: Samples) -> list[float]:
        """In (0, 1); 0.5 for the baseline itself."""
        return self.scored(samples).scores

    def scored(self, samples: Samples) -> Scored:
        """Calibrated scores, with raw score, baseline score and their difference."""
        new = {row: i for i, row in reversed(list(enumerate(samples.rows))) if row not in self._scores}
        fresh = self.baseline_samples(samples, list(new.values())) if new else None
        if fresh is not None and self.config.batching is Batching.joint:
            both = self.base.score(_joined(samples, fresh))
            raw, baseline = both[: len(samples)], both[len(samples) :]
        else:
            raw, baseline = self.base.score(samples), self.base.score(fresh) if fresh is not None else []
        self._scores |= dict(zip(new, baseline, strict=True))
        against = [self._scores[row] - self.penalty * self.baselines[row][1] for row in samples.rows]
        mine = [r - self.penalty * cut for r, cut in zip(raw, samples.truncated, strict=True)]
        difference = [a - b for a, b in zip(mine, against, strict=True)]
        self._differences = difference
        parts: dict[str, list[float | None]] = {"raw": [*mine], "baseline": [*against], "difference": [*difference]}
        return Scored([sigmoid(d) for d in difference], parts)

    def state(self) -> dict[str, Any]:
        """Baselines that were sampled, and every score so far: which were scored together shows in a score's last digits."""
        sampled = {row: list(answer) for row, answer in self.baselines.items()} if self.config.baseline == "sample" else {}
        return {"baselines": sampled, "scores": dict(self._scores), "base": self.base.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        self.baselines |= {row: (text, cut) for row, (text, cut) in state["baselines"].items()}
        self._scores |= state["scores"]
        self.base.restore(state["base"])

    def warnings(self) -> list[Warning]:
        """The base's, and one when most differences lie where the sigmoid is flat."""
        found = self.base.warnings()
        flat = sum(abs(d) > SATURATED for d in self._differences)
        if self._differences and flat > 0.5 * len(self._differences):
            share = flat / len(self._differences)
            found.append(
                Warning(
                    "saturated",
                    f"{share:.0%} of the calibrated scores are saturated: the difference to the baseline is beyond {SATURATED:g}",
                    "the reward's scale is too large for a sigmoid, so better and worse look alike",
                    "a reward of smaller scale, or reward=model:PATH with algo.score_normalization=running",
                )
            )
        return found

    def baseline_samples(self, samples: Samples, places: list[int]) -> Samples:
        """The baselines of the rows at these places, as samples of their own."""
        rows = [samples.rows[i] for i in places]
        messages = [samples.messages[i] if samples.messages is not None else None for i in places]
        columns = [{name: values[i] for name, values in samples.columns.items()} for i in places]
        return self._as_samples(rows, [samples.prompts[i] for i in places], messages, columns)

    def _as_samples(self, rows: list[int], prompts: list[str], messages: list[Any], columns: list[dict[str, Any]]) -> Samples:
        answers = [self.baselines[row][0] for row in rows]
        return Samples(
            prompts,
            answers,
            [p + a for p, a in zip(prompts, answers, strict=True)],
            {name: [c[name] for c in columns] for name in columns[0]},
            messages if messages[0] is not None else None,
            [self.baselines[row][1] for row in rows],
            rows,
        )


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), for any finite x."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


def baseline_answer(prompt: Prompt, column: str, includes_prompt: bool | None, what: str = "baseline") -> str:
    """The answer in a row's column, without the prompt; `what` is what messages call it.

    Raises:
        DataError: there is none, or it does not begin with the prompt though it should.
    """
    value = prompt.columns[column]
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")  # chat: the last message is the answer
    elif isinstance(value, str):
        asked = prompt.text if prompt.whole is None else prompt.whole
        starts = value.startswith(asked)
        if includes_prompt and not starts:
            raise DataError(
                f"the baseline of row {prompt.row} does not begin with its prompt",
                f"column {column!r} holds {value[:60]!r}",
                "reward.baseline_includes_prompt=false",
            )
        if starts and includes_prompt is not False:
            value = value[len(asked) :]
    if not isinstance(value, str) or not value.strip():
        raise DataError(
            f"row {prompt.row} has no {what}",
            f"column {column!r} holds {prompt.columns[column]!r:.80}",
            "fill it in, leave the row out, or reward.baseline=sample" if what == "baseline" else "fill it in, or leave the row out",
        )
    return value


def _joined(a: Samples, b: Samples) -> Samples:
    return Samples(
        a.prompts + b.prompts,
        a.responses + b.responses,
        a.texts + b.texts,
        {name: values + b.columns[name] for name, values in a.columns.items()},
        a.messages + b.messages if a.messages is not None and b.messages is not None else None,
        a.truncated + b.truncated,
        a.rows + b.rows,
    )
