"""Pre-norm decoder layer (Llama, Qwen, Mistral) with its two RMSNorms fused, the second one together with the residual addition before it.

Around attention and MLP a decoder layer runs some eighteen small kernels. Here the first norm is one launch, and the residual addition
and the second norm are one launch that reads both summands once and writes the sum and its norm. Attention and MLP stay the modules they
are and get exactly the arguments they got. NVIDIA GPUs, bfloat16, float16 and float32.
"""

import torch
import triton
import triton.language as tl
from torch import nn

CONFIGS = [
    {"tile": 4096, "num_warps": 4},
    {"tile": 4096, "num_warps": 8},
    {"tile": 1024, "num_warps": 4},
    {"tile": 8192, "num_warps": 16},
]
_MAX_WIDTH = 32768  # one row is held in registers
_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")
_KINDS = (torch.bfloat16, torch.float16, torch.float32)
_NORMS = ("input_layernorm", "post_attention_layernorm")


@triton.jit(do_not_specialize=["rows"])
def _add_rms_norm(
    x,
    residual,
    weight,
    total,
    out,
    rows,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    ADD: tl.constexpr,
    ROUND: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = row[:, None] * WIDTH + column[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + place, rounded, mask=inside)
        value = rounded.to(tl.float32)  # the norm sees the sum as the residual stream carries it
    inverse = tl.rsqrt(tl.sum(value * value, axis=1) / WIDTH + eps)
    result = value * inverse[:, None]
    if ROUND:
        result = result.to(out.dtype.element_ty).to(tl.float32)
    result *= scale[None, :]
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


def prepare(module, tile=4096, num_warps=4):
    width = module.input_layernorm.weight.shape[0]
    block = triton.next_power_of_2(width)
    return {
        "defaults": _attention_defaults(module),
        "eps": tuple(_eps(getattr(module, name)) for name in _NORMS),
        "round": tuple(_rounds_first(getattr(module, name)) for name in _NORMS),
        "block": block,
        "rows": max(1, tile // block),
        "num_warps": num_warps,
    }


def accepts(module, state, *args, **kwargs):
    x = args[0] if len(args) == 1 else kwargs.get("hidden_states") if not args else None
    weight = module.input_layernorm.weight
    if not isinstance(x, torch.Tensor) or x.dim() != 3 or x.dtype != weight.dtype or x.device != weight.device:
        return False
    if module.training or not x.numel() or not x.is_contiguous() or torch.is_autocast_enabled(x.device.type):
        return False
    if torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in module.parameters())):
        return False
    if any(getattr(module, name)._forward_hooks or getattr(module, name)._forward_pre_hooks for name in _NORMS):
        return False  # the norms are not called as modules here, so nobody may be watching them
    cache_names = {"cache", "past_key_values"}
    return not (cache_names & kwargs.keys()) - state["defaults"].keys()  # an alias would reach attention next to its default


def forward(module, state, *args, **kwargs):
    residual = args[0] if args else kwargs["hidden_states"]
    inner = {**state["defaults"], **{name: value for name, value in kwargs.items() if name != "hidden_states"}}
    normed = _normed(module.input_layernorm.weight, state, 0, residual)
    attended, _ = module.self_attn(hidden_states=normed, **inner)
    total = torch.empty_like(residual)
    normed = _normed(module.post_attention_layernorm.weight, state, 1, attended.contiguous(), residual, total)
    return total.add_(module.mlp(normed))


def _normed(weight, state, index, x, residual=None, total=None):
    """The norm of x, or of x + residual, which goes to `total` as well."""
    out = torch.empty_like(x)
    width = x.shape[-1]
    rows = x.numel() // width
    other, sum_ = (x, out) if residual is None else (residual, total)
    at_once = state["rows"]
    sizes = (rows, state["eps"][index], width, state["block"], at_once, residual is not None, state["round"][index])
    programs = (rows + at_once - 1) // at_once
    _launch(_add_rms_norm, programs, state, (index,), (x, other, weight, sum_, out), sizes, state["num_warps"])
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


def _eps(norm):
    for name in _EPS_NAMES:
        value = getattr(norm, name, None)
        if isinstance(value, float):
            return value
    return None


def matches(module):
    """A pre-norm decoder layer on a GPU: its parts by name, the way they are wired by behaviour."""
    try:
        weight = module.input_layernorm.weight
        return weight.device.type == "cuda" and not module.training and _is_pre_norm_layer(module)
    except Exception:  # a module that can't be probed is simply not ours
        return False


def _is_pre_norm_layer(module):
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):
        return False
    if set(module._modules) != {"self_attn", "mlp", *_NORMS} or any(p is not None for p in module._parameters.values()):
        return False
    weights = [getattr(module, name).weight for name in _NORMS]
    if any(hasattr(getattr(module, name), "_hf_hook") or _eps(getattr(module, name)) is None for name in _NORMS):
        return False
    if weights[0].dtype not in _KINDS or weights[0].dtype != weights[1].dtype or weights[0].shape[0] > _MAX_WIDTH:
        return False
    return _attention_defaults(module) is not None and _returns_tensor(module.mlp, weights[0])


def _attention_defaults(module):
    """Keyword arguments that the layer hands to its attention by default, or None if its wiring is not residual, norm, residual, norm.

    The class's code runs with attention and MLP replaced by known functions, on rows with a mean and on rows as small as sqrt(eps), so
    that scaled residuals, parallel branches, other norms and other places of eps show.
    """
    weight = module.input_layernorm.weight
    x = torch.randn(2, 3, weight.shape[0], generator=torch.Generator().manual_seed(5))
    x[0, 1] += 4.0
    x[1] *= _eps(module.input_layernorm) ** 0.5
    x = x.to(weight.device)
    attention, mlp = _Known(pair=True), _Known(pair=False)
    twin = _twin(module)
    vars(twin)["_modules"].update(self_attn=attention, mlp=mlp)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        got = type(module).forward(twin, x)
        if not isinstance(got, torch.Tensor) or attention.calls != 1 or mlp.calls != 1 or "hidden_states" not in attention.keywords:
            return None
        total = x.double() + _bend(_norm64(module.input_layernorm, x.double()))
        expected = total + _bend(_norm64(module.post_attention_layernorm, total))
    if not bool(((got.double() - expected).norm(dim=-1) <= 1e-4 * expected.norm(dim=-1)).all()):
        return None
    return {name: value for name, value in attention.keywords.items() if name != "hidden_states"}


def _norm64(norm, x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _eps(norm)) * norm.weight.double()


def _rounds_first(norm):
    """Whether the norm rounds to its dtype before it multiplies by the weight, or after: told by its bits."""
    weight = norm.weight
    x = torch.randn(4, weight.shape[0], generator=torch.Generator().manual_seed(7)).to(weight.device, weight.dtype)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        own = type(norm).forward(_twin(norm, weight.dtype), x)
        unit = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + _eps(norm))
        early = (unit.to(weight.dtype).float() * weight.float()).to(weight.dtype)
        late = (unit * weight.float()).to(weight.dtype)
    return int((early != own).sum()) < int((late != own).sum())


def _bend(x):
    return torch.sin(3.0 * x) + 0.25 * x


def _returns_tensor(mlp, like):
    """Whether the MLP answers with one tensor (mixtures of experts may add router logits)."""
    with torch.no_grad(), torch.autocast(like.device.type, enabled=False):
        x = torch.zeros(1, 1, like.shape[0], dtype=like.dtype, device=like.device)
        out = type(mlp).forward(_twin(mlp, kind=None), x)
    return isinstance(out, torch.Tensor) and out.shape == x.shape and out.dtype == x.dtype


class _Known(nn.Module):
    """Stands in for attention or MLP: a fixed non-linear function; remembers how it was called."""

    def __init__(self, pair):
        super().__init__()
        self.pair, self.calls, self.keywords = pair, 0, {}

    def forward(self, *args, **kwargs):
        self.calls += 1
        self.keywords = kwargs
        x = _bend(args[0] if args else kwargs["hidden_states"])
        return (x, None) if self.pair else x


def _twin(module, kind=torch.float32):
    """A stand-in that runs the class's own code without any hook of the instance or its children; norms get the given dtype."""
    twin = object.__new__(type(module))
    vars(twin).update(vars(module))
    vars(twin).pop("forward", None)
    for name in vars(module):
        if name.endswith("_hooks") or "_hooks_" in name:
            vars(twin)[name] = {}
    if kind is not None:
        vars(twin)["_parameters"] = {key: p if p is None else p.detach().to(kind) for key, p in module._parameters.items()}
    small = {key: child for key, child in module._modules.items() if child is not None and (kind is None or key in _NORMS)}
    vars(twin)["_modules"] = {**module._modules, **{key: _twin(child, kind) for key, child in small.items()}}
    return twin
