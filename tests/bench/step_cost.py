"""What a PPO step costs beside the same work in bare torch: `python tests/bench/step_cost.py`.

Both sides take one small Llama policy and reward model, the same prompts and sizes, and sample responses of full length. The
bare side has no masks to carry, no metrics, no checks and no configuration: it is the floor. Runs alternate, and only the
ratio of the medians is worth quoting.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

PAD, END = 0, 1


def make(folder: Path, hidden: int, vocab: int) -> None:
    """Policy, reward model, tokenizer and prompts of 8 to 24 words."""
    torch.manual_seed(0)
    words = {"<pad>": PAD, "<eos>": END, "<unk>": 2} | {f"w{i}": i for i in range(3, vocab)}
    word_level = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_level, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    heads = max(1, hidden // 64)
    config = {
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": 4,
        "num_attention_heads": heads, "num_key_value_heads": heads, "max_position_embeddings": 512,
        "pad_token_id": PAD, "eos_token_id": END, "tie_word_embeddings": False,
    }  # fmt: skip
    LlamaForCausalLM(LlamaConfig(**config)).save_pretrained(folder / "policy")
    LlamaForSequenceClassification(LlamaConfig(**config, num_labels=1)).save_pretrained(folder / "reward")
    for name in ("policy", "reward"):
        tokenizer.save_pretrained(folder / name)
    draw = random.Random(0)
    lines = [" ".join(f"w{draw.randrange(3, vocab)}" for _ in range(draw.randint(8, 24))) for _ in range(512)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": line}) + "\n" for line in lines))


class Floor:
    """One PPO step in bare torch."""

    def __init__(self, folder: Path, a: argparse.Namespace):
        torch.manual_seed(0)
        self.a = a
        self.policy = LlamaForCausalLM.from_pretrained(folder / "policy").eval()
        self.reference = copy.deepcopy(self.policy)
        self.reward = LlamaForSequenceClassification.from_pretrained(folder / "reward").eval()
        self.value = copy.deepcopy(self.reward)
        self.optimizer = torch.optim.AdamW([*self.policy.parameters(), *self.value.parameters()], lr=3e-6)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "policy")
        rows = [json.loads(line)["prompt"] for line in (folder / "prompts.jsonl").open()]
        self.prompts = [tokenizer(row).input_ids for row in rows]

    @torch.no_grad()
    def sample(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache, now, position, out, logprobs = None, ids, (mask.cumsum(1) - 1).clamp(min=0), [], []
        for _ in range(self.a.response):
            step = self.policy(
                input_ids=now, attention_mask=mask, position_ids=position, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            cache, all_logprobs = step.past_key_values, torch.log_softmax(step.logits[:, -1], -1)
            now = torch.multinomial(all_logprobs.exp(), 1)
            out.append(now)
            logprobs.append(all_logprobs.gather(1, now))
            mask, position = torch.cat([mask, torch.ones_like(now)], 1), position[:, -1:] + 1
        return torch.cat(out, 1), torch.cat(logprobs, 1)

    def logprobs(self, model: LlamaForCausalLM, s: slice) -> torch.Tensor:
        logits = model.lm_head(self.hidden(model, s))
        return torch.log_softmax(logits, -1).gather(-1, self.ids[s, -self.a.response :, None]).squeeze(-1)

    def hidden(self, model: torch.nn.Module, s: slice) -> torch.Tensor:
        inputs = {"input_ids": self.ids[s], "attention_mask": self.mask[s], "position_ids": self.position[s]}
        return model.model(**inputs, use_cache=False).last_hidden_state[:, -self.a.response - 1 : -1]

    def step(self, number: int) -> float:
        """Seconds of one step."""
        a, start = self.a, time.perf_counter()
        rows = [self.prompts[(number * a.batch + i) % len(self.prompts)] for i in range(a.batch)]
        width = max(map(len, rows))
        ids = torch.tensor([[PAD] * (width - len(r)) + r for r in rows])
        mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
        response, old = self.sample(ids, mask)
        self.ids, self.mask = torch.cat([ids, response], 1), torch.cat([mask, torch.ones_like(response)], 1)
        self.position = (self.mask.cumsum(1) - 1).clamp(min=0)
        parts = [slice(i, i + a.micro) for i in range(0, a.batch, a.micro)]
        with torch.no_grad():
            kl = old - torch.cat([self.logprobs(self.reference, s) for s in parts])
            scores = torch.cat([self.reward.score(self.hidden(self.reward, s)[:, -1]) for s in parts])
            torch.cat([self.value.score(self.hidden(self.value, s)) for s in parts])
            advantages = scores - scores.mean() - 0.05 * kl
        for _ in range(a.epochs):
            for s in parts:
                ratio = (self.logprobs(self.policy, s) - old[s]).exp()
                loss = -torch.min(ratio * advantages[s], ratio.clamp(0.8, 1.2) * advantages[s]).mean()
                values = self.value.score(self.hidden(self.value, s)).squeeze(-1)
                ((loss + 0.1 * (values - advantages[s]).square().mean()) * a.micro / a.batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return time.perf_counter() - start


def rlctl_steps(folder: Path, a: argparse.Namespace, out: Path) -> list[float]:
    """Seconds of each step of a run through the command line, the first left out."""
    subprocess.run(
        [
            sys.executable, "-m", "rlctl", "train", f"model=hf:{folder}/policy", f"reward=model:{folder}/reward",
            f"data=file:{folder}/prompts.jsonl", f"run.steps={a.steps + 1}", f"rollout.prompts_per_step={a.batch}",
            f"rollout.max_new_tokens={a.response}", f"optim.microbatch_size={a.micro}", f"algo.epochs={a.epochs}",
            "optim.lr=3e-6", "run.tracker=none", "console=quiet", f"hydra.run.dir={out}",
        ],
        check=True,
    )  # fmt: skip
    return [json.loads(line)["time/step"] for line in (out / "metrics.jsonl").open()][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sizes = {"hidden": 128, "vocab": 4096, "batch": 32, "micro": 8, "response": 32, "epochs": 2, "steps": 5, "rounds": 3}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, bare, ours = Path(scratch), [], []
        make(folder, a.hidden, a.vocab)
        for i in range(a.rounds):
            floor = Floor(folder, a)
            bare += [floor.step(n) for n in range(a.steps + 1)][1:]
            ours += rlctl_steps(folder, a, folder / f"run{i}")
    b, o = statistics.median(bare), statistics.median(ours)
    result = {"bare torch, s per step": round(b, 4), "rlctl, s per step": round(o, 4), "ratio": round(o / b, 3), "steps": len(ours)}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
