"""What names in a candidate's source stand for."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Violation(NamedTuple):
    """One broken rule: its name, the line and a sentence that the author can act on."""

    rule: str
    line: int
    text: str


class Scopes:
    """Imported names of a file, and the local names of the functions around the place that is looked at."""

    def __init__(self, tree: ast.Module) -> None:
        self.imported: dict[str, str] = {}  # name → dotted name of what it stands for
        self.keeps_name = not any(_binds_main(node) for node in ast.walk(tree))  # so that a main guard is one
        self._locals: list[set[str]] = []
        self._parameters: list[set[str]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    root = one.name.partition(".")[0]
                    self.imported[one.asname or root] = one.name if one.asname else root
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for one in node.names:
                    self.imported[one.asname or one.name] = f"{node.module}.{one.name}"
        # `t = torch` makes t another name of the module
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Attribute)):
                dotted = self.dotted(node.value)
                for target in node.targets:
                    if dotted is not None and isinstance(target, ast.Name):
                        self.imported.setdefault(target.id, dotted)

    def is_local(self, name: str) -> bool:
        """True if a function around this place binds the name."""
        return any(name in names for names in self._locals)

    def dotted(self, node: ast.AST) -> str | None:
        """ "torch.nn.functional" for a chain of attributes that starts at an imported name; None for any other expression."""
        if isinstance(node, ast.Name):
            shadowed = any(node.id in names for names in self._parameters)
            return None if shadowed else self.imported.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.dotted(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None

    @contextmanager
    def inside(self, function: ast.AST) -> Iterator[None]:
        """Look at places inside `function` for a while."""
        parameters = _parameters(function)
        self._locals.append(parameters | _assigned(function))
        self._parameters.append(parameters)
        try:
            yield
        finally:
            self._locals.pop()
            self._parameters.pop()


def _parameters(function: ast.AST) -> set[str]:
    arguments = getattr(function, "args", None)
    return {node.arg for node in ast.walk(arguments) if isinstance(node, ast.arg)} if isinstance(arguments, ast.arguments) else set()


def _assigned(function: ast.AST) -> set[str]:
    """Names that a function binds in its own body; `global` names are not its own."""
    found: set[str] = set()
    foreign: set[str] = set()
    pending: list[ast.AST] = list(function.body) if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            foreign.update(node.names)
        pending.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.Lambda))
    return found - foreign


def folded_text(node: ast.AST) -> str | None:
    """The text of a string constant or of constants added together; None if it is only known when the code runs."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = folded_text(node.left), folded_text(node.right)
        return None if left is None or right is None else left + right
    if isinstance(node, ast.JoinedStr):
        parts = [folded_text(part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values]
        return None if None in parts else "".join(part for part in parts if part is not None)
    return None


def _binds_main(node: ast.AST) -> bool:
    """True for any use of `__name__` but reading it: who sets it may make the guard's body run."""
    if isinstance(node, ast.Name):
        return node.id == "__name__" and not isinstance(node.ctx, ast.Load)
    texts = [value for _, value in ast.iter_fields(node) if isinstance(value, (str, list))]
    return any(text == "__name__" or (isinstance(text, list) and "__name__" in text) for text in texts)


def is_main_guard(statement: ast.If) -> bool:
    """True for `if __name__ == "__main__":`, whose body never runs in a candidate."""
    test = statement.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = [test.left, test.comparators[0]]
    named = any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)
    return named and any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides)
