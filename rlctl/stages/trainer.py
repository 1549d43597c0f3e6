"""A stage's config -> TRL's trainer, ready to train. The only module that names TRL."""

from __future__ import annotations

import copy
import math
import random
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, ProgressCallback, TrainingArguments
from trl import RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from rlctl.config.schema import Device, MixedPrecision, Schedule
from rlctl.config.stages import RMStage, SFTStage, Stage, microbatch_size
from rlctl.devices import precision
from rlctl.errors import DataError
from rlctl.models import Source
from rlctl.stages.bridge import Bridge
from rlctl.stages.rows import Rows, Split

_SCHEDULES = {Schedule.linear: "linear", Schedule.cosine: "cosine", Schedule.constant: "constant_with_warmup"}


def split(rows: Rows, config: Stage) -> Split:
    """Hold out data.held_out of the rows, drawn by the seed; whole passes of them, so that their means weigh each row alike.

    Raises:
        DataError: none is left to train on.
    """
    count = round(len(rows) * config.data.held_out)
    size = _measured_at_once(config, count) * config.launch.processes
    count = count // size * size if size else 0
    order = random.Random(f"{config.seed}/held out").sample(range(len(rows)), len(rows))
    back = set(order[:count])
    whole = Dataset.from_dict(rows.columns)
    if count == len(rows):
        raise DataError(f"data.held_out={config.data.held_out:g} leaves none of {len(rows)} rows to train on", hint="data.held_out=0")
    train = whole.select([i for i in range(len(rows)) if i not in back])
    return Split(train, whole.select(sorted(back)) if count else None)


def _measured_at_once(config: Stage, count: int) -> int:
    """Rows held out that a device measures in one pass."""
    return min(microbatch_size(config), count // config.launch.processes)


def updates(config: Stage, rows: int) -> int:
    """Updates of the run, counted as the trainer counts them: the last batch of an epoch may be a smaller one."""
    if config.run.steps is not None:
        return config.run.steps
    size = microbatch_size(config) * config.launch.processes
    batches = math.ceil(rows / size)
    return math.ceil(config.run.epochs * math.ceil(batches / (config.optim.batch_size // size)))


def learning_rate(config: Stage, model: Any) -> float:
    """As asked, or by the model's size: ten times PPO's rule of thumb."""
    if config.optim.lr is not None:
        return config.optim.lr
    parameters = sum(p.numel() for p in model.parameters())
    return min(1e-3, 30.0 * parameters ** (-2.0 / 3.0))


def _arguments(config: Stage, lr: float, held_out: int, kind: type[TrainingArguments], **more: Any) -> TrainingArguments:
    optim, size = config.optim, microbatch_size(config)
    on_cpu = config.launch.device is Device.cpu or (config.launch.processes > 1 and not torch.cuda.is_available())
    autocast = precision(config.launch.mixed_precision, on_cpu)
    made = kind(
        output_dir=config.run.dir,
        seed=config.seed,
        data_seed=config.seed,
        num_train_epochs=config.run.epochs,
        max_steps=config.run.steps or -1,
        per_device_train_batch_size=size,
        per_device_eval_batch_size=max(1, _measured_at_once(config, held_out)),
        gradient_accumulation_steps=optim.batch_size // (size * config.launch.processes),
        train_sampling_strategy="random" if config.data.shuffle else "sequential",
        learning_rate=lr,
        lr_scheduler_type=_SCHEDULES[optim.schedule],
        warmup_steps=optim.warmup_updates,
        max_grad_norm=optim.max_grad_norm,
        weight_decay=optim.weight_decay,
        adam_beta1=optim.beta1,
        adam_beta2=optim.beta2,
        adam_epsilon=optim.eps,
        use_cpu=on_cpu,
        bf16=autocast is MixedPrecision.bf16,
        fp16=autocast is MixedPrecision.fp16,
        gradient_checkpointing=config.model.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        logging_steps=config.run.log_every,
        logging_first_step=True,
        logging_nan_inf_filter=False,  # a loss that is not finite must be seen
        save_strategy="no",
        report_to="none",
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        max_length=None,  # rows come tokenised and within the limit
        **more,
    )
    if made.n_gpu > 1:  # one process uses one GPU; several are launch.processes
        made._n_gpu = 1
    return made


def sft_trainer(config: SFTStage, source: Source, model: Any, rows: Split, bridge: Bridge) -> SFTTrainer:
    """TRL's SFTTrainer on tokenised rows: labels say what is learnt."""
    arguments = _arguments(config, learning_rate(config, model), len(rows.held_out or ()), SFTConfig)
    tokenizer = copy.deepcopy(source.tokenizer)  # TRL gives it a pad token
    return _quiet(SFTTrainer(model, arguments, train_dataset=rows.train, processing_class=tokenizer, callbacks=[bridge]))


def rm_trainer(config: RMStage, source: Source, model: Any, rows: Split, bridge: Bridge) -> RewardTrainer:
    """TRL's RewardTrainer on tokenised pairs, reading the score where PPO reads it: at the last real token.

    transformers looks for the last id that is not the pad id. Where padding is the end token, as in most language models, that
    is the token before the end, and PPO would read what was never trained. So rows are padded with an id that closes none.
    """
    own = {"center_rewards_coefficient": config.optim.center_scores or None, "disable_dropout": False}  # it is off already
    arguments = _arguments(config, learning_rate(config, model), len(rows.held_out or ()), RewardConfig, **own)
    # told by the tokenizer, a copy: the trainer sets the model's pad id to its tokenizer's once more when training starts
    tokenizer = copy.deepcopy(source.tokenizer)
    tokenizer.pad_token = padding(rows, tokenizer, model.get_input_embeddings().num_embeddings)
    return _quiet(RewardTrainer(model, arguments, train_dataset=rows.train, processing_class=tokenizer, callbacks=[bridge]))


def padding(rows: Split, tokenizer: Any, embeddings: int) -> str:
    """A token that no text of any pair ends with: the tokenizer's pad token, else that of the lowest id."""
    sets = [part for part in (rows.train, rows.held_out) if part is not None]
    last = {ids[-1] for part in sets for column in ("chosen_ids", "rejected_ids") for ids in part[column]}
    candidates = [tokenizer.pad_token_id, *range(min(embeddings, len(tokenizer)))]
    chosen = next(i for i in candidates if i is not None and i < embeddings and i not in last)
    token: str = tokenizer.convert_ids_to_tokens(chosen)
    return token


def _quiet(trainer: Any) -> Any:
    """What is shown is the console's."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer
