"""What may have been meant by a path at which nothing is."""

import difflib
import posixpath
import re
import unicodedata
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.filters import find_files
from weakincentives.contrib.tools.handlers.render import format_path, hint, join_words
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

_MOST = 3
_MAX_COMPARED = 2_000  # names in one directory: comparing is slow
_MAX_NAME = 100  # characters of a name that is looked for elsewhere
_SECONDS = 1.0
_ALIKE = 0.6
_MAGIC = re.compile(r"[*?\[\]{}\\!,]")


def similar_paths(context: HandlerContext, path: str) -> tuple[str, ...]:
    """Return paths that exist and are close to one that does not, the closest first."""
    found: dict[str, None] = {}
    with suppress(OSError, ValueError), time_limit(_SECONDS):
        found.update(dict.fromkeys(_alike(context, path)))
        if len(found) < _MOST:
            found.update(dict.fromkeys(_elsewhere(context, path)))
    return tuple(found)[:_MOST]


def missing_path_error(
    context: HandlerContext, path: str, *, what: str = "file or directory"
) -> FileNotFoundError:
    """Return the error for a path at which nothing is: it says what may have been meant."""
    near = similar_paths(context, path)
    text = f"No such {what}: {format_path(path)!r}"
    if near:
        return FileNotFoundError(
            f"{text}; did you mean {join_words(repr(format_path(each)) for each in near)}?"
        )
    place = _nearest_directory(context, path)
    call = context.dialect.format_call(LsParams(place or "."))
    return FileNotFoundError(text + hint("; to see what is there:", call))


def present(context: HandlerContext, path: str, *, what: str = "file or directory") -> FileStat:
    """Return what is at a path.

    Raises:
        FileNotFoundError: Nothing is; it says what may have been meant.
    """
    try:
        return context.filesystem.stat(path or ".")
    except (FileNotFoundError, NotADirectoryError):
        raise missing_path_error(context, path, what=what) from None


def link_error(context: HandlerContext, path: str, target: str) -> PermissionError:
    """Return the error for a link: it names the target, and how to read that."""
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
    return PermissionError(text + hint("; instead:", call))


def _target_inside(context: HandlerContext, path: str, target: str) -> str:
    """Return where in the workspace a link leads.

    Raises:
        PathEscapeError: It leads out.
    """
    if target.startswith("/"):
        root = context.filesystem.root.rstrip("/")
        if root and not target.startswith(root + "/"):
            raise PathEscapeError(f"Link leads out of the workspace: {target!r}")
        return context.resolve_path(target)
    return normalize_path(posixpath.join(parent_of(path), target))


def _alike(context: HandlerContext, path: str) -> Iterator[str]:
    """Yield paths in which the first segment that does not exist is another one."""
    directory = _nearest_directory(context, path)
    rest = path[len(directory) :].lstrip("/")
    wrong, _, below = rest.partition("/")
    entries = context.filesystem.list(directory or ".")[:_MAX_COMPARED]
    for name in _close(wrong, [each.name for each in entries]):
        candidate = join(directory, name)
        if below:
            candidate = f"{candidate}/{below}"
        if not below or context.filesystem.exists(candidate):
            yield candidate


def _close(wrong: str, names: Iterable[str]) -> list[str]:
    """Return the names that are like `wrong`; those that differ in case only come first."""
    by_form: dict[str, list[str]] = {}
    for name in names:
        by_form.setdefault(_form(name), []).append(name)
    forms = difflib.get_close_matches(_form(wrong), by_form, _MOST, _ALIKE)
    return [name for form in forms for name in by_form[form]]


def _form(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _nearest_directory(context: HandlerContext, path: str) -> str:
    """Return the innermost directory on the way to `path` that exists."""
    directory = parent_of(path)
    while directory:
        with suppress(OSError):
            if context.filesystem.stat(directory).is_directory:
                return directory
        directory = parent_of(directory)
    return ""


def _elsewhere(context: HandlerContext, path: str) -> list[str]:
    """Return files of the same name, in any case, in other directories."""
    name = path.rpartition("/")[2]
    if not name or len(name) > _MAX_NAME:
        return []
    pattern = "**/" + in_any_case(_MAGIC.sub(r"\\\g<0>", name))
    matches = find_files(context.filesystem, pattern, path="", ignore=True)
    paths = [each.path for each in matches if each.path != path]
    return sorted(paths, key=lambda each: -_shared_end(each, path))[:_MOST]


def _shared_end(one: str, other: str) -> int:
    """Return how many segments two paths have in common, from the end."""
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: _form(pair[0]) == _form(pair[1]), pairs))


def in_any_case(pattern: str) -> str:
    """Return a glob that takes upper and lower case for the same."""
    return "".join(map(_both_cases, pattern))


def _both_cases(character: str) -> str:
    lower, upper = character.lower(), character.upper()
    alone = lower == upper or len(lower) + len(upper) > 2
    return character if alone else f"[{lower}{upper}]"


def directory_in_the_way(context: HandlerContext, path: str) -> IsADirectoryError:
    """Return the error for a directory where a file is needed."""
    text = f"Is a directory, not a file: {format_path(path)!r}"
    how = context.dialect.format_call(LsParams(path or "."))
    return IsADirectoryError(text + hint("; see what is in it:", how))


def ensure_not_read_only(context: HandlerContext, path: str) -> None:
    """Return if the workspace may be changed.

    Raises:
        ReadOnlyError: It may not.
    """
    if context.filesystem.read_only:
        raise ReadOnlyError(
            f"Workspace is read-only, so nothing was changed: {format_path(path)!r}"
        )


def ensure_storable(text: str) -> None:
    """Return if a text can be stored.

    Raises:
        ToolValidationError: It holds half of a character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ToolValidationError(
            "Text holds half of a character (a lone surrogate), which UTF-8 cannot store,"
            f" at character {error.start}"
        ) from None


def ensure_creatable(context: HandlerContext, path: str, *, gone: Collection[str] = ()) -> None:
    """Return if something may be created at a path, so that a dry run is as strict as a real one.

    Args:
        context: What it is done with.
        path: The path.
        gone: Paths that will be gone by then.

    Raises:
        ToolValidationError: Its name is not ASCII and must be.
        InvalidPathError: Its name may not be created.
        LimitExceededError: It is too deep, or a name too long.
        NotADirectoryError: A file is where a directory has to be.
    """
    context.resolve_new_path(path)
    fs = context.filesystem
    if fs.exists(path):
        return
    missing = [each for each in parents_of(path) if each in gone or not fs.exists(each)]
    check_new_path(path, len(missing) + 1, limits_of(fs))
    for parent in parents_of(path):
        if parent not in missing and fs.stat(parent).is_file:
            raise _file_in_the_way(context, path)


def write_limit(context: HandlerContext) -> int:
    """Return how many characters one call may bring."""
    return limits_of(context.filesystem).max_write_length


def ensure_short_enough(context: HandlerContext, path: str, length: int) -> None:
    """Return if one call may bring so many characters.

    Raises:
        LimitExceededError: It may not; how to do it in parts is said.
    """
    limit = write_limit(context)
    if length <= limit:
        return
    text = (
        f"Content exceeds the {limit} characters that one call may write: {length}"
        f" for {format_path(path)!r}; nothing was written."
    )
    appending = explain(context, WriteFileParams(path, "", "append"), "mode")
    if appending is not None:
        text += f" Write the first part, then add each further part: {appending}"
    elif editing_tool(context) is not None:
        text += f" Write the first part, then add each further part with {editing_tool(context)}"
    raise LimitExceededError(text)


def editing_tool(context: HandlerContext) -> str | None:
    """Return the tool that changes a part of a file; if it has commands, with the right one."""
    dialect = context.dialect
    told = dialect.format_call(EditFileParams("", "old", "new"), "dry_run")
    return told or dialect.tool_name(EditFileParams) or dialect.tool_name(ApplyPatchParams)


def explain(context: HandlerContext, request: Any, *only: str) -> str | None:
    """Return how a request is said with these parameters; None if it cannot be."""
    spoken = context.dialect.encode(request)
    if spoken is None or any(key not in spoken[1] for key in only):
        return None
    return context.dialect.format_call(request, *only)


@contextmanager
def explain_errors(context: HandlerContext, path: str) -> Generator[None, None, None]:
    """Say what to do about errors of changing what is at a path."""
    try:
        yield
    except FileExistsError:
        raise _exists(context, path) from None
    except IsADirectoryError:
        raise directory_in_the_way(context, path) from None
    except NotADirectoryError:
        raise _file_in_the_way(context, path) from None
    except LimitExceededError as error:
        remover = context.dialect.tool_name(RmParams)
        if "quota" not in str(error) or remover is None:
            raise
        raise LimitExceededError(
            f"{error}; nothing was changed. Make room with {remover}"
        ) from None


def _exists(context: HandlerContext, path: str) -> FileExistsError:
    found = context.filesystem.stat(path)
    name = format_path(path)
    if found.is_symlink:
        target = format_path(found.link_target or "")
        text = f"A symbolic link to {target!r} is there, and links are not followed: {name!r}"
        return FileExistsError(text + hint("; remove it:", explain(context, RmParams(path))))
    hints: list[str] = []
    if editing_tool(context) is not None:
        hints.append(f"change a part of it with {editing_tool(context)}")
    replacing = explain(context, WriteFileParams(path, "", "overwrite"), "mode")
    if replacing is not None:
        hints.append(f"replace all of it: {replacing}")
    text = f"File exists already, and was not changed: {name!r}"
    return FileExistsError("; ".join([text, ", or ".join(hints)]) if hints else text)


def _file_in_the_way(context: HandlerContext, path: str) -> NotADirectoryError:
    for parent in parents_of(path):
        if context.filesystem.exists(parent) and context.filesystem.stat(parent).is_file:
            return NotADirectoryError(
                f"Is a file, so nothing can be below it: {format_path(parent)!r};"
                " use another path, or move the file away first"
            )
    return NotADirectoryError(f"Not a directory: {format_path(path)!r}")
