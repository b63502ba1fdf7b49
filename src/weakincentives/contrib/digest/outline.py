"""The outline of one source file: by tree-sitter, or for Python without it by Python's parser."""

import re
from collections.abc import Callable

from weakincentives.contrib.digest.definitions import SourceDefinition
from weakincentives.contrib.digest.python_outline import outline_python

_MAX_PARSED = 256 * 1024  # bytes
_MANY_LINES = 200
_PUNCTUATION = re.compile(rb"[^\w\s]", re.ASCII)
_Parse = Callable[[bytes, str], tuple[SourceDefinition, ...]]
_parse: _Parse | None
try:
    from weakincentives.contrib.digest.treesitter import outline_source
except ModuleNotFoundError:  # without the extra `repomap`
    _parse = None
else:
    _parse = outline_source


def can_outline(family: str) -> bool:
    """Whether there is a parser for this family of languages."""
    return _parse is not None or family == "python"


def outline_file(content: bytes, family: str) -> tuple[SourceDefinition, ...]:
    """Return the definitions in a file, in their order; none if there is no parser for it.

    Tree-sitter takes quadratic time for much that is not source code, so that is not parsed.
    """
    if not _is_like_source(content):
        return ()
    if _parse is not None:
        return _parse(content, family)
    return outline_python(content.decode("utf-8-sig", "replace")) if family == "python" else ()


def _is_like_source(content: bytes) -> bool:
    """Whether a file is neither huge, nor mostly punctuation, nor the same lines over and over."""
    if len(content) > _MAX_PARSED or len(_PUNCTUATION.findall(content)) * 2 > len(content):
        return False
    lines = content.splitlines()
    return len(lines) < _MANY_LINES or len(set(lines)) * 20 > len(lines)
