"""Which files a request is about, whatever the dialect calls them."""

from collections.abc import Callable
from contextlib import suppress

from weakincentives.contrib.tools.patch import PatchError, patched_paths
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    CountedEditParams,
    EditFileParams,
    GlobParams,
    GrepParams,
    InsertTextParams,
    LsParams,
    MkdirParams,
    MoveParams,
    ReadFileParams,
    ReadManyParams,
    RmParams,
    StatParams,
    TreeParams,
    WriteFileParams,
)
from weakincentives.prompt import ToolAccess


def access_of(request: object, resolve: Callable[[str], str]) -> ToolAccess:
    """Return which files a request is about; `resolve` says which path a model means.

    What is no path in the workspace is left out: the tool itself says what is wrong.
    """

    def paths(*given: str) -> tuple[str, ...]:
        return tuple(path for each in given for path in _resolved(each, resolve))

    match request:
        case ReadFileParams(file_path=path):
            return ToolAccess(reads=paths(path))
        case ReadManyParams(file_paths=several):
            return ToolAccess(reads=paths(*several))
        case LsParams() | GlobParams() | GrepParams() | StatParams() | TreeParams():
            return ToolAccess(searches=paths(request.path))
        case _:
            return ToolAccess(writes=paths(*_written(request)), others=paths(*_others(request)))


def _written(request: object) -> tuple[str, ...]:
    match request:
        case WriteFileParams() | EditFileParams() | CountedEditParams() | InsertTextParams():
            return (request.file_path,)
        case ApplyPatchParams(patch=patch):
            with suppress(PatchError):
                return patched_paths(patch)
        case _:
            pass
    return ()


def _others(request: object) -> tuple[str, ...]:
    match request:
        case RmParams(path=path) | MkdirParams(path=path):
            return (path,)
        case MoveParams():
            return (request.source, request.destination)
        case _:
            return ()


def _resolved(given: str, resolve: Callable[[str], str]) -> tuple[str, ...]:
    try:
        return (resolve(given),)
    except (OSError, ValueError):
        return ()
