"""Rebuild a script's own modules from a task folder, without running the script.

The rebuilt modules take their original names in sys.modules, `__main__` included: pickles, `inspect.getsource` and everything else that
looks a class up by name then works in this process as it did in the script's.
"""

import hashlib
import io
import json
import sys
import types
from pathlib import Path
from typing import Any, NoReturn

import torch

from llm4llm.harness import pickling
from llm4llm.harness.definitions import FOLDER, INDEX_FILE, VALUES_FILE
from llm4llm.harness.script_source import ScriptSource, bound_names

_rebuilt: dict[str, "Rebuilt"] = {}  # by content, so that two tasks of one script share their classes
_replaced: list[types.ModuleType] = []  # a module that leaves sys.modules must live on: its functions still run


class CannotRebuild(Exception):
    """The definitions of a task are damaged or do not fit this environment; the message says what failed."""


class Absent:
    """Stands for a global of the script that could not be carried; any use of it says so."""

    def __init__(self, name: str, why: str) -> None:
        object.__setattr__(self, "_text", f"{name!r} of the script is not part of this task: {why}")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NameError(object.__getattribute__(self, "_text"))

    __getattr__ = __call__ = __getitem__ = __setitem__ = __iter__ = __len__ = __bool__ = __enter__ = __setattr__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = _refuse
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __index__ = __int__ = __float__ = __mro_entries__ = _refuse
    __hash__ = object.__hash__


class Rebuilt:
    """The rebuilt modules of one script, by original name."""

    def __init__(self, modules: dict[str, types.ModuleType]) -> None:
        self._modules = modules

    def module(self, name: str) -> types.ModuleType | None:
        return self._modules.get(name)


def rebuild(folder: Path) -> Rebuilt:
    """Rebuild what definitions.json lists; a second call for equal definitions gives the same classes. Raises CannotRebuild."""
    try:
        text = (folder / INDEX_FILE).read_text(encoding="utf-8")
        index: dict[str, dict[str, Any]] = json.loads(text)["modules"]
        parts = [text.encode(), (folder / FOLDER / VALUES_FILE).read_bytes()]
        sources = {name: (folder / entry["source"]).read_text(encoding="utf-8") for name, entry in index.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CannotRebuild(f"the definitions in {folder} can't be read ({error}); extract the task again") from error
    key = hashlib.sha256(b"\0".join([*parts, *(text.encode() for text in sources.values())])).hexdigest()
    if key not in _rebuilt:
        values = torch.load(folder / FOLDER / VALUES_FILE, weights_only=True)
        _rebuilt[key] = _Rebuilding(folder, index, sources, values).run()
    for name, entry in index.items():
        _put_in_sys_modules(name, _rebuilt[key].module(name), entry)
    return _rebuilt[key]


def _put_in_sys_modules(name: str, module: types.ModuleType | None, entry: dict[str, Any]) -> None:
    present = sys.modules.get(name)
    if module is None or present is module:
        return
    if present is not None:
        ours = name == "__main__" or getattr(present, "__llm4llm_rebuilt__", False)
        if not ours and getattr(present, "__file__", "") != entry["origin"]:
            return  # an unrelated module of this process, such as one of the standard library, keeps its name
        _replaced.append(present)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)


class _Rebuilding:
    def __init__(self, folder: Path, index: dict[str, Any], sources: dict[str, str], values: dict[str, dict[str, bytes]]) -> None:
        self._folder, self._index, self._sources = folder, index, sources
        self._modules = {name: self._empty(name) for name in index}
        self._waiting = {name: dict(values.get(name, {})) for name in index}
        self._rebuilt = Rebuilt(self._modules)
        self._finished: set[str] = set()

    def _empty(self, name: str) -> types.ModuleType:
        entry = self._index[name]
        module = types.ModuleType(name)
        path = str(self._folder / entry["source"])
        module.__dict__.update(__file__=path, __package__=entry["package"], __llm4llm_rebuilt__=True)
        if entry["is_package"]:
            module.__path__ = [str(Path(entry["origin"]).parent)]
        for missing, why in entry["missing"].items():
            setattr(module, missing, Absent(missing, why))
        return module

    def run(self) -> Rebuilt:
        for name, module in self._modules.items():  # imports between the script's modules must find each other
            _put_in_sys_modules(name, module, self._index[name])
        for name in self._modules:
            self._run_module(name)
        self._restore_values()
        for name, waiting in self._waiting.items():
            for key in waiting:
                setattr(self._modules[name], key, Absent(key, "a class that its value needs could not be rebuilt"))
        return self._rebuilt

    def _run_module(self, name: str) -> None:
        if name in self._finished:
            return
        self._finished.add(name)
        entry, module = self._index[name], self._modules[name]
        for required in entry["required"]:
            self._run_module(required)
        source = ScriptSource(self._sources[name], entry["origin"])
        self._restore_values()
        for statement in source.definitions_only(set(entry["definitions"]), set(entry["assigned"])):
            code = source.code([statement], str(module.__file__))
            try:
                exec(code, module.__dict__)
            except Exception as error:
                self._failed(module, statement, error)
            self._restore_values()

    def _failed(self, module: types.ModuleType, statement: Any, error: Exception) -> None:
        """A definition that fails may never be needed, so it is an absent name and no refusal of the whole task."""
        why = f"line {statement.lineno} of {module.__name__} fails when it runs again ({type(error).__name__}: {error})"
        for name in bound_names(statement):
            if name not in module.__dict__:
                setattr(module, name, Absent(name, why))

    def _restore_values(self) -> None:
        """Put back every value whose classes exist by now."""
        for name, waiting in self._waiting.items():
            for key in list(waiting):
                needs = self._index[name]["values"][key]
                if all(self._exists(home, what) for home, what in needs):
                    data = waiting.pop(key)
                    try:
                        setattr(self._modules[name], key, pickling.load(io.BytesIO(data), self._rebuilt, device=_device()))
                    except Exception as error:
                        setattr(self._modules[name], key, Absent(key, f"its value can't be read ({type(error).__name__}: {error})"))

    def _exists(self, home: str, what: str) -> bool:
        if home not in self._modules:
            return True
        return what == "*" or not isinstance(vars(self._modules[home]).get(what, Absent("", "")), Absent)


def _device() -> str | None:
    """Values of a GPU's script are read on a machine without one too; the module and its calls say where they must lie."""
    return None if torch.cuda.is_available() else "cpu"
