"""Every config group as a typed, frozen dataclass: the vetted default of each key and, beneath it, what it means.

Knows nothing of Hydra, YAML or torch. Bounds stand in each field's metadata and are checked by `checks.problems`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Dict, List, Optional

from rlctl.config.fields import CGPOOptimizer, Dtype, bounded
from rlctl.config.judges import JudgeConfig
from rlctl.config.tasks import TaskConfig, with_own


class Overlong(StrEnum):
    """What happens to a prompt past the limit."""

    error = "error"
    drop = "drop"
    cut = "cut"


class KLEstimator(StrEnum):
    """Per-token estimate of the KL."""

    k1 = "k1"
    k3 = "k3"


class RatioLevel(StrEnum):
    """What one probability ratio covers."""

    sequence = "sequence"
    token = "token"


class Batching(StrEnum):
    """How new baselines are scored."""

    joint = "joint"
    separate = "separate"


class Baseline(StrEnum):
    """Where a baseline comes from."""

    column = "column"
    sample = "sample"


class OnTimeout(StrEnum):
    """What a call that takes too long leads to."""

    error = "error"
    score = "score"


class ScoreNormalization(StrEnum):
    """How scores are scaled before an algorithm sees them."""

    none = "none"
    running = "running"


class FunctionFormat(StrEnum):
    """What a function's prompts and completions are."""

    auto = "auto"
    text = "text"
    messages = "messages"


class AppendEos(StrEnum):
    """When a finished response is closed with the reward model's end token."""

    auto = "auto"
    always = "always"
    never = "never"


class ValueInit(StrEnum):
    """What the value model starts from."""

    auto = "auto"
    policy = "policy"
    reward = "reward"


class Schedule(StrEnum):
    """How the learning rate runs over the updates."""

    linear = "linear"
    cosine = "cosine"
    constant = "constant"


class Resume(StrEnum):
    """What becomes of a run folder that is there already."""

    never = "never"
    auto = "auto"


class ConsoleMode(StrEnum):
    """What is shown while training."""

    live = "live"
    plain = "plain"
    quiet = "quiet"


class Device(StrEnum):
    """Where it runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


class MixedPrecision(StrEnum):
    """Type of autocast in forward passes."""

    auto = "auto"
    no = "no"
    bf16 = "bf16"
    fp16 = "fp16"


class Strategy(StrEnum):
    """How several processes share the models."""

    ddp = "ddp"
    fsdp = "fsdp"
    deepspeed = "deepspeed"


@dataclass(frozen=True)
class LoraConfig:
    """Train a small adapter beside frozen weights (arXiv 2106.09685) instead of the weights themselves."""

    r: Optional[int] = bounded(None, ge=0)
    """Rank of a new adapter. null or 0: none, all weights are trained; an adapter given as model.path is trained as it is."""
    alpha: int = bounded(32, ge=1)
    """A new adapter's output is scaled by alpha / r."""
    target_modules: Optional[List[str]] = None
    """Names of the layers that a new adapter changes: [q_proj, v_proj]. null: every linear layer but the output layer."""
    merge: bool = False
    """Write the final policy/ as a whole model with the adapter merged into it. false: the adapter alone, which peft loads."""


@dataclass(frozen=True)
class ModelConfig:
    """The policy."""

    path: str = "builtin"
    """A folder or hub id of a decoder-only transformers model, or of a LoRA adapter to train on; `builtin` is the tiny model
    that ships with rlctl."""
    revision: Optional[str] = None
    """Branch, tag or commit of a hub id."""
    dtype: Dtype = Dtype.auto
    """Type of the weights of policy, reference and value model. auto: float32, so that small updates are not lost."""
    attn_implementation: Optional[str] = None
    """Passed to transformers: eager, sdpa, flash_attention_2, ...  null: transformers chooses."""
    trust_remote_code: bool = False
    """Run Python code that a model repository brings. Off unless you trust it."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time per update."""
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass(frozen=True)
class DataConfig:
    """The prompts."""

    path: str = "builtin"
    """A .jsonl, .json, .csv or .parquet file, a folder from `datasets.save_to_disk`, a hub name, or `builtin`."""
    name: Optional[str] = None
    """Configuration (subset) of a hub data set."""
    split: str = "train"
    """Split of a saved or hub data set."""
    prompt_column: str = "prompt"
    """Column with the prompt: a text, or a list of chat messages {role, content}."""
    limit: Optional[int] = bounded(None, ge=1)
    """Use only the first rows of the data."""
    shuffle: bool = True
    """A new seeded order each epoch; false keeps the file's order."""
    max_prompt_tokens: Optional[int] = bounded(None, ge=1)
    """Longest prompt in tokens. null: what the model's context leaves beside rollout.max_new_tokens."""
    overlong: Overlong = Overlong.error
    """What happens to a longer prompt: error names it, drop leaves its row out, cut removes its front."""
    wrap_as_chat: bool = False
    """Treat a text prompt as one user message and apply the chat template."""
    chat_template: Optional[str] = None
    """A Jinja file used in place of the tokenizer's own chat template."""


@dataclass(frozen=True)
class RolloutConfig:
    """Sampling."""

    prompts_per_step: int = bounded(64, ge=1)
    """Prompts sampled in one step, over all devices."""
    max_new_tokens: int = bounded(24, ge=1)
    """Longest response in tokens; one without an end token by then is marked truncated."""
    temperature: float = bounded(1.0, gt=0)
    """Divides the logits when sampling, and in every log-probability of policy and reference."""
    top_p: float = bounded(1.0, gt=0, le=1)
    """Nucleus sampling. 1.0 samples the whole vocabulary; less makes sampling differ from the policy being trained."""
    top_k: int = bounded(0, ge=0)
    """Sample among the k likeliest tokens. 0 samples the whole vocabulary."""
    stop: List[str] = field(default_factory=list)
    """Texts that end a response, beside every end token of the model."""
    batch_size: Optional[int] = bounded(None, ge=1)
    """Sequences generated at once on a device. null: all of the step's."""


@dataclass(frozen=True)
class AlgoConfig:
    """Keys that every algorithm shares."""

    name: str = "?"
    """Which algorithm; set by the config group."""
    kl_coef: float = bounded(0.05, ge=0)
    """beta, the price of a nat of KL from the reference (the policy as it started)."""
    kl_estimator: KLEstimator = KLEstimator.k1
    """Per-token estimate of the KL: k1 is unbiased and may be negative, k3 is never negative."""
    kl_target: Optional[float] = bounded(None, gt=0)
    """Adaptive controller: steer kl_coef so that the KL per response stays near this many nats."""
    kl_horizon: int = bounded(10_000, ge=1)
    """Adaptive controller: responses over which kl_coef may change by a factor of about 1.2."""
    max_kl: Optional[float] = bounded(None, gt=0)
    """Stop the run when the mean KL per response passes this many nats; the last good checkpoint is kept."""
    samples_per_prompt: int = bounded(1, ge=1)
    """Responses sampled for each prompt."""
    epochs: int = bounded(4, ge=1)
    """Passes over the rollout in one step."""
    minibatches: int = bounded(1, ge=1)
    """Optimizer updates in one epoch; the rollout is split evenly among them."""
    clip_range: float = bounded(0.2, gt=0)
    """epsilon of the clipped policy loss."""
    target_kl: Optional[float] = bounded(None, gt=0)
    """End the inner epochs of a step early once the mean approximate KL to the sampling policy passes this."""
    entropy_coef: float = bounded(0.0, ge=0)
    """Weight of the entropy bonus."""
    missing_eos_penalty: float = bounded(0.0, ge=0)
    """Subtracted from the score of a response that was cut at max_new_tokens."""
    mask_truncated: bool = False
    """Leave responses that were cut out of the loss: they give no gradient."""
    violation_score: Optional[float] = None
    """ppo, rloo: the score of a response that a judge does not pass, in place of the reward's. Needed with judges."""
    score_clip: Optional[float] = bounded(None, gt=0)
    """Clip scores to [-score_clip, score_clip], after normalisation."""
    score_normalization: ScoreNormalization = ScoreNormalization.none
    """running: subtract the running mean of all scores so far and divide by their running standard deviation."""

    @property
    def title(self) -> str:
        """As it was asked for."""
        return self.name


@dataclass(frozen=True)
class PPOConfig(AlgoConfig):
    """Proximal policy optimisation with a value model."""

    name: str = "ppo"
    clip_range_value: Optional[float] = bounded(0.2, gt=0)
    """How far a new value may move from the old one before its loss is clipped; null does not clip."""
    vf_coef: float = bounded(0.1, ge=0)
    """Weight of the value loss."""
    discount: float = bounded(1.0, gt=0, le=1)
    """gamma."""
    gae_lambda: float = bounded(0.95, ge=0, le=1)
    """lambda of generalised advantage estimation."""
    whiten_advantages: bool = True
    """Whiten the advantages over all real tokens of the rollout."""
    whiten_rewards: bool = False
    """Divide the token rewards by their standard deviation, without moving their mean."""
    value_warmup_steps: int = bounded(0, ge=0)
    """First steps that train the value model alone."""


@dataclass(frozen=True)
class RLOOConfig(AlgoConfig):
    """REINFORCE with a leave-one-out baseline: no value model."""

    name: str = "rloo"
    samples_per_prompt: int = bounded(4, ge=2)
    """k: each response is compared with the mean of the k - 1 others to its prompt."""
    epochs: int = bounded(2, ge=1)
    """Passes over the rollout in one step; one pass with one minibatch is plain REINFORCE."""
    ratio: RatioLevel = RatioLevel.sequence
    """Clip one probability ratio per response (sequence) or one per token (token)."""
    kl_in_loss: bool = False
    """Put the KL into the loss, as (sum_t lp - lq)^2 / 2 with its unbiased gradient, instead of into the reward."""
    normalize_advantages: bool = False
    """Divide the advantages by their root mean square over the step, and clip them to [-10, 10]."""


@dataclass(frozen=True)
class CGPOConfig(AlgoConfig):
    """Constrained policy optimisation with a mixture of judges: one update per sampled batch, no value model.

    The paper gives no values for its keys: these defaults are ours."""

    name: str = "cgpo"
    kl_coef: float = bounded(0.0, ge=0, le=0)
    """Unused: CGPO bounds the KL by kl_max instead of pricing it."""
    samples_per_prompt: int = bounded(4, ge=1)
    """K; at least 2 for codpo."""
    epochs: int = bounded(1, ge=1, le=1)
    """One update per sampled batch."""
    minibatches: int = bounded(1, ge=1, le=1)
    """One update per sampled batch."""
    optimizer: CGPOOptimizer = CGPOOptimizer.crpg
    """crpg: policy gradient of the reward of what is satisfied. crraft: the best satisfied response is learnt by heart.
    codpo: the best satisfied response is preferred to the worst that violates."""
    kl_max: Optional[float] = bounded(10.0, gt=0)
    """Nats of KL per response that are allowed (crpg, crraft). null: any."""
    beta: float = bounded(0.1, gt=0)
    """Sharpness of the preference (codpo)."""
    lam: float = bounded(0.1, ge=0)
    """Weight of the likelihood of the preferred response, per token (codpo)."""


@dataclass(frozen=True)
class CustomAlgoConfig(AlgoConfig):
    """An algorithm of your own: a class that implements rlctl.algos.base.Algorithm."""

    name: str = "class"
    path: str = "?"
    """Dotted path of the class, importable from the recipe folder or the working folder."""
    args: Dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the class, after the config: algo.args.decay=0.9"""
    epochs: int = bounded(1, ge=1)
    """Passes over the rollout in one step; more than one needs a loss that says how far the policy may move."""

    @property
    def title(self) -> str:
        """As it was asked for."""
        return f"class:{self.path}"


@dataclass(frozen=True)
class RewardConfig:
    """Keys that every reward shares."""

    kind: str = "?"
    """Which reward; set by the config group."""
    path: str = "?"
    """Set by the config group or by the shorthand reward=KIND:PATH."""
    keep_special_tokens: bool = False
    """Show the reward special tokens (the end token too); padding is never shown."""


@dataclass(frozen=True)
class FunctionRewardConfig(RewardConfig):
    """A Python function."""

    kind: str = "fn"
    path: str = "rlctl.builtin.count_good"
    """Dotted path of the function, importable from the recipe folder or the working folder."""
    format: FunctionFormat = FunctionFormat.auto
    """What `prompts` and `completions` are: text, or messages as in TRL. auto: messages for chat prompts, and where
    the function's annotation asks for them; text otherwise."""
    args: Dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the function: reward.args.threshold=0.5"""
    workers: int = bounded(0, ge=0)
    """Processes that share the texts, for a function that keeps a CPU busy. 0: called in this process."""
    timeout: Optional[float] = bounded(None, gt=0)
    """Seconds that one call may take."""
    on_timeout: OnTimeout = OnTimeout.error
    """error: a call that takes longer ends the run. score: its texts get reward.timeout_score, and a warning counts them."""
    timeout_score: float = 0.0
    """The score of texts whose call took too long, under reward.on_timeout=score."""
    retries: int = bounded(0, ge=0)
    """Calls repeated after a passing error, each after twice the pause of the one before."""
    retry_pause: float = bounded(1.0, ge=0)
    """Seconds before the first repeat."""
    retry_on: List[str] = field(default_factory=lambda: ["OSError", "TimeoutError", "TransportError"])
    """Names of exception classes (or of their bases) that are passing errors; connection errors are OSErrors."""


@dataclass(frozen=True)
class ClassRewardConfig(RewardConfig):
    """A reward of your own: a class that derives from rlctl.rewards.base.Reward."""

    kind: str = "class"
    path: str = "?"
    """Dotted path of the class, importable from the recipe folder or the working folder."""
    args: Dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the class: reward.args.word=kind"""


@dataclass(frozen=True)
class ModelRewardConfig(RewardConfig):
    """A reward model: a sequence classifier with one label."""

    kind: str = "model"
    path: str = "builtin"
    """A folder or hub id; `builtin` is the tiny one that ships with rlctl."""
    revision: Optional[str] = None
    """Branch, tag or commit of a hub id."""
    dtype: Dtype = Dtype.auto
    """Type of the reward model's weights. auto: float32."""
    trust_remote_code: bool = False
    """Run Python code that a model repository brings. Off unless you trust it."""
    batch_size: int = bounded(32, ge=1)
    """Texts scored at once on a device."""
    max_length: Optional[int] = bounded(None, ge=1)
    """Longest text in the reward model's tokens; a longer one loses its front. null: what the model takes."""
    append_eos: AppendEos = AppendEos.auto
    """Close a finished response with the reward model's own end token. auto: if it shares the policy's vocabulary."""


@dataclass(frozen=True)
class CalibratedRewardConfig(RewardConfig):
    """sigmoid(r(response) - r(baseline)): how probably the response beats a known answer to its prompt."""

    kind: str = "calibrated"
    path: str = "builtin"
    """The reward model r, a folder or hub id; or any reward through reward.base."""
    base: Optional[str] = None
    """The reward r in the shorthand's form: fn:MODULE.FUNCTION, class:MODULE.CLASS or model:PATH. null: model:PATH of reward.path."""
    baseline: Baseline = Baseline.column
    """column: the baseline is a column of the data. sample: one response of the starting policy, drawn before training."""
    baseline_column: str = "reference"
    """Column with the baseline answer, with or without its prompt in front."""
    baseline_includes_prompt: Optional[bool] = None
    """Whether the column repeats the prompt. null: it does where it begins with it."""
    batching: Batching = Batching.joint
    """Score baselines that are new in one call with the responses (joint), or in one of their own (separate)."""


@dataclass(frozen=True)
class TermConfig:
    """One term of a weighted reward."""

    reward: str = "???"
    """fn:MODULE.FUNCTION, class:MODULE.CLASS or model:PATH."""
    weight: float = 1.0
    """Factor on the term's score."""
    name: Optional[str] = None
    """Its name in metrics and samples. null: the function's or the model's."""
    clip: Optional[float] = bounded(None, gt=0)
    """Clip the term's score to [-clip, clip] before weighting."""
    args: Dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for a function or class."""


@dataclass(frozen=True)
class WeightedRewardConfig(RewardConfig):
    """A weighted sum of rewards; a function abstains on a sample by returning None for it."""

    kind: str = "weighted"
    path: str = "terms"
    terms: List[TermConfig] = field(default_factory=list)
    """The terms: [{reward: fn:mypkg.kind, weight: 1.0}, {reward: fn:mypkg.short, weight: 0.1, clip: 5}]"""


@dataclass(frozen=True)
class ValueConfig:
    """The value model (PPO)."""

    init: ValueInit = ValueInit.auto
    """auto: from the reward model if it is a decoder of the policy's vocabulary, else (and always under LoRA) from the policy.
    policy: the policy's backbone and a fresh head near 0; under LoRA an adapter of its own on the policy's frozen weights.
    reward: backbone and head of the reward model, trained whole."""
    lr: Optional[float] = bounded(None, gt=0)
    """Learning rate of the value model. null: the policy's; a tenth of it if only the policy is trained by LoRA."""


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its schedule. One update is one optimizer step."""

    lr: Optional[float] = bounded(None, ge=0)
    """Peak learning rate. null: 3 / N^(2/3) for a policy of N parameters, at most 1e-3, and ten times that for a LoRA adapter
    on it; printed at the start."""
    schedule: Schedule = Schedule.linear
    """linear and cosine reach 0 after the last planned update; constant stays."""
    warmup_updates: int = bounded(0, ge=0)
    """Updates over which the learning rate rises from 0."""
    max_grad_norm: float = bounded(1.0, gt=0)
    """Gradients are scaled down to this norm, policy and value model each by its own."""
    weight_decay: float = bounded(0.0, ge=0)
    """Decoupled weight decay."""
    beta1: float = bounded(0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = bounded(0.999, ge=0, lt=1)
    """Decay of the second moment."""
    eps: float = bounded(1e-8, gt=0)
    """Term that keeps the denominator from 0."""
    microbatch_size: int = bounded(16, ge=1)
    """Sequences in one forward and backward pass on a device. Lower it when memory runs out: results stay the same."""


@dataclass(frozen=True)
class RunConfig:
    """Length of the run and what is written. One step is one rollout and its updates."""

    steps: int = bounded(25, ge=1)
    """Steps to train."""
    save_every: Optional[int] = bounded(None, ge=1)
    """Write a checkpoint every n steps. null: only the final policy."""
    keep: int = bounded(2, ge=1)
    """Checkpoints kept; older ones are removed once a newer one is complete."""
    resume: Resume = Resume.never
    """never: a folder that holds a run is refused. auto: a run that holds a checkpoint goes on from its last one (give
    hydra.run.dir; for queues that start a job again); `rlctl resume RUN_DIR` does the same."""
    save_value: bool = False
    """Write the value model too at the end; a checkpoint holds it anyway."""
    samples_every: int = bounded(1, ge=1)
    """Write all prompts, responses and scores of every n-th step."""
    tracker: str = "auto"
    """auto: TensorBoard if installed. none, tensorboard, or another tracker of accelerate (wandb, ...)."""
    dir: str = ""
    """The run folder; set by rlctl from hydra.run.dir."""
    import_paths: List[str] = field(default_factory=list)
    """Folders put first on sys.path: the recipe, then the working folder; set by rlctl."""


@dataclass(frozen=True)
class ConsoleConfig:
    """What is shown while training."""

    mode: ConsoleMode = ConsoleMode.live
    """live: a view that updates in place (plain lines without a terminal). plain: one line a step. quiet: errors only."""


@dataclass(frozen=True)
class LaunchConfig:
    """Where it runs."""

    device: Device = Device.auto
    """auto: a GPU if there is one, else the CPU."""
    processes: Optional[int] = bounded(None, ge=1)
    """Processes on each machine, one GPU each (on the CPU they share its cores). null: one for each visible GPU, else 1; or
    as many as torchrun or accelerate launch started. Results do not depend on their number beyond rounding and what each of
    them samples."""
    strategy: Optional[Strategy] = None
    """How several processes share the models. ddp (null): each holds them whole. fsdp: weights, gradients and optimizer
    state are sharded (FSDP2), and whole only while sampling. deepspeed: ZeRO of launch.zero_stage; needs the package."""
    zero_stage: Optional[int] = bounded(None, ge=1, le=2)
    """strategy=deepspeed: what is sharded. 1: the optimizer's state, 2: gradients too. null: 2."""
    mixed_precision: MixedPrecision = MixedPrecision.auto
    """Autocast in forward passes; fp16 scales the loss and needs a GPU. auto: bf16 on a GPU that has it, fp16 on an older one with
    tensor cores, else no. Log-probabilities, KL, advantages and losses stay float32."""
    machines: Optional[int] = bounded(None, ge=1)
    """Machines; the same command is started on each. null: 1."""
    machine_rank: Optional[int] = bounded(None, ge=0)
    """Which of them this one is, from 0, on the command line. null: SLURM_NODEID, else 0. Machine 0 holds the run folder."""
    main_address: Optional[str] = None
    """Address of machine 0, as the others reach it. null: the first host of SLURM_JOB_NODELIST."""
    main_port: Optional[int] = bounded(None, ge=1, le=65535)
    """A free port of machine 0. null: 29500."""
    wait: int = bounded(600, ge=1)
    """Seconds to wait for the other machines at the start."""
    accelerate_config: Optional[str] = None
    """A config file of `accelerate config`, for what is not set here. What rlctl cannot do as it says is an error."""


@dataclass(frozen=True)
class DebugConfig:
    """Help in finding faults."""

    max_steps: Optional[int] = bounded(None, ge=1)
    """Cut the run to so many steps; the learning-rate schedule is that of the shorter run."""
    checks: bool = False
    """Verify in each step, before the first update, that ratio is 1 and that in step 1 the KL is 0."""
    anomaly: bool = False
    """Let autograd name the operation that made a NaN. Slow."""


@dataclass(frozen=True)
class ScoreConfig:
    """What `rlctl score` looks at."""

    prompts: int = bounded(16, ge=1)
    """Prompts to try the reward on."""
    samples_per_prompt: int = bounded(4, ge=1)
    """Responses sampled for each."""
    column: Optional[str] = None
    """Score the answers of this column instead of sampling any."""


@dataclass(frozen=True)
class SweepConfig:
    """A sweep (-m) as a whole; a single run knows nothing of it."""

    parallel: int = bounded(1, ge=1)
    """Members that train at once, each on a GPU of its own where there are any (pip install "rlctl[sweep]")."""
    fail_fast: bool = False
    """Start no further member once one has failed."""


@dataclass(frozen=True)
class Config:
    """The whole of a run."""

    seed: int = bounded(0, ge=0)
    """Seeds prompt order, sampling and new weights."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=FunctionRewardConfig)
    judges: List[JudgeConfig] = field(default_factory=list)
    """Judges that a response must all pass: they gate cgpo, and ppo or rloo through algo.violation_score."""
    tasks: Dict[str, TaskConfig] = field(default_factory=dict)
    """Several tasks in one run of cgpo: name -> what differs in it."""
    value: ValueConfig = field(default_factory=ValueConfig)
    algo: AlgoConfig = field(default_factory=PPOConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    run: RunConfig = field(default_factory=RunConfig)
    console: ConsoleConfig = field(default_factory=ConsoleConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)

    @property
    def by_task(self) -> dict[str, Config]:
        """Each task as a run of its own, by name; a run without tasks is its own only one, called ""."""
        return {name: with_own(self, task) for name, task in self.tasks.items()} or {"": self}

    @property
    def samples_per_step(self) -> int:
        """B: responses in one step, over all devices and tasks."""
        return sum(c.rollout.prompts_per_step * c.algo.samples_per_prompt for c in self.by_task.values())

    @property
    def minibatch_size(self) -> int:
        """Responses in one update, over all devices."""
        return self.samples_per_step // self.algo.minibatches

    @property
    def steps(self) -> int:
        """Steps of the run, after debug.max_steps."""
        return min(self.run.steps, self.debug.max_steps or self.run.steps)

    @property
    def updates(self) -> int:
        """Optimizer updates planned for the run."""
        return self.steps * self.algo.epochs * self.algo.minibatches


# One entry per option that has keys of its own; the first field of each (`name`, `kind`) tells them apart in a saved config.
OPTIONS: dict[str, dict[str, type]] = {
    "algo": {"ppo": PPOConfig, "rloo": RLOOConfig, "cgpo": CGPOConfig, "class": CustomAlgoConfig},
    "reward": {
        "fn": FunctionRewardConfig,
        "class": ClassRewardConfig,
        "model": ModelRewardConfig,
        "calibrated": CalibratedRewardConfig,
        "weighted": WeightedRewardConfig,
    },
}
