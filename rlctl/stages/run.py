"""A stage as a page: rows, weights, TRL's trainer, the result saved whole, a summary. Read it top to bottom.

Mistakes are found in the order in which they are cheapest: config and tokenizer, then rows, weights last.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import transformers

from rlctl import checkpoint, models, weights
from rlctl.config.roots import root_of
from rlctl.config.stages import RMStage, SFTStage, Stage, microbatch_size
from rlctl.devices import check_device
from rlctl.errors import ModelError, RlctlError, TrainingError
from rlctl.models import Source
from rlctl.record import environment, write_json, write_summary
from rlctl.report import Plan, Reporter, Summary
from rlctl.stages import bridge as logs
from rlctl.stages import load
from rlctl.stages.rows import Rows, Split, rm_rows, sft_rows
from rlctl.trouble import first_line, is_out_of_memory, needed


@dataclass
class Run:
    """What is known of a stage under way."""

    config: Stage
    reporter: Reporter
    started: float = field(default_factory=time.perf_counter)
    history: list[dict[str, float]] = field(default_factory=list)
    """The metrics of each line told."""
    updates: int = 0
    """Updates made."""

    def count(self, updates: int) -> None:
        """So many updates are made."""
        self.updates = updates

    @property
    def dir(self) -> Path:
        """The run folder."""
        return Path(self.config.run.dir)

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and shows."""
        return int(os.environ.get("RANK", "0")) == 0

    @property
    def result(self) -> Path:
        """Where the trained model goes."""
        return self.dir / ("policy" if isinstance(self.config, SFTStage) else "reward")


def run(config: Stage, reporter: Reporter) -> Summary:
    """Run a stage and leave its run folder behind.

    Raises:
        RlctlError: something the user can act on; the run folder says so too, and holds no model.
    """
    this = Run(config, reporter)
    try:
        train(this)
        summary = summarise(this, "finished", f"all {this.updates} updates done")
        reporter.finish(summary)
        return summary
    except KeyboardInterrupt:
        reporter.finish(summarise(this, "interrupted", "interrupted from the keyboard; no model was saved"))
        raise
    except BaseException as error:
        told = understood(error, config)
        summarise(this, "failed", told.what if isinstance(told, RlctlError) else f"{type(told).__name__}: {told}")
        if told is error:
            raise
        raise told from error


def understood(error: BaseException, config: Stage) -> BaseException:
    """The error itself, or one that says what to change."""
    if not is_out_of_memory(error):
        return error
    now = microbatch_size(config)
    lower = f"optim.microbatch_size={now // 2} (now {now}; results stay the same)"
    other = "model.gradient_checkpointing=true, a smaller data.max_length, or model.dtype=bfloat16"
    return TrainingError("out of memory", f"{needed(error)}\n{first_line(error)}", lower if now > 1 else other)


def train(this: Run) -> None:
    """Everything from the rows to the saved model."""
    config = this.config
    source, rows, model = prepare(config)
    use_cache = model.config.use_cache
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL tells its makers of each start; a run tells nobody
    from rlctl.stages import trainer as trl

    parts = trl.split(rows, config)
    bridge = logs.Bridge(_NAMES[type(config)], this.reporter, this.dir, this.count)
    make: Any = trl.sft_trainer if isinstance(config, SFTStage) else trl.rm_trainer
    trainer = make(config, source, model, parts, bridge)
    facts = tuple(plan(config, source, model, rows, parts, trainer.args))
    if this.is_main:
        write_json(this.dir / "env.json", environment(trainer.accelerator))
        write_json(this.dir / "plan.json", dict(facts))
    this.reporter.start(Plan(title(config), this.dir, trl.updates(config, len(parts.train)), facts))
    for warning in rows.warnings:
        this.reporter.warn(warning)

    def measured() -> dict[str, float]:
        return logs.renamed(_HELD_OUT[type(config)], trainer.evaluate(parts.held_out)) if parts.held_out is not None else {}

    this.history, bridge.measure = bridge.history, measured
    trainer.train()
    bridge.close()
    save(this, trainer, source, use_cache)


_NAMES = {SFTStage: logs.SFT_NAMES, RMStage: logs.RM_NAMES}
_HELD_OUT = {SFTStage: logs.SFT_HELD_OUT, RMStage: logs.RM_HELD_OUT}


def prepare(config: Stage) -> tuple[Source, Rows, Any]:
    """Tokenizer, rows and weights.

    Raises:
        RlctlError: whatever is wrong with them.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    check_device(config.launch.device, config.launch.processes)
    source = models.open_source(config.model.policy(), "model")
    if source.adapter is not None:
        why = "the stages before PPO train whole models"
        raise ModelError(f"the model {source.name} cannot be trained on here", why, "a whole model: merge the adapter into its base")
    if isinstance(config, SFTStage):
        load.check_language_model(source)
        rows = sft_rows(config.data, source)
        return source, rows, load.load_language_model(source, config.model.from_scratch, config.seed)
    load.check_classifier(source)
    return source, rm_rows(config.data, source), load.load_classifier(source, config.seed)


def title(config: Stage) -> str:
    """What is done, as typed."""
    return f"{root_of(config).command}  {config.model.path}  {config.data.path}"


def plan(config: Stage, source: Source, model: Any, rows: Rows, parts: Split, arguments: Any) -> Iterator[tuple[str, str]]:
    """What is printed before the first update: the choices made, and the sizes that follow from the config."""
    fresh = isinstance(config, SFTStage) and config.model.from_scratch
    kind = ", fresh weights" if fresh else ", a fresh score head" if isinstance(config, RMStage) and not load.is_classifier(source) else ""
    yield "model", f"{config.model.path}{kind}, {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters"
    out = f", {rows.left_out} left out ({rows.why})" if rows.left_out else ""
    back = len(parts.held_out) if parts.held_out is not None else 0
    yield ("rows" if isinstance(config, SFTStage) else "pairs"), f"{len(parts.train)} to train on, {back} held out{out}"
    yield "first", rows.example
    micro = microbatch_size(config)
    yield "update", f"{config.optim.batch_size} in {arguments.gradient_accumulation_steps} microbatches of {micro}"
    chosen = "" if config.optim.lr is not None else " by the model's size"
    yield "optimizer", f"AdamW, lr {arguments.learning_rate:.2g}{chosen}, {config.optim.schedule}"
    several = f"{config.launch.processes} x " if config.launch.processes > 1 else ""
    yield "device", f"{several}{arguments.device.type}, mixed precision {'bf16' if arguments.bf16 else 'fp16' if arguments.fp16 else 'no'}"


def save(this: Run, trainer: Any, source: Source, use_cache: bool | None) -> None:
    """Write the model with its tokenizer aside, then rename: a crash leaves none rather than half of one.

    `use_cache` is the model's before the trainer set it. A tokenizer without a pad token gets the end token for one: whoever
    batches texts needs it. Of several processes the first one writes.
    """
    if this.is_main:
        model = trainer.accelerator.unwrap_model(trainer.model)
        model.config.use_cache = use_cache
        if source.tokenizer.pad_token is None:
            source.tokenizer.pad_token = source.tokenizer.eos_token
        model.config.get_text_config().pad_token_id = source.tokenizer.pad_token_id
        checkpoint.write_folder(this.result, lambda folder: weights.save_policy(folder, model, source.tokenizer))
    trainer.accelerator.wait_for_everyone()


def summarise(this: Run, status: str, reason: str) -> Summary:
    """Write summary.json and return what it holds."""
    named = [("metrics", this.dir / "metrics.jsonl"), ("policy" if this.result.name == "policy" else "reward model", this.result)]
    files = tuple((label, str(path)) for label, path in named if path.exists())
    summary = Summary(
        status, reason, this.dir, this.updates, time.perf_counter() - this.started,
        this.history[0] if this.history else {}, this.history[-1] if this.history else {},
        files=files, next_commands=tuple(_next(this)) if this.result.exists() else (),
    )  # fmt: skip
    if this.is_main:
        write_summary(summary)
    return summary


def _next(this: Run) -> Iterator[str]:
    path = f'"{this.result}"' if " " in str(this.result) else str(this.result)
    if isinstance(this.config, SFTStage):
        yield f"rlctl rm model=hf:{path} data=file:PAIRS"
        yield f"rlctl train model=hf:{path} reward=fn:MODULE.FUNCTION data=file:PROMPTS"
    else:
        closed = " reward.append_eos=never" if not this.config.data.append_eos else ""
        yield f"rlctl train model=hf:{this.config.model.path} reward=model:{path}{closed} data=file:PROMPTS"
