"""A tool call: what a model asks for, and what is known about it before it runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, lru_cache
from typing import Any

from weakincentives.filesystem import normalize_path
from weakincentives.prompt import Tool, ToolAccess, ToolContext

_ONE_PATH = (
    "path",
    "file_path",
    "notebook_path",
    "dir_path",
    "new_path",
    "source",
    "destination",
)
_MANY_PATHS = ("paths", "file_paths")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as a model sends it; arguments are JSON or already parsed."""

    name: str
    arguments: Mapping[str, object] | str = ""
    call_id: str = ""


@dataclass(frozen=True)
class CheckedCall:
    """A call whose arguments are valid, about to run; policies look at it.

    `paths` are those that the arguments name, in normal form: two spellings of a path
    are one path.
    """

    call: ToolCall
    tool: Tool[Any, Any]
    params: Any
    context: ToolContext

    @cached_property
    def access(self) -> ToolAccess | None:
        """Which files it is about, if the tool says so."""
        return None if self.tool.access is None else self.tool.access(self.params, self.context)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that it is about, or that the arguments name."""
        return paths_of(self.params) if self.access is None else self.access.paths


def paths_of(params: object) -> tuple[str, ...]:
    """Return the paths that parameters name, in normal form; what is no path is left out."""
    one, many = _path_fields(type(params))
    found = [getattr(params, name) for name in one]
    for name in many:
        several = getattr(params, name)
        found += (several,) if isinstance(several, str) else several or ()
    return tuple(dict.fromkeys(_normalized(found)))


@lru_cache(maxsize=1024)
def _path_fields(kind: type[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a dataclass that hold a path, and those that hold several."""
    if not is_dataclass(kind):
        return (), ()
    names = {each.name for each in fields(kind)}
    return tuple(filter(names.__contains__, _ONE_PATH)), tuple(
        filter(names.__contains__, _MANY_PATHS)
    )


def _normalized(found: Iterable[object]) -> Iterable[str]:
    for each in found:
        if each is None:
            continue
        try:
            yield normalize_path(str(each)) or "."
        except (ValueError, OSError):
            continue  # the tool itself says what is wrong with it
