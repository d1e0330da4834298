from typing import Any

import pytest
import torch
from recorded import recorded
from small_lm import tiny_mamba
from torch import nn
from transformers import DynamicCache, StaticCache
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
from transformers.models.t5 import T5Config, T5ForConditionalGeneration

from llm4llm.harness.instrument import instrumented
from llm4llm.harness.phases import Occupancy, PhaseTracker, occupancy, token_ids


class RingCache:
    """A cache class of a hand-written model: preallocated, no length."""

    def __init__(self) -> None:
        self.store = torch.zeros(2, 8, 4)

    def update(self, index: int, rows: torch.Tensor) -> None:
        self.store[index, : rows.shape[0]] = rows


class CountedCache:
    def __init__(self) -> None:
        self.entries: list[torch.Tensor] = []
        self.seen_tokens = 0


def tiny_qwen() -> Any:
    config = Qwen3Config(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
        eos_token_id=None, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config).eval()


def phases_of(model: nn.Module, method: str, *args: Any, **kwargs: Any) -> list[str]:
    """Phases of the root's forwards in one driver call."""
    seen: list[str] = []

    def watch(path: str, module: nn.Module, phase: str, original: Any, a: Any, k: Any) -> Any:
        if path == "":
            seen.append(phase)
        return original(*a, **k)

    driver = recorded(model, method, *args, **kwargs)
    with torch.no_grad(), instrumented(driver.root, watch, driver=driver):
        getattr(model, method)(*args, **kwargs)
    return seen


def test_occupancy_of_library_caches() -> None:
    model = tiny_qwen()
    dynamic = DynamicCache(config=model.config)
    assert occupancy(dynamic) == Occupancy(empty=True, length=0)
    model(torch.ones(1, 5, dtype=torch.long), past_key_values=dynamic)
    assert occupancy(dynamic) == Occupancy(empty=False, length=5)
    static = StaticCache(config=model.config, max_cache_len=16)
    assert occupancy(static) == Occupancy(empty=True, length=0)
    model(torch.ones(1, 3, dtype=torch.long), past_key_values=static)
    assert occupancy(static) == Occupancy(empty=False, length=3)


def test_occupancy_of_a_recurrent_cache() -> None:
    model = tiny_mamba()
    held = model(torch.ones(1, 5, dtype=torch.long), use_cache=True).cache_params
    found = occupancy(held)
    assert found is not None
    assert not found.empty


def test_occupancy_of_hand_written_caches() -> None:
    ring = RingCache()
    assert occupancy(ring) == Occupancy(empty=True, length=0)
    ring.update(0, torch.ones(2, 4))
    assert occupancy(ring) == Occupancy(empty=False, length=None)
    counted = CountedCache()
    assert occupancy(counted) == Occupancy(empty=True, length=0)
    counted.seen_tokens = 4
    assert occupancy(counted) == Occupancy(empty=False, length=4)
    legacy = tuple((torch.ones(1, 2, 7, 4), torch.ones(1, 2, 7, 4)) for _ in range(2))
    assert occupancy(legacy) == Occupancy(empty=False, length=7)


@pytest.mark.parametrize("value", [None, 3, "text", torch.ones(2, 2), nn.Linear(2, 2), {"a": torch.ones(2)}, (torch.ones(1, 4, 8),), []])
def test_what_is_no_cache(value: object) -> None:
    assert occupancy(value) is None


def test_token_ids_skips_masks_and_prefers_the_decoder() -> None:
    ids, mask = torch.ones(1, 4, dtype=torch.long), torch.ones(1, 4, dtype=torch.long)
    other = torch.zeros(1, 2, dtype=torch.long)
    assert token_ids((), {"attention_mask": mask, "input_ids": ids}) is ids
    assert token_ids((ids,), {"attention_mask": mask}) is ids
    assert token_ids((), {"input_ids": ids, "decoder_input_ids": other}) is other
    assert token_ids((torch.ones(1, 4, 8),), {}) is None


def test_generate_is_one_prefill_then_decode() -> None:
    prompt = torch.randint(1, 64, (1, 9))
    for model in (tiny_qwen(), tiny_mamba()):
        phases = phases_of(model, "generate", prompt, max_new_tokens=4, do_sample=False)
        assert phases == ["prefill", "decode", "decode", "decode"]


def test_one_token_prompt_is_prefill() -> None:
    phases = phases_of(tiny_qwen(), "generate", torch.tensor([[5]]), max_new_tokens=3, do_sample=False)
    assert phases == ["prefill", "decode", "decode"]


@pytest.mark.parametrize(("length", "chunks"), [(8, 2), (9, 3)])
def test_chunked_prefill_stays_prefill_to_its_last_chunk_of_one_token(length: int, chunks: int) -> None:
    prompt = torch.randint(1, 64, (1, length))
    phases = phases_of(tiny_qwen(), "generate", input_ids=prompt, max_new_tokens=3, do_sample=False, prefill_chunk_size=4)
    assert phases == ["prefill"] * chunks + ["decode"] * 2


def test_growing_sequence_without_a_cache() -> None:
    phases = phases_of(tiny_qwen(), "generate", torch.randint(1, 64, (1, 5)), max_new_tokens=3, do_sample=False, use_cache=False)
    assert phases == ["prefill", "decode", "decode"]


def test_prefill_with_a_cache_left_from_an_earlier_call() -> None:
    model = tiny_qwen()
    prefix, rest = torch.randint(1, 64, (1, 6)), torch.randint(1, 64, (1, 4))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(prefix, past_key_values=cache)
    phases = phases_of(model, "generate", torch.cat([prefix, rest], 1), past_key_values=cache, max_new_tokens=3, do_sample=False)
    assert phases == ["prefill", "decode", "decode"]


def test_verification_of_several_drafted_tokens_is_decode() -> None:
    prompt = torch.randint(1, 64, (1, 6))
    phases = phases_of(tiny_qwen(), "generate", prompt, max_new_tokens=9, do_sample=False, prompt_lookup_num_tokens=3)
    assert phases[0] == "prefill"
    assert set(phases[1:]) == {"decode"}


def test_single_forwards() -> None:
    model = tiny_qwen()
    ids = torch.randint(1, 64, (1, 6))
    assert phases_of(model, "forward", ids) == ["forward"]
    cache = DynamicCache(config=model.config)
    assert phases_of(model, "forward", ids, past_key_values=cache) == ["prefill"]
    assert phases_of(model, "forward", ids, past_key_values=cache) == ["decode"]


def test_a_restarted_sequence_is_prefill_again() -> None:
    tracker, cache = PhaseTracker("generate"), CountedCache()
    assert tracker.root_phase((torch.ones(1, 3, dtype=torch.long), cache), {}) == "prefill"
    cache.seen_tokens = 3
    assert tracker.root_phase((torch.ones(1, 1, dtype=torch.long), cache), {}) == "decode"
    cache.seen_tokens = 0
    assert tracker.root_phase((torch.ones(1, 2, dtype=torch.long), cache), {}) == "prefill"


def test_the_encoder_of_an_encoder_decoder() -> None:
    config = T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0, eos_token_id=None, pad_token_id=0
    )
    model = T5ForConditionalGeneration(config).eval()
    seen: dict[str, list[str]] = {}

    def watch(path: str, module: nn.Module, phase: str, original: Any, a: Any, k: Any) -> Any:
        seen.setdefault(path, []).append(phase)
        return original(*a, **k)

    prompt = torch.randint(1, 64, (1, 7))
    driver = recorded(model, "generate", input_ids=prompt, max_new_tokens=4, do_sample=False)
    with torch.no_grad(), instrumented(driver.root, watch, driver=driver):
        model.generate(input_ids=prompt, max_new_tokens=4, do_sample=False)
    assert seen[""] == ["prefill", "decode", "decode", "decode"]
    assert seen["encoder"] == ["encode"]
    assert set(seen["encoder.block.0"]) == {"encode"}
    assert seen["decoder"] == seen[""]


class Bare(nn.Module):
    """A hand-written generator that never enters its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)

    def generate(self, ids: torch.Tensor, steps: int) -> torch.Tensor:
        for _ in range(steps):
            ids = torch.cat([ids, self.head(self.embed(ids))[:, -1:].argmax(-1)], 1)
        return ids


def test_a_generator_without_root_forward_is_learned_from_its_first_replay() -> None:
    model, seen = Bare(), []

    def watch(path: str, module: nn.Module, phase: str, original: Any, a: Any, k: Any) -> Any:
        seen.append((path, phase))
        return original(*a, **k)

    ids = torch.ones(1, 2, dtype=torch.long)
    driver = recorded(model, "generate", ids, 2)
    for _ in range(2):
        seen.clear()
        with instrumented(driver.root, watch, driver=driver):
            model.generate(ids, 2)
    assert seen == [("embed", "prefill"), ("head", "prefill"), ("embed", "decode"), ("head", "decode")]
