"""The outline of a source file: by tree-sitter, or for Python without it by Python's parser."""

import ast
import re
import socket
import subprocess
import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import msgspec

from weakincentives.contrib.digest.definitions import (
    MAX_DEFINITIONS,
    MAX_FRAME,
    Outline,
    SourceDefinition,
    clean_signature,
)
from weakincentives.posix import (
    CloseOnExit,
    receive_frame,
    send_frame,
    start_worker,
    worker_command,
)

MAX_FAILURES = 3
"""Files that may end the parsing process; then no more are parsed."""

_MAX_PARSED = 256 * 1024  # bytes
_WORKER = worker_command("weakincentives.contrib.digest.treesitter", uses_packages=True)
_HAS_GRAMMARS = all(map(find_spec, ("tree_sitter", "tree_sitter_python", "tree_sitter_rust")))
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


class ParseError(Exception):
    """A file took too much time or memory to parse."""


def can_outline(family: str) -> bool:
    """Whether there is a parser for this family of languages."""
    return _HAS_GRAMMARS or family == "python"


class OutlineParser(CloseOnExit):
    """Parses files, with tree-sitter in a process of its own; see `treesitter`."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self.failures: int = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def parse(self, content: bytes, family: str) -> Outline:
        """Return the definitions in a file; none if it is too large.

        Raises:
            ParseError: It takes too much to parse, or too many files before it did.
        """
        if len(content) > _MAX_PARSED:
            return ()
        if not _HAS_GRAMMARS:
            text = content.decode("utf-8-sig", "replace")
            return outline_python(text) if family == "python" else ()
        if self.failures < MAX_FAILURES:
            try:
                return self._parse_outside(content, family)
            except (OSError, ValueError, msgspec.MsgspecError):
                self.close()
        self.failures += 1
        raise ParseError

    def close(self) -> None:
        """End the process; idempotent."""
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if process is not None:
            process.kill()
            process.wait()

    def _parse_outside(self, content: bytes, family: str) -> Outline:
        if self._connection is None:
            self._connection, remote = socket.socketpair()
            with remote:
                self._process = start_worker(_WORKER, stdin=remote.fileno())
        send_frame(self._connection, family.encode() + b"\n" + content, MAX_FRAME)
        # empty, so an error, if the process has ended
        return msgspec.msgpack.decode(receive_frame(self._connection, MAX_FRAME), type=Outline)
