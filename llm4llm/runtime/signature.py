"""What a module is, as a hash: two modules with equal signatures compute the same function of inputs and weights."""

from torch import nn


def family_signature(module: nn.Module) -> str:
    """sha256 (hex) over class, plain attributes, configuration, parameter shapes and the submodules' own signatures."""
    raise NotImplementedError


def root_fingerprint(model: nn.Module) -> str:
    """sha256 (hex) over the whole tree; equal for two loads of one model, independent of the weights' values and devices."""
    raise NotImplementedError


def family_signatures(model: nn.Module) -> dict[str, str]:
    """Path below the model ("" is the model itself) → family signature, in one pass."""
    raise NotImplementedError


def configuration_hash(model: nn.Module) -> str | None:
    """sha256 (hex) of the model's configuration object; None if it has none."""
    raise NotImplementedError


def layer_index(module: nn.Module) -> int | None:
    """The number that a module carries among its siblings (layer_idx and the like), its own or the only one below it."""
    raise NotImplementedError
