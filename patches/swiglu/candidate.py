"""Gated MLP down(silu(gate(x)) * up(x)) with the activation and the product fused into one Triton launch.

Between the matrix products the original writes silu(gate) to memory, reads it back and multiplies: two launches and five passes over a
tensor that is several times wider than the hidden state. One launch reads gate and up once and writes their product once. The weights
stay where they are: nothing is packed, no memory is doubled, and the projections are called as modules, so adapters on them keep working.
Also takes MLPs whose gate and up projections are one packed layer (Phi-3). NVIDIA GPUs, bfloat16, float16 and float32.
"""

import torch
import triton
import triton.language as tl
from torch import nn

CONFIGS = [
    {"block": 1024, "num_warps": 4},
    {"block": 512, "num_warps": 4},
    {"block": 2048, "num_warps": 8},
]
_KINDS = (torch.bfloat16, torch.float16, torch.float32)


@triton.jit
def _silu_product(gate, up, out, gate_stride, up_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    per_row: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // per_row).to(tl.int64)
    column = (tl.program_id(0) % per_row) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    g = tl.load(gate + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
    # the original stores silu(gate) before it multiplies: rounding there as well keeps results bit-close
    activated = (g / (1.0 + tl.exp(-g))).to(out.dtype.element_ty).to(tl.float32)
    result = activated * u
    tl.store(out + row * WIDTH + column, result.to(out.dtype.element_ty), mask=inside)


def prepare(module, block=1024, num_warps=4):
    return {"roles": _roles(module), "block": block, "num_warps": num_warps}


def accepts(module, state, *args, **kwargs):
    x = _only(args, kwargs)
    if x is None or x.dtype not in _KINDS or not x.numel():
        return False
    if torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in module.parameters())):
        return False
    return x.is_contiguous() and not torch.is_autocast_enabled(x.device.type)


def forward(module, state, *args, **kwargs):
    x = _only(args, kwargs)
    roles = state["roles"]
    if len(roles) == 2:
        packed = getattr(module, roles[0])(x)
        width = packed.shape[-1] // 2
        gate, up = packed[..., :width], packed[..., width:]
    else:
        gate, up = getattr(module, roles[0])(x), getattr(module, roles[1])(x)
        width = gate.shape[-1]
    if gate.stride(-1) != 1 or up.stride(-1) != 1:
        gate, up = gate.contiguous(), up.contiguous()
    if gate.is_contiguous() and up.is_contiguous():
        out, strides = torch.empty_like(gate), (width, width)
    else:
        out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        gate, up = gate.reshape(-1, width), up.reshape(-1, width)
        strides = (gate.stride(0), up.stride(0))
    block = state["block"]
    programs = out.numel() // width * ((width + block - 1) // block)
    sizes = (*strides, width, block)
    _launch(_silu_product, programs, state, strides, (gate, up, out), sizes, state["num_warps"])
    return getattr(module, roles[-1])(out)


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
    return found[0] if len(found) == 1 and isinstance(found[0], torch.Tensor) and found[0].dim() > 1 else None


def matches(module):
    """A SwiGLU MLP on a GPU: its projections by structure, their roles and the activation by behaviour."""
    try:
        parameters = list(module.parameters())
        on_gpu = bool(parameters) and all(p.device.type == "cuda" and p.dtype == parameters[0].dtype for p in parameters)
        return on_gpu and parameters[0].dtype in _KINDS and _roles(module) is not None
    except Exception:  # a module that can't be probed is simply not ours
        return False


def _roles(module):
    """Names of (gate, up, down) or of (gate and up packed, down), or None if the module computes something else."""
    linears = {name: child for name, child in module._modules.items() if isinstance(child, nn.Linear)}
    if any(p is not None for p in module._parameters.values()) or (module.training and any("drop" in n for n in module._modules)):
        return None
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):
        return None
    names = list(linears)
    if len(names) == 2:
        orders = [(a, b) for a, b in ((names[0], names[1]), (names[1], names[0])) if linears[a].out_features == 2 * linears[b].in_features]
    elif len(names) == 3:
        orders = [(a, b, c) for a in names for b in names for c in names if len({a, b, c}) == 3]
        orders = [o for o in orders if linears[o[0]].out_features == linears[o[1]].out_features == linears[o[2]].in_features]
    else:
        return None
    for roles in orders:
        if _computes(module, linears, roles):
            return roles
    return None


def _computes(module, linears, roles):
    """Runs the class's code with the projections replaced by known tensors: what reaches `down` has to be silu(gate) * up."""
    source = torch.Generator().manual_seed(5)
    like = linears[roles[0]].weight
    width = linears[roles[-1]].in_features
    x = torch.randn(1, 2, linears[roles[0]].in_features, generator=source).to(like.device)
    known = [2.0 * torch.randn(1, 2, linears[name].out_features, generator=source).to(like.device) for name in roles]
    stubs = {name: _Known(tensor) for name, tensor in zip(roles, known, strict=True)}
    twin = object.__new__(type(module))
    vars(twin).update(vars(module))
    vars(twin).pop("forward", None)
    others = {name: child if child is None else _quiet(child) for name, child in module._modules.items() if name not in stubs}
    vars(twin)["_modules"] = {**others, **stubs}
    try:
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            result = type(module).forward(twin, x)
    except Exception:  # a wrong guess of the roles may not even have fitting shapes
        return False
    gate, up = (known[0][..., :width], known[0][..., width:]) if len(roles) == 2 else known[:2]
    seen = [stub.seen for stub in stubs.values()]
    if result is not known[-1] or any(len(tensors) != 1 for tensors in seen):
        return False
    expected = torch.nn.functional.silu(gate) * up
    inner = seen[-1][0]
    return all(s[0] is x for s in seen[:-1]) and inner.shape == expected.shape and bool((inner - expected).norm() <= 1e-5 * expected.norm())


def _quiet(module):
    """The same module without any hook of its own or its children."""
    twin = object.__new__(type(module))
    vars(twin).update(vars(module))
    vars(twin).update({name: {} for name in vars(module) if name.endswith("_hooks") or "_hooks_" in name})
    vars(twin)["_modules"] = {name: child if child is None else _quiet(child) for name, child in module._modules.items()}
    return twin


class _Known(nn.Module):
    """Stands in for a projection: remembers what it was given, answers with a fixed tensor."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        return self.answer
