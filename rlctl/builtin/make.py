"""Makes everything rlctl ships: `python -m rlctl.builtin.make [--out DIR]`.

Writes `policy/`, `reward/` and `prompts.jsonl` from nothing but the generated text, in some
minutes on one core; twice on one machine gives the same bytes. Knows the order of the work and the
checks of what came out; `learn.py` knows how a model is trained, `text.py` what the text is.
"""

import argparse
import json
import time
from pathlib import Path
from random import Random

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
)
from transformers.utils import logging as transformers_logging

from rlctl.builtin import count_good, learn, text

SEED = 20
POLICY_STEPS, REWARD_STEPS = 1400, 700
PROMPT_SENTENCES, PROMPT_SUMS = 300, 100
NEW_TOKENS = 24
SAMPLES = 4  # of each prompt, for the facts


def write_prompts(rows: list[dict[str, str]], file: Path) -> None:
    """Writes the rows as one JSON object a line."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def save(model, tokenizer, folder: Path) -> None:
    """Writes a model in bfloat16 and its tokenizer as a plain transformers folder."""
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # it is written for its owner only
    tokenizer.save_pretrained(folder)
    # The class by the name that every release of transformers knows, and nothing of how the
    # tokenizer was loaded here.
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    for key in ("backend", "is_local", "local_files_only"):
        config.pop(key, None)
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def make_policy(folder: Path) -> float:
    """Trains and writes the tokenizer and the policy; returns the loss of the last steps (nats)."""
    rng = Random(SEED)
    tokenizer = learn.train_tokenizer(text.sample(rng) for _ in range(20_000))
    model = learn.new_policy(tokenizer, SEED)
    loss = learn.train_policy(model, tokenizer, rng, POLICY_STEPS)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id")
           for name in ("bos", "eos", "pad")}
    model.generation_config = GenerationConfig(**ids)
    save(model, tokenizer, folder)
    return loss


def make_reward(policy: Path, folder: Path, avoid: frozenset[str]) -> float:
    """Trains and writes the reward model, starting from the policy's layers; returns its loss."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    torch.manual_seed(SEED)
    model = AutoModelForSequenceClassification.from_pretrained(
        policy, num_labels=1, dtype=torch.float32)
    loss = learn.train_reward(model, tokenizer, Random(SEED + 1), REWARD_STEPS, avoid)
    save(model, tokenizer, folder)
    return loss


@torch.no_grad()
def policy_facts(folder: Path, rows: list[dict[str, str]]) -> dict[str, float]:
    """What the written policy does at temperature 1 on the prompts, as shares and means."""
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rows = rows * SAMPLES
    prompts = [row["prompt"] for row in rows]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    out = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                         max_new_tokens=NEW_TOKENS)
    answers = out[:, batch.input_ids.shape[1]:]
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    sums = [said == row["reference"] for said, row in zip(texts, rows, strict=True) if row["kind"] == "sum"]
    for prompt, said in list(zip(prompts, texts, strict=True))[:8]:
        say(f"  {prompt}{said}")
    return {
        "share of responses that end": (answers == tokenizer.eos_token_id).any(1).double().mean()
        .item(),
        "share of right sums": sum(sums) / len(sums),
        'mean count of "good"': sum(count_good([a + b for a, b in zip(prompts, texts, strict=True)]))
        / len(texts),
        "mean response tokens": (answers != tokenizer.pad_token_id).sum(1).double().mean().item(),
    }


@torch.no_grad()
def reward_facts(folder: Path, rows: list[dict[str, str]]) -> dict[str, float]:
    """How the written reward model orders pairs on prompts it was not trained on.

    The sums are the exception: there are only a hundred, and training saw all of them.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    known = {row["prompt"] for row in rows}
    rng = Random(SEED + 2)
    pairs = []
    while len(pairs) < 2000:
        pair = text.pair(rng)
        if pair.prompt in known:
            pairs.append(pair)
    better, worse = learn.score_pairs(model, tokenizer, pairs)
    won = (better > worse).double()
    facts = {"pair accuracy": won.mean().item()}
    for why in sorted({pair.why for pair in pairs}):
        of_kind = torch.tensor([pair.why == why for pair in pairs])
        facts[f"pair accuracy, {why}"] = won[of_kind].mean().item()
    scores = torch.cat([better, worse])
    return facts | {"score mean": scores.mean().item(), "score spread": scores.std().item()}


def say(line: str) -> None:
    """Prints one line of progress."""
    print(line, flush=True)


def main() -> None:
    """Makes all of it into `--out`, by default this package's own folder."""
    parser = argparse.ArgumentParser(description="Make the built-in models and prompts.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    out = parser.parse_args().out
    torch.set_num_threads(1)  # more threads would sum in another order
    torch.use_deterministic_algorithms(True)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    start = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    rows = text.prompt_rows(SEED, PROMPT_SENTENCES, PROMPT_SUMS)
    write_prompts(rows, out / "prompts.jsonl")
    facts = {"policy loss": make_policy(out / "policy")}
    say(f"policy written after {time.monotonic() - start:.0f} s; it says, for example:")
    facts |= policy_facts(out / "policy", rows)
    avoid = frozenset(row["prompt"] for row in rows)
    facts["reward loss"] = make_reward(out / "policy", out / "reward", avoid)
    say(f"reward written after {time.monotonic() - start:.0f} s")
    facts |= reward_facts(out / "reward", rows)
    for name in ("policy", "reward"):
        facts[f"{name} file (MB)"] = (out / name / "model.safetensors").stat().st_size / 1e6
    for name, value in facts.items():
        say(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
