"""The static gate on a candidate's source: its shape, and what it must not reach for.

It reads syntax, so words in comments, docstrings and local names mean nothing to it. It is no sandbox: it catches honest mistakes and
plain attempts with a reason that an author can act on; what hides from it still runs in a process that holds nothing worth reaching.
"""

import ast
import inspect
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llm4llm.harness import contract_names as names
from llm4llm.harness.contract_imports import ImportTime
from llm4llm.harness.contract_scope import Scopes, Violation, folded_text, is_main_guard

MAX_BYTES = 256 << 10
MOST_CONFIGS = 64  # listed; how many are tried is for the judge to say
FUNCTIONS = {"forward": ("module", "state"), "prepare": ("module",), "accepts": ("module", "state"), "matches": ("module",)}
_FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

__all__ = ["Entries", "Violation", "check_loaded", "check_source"]


@dataclass(frozen=True)
class Entries:
    """What a loaded candidate offers. `configs` is never empty: without CONFIGS it is one empty configuration."""

    forward: inspect.Signature | None
    prepare: inspect.Signature | None
    accepts: inspect.Signature | None
    matches: inspect.Signature | None
    configs: list[dict[str, Any]]
    violations: list[Violation]


def check_source(text: str) -> list[Violation]:
    """Violations of the contract in a candidate's source, in the order of lines; an empty list means that it may be loaded."""
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        return [Violation("too_long", 1, f"the file has more than {MAX_BYTES >> 10} KiB; a candidate is one short file")]
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [Violation("syntax_error", error.lineno or 1, f"line {error.lineno or 1}: {error.msg}")]
    except (ValueError, RecursionError, MemoryError) as error:
        return [Violation("syntax_error", 1, f"the file can't be parsed: {error or type(error).__name__}")]
    scopes = Scopes(tree)
    try:
        walker = _Walker(scopes)
        walker.visit(tree)
        found = [*walker.found, *ImportTime(scopes).check(tree), *_check_entries(tree)]
    except RecursionError:
        return [Violation("syntax_error", 1, "expressions in this file are nested too deeply to be checked")]
    return sorted(dict.fromkeys(found), key=lambda one: (one.line, one.rule))


class _Walker(ast.NodeVisitor):
    """Names, attributes and imports that are forbidden wherever they stand."""

    def __init__(self, scopes: Scopes) -> None:
        self.scopes = scopes
        self.found: list[Violation] = []

    def _add(self, rule: str, node: ast.AST, text: str) -> None:
        line = getattr(node, "lineno", 1)
        self.found.append(Violation(rule, line, f"line {line}: {text}"))

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, _FUNCTION_NODES):
            self._visit_function(node)
        else:
            super().generic_visit(node)

    def _visit_function(self, node: ast.AST) -> None:
        """Decorators, defaults and annotations belong to the scope around a function."""
        inner = node.body if isinstance(node, _FUNCTION_NODES) else []
        body = inner if isinstance(inner, list) else [inner]
        for child in ast.iter_child_nodes(node):
            if child not in body:
                self.visit(child)
        with self.scopes.inside(node):
            for child in body:
                self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        for one in node.names:
            self._check_import(node, one.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level:
            self._add("import_not_allowed", node, "relative imports find nothing: a candidate is one file")
            return
        for one in node.names:
            if one.name == "*":
                self._add("import_not_allowed", node, f"`from {node.module} import *` hides what is used; import names")
            self._check_import(node, f"{node.module}.{one.name}")

    def _check_import(self, node: ast.AST, dotted: str) -> None:
        root = dotted.partition(".")[0]
        if root not in names.ALLOWED_MODULES:
            self._add("import_not_allowed", node, f"{root} may not be imported; allowed are {', '.join(sorted(names.ALLOWED_MODULES))}")
        elif (reason := _forbidden_part(dotted)) is not None:
            self._add("import_not_allowed", node, reason)

    def visit_If(self, node: ast.If) -> None:
        if self.scopes.keeps_name and is_main_guard(node):
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        # a field called `eval` is a name like any other
        binds = isinstance(node.ctx, ast.Store) and not node.id.startswith("__")
        if node.id in names.FORBIDDEN_BUILTINS and not binds and not self.scopes.is_local(node.id):
            self._add("forbidden_call", node, f"{node.id} {names.FORBIDDEN_BUILTINS[node.id]}, which a candidate must not do")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._check_attribute(node, node.attr, self.scopes.dotted(node), isinstance(node.ctx, ast.Load))
        if self.scopes.dotted(node) is None:
            self.visit(node.value)

    def _check_attribute(self, node: ast.AST, attribute: str, dotted: str | None, reads: bool) -> None:
        """`dotted` is the full name if the chain starts at an imported name."""
        if not reads and dotted is not None:
            self._add("monkeypatch", node, f"{dotted} belongs to everyone in the process and must not be changed")
        elif not reads and attribute in names.UNASSIGNABLE_ATTRIBUTES:
            self._add("forbidden_attribute", node, f"{attribute} must not be assigned: a candidate never changes the module")
        elif attribute in names.FORBIDDEN_ATTRIBUTES or (attribute == "__dict__" and dotted is not None):
            self._add("forbidden_attribute", node, f"{attribute} reaches into the interpreter")
        elif attribute in names.CLOCK_ATTRIBUTES:
            self._add("forbidden_call", node, f"{attribute} reads a clock; only the judge measures time")
        elif attribute in names.HOOK_ATTRIBUTES:
            self._add("forbidden_call", node, f"{attribute} changes the module; a candidate only replaces its forward")
        elif dotted is not None and dotted in names.PROCESS_STATE:
            self._add("forbidden_call", node, f"{dotted} changes the state of the whole process")
        elif dotted == "triton.autotune":
            self._add("autotuning", node, "triton.autotune tunes while serving; list the choices in CONFIGS, the judge picks one")
        elif dotted is not None and (reason := _forbidden_part(dotted)) is not None:
            self._add("forbidden_attribute", node, reason)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        called = function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
        if called in ("getattr", "setattr", "hasattr", "__setattr__", "__delattr__") and len(node.args) >= 2:
            attribute = folded_text(node.args[1])
            owner = self.scopes.dotted(node.args[0])
            reads = called in ("getattr", "hasattr")
            if attribute is not None:
                self._check_attribute(node, attribute, f"{owner}.{attribute}" if owner else None, reads)
            elif owner is not None and not reads:
                self._add("monkeypatch", node, f"{owner} belongs to everyone in the process and must not be changed")
        if called == "vars" and isinstance(function, ast.Name) and len(node.args) == 1 and self.scopes.dotted(node.args[0]) is None:
            self.visit(node.args[0])  # attributes of an object, such as a cache that the module was given
            return
        self.generic_visit(node)


def _forbidden_part(dotted: str) -> str | None:
    """Why an imported name may not be used; None if it may."""
    root, *parts = dotted.split(".")
    prefix = root
    for part in parts:
        prefix = f"{prefix}.{part}"
        if prefix in names.FORBIDDEN_SUBMODULES and not any(dotted.startswith(one) for one in names.ALLOWED_SUBMODULES):
            if prefix == "triton.autotune":
                return None  # has a rule of its own
            return f"{prefix} is outside what a candidate may use"
        if part.strip("_") in names.FORBIDDEN_PARTS and prefix != "torch.cuda.threading":
            return f"{prefix} is the module {part.strip('_')}, which may not be used"
    return None


def _check_entries(tree: ast.Module) -> Iterator[Violation]:
    """forward, prepare, accepts, matches and CONFIGS as far as the source shows them."""
    bound = {name: list(_bindings(tree.body, name)) for name in (*FUNCTIONS, "CONFIGS")}
    if not bound["forward"]:
        yield Violation("missing_forward", 1, "the file defines no `forward(module, state, ...)` at its top level")
    for name, first in FUNCTIONS.items():
        for node in bound[name]:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _check_function(node, first)
            elif isinstance(node, ast.ClassDef):
                yield Violation("bad_signature", node.lineno, f"line {node.lineno}: `{name}` is a class; it must be a function")
    configs = _literal_configs(bound["CONFIGS"][-1]) if bound["CONFIGS"] else []
    if isinstance(configs, Violation):
        yield configs
    else:
        definition = bound["prepare"][-1] if bound["prepare"] else None
        yield from _check_configs(configs, definition)


def _bindings(body: list[ast.stmt], name: str) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if statement.name == name:
                yield statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                yield statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            if any((one.asname or one.name) == name for one in statement.names):
                yield statement
        elif isinstance(statement, ast.If) and not is_main_guard(statement):
            yield from _bindings(statement.body + statement.orelse, name)
        elif isinstance(statement, ast.Try):
            handled = [inner for handler in statement.handlers for inner in handler.body]
            yield from _bindings(statement.body + handled + statement.orelse + statement.finalbody, name)


def _check_function(node: ast.FunctionDef | ast.AsyncFunctionDef, first: tuple[str, ...]) -> Iterator[Violation]:
    where, shape = f"line {node.lineno}: `{node.name}`", f"({', '.join(first)}, ...)"
    positional = node.args.posonlyargs + node.args.args
    if isinstance(node, ast.AsyncFunctionDef):
        yield Violation("bad_signature", node.lineno, f"{where} is async; it must be an ordinary function")
    elif any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in _own_nodes(node)):
        yield Violation("bad_signature", node.lineno, f"{where} is a generator; it must return its result")
    if len(positional) < len(first) and node.args.vararg is None:
        yield Violation("bad_signature", node.lineno, f"{where} must take {shape}; it takes {len(positional)} positional arguments")
    required = len(positional) - len(node.args.defaults) > 1
    if node.name == "matches" and required:
        yield Violation("bad_signature", node.lineno, f"{where} is called with the module alone")


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function without those of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*_FUNCTION_NODES, ast.ClassDef)):
            yield child
            yield from _own_nodes(child)


def _literal_configs(node: ast.stmt) -> list[dict[str, Any]] | Violation:
    value = getattr(node, "value", None)
    try:
        configs = ast.literal_eval(value) if value is not None else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        configs = None
    return _checked_configs(configs, node.lineno)


def _checked_configs(configs: Any, line: int) -> list[dict[str, Any]] | Violation:
    plain = isinstance(configs, list) and bool(configs) and all(isinstance(one, dict) for one in configs)
    entries = [entry for one in configs for entry in one.items()] if plain else []
    if not plain or not all(isinstance(key, str) and key.isidentifier() and _is_plain(item) for key, item in entries):
        return Violation("bad_configs", line, f"line {line}: CONFIGS must be a literal, non-empty list of dicts from names to plain values")
    if len(configs) > MOST_CONFIGS:
        return Violation("bad_configs", line, f"line {line}: CONFIGS lists {len(configs)} configurations; list the few that differ most")
    said = [repr(sorted(one.items())) for one in configs]
    twice = [one for one, text in zip(configs, said, strict=True) if said.count(text) > 1]
    if twice:
        return Violation("bad_configs", line, f"line {line}: CONFIGS lists {twice[0]} more than once")
    return list(configs)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _check_configs(configs: list[dict[str, Any]], prepare: ast.stmt | None) -> Iterator[Violation]:
    """prepare(module, **config) must take every configuration."""
    if configs and prepare is None and any(configs):
        yield Violation("bad_configs", 1, "CONFIGS is given, but no `prepare(module, **config)` takes the configurations")
    if not isinstance(prepare, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    arguments, line, where = prepare.args, prepare.lineno, f"line {prepare.lineno}: `prepare`"
    positional = [one.arg for one in arguments.args]
    known = [*positional[0 if arguments.posonlyargs else 1 :], *(one.arg for one in arguments.kwonlyargs)]
    all_positional = arguments.posonlyargs + arguments.args
    without_default = {one.arg for one in all_positional[1 : len(all_positional) - len(arguments.defaults)]}
    without_default |= {one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None}
    for config in configs or [{}]:
        unknown = [] if arguments.kwarg else sorted(config.keys() - set(known))
        lacking = sorted(without_default - config.keys())
        if unknown:
            yield Violation("bad_signature", line, f"{where} does not take {', '.join(unknown)} of CONFIGS")
        if lacking:
            yield Violation("bad_signature", line, f"{where} needs {', '.join(lacking)}, which a configuration does not give")


def check_loaded(module: types.ModuleType) -> Entries:
    """The entry points of an imported candidate, with what is wrong about them that only shows once it is loaded."""
    found: list[Violation] = []
    signatures: dict[str, inspect.Signature | None] = dict.fromkeys(FUNCTIONS)
    for name, first in FUNCTIONS.items():
        function = getattr(module, name, None)
        if function is None:
            if name == "forward":
                found.append(Violation("missing_forward", 1, "the loaded file has no `forward`"))
            continue
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
        try:
            signatures[name] = inspect.signature(function)
            inspect.signature(function).bind_partial(*first)
        except (TypeError, ValueError):
            found.append(Violation("bad_signature", line, f"`{name}` must be a function that takes ({', '.join(first)}, ...)"))
    configs = getattr(module, "CONFIGS", None)
    checked = [{}] if configs is None else _checked_configs(configs, 1)
    if isinstance(checked, Violation):
        found.append(checked)
        checked = [{}]
    return Entries(**signatures, configs=[dict(one) for one in checked], violations=found)
