"""Mamba decode, one token with a live cache, in five launches instead of about thirty.

A decode step moves little data, so launches decide. What lies between the three projections is two Triton kernels: one shifts the
convolution window in place, convolves and activates; the other does the time-step projection (a short dot product per channel), softplus,
discretisation, the in-place state update, read-out, skip and gate. The projections stay library calls on the modules themselves. NVIDIA
GPUs, bfloat16, float16 and float32.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

PHASES = ("decode",)  # one new token, with a state from before
CONFIGS = [
    {"channels": 16, "num_warps": 1},
    {"channels": 16, "num_warps": 2},
    {"channels": 32, "num_warps": 4},
    {"channels": 64, "num_warps": 4},
]
_KINDS = (torch.bfloat16, torch.float16, torch.float32)
_CHILDREN = ("in_proj", "x_proj", "dt_proj", "out_proj")
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)


@triton.jit
def _softplus(x):
    """log(1 + exp(x)) with a small relative error for very negative x too (Kahan's correction), x itself above 20."""
    e = tl.exp(tl.minimum(x, 20.0))
    s = 1.0 + e
    return tl.where(x > 20.0, x, tl.where(s == 1.0, e, tl.log(s) * (e / tl.where(s == 1.0, 1.0, s - 1.0))))


@triton.jit
def _conv_step(
    x,
    window,
    weight,
    bias,
    out,
    x_batch_stride,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Shifts (batch, channels, TAPS) windows by one step, in place, and writes silu(convolution) of the newest step.

    A channel's window belongs to one thread, so reading tap k + 1 always comes before it is overwritten.
    """
    groups: tl.constexpr = (CHANNELS + BLOCK_C - 1) // BLOCK_C
    batch = (tl.program_id(0) // groups).to(tl.int64)
    channel = (tl.program_id(0) % groups) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = channel < CHANNELS
    mine = window + (batch * CHANNELS + channel) * TAPS
    total = tl.zeros([BLOCK_C], dtype=tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS - 1):
        value = tl.load(mine + tap + 1, mask=known, other=0.0)
        tl.store(mine + tap, value, mask=known)
        total += value.to(tl.float32) * tl.load(weight + channel * TAPS + tap, mask=known, other=0.0).to(tl.float32)
    value = tl.load(x + batch * x_batch_stride + channel, mask=known, other=0.0)
    tl.store(mine + TAPS - 1, value, mask=known)
    total += value.to(tl.float32) * tl.load(weight + channel * TAPS + TAPS - 1, mask=known, other=0.0).to(tl.float32)
    result = total / (1.0 + tl.exp(-total))
    tl.store(out + batch * CHANNELS + channel, result.to(out.dtype.element_ty), mask=known)


@triton.jit
def _state_step(
    u,
    projections,
    dt_weight,
    dt_bias,
    a_log,
    skip,
    gate,
    state,
    out,
    gate_batch_stride,
    CHANNELS: tl.constexpr,
    STATE: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """state <- exp(dt A) state + dt B u, in place; out <- (C state + D u) silu(z) with dt = softplus(dt_proj(steps))."""
    groups: tl.constexpr = (CHANNELS + BLOCK_C - 1) // BLOCK_C
    columns: tl.constexpr = RANK + 2 * STATE
    batch = (tl.program_id(0) // groups).to(tl.int64)
    channel = (tl.program_id(0) % groups) * BLOCK_C + tl.arange(0, BLOCK_C)
    n, r = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_R)
    known, real = channel < CHANNELS, n < STATE
    both = known[:, None] & real[None, :]
    row = projections + batch * columns
    steps = tl.load(row + r, mask=r < RANK, other=0.0).to(tl.float32)
    weight_place = dt_weight + channel[:, None] * RANK + r[None, :]
    weight = tl.load(weight_place, mask=known[:, None] & (r < RANK)[None, :], other=0.0).to(tl.float32)
    raw = tl.sum(weight * steps[None, :], axis=1) + tl.load(dt_bias + channel, mask=known, other=0.0).to(tl.float32)
    dt = _softplus(raw)
    b = tl.load(row + RANK + n, mask=real, other=0.0).to(tl.float32)
    c = tl.load(row + RANK + STATE + n, mask=real, other=0.0).to(tl.float32)
    rate = -tl.exp(tl.load(a_log + channel[:, None] * STATE + n[None, :], mask=both, other=0.0).to(tl.float32)) * 1.4426950408889634
    x = tl.load(u + batch * CHANNELS + channel, mask=known, other=0.0).to(tl.float32)
    place = state + (batch * CHANNELS + channel[:, None]) * STATE + n[None, :]
    h = tl.load(place, mask=both, other=0.0).to(tl.float32)
    h = tl.exp2(dt[:, None] * rate) * h + (dt * x)[:, None] * b[None, :]
    tl.store(place, h.to(state.dtype.element_ty), mask=both)
    y = tl.sum(h * c[None, :], axis=1) + x * tl.load(skip + channel, mask=known, other=0.0).to(tl.float32)
    z = tl.load(gate + batch * gate_batch_stride + channel, mask=known, other=0.0).to(tl.float32)
    y *= z / (1.0 + tl.exp(-z))
    tl.store(out + batch * CHANNELS + channel, y.to(out.dtype.element_ty), mask=known)


def prepare(module, channels=16, num_warps=1):
    count, width = module.A_log.shape
    return {
        "channels": min(channels, triton.next_power_of_2(count)),
        "wide": min(256, triton.next_power_of_2(count)),
        "num_warps": num_warps,
        "block_n": triton.next_power_of_2(width),
        "block_r": triton.next_power_of_2(module.dt_proj.in_features),
    }


def accepts(module, state, *args, **kwargs):
    call = _read(args, kwargs)
    if call is None or module.training:
        return False
    x, cache, mask = call
    if cache is None or mask is not None or x.shape[1] != 1 or x.dtype not in _KINDS or x.dtype != module.in_proj.weight.dtype:
        return False
    if x.device != module.A_log.device or torch.is_autocast_enabled(x.device.type) or _needs_grad(module, x):
        return False
    found = _states(module, cache)
    if found is None:
        return False
    window, ssm = found
    channels, width = module.A_log.shape
    return (
        window.shape == (x.shape[0], channels, module.conv1d.kernel_size[0])
        and ssm.shape == (x.shape[0], channels, width)
        and window.dtype == x.dtype
        and ssm.dtype in _KINDS
        and window.device == ssm.device == x.device
        and window.is_contiguous()
        and ssm.is_contiguous()
    )


def forward(module, state, *args, **kwargs):
    x, cache, _ = _read(args, kwargs)
    window, ssm = _states(module, cache)
    batch, (channels, width), block = x.shape[0], module.A_log.shape, state["channels"]
    conv, dt_proj = module.conv1d, module.dt_proj
    projected = module.in_proj(x)
    gate = projected[..., channels:]
    u = torch.empty(batch, 1, channels, dtype=x.dtype, device=x.device)
    y = torch.empty_like(u)
    wide = state["wide"]
    stride, bias = projected.stride(0), conv.weight if conv.bias is None else conv.bias
    conv_sizes = (channels, conv.kernel_size[0], wide, conv.bias is not None)
    sizes = (channels, width, dt_proj.in_features, state["block_n"], state["block_r"], block)
    conv_tensors = (projected, window, conv.weight, bias, u)
    _launch(_conv_step, batch * ((channels + wide - 1) // wide), state, ("conv", stride), conv_tensors, (stride, *conv_sizes), 2)
    tensors = (u, module.x_proj(u), dt_proj.weight, dt_proj.bias, module.A_log, module.D, gate, ssm, y)
    programs, key = batch * ((channels + block - 1) // block), ("state", stride, ssm.dtype)
    _launch(_state_step, programs, state, key, tensors, (stride, *sizes), state["num_warps"])
    return module.out_proj(y)


def _launch(kernel, programs, state, key, tensors, sizes, num_warps):
    """Run `kernel` on the tensors' GPU. From its second call with this key on it goes without Triton's own path: binding and specialising
    anew costs the host 30 us and more per call, many times what a decode step's kernel takes on the GPU. `key` holds what the compiler
    specialises on besides the addresses; those are handed over as numbers, which saves a query of the driver for each.
    """
    device = tensors[0].get_device()
    if device >= 0 and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            _launch(kernel, programs, state, key, tensors, sizes, num_warps)
        return
    addresses = [tensor.data_ptr() for tensor in tensors]
    key = (*key, *[address & 15 == 0 for address in addresses])
    compiled = state.get(key)
    if compiled is None:
        state[key] = kernel[(programs,)](*tensors, *sizes, num_warps=num_warps)  # None where kernels are interpreted
    else:
        compiled[(programs, 1, 1)](*addresses, *sizes)


def _states(module, cache):
    """(convolution window, recurrent state) of this layer, or None while the cache is empty or of another kind."""
    try:
        layer = cache.layers[module.layer_idx]
        if not layer.has_previous_state[0] or layer.record_past:
            return None
        window, ssm = layer.conv_states[0], layer.recurrent_states[0]
    except (AttributeError, LookupError, TypeError):
        return None
    return (window, ssm) if isinstance(window, torch.Tensor) and isinstance(ssm, torch.Tensor) else None


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


def _needs_grad(module, x):
    return torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in module.parameters()))


def matches(module):
    """A Mamba-1 mixer on a GPU (by structure) that computes the selective state space recurrence (by behaviour)."""
    try:
        on_gpu = all(p.device.type == "cuda" and p.dtype in _KINDS for p in module.parameters())
        return on_gpu and _has_structure(module) and _behaves(module)
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
    """Four random steps in float32 through the class's own code, against the definition."""
    twin = _twin(module)
    x = torch.randn(2, 4, module.in_proj.in_features, generator=torch.Generator().manual_seed(5)).to(module.A_log.device)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        got = type(module).forward(twin, x)
        expected = _definition(twin, x)
    return isinstance(got, torch.Tensor) and got.shape == expected.shape and bool((got - expected).norm() <= 1e-3 * expected.norm())


def _definition(module, x):
    """Mamba-1 mixer, step by step: convolution, input-dependent dt, B and C, recurrence, skip, gate."""
    conv, rank, width = module.conv1d, module.dt_proj.in_features, module.A_log.shape[1]
    signal, gate = module.in_proj(x).chunk(2, dim=-1)
    u = F.conv1d(F.pad(signal.transpose(1, 2), (conv.kernel_size[0] - 1, 0)), conv.weight, conv.bias, groups=conv.groups)
    u = F.silu(u).transpose(1, 2)
    steps, b, c = module.x_proj(u).split([rank, width, width], dim=-1)
    dt = F.softplus(module.dt_proj(steps))
    h, rows = 0.0, []
    for t in range(x.shape[1]):
        h = torch.exp(dt[:, t, :, None] * -torch.exp(module.A_log)) * h + (dt[:, t] * u[:, t])[..., None] * b[:, t, None]
        rows.append((h * c[:, t, None]).sum(-1))
    return module.out_proj((torch.stack(rows, 1) + u * module.D) * F.silu(gate))


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
