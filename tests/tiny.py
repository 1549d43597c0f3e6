"""Tiny random models, their data and configs, for tests that need the real thing in milliseconds."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from rlctl.assemble import Assembly, assemble
from rlctl.config.schema import (
    Config,
    DataConfig,
    Device,
    FunctionRewardConfig,
    LaunchConfig,
    MixedPrecision,
    ModelConfig,
    ModelRewardConfig,
    OptimConfig,
    PPOConfig,
    RolloutConfig,
    RunConfig,
    ValueConfig,
    ValueInit,
)
from rlctl.judges.base import Judge
from rlctl.report import Plan, Step, Summary, Warning
from rlctl.rollout import Samples

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS = ["a", "b", "c", "d", "e", "f", "p", "<eos>"]
EOS = 7
PROMPTS = ["p", "b p", "a c p", "d d e f a p", "f <eos> b p", "c p"]
REWARD = '''import random


def score(texts):
    return [random.Random(" ".join(t.split())).gauss(0.0, 1.0) for t in texts]


def count_a(texts):
    return [float(t.split().count("a")) for t in texts]
'''


def tokenizer(words: list[str] = WORDS, pad: str | None = "<eos>") -> PreTrainedTokenizerFast:
    """One token a word; pad == eos unless asked otherwise, and no pad at all with None."""
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token=pad, padding_side="left")


def characters(pad: str | None = "<eos>") -> PreTrainedTokenizerFast:
    """The same ids, read as letters without blanks between them."""
    core = Tokenizer(models.BPE({w: i for i, w in enumerate(WORDS)}, []))
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token=pad, padding_side="left")


def _gpt2_config(**changes: Any) -> GPT2Config:
    shape = {"vocab_size": 8, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32, "initializer_range": 0.3}
    ends = {"bos_token_id": None, "eos_token_id": EOS, "pad_token_id": EOS}
    dropout = {"embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1}
    return GPT2Config(**{**shape, **ends, **dropout, **changes})


def gpt2(seed: int = 0, **changes: Any) -> GPT2LMHeadModel:
    """Absolute positions, dropout 0.1 in its config, tied weights, pad == eos."""
    torch.manual_seed(seed)
    return GPT2LMHeadModel(_gpt2_config(**changes)).eval()


def llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Rotary positions, an output layer of its own."""
    torch.manual_seed(seed)
    shape = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    rest = {"max_position_embeddings": 32, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": EOS, "pad_token_id": EOS}
    return LlamaForCausalLM(LlamaConfig(**{**shape, **rest, **changes})).eval()


def classifier(seed: int = 1, labels: int = 1, **changes: Any) -> GPT2ForSequenceClassification:
    """A reward model; no pad_token_id in its config, as many are published."""
    torch.manual_seed(seed)
    return GPT2ForSequenceClassification(_gpt2_config(num_labels=labels, **{"pad_token_id": None, **changes})).eval()


def save(folder: Path, model: Any, tok: Any | None = None) -> Path:
    """A model folder with its tokenizer."""
    model.save_pretrained(folder)
    (tok or tokenizer()).save_pretrained(folder)
    return folder


class Environment:
    """policy (GPT-2), llama, reward (a classifier of the same words), prompts.jsonl, tinyreward.py."""

    def __init__(self, root: Path):
        self.root = root
        self.policy = save(root / "policy", gpt2())
        self.llama = save(root / "llama", llama())
        self.reward = save(root / "reward", classifier())
        self.prompts = root / "prompts.jsonl"
        self.prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS * 4))
        (root / "tinyreward.py").write_text(REWARD)

    def config(
        self, run_dir: Path, *, policy: Path | None = None, reward: Path | str = "tinyreward.score", value: str = "auto",
        checkpointing: bool = False, seed: int = 0, algo_type: type = PPOConfig, rollout: dict[str, Any] = {}, algo: dict[str, Any] = {},  # noqa: B006
        optim: dict[str, Any] = {}, run: dict[str, Any] = {}, **more: Any,  # noqa: B006
    ) -> Config:  # fmt: skip
        """A small run on the CPU: 8 responses a step, one update; `reward` is a dotted function or a model's folder."""
        run_dir.mkdir(parents=True, exist_ok=True)  # as the command does before it trains
        is_model = isinstance(reward, Path)
        return Config(
            seed=seed,
            model=ModelConfig(path=str(policy or self.policy), gradient_checkpointing=checkpointing),
            data=DataConfig(path=str(self.prompts)),
            rollout=RolloutConfig(**{"prompts_per_step": 8, "max_new_tokens": 5, **rollout}),
            reward=ModelRewardConfig(path=str(reward)) if is_model else FunctionRewardConfig(path=reward),
            value=ValueConfig(init=ValueInit(value)),
            algo=algo_type(**{"epochs": 1, **algo}),
            optim=OptimConfig(**{"lr": 1e-3, **optim}),
            run=RunConfig(**{"steps": 4, "tracker": "none", "dir": str(run_dir), **run}),
            launch=LaunchConfig(device=Device.cpu, mixed_precision=MixedPrecision.no),
            **more,
        )

    def build(self, run_dir: Path, **changes: Any) -> Assembly:
        """The run of `config`, assembled."""
        return assemble(self.config(run_dir, **changes), Recording())


@dataclass
class Recording:
    """A Reporter that remembers what it was told."""

    plans: list[Plan] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    warnings: list[Warning] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)

    def start(self, plan: Plan) -> None:
        self.plans.append(plan)

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        pass

    def step(self, step: Step) -> None:
        self.steps.append(step)

    def warn(self, warning: Warning) -> None:
        self.warnings.append(warning)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish(self, summary: Summary) -> None:
        self.summaries.append(summary)

    def close(self) -> None:
        pass


class Always(Judge):
    """A judge of one opinion."""

    name = "always"

    def __init__(self, verdict: bool):
        self.verdict = verdict

    def judge(self, samples: Samples) -> list[bool | None]:
        return [self.verdict] * len(samples)


def collect(run: Assembly, step: int = 1, seed: int = 0):
    """One rollout of a run."""
    torch.manual_seed(seed)
    return run.collector(run.prompts.at(step, run.config.rollout.prompts_per_step), run.clock).rollout


def batch_of(run: Assembly, step: int = 1, seed: int = 0):
    """One rollout of a run, prepared for its algorithm."""
    return run.algorithm.prepare(collect(run, step, seed), run.config.algo.kl_coef, lambda x: x)[0]


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every tensor of a module."""
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


def differing(before: dict[str, torch.Tensor], module: torch.nn.Module) -> list[str]:
    """Names of the tensors that are not bit for bit as they were."""
    return [k for k, v in module.state_dict().items() if not torch.equal(v, before[k])]


@dataclass
class Updates:
    """What the optimizer was given at every update of a run."""

    lrs: list[float] = field(default_factory=list)
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)


def watch(run: Assembly) -> Updates:
    """Record learning rates and gradients from now on."""
    seen, optimizer = Updates(), run.updater.optimizer
    take = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        seen.lrs.append(optimizer.param_groups[0]["lr"])
        named = [(f"policy.{n}", p) for n, p in run.collector.policy.named_parameters()]
        named += [(f"value.{n}", p) for n, p in run.value.named_parameters()] if run.value is not None else []
        seen.gradients.append({n: p.grad.clone() for n, p in named if p.grad is not None})
        return take(*args, **kwargs)

    optimizer.step = step
    return seen


def unpadded(sequences: Any, row: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A row's prompt and response ids without any padding, each (1, n)."""
    s = sequences
    return s.prompt_ids[row][s.prompt_mask[row]][None], s.response_ids[row][s.response_mask[row]][None]


def samples(texts: list[str], truncated: list[bool] | None = None) -> Samples:
    """Samples of which only the texts matter."""
    return Samples(texts, [""] * len(texts), texts, {}, None, truncated or [False] * len(texts))


@contextmanager
def biased(lm: Any, bias: dict[int, float]):
    """Add to the logits of some tokens."""
    add = torch.zeros(lm.config.vocab_size)
    for token, amount in bias.items():
        add[token] = amount
    handle = lm.get_output_embeddings().register_forward_hook(lambda _, __, out: out + add)
    try:
        yield
    finally:
        handle.remove()


