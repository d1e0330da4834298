"""Small modules that the corpus replaces, and the calls that are recorded of them."""

import torch
from torch import nn

WIDTH = 48
STOP = -30000.0  # what the mask of Pool adds where nothing may be read


class MeanNorm(nn.Module):
    """Divide a row by the mean of its magnitudes."""

    def __init__(self, width=WIDTH, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        size = wide.abs().sum(-1, keepdim=True) / wide.shape[-1]
        return (wide / (size + self.eps) * self.weight.float()).to(x.dtype)


class Mixer(nn.Module):
    """A gated layer whose results are a few millionths."""

    def __init__(self, width=WIDTH, inner=80):
        super().__init__()
        self.gate = nn.Linear(width, inner)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(torch.sigmoid(self.gate(x)) * self.up(x))


class Memory:
    """A running state and the number of steps that it has seen."""

    def __init__(self, state):
        self.state = state
        self.steps = 0


class Decay(nn.Module):
    """A recurrence over time: the state decays, the input is added, the state is kept for the next call."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(width))

    def forward(self, x, memory):
        keep = torch.sigmoid(self.rate)
        out = []
        for step in range(x.shape[1]):
            memory.state.mul_(keep).add_((1.0 - keep) * x[:, step])
            out.append(memory.state.clone())
        memory.steps += x.shape[1]
        return torch.stack(out, 1)


class Pool(nn.Module):
    """Softmax of scores plus mask, then a weighted sum; the result is laid out head by head."""

    def __init__(self, scale=0.25):
        super().__init__()
        self.scale = scale

    def forward(self, query, keys, values, mask=None):
        scores = torch.einsum("blhd,bthd->bhlt", query, keys) * self.scale
        if mask is not None:
            scores = scores + mask
        return torch.einsum("bhlt,bthd->bhld", torch.softmax(scores, -1), values).transpose(1, 2)


def made(kind, dtype=torch.float32):
    """A module with weights that are neither ones nor zeros."""
    source = torch.Generator().manual_seed(11)
    module = kind()
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=source)
            if kind is MeanNorm:
                weight.copy_(1.0 + 0.2 * noise)
            elif name == "down.weight":
                weight.copy_(3e-6 * noise)
            else:
                weight.copy_(noise / weight.shape[-1] ** 0.5)
    return module.to(dtype).eval()


def calls_of(kind, dtype=torch.float32):
    """(args, kwargs) of the recorded calls: batches 1, 2, 3 and 6, lengths 1 to 37."""
    source = torch.Generator().manual_seed(5)

    def noise(*shape):
        return torch.randn(shape, generator=source).to(dtype)

    calls = []
    for batch, length in [(1, 5), (2, 9), (3, 1), (6, 12), (1, 37), (2, 1)]:
        x = noise(batch, length, WIDTH)
        if kind is Decay:
            calls.append(((x, Memory(noise(batch, WIDTH))), {}))
        elif kind is Pool:
            parts = [noise(batch, size, 4, 12) for size in (length, length + 3, length + 3)]
            mask = torch.zeros(batch, 1, length, length + 3)
            mask[0, :, :, -2:] = STOP
            calls.append((tuple(parts), {"mask": mask.to(dtype)}))
        else:
            calls.append(((x,), {}))
    return calls
