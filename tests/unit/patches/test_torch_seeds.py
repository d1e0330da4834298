"""The two seeds in plain torch, against the modules of the library they replace."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "state", "batch", "length"), [(17, 5, 2, 70), (32, 16, 1, 129), (24, 3, 3, 1), (24, 16, 1, 3)])
def test_prefill_is_as_accurate_and_leaves_the_same_cache(
    seed, mixers, exact, as_accurate, same_state, dtype, hidden, state, batch, length
) -> None:
    scan, mixer = seed("mamba_scan_torch"), mixers.mixer(hidden, state, dtype)
    x = torch.randn(batch, length, hidden, dtype=dtype)
    before = x.clone()
    for config in [*scan.CONFIGS, {"chunk": 8}]:
        theirs, mine = mixers.cache(mixer), mixers.cache(mixer)
        prepared = scan.prepare(mixer, **config)
        with torch.no_grad():
            assert scan.accepts(mixer, prepared, x, cache=mine)
            original = mixer(x, theirs)
            got = scan.forward(mixer, prepared, x, cache=mine)
            truth, last = exact(mixer, x)
        as_accurate(got, original, truth, dtype)
        assert torch.equal(x, before)
        expected, found = mixers.layer(mixer, theirs), mixers.layer(mixer, mine)
        assert torch.equal(found.conv_states[0], expected.conv_states[0])
        assert found.has_previous_state == expected.has_previous_state
        assert found.is_recurrent_states_initialized == expected.is_recurrent_states_initialized
        same_state(found.recurrent_states[0], expected.recurrent_states[0], last, dtype)


def test_prefill_fills_a_reset_cache_in_place(seed, mixers) -> None:
    scan, mixer = seed("mamba_scan_torch"), mixers.mixer(16)
    cache, x = mixers.cache(mixer), torch.randn(1, 9, 16)
    prepared = scan.prepare(mixer)
    with torch.no_grad():
        scan.forward(mixer, prepared, x, cache=cache)
        layer = mixers.layer(mixer, cache)
        window, recurrent = layer.conv_states[0], layer.recurrent_states[0]
        first = recurrent.clone()
        cache.reset()
        assert scan.accepts(mixer, prepared, x, cache=cache)
        scan.forward(mixer, prepared, x, cache=cache)
    assert layer.conv_states[0] is window
    assert layer.recurrent_states[0] is recurrent
    assert torch.equal(recurrent, first)


@pytest.mark.parametrize("mask_type", [torch.long, torch.bool, torch.float32])
def test_prefill_of_left_padded_rows(seed, mixers, exact, as_accurate, mask_type) -> None:
    scan, mixer = seed("mamba_scan_torch"), mixers.mixer(16)
    x, mask = torch.randn(3, 20, 16), torch.ones(3, 20, dtype=mask_type)
    mask[0, :11] = 0
    mask[2, :3] = 0
    with torch.no_grad():
        prepared = scan.prepare(mixer)
        assert scan.accepts(mixer, prepared, x, attention_mask=mask)
        got = scan.forward(mixer, prepared, x, attention_mask=mask)
        as_accurate(got, mixer(x, attention_mask=mask), exact(mixer, x, mask)[0], torch.float32)


def test_prefill_does_not_depend_on_argument_names(seed, mixers) -> None:
    scan, mixer = seed("mamba_scan_torch"), mixers.mixer(16)
    x, mask = torch.randn(2, 6, 16), torch.ones(2, 6)
    with torch.no_grad():
        expected = scan.forward(mixer, scan.prepare(mixer), x)
        for args, kwargs in [((x, None, mask), {}), ((), {"hidden_states": x}), ((x,), {"cache_params": mixers.cache(mixer)})]:
            assert scan.accepts(mixer, scan.prepare(mixer), *args, **kwargs)
            assert torch.equal(scan.forward(mixer, scan.prepare(mixer), *args, **kwargs), expected)


def test_large_time_steps_and_long_decays_keep_the_accuracy(seed, mixers, exact, as_accurate) -> None:
    scan, mixer = seed("mamba_scan_torch"), mixers.mixer(16)
    with torch.no_grad():
        mixer.dt_proj.bias.fill_(30.0)
        mixer.dt_proj.bias[::2] = -20.0
        mixer.A_log.add_(3.0)
        x = 4.0 * torch.randn(1, 300, 16)
        got, original, truth = scan.forward(mixer, scan.prepare(mixer), x), mixer(x), exact(mixer, x)[0]
    # single rows cancel almost completely here, in the original as well: the sequence is compared as a whole
    as_accurate(got.flatten(1), original.flatten(1), truth.flatten(1), torch.float32)


def declined_calls(mixers: Any, mixer: Any) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    x = torch.randn(2, 5, mixer.in_proj.in_features)
    filled = mixers.cache(mixer)
    with torch.no_grad():
        mixer(x, filled)
    recording = mixers.cache(mixer)
    mixers.layer(mixer, recording).activate_past_recording()
    return {
        "continuation with a live cache": ((x,), {"cache": filled}),
        "cache that records its past": ((x,), {"cache": recording}),
        "other dtype": ((x.double(),), {}),
        "mask of another length": ((x,), {"attention_mask": torch.ones(2, 9)}),
        "no steps": ((x[:, :0],), {}),
        "unknown tensor": ((x,), {"seq_idx": torch.zeros(5)}),
        "unknown object": ((x,), {"something": object()}),
        "no tensor": ((), {}),
    }


def test_prefill_declines_what_it_was_not_made_for(seed, mixers) -> None:
    scan, mixer = seed("mamba_scan_torch"), mixers.mixer(16)
    prepared = scan.prepare(mixer)
    with torch.no_grad():
        for reason, (args, kwargs) in declined_calls(mixers, mixer).items():
            assert not scan.accepts(mixer, prepared, *args, **kwargs), reason
        x = torch.randn(1, 4, 16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not scan.accepts(mixer, prepared, x)
        assert scan.accepts(mixer, prepared, x)
    assert not scan.accepts(mixer, prepared, x)  # gradients are on and the weights want them
    assert not scan.accepts(mixer.train(), prepared, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "state", "batch", "bias"), [(17, 5, 2, True), (32, 16, 1, False)])
def test_decode_is_as_accurate_and_updates_the_cache_in_place(
    seed, mixers, exact, as_accurate, same_state, dtype, hidden, state, batch, bias
) -> None:
    update, mixer = seed("mamba_update_torch"), mixers.mixer(hidden, state, dtype, use_conv_bias=bias)
    x = torch.randn(batch, 12, hidden, dtype=dtype)
    theirs, mine = mixers.cache(mixer), mixers.cache(mixer)
    with torch.no_grad():
        mixer(x[:, :7], theirs)
        mixer(x[:, :7], mine)
        layer, prepared = mixers.layer(mixer, mine), update.prepare(mixer)
        window, recurrent = layer.conv_states[0], layer.recurrent_states[0]
        truth, last = exact(mixer, x)
        for t in range(7, 12):
            step = x[:, t : t + 1]
            assert update.accepts(mixer, prepared, step, cache=mine)
            original = mixer(step, theirs)
            as_accurate(update.forward(mixer, prepared, step, cache=mine), original, truth[:, t : t + 1], dtype, factor=3.0)
    assert layer.conv_states[0] is window
    assert layer.recurrent_states[0] is recurrent
    assert torch.equal(window, mixers.layer(mixer, theirs).conv_states[0])
    same_state(recurrent, mixers.layer(mixer, theirs).recurrent_states[0], last, dtype, factor=3.0)


def test_decode_notices_changed_weights_and_declines_prefill(seed, mixers) -> None:
    update, mixer = seed("mamba_update_torch"), mixers.mixer(16)
    cache, x = mixers.cache(mixer), torch.randn(1, 5, 16)
    with torch.no_grad():
        prepared = update.prepare(mixer)
        assert not update.accepts(mixer, prepared, x, cache=cache)
        assert not update.accepts(mixer, prepared, x[:, :1], cache=cache)  # the cache is still empty
        assert not update.accepts(mixer, prepared, x[:, :1])
        mixer(x, cache)
        assert update.accepts(mixer, prepared, x[:, :1], cache=cache)
        assert not update.accepts(mixer, prepared, x, cache=cache)
        mixer.A_log.add_(0.1)
        assert not update.accepts(mixer, prepared, x[:, :1], cache=cache)


def test_generation_is_the_same_text(seed, mixers) -> None:
    scan, update = seed("mamba_scan_torch"), seed("mamba_update_torch")
    model = mixers.model(32)
    prompt = torch.randint(32, (2, 40))
    settings = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    with torch.no_grad():
        expected = model.generate(prompt, **settings)
        used = {"prefill": 0, "decode": 0}
        for block in model.backbone.layers:
            block.mixer.forward = patched(block.mixer, scan, update, used)
        got = model.generate(prompt, **settings)
    assert torch.equal(got, expected)
    assert used == {"prefill": 2, "decode": 2 * 7}


def patched(mixer: Any, scan: Any, update: Any, used: dict[str, int]) -> Callable[..., torch.Tensor]:
    states = {"prefill": scan.prepare(mixer), "decode": update.prepare(mixer)}

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        for phase, chosen in (("prefill", scan), ("decode", update)):
            if chosen.accepts(mixer, states[phase], *args, **kwargs):
                used[phase] += 1
                return chosen.forward(mixer, states[phase], *args, **kwargs)
        return type(mixer).forward(mixer, *args, **kwargs)

    return forward


@pytest.mark.parametrize("name", ["mamba_scan_torch", "mamba_update_torch"])
def test_matching_is_by_structure_and_behaviour(seed, mixers, name) -> None:
    matches = seed(name).matches
    mixer = mixers.mixer(16)
    calls: list[int] = []
    mixer.in_proj.register_forward_hook(lambda *_: calls.append(1))
    state, before = torch.random.get_rng_state(), copy.deepcopy(mixer.state_dict())
    assert matches(mixer)
    assert matches(mixers.mixer(16, dtype=torch.bfloat16))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not calls
    assert all(torch.equal(value, before[key]) for key, value in mixer.state_dict().items())
    assert not matches(mixer.in_proj)
    assert not matches(mixers.model(16))
    assert not matches(mixers.mixer(16, hidden_act="relu"))
    assert not matches(mixers.mixer(16).train())
    replaced = mixers.mixer(16)
    replaced.forward = lambda x: x
    assert not matches(replaced)


@pytest.mark.parametrize("name", ["mamba_scan_torch", "mamba_update_torch"])
def test_relatives_of_mamba_do_not_match(seed, name) -> None:
    from transformers import FalconMambaConfig, FalconMambaForCausalLM, Mamba2Config, Mamba2ForCausalLM

    torch.manual_seed(0)
    falcon = FalconMambaForCausalLM(FalconMambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=8)).eval()
    second = Mamba2ForCausalLM(
        Mamba2Config(hidden_size=16, num_heads=4, head_dim=8, state_size=8, n_groups=1, num_hidden_layers=1, vocab_size=8)
    ).eval()
    for model in (falcon, second):
        assert not any(seed(name).matches(module) for module in model.modules())
