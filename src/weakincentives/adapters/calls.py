"""A tool call: what a model asks for, and what is known about it before it runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from weakincentives.filesystem import normalize_path
from weakincentives.prompt import Tool, ToolContext

_ONE_PATH = ("path", "file_path", "notebook_path", "source", "destination")
_MANY_PATHS = ("paths", "file_paths")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as a model sends it; arguments are JSON or already parsed."""

    name: str
    arguments: Mapping[str, object] | str = ""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class CheckedCall:
    """A call whose arguments are valid, about to run; policies look at it.

    `paths` are those that the arguments name, in normal form: two spellings of a path
    are one path.
    """

    call: ToolCall
    tool: Tool[Any, Any]
    params: Any
    context: ToolContext

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that the arguments name."""
        return paths_of(self.params)


def paths_of(params: object) -> tuple[str, ...]:
    """Return the paths that parameters name, in normal form; what is no path is left out."""
    if not is_dataclass(params):
        return ()
    names = {each.name for each in fields(params)}
    found = [getattr(params, name) for name in _ONE_PATH if name in names]
    for name in _MANY_PATHS:
        if name in names:
            found += getattr(params, name)
    return tuple(dict.fromkeys(_normalized(found)))


def _normalized(found: Iterable[object]) -> Iterable[str]:
    for each in found:
        if each is None:
            continue
        try:
            yield normalize_path(str(each)) or "."
        except (ValueError, OSError):
            continue  # the tool itself says what is wrong with it
