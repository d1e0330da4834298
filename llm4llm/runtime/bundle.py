"""Decide whether a verified bundle fits a model on this machine, and put its patches on."""

import importlib
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .apply import Handle, PatchSpec, apply
from .observation import module_device
from .refusal import Refused
from .signature import qualified_name, root_fingerprint


class OpenBundle:
    """A bundle whose files were verified. `patch_folder` holds its candidate files as real files."""

    def __init__(self, manifest: dict[str, Any], patch_folder: Path) -> None:
        self.manifest = manifest
        self._folder = patch_folder

    def misfit(self, model: nn.Module) -> str | None:
        """None if the bundle was made for this model, else why not in one sentence."""
        known = self.manifest["models"]
        classes = sorted({entry["module_class"] for entry in known})
        if type(model).__name__ not in classes and qualified_name(type(model)) not in classes:
            return f"the bundle is for {', '.join(classes)}, this is a {type(model).__name__}"
        if root_fingerprint(model) not in {entry["fingerprint"] for entry in known}:
            return f"this {type(model).__name__} differs in configuration, dtype or shapes from the one that the bundle was made for"
        return None

    def apply(self, model: nn.Module) -> Handle:
        """Check machine, model and every site, then install. Raises Refused with the model untouched."""
        misfit = self.misfit(model)
        if misfit is not None:
            raise Refused("other_model", misfit)
        fingerprint = root_fingerprint(model)
        patches = [patch for patch in self.manifest["patches"] if patch["root_fingerprint"] == fingerprint]
        self._check_versions(model, patches)
        for patch in patches:
            self._check_devices(model, patch)
        return apply(model, [self._spec(patch) for patch in patches])

    def _spec(self, patch: dict[str, Any]) -> PatchSpec:
        return PatchSpec(
            name=patch["name"],
            file=self._folder / Path(patch["file"]).name,
            domain=patch["proven_domain"],
            paths=tuple(patch["paths"]),
            config=patch["config"],
            family=patch["family"],
            sha256=patch["sha256"],
        )

    def _check_versions(self, model: nn.Module, patches: list[dict[str, Any]]) -> None:
        made_with = self.manifest["environment"]
        _check_version("torch", made_with["torch"], torch.__version__)
        if any(patch["needs_triton"] for patch in patches):
            _check_version("triton", made_with.get("triton"), _installed("triton"))
        library = type(model).__module__.partition(".")[0]
        if library == "transformers":  # the model's own code: another release may compute something else under the same names
            _check_version(library, made_with.get(library), _installed(library))

    def _check_devices(self, model: nn.Module, patch: dict[str, Any]) -> None:
        wanted = set(patch["devices"])
        for path in patch["paths"]:
            try:
                device = module_device(model.get_submodule(path))
            except AttributeError:
                continue  # `apply` refuses missing sites with a better reason
            if device is None or not wanted:
                continue
            if device.type not in wanted:
                text = f"{path or 'the model'} is on {device.type}, patch {patch['name']} is for {', '.join(sorted(wanted))}"
                raise Refused("device", text)
            if device.type == "cuda":
                self._check_capability(device)

    def _check_capability(self, device: torch.device) -> None:
        wanted = self.manifest["environment"].get("gpu_capability")
        found = ".".join(map(str, torch.cuda.get_device_capability(device)))
        if wanted is not None and found != wanted:
            text = f"{device} has compute capability {found} ({torch.cuda.get_device_name(device)}), the bundle was proven on {wanted}"
            raise Refused("gpu_capability", text)


def _installed(package: str) -> str | None:
    if importlib.util.find_spec(package) is None:
        return None
    version = getattr(importlib.import_module(package), "__version__", None)
    return str(version) if version is not None else importlib.metadata.version(package)


def _check_version(package: str, wanted: str | None, found: str | None) -> None:
    """Only major and minor numbers count. Raises Refused."""
    if wanted is None:
        return
    if found is None:
        raise Refused(f"{package}_missing", f"{package} is not installed; the bundle was proven with {package} {wanted}")
    if _series(found) != _series(wanted):
        text = f"{package} here is {found}, the bundle was proven with {wanted} ({_series(wanted)}.x is needed)"
        raise Refused(f"{package}_version", text)


def _series(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])
