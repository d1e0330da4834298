"""What the source of a script defines, and the part of it that can run again without running the script.

Only imports, functions, classes and assignments that make a function or class are ever taken; line numbers stay those of the file.
"""

import ast
import dis
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

FUNCTION_FLAGS = {"annotations": 0x1000000}  # CO_FUTURE_ANNOTATIONS; the other future flags do nothing any more
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class ImportedName:
    """One name that an import statement binds: `from module import attribute as name`, or `import module` without an attribute."""

    name: str
    module: str
    attribute: str | None
    level: int


@dataclass
class Bindings:
    """The top-level statements that bind one name."""

    definitions: list[ast.stmt] = field(default_factory=list)
    imports: list[ImportedName] = field(default_factory=list)
    assignments: list[ast.stmt] = field(default_factory=list)


class ScriptSource:
    """A parsed source file. Raises SyntaxError."""

    def __init__(self, text: str, filename: str) -> None:
        self.text, self.filename = text, filename
        self.tree = ast.parse(text, filename)

    @cached_property
    def bindings(self) -> dict[str, Bindings]:
        """Names that top-level statements bind, also inside top-level if, try, with and loops."""
        found: dict[str, Bindings] = {}
        for statement in _flat(self.tree.body):
            if isinstance(statement, _DEFINES):
                found.setdefault(statement.name, Bindings()).definitions.append(statement)
            elif isinstance(statement, _IMPORTS):
                for one in imported_names(statement):
                    found.setdefault(one.name, Bindings()).imports.append(one)
            else:
                for name in _assigned(statement):
                    found.setdefault(name, Bindings()).assignments.append(statement)
        return found

    @cached_property
    def star_imports(self) -> list[ImportedName]:
        return self.bindings["*"].imports if "*" in self.bindings else []

    @cached_property
    def flags(self) -> int:
        """Compiler flags of the file's future imports."""
        flags = 0
        for statement in self.tree.body:
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                for one in statement.names:
                    flags |= FUNCTION_FLAGS.get(one.name, 0)
        return flags

    def code(self, statements: list[ast.stmt], filename: str) -> types.CodeType:
        tree = ast.Module(statements, type_ignores=[])
        return compile(tree, filename, "exec", flags=self.flags, dont_inherit=True)

    def used(self, statement: ast.stmt) -> tuple[set[str], set[ImportedName]]:
        """Global names that a statement and the code in it look up, and what functions in it import when they run."""
        names: set[str] = set()
        for code in _codes(self.code([statement], self.filename)):
            for one in dis.get_instructions(code):
                if one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                    names.add(str(one.argval))
        nested = {one for node in ast.walk(statement) if isinstance(node, _IMPORTS) for one in imported_names(node)}
        return names, nested

    def attributes_of(self, name: str) -> set[str]:
        """Attributes that the file reads from a global name, such as the functions it takes from an imported module."""
        reads = (node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute))
        return {node.attr for node in reads if isinstance(node.value, ast.Name) and node.value.id == name}

    def definitions_only(self, names: set[str], assigned: set[str]) -> list[ast.stmt]:
        """Top-level statements that define or import `names`, or assign the names in `assigned`, in the file's order."""
        return list(_kept(self.tree.body, names, assigned))


def imported_names(statement: ast.stmt) -> Iterator[ImportedName]:
    """What an import statement binds."""
    if isinstance(statement, ast.Import):
        for one in statement.names:
            # `import a.b` binds a; `import a.b as c` binds the module a.b
            yield ImportedName(one.asname or one.name.partition(".")[0], one.name, None, 0)
    elif isinstance(statement, ast.ImportFrom):
        for one in statement.names:
            yield ImportedName(one.asname or one.name, statement.module or "", one.name, statement.level)


def bound_names(statement: ast.stmt) -> list[str]:
    """Names that a top-level statement binds, those bound inside its blocks included."""
    found = []
    for one in _flat([statement]):
        if isinstance(one, _DEFINES):
            found.append(one.name)
        elif isinstance(one, _IMPORTS):
            found += [imported.name for imported in imported_names(one)]
        else:
            found += _assigned(one)
    return found


def defines_by_assignment(statement: ast.stmt) -> bool:
    """True for assignments whose value is a call or lambda, as in `Point = namedtuple(...)` or `act = lambda x: ...`."""
    value = getattr(statement, "value", None)
    return isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(value, (ast.Call, ast.Lambda))


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for inner in _blocks(statement):
            yield from _flat(inner)


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Statement lists inside a compound statement that share its scope."""
    if isinstance(statement, _DEFINES):
        return []
    blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    blocks[1:1] = [handler.body for handler in getattr(statement, "handlers", [])]
    blocks += [case.body for case in getattr(statement, "cases", [])]
    return [block for block in blocks if isinstance(block, list) and block]


def _assigned(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement itself (not the blocks in it) assigns."""
    targets: list[ast.AST] = []
    if isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    elif isinstance(statement, (ast.AnnAssign, ast.AugAssign, ast.For)):
        targets = [statement.target]
    elif isinstance(statement, ast.With):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _kept(body: list[ast.stmt], names: set[str], assigned: set[str]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, _DEFINES):
            if statement.name in names:
                yield statement
        elif isinstance(statement, _IMPORTS):
            yield from _kept_import(statement, names)
        elif assigned.intersection(_assigned(statement)) and defines_by_assignment(statement):
            yield statement
        elif isinstance(statement, ast.Try):
            yield from _kept_try(statement, names, assigned)
        else:
            yield from _kept_blocks(statement, names, assigned)


def _kept_import(statement: ast.Import | ast.ImportFrom, names: set[str]) -> Iterator[ast.stmt]:
    bound = zip(imported_names(statement), statement.names, strict=True)
    aliases = [alias for one, alias in bound if one.name in names]
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return  # in force through the compiler's flags
    if aliases and isinstance(statement, ast.ImportFrom):
        yield ast.copy_location(ast.ImportFrom(statement.module, aliases, statement.level), statement)
    elif aliases:
        yield ast.copy_location(ast.Import(aliases), statement)


def _kept_try(statement: ast.Try, names: set[str], assigned: set[str]) -> Iterator[ast.stmt]:
    """The whole try if something in its body is wanted, so that an import that failed in the script may fail again."""
    body = list(_kept(statement.body, names, assigned))
    if not body:
        yield from _kept_blocks(statement, names, assigned)
        return
    handlers = []
    for handler in statement.handlers:
        inner = list(_kept(handler.body, names, assigned)) or [ast.copy_location(ast.Pass(), handler)]
        handlers.append(ast.copy_location(ast.ExceptHandler(handler.type, handler.name, inner), handler))
    orelse, final = list(_kept(statement.orelse, names, assigned)), list(_kept(statement.finalbody, names, assigned))
    if handlers or final:
        yield ast.copy_location(ast.Try(body, handlers, orelse if handlers else [], final), statement)
    else:
        yield from body


def _kept_blocks(statement: ast.stmt, names: set[str], assigned: set[str]) -> Iterator[ast.stmt]:
    """Definitions inside if, with and loops; the condition itself is run again only if both of its branches define something."""
    if isinstance(statement, ast.If):
        body, orelse = list(_kept(statement.body, names, assigned)), list(_kept(statement.orelse, names, assigned))
        if body and orelse:
            yield ast.copy_location(ast.If(statement.test, body, orelse), statement)
        else:
            yield from body or orelse
        return
    for block in _blocks(statement):
        yield from _kept(block, names, assigned)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
