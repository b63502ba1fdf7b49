"""The outline of one source file: by tree-sitter, or for Python without it by Python's parser."""

from collections.abc import Callable

from weakincentives.contrib.digest.definitions import SourceDefinition
from weakincentives.contrib.digest.python_outline import outline_python

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
    """Return the definitions in a file, in their order; none if there is no parser for it."""
    if _parse is not None:
        return _parse(content, family)
    return outline_python(content.decode("utf-8-sig", "replace")) if family == "python" else ()
