"""The callable that stands in for a module's forward and chooses between patches and the original."""

import copy
import inspect
import logging
import operator
import threading
import types
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .effects import Copies, Marks
from .guard import Guard
from .refusal import PatchFailed

_ABSENT = object()
_REPLICATE = "_replicate_for_data_parallel"
_log = logging.getLogger("llm4llm")


@dataclass
class Patch:
    """What all sites of one patch share."""

    name: str
    candidate: types.ModuleType
    has_effects: bool  # the original may change something: mark before every call
    writes_unseen: bool  # it may do so from a Triton kernel, which no version counter notices
    disabled: str | None = None  # why, once a call raised


@dataclass
class Site:
    """One patch on one module, with its counters. Counters change under the lock."""

    patch: Patch
    path: str
    guard: Guard
    unchanged: Callable[[], bool]
    state: Any
    accepts: Callable[..., bool] | None
    cuda_index: int | None
    layer: int | None
    buffers: list[tuple[dict[str, Any], str]]
    hits: int = 0
    fallbacks: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    warm: bool = False  # a call has succeeded here
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refusal(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Reason code why this call is not for the patch; None if it is."""
        if self.patch.disabled is not None:
            return "disabled"
        reason = self.guard(args, kwargs)
        if reason is not None:
            return reason
        if not self.unchanged():
            return "weights_changed"
        if self.accepts is not None and not self.accepts(module, self.state, *args, **kwargs):
            return "declined"
        return None

    def marks(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Marks:
        marks = Marks(self.layer)
        marks.add_module(module, self.buffers)
        marks.add_call(args, kwargs)
        return marks

    def count_fallback(self, reason: str) -> None:
        with self.lock:
            self.fallbacks += 1
            self.reasons[reason] += 1


class Dispatcher:
    """Lies in a module's `__dict__` under "forward", or under "_old_forward" beneath accelerate's device hook.

    Copies and pickles of the module get what was there before, bound to the copy: a patch never leaves the instance that it was put on.
    It refers to its module weakly, so that a patched model is freed like any other.
    """

    def __init__(self, module: nn.Module, sites: list[Site]) -> None:
        self._owner: Callable[[], Any] = weakref.ref(module)
        self.sites = tuple(sites)
        self._live: tuple[Site, ...] = ()
        self._key = "forward"
        self._previous: Any = _ABSENT
        self._inside: set[int] = set()  # threads that run a patch of this module right now
        self._cuda = any(site.cuda_index is not None for site in sites)
        forward = module.forward
        self.__signature__ = inspect.signature(forward)  # generate() asks a model's forward for its parameters
        self.__name__ = getattr(forward, "__name__", "forward")
        self.__doc__ = getattr(forward, "__doc__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
            return self.original(*args, **kwargs)
        sites, module = self._live, self._owner()
        if not sites or module is None:
            return self.original(*args, **kwargs)
        reason = None
        if threading.get_ident() in self._inside:
            reason = "reentrant"
        elif self._cuda and torch.cuda.is_current_stream_capturing():
            reason = "capturing"
        if reason is None:
            refusals = []
            for site in sites:
                try:
                    refusal = site.refusal(module, args, kwargs)
                except Exception as error:
                    site.patch.disabled = refusal = _told(site, "deciding about a call", error)
                    refusal = "exception"
                if refusal is None:
                    return self._patched(site, module, args, kwargs)
                refusals.append(refusal)
        else:
            refusals = [reason] * len(sites)
        for site, refusal in zip(sites, refusals, strict=True):
            site.count_fallback(refusal)
        return self.original(*args, **kwargs)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """What would run without the patches."""
        if self._previous is not _ABSENT:
            return self._previous(*args, **kwargs)
        module = self._owner()
        return type(module).forward(module, *args, **kwargs)

    def _patched(self, site: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        patch, marks, copies = site.patch, None, None
        if not site.warm:
            marks = site.marks(module, args, kwargs)
            copies = Copies.of(marks)
        elif patch.has_effects and not patch.writes_unseen:
            marks = site.marks(module, args, kwargs)
        thread = threading.get_ident()
        self._inside.add(thread)
        try:
            index = site.cuda_index
            if index is None or torch.cuda.current_device() == index:
                result = patch.candidate.forward(module, site.state, *args, **kwargs)
            else:
                with torch.cuda.device(index):
                    result = patch.candidate.forward(module, site.state, *args, **kwargs)
        except PatchFailed:
            raise
        except Exception as error:
            self._inside.discard(thread)
            self._settle(site, marks, copies, error)
            return self.original(*args, **kwargs)
        finally:
            self._inside.discard(thread)
        site.warm = True
        with site.lock:
            site.hits += 1
        return result

    def _settle(self, site: Site, marks: Marks | None, copies: Copies | None, error: Exception) -> None:
        """Make it right to run the original after a patch raised, or raise PatchFailed where that can't be done."""
        site.patch.disabled = _told(site, "its forward", error)
        site.count_fallback("exception")
        if copies is not None:
            copies.put_back()
        elif site.patch.writes_unseen or (marks is not None and (marks.changed() or marks.uncounted())):
            raise PatchFailed(
                f"patch {site.patch.name} at {site.path or 'the root'} raised {type(error).__name__}: {error}; the state that it works on "
                "may already have been changed, so the original can't take over. The patch is now disabled: repeat the whole call."
            ) from error

    def install(self) -> None:
        """Take the place of the module's forward, as it is now."""
        module = self._owner()
        if module is None:
            return
        own = vars(module)
        self._key = "_old_forward" if "_old_forward" in own and "forward" in own else "forward"
        self._previous = own.get(self._key, _ABSENT)
        self._live = self.sites
        own[self._key] = self
        own[_REPLICATE] = _Replicate(self)

    def uninstall(self) -> None:
        """Put back what was there. Where somebody wrapped this dispatcher meanwhile, it stays inside and only calls the original."""
        self._live = ()
        module = self._owner()
        if module is None:
            return
        own = vars(module)
        if isinstance(own.get(_REPLICATE), _Replicate):
            del own[_REPLICATE]
        for key in ("forward", "_old_forward"):
            if own.get(key) is self:
                self._put_back(module, own, key)

    def _put_back(self, module: nn.Module, own: dict[str, Any], key: str) -> None:
        if self._previous is not _ABSENT:
            own[key] = self._previous
        elif key == self._key:
            del own[key]
        else:  # a device hook was put around the patch: it needs something to call
            own[key] = types.MethodType(type(module).forward, module)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self._previous is not _ABSENT:
            return copy.deepcopy(self._previous, memo)
        module = self._owner()
        twin = memo.get(id(module), module)
        return types.MethodType(type(twin).forward, twin)

    def __reduce__(self) -> Any:
        if self._previous is not _ABSENT:
            return operator.getitem, ((self._previous,), 0)
        return getattr, (self._owner(), "forward")


class _Replicate:
    """Stands in for a module's `_replicate_for_data_parallel`: replicas share its dict but not its weights, so they go without patches."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def __call__(self) -> nn.Module:
        dispatcher = self._dispatcher
        module = dispatcher._owner()
        assert module is not None
        replica: nn.Module = type(module)._replicate_for_data_parallel(module)
        own = vars(replica)
        own.pop(_REPLICATE, None)
        if own.get(dispatcher._key) is dispatcher:
            dispatcher._put_back(replica, own, dispatcher._key)
        return replica

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = self._dispatcher._owner()
        twin = memo.get(id(module), module)
        return types.MethodType(type(twin)._replicate_for_data_parallel, twin)

    def __reduce__(self) -> Any:
        return getattr, (self._dispatcher._owner(), _REPLICATE)


def _told(site: Site, doing: str, error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"[:400]
    _log.warning("patch %s at %s is disabled: %s raised %s", site.patch.name, site.path or "the root", doing, text)
    return text
