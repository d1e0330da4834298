"""Every seed of patches/ against its original module at the sizes of real models: correct against double precision, and how fast.

    python benchmarks/seeds_device.py --out seeds.json            on a CUDA machine, under four minutes
    TRITON_INTERPRET=1 python benchmarks/seeds_device.py --smoke --out seeds.json   tiny sizes, any machine: does the script work?

Needs torch, triton and transformers only, and runs from the checkout. One line per case and configuration:

    wall      median ms per call when calls follow each other without waiting: what a decode loop feels, launches included
    device    median ms of GPU time per call with the queue kept full, so that launch gaps do not count
    err       |result - exact| / |exact| in double precision, for the seed and for the original

Original and candidate alternate (ABBA); the candidate is called the way a patch is: `accepts`, then `forward`, as the module's forward.
"""

import argparse
import copy
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
import triton
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[1]
ROUNDING = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
QUEUE_LAUNCHES = 800  # a CUDA stream takes about a thousand launches before enqueuing blocks


@dataclass
class Case:
    """One module, one call of it, and the exact result."""

    seed: str
    label: str
    dtype: torch.dtype
    module: Any
    call: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]  # fresh arguments with equal values (caches are filled anew)
    exact: Callable[[], torch.Tensor]
    launches: int = 40  # of the original, roughly: decides how device time can be taken
    timed: bool = True
    fresh: bool = False  # a call changes what the next one would find, so every call gets new arguments
    state: Callable[[dict[str, Any]], list[torch.Tensor]] = field(default=lambda _kwargs: [])


@dataclass(frozen=True)
class Sizes:
    """Widths of the modules and lengths of the calls."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    mamba: int
    state: int
    bert: int
    prefill: int
    repeats: int


FULL = Sizes(2560, 9728, 32, 8, 128, 768, 16, 768, 512, 30)
SMOKE = Sizes(24, 40, 2, 1, 8, 8, 4, 24, 6, 1)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"seed_{name}", ROOT / "patches" / name / "candidate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def perturbed(module: nn.Module, dtype: torch.dtype, device: torch.device) -> Any:
    """The module with norm weights and biases that are no longer trivial."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return module.eval().to(device=device, dtype=dtype)


class ExactNorm(nn.Module):
    """A norm in double precision; the library's classes work in float32 inside."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight.detach().double(), getattr(norm, "variance_epsilon", None) or norm.eps
        self.offset = 1.0 if type(norm).__name__.startswith("Gemma") else 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (self.weight + self.offset)


def exact_mixer(mixer: Any, x: torch.Tensor) -> torch.Tensor:
    """Output of a Mamba-1 mixer in double precision, step by step from the definition."""
    m, x = copy.deepcopy(mixer).double(), x.double()
    signal, gate = m.in_proj(x).chunk(2, dim=-1)
    padded = functional.pad(signal.transpose(1, 2), (m.conv1d.kernel_size[0] - 1, 0))
    u = functional.silu(functional.conv1d(padded, m.conv1d.weight, m.conv1d.bias, groups=m.conv1d.groups)).transpose(1, 2)
    rank, width = m.dt_proj.in_features, m.A_log.shape[1]
    steps, b, c = m.x_proj(u).split([rank, width, width], dim=-1)
    dt = functional.softplus(m.dt_proj(steps))
    rate = -m.A_log.exp()
    h = torch.zeros(x.shape[0], *m.A_log.shape, dtype=x.dtype, device=x.device)
    rows = []
    for t in range(x.shape[1]):
        h = torch.exp(dt[:, t, :, None] * rate) * h + (dt[:, t] * u[:, t])[..., None] * b[:, t, None, :]
        rows.append((h * c[:, t, None, :]).sum(-1))
    return m.out_proj((torch.stack(rows, dim=1) + u * m.D) * functional.silu(gate))


def norm_cases(sizes: Sizes, device: torch.device) -> list[Case]:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    length, cases = sizes.prefill, []
    shapes = {
        "decode b1": (1, 1, sizes.hidden),
        "decode b8": (8, 1, sizes.hidden),
        "prefill": (1, length, sizes.hidden),
        "prefill b4": (4, 2 * length, sizes.hidden),
    }
    heads = {"q_norm decode": (1, 1, sizes.heads, sizes.head), "q_norm prefill": (1, length, sizes.heads, sizes.head)}
    for kind, dtype in ((Qwen3RMSNorm, torch.bfloat16), (GemmaRMSNorm, torch.bfloat16), (Qwen3RMSNorm, torch.float32)):
        for label, shape in {**shapes, **heads}.items():
            module, x = perturbed(kind(shape[-1]), dtype, device), torch.randn(shape, device=device).to(dtype)
            exact = ExactNorm(module)
            timed = dtype == torch.bfloat16
            cases.append(
                Case(
                    "rms_norm",
                    f"{kind.__name__} {label}",
                    dtype,
                    module,
                    lambda x=x: ((x,), {}),
                    lambda e=exact, x=x: e(x.double()),
                    8,
                    timed,
                )
            )
    for dtype in (torch.bfloat16, torch.float32):
        for label, shape in {"1x128": (1, 128), "8x128": (8, 128), "32x512": (32, 512)}.items():
            shape = (shape[0], min(shape[1], 2 * length))
            module = perturbed(nn.LayerNorm(sizes.bert, eps=1e-12), dtype, device)
            x = torch.randn(*shape, sizes.bert, device=device).to(dtype)
            double = copy.deepcopy(module).double()
            cases.append(Case("layer_norm", label, dtype, module, lambda x=x: ((x,), {}), lambda e=double, x=x: e(x.double()), 1))
    return cases


def decoder_cases(sizes: Sizes, device: torch.device) -> list[Case]:
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding

    config = Qwen3Config(
        hidden_size=sizes.hidden,
        intermediate_size=sizes.inner,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head,
        num_hidden_layers=1,
    )
    config._attn_implementation = "sdpa"
    cases = []
    for dtype in (torch.bfloat16, torch.float32):
        mlp, layer = perturbed(Qwen3MLP(config), dtype, device), perturbed(Qwen3DecoderLayer(config, 0), dtype, device)
        exact_mlp, exact_layer = copy.deepcopy(mlp).double(), copy.deepcopy(layer).double()
        for owner in (exact_layer, exact_layer.self_attn):
            for name, child in list(owner.named_children()):
                if isinstance(child, Qwen3RMSNorm):
                    setattr(owner, name, ExactNorm(child))
        rotary = Qwen3RotaryEmbedding(config).to(device)
        for label, batch, length in (("decode b1", 1, 1), ("decode b8", 8, 1), ("prefill", 1, sizes.prefill)):
            x = torch.randn(batch, length, sizes.hidden, device=device).to(dtype)
            positions = torch.arange(length, device=device)[None]
            turns = rotary(x, positions)
            kwargs = {"attention_mask": None, "position_ids": positions, "position_embeddings": turns}
            doubled = {**kwargs, "position_embeddings": tuple(part.double() for part in turns)}
            timed = dtype == torch.bfloat16
            cases.append(Case("swiglu", label, dtype, mlp, lambda x=x: ((x,), {}), lambda e=exact_mlp, x=x: e(x.double()), 5, timed))
            call = lambda x=x, kwargs=kwargs: ((x,), dict(kwargs))  # noqa: E731
            exact = lambda e=exact_layer, x=x, kwargs=doubled: e(x.double(), **kwargs)  # noqa: E731
            cases.append(Case("residual_rms_norm", label, dtype, layer, call, exact, 60, timed))
            attention, exact_attention = layer.self_attn, exact_layer.self_attn
            call = lambda x=x, turns=turns: ((x, turns, None), {})  # noqa: E731
            exact = lambda e=exact_attention, x=x, kw=doubled: e(x.double(), kw["position_embeddings"], None)[0]  # noqa: E731
            cases.append(Case("qk_norm_rope", label, dtype, attention, call, exact, 30, timed))
    return cases


def mamba_cases(sizes: Sizes, device: torch.device) -> list[Case]:
    from transformers import DynamicCache, MambaConfig, MambaForCausalLM

    config = MambaConfig(hidden_size=sizes.mamba, state_size=sizes.state, num_hidden_layers=1, vocab_size=32)
    cases = []
    for dtype in (torch.bfloat16, torch.float32):
        mixer = perturbed(MambaForCausalLM(config), dtype, device).backbone.layers[0].mixer
        name = cache_name(mixer)

        def states(kwargs: dict[str, Any], name: str = name) -> list[torch.Tensor]:
            layer = kwargs[name].layers[0]
            return [layer.recurrent_states[0], layer.conv_states[0]]

        for label, batch, length in (("prefill 64", 1, 64), ("prefill 512", 1, 512), ("prefill 512 b4", 4, 512)):
            length = min(length, 2 * sizes.prefill)
            x = torch.randn(batch, length, sizes.mamba, device=device).to(dtype)
            call = lambda x=x, name=name: ((x,), {name: DynamicCache(config=config)})  # noqa: E731
            exact = lambda m=mixer, x=x: exact_mixer(m, x)  # noqa: E731
            for seed in ("selective_scan", "causal_conv1d_silu", "mamba_scan_torch"):
                timed = seed == "selective_scan" or (length > 64 and batch == 1)
                cases.append(Case(seed, label, dtype, mixer, call, exact, 6 * length, timed and dtype == torch.bfloat16, True, states))
        for label, batch in (("decode b1", 1), ("decode b8", 8)):
            x = torch.randn(batch, 9, sizes.mamba, device=device).to(dtype)
            filled = DynamicCache(config=config)
            with torch.no_grad():
                mixer(x[:, :8], **{name: filled})
            step = x[:, 8:].contiguous()
            call = lambda step=step, filled=filled, name=name: ((step,), {name: filled})  # noqa: E731
            exact = lambda m=mixer, x=x: exact_mixer(m, x)[:, 8:]  # noqa: E731
            for seed in ("selective_state_update", "mamba_update_torch"):
                cases.append(Case(seed, label, dtype, mixer, call, exact, 40, dtype == torch.bfloat16, False, states))
    return cases


def cache_name(mixer: Any) -> str:
    """Releases differ in what a mixer calls its cache: take the name from its code."""
    function = type(mixer).forward
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return "cache" if "cache" in names else "cache_params"


def patched(case: Case, seed: ModuleType, config: dict[str, Any]) -> Callable[..., Any]:
    prepared, module = seed.prepare(case.module, **config), case.module

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not seed.accepts(module, prepared, *args, **kwargs):
            raise RuntimeError("the seed declined the call")
        return seed.forward(module, prepared, *args, **kwargs)

    return forward


def called(case: Case, arguments: tuple[tuple[Any, ...], dict[str, Any]], forward: Callable[..., Any] | None) -> Any:
    """One call of the module with its own forward or with a patched one."""
    if forward is None:
        return case.module(*arguments[0], **arguments[1])
    case.module.forward = forward
    try:
        return case.module(*arguments[0], **arguments[1])
    finally:
        del case.module.forward


def checked(case: Case, forward: Callable[..., Any]) -> dict[str, Any]:
    """Error against double precision of result and states, for the patched and the original forward."""
    truth = case.exact()
    found = {}
    for who, how in (("original", None), ("seed", forward)):
        arguments = copy.deepcopy(case.call())
        result = called(case, arguments, how)
        found[who] = (result[0] if isinstance(result, tuple) else result, case.state(arguments[1]))  # attention adds its weights, or None
    errors = {who: relative(result, truth) for who, (result, _) in found.items()}
    result, expected = found["seed"][0], found["original"][0]
    states = [relative(mine, theirs) for mine, theirs in zip(found["seed"][1], found["original"][1], strict=True)]
    limit = 2.0 * errors["original"] + 4.0 * ROUNDING[case.dtype]
    alike = (result.shape, result.dtype, result.stride()) == (expected.shape, expected.dtype, expected.stride())
    right = alike and errors["seed"] <= limit and all(state <= 16 * ROUNDING[case.dtype] for state in states)
    return {"right": right, "alike": alike, "error": errors["seed"], "original_error": errors["original"], "state_difference": states}


def relative(got: torch.Tensor, truth: torch.Tensor) -> float:
    return ((got.double() - truth.double()).norm() / truth.double().norm()).item()


def timings(case: Case, forward: Callable[..., Any], repeats: int, cuda: bool) -> dict[str, float | None]:
    """Medians in ms of wall time and device time per call, the two forwards in turns (ABBA)."""
    arguments = case.call()
    many = max(1, min(repeats, 12_000 // case.launches))
    ways: dict[str, Callable[..., Any] | None] = {"original": None, "seed": forward}
    samples: dict[str, list[float]] = {f"{who}_{what}": [] for who in ways for what in ("wall_ms", "device_ms")}

    def once(how: Callable[..., Any] | None, count: int) -> None:
        for _ in range(count):
            called(case, case.call() if case.fresh else arguments, how)

    for who in ways:
        once(ways[who], 3 if case.launches < QUEUE_LAUNCHES else 1)
    synchronize(cuda)
    for order in (("original", "seed", "seed", "original"),) * (3 if cuda else 1):
        for who in order:
            start = time.perf_counter()
            once(ways[who], many)
            synchronize(cuda)
            samples[f"{who}_wall_ms"].append(1e3 * (time.perf_counter() - start) / many)
            if cuda:
                stepwise = who == "original" or case.seed.endswith("torch") or case.seed.startswith("causal")
                launches = case.launches if stepwise else min(case.launches, 40)
                samples[f"{who}_device_ms"].append(device_ms(lambda n, how=ways[who]: once(how, n), launches))
    return {key: statistics.median(values) if values else None for key, values in samples.items()}


def device_ms(run: Callable[[int], None], launches: int) -> float:
    """GPU time per call; where a few calls fit into the queue, it is filled behind a sleeping kernel first."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    count = max(1, min(20, QUEUE_LAUNCHES // max(launches, 1)))
    if launches <= QUEUE_LAUNCHES:
        torch.cuda._sleep(30_000_000)  # about 15 ms: longer than enqueuing takes
    start.record()
    run(count)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / count


def synchronize(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def run_case(case: Case, deadline: float, repeats: int, cuda: bool) -> list[dict[str, Any]]:
    seed = load(case.seed)
    rows = []
    matches = seed.matches(case.module)
    configs = getattr(seed, "CONFIGS", [{}])
    for config in configs if case.timed else configs[:1]:
        row: dict[str, Any] = {"seed": case.seed, "case": case.label, "dtype": str(case.dtype).removeprefix("torch."), "config": config}
        try:
            start = time.perf_counter()
            forward = patched(case, seed, config)
            row |= {"matches": matches, **checked(case, forward), "first_call_s": time.perf_counter() - start}
            if case.timed and time.monotonic() < deadline:
                row |= timings(case, forward, repeats, cuda)
        except Exception as error:
            row |= {"right": False, "failure": f"{type(error).__name__}: {error}"[:300]}
        rows.append(row)
        print(line(row), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    head = f"{row['seed']:<23}{row['case']:<27}{row['dtype']:<9}{json.dumps(row['config']):<52}{'ok ' if row['right'] else 'BAD'}"
    if "failure" in row:
        return f"{head} {row['failure']}"
    head += f" err {row['error']:.1e}/{row['original_error']:.1e}"
    for what in ("wall", "device"):
        before, after = row.get(f"original_{what}_ms"), row.get(f"seed_{what}_ms")
        if before and after:
            head += f"  {what} {before:.4f} -> {after:.4f} ms ({before / after:.2f}x)"
    return head if row["matches"] else f"{head}  does not match"


def main() -> None:
    parser = argparse.ArgumentParser(description="Check and time the seeds at the sizes of real models.")
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes on any device: checks the script itself")
    parser.add_argument("--only", default="", help="seeds whose name contains this")
    parser.add_argument("--budget-s", type=float, default=210.0, help="no timing starts after this many seconds")
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    if not cuda and not options.smoke:
        parser.error("there is no CUDA device here; --smoke checks the script itself")
    device, sizes = torch.device("cuda" if cuda else "cpu"), SMOKE if options.smoke else FULL
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    conditions = {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "sizes": "smoke" if options.smoke else "full",
    }
    print(conditions)
    deadline = time.monotonic() + options.budget_s
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for build in (mamba_cases, decoder_cases, norm_cases):
            for case in build(sizes, device):
                if options.only in case.seed:
                    rows += run_case(case, deadline, sizes.repeats, cuda)
                    options.out.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=1))
    wrong = [row for row in rows if not row["right"]]
    print(f"{len(rows)} rows, {len(wrong)} wrong, {time.monotonic() - deadline + options.budget_s:.0f} s")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
