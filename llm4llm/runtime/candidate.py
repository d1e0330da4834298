"""Load a candidate file as a module."""

import hashlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from .refusal import Refused


def load_candidate(path: Path | str, sha256: str | None = None) -> ModuleType:
    """The file's module under a name made from its content hash; equal content is loaded once per process.

    The file must stay on disk: Triton reads kernels' source from it. Raises Refused if the content is not `sha256` or lacks `forward`;
    whatever the file raises on import passes through.
    """
    path = Path(path).resolve()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Refused("candidate_missing", f"candidate file {path} can't be read: {error.strerror}") from error
    found = hashlib.sha256(content).hexdigest()
    if sha256 is not None and found != sha256:
        raise Refused("candidate_altered", f"candidate file {path} has sha256 {found[:12]}…, expected {sha256[:12]}…")
    name = f"_candidate_{found}"
    known = sys.modules.get(name)
    if known is not None and Path(str(known.__file__)).is_file():
        return known
    module = _executed(name, path, content)
    if not callable(getattr(module, "forward", None)):
        sys.modules.pop(name, None)
        raise Refused("candidate_contract", f"candidate file {path} defines no forward(module, state, *args, **kwargs)")
    return module


class _ExactLoader(SourceFileLoader):
    """Executes the bytes that were hashed, never a cached compilation that somebody may have put beside the file."""

    def __init__(self, name: str, path: Path, content: bytes) -> None:
        super().__init__(name, str(path))
        self._content = content

    def get_code(self, fullname: str) -> CodeType | None:
        return compile(self._content, self.path, "exec", dont_inherit=True)


def _executed(name: str, path: Path, content: bytes) -> ModuleType:
    loader = _ExactLoader(name, path, content)
    spec = ModuleSpec(name, loader, origin=str(path))
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before execution: dataclasses and pickling look the module up by name
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
