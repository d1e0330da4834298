"""Mamba prefill with the convolution and the whole selective scan in one Triton launch each.

The original launches several small kernels per time step and keeps exp(dt*A) and dt*B*x for the whole prompt in memory. The scan kernel
here gives each program a few channels with all their states: it walks over time in chunks, loads a chunk of dt, x, z, B and C at once,
discretises in registers, runs an associative scan over the chunk and carries the state on; softplus, skip and gate are part of it, so only
the inputs and the gated output touch memory. Decays are multiplied, never divided, so nothing can overflow. NVIDIA GPUs, bfloat16, float16
and float32.
"""

import contextlib

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

PHASES = ("prefill", "forward", "encode")  # whole sequences, from an empty state
CONFIGS = [
    {"channels": 2, "chunk": 32, "num_warps": 1},
    {"channels": 2, "chunk": 64, "num_warps": 4},
    {"channels": 4, "chunk": 32, "num_warps": 2},
    {"channels": 4, "chunk": 64, "num_warps": 4},
    {"channels": 1, "chunk": 128, "num_warps": 4},
    {"channels": 8, "chunk": 1, "num_warps": 1},
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


@triton.jit(do_not_specialize=["length"])
def _conv_silu(
    x,
    weight,
    bias,
    mask,
    out,
    length,
    x_batch_stride,
    x_step_stride,
    mask_batch_stride,
    mask_step_stride,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """silu(causal depthwise convolution) of (batch, time, channels); batch and time tiles share grid axis 0, which has no small limit."""
    tiles = tl.cdiv(length, BLOCK_T)
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    step = ((tl.program_id(0) % tiles) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = channel < CHANNELS
    total = tl.zeros([BLOCK_T, BLOCK_C], dtype=tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)[None, :]
    for tap in tl.static_range(TAPS):
        source = step - (TAPS - 1 - tap)
        inside = ((source >= 0) & (source < length))[:, None] & known[None, :]
        place = x + batch * x_batch_stride + source[:, None] * x_step_stride + channel[None, :]
        factor = tl.load(weight + channel * TAPS + tap, mask=known, other=0.0).to(tl.float32)
        total += tl.load(place, mask=inside, other=0.0).to(tl.float32) * factor[None, :]
    result = total / (1.0 + tl.exp(-total))
    if HAS_MASK:
        kept = tl.load(mask + batch * mask_batch_stride + step * mask_step_stride, mask=step < length, other=0)
        result *= kept.to(tl.float32)[:, None]
    place = out + (batch * length + step)[:, None] * CHANNELS + channel[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=(step < length)[:, None] & known[None, :])


@triton.jit
def _compose(decay, value, next_decay, next_value):
    """Two steps h -> decay h + value, one after the other, as a single step."""
    return decay * next_decay, next_decay * value + next_value


@triton.jit
def _softplus(x):
    """log(1 + exp(x)) with a small relative error for very negative x too (Kahan's correction), x itself above 20."""
    e = tl.exp(tl.minimum(x, 20.0))
    s = 1.0 + e
    return tl.where(x > 20.0, x, tl.where(s == 1.0, e, tl.log(s) * (e / tl.where(s == 1.0, 1.0, s - 1.0))))


@triton.jit(do_not_specialize=["length"])
def _scan_chunks(
    u,
    steps,
    dt_bias,
    a_log,
    projections,
    skip,
    gate,
    out,
    final,
    length,
    gate_batch_stride,
    gate_step_stride,
    CHANNELS: tl.constexpr,
    STATE: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Whole chunks of time at once: associative scan over (CHUNK, BLOCK_C, BLOCK_N) in registers."""
    groups: tl.constexpr = (CHANNELS + BLOCK_C - 1) // BLOCK_C
    columns: tl.constexpr = RANK + 2 * STATE
    batch = (tl.program_id(0) // groups).to(tl.int64)
    channel = (tl.program_id(0) % groups) * BLOCK_C + tl.arange(0, BLOCK_C)
    n = tl.arange(0, BLOCK_N)
    known, real = channel < CHANNELS, n < STATE
    both = known[:, None] & real[None, :]
    rate = -tl.exp(tl.load(a_log + channel[:, None] * STATE + n[None, :], mask=both, other=0.0).to(tl.float32)) * 1.4426950408889634
    bias = tl.load(dt_bias + channel, mask=known, other=0.0).to(tl.float32)
    skips = tl.load(skip + channel, mask=known, other=0.0).to(tl.float32)
    row = tl.arange(0, CHUNK)
    state = tl.zeros([BLOCK_C, BLOCK_N], dtype=tl.float32)
    for start in range(0, length, CHUNK):
        t = batch * length + start + row
        live = start + row < length
        inside = live[:, None] & known[None, :]
        place = t[:, None] * CHANNELS + channel[None, :]
        x = tl.load(u + place, mask=inside, other=0.0).to(tl.float32)
        raw = tl.load(steps + place, mask=inside, other=0.0).to(tl.float32)
        here = projections + t[:, None] * columns + RANK + n[None, :]
        b = tl.load(here, mask=live[:, None] & real[None, :], other=0.0).to(tl.float32)
        c = tl.load(here + STATE, mask=live[:, None] & real[None, :], other=0.0).to(tl.float32)
        gate_place = gate + batch * gate_batch_stride + (start + row).to(tl.int64)[:, None] * gate_step_stride + channel[None, :]
        z = tl.load(gate_place, mask=inside, other=0.0).to(tl.float32)
        # a step beyond the end has dt = 0: decay 1, no input, so the carried state stays the last real one
        dt = tl.where(inside, _softplus(raw + bias[None, :]), 0.0)
        decay = tl.exp2(dt[:, :, None] * rate[None, :, :])
        value = (dt * x)[:, :, None] * b[:, None, :]
        value += tl.where((row == 0)[:, None, None], decay * state[None, :, :], 0.0)
        _, states = tl.associative_scan((decay, value), 0, _compose)
        state = tl.sum(tl.where((row == CHUNK - 1)[:, None, None], states, 0.0), axis=0)
        y = tl.sum(states * c[:, None, :], axis=2) + x * skips[None, :]
        y *= z / (1.0 + tl.exp(-z))
        tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)
    tl.store(final + (batch * CHANNELS + channel[:, None]) * STATE + n[None, :], state, mask=both)


@triton.jit(do_not_specialize=["length"])
def _scan_steps(
    u,
    steps,
    dt_bias,
    a_log,
    projections,
    skip,
    gate,
    out,
    final,
    length,
    gate_batch_stride,
    gate_step_stride,
    CHANNELS: tl.constexpr,
    STATE: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One time step after the other, the next one's inputs loaded before the current one is computed; CHUNK is not used."""
    groups: tl.constexpr = (CHANNELS + BLOCK_C - 1) // BLOCK_C
    columns: tl.constexpr = RANK + 2 * STATE
    batch = (tl.program_id(0) // groups).to(tl.int64)
    channel = (tl.program_id(0) % groups) * BLOCK_C + tl.arange(0, BLOCK_C)
    n = tl.arange(0, BLOCK_N)
    known, real = channel < CHANNELS, n < STATE
    both = known[:, None] & real[None, :]
    rate = -tl.exp(tl.load(a_log + channel[:, None] * STATE + n[None, :], mask=both, other=0.0).to(tl.float32)) * 1.4426950408889634
    bias = tl.load(dt_bias + channel, mask=known, other=0.0).to(tl.float32)
    skips = tl.load(skip + channel, mask=known, other=0.0).to(tl.float32)
    state = tl.zeros([BLOCK_C, BLOCK_N], dtype=tl.float32)
    place = batch * length * CHANNELS + channel
    here = projections + batch * length * columns + RANK + n
    gate_place = gate + batch * gate_batch_stride + channel
    target = out + place
    next_x = tl.load(u + place, mask=known, other=0.0)
    next_raw = tl.load(steps + place, mask=known, other=0.0)
    next_b = tl.load(here, mask=real, other=0.0)
    next_c = tl.load(here + STATE, mask=real, other=0.0)
    next_z = tl.load(gate_place, mask=known, other=0.0)
    for t in range(length):
        x, raw, z = next_x.to(tl.float32), next_raw.to(tl.float32), next_z.to(tl.float32)
        b, c = next_b.to(tl.float32), next_c.to(tl.float32)
        ahead = tl.minimum(t + 1, length - 1).to(tl.int64)
        next_x = tl.load(u + place + ahead * CHANNELS, mask=known, other=0.0)
        next_raw = tl.load(steps + place + ahead * CHANNELS, mask=known, other=0.0)
        next_b = tl.load(here + ahead * columns, mask=real, other=0.0)
        next_c = tl.load(here + ahead * columns + STATE, mask=real, other=0.0)
        next_z = tl.load(gate_place + ahead * gate_step_stride, mask=known, other=0.0)
        dt = _softplus(raw + bias)
        state = tl.exp2(dt[:, None] * rate) * state + (dt * x)[:, None] * b[None, :]
        y = tl.sum(state * c[None, :], axis=1) + x * skips
        y *= z / (1.0 + tl.exp(-z))
        tl.store(target, y.to(out.dtype.element_ty), mask=known)
        target += CHANNELS
    tl.store(final + (batch * CHANNELS + channel[:, None]) * STATE + n[None, :], state, mask=both)


def prepare(module, channels=2, chunk=64, num_warps=4):
    """`channels` per program; `chunk` time steps per associative scan, 1 = one step after the other."""
    return {"channels": channels, "chunk": chunk, "num_warps": num_warps, "conv_steps": 16, "conv_channels": 128}


def accepts(module, state, *args, **kwargs):
    call = _read(args, kwargs)
    if call is None or module.training:
        return False
    x, cache, mask = call
    if x.dtype not in _KINDS or x.dtype != module.in_proj.weight.dtype or x.device != module.A_log.device or not x.numel():
        return False
    if torch.is_autocast_enabled(x.device.type) or _needs_grad(module, x):
        return False
    if mask is not None and (mask.shape != x.shape[:2] or mask.device != x.device):
        return False
    return cache is None or _is_empty(module, cache)


def forward(module, state, *args, **kwargs):
    x, cache, mask = _read(args, kwargs)
    channels = module.A_log.shape[0]
    if mask is not None:
        x = (x * mask[:, :, None]).to(x.dtype)
    projected = module.in_proj(x)
    signal, gate = projected[..., :channels], projected[..., channels:]
    if cache is not None:
        cache.update_conv_state(signal.transpose(1, 2), module.layer_idx, conv_kernel_size=module.conv1d.kernel_size[0])
    with _on_device_of(x):
        u = _convolved(module, state, signal, mask)
        y, final = _scanned(module, state, u, gate)
    if cache is not None:
        cache.update_recurrent_state(final, module.layer_idx)
    return module.out_proj(y)


def _convolved(module, state, signal, mask):
    """silu(conv1d(signal)) * mask as a contiguous (batch, time, channels) tensor."""
    batch, length, channels = signal.shape
    conv = module.conv1d
    out = torch.empty(signal.shape, dtype=signal.dtype, device=signal.device)
    block = min(state["conv_channels"], triton.next_power_of_2(channels))
    grid = (batch * triton.cdiv(length, state["conv_steps"]), triton.cdiv(channels, block))
    _conv_silu[grid](
        signal,
        conv.weight,
        conv.weight if conv.bias is None else conv.bias,
        signal if mask is None else mask,
        out,
        length,
        signal.stride(0),
        signal.stride(1),
        0 if mask is None else mask.stride(0),
        0 if mask is None else mask.stride(1),
        CHANNELS=channels,
        TAPS=conv.kernel_size[0],
        BLOCK_T=state["conv_steps"],
        BLOCK_C=block,
        HAS_BIAS=conv.bias is not None,
        HAS_MASK=mask is not None,
        num_warps=4,
    )
    return out


def _scanned(module, state, u, gate):
    """(gated output as (batch, time, channels), last recurrent state as (batch, channels, state) in float32)."""
    batch, length, channels = u.shape
    rank, width = module.dt_proj.in_features, module.A_log.shape[1]
    projections = module.x_proj(u)
    steps = F.linear(projections[..., :rank], module.dt_proj.weight)
    out = torch.empty(u.shape, dtype=u.dtype, device=u.device)
    final = torch.empty(batch, channels, width, dtype=torch.float32, device=u.device)
    kernel = _scan_steps if state["chunk"] == 1 else _scan_chunks
    block = min(state["channels"], triton.next_power_of_2(channels))
    kernel[(batch * triton.cdiv(channels, block),)](
        u,
        steps,
        module.dt_proj.bias,
        module.A_log,
        projections,
        module.D,
        gate,
        out,
        final,
        length,
        gate.stride(0),
        gate.stride(1),
        CHANNELS=channels,
        STATE=width,
        RANK=rank,
        BLOCK_N=triton.next_power_of_2(width),
        BLOCK_C=block,
        CHUNK=state["chunk"],
        num_warps=state["num_warps"],
    )
    return out, final


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


def _on_device_of(x):
    """Launches go to the tensor's GPU, which need not be the thread's current one."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(x.device)


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
