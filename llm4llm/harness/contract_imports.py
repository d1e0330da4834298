"""What a candidate does while it is imported: nothing but define things."""

import ast
from collections.abc import Iterator

from llm4llm.harness import contract_names as names
from llm4llm.harness.contract_scope import Scopes, Violation, is_main_guard

_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef)
_PLAIN = (
    ast.Constant,
    ast.Name,
    ast.Attribute,
    ast.Subscript,
    ast.Slice,
    ast.Tuple,
    ast.List,
    ast.Set,
    ast.Dict,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Starred,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.comprehension,
    ast.keyword,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)


class ImportTime:
    """Checks top-level statements and class bodies, with every expression that is evaluated while they run."""

    def __init__(self, scopes: Scopes) -> None:
        self._scopes = scopes
        self._functions: set[str] = set()
        self._simple_classes: set[str] = set()
        self._evaluates_annotations = True

    def check(self, tree: ast.Module) -> Iterator[Violation]:
        for node in ast.walk(tree):
            if isinstance(node, _DEFINES):
                self._functions.add(node.name)
            elif isinstance(node, ast.ClassDef) and not any(isinstance(inner, _DEFINES) and _constructs(inner.name) for inner in node.body):
                self._simple_classes.add(node.name)
        future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        self._evaluates_annotations = not any(one.name == "annotations" for node in future for one in node.names)
        yield from self._block(tree.body)

    def _block(self, body: list[ast.stmt]) -> Iterator[Violation]:
        for statement in body:
            yield from self._statement(statement)

    def _statement(self, node: ast.stmt) -> Iterator[Violation]:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass)):
            return
        if isinstance(node, _DEFINES):
            yield from self._function(node)
        elif isinstance(node, ast.ClassDef):
            yield from self._class(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            yield from self._assignment(node)
        elif isinstance(node, ast.If):
            yield from self._expression(node.test)
            yield from self._block(node.orelse if is_main_guard(node) else node.body + node.orelse)
        elif isinstance(node, ast.Try):
            handled = [inner for handler in node.handlers for inner in handler.body]
            yield from self._block(node.body + handled + node.orelse + node.finalbody)
        elif isinstance(node, ast.Expr):
            yield from self._expression(node.value)
        elif isinstance(node, ast.Assert):
            yield from self._expression(node.test)
        elif not (isinstance(node, ast.Delete) or type(node).__name__ == "TypeAlias"):
            yield self._violation(node, f"a `{_word(node)}` statement runs while the file is imported")

    def _violation(self, node: ast.AST, what: str) -> Violation:
        line = getattr(node, "lineno", 1)
        return Violation("import_time_code", line, f"line {line}: {what}; at its top level a candidate only defines things")

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[Violation]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for part in ast.walk(target):
                # attributes of imported modules are reported as monkeypatching
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and self._scopes.dotted(part) is None:
                    yield self._violation(node, "an attribute is assigned while the file is imported")
        if isinstance(node, ast.AnnAssign) and self._evaluates_annotations:
            yield from self._expression(node.annotation)
        if node.value is not None:
            yield from self._expression(node.value)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Violation]:
        yield from self._decorators(node.decorator_list)
        arguments = node.args
        for default in [*arguments.defaults, *arguments.kw_defaults]:
            if default is not None:
                yield from self._expression(default)
        if self._evaluates_annotations:
            annotated = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            for annotation in [*(one.annotation for one in annotated if one is not None), node.returns]:
                if annotation is not None:
                    yield from self._expression(annotation)

    def _class(self, node: ast.ClassDef) -> Iterator[Violation]:
        yield from self._decorators(node.decorator_list)
        for base in [*node.bases, *(one.value for one in node.keywords)]:
            yield from self._expression(base)
        for keyword in node.keywords:
            if keyword.arg == "metaclass" and self._scopes.dotted(keyword.value) is None:
                yield self._violation(node, "a metaclass of the file's own runs while the file is imported")
        for inner in node.body:
            if isinstance(inner, _DEFINES) and inner.name in names.RUNS_AT_DEFINITION:
                yield self._violation(inner, f"{inner.name} runs while classes are defined")
            yield from self._statement(inner)

    def _decorators(self, decorators: list[ast.expr]) -> Iterator[Violation]:
        for decorator in decorators:
            if isinstance(decorator, ast.Call):
                yield from self._expression(decorator)
            elif not self._is_pure_call(decorator):
                yield self._violation(decorator, f"the decorator {ast.unparse(decorator)} runs while the file is imported")

    def _expression(self, node: ast.AST) -> Iterator[Violation]:
        """Violations of an expression that is evaluated now; a lambda is a definition, so its body is not looked at."""
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.Call):
            yield from self._call(node)
            return
        if not isinstance(node, _PLAIN):
            yield self._violation(node, f"a {_word(node)} is evaluated while the file is imported")
            return
        for child in ast.iter_child_nodes(node):
            yield from self._expression(child)

    def _call(self, node: ast.Call) -> Iterator[Violation]:
        if not self._is_pure_call(node.func):
            yield self._violation(node, f"the call {_shortened(node)} runs while the file is imported (move it into prepare)")
            return
        if isinstance(node.func, ast.Call):
            yield from self._call(node.func)
        elif isinstance(node.func, ast.Attribute):
            yield from self._expression(node.func.value)
        takes_function = self._name(node.func) in names.TAKES_FUNCTION
        for argument in [*node.args, *(one.value for one in node.keywords)]:
            if not takes_function and self._is_function(argument):
                yield self._violation(node, f"{_shortened(node)} may run a function of the file while it is imported")
            yield from self._expression(argument)

    def _is_function(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Lambda) or (isinstance(node, ast.Name) and node.id in self._functions)

    def _name(self, function: ast.AST) -> str | None:
        """Dotted name of an imported function, or the name of a builtin; for f(...)(x) that of f."""
        if isinstance(function, ast.Call):
            return self._name(function.func)
        if isinstance(function, ast.Name) and function.id not in self._scopes.imported:
            return None if function.id in self._functions else function.id
        return self._scopes.dotted(function)

    def _is_pure_call(self, function: ast.AST) -> bool:
        name = self._name(function)
        if name is not None and (name in names.PURE_CALLS or name.partition(".")[0] in names.PURE_MODULES or name in self._simple_classes):
            return not isinstance(function, ast.Call) or name in names.TAKES_FUNCTION
        if isinstance(function, ast.Attribute) and self._scopes.dotted(function) is None:
            return function.attr in names.PURE_METHODS
        return False


def _constructs(method: str) -> bool:
    return method in ("__init__", "__new__", "__post_init__", "__call__", "__del__")


def _shortened(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else text[:57] + "..."


def _word(node: ast.AST) -> str:
    return type(node).__name__.lower()
