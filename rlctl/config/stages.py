"""The configs of the two stages before PPO, `rlctl sft` and `rlctl rm`: each key with its default and what it means.

They share groups and words with `rlctl train`. Knows nothing of Hydra, YAML or torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import List, Optional

from rlctl.config.fields import Dtype, bounded
from rlctl.config.schema import ConsoleConfig, DataConfig, Device, MixedPrecision, ModelConfig, OptimConfig, Overlong


@dataclass(frozen=True)
class StageModelConfig:
    """What learns: a language model, or for `rlctl rm` a reward model to go on with."""

    path: str = "builtin"
    """A folder or hub id of a whole transformers model; `builtin` is the tiny one that ships with rlctl."""
    revision: Optional[str] = None
    """Branch, tag or commit of a hub id."""
    dtype: Dtype = Dtype.auto
    """Type of the weights. auto: float32, so that small updates are not lost."""
    attn_implementation: Optional[str] = None
    """Passed to transformers: eager, sdpa, flash_attention_2, ...  null: transformers chooses."""
    trust_remote_code: bool = False
    """Run Python code that a model repository brings. Off unless you trust it."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time per update."""

    def policy(self) -> ModelConfig:
        """The same as the policy of `rlctl train`, whose config and tokenizer are opened alike."""
        return ModelConfig(
            path=self.path, revision=self.revision, dtype=self.dtype, attn_implementation=self.attn_implementation,
            trust_remote_code=self.trust_remote_code, gradient_checkpointing=self.gradient_checkpointing,
        )  # fmt: skip


@dataclass(frozen=True)
class SFTModelConfig(StageModelConfig):
    """The language model that learns."""

    from_scratch: bool = False
    """Take the folder's architecture and tokenizer, but fresh weights drawn from the seed."""


@dataclass(frozen=True)
class StageDataConfig:
    """The rows to learn from."""

    path: str = "?"
    """A .jsonl, .json, .csv or .parquet file, a folder from `datasets.save_to_disk`, or a hub name."""
    name: Optional[str] = None
    """Configuration (subset) of a hub data set."""
    split: str = "train"
    """Split of a saved or hub data set."""
    limit: Optional[int] = bounded(None, ge=1)
    """Use only the first rows of the data."""
    shuffle: bool = True
    """A new seeded order each epoch; false keeps the file's order."""
    held_out: float = bounded(0.05, ge=0, lt=1)
    """Share of the rows that is kept back, drawn by the seed, and measured before and after training."""
    chat_template: Optional[str] = None
    """A Jinja file used in place of the tokenizer's own chat template."""
    wrap_as_chat: bool = False
    """Treat a text prompt as one user message and apply the chat template."""
    max_length: Optional[int] = bounded(None, ge=2)
    """Longest row in tokens, the end token included. null: what the model takes."""

    def prompts(self, column: str) -> DataConfig:
        """How `rlctl.data` reads these rows and the prompts in their `column`."""
        return DataConfig(
            path=self.path, name=self.name, split=self.split, limit=self.limit, prompt_column=column, wrap_as_chat=self.wrap_as_chat
        )


@dataclass(frozen=True)
class SFTDataConfig(StageDataConfig):
    """Prompts with the responses to learn, or whole conversations."""

    prompt_column: str = "prompt"
    """Column with the prompt: a text, or a list of chat messages {role, content}."""
    response_column: str = "response"
    """Column with the response: a text, or a list of one message of the assistant. Texts are joined as they stand."""
    messages_column: Optional[str] = None
    """Column with whole conversations, in place of prompt and response: the last message, the assistant's, is learnt."""
    learn_prompt: bool = False
    """Learn the prompts' tokens too, not the responses' alone."""
    overlong: Overlong = Overlong.error
    """What happens to a longer row: error names it, drop leaves it out, cut removes its prompt's front."""


@dataclass(frozen=True)
class RMDataConfig(StageDataConfig):
    """Prompts with a better and a worse response. Too long a text loses its front, as PPO's reward model reads it."""

    prompt_column: Optional[str] = "prompt"
    """Column with the prompt: a text, or a list of chat messages. null: chosen and rejected hold the prompt already."""
    chosen_column: str = "chosen"
    """Column with the better response: a text, or chat messages (without a prompt column: the whole conversation)."""
    rejected_column: str = "rejected"
    """Column with the worse response, in the same form."""
    append_eos: bool = True
    """Close both texts with the end token, as PPO shows a finished response to a reward model of the policy's vocabulary.
    Of another vocabulary: false, or PPO with reward.append_eos=always. Chat templates close by themselves."""


@dataclass(frozen=True)
class StageOptimConfig(OptimConfig):
    """AdamW and its schedule. One update is one optimizer step."""

    lr: Optional[float] = bounded(None, ge=0)
    """Peak learning rate. null: 30 / N^(2/3) for a model of N parameters, at most 1e-3; printed at the start."""
    batch_size: int = bounded(32, ge=1)
    """Rows (sft) or pairs (rm) of one update, over all devices."""
    microbatch_size: int = bounded(16, ge=1)
    """Most rows or pairs in one forward and backward pass on a device. Lower it when memory runs out."""


@dataclass(frozen=True)
class RMOptimConfig(StageOptimConfig):
    """AdamW, its schedule, and what is minimised."""

    center_scores: float = bounded(0.01, ge=0)
    """Weight of the mean of (score of chosen + score of rejected)^2, which keeps scores around 0 (arXiv 2312.09244, eq. 2)."""


@dataclass(frozen=True)
class StageRunConfig:
    """Length of the run and what is written."""

    epochs: float = bounded(1.0, gt=0)
    """Passes over the rows."""
    steps: Optional[int] = bounded(None, ge=1)
    """Updates to train, in place of run.epochs."""
    log_every: int = bounded(10, ge=1)
    """Updates between two lines of metrics; the first and the last one are always told."""
    dir: str = ""
    """The run folder; set by rlctl from hydra.run.dir."""
    import_paths: List[str] = field(default_factory=list)
    """Folders put first on sys.path; set by rlctl."""


@dataclass(frozen=True)
class StageLaunchConfig:
    """Where it runs."""

    device: Device = Device.auto
    """auto: a GPU if there is one, else the CPU."""
    processes: int = bounded(1, ge=1)
    """Processes on this machine, one GPU each (on the CPU they share its cores). Updates do not depend on their number."""
    mixed_precision: MixedPrecision = MixedPrecision.auto
    """Autocast in forward passes. auto: bf16 on a GPU that has it, else no."""


@dataclass(frozen=True)
class SFTStage:
    """The whole of a supervised fine-tuning."""

    stage: str = "sft"
    """Tells a saved config from those of other commands; set by the command."""
    seed: int = bounded(0, ge=0)
    """Seeds row order, what is held out and new weights."""
    model: SFTModelConfig = field(default_factory=SFTModelConfig)
    data: SFTDataConfig = field(default_factory=SFTDataConfig)
    optim: StageOptimConfig = field(default_factory=StageOptimConfig)
    run: StageRunConfig = field(default_factory=StageRunConfig)
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    launch: StageLaunchConfig = field(default_factory=StageLaunchConfig)


@dataclass(frozen=True)
class RMStage:
    """The whole of a reward model's training."""

    stage: str = "rm"
    """Tells a saved config from those of other commands; set by the command."""
    seed: int = bounded(0, ge=0)
    """Seeds row order, what is held out and the new head."""
    model: StageModelConfig = field(default_factory=StageModelConfig)
    data: RMDataConfig = field(default_factory=RMDataConfig)
    optim: RMOptimConfig = field(default_factory=RMOptimConfig)
    run: StageRunConfig = field(default_factory=StageRunConfig)
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    launch: StageLaunchConfig = field(default_factory=StageLaunchConfig)


Stage = SFTStage | RMStage


def microbatch_size(config: Stage) -> int:
    """Rows a pass on a device: the largest number up to optim.microbatch_size that shares a batch evenly."""
    share = config.optim.batch_size // config.launch.processes
    return next(n for n in range(min(share, config.optim.microbatch_size), 0, -1) if share % n == 0)


def together(config: Stage) -> Iterator[str]:
    """What is wrong with keys against each other, one line each."""
    is_sft = isinstance(config, SFTStage)
    if config.data.path == "?":
        columns = "prompt and response" if is_sft else "prompt, chosen and rejected"
        yield f"data.path is not set: data=file:PATH or data=hf:NAME, with columns {columns}"
    batch, processes = config.optim.batch_size, config.launch.processes
    if batch >= 1 and processes >= 1 and batch % processes:
        yield f"optim.batch_size={batch} cannot be shared evenly by launch.processes={processes}"
    if isinstance(config, RMStage) and config.data.chosen_column == config.data.rejected_column:
        yield f"data.chosen_column and data.rejected_column are both {config.data.chosen_column!r}"
