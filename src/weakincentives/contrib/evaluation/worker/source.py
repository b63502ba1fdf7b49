"""The code of an evaluation, as source: its last expression, and the names that it binds.

Used in the worker process, so it imports only the standard library.
"""

import ast
from collections.abc import Iterator

VALUE_NAME = "__value__"
"""The variable that gets the value of the last expression."""

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def assign_last_expression(code: str, tree: ast.Module) -> str:
    """Return the code with its last expression assigned to a variable; no line moves."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or last.end_lineno is None or last.end_col_offset is None:
        return code
    lines = code.encode().split(b"\n")
    end, row = last.end_lineno - 1, last.lineno - 1
    lines[end] = _insert(lines[end], last.end_col_offset, b")")
    lines[row] = _insert(lines[row], last.col_offset, VALUE_NAME.encode() + b" = (")
    return b"\n".join(lines).decode()


def bound_names(tree: ast.Module) -> list[str]:
    """Return the names that the module's own level binds to values, in order."""
    return list(dict.fromkeys(name for name in _bound(tree.body) if not name.startswith("_")))


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, _DEFINITIONS):
            continue
        for node in _walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those below it, without functions, classes and comprehensions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*_DEFINITIONS, ast.Lambda, ast.comprehension)):
            yield from _walk(child)


def _insert(line: bytes, column: int, text: bytes) -> bytes:
    return line[:column] + text + line[column:]
