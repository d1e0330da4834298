"""Kernels of the Mamba seeds, run by Triton's interpreter (started by test_triton_seeds.py in a process of its own).

The interpreter scans element by element, so sizes are tiny; they still straddle every block, chunk and padded lane.
"""

import pytest
import torch

DTYPES = [torch.float32, torch.bfloat16]
SMALL_CHUNKS = [{"channels": 2, "chunk": 4, "num_warps": 1}, {"channels": 4, "chunk": 8, "num_warps": 1}]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "state", "batch", "length", "bias"), [(3, 5, 2, 9, True), (8, 4, 1, 8, False), (5, 1, 1, 1, True)])
@pytest.mark.parametrize("name", ["selective_scan", "causal_conv1d_silu"])
def test_prefill(seed, mixers, exact, as_accurate, same_state, name, hidden, state, batch, length, bias, dtype) -> None:
    candidate, mixer = seed(name), mixers.mixer(hidden, state, dtype, use_conv_bias=bias)
    x = torch.randn(batch, length, hidden, dtype=dtype)
    before = x.clone()
    with torch.no_grad():
        truth, last = exact(mixer, x)
        for config in candidate.CONFIGS + (SMALL_CHUNKS if name == "selective_scan" else []):
            theirs, mine, prepared = mixers.cache(mixer), mixers.cache(mixer), candidate.prepare(mixer, **config)
            assert candidate.accepts(mixer, prepared, x, cache=mine)
            as_accurate(candidate.forward(mixer, prepared, x, cache=mine), mixer(x, theirs), truth, dtype, factor=3.0)
            expected, found = mixers.layer(mixer, theirs), mixers.layer(mixer, mine)
            assert torch.equal(found.conv_states[0], expected.conv_states[0])
            assert found.has_previous_state == expected.has_previous_state
            same_state(found.recurrent_states[0], expected.recurrent_states[0], last, dtype, factor=3.0)
    assert torch.equal(x, before)


@pytest.mark.parametrize("mask_type", [torch.long, torch.bool, torch.float32])
@pytest.mark.parametrize("name", ["selective_scan", "causal_conv1d_silu"])
def test_prefill_of_left_padded_rows(seed, mixers, exact, as_accurate, name, mask_type) -> None:
    candidate, mixer = seed(name), mixers.mixer(5, 4)
    x, mask = torch.randn(2, 7, 5), torch.ones(2, 7, dtype=mask_type)
    mask[0, :4] = 0
    with torch.no_grad():
        prepared = candidate.prepare(mixer, **candidate.CONFIGS[-1])
        got = candidate.forward(mixer, prepared, x, attention_mask=mask)
        as_accurate(got, mixer(x, attention_mask=mask), exact(mixer, x, mask)[0], torch.float32)


@pytest.mark.parametrize("name", ["selective_scan", "causal_conv1d_silu"])
def test_prefill_declines_a_live_cache(seed, mixers, name) -> None:
    candidate, mixer = seed(name), mixers.mixer(5, 4)
    cache, x = mixers.cache(mixer), torch.randn(1, 4, 5)
    prepared = candidate.prepare(mixer)
    with torch.no_grad():
        mixer(x, cache)
        assert not candidate.accepts(mixer, prepared, x, cache=cache)
        assert not candidate.accepts(mixer, prepared, x, attention_mask=torch.ones(1, 9))
        assert not candidate.accepts(mixer, prepared, x.double())
    assert not candidate.accepts(mixer, prepared, x)


@pytest.mark.parametrize("offset", [-60.0, -15.0, 0.0, 30.0])
def test_scan_over_the_range_of_softplus(seed, mixers, exact, as_accurate, offset) -> None:
    candidate, mixer = seed("selective_scan"), mixers.mixer(4, 3)
    x = torch.randn(1, 10, 4)
    with torch.no_grad():
        mixer.dt_proj.bias.add_(offset)
        for config in (SMALL_CHUNKS[0], candidate.CONFIGS[-1]):
            got = candidate.forward(mixer, candidate.prepare(mixer, **config), x)
            as_accurate(got.flatten(1), mixer(x).flatten(1), exact(mixer, x)[0].flatten(1), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "state", "batch", "bias"), [(17, 5, 2, True), (32, 16, 1, False), (3, 1, 3, True)])
def test_decode(seed, mixers, exact, as_accurate, same_state, hidden, state, batch, bias, dtype) -> None:
    candidate, mixer = seed("selective_state_update"), mixers.mixer(hidden, state, dtype, use_conv_bias=bias)
    x = torch.randn(batch, 9, hidden, dtype=dtype)
    with torch.no_grad():
        truth, last = exact(mixer, x)
        for config in candidate.CONFIGS:
            theirs, mine, prepared = mixers.cache(mixer), mixers.cache(mixer), candidate.prepare(mixer, **config)
            assert not candidate.accepts(mixer, prepared, x[:, :1], cache=mine)
            mixer(x[:, :6], theirs)
            mixer(x[:, :6], mine)
            layer = mixers.layer(mixer, mine)
            window, recurrent = layer.conv_states[0], layer.recurrent_states[0]
            for t in range(6, 9):
                step = x[:, t : t + 1]
                assert candidate.accepts(mixer, prepared, step, cache=mine)
                original = mixer(step, theirs)
                as_accurate(candidate.forward(mixer, prepared, step, cache=mine), original, truth[:, t : t + 1], dtype, factor=3.0)
            assert layer.conv_states[0] is window
            assert layer.recurrent_states[0] is recurrent
            assert torch.equal(window, mixers.layer(mixer, theirs).conv_states[0])
            same_state(recurrent, mixers.layer(mixer, theirs).recurrent_states[0], last, dtype, factor=3.0)
            assert not candidate.accepts(mixer, prepared, x, cache=mine)
