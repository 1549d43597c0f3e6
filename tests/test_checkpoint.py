"""Folders that are whole or not there, which of them are kept, and that transformers loads what is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, GenerationConfig

from rlctl import checkpoint
from rlctl.assemble import assemble
from rlctl.errors import TrainingError
from rlctl.train import train


def writer(text: str):
    def write(folder: Path) -> None:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(text)

    return write


def content(folder: Path) -> str:
    return (folder / "sub" / "file").read_text()


def half(folder: Path) -> None:
    """A write that dies in the middle."""
    writer("new")(folder)
    raise KeyboardInterrupt


# --- rename discipline


def test_a_folder_is_written_and_replaced(tmp_path):
    path = tmp_path / "deep" / "policy"
    assert checkpoint.write_folder(path, writer("old")) == path
    checkpoint.write_folder(path, writer("new"))
    assert content(path) == "new"
    assert [p.name for p in path.parent.iterdir()] == ["policy"]


def test_nothing_is_at_its_place_until_it_is_whole(tmp_path):
    path, there = tmp_path / "policy", []

    def write(folder: Path) -> None:
        writer("new")(folder)
        there.append(path.exists())

    checkpoint.write_folder(path, write)
    assert there == [False] and path.exists()


def test_a_crash_while_writing_leaves_the_old_folder(tmp_path):
    path = checkpoint.write_folder(tmp_path / "policy", writer("old"))
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write_folder(path, half)
    assert content(path) == "old"
    checkpoint.write_folder(path, writer("newer"))  # what the crash left is in nobody's way
    assert content(path) == "newer"
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]


def test_a_crash_while_writing_the_first_time_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, 5, 2, half)
    assert not (tmp_path / "checkpoints" / "step_000005").exists()
    assert checkpoint.checkpoints(tmp_path) == []


@pytest.mark.parametrize("nth", [1, 2])
def test_a_crash_at_a_rename_leaves_a_whole_folder(tmp_path, monkeypatch, nth):
    path = checkpoint.write_folder(tmp_path / "policy", writer("old"))
    rename, calls = Path.rename, []

    def dying(self, target):
        calls.append(target)
        if len(calls) == nth:
            raise OSError("no space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", dying)
    with pytest.raises(TrainingError, match="cannot write") as caught:
        checkpoint.write_folder(path, writer("new"))
    assert "OSError: no space left on device" in str(caught.value) and f"MiB are free at {tmp_path}" in str(caught.value)
    assert content(path) in ("old", "new")


def test_everything_is_flushed_before_the_rename(tmp_path, monkeypatch):
    flushed, path = [], tmp_path / "policy"
    monkeypatch.setattr(checkpoint, "_flush", lambda p: flushed.append((p.name, path.exists())))
    checkpoint.write_folder(path, writer("new"))
    assert ("file", False) in flushed and ("sub", False) in flushed
    assert flushed[-1] == (tmp_path.name, True)


# --- which are kept


def test_checkpoints_are_found_in_order_and_only_whole_ones(tmp_path):
    for step in (5, 1_000_000, 20):
        checkpoint.save(tmp_path, step, 9, writer("x"))
    (tmp_path / "checkpoints" / ".step_000030.partial").mkdir()
    (tmp_path / "checkpoints" / "step_7").mkdir()
    found = checkpoint.checkpoints(tmp_path)
    assert [step for step, _ in found] == [5, 20, 1_000_000]
    assert [p.name for _, p in found] == ["step_000005", "step_000020", "step_1000000"]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path, keep):
    for step in (1, 2, 3, 4):
        checkpoint.save(tmp_path, step, keep, writer(str(step)))
    assert [(step, content(path)) for step, path in checkpoint.checkpoints(tmp_path)] == [(s, str(s)) for s in range(5 - keep, 5)]


def test_an_old_checkpoint_goes_only_once_the_newer_one_is_whole(tmp_path):
    checkpoint.save(tmp_path, 1, 1, writer("1"))
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, 2, 1, half)
    assert [(step, content(path)) for step, path in checkpoint.checkpoints(tmp_path)] == [(1, "1")]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    ("steps", "every", "keep", "kept"),
    [
        (12, 5, 2, ["step_000005", "step_000010"]),
        (12, 5, 1, ["step_000010"]),
        (3, 5, 2, []),
        (2, None, 2, []),
        (2, 1, 2, ["step_000001", "step_000002"]),
    ],
)
def test_a_run_saves_every_so_many_steps_and_at_its_end(env, tmp_path, steps, every, keep, kept):
    seen = tiny.Recording()
    run = {"steps": steps, "save_every": every, "keep": keep}
    train(env.config(tmp_path, rollout={"max_new_tokens": 2}, algo={"epochs": 2, "minibatches": 2}, run=run), seen)
    assert names(tmp_path / "checkpoints") == kept
    assert len(seen.notes) == (steps // every if every else 0)
    assert (tmp_path / "policy" / "model.safetensors").exists()


# --- what transformers makes of them


@pytest.fixture(scope="module", params=["policy", "llama"])
def trained(request, env, tmp_path_factory):
    """A finished run with its value model written, its folder, and the models as they are in memory."""
    import rlctl.train

    folder, kept = tmp_path_factory.mktemp("run"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rlctl.train, "assemble", lambda *a: kept.append(assemble(*a)) or kept[0])
        run = {"steps": 2, "save_every": 1, "save_value": True}
        rlctl.train.train(env.config(folder, policy=getattr(env, request.param), optim={"lr": 1e-2}, run=run), tiny.Recording())
    return folder, kept[0]


IDS = torch.tensor([[0, 2, 6, 1, 4]])


@pytest.mark.parametrize("where", ["policy", "checkpoints/step_000002/policy"])
def test_the_policy_is_a_plain_transformers_folder(trained, where):
    folder, run = trained
    loaded, info = AutoModelForCausalLM.from_pretrained(folder / where, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert tiny.differing(tiny.weights(run.collector.lm), loaded) == []
    torch.testing.assert_close(loaded.eval()(input_ids=IDS).logits, run.collector.lm(input_ids=IDS).logits)
    tokenizer = AutoTokenizer.from_pretrained(folder / where)
    assert tokenizer.get_vocab() == run.collector.tokenizer.get_vocab()
    assert tokenizer.eos_token == "<eos>"


@pytest.mark.parametrize("where", ["value", "checkpoints/step_000002/value"])
def test_the_value_model_is_a_plain_transformers_folder(trained, where):
    folder, run = trained
    loaded, info = AutoModelForSequenceClassification.from_pretrained(folder / where, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert loaded.config.num_labels == 1
    value = run.value.classifier
    with torch.no_grad():
        wanted = value.score(value.base_model(input_ids=IDS).last_hidden_state)
        given = loaded.eval().score(loaded.base_model(input_ids=IDS).last_hidden_state)
    assert tiny.differing(tiny.weights(value), loaded) == []
    torch.testing.assert_close(given, wanted)
    torch.testing.assert_close(loaded(input_ids=IDS).logits, wanted[:, -1])


def test_a_checkpoint_is_the_policy_of_its_step(trained):
    folder, _ = trained
    first, last = (AutoModelForCausalLM.from_pretrained(folder / "checkpoints" / s / "policy") for s in ("step_000001", "step_000002"))
    assert not torch.equal(first(input_ids=IDS).logits, last(input_ids=IDS).logits)


def test_a_written_policy_can_be_trained_further(env, trained, tmp_path):
    folder, run = trained
    again = env.build(tmp_path, policy=folder / "policy")
    assert tiny.differing(tiny.weights(run.collector.policy), again.collector.policy) == []


@pytest.mark.parametrize("save_value", [False, True])
def test_the_value_model_is_written_at_the_end_only_when_asked(env, tmp_path, save_value):
    train(env.config(tmp_path, run={"steps": 1, "save_every": 1, "save_value": save_value}), tiny.Recording())
    assert (tmp_path / "value").exists() == save_value
    assert names(tmp_path / "checkpoints" / "step_000001") == ["policy", "training.pt", "value"]


def test_the_policys_config_and_generation_settings_are_written_as_they_were(env, tmp_path):
    source = tmp_path / "source"
    lm = tiny.gpt2()
    lm.generation_config = GenerationConfig(do_sample=True, top_k=5, repetition_penalty=1.3, eos_token_id=[3, 7], pad_token_id=7)
    tiny.save(source, lm)
    train(env.config(tmp_path / "run", policy=source, checkpointing=True, run={"steps": 1}), tiny.Recording())
    saved = GenerationConfig.from_pretrained(tmp_path / "run" / "policy")
    assert (saved.top_k, saved.repetition_penalty, saved.eos_token_id, saved.do_sample) == (5, 1.3, [3, 7], True)
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "policy").config
    assert config.resid_pdrop == 0.1 and config.use_cache == lm.config.use_cache


def test_generation_settings_that_transformers_would_warn_of_do_not_stop_a_save(env, tmp_path):
    source = tiny.save(tmp_path / "source", tiny.gpt2())
    (source / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9, "eos_token_id": 7, "pad_token_id": 7}')
    summary = train(env.config(tmp_path / "run", policy=source, run={"steps": 1, "save_every": 1}), tiny.Recording())
    assert summary.status == "finished"
    assert GenerationConfig.from_pretrained(tmp_path / "run" / "policy").temperature == 0.6
