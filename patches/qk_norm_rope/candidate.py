"""Attention with normed queries and keys (Qwen3 layout): both norms and the rotary embedding in one launch, then torch's own attention.

Between the projections and the attention kernel the original runs some two dozen small kernels: two RMSNorms over heads, the rotation of
halves for queries and keys, and copies for grouped heads. A decode step is bound by their launches. Here one program per token and head
reads its 64 to 256 numbers once, norms and rotates them in registers and writes them once. Grouped heads are handed to torch's attention
as they are: in a decode step the queries of a group become rows of one head. NVIDIA GPUs, bfloat16, float16 and float32.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

CONFIGS = [{"num_warps": 1}, {"num_warps": 2}]
_EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")
_KINDS = (torch.bfloat16, torch.float16, torch.float32)
_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# arguments of the attention call that change what is computed; others (positions, cache flags) were used before it
_MEANINGFUL = ("is_causal", "position_bias", "softcap", "output_attentions", "sliding_window", "dropout", "head_mask", "s_aux")


@triton.jit
def _normed_and_turned(source, weight, out, cos, sin, eps, HALF, BLOCK, ROUND):
    """One head of one token: RMSNorm, then (a, b) -> (a cos - b sin, b cos + a sin) for its halves, rounded where the original rounds."""
    kind = out.dtype.element_ty
    column = tl.arange(0, BLOCK)
    inside = column < HALF
    first = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + column, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt((tl.sum(first * first) + tl.sum(second * second)) / (2 * HALF) + eps)
    first *= inverse
    second *= inverse
    if ROUND:
        first = first.to(kind).to(tl.float32)
        second = second.to(kind).to(tl.float32)
    first = (first * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    second = (second * tl.load(weight + HALF + column, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    cos_first = tl.load(cos + column, mask=inside, other=0.0).to(tl.float32)
    cos_second = tl.load(cos + HALF + column, mask=inside, other=0.0).to(tl.float32)
    sin_first = tl.load(sin + column, mask=inside, other=0.0).to(tl.float32)
    sin_second = tl.load(sin + HALF + column, mask=inside, other=0.0).to(tl.float32)
    low = (first * cos_first).to(kind).to(tl.float32) - (second * sin_first).to(kind).to(tl.float32)
    high = (second * cos_second).to(kind).to(tl.float32) + (first * sin_second).to(kind).to(tl.float32)
    tl.store(out + column, low.to(kind), mask=inside)
    tl.store(out + HALF + column, high.to(kind), mask=inside)


@triton.jit(do_not_specialize=["length", "angle_batch_stride"])
def _qk_norm_rope(
    q,
    k,
    q_weight,
    k_weight,
    cos,
    sin,
    q_out,
    k_out,
    length,
    angle_batch_stride,
    q_eps,
    k_eps,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUND: tl.constexpr,
):
    token = (tl.program_id(0) // (Q_HEADS + K_HEADS)).to(tl.int64)
    head = tl.program_id(0) % (Q_HEADS + K_HEADS)
    angles = token // length * angle_batch_stride + token % length * (2 * HALF)
    if head < Q_HEADS:
        place = (token * Q_HEADS + head) * (2 * HALF)
        _normed_and_turned(q + place, q_weight, q_out + place, cos + angles, sin + angles, q_eps, HALF, BLOCK, ROUND)
    else:
        place = (token * K_HEADS + head - Q_HEADS) * (2 * HALF)
        _normed_and_turned(k + place, k_weight, k_out + place, cos + angles, sin + angles, k_eps, HALF, BLOCK, ROUND)


def prepare(module, num_warps=1):
    head = module.head_dim
    return {
        "head": head,
        "q_heads": module.q_proj.out_features // head,
        "k_heads": module.k_proj.out_features // head,
        "eps": (_eps(module.q_norm), _eps(module.k_norm)),
        "block": triton.next_power_of_2(head // 2),
        "round": _rounds_first(module.q_norm),
        "num_warps": num_warps,
    }


def accepts(module, state, *args, **kwargs):
    call = _read(args, kwargs)
    if call is None or module.training:
        return False
    x, (cos, sin), cache = call
    kind = module.q_proj.weight.dtype
    if x.dtype != kind or cos.dtype != kind or sin.dtype != kind or x.dim() != 3 or not x.numel():
        return False
    if x.device != module.q_proj.weight.device or cos.device != x.device or sin.device != x.device:
        return False
    batch, length, head = x.shape[0], x.shape[1], state["head"]
    if cos.shape != sin.shape or cos.dim() != 3 or cos.shape[1:] != (length, head) or cos.shape[0] not in (1, batch):
        return False
    if not cos.is_contiguous() or not sin.is_contiguous() or torch.is_autocast_enabled(x.device.type):
        return False
    if length > 1 and cache is not None and _held(cache, module.layer_idx):
        return False  # a second piece of a prompt needs a mask, and one that is None means something else there
    return not (torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in module.parameters())))


def forward(module, state, *args, **kwargs):
    x, (cos, sin), cache = _read(args, kwargs)
    batch, length, _ = x.shape
    head, q_heads, k_heads = state["head"], state["q_heads"], state["k_heads"]
    q, k = module.q_proj(x), module.k_proj(x)
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    angle_stride = length * head if cos.shape[0] > 1 else 0
    tensors = (q, k, module.q_norm.weight, module.k_norm.weight, cos, sin, q_out, k_out)
    sizes = (length, angle_stride, *state["eps"], q_heads, k_heads, head // 2, state["block"], state["round"])
    _launch(_qk_norm_rope, batch * length * (q_heads + k_heads), state, (), tensors, sizes, state["num_warps"])
    keys, values = (
        k_out.view(batch, length, k_heads, head).transpose(1, 2),
        module.v_proj(x).view(batch, length, k_heads, head).transpose(1, 2),
    )
    if cache is not None:
        keys, values = cache.update(keys, values, module.layer_idx)
    if length == 1:
        # one token attends to everything: the queries of a group are rows of their head
        rows = q_out.view(batch, k_heads, q_heads // k_heads, head)
        attended = F.scaled_dot_product_attention(rows, keys, values, scale=module.scaling).reshape(batch, 1, q_heads * head)
    else:
        rows = q_out.view(batch, length, q_heads, head).transpose(1, 2)
        grouped = {"enable_gqa": True} if q_heads != k_heads else {}
        attended = F.scaled_dot_product_attention(rows, keys, values, is_causal=True, scale=module.scaling, **grouped)
        attended = attended.transpose(1, 2).reshape(batch, length, q_heads * head)
    return module.o_proj(attended), None


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


def _read(args, kwargs):
    """(hidden states, (cos, sin), cache or None), told by what they are; None for a mask or anything else that changes the result."""
    if any(kwargs.get(name) not in (None, False) for name in _MEANINGFUL):
        return None
    x = angles = cache = None
    for name, value in (*((None, value) for value in args), *kwargs.items()):
        if value is None or isinstance(value, (bool, int, float)):
            continue
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() and value.dim() == 3 and x is None:
                x = value
            elif name is None or "mask" in name:
                return None
        elif isinstance(value, (tuple, list)) and len(value) == 2 and all(isinstance(one, torch.Tensor) for one in value):
            angles = tuple(value)
        elif hasattr(value, "update") and hasattr(value, "layers"):
            if type(value).__name__ != "DynamicCache":
                return None  # others may need more than keys, values and the layer's number
            cache = value
        else:
            return None
    return None if x is None or angles is None else (x, angles, cache)


def _held(cache, index):
    """Tokens that the cache holds for this layer."""
    return int(cache.get_seq_length(index))


def _eps(norm):
    for name in _EPS_NAMES:
        value = getattr(norm, name, None)
        if isinstance(value, float):
            return value
    return None


def matches(module):
    """Attention on a GPU with normed queries and keys (by its parts) that computes what the name says (by behaviour)."""
    try:
        on_gpu = all(p.device.type == "cuda" and p.dtype in _KINDS for p in module.parameters())
        return on_gpu and _has_structure(module) and _behaves(module)
    except Exception:  # a module that can't be probed is simply not ours
        return False


def _has_structure(module):
    if module.training or ("forward" in vars(module) and not hasattr(module, "_hf_hook")):
        return False
    if set(module._modules) != {*_LINEARS, "q_norm", "k_norm"} or any(type(getattr(module, name)) is not nn.Linear for name in _LINEARS):
        return False
    head, norms = module.head_dim, (module.q_norm, module.k_norm)
    if any(_eps(norm) is None or norm.weight.shape != (head,) or hasattr(norm, "_hf_hook") for norm in norms) or head % 2 or head > 512:
        return False
    if any(norm._forward_hooks or norm._forward_pre_hooks for norm in norms):
        return False  # the norms are not called as modules here, so nobody may be watching them
    if _rounds_first(module.q_norm) != _rounds_first(module.k_norm) or not isinstance(module.scaling, float):
        return False
    grouped = module.q_proj.out_features % module.k_proj.out_features == 0 and module.k_proj.out_features == module.v_proj.out_features
    return grouped and getattr(module, "sliding_window", None) is None and module.config._attn_implementation == "sdpa"


def _behaves(module):
    """Three tokens in float32 through the class's own code, against the definition."""
    twin, head = _twin(module), module.head_dim
    source = torch.Generator().manual_seed(5)
    x = torch.randn(2, 3, module.q_proj.in_features, generator=source).to(module.q_proj.weight.device)
    cos, sin = (torch.randn(1, 3, head, generator=source).to(x.device) for _ in range(2))
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        got = type(module).forward(twin, x, (cos, sin), None)
        expected = _definition(twin, x, cos, sin)
    if not isinstance(got, tuple) or len(got) != 2 or got[1] is not None or got[0].shape != x.shape:
        return False
    return bool((got[0] - expected).norm() <= 1e-3 * expected.norm())


def _definition(module, x, cos, sin):
    head = module.head_dim
    states = []
    for name in ("q", "k"):
        rows = getattr(module, f"{name}_proj")(x).unflatten(-1, (-1, head)).double()
        norm = getattr(module, f"{name}_norm")
        rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + _eps(norm)) * norm.weight.double()
        turned = torch.cat((-rows[..., head // 2 :], rows[..., : head // 2]), -1)
        states.append((rows * cos[:, :, None] + turned * sin[:, :, None]).transpose(1, 2))
    q, k = states
    v = module.v_proj(x).unflatten(-1, (-1, head)).double().transpose(1, 2)
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * module.scaling
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
    mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ v.repeat_interleave(group, 1)
    return module.o_proj(mixed.transpose(1, 2).flatten(2).float())


def _rounds_first(norm):
    """Whether the norm rounds to its dtype before it multiplies by the weight, or after: told by its bits."""
    weight = norm.weight
    x = torch.randn(8, weight.shape[0], generator=torch.Generator().manual_seed(7)).to(weight.device, weight.dtype)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        own = type(norm).forward(norm, x)
        unit = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + _eps(norm))
        early = (unit.to(weight.dtype).float() * weight.float()).to(weight.dtype)
        late = (unit * weight.float()).to(weight.dtype)
    return int((early != own).sum()) < int((late != own).sum())


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
