"""Errors with a next step: similar paths, the right tool, and checks before a change."""

import posixpath
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from typing import Any

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.render import format_path, hint, join_words
from weakincentives.contrib.tools.handlers.suggestions import nearest_directory, similar_paths
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    FileStat,
    LimitExceededError,
    PathEscapeError,
    ReadOnlyError,
    normalize_path,
)
from weakincentives.filesystem.base import check_new_path, limits_of
from weakincentives.posix import parent_of, parents_of


def missing_path_error(
    context: HandlerContext, path: str, *, what: str = "file or directory"
) -> FileNotFoundError:
    """Return the error for a missing path, with similar paths or the call that lists some."""
    near = similar_paths(context, path)
    text = f"No such {what}: {format_path(path)!r}"
    if near:
        return FileNotFoundError(
            f"{text}; did you mean {join_words(repr(format_path(each)) for each in near)}?"
        )
    place = nearest_directory(context, path)
    call = context.dialect.format_call(requests.LsParams(place or "."))
    return FileNotFoundError(text + hint("; to see what exists:", call))


def stat_path(context: HandlerContext, path: str, *, what: str = "file or directory") -> FileStat:
    """Return the metadata of a path."""
    try:
        return context.filesystem.stat(path or ".")
    except (FileNotFoundError, NotADirectoryError):
        raise missing_path_error(context, path, what=what) from None


def access_error(
    context: HandlerContext, path: str, error: OSError, *, what: str = "file or directory"
) -> OSError:
    """Return an error that says why a path is not the `what` that is needed, and what to do."""
    try:
        found = stat_path(context, path, what=what)
    except FileNotFoundError as missing:
        return missing
    except OSError:
        return error
    target = getattr(found, "link_target", None)
    if target is not None:
        return link_error(context, path, target)
    name = repr(format_path(path))
    if found.is_directory and what == "file":
        call = context.dialect.format_call(requests.LsParams(path or "."))
        return IsADirectoryError(f"{name} is a directory" + hint("; to list it:", call))
    if found.is_file and what == "directory":
        call = context.dialect.format_call(requests.ReadFileParams(path))
        return NotADirectoryError(
            f"{name} is a file, not a directory" + hint("; to read it:", call)
        )
    return error


def link_error(context: HandlerContext, path: str, target: str) -> PermissionError:
    """Return the error for a symbolic link, with its target and how to read that."""
    text = (
        f"{format_path(path)!r} is a symbolic link to {format_path(target)!r}; links are"
        " not followed"
    )
    call = None
    with suppress(OSError, ValueError):
        inside = _target_inside(context, path, target)
        found = context.filesystem.stat(inside or ".")
        request = requests.ReadFileParams(inside) if found.is_file else requests.LsParams(inside)
        call = context.dialect.format_call(request)
    return PermissionError(text + hint("; use its target:", call))


def _target_inside(context: HandlerContext, path: str, target: str) -> str:
    """Return the workspace path that a link points to."""
    if target.startswith("/"):
        root = context.filesystem.root.rstrip("/")
        if root and not target.startswith(root + "/"):
            raise PathEscapeError(f"Link points outside the workspace: {target!r}")
        return context.resolve_path(target)
    return normalize_path(posixpath.join(parent_of(path), target))


def is_directory_error(context: HandlerContext, path: str) -> IsADirectoryError:
    """Return the error for a directory where a file is needed."""
    text = f"{format_path(path)!r} is a directory, not a file"
    how = context.dialect.format_call(requests.LsParams(path or "."))
    return IsADirectoryError(text + hint("; to list it:", how))


def ensure_writable(context: HandlerContext, path: str) -> None:
    """Check that the workspace is writable."""
    if context.filesystem.read_only:
        raise ReadOnlyError(
            f"The workspace is read-only; nothing was changed: {format_path(path)!r}"
        )


def ensure_encodable(text: str) -> None:
    """Check that a text can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ToolValidationError(
            f"Text has a lone surrogate (half a character) at character {error.start}, which UTF-8"
            " cannot store; send the complete character"
        ) from None


def ensure_creatable(context: HandlerContext, path: str, *, gone: Collection[str] = ()) -> None:
    """Check that a path can be created, so that a dry run is as strict as a real one.

    The paths in `gone` will have been removed by then.
    """
    context.resolve_new_path(path)
    fs = context.filesystem
    if fs.exists(path):
        return
    missing = [each for each in parents_of(path) if each in gone or not fs.exists(each)]
    check_new_path(path, len(missing) + 1, limits_of(fs))
    for parent in parents_of(path):
        if parent not in missing and fs.stat(parent).is_file:
            raise _not_directory_error(context, path)


def ensure_within_limit(
    context: HandlerContext,
    path: str,
    length: int,
    *,
    unit: str = "characters",
    is_edit: bool = False,
) -> None:
    """Check that one call may write so many characters or bytes, or add them to a file."""
    limit = limits_of(context.filesystem).max_write_length
    if length <= limit:
        return
    text = (
        f"Content for {format_path(path)!r} has {length} {unit}; one call may write at most"
        f" {limit}. Nothing was written."
    )
    appending = format_supported_call(context, requests.WriteFileParams(path, "", "append"), "mode")
    if is_edit:
        text += " Make this change in several calls, each with a part of the new text"
    elif appending is not None:
        text += f" Write the first part, then append the rest: {appending}"
    elif edit_tool_name(context) is not None:
        text += f" Write the first part, then add the rest with {edit_tool_name(context)}"
    raise LimitExceededError(text)


def edit_tool_name(context: HandlerContext) -> str | None:
    """Return the tool that edits part of a file, with its command if it has several."""
    dialect = context.dialect
    call = dialect.format_call(requests.EditFileParams("", "old", "new"), "dry_run")
    return (
        call
        or dialect.tool_name(requests.EditFileParams)
        or dialect.tool_name(requests.ApplyPatchParams)
    )


def format_supported_call(context: HandlerContext, request: Any, *only: str) -> str | None:
    """Return the call for a request; None if the tool lacks one of these parameters."""
    encoded = context.dialect.encode(request)
    if encoded is None or any(key not in encoded[1] for key in only):
        return None
    return context.dialect.format_call(request, *only)


@contextmanager
def explain_errors(context: HandlerContext, path: str) -> Generator[None, None, None]:
    """Turn errors of a change at `path` into errors that say what to do."""
    try:
        yield
    except FileExistsError:
        raise _exists_error(context, path) from None
    except IsADirectoryError:
        raise is_directory_error(context, path) from None
    except NotADirectoryError:
        raise _not_directory_error(context, path) from None
    except LimitExceededError as error:
        remover = context.dialect.tool_name(requests.RmParams)
        if "quota" not in str(error) or remover is None:
            raise
        raise LimitExceededError(
            f"{error}; nothing was changed. Free space with {remover}"
        ) from None


def _exists_error(context: HandlerContext, path: str) -> FileExistsError:
    found = context.filesystem.stat(path)
    name = format_path(path)
    if found.is_symlink:
        target = format_path(found.link_target or "")
        text = f"{name!r} is a symbolic link to {target!r}; links are not followed"
        return FileExistsError(
            text + hint("; to remove it:", format_supported_call(context, requests.RmParams(path)))
        )
    hints: list[str] = []
    if edit_tool_name(context) is not None:
        hints.append(f"to edit it: {edit_tool_name(context)}")
    replacing = format_supported_call(
        context, requests.WriteFileParams(path, "", "overwrite"), "mode"
    )
    if replacing is not None:
        hints.append(f"to replace it: {replacing}")
    text = f"File already exists and was not changed: {name!r}"
    return FileExistsError("; ".join([text, *hints]))


def _not_directory_error(context: HandlerContext, path: str) -> NotADirectoryError:
    for parent in parents_of(path):
        if context.filesystem.exists(parent) and context.filesystem.stat(parent).is_file:
            return NotADirectoryError(
                f"{format_path(parent)!r} is a file, so {format_path(path)!r} cannot be created"
                " below it; use another path, or move the file first"
            )
    return NotADirectoryError(f"Not a directory: {format_path(path)!r}")
