"""Small modules that the corpus replaces, and the calls that are recorded of them."""

import math

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


class Turn(nn.Module):
    """Turn the two halves of every head by an angle that grows with the position."""

    def __init__(self, size=12, base=500.0):
        super().__init__()
        self.size = size
        self.base = base

    def forward(self, x, positions):
        half = self.size // 2
        step = self.base ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
        angle = (positions[..., None].float() * step)[:, :, None, :]
        one, two = x[..., :half].float(), x[..., half:].float()
        turned = (one * torch.cos(angle) - two * torch.sin(angle), two * torch.cos(angle) + one * torch.sin(angle))
        return torch.cat(turned, -1).to(x.dtype)


class Bend(nn.Module):
    """Layer norm of rows that lie far from zero, then the exact GELU."""

    def __init__(self, width=WIDTH, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x):
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        scale = torch.sqrt((centred * centred).mean(-1, keepdim=True) + self.eps)
        y = centred / scale * self.weight.float() + self.bias.float()
        return (0.5 * y * (1.0 + torch.erf(y / math.sqrt(2.0)))).to(x.dtype)


class Cache:
    """Keys and values so far; they grow with every call."""

    def __init__(self, keys, values):
        self.keys = keys
        self.values = values
        self.calls = 0

    def append(self, keys, values):
        self.keys = torch.cat([self.keys, keys], 1)
        self.values = torch.cat([self.values, values], 1)
        self.calls += 1
        return self.keys, self.values


class Recall(nn.Module):
    """Causal attention over a cache and the new tokens."""

    def __init__(self, width=WIDTH, heads=4):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x, cache):
        parts = [part(x).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key, self.value)]
        keys, values = cache.append(parts[1], parts[2])
        length, total = x.shape[1], keys.shape[1]
        scores = torch.einsum("blhd,bthd->bhlt", parts[0], keys) / math.sqrt(keys.shape[-1])
        row = torch.arange(length, device=x.device)[:, None] + (total - length)
        later = torch.arange(total, device=x.device)[None, :] > row
        weights = torch.softmax(scores.masked_fill(later, float("-inf")), -1)
        return torch.einsum("bhlt,bthd->blhd", weights, values).flatten(2)


class Trail(nn.Module):
    """A filter of every channel over the last four steps of its own sequence, then SiLU."""

    def __init__(self, width=WIDTH, taps=4):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, taps))
        self.bias = nn.Parameter(torch.zeros(width))
        self.taps = taps

    def forward(self, x):
        padded = torch.cat([x.new_zeros(x.shape[0], self.taps - 1, x.shape[2]), x], 1)
        total = self.bias.expand(x.shape)
        for tap in range(self.taps):
            total = total + padded[:, tap : tap + x.shape[1]] * self.weight[:, tap]
        return total * torch.sigmoid(total)


class Lookup(nn.Module):
    """Rows of a table, scaled; the id 0 is padding and gives zeros."""

    def __init__(self, size=61, width=WIDTH):
        super().__init__()
        self.table = nn.Parameter(torch.ones(size, width))
        self.scale = width**0.5

    def forward(self, ids):
        rows = self.table[ids] * self.scale
        return rows * (ids != 0).unsqueeze(-1).to(rows.dtype)


class Bands(nn.Module):
    """Group norm over bands of channels and all steps; the input comes with channels in the middle."""

    def __init__(self, width=WIDTH, groups=4, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.groups = groups
        self.eps = eps

    def forward(self, x):
        wide = x.float().reshape(x.shape[0], self.groups, -1)
        centred = wide - wide.mean(-1, keepdim=True)
        wide = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + self.eps)
        return (wide.view(x.shape) * self.weight.float()[:, None] + self.bias.float()[:, None]).to(x.dtype)


class Pulse(nn.Module):
    """Takes off a level that the module keeps and that follows the inputs."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("level", torch.zeros(width))
        self.seen = 0

    def forward(self, x):
        self.level.mul_(0.9).add_(0.1 * x.mean((0, 1)))
        self.seen += x.shape[0] * x.shape[1]
        return (x - self.level) * self.gain


class Pick(nn.Module):
    """The two best of seven choices: their shares, which add up to one, and their numbers."""

    def __init__(self, width=WIDTH, choices=7):
        super().__init__()
        self.score = nn.Linear(width, choices, bias=False)

    def forward(self, x):
        shares = torch.softmax(self.score(x).float(), -1)
        best, chosen = torch.topk(shares, 2, dim=-1)
        return (best / best.sum(-1, keepdim=True)).to(x.dtype), chosen


class Report(nn.Module):
    """What is known of every row: its distance from the mean, the mean for every column, its spread, and the number of steps."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        mean = (x * self.weight).float().mean(-1, keepdim=True).to(x.dtype)
        centred = x - mean
        spread = torch.sqrt((centred.float() * centred.float()).mean(-1)).to(x.dtype)
        return {"centred": centred, "mean": mean.expand_as(x), "spread": spread, "steps": x.shape[1]}


class Join(nn.Module):
    """Adds a branch to the stream in place and gives back the stream."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x, branch):
        share = 1.0 / (1.0 + torch.exp(-self.gain))
        scaled = torch.tanh(branch) * share + self.shift
        x += scaled
        return x


class Sieve(nn.Module):
    """Softmax over what is open; where nothing is, there is no answer but NaN."""

    def __init__(self, heads=3):
        super().__init__()
        self.sharpness = nn.Parameter(torch.ones(heads, 1, 1))

    def forward(self, scores, opened):
        return torch.softmax((scores * self.sharpness).masked_fill(~opened, float("-inf")), -1)


class Vote(nn.Module):
    """Shares of seven hundred choices, most of them tiny."""

    def __init__(self, width=WIDTH, choices=700):
        super().__init__()
        self.score = nn.Linear(width, choices)

    def forward(self, x):
        scores = self.score(x).float()
        powers = torch.exp(scores - scores.amax(-1, keepdim=True))
        return (powers / powers.sum(-1, keepdim=True)).to(x.dtype)


class Nudge(nn.Module):
    """Adds a thousandth of a layer to its input."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.gain = 1e-3

    def forward(self, x):
        return x + self.gain * torch.tanh(self.layer(x))


class Blend(nn.Module):
    """A square layer and tanh. Its weight happens to be symmetric and its bias zero."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return torch.tanh(torch.matmul(x, self.weight.t()) + self.bias)


TARGETS = {
    kind.__name__: kind
    for kind in (
        *(MeanNorm, Mixer, Decay, Pool, Turn, Bend, Recall, Trail, Lookup, Bands, Pulse, Pick, Report, Join, Sieve, Vote, Nudge),
        *(Blend,),
    )
}
SIZES = [(1, 5), (2, 9), (3, 1), (6, 12), (1, 37), (2, 1)]  # batch and length of the recorded calls


def made(kind, dtype=torch.float32):
    """A module with weights that are neither ones nor zeros, but for Blend, whose sample is special."""
    source = torch.Generator().manual_seed(11)
    module = kind()
    with torch.no_grad():
        for name, weight in module.named_parameters():
            noise = torch.randn(weight.shape, generator=source)
            if name == "gain" or kind in (MeanNorm, Report) or (kind in (Bend, Bands, Sieve) and name != "bias"):
                weight.copy_(1.0 + 0.2 * noise)
            elif kind is Blend:
                weight.copy_(weight if name == "bias" else (noise + noise.t()) / weight.shape[-1] ** 0.5)
            elif kind is Bend:
                weight.copy_(noise)
            elif kind is Vote and name == "score.weight":
                weight.copy_(3.0 * noise / weight.shape[-1] ** 0.5)
            elif name == "down.weight":
                weight.copy_(3e-6 * noise)
            else:
                weight.copy_(noise / weight.shape[-1] ** 0.5)
        if kind is Pulse:
            module.level.copy_(0.3 * torch.randn(WIDTH, generator=source))
    return module.to(dtype).eval()


class _Inputs:
    """Arguments of one call of each module, for a batch and a length."""

    def __init__(self, batch, length, dtype, source):
        self.batch, self.length, self.dtype, self.source = batch, length, dtype, source

    def noise(self, *shape):
        return torch.randn(shape, generator=self.source).to(self.dtype)

    def rows(self):
        return self.noise(self.batch, self.length, WIDTH)

    def decay(self):
        x = self.rows()
        return (x, Memory(self.noise(self.batch, WIDTH))), {}

    def pool(self):
        parts = [self.noise(self.batch, size, 4, 12) for size in (self.length, self.length + 3, self.length + 3)]
        mask = torch.zeros(self.batch, 1, self.length, self.length + 3)
        mask[0, :, :, -2:] = STOP
        return tuple(parts), {"mask": mask.to(self.dtype)}

    def turn(self):
        start = torch.arange(self.batch)[:, None] * 3
        return (self.noise(self.batch, self.length, 4, 12), start + torch.arange(self.length)), {}

    def bend(self):
        return ((100.0 + torch.randn((self.batch, self.length, WIDTH), generator=self.source)).to(self.dtype),), {}

    def recall(self):
        past = 0 if self.batch == 2 else self.length + 4
        return (self.rows(), Cache(self.noise(self.batch, past, 4, 12), self.noise(self.batch, past, 4, 12))), {}

    def lookup(self):
        ids = torch.randint(1, 47, (self.batch, self.length), generator=self.source)
        ids[-1, : self.length // 3] = 0
        return (ids,), {}

    def bands(self):
        return (self.rows().transpose(1, 2),), {}

    def join(self):
        return (self.rows(), self.rows()), {}

    def sieve(self):
        scores = self.noise(self.batch, 3, self.length, self.length + 2)
        opened = torch.rand((self.batch, 1, 1, self.length + 2), generator=self.source) < 0.7
        opened[:, ..., 0] = True
        opened[2:3] = False
        return (scores, opened), {}


def calls_of(kind, dtype=torch.float32):
    """(args, kwargs) of the recorded calls: batches 1, 2, 3 and 6, lengths 1 to 37."""
    source = torch.Generator().manual_seed(5)
    calls = []
    for batch, length in SIZES:
        inputs = _Inputs(batch, length, dtype, source)
        special = getattr(inputs, kind.__name__.lower(), None)
        calls.append(((inputs.rows(),), {}) if special is None else special())
    return calls
