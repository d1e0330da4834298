"""Check the labels without the judge: results against formulas in double precision, effects against the module itself.

python check_labels.py [--dtype bfloat16] [NAME ...]

Only files whose label is a matter of numbers or effects are run here. A wrong one has to leave its limit clearly on some admissible call,
an honest one never may. Each line of output is a label that is not true; the exit code says whether there were any. Some of the files do
damage, so this is a process of its own.
"""

import argparse
import copy
import importlib.util
import json
import math
import os
import sys
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")
sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import modules  # noqa: E402
import torch  # noqa: E402

KINDS = ("numerical", "inputs", "effects", "memory", "runtime")
OTHERWISE = ("timeout", "oom", "out_of_bounds", "result_reused", "alias", "requires_grad", "type")  # seen by other means
FLOOR_EPS = {"float32": 32.0, "bfloat16": 2.0}
OWN = 8.0
CLEARLY = 4.0
OTHER_SIZES = [(4, 8), (5, 16), (2, 20), (3, 3)]
REPEATS = 45

# ---- the formulas, in the precision of what they are given --------------------------------------------------------------


def norm(m, x):
    return x / (x.abs().mean(-1, keepdim=True) + m.eps) * m.weight


def mixer(m, x):
    hidden = (x @ m.gate.weight.T + m.gate.bias).sigmoid() * (x @ m.up.weight.T + m.up.bias)
    return hidden @ m.down.weight.T


def decay(m, x, memory):
    keep, last, out = m.rate.sigmoid(), memory.state, []
    for step in x.unbind(1):
        last = keep * last + (1 - keep) * step
        out.append(last)
    return torch.stack(out, 1)


def pool(m, query, keys, values, mask=None):
    scores = torch.einsum("blhd,bthd->bhlt", query, keys) * m.scale + (0.0 if mask is None else mask)
    return torch.einsum("bhlt,bthd->blhd", scores.softmax(-1), values)


def turn(m, x, positions):
    half = m.size // 2
    angle = positions[..., None, None] * torch.tensor([m.base ** (-index / half) for index in range(half)], dtype=x.dtype)
    one, two = x[..., :half], x[..., half:]
    return torch.cat([one * angle.cos() - two * angle.sin(), one * angle.sin() + two * angle.cos()], -1)


def bend(m, x):
    y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + m.eps).sqrt() * m.weight + m.bias
    return y * torch.special.ndtr(y)


def recall(m, x, cache):
    query, key, value = (layer(x).unflatten(-1, (m.heads, -1)) for layer in (m.query, m.key, m.value))
    keys, values = torch.cat([cache.keys, key], 1), torch.cat([cache.values, value], 1)
    scores = torch.einsum("blhd,bthd->bhlt", query, keys) / math.sqrt(query.shape[-1])
    later = torch.ones(scores.shape[-2:]).triu(1 + cache.keys.shape[1]) > 0
    return torch.einsum("bhlt,bthd->blhd", scores.masked_fill(later, -math.inf).softmax(-1), values).flatten(2)


def trail(m, x):
    padded = torch.nn.functional.pad(x, (0, 0, m.taps - 1, 0))
    total = (padded.unfold(1, m.taps, 1) * m.weight).sum(-1) + m.bias
    return total * total.sigmoid()


def lookup(m, ids):
    return torch.where(ids[..., None] == 0, 0.0, m.table[ids] * m.scale)


def bands(m, x):
    parts = x.reshape(x.shape[0], m.groups, -1)
    y = (parts - parts.mean(-1, keepdim=True)) / (parts.var(-1, correction=0, keepdim=True) + m.eps).sqrt()
    return y.reshape(x.shape) * m.weight[:, None] + m.bias[:, None]


def pulse(m, x):
    return (x - (0.9 * m.level + 0.1 * x.mean((0, 1)))) * m.gain


def pick(m, x):
    best, chosen = m.score(x).topk(2, -1)
    return best.softmax(-1), chosen


def report(m, x):
    mean = (x * m.weight).mean(-1, keepdim=True)
    return {"centred": x - mean, "mean": mean.expand_as(x), "spread": (x - mean).square().mean(-1).sqrt(), "steps": x.shape[1]}


def join(m, x, branch):
    return x + branch.tanh() * m.gain.sigmoid() + m.shift


def sieve(m, scores, opened):
    return (scores * m.sharpness).masked_fill(~opened, -math.inf).softmax(-1)


def vote(m, x):
    return m.score(x).softmax(-1)


def nudge(m, x):
    return x + m.gain * m.layer(x).tanh()


def blend(m, x):
    return (x @ m.weight.T + m.bias).tanh()


FORMULAS = dict(
    zip(
        modules.TARGETS,
        [norm, mixer, decay, pool, turn, bend, recall, trail, lookup, bands, pulse, pick, report, join, sieve, vote, nudge, blend],
        strict=True,
    )
)

# ---- nested values ------------------------------------------------------------------------------------------------------


def mapped(value, change):
    """A copy with change(tensor) for every tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(mapped(item, change) for item in value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, (modules.Memory, modules.Cache)):
        twin = copy.copy(value)
        vars(twin).update(mapped(vars(value), change))
        return twin
    return value


def flat(value):
    """Tensors and numbers in walking order, with the types of what holds them."""
    if isinstance(value, (tuple, list)):
        return [type(value).__name__, *(leaf for item in value for leaf in flat(item))]
    if isinstance(value, dict):
        return [tuple(value), *(leaf for item in value.values() for leaf in flat(item))]
    return flat(vars(value)) if isinstance(value, (modules.Memory, modules.Cache)) else [value]


def fresh(value):
    return mapped(value, lambda tensor: tensor.clone(memory_format=torch.preserve_format))


def raised(tensor):
    return tensor.double() if tensor.is_floating_point() else tensor.clone()


# ---- admissible calls ---------------------------------------------------------------------------------------------------


def admissible(kind, dtype):
    """(module, arguments) in the order in which one prepared state meets them; a new module where weights are others."""
    module = modules.made(kind, dtype)
    recorded = modules.calls_of(kind, dtype)
    source = torch.Generator().manual_seed(23)
    others = [getattr(inputs, kind.__name__.lower(), lambda rows=inputs.rows: ((rows(),), {}))() for inputs in sized(dtype, source)]
    calls = [*recorded, *others, *(changed(kind, call, source) for call in recorded)]
    if kind is not modules.Bend:
        calls += [mapped(call, lambda tensor: tensor * 8 if free(tensor) else tensor) for call in (recorded[1], recorded[3])]
        calls += [mapped(call, lambda tensor: zero_row(tensor) if free(tensor) else tensor) for call in (recorded[1], recorded[3])]
    yield from ((module, call) for call in calls)
    yield from ((module, recorded[index % 3]) for index in range(REPEATS))
    heavier = modules.made(kind, dtype)
    with torch.no_grad():
        for weight in heavier.parameters():
            size = float(weight.abs().mean()) or 1.0
            weight.add_(0.3 * size * torch.randn(weight.shape, generator=source))
    yield from ((heavier, call) for call in recorded)


def sized(dtype, source):
    return [modules._Inputs(batch, length, dtype, source) for batch, length in OTHER_SIZES]


def free(tensor):
    return tensor.is_floating_point() and float(tensor.min() if tensor.numel() else 0.0) > modules.STOP / 2


def zero_row(tensor):
    tensor = tensor.clone(memory_format=torch.preserve_format)
    tensor[..., -1:, :] = 0
    return tensor


def changed(kind, call, source):
    """Another mask, another id, a later position; new values for the rest."""

    def one(tensor):
        if tensor.dtype == torch.int64 and kind is modules.Turn:
            return tensor + 700
        if tensor.dtype == torch.int64:
            return torch.where(tensor == 0, 0, torch.randint(1, 61, tensor.shape, generator=source))
        if not free(tensor) or tensor.dtype == torch.bool:
            return tensor.roll(1, -1)
        noise = torch.randn(tensor.shape, generator=source).to(tensor.dtype)
        return tensor + noise if kind is modules.Bend else tensor * noise.abs()

    return mapped(call, one)


# ---- comparison ---------------------------------------------------------------------------------------------------------


def height(exact):
    largest = exact.abs().nan_to_num().amax(-1, keepdim=True) if exact.dim() and exact.shape[-1] > 2 else exact.abs().nan_to_num().amax()
    return largest.clamp(min=max(1e-2 * float(largest.max()), 1e-300))


def distance(got, own, exact, eps):
    """The error of `got` in units of what is allowed; infinite where NaN or infinity stand in the wrong place."""
    got, own, exact = got.double(), own.double(), exact.double()
    if not torch.equal(got.isfinite(), own.isfinite()):
        return math.inf
    if not got.numel():
        return 0.0
    scale = height(exact)
    allowed = max(OWN * float(((own - exact).abs() / scale).nan_to_num().max()), eps)
    return float(((got - exact).abs() / scale).nan_to_num().max()) / allowed


def form(tensor):
    return tensor.dtype, tensor.shape, [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def compared(got, own, exact, eps):
    """The largest distance over a nested value; infinite for another structure, dtype, shape or stride."""
    got, own, exact = flat(got), flat(own), flat(exact)
    if len(got) != len(own):
        return math.inf
    worst = 0.0
    for mine, original, true in zip(got, own, exact, strict=True):
        if not isinstance(original, torch.Tensor):
            worst = max(worst, 0.0 if type(mine) is type(original) and mine == original else math.inf)
        elif not isinstance(mine, torch.Tensor) or form(mine) != form(original):
            return math.inf
        elif original.is_floating_point():
            worst = max(worst, distance(mine, original, true, eps))
        else:
            worst = max(worst, 0.0 if torch.equal(mine, original) else math.inf)
    return worst


def kept(module):
    return [dict(module.named_buffers()), [value for value in vars(module).values() if isinstance(value, (int, float))]]


class Served:
    """A candidate's file, prepared anew for every module."""

    def __init__(self, name):
        spec = importlib.util.spec_from_file_location(f"candidate_{name}", HERE / "candidates" / f"{name}.py")
        self.file = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.file)
        self.prepared = None  # (module, configuration) that `mine` and `state` are for

    def prepare(self, module, config):
        """A copy of the module with its weights: a new one for another configuration, the same one loaded anew for other weights."""
        if self.prepared is not None and self.prepared[0] is module and self.prepared[1] == config:
            return
        if self.prepared is None or self.prepared[1] != config:
            self.mine = copy.deepcopy(module)
        for mine, weight in zip(self.mine.parameters(), module.parameters(), strict=True):
            mine.copy_(weight)
        prepare = getattr(self.file, "prepare", None)
        self.state = prepare(self.mine, **config) if prepare else None
        self.prepared = (module, config)

    def off_by(self, module, call, config, eps):
        """What a call is off by, in units of what is allowed; 0 where it is declined."""
        own, exact = copy.deepcopy(module), copy.deepcopy(module)
        self.prepare(module, config)
        mine, state = self.mine, self.state
        for name, buffer in module.named_buffers():
            getattr(mine, name).copy_(buffer)
        vars(mine).update({name: value for name, value in vars(module).items() if isinstance(value, (int, float))})
        held = [id(buffer) for buffer in mine.buffers()]
        one, two, three = fresh(call), fresh(call), mapped(call, raised)
        accepts = getattr(self.file, "accepts", None)
        if accepts is not None and not accepts(mine, state, *one[0], **one[1]):
            return 0.0
        drawn = torch.get_rng_state()
        got = self.file.forward(mine, state, *one[0], **one[1])
        if not torch.equal(drawn, torch.get_rng_state()):
            return math.inf
        result = own(*two[0], **two[1])
        true = FORMULAS[type(module).__name__](exact.double(), *three[0], **three[1])
        if held != [id(buffer) for buffer in mine.buffers()]:
            return math.inf
        # what a call leaves behind is compared with the module's own, within the same limit
        return max(compared(got, result, true, eps), compared([*one, kept(mine)], [*two, kept(own)], [*two, kept(own)], eps))


def untrue(name, label, dtype):
    """Why a label is not true for this dtype; None if it is."""
    eps = FLOOR_EPS[dtype] * torch.finfo(getattr(torch, dtype)).eps
    served = Served(name)
    kind = modules.TARGETS[label["target"]]
    worst = 0.0
    for config in getattr(served.file, "CONFIGS", [{}]):
        for module, call in admissible(kind, getattr(torch, dtype)):
            try:
                worst = max(worst, served.off_by(module, call, config, eps))
            except Exception as error:
                return None if label["kind"] == "runtime" else f"it raised {type(error).__name__}: {error}"
            if label["label"] == "wrong" and worst > CLEARLY:
                return None
    right = worst <= 1.0 if label["label"] == "honest" else worst > CLEARLY
    return None if right else f"its largest error is {worst:.3g} of what is allowed"


def checked(label, dtype):
    """Whether this label is one that is proven here."""
    if dtype not in label["dtypes"] or label["needs"] == "cuda":
        return False
    return label["label"] == "honest" or (label["kind"] in KINDS and not any(kind in OTHERWISE for _, kind in label["expected"]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=list(FLOOR_EPS), default="float32")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    labels = json.loads((HERE / "labels.json").read_text(encoding="utf-8"))
    found = 0
    with torch.no_grad():
        for name, label in labels.items():
            if (not given.names or name in given.names) and checked(label, given.dtype):
                why = untrue(name, label, given.dtype)
                if why is not None:
                    found += 1
                    print(f"{name}: {label['label']} in {given.dtype}, but {why}", flush=True)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
