"""Put patches on a live model, and take them off again."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from .candidate import load_candidate
from .dispatch import Dispatcher, Patch, Site
from .domain import DOMAIN_VERSION, compile_guard
from .observation import module_device
from .refusal import Refused
from .signature import family_signatures, layer_index
from .weights import ReadTensors, weights_watch


@dataclass(frozen=True)
class PatchSpec:
    """A candidate, its proven domain and the module paths that it goes to. Several specs may name one path (prefill and decode)."""

    name: str
    file: Path
    domain: dict[str, Any]
    paths: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    family: str | None = None  # checked against every site when given
    sha256: str | None = None  # checked against the file when given


class Handle:
    """Patches on one model. Nothing in here keeps the model alive."""

    def __init__(self, dispatchers: list[Dispatcher], sites: list[Site]) -> None:
        self._dispatchers, self._sites = dispatchers, sites
        self._enabled = False

    @property
    def enabled(self) -> bool:
        return self._enabled

    def enable(self) -> None:
        """Install the prepared dispatchers (again); microseconds a site, nothing is prepared anew."""
        if self._enabled:
            return
        self._enabled = True
        try:
            for dispatcher in self._dispatchers:
                dispatcher.install()
        except BaseException:
            self.disable()
            raise

    def disable(self) -> None:
        """Uninstall: every module's dict is exactly as before `apply`; prepared state is kept for `enable`."""
        if self._enabled:
            self._enabled = False
            for dispatcher in reversed(self._dispatchers):
                dispatcher.uninstall()

    def remove(self) -> None:
        """Uninstall and drop all prepared state; counters stay readable. Idempotent."""
        self.disable()
        self._dispatchers = []
        for site in self._sites:
            site.state = None

    def status(self) -> dict[str, Any]:
        """{"enabled", "sites": [{"patch", "path", "hits", "fallbacks", "fallback_reasons": {code: count}, "disabled": text|None}]}."""
        rows = []
        for site in self._sites:
            with site.lock:
                row = {"hits": site.hits, "fallbacks": site.fallbacks, "fallback_reasons": dict(site.reasons)}
            rows.append({"patch": site.patch.name, "path": site.path, **row, "disabled": site.patch.disabled})
        return {"enabled": self._enabled, "sites": rows}

    def reset_counters(self) -> None:
        """Set hits and fallbacks of every site to zero."""
        for site in self._sites:
            with site.lock:
                site.hits, site.fallbacks, site.reasons = 0, 0, Counter()


def apply(model: nn.Module, patches: Sequence[PatchSpec]) -> Handle:
    """Verify every site, prepare all, then install. Raises Refused (or what a candidate's `prepare` raised) with the model untouched."""
    targets = _verified(model, patches)
    by_module: dict[int, list[Site]] = {}
    modules: dict[int, nn.Module] = {}
    sites: list[Site] = []
    shared: dict[int, Patch] = {}
    for spec, candidate, path, module in targets:
        patch = shared.setdefault(id(spec), _patch(spec, candidate))
        site = _prepared(spec, patch, path, module)
        sites.append(site)
        modules[id(module)] = module
        by_module.setdefault(id(module), []).append(site)
    handle = Handle([Dispatcher(modules[key], found) for key, found in by_module.items()], sites)
    handle.enable()
    return handle


def _verified(model: nn.Module, patches: Sequence[PatchSpec]) -> list[tuple[PatchSpec, ModuleType, str, nn.Module]]:
    signatures = family_signatures(model) if any(spec.family is not None for spec in patches) else {}
    targets = []
    for spec in patches:
        if spec.domain.get("schema_version") != DOMAIN_VERSION or not spec.domain.get("alternatives"):
            raise Refused("domain_unusable", f"patch {spec.name} names no proven domain that this version can read")
        found = []
        for path in spec.paths:
            module = _site_module(model, spec, path)
            if spec.family is not None and signatures[path] != spec.family:
                text = f"{path or 'the root'} ({type(module).__qualname__}) is not the module that patch {spec.name} was made for"
                raise Refused("other_module", text)
            found.append((path, module))
        candidate = load_candidate(spec.file, spec.sha256)
        targets += [(spec, candidate, path, module) for path, module in found]
    return targets


def _site_module(model: nn.Module, spec: PatchSpec, path: str) -> nn.Module:
    try:
        module = model.get_submodule(path)
    except AttributeError:
        raise Refused("no_such_module", f"patch {spec.name} is for {path}, which this {type(model).__qualname__} does not have") from None
    where = path or "the root"
    if isinstance(module, torch.jit.ScriptModule):
        raise Refused("scripted", f"{where} is a TorchScript module; its forward can't be replaced")
    if any(isinstance(vars(module).get(key), Dispatcher) for key in ("forward", "_old_forward")):
        raise Refused("already_patched", f"{where} already carries patches; remove those first")
    if any(tensor.is_meta for tensor in module.parameters()):
        raise Refused("weights_absent", f"{where} has weights that are not in memory (meta device, offloading); a patch can't read them")
    return module


def _patch(spec: PatchSpec, candidate: ModuleType) -> Patch:
    effects = spec.domain.get("effects")
    with_objects = any(fact["kind"] == "object" for one in spec.domain["alternatives"] for _, fact in one["slots"])
    has_effects = effects is not False
    return Patch(spec.name, candidate, has_effects, has_effects and (effects is True or with_objects) and hasattr(candidate, "triton"))


def _prepared(spec: PatchSpec, patch: Patch, path: str, module: nn.Module) -> Site:
    device = module_device(module)
    cuda_index = device.index if device is not None and device.type == "cuda" else None
    prepare = getattr(patch.candidate, "prepare", None)
    state, read = None, frozenset[int]()
    if prepare is not None:
        reads, before, unchanged = ReadTensors(), list(vars(module).items()), weights_watch(module)
        on_device = torch.cuda.device(cuda_index) if cuda_index is not None else contextlib.nullcontext()
        # outside inference mode: state that is made in it could never be written in place by a call made without it
        with torch.inference_mode(False), torch.no_grad(), on_device, reads:
            state = prepare(module, **spec.config)
        read = frozenset(reads.storages)
        now = list(vars(module).items())
        same = len(now) == len(before) and all(key == was and value is old for (key, value), (was, old) in zip(now, before))
        if not same or not unchanged():
            vars(module).clear()
            vars(module).update(before)
            raise Refused("prepare_changed_module", f"patch {spec.name} changed {path or 'the root'} while preparing, which it must not")
    return Site(
        patch=patch,
        path=path,
        guard=compile_guard(spec.domain, module),
        unchanged=weights_watch(module, read),
        state=state,
        accepts=getattr(patch.candidate, "accepts", None),
        cuda_index=cuda_index,
        layer=layer_index(module),
        buffers=[(part._buffers, name) for part in module.modules() for name in part._buffers],
    )
