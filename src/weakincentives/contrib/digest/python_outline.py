"""The outline of a Python file by Python's own parser, where tree-sitter is not installed."""

import ast
import re
import warnings
from collections.abc import Iterator

from weakincentives.contrib.digest.definitions import (
    MAX_DEFINITIONS,
    SourceDefinition,
    clean_signature,
)

_COMMENT = re.compile(r"#[^\n]*")
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def outline_python(text: str) -> tuple[SourceDefinition, ...]:
    """Return the definitions in `text`; none if it is not valid in this version of Python."""
    try:
        with warnings.catch_warnings():  # what the file does wrong is not ours to report
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    lines = text.splitlines(keepends=True)
    return tuple(_definitions(tree, lines))[:MAX_DEFINITIONS]


def _definitions(tree: ast.Module, lines: list[str]) -> Iterator[SourceDefinition]:
    stack: list[tuple[ast.stmt, int]] = [(each, 0) for each in reversed(tree.body)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, _Definition):
            head = _COMMENT.sub("", _head(node, lines))
            yield SourceDefinition(node.name, node.lineno, depth, clean_signature(head))
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            below = depth + isinstance(node, ast.ClassDef)
            stack += [(each, below) for each in reversed(_statements(node))]


def _statements(node: ast.stmt | ast.ExceptHandler | ast.match_case) -> list[ast.stmt]:
    """Return the statements inside `node`: those of a class, or of the branches of an `if`."""
    found: list[ast.stmt] = []
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt):
            found.append(each)
        elif isinstance(each, ast.ExceptHandler | ast.match_case):
            found += _statements(each)
    return found


def _head(node: _Definition, lines: list[str]) -> str:
    """Return the source from the definition to its body."""
    first = node.body[0]
    decorators = first.decorator_list if isinstance(first, _Definition) else []
    end = min([first.lineno, *(each.lineno for each in decorators)])
    if end > node.lineno:
        head = "".join(lines[node.lineno - 1 : end - 1])
    else:  # the body follows on the same line
        head = lines[end - 1].encode()[: first.col_offset].decode("utf-8", "replace")
    return head.encode()[node.col_offset :].decode("utf-8", "replace")
