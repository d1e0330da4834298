"""RMSNorm over the last axis in one Triton launch, with a plain weight (Llama, Qwen, Mamba, T5) or 1 + weight (Gemma).

The original runs six to eight element-wise and reduction kernels and writes two float32 copies of its input. One program here reads a few
rows once, keeps them in registers in float32, and writes the result once: the memory traffic is the minimum, and a decode step, which is
bound by launches, needs a single one. NVIDIA GPUs, bfloat16, float16 and float32.
"""

import torch
import triton
import triton.language as tl

CONFIGS = [
    {"tile": 4096, "num_warps": 4},
    {"tile": 4096, "num_warps": 8},
    {"tile": 1024, "num_warps": 4},
    {"tile": 8192, "num_warps": 16},
]
_MAX_WIDTH = 32768  # one row is held in registers
_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps", "layer_norm_epsilon")
_KINDS = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(
    x,
    weight,
    out,
    rows,
    row_stride,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    OFFSET: tl.constexpr,
    ROUND: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    value = tl.load(x + row[:, None] * row_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    if OFFSET:
        scale += 1.0  # in float32: 1 + w in bfloat16 would lose small weights
    inverse = tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + eps)
    result = value * inverse[:, None]
    if ROUND:
        result = result.to(out.dtype.element_ty).to(tl.float32)
    result *= scale[None, :]
    tl.store(out + row[:, None] * WIDTH + column[None, :], result.to(out.dtype.element_ty), mask=inside)


def prepare(module, tile=4096, num_warps=4):
    weight, eps = _weight(module), _eps(module)
    block = triton.next_power_of_2(weight.shape[0])
    return {
        "eps": eps,
        "offset": _flavour(module) == "offset",
        "round": _rounds_first(module),
        "block": block,
        "rows": max(1, tile // block),
        "num_warps": num_warps,
    }


def accepts(module, state, *args, **kwargs):
    x = _only(args, kwargs)
    weight = _weight(module)
    if x is None or x.dtype != weight.dtype or x.device != weight.device or x.shape[-1] != weight.shape[0] or not x.numel():
        return False
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return False
    return (x.is_contiguous() or _rows(x) is not None) and not torch.is_autocast_enabled(x.device.type)


def forward(module, state, *args, **kwargs):
    x, weight = _only(args, kwargs), _weight(module)
    width = x.shape[-1]
    if x.is_contiguous():
        out, count, row_stride = torch.empty_like(x), x.numel() // width, width
    else:
        out, count, row_stride = torch.empty(x.shape, dtype=x.dtype, device=x.device), x.numel() // width, _rows(x).stride(0)
    at_once = state["rows"]
    sizes = (count, row_stride, state["eps"], width, state["block"], at_once, state["offset"], state["round"])
    _launch(_rms_norm, (count + at_once - 1) // at_once, state, (row_stride,), (x, weight, out), sizes, state["num_warps"])
    return out


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


def _only(args, kwargs):
    """The one tensor among the arguments, or None if there is anything else that is not None."""
    found = [value for value in (*args, *kwargs.values()) if value is not None]
    return found[0] if len(found) == 1 and isinstance(found[0], torch.Tensor) and found[0].dim() > 0 else None


def _rows(x):
    """(rows, width) view with contiguous rows at one distance from each other, or None where there is no such view."""
    if x.is_contiguous():
        return x.view(-1, x.shape[-1])
    try:
        rows = x.view(-1, x.shape[-1])
    except RuntimeError:
        return None
    return rows if rows.stride(1) == 1 or rows.shape[1] == 1 else None


def _weight(module):
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    return None


def _eps(module):
    for name in _EPS_NAMES:
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None


def matches(module):
    """A root-mean-square norm on a GPU: told by its behaviour, whatever its class is called."""
    try:
        weight = _weight(module)
        return weight is not None and weight.device.type == "cuda" and _flavour(module) is not None
    except Exception:  # a module that can't be probed is simply not ours
        return False


def _flavour(module):
    """ "plain", "offset" (1 + weight) or None, from what the module makes of random rows, rows with a mean and tiny rows."""
    weight, eps = _weight(module), _eps(module)
    own = [p for p in (*module._parameters.values(), *module._buffers.values()) if p is not None]
    if len(own) != 1 or weight.dim() != 1 or weight.shape[0] > _MAX_WIDTH or weight.dtype not in _KINDS or eps is None:
        return None
    if any(child is not None for child in module._modules.values()) or ("forward" in vars(module) and not hasattr(module, "_hf_hook")):
        return None
    if module.training and any("drop" in name for name in vars(module)):
        return None
    source = torch.Generator().manual_seed(5)
    x = torch.randn(2, 3, weight.shape[0], generator=source)
    x[0, 1] += 4.0  # a LayerNorm would take the mean away
    x[1] *= max(eps, 1e-12) ** 0.5  # here the place of eps decides
    x = x.to(weight.device)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        exact = _twin(module, torch.float32)
        got = type(module).forward(exact, x)
        kept = type(module).forward(_twin(module, weight.dtype), x.to(weight.dtype))
        if not isinstance(got, torch.Tensor) or got.shape != x.shape or kept.dtype != weight.dtype:
            return None
        unit = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps)
        for name, scale in (("plain", weight.double()), ("offset", 1.0 + weight.double())):
            expected = unit * scale
            error = (got.double() - expected).norm(dim=-1)
            if bool((error <= 1e-4 * expected.norm(dim=-1)).all()):
                return name
    return None


def _rounds_first(module):
    """Whether the module rounds to its dtype before it multiplies by the weight (Llama, Qwen, T5) or after (Gemma): told by its bits."""
    weight, eps = _weight(module), _eps(module)
    x = torch.randn(4, weight.shape[0], generator=torch.Generator().manual_seed(7)).to(weight.device, weight.dtype)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        own = type(module).forward(_twin(module, weight.dtype), x)
        scale = weight.float() + (1.0 if _flavour(module) == "offset" else 0.0)
        unit = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
        early = (unit.to(weight.dtype).float() * scale).to(weight.dtype)
        late = (unit * scale).to(weight.dtype)
    return int((early != own).sum()) < int((late != own).sum())


def _twin(module, kind):
    """A stand-in of the given dtype that runs the class's own code without any hook of the instance."""
    twin = object.__new__(type(module))
    vars(twin).update(vars(module))
    vars(twin).pop("forward", None)
    vars(twin)["_parameters"] = {key: p if p is None else p.detach().to(kind) for key, p in module._parameters.items()}
    return twin
