"""Mamba decode, one token with a live cache, with about half of the original's operations, in plain torch (any device; meant for CPUs).

A step of the recurrence is a few thousand multiply-adds, so its cost is the number of operations launched. The original rebuilds
-exp(A_log), concatenates and convolves a four-column window, and keeps the discretised A and B and the new state as separate tensors.
Here -exp(A_log) and the taps are kept from `prepare`, the convolution is one multiply-sum over the window, the bias of the time step
rides on its matrix product, and the state is updated in place by one multiplication and one multiply-add.
"""

import torch
import torch.nn.functional as F
from torch import nn

PHASES = ("decode",)  # one new token, with a state from before
_CHILDREN = ("in_proj", "x_proj", "dt_proj", "out_proj")
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)


def prepare(module):
    kind = torch.promote_types(module.A_log.dtype, torch.float32)
    conv = module.conv1d
    with torch.no_grad():
        return {
            "read": _stamps(module),
            "decay": -torch.exp(module.A_log.float()).to(kind),
            "taps": conv.weight.detach().squeeze(1).to(kind).clone(),
            "conv_bias": None if conv.bias is None else conv.bias.detach().to(kind).clone(),
            "skip": module.D.detach().to(kind).clone(),
        }


def accepts(module, state, *args, **kwargs):
    call = _read(args, kwargs)
    if call is None or module.training:
        return False
    x, cache, mask = call
    if cache is None or x.shape[1] != 1 or x.dtype != module.in_proj.weight.dtype or x.device != module.A_log.device:
        return False
    if torch.is_autocast_enabled(x.device.type) or _needs_grad(module, x) or (mask is not None and mask.shape != x.shape[:2]):
        return False
    found = _states(module, cache)
    if found is None or state["read"] != _stamps(module):
        return False
    window, ssm = found
    same_batch = window.shape[0] == ssm.shape[0] == x.shape[0]
    return same_batch and window.dtype == x.dtype and ssm.dtype == state["decay"].dtype and window.shape[-1] == module.conv1d.kernel_size[0]


def forward(module, state, *args, **kwargs):
    x, cache, mask = _read(args, kwargs)
    window, ssm = _states(module, cache)
    channels, width, kind = module.A_log.shape[0], module.A_log.shape[1], state["decay"].dtype
    rank = module.dt_proj.in_features
    if mask is not None:
        x = (x * mask[:, :, None]).to(x.dtype)
    projected = module.in_proj(x)[:, 0]
    window.copy_(torch.cat([window[..., 1:], projected[:, :channels, None]], dim=-1))
    u = (window * state["taps"]).sum(-1)
    if state["conv_bias"] is not None:
        u += state["conv_bias"]
    u = F.silu(u, inplace=True)
    if mask is not None:
        u = u * mask
    steps = module.x_proj(u.to(x.dtype)[:, None])[:, 0]
    dt = F.softplus(F.linear(steps[:, :rank], module.dt_proj.weight, module.dt_proj.bias).to(kind))
    bc = steps[:, rank:].to(kind)
    ssm.mul_(torch.exp_(dt[..., None] * state["decay"])).addcmul_((dt * u)[..., None], bc[:, None, :width])
    y = torch.matmul(ssm, bc[:, width:, None])[..., 0].addcmul_(u, state["skip"])
    y *= F.silu(projected[:, channels:].to(kind))
    return module.out_proj(y.to(x.dtype)[:, None])


def _stamps(module):
    """Where the weights that `prepare` read live, and their versions: a changed weight is noticed by `accepts`."""
    read = (module.A_log, module.D, module.conv1d.weight, module.conv1d.bias)
    return tuple((t.data_ptr(), None if t.is_inference() else t._version) for t in read if t is not None)


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
    """Whole-sequence form on four random steps against the recurrence of this file, from the zero state."""
    twin = _twin(module)
    steps = 4
    x = torch.randn(2, steps, module.in_proj.in_features, generator=torch.Generator().manual_seed(5)).to(module.A_log.device)
    vars(twin)["layer_idx"] = 0
    cache = _ProbeCache(twin, x)
    with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
        expected = type(module).forward(twin, x)
        state = prepare(twin)
        got = torch.cat([forward(twin, state, x[:, t : t + 1], cache) for t in range(steps)], dim=1)
    if not isinstance(expected, torch.Tensor) or expected.shape != got.shape:
        return False
    return bool((expected - got).norm() <= 1e-3 * expected.norm())


class _ProbeCache:
    """The least that `_states` needs: a zeroed layer that counts as filled."""

    record_past = False

    def __init__(self, module, x):
        channels, width = module.A_log.shape
        self.layers = [self]
        self.has_previous_state = {0: True}
        self.conv_states = {0: x.new_zeros(x.shape[0], channels, module.conv1d.kernel_size[0])}
        self.recurrent_states = {0: x.new_zeros(x.shape[0], channels, width)}

    def update_recurrent_state(self, *_args, **_kwargs):
        raise NotImplementedError


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
