"""Mamba prefill without a Python-heavy time loop, in plain torch (any device; meant for CPUs).

The original mixer materialises exp(dt*A) and dt*B*x for the whole prompt in a (batch, channels, time, state) layout and then runs about six
small operations per time step. Here everything that does not depend on the recurrence is hoisted out of the loop and done for a chunk of
time steps at once, in a (time, batch, state, channels) layout whose innermost axis is long and contiguous; what is left per step is one
in-place multiply-add on the state. The read-out with C is one batched matrix product per chunk, and the depthwise convolution becomes one
multiply-add per tap. Chunks keep the working set inside the CPU caches. No ratio or cumulative product of decays is ever formed, so nothing
can overflow: decays stay in (0, 1].
"""

import torch
import torch.nn.functional as F
from torch import nn

PHASES = ("prefill", "forward", "encode")  # whole sequences, from an empty state
CONFIGS = [{"chunk": 64}, {"chunk": 32}, {"chunk": 128}]
_CHUNK_ELEMENTS = 1 << 22  # bound on time * batch * state * channels of one working buffer: 16 MiB of float32
_CHILDREN = ("in_proj", "x_proj", "dt_proj", "out_proj")
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)


def prepare(module, chunk=64):
    return {"chunk": chunk}


def accepts(module, state, *args, **kwargs):
    call = _read(args, kwargs)
    if call is None or module.training:
        return False
    x, cache, mask = call
    if x.dtype != module.in_proj.weight.dtype or x.device != module.A_log.device or x.shape[1] == 0 or x.shape[0] == 0:
        return False
    if torch.is_autocast_enabled(x.device.type) or _needs_grad(module, x):
        return False
    if mask is not None and mask.shape != x.shape[:2]:
        return False
    return cache is None or _is_empty(module, cache)


def forward(module, state, *args, **kwargs):
    x, cache, mask = _read(args, kwargs)
    channels, width = module.A_log.shape[0], module.conv1d.kernel_size[0]
    if mask is not None:
        x = (x * mask[:, :, None]).to(x.dtype)
    projected = module.in_proj(x)
    signal, gate = projected[..., :channels], projected[..., channels:]
    if cache is not None:
        cache.update_conv_state(signal.transpose(1, 2), module.layer_idx, conv_kernel_size=width)
    u = F.silu(_causal_conv(signal, module.conv1d), inplace=True)
    if mask is not None:
        u = u * mask[:, :, None]
    y, final = _scan(module, u, module.x_proj(u.to(x.dtype)), state["chunk"])
    if cache is not None:
        cache.update_recurrent_state(final, module.layer_idx)
    y.addcmul_(u, module.D.to(u.dtype)).mul_(F.silu(gate.to(u.dtype)))
    return module.out_proj(y.to(x.dtype))


def _causal_conv(signal, conv):
    """Depthwise causal convolution of (batch, time, channels), zeros before the first step, at least in float32."""
    kind = torch.promote_types(signal.dtype, torch.float32)
    signal, taps = signal.to(kind), conv.weight.squeeze(1).to(kind).t().contiguous()
    width, length = taps.shape[0], signal.shape[1]
    out = signal * taps[-1]
    for back in range(1, min(width, length)):
        out[:, back:].addcmul_(signal[:, :-back], taps[width - 1 - back])
    if conv.bias is not None:
        out += conv.bias.to(kind)
    return out


def _scan(module, u, projections, chunk):
    """h[t] = exp(dt[t] A) h[t-1] + dt[t] B[t] u[t], y[t] = C[t] h[t].

    Returns y as (batch, time, channels) and the last h as (batch, channels, state).
    """
    batch, length, channels = u.shape
    rank, width = module.dt_proj.in_features, module.A_log.shape[1]
    steps, b, c = torch.split(projections, [rank, width, width], dim=-1)
    # the product with the weight alone, as the original does it, then bias and softplus in full precision
    dt = F.softplus(F.linear(steps, module.dt_proj.weight).to(u.dtype) + module.dt_proj.bias.to(u.dtype))
    decay = -torch.exp(module.A_log.to(torch.float32)).to(u.dtype).t().contiguous()
    # time first: a step of the recurrence is then one contiguous block (batch, state, channels)
    dt, source = dt.transpose(0, 1), (dt * u).transpose(0, 1)
    b, c = b.to(u.dtype).permute(1, 0, 2), c.to(u.dtype).permute(1, 0, 2)
    chunk = max(8, min(chunk, length, _CHUNK_ELEMENTS // (batch * width * channels)))
    factors = u.new_empty(chunk, batch, width, channels)
    states = torch.empty_like(factors)
    y = torch.empty_like(u)
    last = u.new_zeros(batch, width, channels)
    for start in range(0, length, chunk):
        stop = min(start + chunk, length)
        a, h = factors[: stop - start], states[: stop - start]
        torch.mul(dt[start:stop, :, None, :], decay, out=a).exp_()
        torch.mul(source[start:stop, :, None, :], b[start:stop, :, :, None], out=h)
        for a_t, h_t in zip(a.unbind(0), h.unbind(0), strict=True):
            last = h_t.addcmul_(a_t, last)
        y[:, start:stop] = torch.matmul(c[start:stop, :, None, :], h).squeeze(2).transpose(0, 1)
        last = last.clone()  # the next chunk overwrites the buffer
    return y, last.transpose(1, 2).clone(memory_format=torch.contiguous_format)


def _read(args, kwargs):
    """(hidden states, cache or None, padding mask or None), told by what they are: their names differ between releases."""
    x = cache = mask = None
    for value in (*args, *kwargs.values()):
        if value is None or isinstance(value, bool):
            continue
        if isinstance(value, torch.Tensor):
            if value.dim() == 3 and x is None:
                x = value
            elif value.dim() == 2 and mask is None:
                mask = value
            else:
                return None
        elif cache is None and hasattr(value, "update_recurrent_state"):
            cache = value
        else:
            return None
    return None if x is None else (x, cache, mask)


def _is_empty(module, cache):
    try:
        layer = cache.layers[module.layer_idx]
        return not layer.has_previous_state[0] and not layer.record_past
    except (AttributeError, LookupError, TypeError):
        return False


def _needs_grad(module, x):
    return torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in module.parameters()))


def matches(module):
    """A Mamba-1 mixer (by structure) that computes what this file computes (by behaviour, in float32 on four random steps)."""
    try:
        return _has_structure(module) and _behaves(module)
    except Exception:  # a module that can't be probed is simply not ours
        return False


def _has_structure(module):
    if module.training or ("forward" in vars(module) and not hasattr(module, "_hf_hook")):
        return False
    if not all(isinstance(getattr(module, name), nn.Linear) for name in _CHILDREN) or type(module.dt_proj) is not nn.Linear:
        return False
    conv, a_log = module.conv1d, module.A_log
    if type(conv) is not nn.Conv1d or not a_log.is_floating_point() or a_log.dim() != 2 or a_log.device.type == "meta":
        return False
    channels, width = a_log.shape
    return (
        conv.groups == channels == conv.in_channels == conv.out_channels
        and conv.padding == (conv.kernel_size[0] - 1,)
        and conv.stride == conv.dilation == (1,)
        and module.D.shape == (channels,)
        and module.x_proj.out_features == module.dt_proj.in_features + 2 * width
        and module.dt_proj.bias is not None
        and not any(hasattr(part, "_hf_hook") for part in (conv, module.dt_proj))
    )


def _behaves(module):
    twin = _twin(module)
    hidden = module.in_proj.in_features
    x = torch.randn(2, 4, hidden, generator=torch.Generator().manual_seed(5)).to(module.A_log.device)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        expected = type(module).forward(twin, x)
        got = forward(twin, {"chunk": 8}, x)
    if not isinstance(expected, torch.Tensor) or expected.shape != got.shape:
        return False
    return bool((expected - got).norm() <= 1e-3 * expected.norm())


def _twin(module):
    """A float32 stand-in for a module that runs the class's own code without any hook of the instance or its children."""
    twin = object.__new__(type(module))
    vars(twin).update(vars(module))
    vars(twin).pop("forward", None)
    vars(twin).update({name: {} for name in _HOOKS})
    for name in ("_parameters", "_buffers"):
        tensors = vars(module)[name]
        vars(twin)[name] = {key: t.detach().float() if t is not None and t.is_floating_point() else t for key, t in tensors.items()}
    vars(twin)["_modules"] = {key: child if child is None else _twin(child) for key, child in vars(module)["_modules"].items()}
    return twin
