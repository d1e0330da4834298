"""Trail as a convolution of the library."""

from torch.nn import functional


def prepare(module):
    return module.weight.detach().flip(-1).unsqueeze(1).contiguous()


def forward(module, state, x):
    padded = functional.pad(x.transpose(1, 2), (module.taps - 1, 0))
    total = functional.conv1d(padded, state, module.bias, groups=x.shape[2])
    return functional.silu(total).transpose(1, 2).contiguous()
