"""Trail by a window over the steps."""

from torch.nn import functional


def forward(module, state, x):
    length = x.shape[1]
    missing = max(0, module.taps - length)
    padded = functional.pad(x, (0, 0, module.taps - 1 - missing, missing))
    windows = padded.unfold(1, module.taps, 1)[:, :length]
    return functional.silu((windows * module.weight).sum(-1) + module.bias)
