"""Bands by the library's group norm, in single precision whatever the input has."""

from torch.nn import functional


def forward(module, state, x):
    y = functional.group_norm(x.float().contiguous(), module.groups, module.weight.float(), module.bias.float(), module.eps)
    return y.to(x.dtype)
