"""The texts of --help, made from the config groups and their documentation. No Hydra, no torch."""

from __future__ import annotations

import textwrap

from rlctl import __version__
from rlctl.config import describe
from rlctl.config.paths import KINDS, conf_dir
from rlctl.config.roots import TRAIN, Root

_OVERVIEW = """\
rlctl {version}: online RLHF fine-tuning of language models, driven by configs

  rlctl train [RECIPE_DIR] [key=value ...]   train; without arguments, the built-in policy, prompts and reward
  rlctl train -m key=a,b ...                 a sweep: one run for each combination
  rlctl resume RUN_DIR [key=value ...]       go on exactly where a run stopped
  rlctl score [RECIPE_DIR] [key=value ...]   try the reward on real samples before training; --json for scripts
  rlctl runs [DIR ...]                       runs listed, or a sweep's members ranked; --sort METRIC, --json, --all
  rlctl sft [RECIPE_DIR] [key=value ...]     before PPO: teach a language model your responses (TRL's SFTTrainer)
  rlctl rm [RECIPE_DIR] [key=value ...]      before PPO: a reward model from preferred responses (TRL's RewardTrainer)
  rlctl recipes                              list the recipes, small folders to start from
  rlctl new RECIPE DEST                      copy one to make it your own
  rlctl check RECIPE [key=value ...]         run one and compare with the numbers it promises
  rlctl train --cfg job                      print the config instead of running it
  rlctl train --help                         every config group and key
  rlctl --version

examples
  rlctl train                                             PPO on a tiny built-in policy, offline, a minute or two
  rlctl train algo=ppo reward=fn:mypkg.count_good         your own Python function, from mypkg.py in this folder
  rlctl train model=hf:PATH data=file:prompts.jsonl reward=model:REWARD_MODEL

--traceback after any command shows the traceback of an error.
"""

_TRAIN = """\
rlctl train [RECIPE_DIR] [key=value ...] [-m] [--cfg job|hydra|all] [--info] [--hydra-help] [--traceback]

  RECIPE_DIR      a folder with config.yaml (and reward.py, data/, own options): they win over the built-in ones
  key=value       override a key; GROUP=OPTION chooses an option
  -m, --multirun  one run for each combination of comma-separated values; with the hydra.sweep.dir of an earlier sweep,
                  finished members are skipped and the others go on; sweep.parallel=N trains several at once
  --cfg job       print the config; --info shows where it came from

words
  prompt, response   what the policy is given, and what it writes
  score              what the reward gives a response; reward: the per-token signal after KL
  step               one rollout (prompts_per_step x samples_per_prompt responses) and its updates
  epoch              one pass over the rollout inside a step
  update             one optimizer step, on one minibatch

config groups (GROUP=OPTION)
{groups}
keys (default)
{keys}"""

RECIPES = """\
rlctl recipes [RECIPE] [--markdown]

  lists the recipes: what each shows, its time and hardware
  RECIPE       prints the README of that recipe
  --markdown   the table of recipes/README.md; with RECIPE, the lines about its numbers in its own README
"""

NEW = """\
rlctl new RECIPE DEST

  copies a recipe (a name of `rlctl recipes`, or a recipe folder) to DEST, which must be new or empty, and prints the next command
"""

CHECK = """\
rlctl check RECIPE [key=value ...]

  runs a recipe (a name of `rlctl recipes`, or a recipe folder) in outputs/check/RECIPE, or hydra.run.dir=PATH, and compares
  with the numbers of its expected.json
  key=value    overrides, as for train: rlctl check count_good seed=1

exit status: 0 all numbers seen; 4 some missed; else that of the command that failed
"""


_STAGE = """\
rlctl {command} [RECIPE_DIR] [key=value ...] [--cfg job|hydra|all] [--info] [--hydra-help] [--traceback]

{about}
  RECIPE_DIR      a folder with {command}.yaml
  key=value       override a key; GROUP=OPTION chooses an option
  --cfg job       print the config; --info shows where it came from

config groups (GROUP=OPTION)
{groups}
keys (default)
{keys}"""

_ABOUT = {
    "sft": """\
Supervised fine-tuning with TRL's SFTTrainer: the model learns the responses of your rows, and to end them.

  rlctl sft model=hf:PATH data=file:rows.jsonl       rows of prompt and response; the result is RUN/policy
  rlctl train model=hf:RUN/policy reward=...         what comes next
""",
    "rm": """\
A reward model with TRL's RewardTrainer: it learns to score the chosen response above the rejected one.

  rlctl rm model=hf:PATH data=file:pairs.jsonl       rows of prompt, chosen and rejected; the result is RUN/reward
  rlctl train reward=model:RUN/reward ...            what comes next
""",
}

_RESUME = """\
rlctl resume RUN_DIR [key=value ...] [--traceback]

  Goes on after the run's last checkpoint (RUN_DIR/checkpoints/step_NNNNNN) as if it had never stopped: policy, value model,
  optimizer, learning-rate schedule, KL controller, running statistics, baselines, place in the data. Metrics and samples of later
  steps are written anew. A key given here changes from there on, is shown and recorded in resumes.jsonl; options (reward=...)
  and what makes it another run (model, data, seed) cannot change.

  A checkpoint is written every run.save_every steps, and when a run is interrupted (Ctrl-C or SIGTERM).
  rlctl train hydra.run.dir=DIR run.resume=auto ... starts a run, or goes on with the one that is in DIR.
"""


def resume() -> str:
    """`rlctl resume --help`."""
    return _RESUME


def overview() -> str:
    """`rlctl --help`."""
    return _OVERVIEW.format(version=__version__)


def train() -> str:
    """`rlctl train --help`."""
    return _TRAIN.format(groups=_groups(TRAIN), keys=_keys(TRAIN))


def stage(root: Root) -> str:
    """`rlctl sft --help`, `rlctl rm --help`."""
    return _STAGE.format(command=root.command, about=_ABOUT[root.command], groups=_groups(root), keys=_keys(root))


def _groups(root: Root) -> str:
    lines = []
    for name, title, _ in describe.groups(root.schema):
        if "=" not in name and "[" not in name:
            options = sorted(p.stem for p in (conf_dir() / name).glob("*.yaml"))
            shorthand = [f"{kind}:{value}" for (group, kind), (_, value) in KINDS.items() if group == name]
            lines.append(f"  {name:<8} {', '.join([*options, *shorthand])}\n           {title}")
    return "\n".join(lines) + "\n"


def _keys(root: Root) -> str:
    lines = ["  seed (0)", "      Seeds prompt order, sampling and new weights."]
    for name, title, keys in describe.groups(root.schema):
        lines.append(f"\n  {name}: {title}")
        for key in keys:
            lines.append(f"  {key.name} ({key.default})")
            lines += textwrap.wrap(key.doc, 110, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines) + "\n"
