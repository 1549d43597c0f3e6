"""The two stages before PPO: rows as PPO will present them, whole commands, and what they leave for the next one."""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rlctl import cli
from rlctl.config import compose
from rlctl.config.schema import Config, DataConfig, ModelConfig, ModelRewardConfig, Overlong
from rlctl.config.stages import (
    RMDataConfig,
    RMStage,
    SFTDataConfig,
    SFTModelConfig,
    SFTStage,
    StageLaunchConfig,
    StageOptimConfig,
    microbatch_size,
)
from rlctl.data import build_prompts
from rlctl.errors import ConfigError, DataError
from rlctl.models import Source, open_source
from rlctl.rewards.model import ModelReward
from rlctl.rollout import Samples
from rlctl.stages.rows import IGNORED, rm_rows, sft_rows

EOS = tiny.EOS
TEMPLATE = (
    "{% for m in messages %}{{ 'f ' if m.role == 'user' else 'e ' }}{{ m.content }}"
    "{{ ' <eos> d ' if m.role == 'assistant' else ' ' }}{% endfor %}{% if add_generation_prompt %}e {% endif %}"
)
"""user: f ... ; assistant: e ... <eos> d, where d stands for the newline that many templates put behind the end."""


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def source(env) -> Source:
    """The tiny policy's config and tokenizer: one token a word, pad = end = 7."""
    return open_source(ModelConfig(path=str(env.policy)), "model")


@pytest.fixture
def made(tmp_path: Path, source: Source) -> Callable[..., Any]:
    """Rows of the data as token ids."""

    def make(rows: list[dict[str, Any]], kind: type = SFTDataConfig, **changes: Any) -> Any:
        data = kind(path=str(_jsonl(tmp_path / "rows.jsonl", rows)), **changes)
        return sft_rows(data, source) if kind is SFTDataConfig else rm_rows(data, source)

    return make


# supervised fine-tuning: what is learnt


def test_the_response_and_its_end_are_learnt_and_the_prompt_is_not(made):
    rows = made([{"prompt": "b p", "response": " a c"}])
    assert rows.columns == {"input_ids": [[1, 6, 0, 2, EOS]], "labels": [[IGNORED, IGNORED, 0, 2, EOS]]}
    assert (rows.left_out, rows.example) == (0, "b p a c <eos>")


def test_the_prompt_is_learnt_when_asked(made):
    assert made([{"prompt": "b p", "response": " a c"}], learn_prompt=True).columns["labels"] == [[1, 6, 0, 2, EOS]]


def test_an_end_that_the_row_brings_is_not_doubled(made):
    assert made([{"prompt": "b p", "response": " a <eos>"}]).columns["input_ids"] == [[1, 6, 0, EOS]]


def test_the_prompt_has_the_ids_that_ppo_gives_it_also_where_words_meet(tmp_path):
    source = open_source(ModelConfig(), "model")
    row = {"prompt": "The so", "response": "up was warm."}
    path = str(_jsonl(tmp_path / "rows.jsonl", [row]))
    prompt = build_prompts(Config(data=DataConfig(path=path)), source.tokenizer, 256).items[0].ids
    together = source.tokenizer(row["prompt"] + row["response"])["input_ids"]
    assert together[: len(prompt)] != prompt, "the case is none: the two meet at the edge of a token"
    (ids,) = sft_rows(SFTDataConfig(path=path), source).columns["input_ids"]
    assert ids[: len(prompt)] == prompt
    assert source.tokenizer.decode(ids[len(prompt) :]) == "up was warm.<eos>"


def test_rows_past_the_limit(made):
    rows = [{"prompt": "b p", "response": " a"}, {"prompt": "a b c p", "response": " a"}]
    with pytest.raises(DataError) as caught:
        made(rows, max_length=5)
    assert caught.value.lines() == [
        "error: row 1 has 6 tokens, the limit is 5",
        "  why:  the limit is data.max_length, or the model's context; its response alone has 2; it begins: 'a b c p'",
        "  try:  data.overlong=drop leaves such rows out, data.overlong=cut removes the front of their prompts",
    ]
    dropped = made(rows, max_length=5, overlong=Overlong.drop)
    assert (dropped.columns["input_ids"], dropped.left_out, dropped.why) == ([[1, 6, 0, EOS]], 1, "too long")
    cut = made(rows, max_length=5, overlong=Overlong.cut)
    assert cut.columns == {"input_ids": [[1, 6, 0, EOS], [1, 2, 6, 0, EOS]], "labels": [[-100, -100, 0, EOS], [-100] * 3 + [0, EOS]]}
    with pytest.raises(DataError, match="row 0 has 6 tokens, the limit is 5"):  # nothing of the response is ever cut
        made([{"prompt": "p", "response": " a b c d"}], max_length=5, overlong=Overlong.cut)


def test_conversations_end_at_the_end_token(made, source, tmp_path):
    source.tokenizer.chat_template = TEMPLATE
    chat = [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
    expected = {"input_ids": [[5, 0, 1, 4, 2, EOS]], "labels": [[IGNORED] * 4 + [2, EOS]]}
    assert made([{"messages": chat}], messages_column="messages").columns == expected
    assert made([{"prompt": chat[:1], "response": "c"}]).columns == expected
    assert made([{"prompt": chat[:1], "response": chat[1:]}]).columns == expected
    assert made([{"prompt": "a b", "response": "c"}], wrap_as_chat=True).columns == expected


def test_a_template_from_a_file_is_kept_for_what_comes_next(made, source, tmp_path):
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    made([{"prompt": [{"role": "user", "content": "a"}], "response": "c"}], chat_template=str(tmp_path / "t.jinja"))
    assert source.tokenizer.chat_template == TEMPLATE


@pytest.mark.parametrize(
    ("row", "changes", "lines"),
    [
        (
            {"a": "a"},
            {},
            ["error: data PATH has no column 'prompt'", "  why:  its columns are: a", "  try:  data.prompt_column=a"],
        ),
        (
            {"prompt": "a", "answer": "b"},
            {},
            ["error: data PATH has no column 'response'", "  why:  its columns are: prompt, answer", "  try:  data.response_column=prompt"],
        ),
        (
            {"prompt": "a"},
            {"messages_column": "messages"},
            ["error: data PATH has no column 'messages'", "  why:  its columns are: prompt", "  try:  data.messages_column=prompt"],
        ),
        ({"prompt": "", "response": "b"}, {}, ["error: row 0 has an empty prompt", "  why:  column 'prompt' holds ''"]),
        ({"prompt": "a", "response": ""}, {}, ["error: row 0 has an empty response", "  why:  column 'response' holds ''"]),
        (
            {"prompt": "a", "response": 3},
            {},
            [
                "error: row 0 has no usable response",
                "  why:  column 'response' holds 3; expected a text or a list of one message of the assistant",
            ],
        ),
        (
            {"messages": [{"role": "user", "content": "a"}]},
            {"messages_column": "messages"},
            [
                "error: row 0 has no usable conversation",
                "  why:  column 'messages' holds [{'role': 'user', 'content': 'a'}]; expected messages {role, content}, "
                "the last one the assistant's",
            ],
        ),
        (
            {"prompt": "a", "response": "b"},
            {"max_length": 33},
            ["error: data.max_length=33 passes the context of 32 tokens", "  try:  data.max_length=32"],
        ),
    ],
)
def test_what_is_wrong_with_a_row_is_told(made, tmp_path, row, changes, lines):
    with pytest.raises((DataError, ConfigError)) as caught:
        made([row], **changes)
    assert [line.replace(str(tmp_path / "rows.jsonl"), "PATH") for line in caught.value.lines()] == lines


def test_a_seam_without_a_blank_is_a_warning(made):
    assert made([{"prompt": "a", "response": " b"}]).warnings == ()
    (warning,) = made([{"prompt": "a", "response": "b"}] * 3).warnings
    assert warning.what == "3 of 3 rows join a prompt and a response without a blank between them"


# the reward model: what it reads


def _reward(env: tiny.Environment, source: Source, **changes: Any) -> ModelReward:
    opened = open_source(ModelRewardConfig(path=str(env.reward)), "reward model")
    return ModelReward(ModelRewardConfig(path=str(env.reward), **changes), opened, source, torch.device("cpu"))


def _shown(prompt: str, response: str, messages: Any = None) -> Samples:
    return Samples([prompt], [response], [prompt + response], {}, messages, [False])


@pytest.mark.parametrize("limit", [None, 4])
def test_pairs_are_read_as_ppo_shows_them(env, made, source, limit):
    pairs = [{"prompt": "b p", "chosen": " a c", "rejected": " d"}, {"prompt": "a b c p", "chosen": " a", "rejected": " b <eos>"}]
    rows = made(pairs, RMDataConfig, max_length=limit)
    reward = _reward(env, source, max_length=limit)
    for column in ("chosen", "rejected"):
        seen = [reward.encode(_shown(p["prompt"], p[column]), 0) for p in pairs]
        assert rows.columns[f"{column}_ids"] == seen
    expected = [[1, 6, 0, 2, EOS], [0, 1, 2, 6, 0, EOS]] if limit is None else [[6, 0, 2, EOS], [2, 6, 0, EOS]]
    assert rows.columns["chosen_ids"] == expected


def test_chat_pairs_are_read_as_ppo_shows_them(env, made, source):
    source.tokenizer.chat_template = TEMPLATE
    prompt = [{"role": "user", "content": "a b"}]
    rows = made([{"prompt": prompt, "chosen": "c", "rejected": [{"role": "assistant", "content": "d"}]}], RMDataConfig)
    reward = _reward(env, source)
    reward.tokenizer.chat_template = TEMPLATE
    assert rows.columns == {
        "chosen_ids": [reward.encode(_shown("", "c", [prompt]), 0)],
        "rejected_ids": [reward.encode(_shown("", "d", [prompt]), 0)],
    }
    whole = [{side: [*prompt, {"role": "assistant", "content": said}] for side, said in (("chosen", "c"), ("rejected", "d"))}]
    assert made(whole, RMDataConfig, prompt_column=None).columns == rows.columns


def test_pairs_without_a_prompt_column_and_without_an_end(made):
    rows = made([{"chosen": "a b", "rejected": "c"}], RMDataConfig, prompt_column=None, append_eos=False)
    assert rows.columns == {"chosen_ids": [[0, 1]], "rejected_ids": [[2]]}


def test_pairs_that_are_no_pairs_are_left_out(made):
    same, real = {"prompt": "p", "chosen": " a", "rejected": " a"}, {"prompt": "p", "chosen": " a", "rejected": " b"}
    rows = made([same, real, same], RMDataConfig)
    assert (len(rows), rows.left_out, rows.why) == (1, 2, "chosen = rejected")
    with pytest.raises(DataError) as caught:
        made([same], RMDataConfig)
    assert caught.value.lines() == [
        "error: none of the 1 pairs can be learnt from",
        "  why:  chosen and rejected are the same in all of them",
    ]


def test_chat_pairs_need_a_template(made, tmp_path):
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(ConfigError) as caught:
        made([{"chosen": chat, "rejected": chat}], RMDataConfig, prompt_column=None)
    assert caught.value.lines() == [
        "error: the pairs are chat messages and the model's tokenizer has no chat template",
        f"  why:  row 0 of {tmp_path / 'rows.jsonl'}",
        "  try:  data.chat_template=FILE.jinja, or a chat model: model=hf:PATH",
    ]


# the config


@pytest.mark.parametrize(
    ("batch", "micro", "processes", "expected"), [(32, 16, 1, 16), (30, 16, 1, 15), (7, 4, 1, 1), (32, 16, 4, 8), (8, 64, 1, 8)]
)
def test_a_batch_is_cut_into_even_microbatches(batch, micro, processes, expected):
    config = SFTStage(optim=StageOptimConfig(batch_size=batch, microbatch_size=micro), launch=StageLaunchConfig(processes=processes))
    assert microbatch_size(config) == expected


def test_a_saved_config_is_read_back(tmp_path):
    for config in (SFTStage(model=SFTModelConfig(from_scratch=True)), RMStage(data=RMDataConfig(prompt_column=None))):
        compose.save(config, tmp_path / "config.yaml")
        assert compose.load(tmp_path / "config.yaml") == config


LIGHT = """
import sys
from rlctl import cli
for argv, status in {calls}:
    assert cli.main(argv) == status, argv
heavy = {{m.partition(".")[0] for m in sys.modules}} & {{"torch", "transformers", "datasets", "accelerate", "trl", "numpy"}}
assert not heavy, heavy
"""


def test_configs_help_and_config_errors_need_no_torch(tmp_path):
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "rm.yaml").write_text("defaults: [base_rm, _self_]\noptim: {lr: 0.125}\ndata: {path: pairs.jsonl}\n")
    calls = [
        (["sft", "--cfg", "job", "data=file:x.jsonl"], 0),
        (["rm", "recipe", "--cfg", "job"], 0),
        (["sft", "--help"], 0),
        (["rm", "data=file:x.jsonl", "optim.lrr=1", "algo=ppo", "optim.center_score=1"], 2),
        (["sft", "recipe"], 2),
        (["rm", "model=nope"], 2),
        (["sft", "-m", "seed=0,1"], 2),
        (["sft", "optim.batch_size=30", "launch.processes=4", "optim.lr=-1", "hydra.run.dir=run"], 2),
    ]
    done = subprocess.run([sys.executable, "-c", LIGHT.format(calls=calls)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "path: ./x.jsonl" in done.stdout
    assert "lr: 0.125" in done.stdout
    assert "response_column: response" in done.stdout
    assert "rlctl sft [RECIPE_DIR] [key=value ...]" in done.stdout
    assert done.stderr.splitlines() == [
        "error: unknown keys",
        "  why:  optim.lrr=1: there is no key 'optim.lrr'; did you mean optim.lr?",
        "        algo=ppo: there is no key 'algo'",
        "        optim.center_score=1: there is no key 'optim.center_score'; did you mean optim.center_scores?",
        "  try:  rlctl rm --help lists every key",
        "error: recipe is not a recipe folder",
        "  why:  it has no sft.yaml",
        "  try:  rlctl sft RECIPE_DIR [key=value ...]",
        "error: the config cannot be composed",
        "  why:  model=nope: no such option (there are: builtin, hf:...)",
        "  try:  rlctl rm --help lists every option and key",
        "error: rlctl sft makes one run",
        "  why:  --multirun is for rlctl train",
        "  try:  rlctl sft seed=0,1",
        "error: the config has 3 problems",
        "  why:  optim.lr=-1.0: must be at least 0",
        "        data.path is not set: data=file:PATH or data=hf:NAME, with columns prompt and response",
        "        optim.batch_size=30 cannot be shared evenly by launch.processes=4",
    ]


# whole commands, in this process: TRL takes seconds to import


@dataclass
class Done:
    """A finished command."""

    status: int
    out: str
    err: str


Rlctl = Callable[..., Done]


@pytest.fixture
def rlctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Rlctl]:
    """The command in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    importlib.invalidate_caches()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(*argv: str) -> Done:
        compose._fresh_dir.cache_clear()
        status = cli.main([*argv, "launch=cpu"])
        return Done(status, *capfd.readouterr())

    yield run
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def _lines(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def _summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


# after "p" comes what the last word before it is not: there is something to learn, and a few rows say all of it
ROWS = [{"prompt": f"{a} p", "response": f" {b} {a}"} for a, b in zip("abcdef", "bcdefa", strict=True)] * 4
PAIRS = [{"prompt": f"{a} p", "chosen": f" a {b}", "rejected": f" d {b}"} for a in "abcdef" for b in "abcdef"] * 2
FAST = ["optim.lr=3e-3", "optim.schedule=constant", "optim.batch_size=8", "optim.microbatch_size=4"]


def test_sft_from_rows_to_a_policy_that_ppo_takes(env, rlctl):
    _jsonl(Path("rows.jsonl"), ROWS)
    done = rlctl("sft", f"model=hf:{env.policy}", "data=file:rows.jsonl", *FAST, "run.steps=25", "data.held_out=0.2", "hydra.run.dir=sft")
    assert done.status == 0, done.err
    run = Path("sft")
    names = {p.name for p in run.iterdir()}
    assert names == {
        ".hydra",
        "command.txt",
        "config.yaml",
        "env.json",
        "metrics.jsonl",
        "plan.json",
        "policy",
        "rlctl.log",
        "summary.json",
    }
    lines = _lines(run)
    assert [line["step"] for line in lines] == [1, 10, 20, 25]
    assert lines[-1]["sft/loss"] < 0.5 * lines[0]["sft/loss"]
    assert lines[-1]["sft/held_out_loss"] < 0.5 * lines[0]["sft/held_out_loss"]
    assert [("sft/held_out_loss" in line) for line in lines] == [True, False, False, True]
    assert {line["stage/lr"] for line in lines} == {3e-3}
    assert lines[-1]["stage/tokens"] == (8 * 20 + 8) * 5  # eight epochs of 20 rows in batches of 8, 8 and 4, and a batch; 5 tokens each
    summary = _summary(run)
    assert (summary["status"], summary["steps_done"], summary["reason"]) == ("finished", 25, "all 25 updates done")
    assert summary["last"] == {k: v for k, v in lines[-1].items() if k != "step"}
    assert "step 25/25  loss" in done.out
    assert "rows        20 to train on, 4 held out" in done.out
    policy, tok = AutoModelForCausalLM.from_pretrained(run / "policy"), AutoTokenizer.from_pretrained(run / "policy")
    assert tiny.differing(tiny.weights(env_policy := AutoModelForCausalLM.from_pretrained(env.policy)), policy)
    assert (policy.config.use_cache, policy.dtype, len(tok)) == (env_policy.config.use_cache, torch.float32, 8)
    said = policy.generate(torch.tensor([[0, 6]]), do_sample=False, max_new_tokens=5)
    assert said.tolist() == [[0, 6, 1, 0, EOS]], "it has not learnt to answer and to end"
    train = rlctl(
        "train", "model=hf:sft/policy", f"reward=model:{env.reward}", f"data=file:{env.prompts}", "run.steps=1", "rollout.max_new_tokens=4",
        "rollout.prompts_per_step=4", "run.tracker=none", "console=quiet",
    )  # fmt: skip
    assert train.status == 0, train.err


def test_rm_from_pairs_to_a_reward_model_that_scores_in_ppo_as_it_was_trained(env, rlctl, source):
    """The tokenizer's padding is its end token: transformers would read the score a token early."""
    _jsonl(Path("pairs.jsonl"), PAIRS)
    done = rlctl("rm", f"model=hf:{env.policy}", "data=file:pairs.jsonl", *FAST, "run.epochs=4", "data.held_out=0.25", "hydra.run.dir=rm")
    assert done.status == 0, done.err
    lines = _lines(Path("rm"))
    assert lines[-1]["step"] == 28  # 54 pairs: 7 batches an epoch
    assert lines[0]["rm/accuracy"] < 0.9 < 0.99 < lines[-1]["rm/held_out_accuracy"]
    assert lines[-1]["rm/loss"] < 0.2 < lines[0]["rm/loss"]
    assert "held-out accuracy" in done.out
    classifier = AutoModelForSequenceClassification.from_pretrained("rm/reward")
    assert classifier.config.num_labels == 1
    opened = open_source(ModelRewardConfig(path="rm/reward"), "reward model")
    reward = ModelReward(ModelRewardConfig(path="rm/reward"), opened, source, torch.device("cpu"))
    assert reward.append_eos
    held_out = _held_out(PAIRS, 0.25, 16)
    texts = [p["prompt"] + p[side] for side in ("chosen", "rejected") for p in held_out]
    scores = torch.tensor(reward.score(tiny.samples(texts)))
    margin = (scores[: len(held_out)] - scores[len(held_out) :]).mean()
    assert margin.item() == pytest.approx(lines[-1]["rm/held_out_margin"], abs=1e-4)
    train = rlctl(
        "train", f"model=hf:{env.policy}", "reward=model:rm/reward", f"data=file:{env.prompts}", "run.steps=1", "rollout.max_new_tokens=4",
        "rollout.prompts_per_step=4", "run.tracker=none", "console=quiet", "hydra.run.dir=ppo",
    )  # fmt: skip
    assert train.status == 0, train.err
    assert "reward-model" in json.loads(Path("ppo/plan.json").read_text())["value"]
    again = rlctl("rm", "model=hf:rm/reward", "data=file:pairs.jsonl", *FAST, "run.steps=1", "data.held_out=0.25", "hydra.run.dir=rm2")
    assert again.status == 0, again.err  # its head goes on: it knows already
    assert _lines(Path("rm2"))[0]["rm/held_out_accuracy"] == lines[-1]["rm/held_out_accuracy"]


def _held_out(rows: list[dict[str, Any]], share: float, expected: int) -> list[dict[str, Any]]:
    from rlctl.config.stages import RMOptimConfig
    from rlctl.stages import trainer
    from rlctl.stages.rows import Rows

    config = RMStage(data=RMDataConfig(held_out=share), optim=RMOptimConfig(batch_size=8, microbatch_size=4))
    numbered = Rows({"chosen_ids": [[i] for i in range(len(rows))], "rejected_ids": [[0]] * len(rows)}, 0, "", "")
    parts = trainer.split(numbered, config)
    back = [ids[0] for ids in parts.held_out["chosen_ids"]]
    assert len(back) == expected
    assert sorted(back + [ids[0] for ids in parts.train["chosen_ids"]]) == list(range(len(rows)))
    return [rows[i] for i in back]


def test_padding_is_a_token_that_closes_no_text():
    from datasets import Dataset

    from rlctl.stages.rows import Split
    from rlctl.stages.trainer import padding

    train = Dataset.from_dict({"chosen_ids": [[5, 0], [3, 1]], "rejected_ids": [[2, 7], [7, 7]]})
    held_out = Dataset.from_dict({"chosen_ids": [[2]], "rejected_ids": [[4]]})
    for pad in ("<eos>", None):  # ids 0, 1, 7 are last
        assert padding(Split(train, None), tiny.tokenizer(pad=pad), 8) == "c"
        assert padding(Split(train, held_out), tiny.tokenizer(pad=pad), 8) == "d"
    assert padding(Split(train, None), tiny.tokenizer(pad="f"), 8) == "f"


def test_microbatches_change_nothing_and_seeds_decide(env, rlctl):
    _jsonl(Path("rows.jsonl"), [*ROWS, {"prompt": "a", "response": " b c d e f a b c d e"}])

    def losses(name: str, *argv: str) -> list[float]:
        run = ["run.steps=4", "run.log_every=1", "optim.batch_size=8", "data.held_out=0", f"hydra.run.dir={name}", "console=quiet"]
        done = rlctl("sft", f"model=hf:{env.policy}", "data=file:rows.jsonl", *run, *argv)
        assert (done.status, done.out) == (0, ""), done.err
        return [line["sft/loss"] for line in _lines(Path(name))]

    whole = losses("whole", "optim.microbatch_size=8")
    assert losses("parts", "optim.microbatch_size=2") == pytest.approx(whole, abs=1e-5)
    assert losses("again", "optim.microbatch_size=8") == whole
    assert losses("other", "optim.microbatch_size=8", "seed=1") != whole
    still = ["optim.lr=0", "optim.microbatch_size=8", "seed=3"]  # seed 0 would draw the tiny policy once more
    losses("kept", *still)
    losses("fresh", *still, "model.from_scratch=true")
    before = tiny.weights(AutoModelForCausalLM.from_pretrained(env.policy))
    assert tiny.differing(before, AutoModelForCausalLM.from_pretrained("kept/policy")) == []
    changed = tiny.differing(before, AutoModelForCausalLM.from_pretrained("fresh/policy"))
    assert {name for name in before if name.endswith("weight") and "ln_" not in name} <= set(changed)


def test_what_goes_wrong_leaves_no_model(env, rlctl, monkeypatch):
    _jsonl(Path("rows.jsonl"), ROWS)
    start = ["sft", f"model=hf:{env.policy}", "data=file:rows.jsonl", "run.steps=3", "run.log_every=1", *FAST]
    done = rlctl(*start, "optim.lr=1e30", "hydra.run.dir=nan")
    assert (done.status, done.err.splitlines()) == (
        4,
        ["error: the loss is nan at update 2", "  why:  the weights have diverged", "  try:  a lower optim.lr"],
    )
    assert _summary(Path("nan"))["reason"] == "the loss is nan at update 2"

    from rlctl.stages import run as stage
    from rlctl.stages.bridge import Bridge

    def interrupt(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Bridge, "on_step_begin", interrupt)
        done = rlctl(*start, "hydra.run.dir=int")
    assert done.status == 130
    assert "interrupted from the keyboard; no model was saved" in done.out
    assert (_summary(Path("int"))["status"], _summary(Path("int"))["steps_done"]) == ("interrupted", 1)

    def half(folder: Path, lm: Any, tokenizer: Any) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(stage.weights, "save_policy", half)
        done = rlctl(*start, "hydra.run.dir=full")
    assert done.status == 4
    assert done.err.startswith(f"error: cannot write {Path('full').resolve() / 'policy'}\n")
    assert _summary(Path("full"))["status"] == "failed"
    assert [p for name in ("nan", "int", "full") for p in Path(name).glob("policy")] == []


@pytest.mark.parametrize(
    ("command", "model", "lines"),
    [
        (
            "sft",
            "reward",
            [
                "error: the model MODEL is a GPT2ForSequenceClassification, not a language model",
                "  why:  its words would be random",
                "  try:  a decoder-only language model (AutoModelForCausalLM), such as a GPT-2, Llama or Qwen folder: model=hf:PATH",
            ],
        ),
        (
            "rm",
            "several",
            [
                "error: the model MODEL is a classifier with 3 labels, expected 1",
                "  try:  a decoder-only language model, or a sequence classifier with one label: model=hf:PATH",
            ],
        ),
        ("rm", "a/b/c", ["error: no model at a/b/c", "  why:  there is no such folder", "  try:  model=hf:PATH_OR_HUB_ID"]),
    ],
)
def test_a_model_of_the_wrong_kind_is_refused_before_its_weights_are_read(env, rlctl, command, model, lines):
    folder = Path(tiny.save(Path("several").resolve(), tiny.classifier(labels=3)) if model == "several" else getattr(env, model, model))
    if folder.exists() and model == "several":
        (folder / "model.safetensors").unlink()
    _jsonl(Path("rows.jsonl"), ROWS)
    done = rlctl(command, f"model=hf:{folder}", "data=file:rows.jsonl")
    assert done.status == 2
    assert [line.replace(str(folder), "MODEL") if "/b/" not in line else line for line in done.err.splitlines()] == lines


def test_a_run_folder_is_never_used_twice_and_nothing_is_left_to_train_on(env, rlctl):
    _jsonl(Path("rows.jsonl"), ROWS[:1])
    done = rlctl("sft", f"model=hf:{env.policy}", "data=file:rows.jsonl", "data.held_out=0.9", "hydra.run.dir=one")
    assert done.err.splitlines() == ["error: data.held_out=0.9 leaves none of 1 rows to train on", "  try:  data.held_out=0"]
    assert done.status == 3
    done = rlctl("sft", f"model=hf:{env.policy}", "data=file:rows.jsonl", "hydra.run.dir=one")
    assert (done.status, done.err.splitlines()[0]) == (2, f"error: the run folder {Path('one').resolve()} holds a run already")


def test_the_updates_that_are_announced_are_made(env, rlctl):
    _jsonl(Path("rows.jsonl"), ROWS)  # 24
    for rows, batch, micro, epochs, expected in ((24, 8, 4, 1.5, 5), (23, 10, 5, 1, 3), (7, 4, 2, 2, 4), (3, 8, 8, 1, 1)):
        name = f"run-{rows}-{batch}"
        sizes = [f"data.limit={rows}", f"optim.batch_size={batch}", f"optim.microbatch_size={micro}", f"run.epochs={epochs}"]
        done = rlctl("sft", f"model=hf:{env.policy}", "data=file:rows.jsonl", *sizes, "data.held_out=0", f"hydra.run.dir={name}")
        assert f"  steps       {expected}\n" in done.out
        assert _summary(Path(name))["steps_done"] == expected


@pytest.mark.slow
def test_two_processes_train_as_one(env, tmp_path):
    _jsonl(tmp_path / "pairs.jsonl", PAIRS)
    start = [sys.executable, "-m", "rlctl", "rm", f"model=hf:{env.policy}", "data=file:pairs.jsonl", "launch=cpu", *FAST, "run.log_every=1"]

    def run(*argv: str) -> None:
        done = subprocess.run([*start, "run.steps=3", *argv], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    run("hydra.run.dir=one", "data.shuffle=false")
    run("hydra.run.dir=two", "data.shuffle=false", "launch.processes=2")
    one, two = (_lines(tmp_path / name) for name in ("one", "two"))
    assert [line["step"] for line in two] == [1, 2, 3]
    for name in ("rm/loss", "rm/accuracy", "stage/grad_norm"):
        assert [line[name] for line in two] == pytest.approx([line[name] for line in one], rel=1e-4), name
    assert [line["stage/tokens"] for line in two] == [line["stage/tokens"] for line in one]
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "two" / "reward").config.num_labels == 1


# the recipe

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "pipeline"


def _recipe(code: str, *argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(RECIPE), *sys.path])}
    return subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False, env=environment, cwd=cwd)


def test_the_recipes_data_is_what_its_script_makes():
    done = _recipe("import json; from make_data import rows; print(json.dumps(rows()))")
    made = json.loads(done.stdout)
    assert made.keys() == {"texts", "pairs", "prompts", "held_out"}
    for name, rows in made.items():
        assert [json.loads(line) for line in (RECIPE / "data" / f"{name}.jsonl").read_text().splitlines()] == rows
    held_out = {row["prompt"] for row in made["held_out"]}
    assert len(held_out) == 200
    assert not held_out & {row["prompt"] for name in ("texts", "pairs", "prompts") for row in made[name]}


def test_one_label_in_ten_of_the_recipe_is_wrong_under_the_true_measure():
    code = """if True:
        import json, sys; from pathlib import Path; from true import true_measure
        rows = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
        sides = [true_measure([r["prompt"] for r in rows], [r[side] for r in rows]) for side in ("chosen", "rejected")]
        print(sum(a > b for a, b in zip(*sides)) / len(rows), sum(a == b for a, b in zip(*sides)))
        """
    share, ties = _recipe(code, str(RECIPE / "data" / "pairs.jsonl")).stdout.split()
    assert 0.87 < float(share) < 0.93
    assert ties == "0"


def test_the_recipes_own_examples_hold():
    for name in ("true", "compare"):
        done = _recipe(f"import doctest, {name}; found = doctest.testmod({name}); print(found.attempted > 0, found.failed)")
        assert done.stdout == "True 0\n", done.stdout + done.stderr
