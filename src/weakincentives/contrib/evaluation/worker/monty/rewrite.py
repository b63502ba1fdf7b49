"""Code for Monty: what it lacks is supplied, and a few common forms are put into others.

Imports of modules in `library` become assignments of objects that are compiled in the
interpreter before the code runs. No line moves, so errors name the lines of the code.
"""

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

_LIBRARY = Path(__file__).parent / "library"
_BUILTINS = "builtins"
LIBRARY = frozenset(each.stem for each in _LIBRARY.glob("[a-z]*.py")) - {_BUILTINS}
"""The modules that are supplied."""

# a walk through the tree takes as long as a call, so it is for code that may need it
_CANDIDATES = re.compile(
    rf"\b({'|'.join(sorted(LIBRARY))}|pathlib|statistics|subn?|next|map|filter|file)\b|key\s*=\s*(?!lambda)"
)
_MAPPING = frozenset({"map", "filter"})
_STATISTICS = frozenset(statistics.__all__)
_RE = {"sub": "re_sub", "subn": "re_subn"}
# a generator expression is a list in Monty; the parentheses of a call can be its own
_ITER = {False: ("iter", ""), True: ("(iter", ")")}
_Edit = tuple[int, int, str]


def rewrite(code: str, tree: ast.Module) -> tuple[str, str]:
    """Return code to run first, empty if none is needed, and the rewritten code."""
    if not _CANDIDATES.search(code):
        return "", code
    edits: list[_Edit] = []
    modules: dict[str, None] = {}
    lines = _Lines(code)
    nodes = list(ast.walk(tree))
    has_paths = any(_imports(node, "pathlib") for node in nodes)
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found = list(_assignments(node))
            if found:
                modules |= dict.fromkeys(module for module, _ in found)
                edits.append(lines.replace(node, "; ".join(text for _, text in found)))
        elif isinstance(node, ast.Call):
            edits += _edit_call(node, lines, has_paths=has_paths)
            edits += _list_values(node, lines)
    if any(_variable(_BUILTINS) in text for _, _, text in edits):
        modules[_BUILTINS] = None
    return "\n".join(_LOADERS[each] for each in modules), lines.apply(edits)


def _imports(node: ast.AST, module: str) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == module
    return isinstance(node, ast.Import) and any(each.name == module for each in node.names)


def _assignments(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield a module of ours and an assignment for each name; nothing if some are not ours."""
    if isinstance(node, ast.ImportFrom):
        if node.module in LIBRARY and node.level == 0:
            for each in node.names:
                name = each.asname or each.name
                yield node.module, f"{name} = {_variable(node.module)}.{each.name}"
    elif any(each.name in LIBRARY for each in node.names):
        for each in node.names:
            name = each.asname or each.name
            if each.name in LIBRARY:
                yield each.name, f"{name} = {_variable(each.name)}"
            else:
                alias = f" as {each.asname}" if each.asname else ""
                yield _BUILTINS, f"import {each.name}{alias}"


def _edit_call(node: ast.Call, lines: "_Lines", *, has_paths: bool) -> Iterator[_Edit]:
    function = node.func
    if isinstance(function, ast.Name):
        if function.id == "next" and node.args and isinstance(node.args[0], ast.GeneratorExp):
            yield from lines.wrap(node.args[0], *_ITER[len(node.args) == 1])
        if function.id == "print" and any(each.arg == "file" for each in node.keywords):
            yield lines.replace(function, f"{_variable(_BUILTINS)}.print_to")
        if function.id == "sorted" and has_paths:
            yield lines.replace(function, f"{_variable(_BUILTINS)}.sorted_paths")
    elif (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
        and function.attr in _RE
    ):
        yield lines.replace(function, f"{_variable(_BUILTINS)}.{_RE[function.attr]}")
    for given in _functions(node):
        if isinstance(given, ast.Attribute):
            yield from _wrap_method(given, lines)


def _list_values(node: ast.Call, lines: "_Lines") -> Iterator[_Edit]:
    """Make lists of what statistics are computed of: a view would arrive as its text."""
    function = node.func
    named = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if named in _STATISTICS and node.args and isinstance(node.args[0], ast.Call):
        yield from lines.wrap(node.args[0], "list(", ")")


def _functions(node: ast.Call) -> Iterator[ast.expr]:
    """Yield the arguments that must be functions: methods cannot be values in Monty."""
    yield from (each.value for each in node.keywords if each.arg == "key")
    if isinstance(node.func, ast.Name) and node.func.id in _MAPPING:
        yield from node.args[:1]


def _wrap_method(given: ast.Attribute, lines: "_Lines") -> Iterator[_Edit]:
    if isinstance(given.value, ast.Name) and given.value.id == "str":
        yield lines.replace(given, f"(lambda given, *more: given.{given.attr}(*more))")
    else:
        yield from lines.wrap(given, "(lambda *given: ", "(*given))")


def _variable(module: str) -> str:
    return f"__{module}_module__"


def _load(module: str) -> str:
    """Return code that assigns an object with the names of a module to its variable."""
    tree = ast.parse((_LIBRARY / f"{module}.py").read_text())
    names = [name for node in tree.body for name in _defined(node)]
    body = ast.parse("\n".join(ast.unparse(_strip(each)) for each in tree.body[1:]))
    create = ast.parse(
        "class Module:\n    pass\nmodule = Module()\n"
        + "\n".join(f"module.{name} = {name}" for name in names if not name.startswith("_"))
        + "\nreturn module"
    )
    load = ast.parse(f"def __load_{module}__():\n    pass\n{_variable(module)} = None")
    function, assignment = load.body
    assert isinstance(function, ast.FunctionDef)
    assert isinstance(assignment, ast.Assign)
    function.body = [*body.body, *create.body]
    assignment.value = ast.parse(f"__load_{module}__()", mode="eval").body
    return ast.unparse(load)


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in [node.target] if isinstance(node, ast.AnnAssign) else node.targets:
            yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def _strip(node: ast.stmt) -> ast.stmt:
    """Remove annotations, which need imports."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef):
            each.returns = None
        elif isinstance(each, ast.arg):
            each.annotation = None
    if isinstance(node, ast.ImportFrom) and node.module in {"typing", "collections.abc"}:
        return ast.Pass()
    return node


class _Lines:
    """The bytes of code, for edits at the places of its nodes."""

    def __init__(self, code: str) -> None:
        self._data = code.encode()
        self._starts = [0]
        for line in self._data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def replace(self, node: ast.expr | ast.stmt, text: str) -> _Edit:
        """Return an edit that puts text in the place of a node, with as many lines."""
        start, end = self._span(node)
        return start, end, text + "\n" * self._data[start:end].count(b"\n")

    def wrap(self, node: ast.expr, before: str, after: str) -> tuple[_Edit, _Edit]:
        """Return edits that put text around a node."""
        start, end = self._span(node)
        return (start, start, before), (end, end, after)

    def apply(self, edits: list[_Edit]) -> str:
        """Return the code with all edits."""
        data = self._data
        for start, end, text in sorted(edits, reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset


# read before the worker is confined
_LOADERS = {each: _load(each) for each in (*LIBRARY, _BUILTINS)}
