"""Definitions of a script's own modules, carried so that another process can rebuild its classes without running the script.

`Carried` collects what pickles name. `write` follows each name through the source: definitions and imports are kept as source, other
globals by their live value, each pickled on its own. `rebuild` runs the kept statements in the file's order and puts each value back as
soon as the classes that its pickle names exist.
"""

import functools
import importlib.util
import inspect
import io
import json
import site
import sys
import sysconfig
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from llm4llm.harness import pickling
from llm4llm.harness.pickling import NotCarried
from llm4llm.harness.script_source import Bindings, ImportedName, ScriptSource, defines_by_assignment

INDEX_FILE, FOLDER, VALUES_FILE = "definitions.json", "definitions", "values.pt"
VALUE_BYTES = 64 << 20  # one global of a script; weights belong to modules, not to globals
BUILTINS = frozenset(dir(__import__("builtins")))


def class_source(kind: type) -> str:
    """Source text of a class; a comment line where there is none."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError) as error:
        return f"# the source of {kind.__module__}.{kind.__qualname__} is not available: {error}\n"


@functools.cache
def installed_folders() -> tuple[Path, ...]:
    """Folders of the standard library and of installed packages, editable ones too: what lies there is imported in any process."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [Path(sysconfig.get_paths()[name]) for name in names]
    found += [Path(one) for one in [*site.getsitepackages(), site.getusersitepackages()]]
    found.append(Path(torch.__file__).parents[1])
    for folder in list(found):
        for listing in sorted(folder.glob("*.pth")):
            lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
            found += [Path(line) for line in lines if line.startswith(("/", "\\")) and Path(line).is_dir()]
    return tuple(dict.fromkeys(folder.resolve() for folder in found))


def _has_editable_finder(name: str) -> bool:
    """True for packages that an editable install finds by a table of its own and not by a folder."""
    homes = (sys.modules.get(getattr(finder, "__module__", None) or "") for finder in sys.meta_path)
    return any(name.partition(".")[0] in getattr(home, "MAPPING", {}) for home in homes)


def script_folder() -> Path | None:
    """Where the script lies that runs as __main__."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(main).resolve().parent if main else None


def is_carried(name: str, beside: Path | None) -> bool:
    """True for __main__ and for modules that lie in the script's folder, outside installed packages."""
    if name == "__main__":
        return True
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is None or beside is None or not str(path).endswith(".py") or name.partition(".")[0] == "llm4llm" or _has_editable_finder(name):
        return False
    resolved = Path(path).resolve()
    return resolved.is_relative_to(beside) and not any(resolved.is_relative_to(folder) for folder in installed_folders())


@dataclass
class Module:
    """What is carried of one module of the script."""

    source: ScriptSource
    live: dict[str, Any]
    definitions: set[str] = field(default_factory=set)  # functions, classes and imports, by name
    assigned: set[str] = field(default_factory=set)  # names whose assignment makes a function or class
    values: dict[str, tuple[bytes, list[tuple[str, str]]]] = field(default_factory=dict)  # pickle, and the definitions that it names
    missing: dict[str, str] = field(default_factory=dict)  # name → why it could not be carried
    required: list[str] = field(default_factory=list)  # modules that must be rebuilt before this one


class Carried:
    """The definitions that pickles of one task name: (module, top-level name)."""

    def __init__(self, beside: Path | None = None) -> None:
        self.beside = beside or script_folder()
        self.names: list[tuple[str, str]] = []

    def note(self, thing: type | types.FunctionType | types.ModuleType) -> None:
        """Remember what another process will need. Raises NotCarried for local classes, lambdas and names that were bound anew."""
        if isinstance(thing, types.ModuleType):
            if is_carried(thing.__name__, self.beside):
                self._add(thing.__name__, "*")
            return
        home, name = thing.__module__, thing.__qualname__
        what = "class" if isinstance(thing, type) else "function"
        if "<lambda>" in name:
            place = f"{thing.__code__.co_filename}:{thing.__code__.co_firstlineno}" if isinstance(thing, types.FunctionType) else home
            raise NotCarried(f"a lambda at {place} can't be rebuilt in another process; write it as a function at the top of a module")
        if "<locals>" in name:
            raise NotCarried(f"the {what} {name} of {home} is defined inside a function; define it at the top of its module")
        if not is_carried(home, self.beside):
            return
        found: Any = sys.modules.get(home)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not thing:
            raise NotCarried(f"{home}.{name} names something else by now, so the {what} can't be found again in another process")
        self._add(home, name.partition(".")[0])

    def _add(self, module: str, name: str) -> None:
        if (module, name) not in self.names:
            self.names.append((module, name))


class _Closure:
    """Everything that a set of definitions needs, over all modules of the script."""

    def __init__(self, beside: Path | None) -> None:
        self.beside = beside
        self.modules: dict[str, Module] = {}
        self._done: set[tuple[str, str]] = set()
        self._pending: list[tuple[str, str]] = []

    def add(self, names: list[tuple[str, str]]) -> None:
        self._pending.extend(names)
        while self._pending:
            module, name = self._pending.pop(0)
            if (module, name) not in self._done:
                self._done.add((module, name))
                self._follow(module, name)

    def _module(self, name: str) -> Module:
        if name not in self.modules:
            live = sys.modules.get(name)
            path = getattr(live, "__file__", None)
            if live is None or path is None:
                raise NotCarried(f"the module {name} has no source file, so its classes can't be rebuilt in another process")
            try:
                text = Path(path).read_text(encoding="utf-8")
                self.modules[name] = Module(ScriptSource(text, str(path)), vars(live))
            except (OSError, SyntaxError, ValueError) as error:
                raise NotCarried(f"the source of the module {name} can't be read from {path} ({error})") from error
            parent = name.rpartition(".")[0]
            if parent and is_carried(parent, self.beside):
                self._module(parent)
                self.modules[name].required.append(parent)
        return self.modules[name]

    def _follow(self, module_name: str, name: str) -> None:
        module = self._module(module_name)
        if name == "*":
            bound = [key for key, one in module.source.bindings.items() if one.definitions or one.imports]
            self._pending.extend((module_name, key) for key in bound if key != "*")
            return
        bindings = module.source.bindings.get(name, Bindings())
        if bindings.definitions and self._is_own(module_name, name, bindings):
            module.definitions.add(name)
            for statement in bindings.definitions:
                self._follow_uses(module_name, module.source.used(statement))
        elif bindings.imports and not (bindings.assignments and _is_constant(module.live.get(name))):
            module.definitions.add(name)
            for one in bindings.imports:
                self._follow_import(module_name, one)
        elif name in module.live and not (name.startswith("__") and name.endswith("__")):
            self._follow_value(module_name, name, bindings)
        elif name not in BUILTINS:
            for one in module.source.star_imports:
                module.definitions.add("*")
                self._follow_import(module_name, one)

    def _is_own(self, module_name: str, name: str, bindings: Bindings) -> bool:
        """False if a name was defined and then bound to something that its definition does not make."""
        live = self._module(module_name).live.get(name)
        if not bindings.assignments:
            return True
        return isinstance(live, (type, types.FunctionType)) and (live.__module__, live.__qualname__) == (module_name, name)

    def _follow_uses(self, module_name: str, used: tuple[set[str], set[ImportedName]]) -> None:
        names, nested = used
        self._pending.extend((module_name, name) for name in sorted(names))
        for one in sorted(nested, key=lambda item: (item.module, item.name)):
            self._follow_import(module_name, one)

    def _follow_import(self, module_name: str, one: ImportedName) -> None:
        package = self._module(module_name).live.get("__package__") or ""
        try:
            target = importlib.util.resolve_name("." * one.level + one.module, package) if one.level else one.module
        except ImportError:
            return
        inner = f"{target}.{one.attribute}"
        if one.attribute is not None and inner in sys.modules and is_carried(inner, self.beside):
            self._require(module_name, inner, sorted(self._module(module_name).source.attributes_of(one.name)))
        elif is_carried(target, self.beside) and target in sys.modules and target != "__main__":
            attributes = self._module(module_name).source.attributes_of(one.name)
            self._require(module_name, target, sorted(attributes) if one.attribute is None else [one.attribute])

    def _require(self, module_name: str, target: str, names: list[str]) -> None:
        self._module(target)
        if target not in self._module(module_name).required and target != module_name:
            self._module(module_name).required.append(target)
        self._pending.extend((target, name) for name in names)

    def _follow_value(self, module_name: str, name: str, bindings: Bindings) -> None:
        module = self._module(module_name)
        live = module.live[name]
        made_here = isinstance(live, (type, types.FunctionType)) and live.__module__ == module_name
        if made_here and any(defines_by_assignment(one) for one in bindings.assignments):
            module.assigned.add(name)
            for statement in bindings.assignments:
                self._follow_uses(module_name, module.source.used(statement))
            return
        try:
            module.values[name] = self._pickled(live)
        except NotCarried as error:
            module.missing[name] = str(error)

    def _pickled(self, live: Any) -> tuple[bytes, list[tuple[str, str]]]:
        named, stream = Carried(self.beside), io.BytesIO()
        size = sum(tensor.untyped_storage().nbytes() for tensor in _quick_tensors(live))
        if size <= VALUE_BYTES:
            pickling.save(live, stream, named)
            size = stream.tell()
        if size > VALUE_BYTES:
            raise NotCarried(f"its value takes {size >> 20} MiB")
        self._pending.extend(named.names)
        return stream.getvalue(), named.names


def _is_constant(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _quick_tensors(value: Any) -> list[torch.Tensor]:
    """Tensors at first sight, so that a whole model among the globals is not pickled only to be thrown away."""
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _quick_tensors(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def write(folder: Path, carried: Carried) -> None:
    """Write definitions.json and definitions/ for all that was noted. Raises NotCarried if a noted module has no source."""
    closure = _Closure(carried.beside)
    closure.add(carried.names)
    (folder / FOLDER).mkdir(exist_ok=True)
    index: dict[str, Any] = {}
    values: dict[str, dict[str, bytes]] = {}
    for name, module in sorted(closure.modules.items()):
        (folder / FOLDER / f"{name}.py").write_text(module.source.text, encoding="utf-8")
        values[name] = {key: data for key, (data, _) in module.values.items()}
        index[name] = {
            "source": f"{FOLDER}/{name}.py",
            "origin": module.source.filename,
            "package": module.live.get("__package__"),
            "is_package": "__path__" in module.live,
            "definitions": sorted(module.definitions),
            "assigned": sorted(module.assigned),
            "values": {key: [list(one) for one in needs] for key, (_, needs) in module.values.items()},
            "missing": module.missing,
            "required": module.required,
        }
    torch.save(values, folder / FOLDER / VALUES_FILE)
    (folder / INDEX_FILE).write_text(json.dumps({"modules": index}, indent=1, sort_keys=True), encoding="utf-8")
