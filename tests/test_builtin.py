"""What ships with rlctl: sizes, manners, and that the scripts make exactly these files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rlctl.builtin import count_good, path


def test_files_are_small_and_safe() -> None:
    for name in ("policy", "reward"):
        files = {f.name: f.stat().st_size for f in path(name).iterdir()}
        assert files["model.safetensors"] <= 3_000_000
        assert not [f for f in files if f.endswith((".bin", ".pt", ".py"))]
        assert "/" not in json.loads((path(name) / "config.json").read_text()).get("_name_or_path", "")


def test_tokenizer_adds_bos_once_never_eos_and_round_trips() -> None:
    tokenizer = AutoTokenizer.from_pretrained(path("policy"))
    for text in ["The soup was warm.", "3 + 4 =", "Zürich, naïve – 12!"]:
        ids = tokenizer(text).input_ids
        assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id
        assert tokenizer.eos_token_id not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text


def test_prompts_have_references_and_do_not_give_the_game_away() -> None:
    rows = [json.loads(line) for line in path("prompts.jsonl").open()]
    assert len(rows) >= 300
    assert set(rows[0]) == {"prompt", "reference", "answer", "kind"}
    assert all(r["reference"].strip() and r["answer"].strip() for r in rows)
    assert sum(count_good([r["prompt"] for r in rows])) == 0
    for row in rows:
        if row["kind"] == "sum":
            a, b = row["prompt"].removesuffix("=").split("+")
            assert row["answer"] == str(int(a) + int(b)) == row["reference"].strip()


@torch.no_grad()
def test_reward_model_prefers_the_reference_to_an_unkind_answer() -> None:
    tokenizer = AutoTokenizer.from_pretrained(path("reward"))
    model = AutoModelForSequenceClassification.from_pretrained(path("reward"), dtype=torch.float32).eval()
    assert model.config.num_labels == 1

    def score(text: str) -> float:
        return float(model(torch.tensor([[*tokenizer(text).input_ids, tokenizer.eos_token_id]])).logits)

    assert score("The soup was warm and tasty.") > score("The soup was cold and awful.") + 1
    assert score("3 + 4 = 7") > score("3 + 4 = 9") + 1


@torch.no_grad()
def test_policy_ends_its_sentences() -> None:
    tokenizer = AutoTokenizer.from_pretrained(path("policy"), padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path("policy"), dtype=torch.float32).eval()
    rows = [json.loads(line)["prompt"] for line in path("prompts.jsonl").open()][:100]
    torch.manual_seed(0)
    out = model.generate(**tokenizer(rows, return_tensors="pt", padding=True), do_sample=True, top_k=0, max_new_tokens=24)
    response = out[:, -24:]
    assert (response == tokenizer.eos_token_id).any(1).float().mean() >= 0.95
    goods = count_good(tokenizer.batch_decode(response, skip_special_tokens=True))
    assert 0 < sum(goods) / len(goods) < 0.3


@pytest.mark.slow
def test_the_scripts_reproduce_the_files(tmp_path: Path) -> None:
    """Text and tokenizer to the byte; weights too on a machine like the one that made them, in behaviour on any."""
    subprocess.run(
        [sys.executable, "-m", "rlctl.builtin.make", "--out", str(tmp_path)],
        check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=1800,
    )  # fmt: skip
    for name in ("prompts.jsonl", "policy/tokenizer.json", "policy/config.json", "reward/config.json"):
        folder, _, rest = name.partition("/")
        assert (tmp_path / name).read_bytes() == (path(folder) / rest if rest else path(folder)).read_bytes(), name
    ids = torch.tensor([AutoTokenizer.from_pretrained(path("policy"))("The weather was").input_ids])
    for folder, auto in (("policy", AutoModelForCausalLM), ("reward", AutoModelForSequenceClassification)):
        ours, made = (auto.from_pretrained(p, dtype=torch.float32).eval() for p in (path(folder), tmp_path / folder))
        with torch.no_grad():
            # kernels differ between processors in the last bits, and training carries that on
            torch.testing.assert_close(made(ids).logits.softmax(-1), ours(ids).logits.softmax(-1), atol=0.1, rtol=0)


@pytest.mark.slow
def test_the_embedded_default_learns(tmp_path: Path) -> None:
    """`rlctl train` alone: the mean count of "good" goes from below 0.3 to above 2, the KL is finite, the policy loads."""
    command = [sys.executable, "-m", "rlctl", "train", "console=plain", "hydra.run.dir=out"]
    subprocess.run(command, cwd=tmp_path, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").open()]
    assert lines[0]["objective/scores"] < 0.3
    assert lines[-1]["objective/scores"] > 2
    assert 0 < lines[-1]["objective/kl"] < 100
    AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "policy")
