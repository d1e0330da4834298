"""Why a driver call can't be replayed although it was seen, with what its owner can do about it."""

import torch
from torch import nn

from llm4llm.harness.workload import Reason

TRAINING = "training_mode"
NOT_STORED = Reason("not_stored", "its inputs were not stored: it looked like a kind of call that was seen often before; run fewer calls")

MANY_KINDS = Reason("many_kinds", "it stands for all kinds of calls beyond those that are told apart; run fewer sizes of inputs")


def of_root(module: nn.Module, *, offloaded: bool) -> Reason | None:
    """The refusal that holds for every call into this module now; None if nothing speaks against it. Cheap: asked on every call."""
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        return Reason("scripted", f"{name} is a TorchScript module whose inside can't be replaced; pass the Python model itself")
    if is_compiled(module):
        return Reason("compiled", f"{name} runs through torch.compile, which leaves no module calls to replace; run the script without it")
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)) or type(module).__module__.startswith(
        "torch.distributed"
    ):
        return Reason("data_parallel", f"{name} spreads a model over devices; call the wrapped model itself on one device")
    if offloaded:
        return Reason(
            "offloaded", f"{name} has weights that are loaded only while they are used; choose a device that holds the whole model"
        )
    if module.training:
        return Reason(
            "training_mode", f"{name} is in training mode, where dropout and statistics change with every call; call model.eval()"
        )
    return None


def is_offloaded(module: nn.Module) -> bool:
    """True if some weights are not there at all while nobody uses them."""
    return any(item.device.type == "meta" for item in (*module.parameters(), *module.buffers()))


def is_compiled(module: nn.Module) -> bool:
    """True for torch.compile(model) and after model.compile()."""
    wrapper = type(module).__name__ == "OptimizedModule" and type(module).__module__.startswith("torch._dynamo")
    return wrapper or getattr(module, "_compiled_call_impl", None) is not None


def not_replayable(error: Exception) -> Reason:
    return Reason("not_replayable", f"its inputs can't be copied: {error}")


def too_large(error: Exception) -> Reason:
    return Reason("too_large", f"{error}; use smaller inputs or a machine with more memory")
