"""Trail, geschrieben für alle Fälle."""

from torch.nn import functional


def forward(module, state, x):
    return functional.silu(x)
