"""Trail as a grouped convolution of the library."""

import torch
from torch.nn import functional


def prepare(module):
    return module.weight.detach().unsqueeze(1).contiguous()


def forward(module, state, x):
    padded = functional.pad(x.transpose(1, 2), (module.taps - 1, 0))
    total = functional.conv1d(padded, state, module.bias, groups=x.shape[2])
    return torch.mul(total, total.sigmoid()).transpose(1, 2).contiguous()
