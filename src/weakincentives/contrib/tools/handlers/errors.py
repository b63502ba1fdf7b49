"""Errors with a next step: similar paths, the right tool, and checks before a change."""

import difflib
import posixpath
import re
import unicodedata
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.render import format_path, hint, join_words
from weakincentives.contrib.tools.handlers.search import find_files
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    EditFileParams,
    LsParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    FileStat,
    LimitExceededError,
    PathEscapeError,
    ReadOnlyError,
    normalize_path,
    time_limit,
)
from weakincentives.filesystem.base import check_new_path, limits_of
from weakincentives.posix import join, parent_of, parents_of

_MAX_SUGGESTIONS = 3
_MAX_COMPARED = 2_000  # names per directory: the comparison is slow
_MAX_NAME = 100  # longest name to look for in other directories
_SUGGESTION_TIMEOUT = 1.0
_SIMILARITY_THRESHOLD = 0.6
_GLOB_SPECIAL = re.compile(r"[*?\[\]{}\\!,]")


def similar_paths(context: HandlerContext, path: str) -> tuple[str, ...]:
    """Return existing paths that are similar to a missing one, the closest first."""
    found: dict[str, None] = {}
    with suppress(OSError, ValueError), time_limit(_SUGGESTION_TIMEOUT):
        found.update(dict.fromkeys(_similar_names(context, path)))
        if len(found) < _MAX_SUGGESTIONS:
            found.update(dict.fromkeys(_same_name(context, path)))
    return tuple(found)[:_MAX_SUGGESTIONS]


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
    place = _nearest_directory(context, path)
    call = context.dialect.format_call(LsParams(place or "."))
    return FileNotFoundError(text + hint("; to see what exists:", call))


def stat_path(context: HandlerContext, path: str, *, what: str = "file or directory") -> FileStat:
    """Return the metadata of a path.

    Raises:
        FileNotFoundError: The path does not exist; the message suggests others.
    """
    try:
        return context.filesystem.stat(path or ".")
    except (FileNotFoundError, NotADirectoryError):
        raise missing_path_error(context, path, what=what) from None


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
        request = ReadFileParams(inside) if found.is_file else LsParams(inside)
        call = context.dialect.format_call(request)
    return PermissionError(text + hint("; use its target:", call))


def _target_inside(context: HandlerContext, path: str, target: str) -> str:
    """Return the workspace path that a link points to.

    Raises:
        PathEscapeError: It points outside the workspace.
    """
    if target.startswith("/"):
        root = context.filesystem.root.rstrip("/")
        if root and not target.startswith(root + "/"):
            raise PathEscapeError(f"Link points outside the workspace: {target!r}")
        return context.resolve_path(target)
    return normalize_path(posixpath.join(parent_of(path), target))


def _similar_names(context: HandlerContext, path: str) -> Iterator[str]:
    """Yield paths with the first missing segment replaced by a similar name."""
    directory = _nearest_directory(context, path)
    rest = path[len(directory) :].lstrip("/")
    wrong, _, below = rest.partition("/")
    entries = context.filesystem.list(directory or ".")[:_MAX_COMPARED]
    for name in _close_matches(wrong, [each.name for each in entries]):
        candidate = join(directory, name)
        if below:
            candidate = f"{candidate}/{below}"
        if not below or context.filesystem.exists(candidate):
            yield candidate


def _close_matches(wrong: str, names: Iterable[str]) -> list[str]:
    """Return the names similar to `wrong`; those that differ only in case come first."""
    by_form: dict[str, list[str]] = {}
    for name in names:
        by_form.setdefault(_fold_name(name), []).append(name)
    forms = difflib.get_close_matches(
        _fold_name(wrong), by_form, _MAX_SUGGESTIONS, _SIMILARITY_THRESHOLD
    )
    return [name for form in forms for name in by_form[form]]


def _fold_name(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _nearest_directory(context: HandlerContext, path: str) -> str:
    """Return the closest existing parent directory of `path`."""
    directory = parent_of(path)
    while directory:
        with suppress(OSError):
            if context.filesystem.stat(directory).is_directory:
                return directory
        directory = parent_of(directory)
    return ""


def _same_name(context: HandlerContext, path: str) -> list[str]:
    """Return files with the same name, ignoring case, in other directories."""
    name = path.rpartition("/")[2]
    if not name or len(name) > _MAX_NAME:
        return []
    pattern = "**/" + ignore_case(_GLOB_SPECIAL.sub(r"\\\g<0>", name))
    matches = find_files(context.filesystem, pattern, path="", ignore=True)
    paths = [each.path for each in matches if each.path != path]
    return sorted(paths, key=lambda each: -_common_suffix(each, path))[:_MAX_SUGGESTIONS]


def _common_suffix(one: str, other: str) -> int:
    """Return the number of trailing segments that two paths share."""
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: _fold_name(pair[0]) == _fold_name(pair[1]), pairs))


def ignore_case(pattern: str) -> str:
    """Return a glob that ignores case."""
    return "".join(map(_both_cases, pattern))


def _both_cases(character: str) -> str:
    lower, upper = character.lower(), character.upper()
    alone = lower == upper or len(lower) + len(upper) > 2
    return character if alone else f"[{lower}{upper}]"


def is_directory_error(context: HandlerContext, path: str) -> IsADirectoryError:
    """Return the error for a directory where a file is needed."""
    text = f"{format_path(path)!r} is a directory, not a file"
    how = context.dialect.format_call(LsParams(path or "."))
    return IsADirectoryError(text + hint("; to list it:", how))


def ensure_writable(context: HandlerContext, path: str) -> None:
    """Check that the workspace is writable.

    Raises:
        ReadOnlyError: The workspace is read-only.
    """
    if context.filesystem.read_only:
        raise ReadOnlyError(
            f"The workspace is read-only; nothing was changed: {format_path(path)!r}"
        )


def ensure_encodable(text: str) -> None:
    """Check that a text can be encoded as UTF-8.

    Raises:
        ToolValidationError: It has a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ToolValidationError(
            f"Text has a lone surrogate (half a character) at character {error.start}, which UTF-8"
            " cannot store; send the complete character"
        ) from None


def ensure_creatable(context: HandlerContext, path: str, *, gone: Collection[str] = ()) -> None:
    """Check that a path can be created, so that a dry run is as strict as a real one.

    Args:
        context: The context of the request.
        path: The path.
        gone: Paths that will have been removed by then.

    Raises:
        ToolValidationError: Its name is not ASCII.
        InvalidPathError: Its name is reserved or invalid.
        LimitExceededError: It is too deep, or a name is too long.
        NotADirectoryError: One of its parents is a file.
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


def write_limit(context: HandlerContext) -> int:
    """Return the number of characters that one call may write."""
    return limits_of(context.filesystem).max_write_length


def ensure_within_limit(context: HandlerContext, path: str, length: int) -> None:
    """Check that one call may write so many characters.

    Raises:
        LimitExceededError: There are too many; the message says how to write in parts.
    """
    limit = write_limit(context)
    if length <= limit:
        return
    text = (
        f"Content for {format_path(path)!r} has {length} characters; one call may write at most"
        f" {limit}. Nothing was written."
    )
    appending = format_supported_call(context, WriteFileParams(path, "", "append"), "mode")
    if appending is not None:
        text += f" Write the first part, then append the rest: {appending}"
    elif edit_tool_name(context) is not None:
        text += f" Write the first part, then add the rest with {edit_tool_name(context)}"
    raise LimitExceededError(text)


def edit_tool_name(context: HandlerContext) -> str | None:
    """Return the tool that edits part of a file, with its command if it has several."""
    dialect = context.dialect
    call = dialect.format_call(EditFileParams("", "old", "new"), "dry_run")
    return call or dialect.tool_name(EditFileParams) or dialect.tool_name(ApplyPatchParams)


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
        remover = context.dialect.tool_name(RmParams)
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
            text + hint("; to remove it:", format_supported_call(context, RmParams(path)))
        )
    hints: list[str] = []
    if edit_tool_name(context) is not None:
        hints.append(f"to edit it: {edit_tool_name(context)}")
    replacing = format_supported_call(context, WriteFileParams(path, "", "overwrite"), "mode")
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
