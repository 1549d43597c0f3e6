"""Sampling: from exactly the distribution whose log-probabilities are trained, ending where it should."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import nn
from transformers import GenerationConfig

from rlctl.config.schema import RolloutConfig
from rlctl.sample import Sampler, end_ids

PROMPTS = [[6], [1, 6], [0, 2, 6], [3, 3, 4, 5, 0, 6]]


def sampler(ends=(tiny.EOS,), pad: int = tiny.EOS, **rollout) -> Sampler:
    return Sampler(RolloutConfig(**{"max_new_tokens": 6, **rollout}), tiny.characters(), ends, pad)


def draw(lm, prompts=PROMPTS, seed: int = 0, **settings):
    torch.manual_seed(seed)
    return sampler(**settings)(lm, prompts)


class Calls:
    """Counts forward passes of a module and keeps the widths of its input."""

    def __init__(self, module: nn.Module):
        self.count = 0
        module.register_forward_pre_hook(self._seen)

    def _seen(self, *_):
        self.count += 1


@pytest.fixture
def lm():
    return tiny.gpt2(initializer_range=0.15)


# --- ends


def test_generation_stops_when_every_response_has_ended(lm):
    calls = Calls(lm)
    with tiny.biased(lm, {tiny.EOS: 100.0}):
        s, truncated = draw(lm, max_new_tokens=20)
    assert calls.count <= 2
    assert s.response_mask.tolist() == [[True]] * 4
    assert s.response_ids.tolist() == [[tiny.EOS]] * 4
    assert not truncated.any()


def test_what_follows_the_end_is_padding(lm):
    pad = 3
    s, truncated = draw(lm, PROMPTS * 8, pad=pad)
    lengths = s.response_mask.sum(1)
    assert lengths.unique().numel() > 2  # rows of several lengths, or nothing is tested
    assert (s.response_ids[~s.response_mask] == pad).all()
    for ids, n, cut in zip(s.response_ids.tolist(), lengths.tolist(), truncated.tolist(), strict=True):
        assert tiny.EOS not in ids[: n - 1]
        assert cut == (ids[n - 1] != tiny.EOS)


def test_masks_are_right_where_the_pad_is_the_end_token(lm):
    other, _ = draw(lm, PROMPTS * 8, pad=3)
    same, _ = draw(lm, PROMPTS * 8, pad=tiny.EOS)
    assert torch.equal(same.response_mask, other.response_mask)
    ended = same.response_mask.sum(1) < same.response_mask.shape[1]
    last = same.response_mask.sum(1) - 1
    assert ended.any() and (same.response_ids[ended, last[ended]] == tiny.EOS).all()


@pytest.mark.parametrize("own", [[3, 7], [3], 3])
def test_every_end_token_of_the_generation_config_ends(lm, own):
    lm.generation_config.eos_token_id = own
    ends = end_ids(tiny.tokenizer(), lm.generation_config)
    assert ends == (3, 7)
    for end in ends:
        with tiny.biased(lm, {end: 100.0}):
            s, truncated = draw(lm, ends=ends)
        assert s.response_ids.tolist() == [[end]] * 4
        assert not truncated.any()


def test_end_tokens_without_a_generation_config():
    assert end_ids(tiny.tokenizer(), None) == (tiny.EOS,)
    assert end_ids(tiny.tokenizer(), GenerationConfig(eos_token_id=None)) == (tiny.EOS,)


def test_a_cut_response_keeps_its_sampled_tokens(lm):
    with tiny.biased(lm, {tiny.EOS: -1e9, 2: 100.0}):
        s, truncated = draw(lm)
    assert s.response_ids.tolist() == [[2] * 6] * 4
    assert s.response_mask.all() and truncated.all()


def test_an_end_token_in_the_last_place_is_an_end(lm):
    with tiny.biased(lm, {tiny.EOS: 100.0}):
        s, truncated = draw(lm, max_new_tokens=1)
    assert s.response_mask.tolist() == [[True]] * 4
    assert not truncated.any()


def test_an_end_token_in_the_prompt_ends_nothing(lm):
    prompts = [[tiny.EOS, 6], [5, tiny.EOS], [tiny.EOS]]
    with tiny.biased(lm, {tiny.EOS: -1e9}):
        s, truncated = draw(lm, prompts)
    assert s.prompt_mask.tolist() == [[True, True], [True, True], [False, True]]
    assert s.response_mask.all() and truncated.all()
    with tiny.biased(lm, {tiny.EOS: 100.0}):
        s, truncated = draw(lm, prompts)
    assert s.response_mask.tolist() == [[True]] * 3 and not truncated.any()


def test_stop_texts_end_a_response_with_the_token_that_completes_them(lm):
    plain, _ = draw(lm, PROMPTS * 8, pad=6)
    s, truncated = draw(lm, PROMPTS * 8, pad=6, stop=["c"])
    stopped = 0
    for row in range(32):
        _, ids = tiny.unpadded(s, row)
        ids = ids[0].tolist()
        assert 2 not in ids[:-1]
        assert bool(truncated[row]) == (ids[-1] not in (2, tiny.EOS))
        stopped += ids[-1] == 2
    assert stopped > 0 and (plain.response_ids[plain.response_mask] == 2).any()


def test_a_stop_text_over_several_tokens(lm):
    with tiny.biased(lm, {2: 100.0, tiny.EOS: -1e9}):
        s, truncated = draw(lm, stop=["ccc"])
    assert s.response_mask.sum(1).tolist() == [3] * 4
    assert not truncated.any()


def test_a_stop_text_in_the_prompt_ends_nothing(lm):
    with tiny.biased(lm, {1: 100.0}):
        s, truncated = draw(lm, [[0, 2, 6]], stop=["c"])
    assert s.response_mask.sum(1).tolist() == [6] and truncated.all()


@pytest.mark.parametrize("pad", [tiny.EOS, 3])
def test_a_stop_text_that_begins_in_the_prompt(lm, pad):
    with tiny.biased(lm, {2: 100.0, tiny.EOS: -1e9}):
        s, truncated = draw(lm, [[1, 2], [1, 6]], stop=["cc"], pad=pad)
    assert (s.response_ids[s.response_mask] == 2).all()  # nothing counts that was not sampled
    assert not truncated.any()


# --- the distribution


def chi_square(counts: torch.Tensor, p: torch.Tensor) -> float:
    expected = p * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


LIMIT = 45.0  # a chi-square of 7 degrees of freedom passes this once in 7 million times


@pytest.mark.parametrize("make", [tiny.gpt2, tiny.llama])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_samples_follow_the_softmax_whatever_the_model_would_do_by_itself(make, temperature):
    lm = make(initializer_range=0.15)
    own = {"do_sample": True, "top_k": 2, "top_p": 0.5, "repetition_penalty": 5.0, "temperature": 3.0, "min_new_tokens": 3}
    lm.generation_config = GenerationConfig(**own, bad_words_ids=[[1]], suppress_tokens=[2], num_beams=2, max_length=3)
    n = 1500
    s, _ = draw(lm, [p for p in PROMPTS for _ in range(n)], max_new_tokens=1, temperature=temperature)
    for i, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            p = torch.softmax(lm(input_ids=torch.tensor([prompt])).logits[0, -1] / temperature, 0)
        counts = torch.bincount(s.response_ids[i * n : (i + 1) * n, 0], minlength=8)
        assert p.min() * n > 5 and (counts > 0).all()
        assert chi_square(counts, p) < LIMIT
        uniform = torch.full((8,), 1 / 8)
        assert chi_square(counts, uniform) > LIMIT  # the check can tell distributions apart


def test_the_second_token_follows_the_first():
    lm, n = tiny.gpt2(initializer_range=0.15), 6000
    s, _ = draw(lm, [[1, 6]] * (n // 2) + [[0, 2, 3, 6]] * (n // 2), max_new_tokens=2)
    for prompt, start in (([1, 6], 0), ([0, 2, 3, 6], n // 2)):
        rows = slice(start, start + n // 2)
        first = s.response_ids[rows, 0].bincount(minlength=8)[: tiny.EOS].argmax().item()
        second = s.response_ids[rows, 1][s.response_ids[rows, 0] == first]
        with torch.no_grad():
            p = torch.softmax(lm(input_ids=torch.tensor([[*prompt, first]])).logits[0, -1], 0)
        assert chi_square(second.bincount(minlength=8), p) < LIMIT


def test_top_k_and_top_p_of_the_config_are_used(lm):
    with torch.no_grad():
        logits = lm(input_ids=torch.tensor([[6]])).logits[0, -1]
    s, _ = draw(lm, [[6]] * 500, max_new_tokens=1, top_k=2)
    assert set(s.response_ids.flatten().tolist()) == set(logits.topk(2).indices.tolist())
    s, _ = draw(lm, [[6]] * 500, max_new_tokens=1, top_p=1e-6)
    assert set(s.response_ids.flatten().tolist()) == {logits.argmax().item()}


# --- batches and settings


@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_smaller_batches_sample_the_same_greedy_responses_in_order(size):
    lm = tiny.gpt2()  # at T = 1e-4 sampling is greedy
    whole, cut = draw(lm, PROMPTS * 2, temperature=1e-4)
    parts, cut_in_parts = draw(lm, PROMPTS * 2, temperature=1e-4, batch_size=size)
    for name in ("prompt_ids", "prompt_mask", "response_ids", "response_mask"):
        assert torch.equal(getattr(parts, name), getattr(whole, name)), name
    assert torch.equal(cut, cut_in_parts)


def test_no_more_rows_than_the_batch_size_are_generated_at_once(lm):
    rows = []
    lm.register_forward_pre_hook(lambda _, __, kw: rows.append(len(kw["input_ids"])), with_kwargs=True)
    draw(lm, PROMPTS, batch_size=3)
    assert set(rows) == {3, 1}


def test_generation_uses_the_cache(lm):
    widths = []
    lm.register_forward_pre_hook(lambda _, __, kw: widths.append(kw["input_ids"].shape[1]), with_kwargs=True)
    draw(lm, [[0, 2, 6]] * 4)
    assert widths[0] == 3 and set(widths[1:]) == {1}


def test_the_prompts_come_back_left_padded(lm):
    s, _ = draw(lm)
    assert [tiny.unpadded(s, i)[0][0].tolist() for i in range(4)] == PROMPTS
    assert s.prompt_mask[0].tolist() == [False] * 5 + [True]


def test_the_same_seed_samples_the_same_tokens(lm):
    (first, _), (again, _), (other, _) = (draw(lm, PROMPTS * 4, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.response_ids, again.response_ids)
    assert first.response_ids.shape != other.response_ids.shape or not torch.equal(first.response_ids, other.response_ids)


def test_the_models_own_settings_come_back_and_are_saved_unchanged(lm, tmp_path):
    lm.generation_config = own = GenerationConfig(do_sample=True, top_k=5, repetition_penalty=1.3, eos_token_id=[3, 7], pad_token_id=7)
    before = own.to_dict()
    draw(lm)
    assert lm.generation_config is own and own.to_dict() == before
    lm.save_pretrained(tmp_path)
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert (saved.top_k, saved.repetition_penalty, saved.eos_token_id) == (5, 1.3, [3, 7])


def test_the_models_own_settings_come_back_after_a_failure(lm):
    own = lm.generation_config
    lm.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        draw(lm)
    assert lm.generation_config is own
