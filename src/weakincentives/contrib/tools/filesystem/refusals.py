"""Why files are not changed, in sentences that say what to do next.

Tools are named as the dialect names them; a hint that needs a tool which is not there
is left out.
"""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import Any

from weakincentives.contrib.tools.filesystem.wording import hint, named
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    EditFileParams,
    LsParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    MAX_WRITE_LENGTH,
    LimitExceededError,
    ReadableFilesystem,
    ReadOnlyError,
)
from weakincentives.filesystem.paths import check_new, parents_of


def directory_in_the_way(bench: Workbench, path: str) -> IsADirectoryError:
    """Return the error for a directory where a file is needed."""
    text = f"Is a directory, not a file: {named(path)!r}"
    how = bench.speech.call(LsParams(path or "."))
    return IsADirectoryError(text + hint("; see what is in it:", how))


def refuse_read_only(bench: Workbench, path: str) -> None:
    """Return if the workspace may be changed.

    Raises:
        ReadOnlyError: It may not.
    """
    if bench.filesystem.read_only:
        raise ReadOnlyError(f"Workspace is read-only, so nothing was changed: {named(path)!r}")


def refuse_unstorable(text: str) -> None:
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


def refuse_new(bench: Workbench, path: str, *, gone: Collection[str] = ()) -> None:
    """Return if something may be created at a path, so that a dry run is as strict as a real one.

    Args:
        bench: What it is done with.
        path: The path.
        gone: Paths that will be gone by then.

    Raises:
        ToolValidationError: Its name is not ASCII and must be.
        InvalidPathError: Its name may not be created.
        LimitExceededError: It is too deep, or a name too long.
        NotADirectoryError: A file is where a directory has to be.
    """
    bench.new_path(path)
    fs = bench.filesystem
    if fs.exists(path):
        return
    missing = [each for each in parents_of(path) if each in gone or not fs.exists(each)]
    limits = fs.limits if isinstance(fs, ReadableFilesystem) else DEFAULT_LIMITS
    check_new(path, len(missing) + 1, limits)
    for parent in parents_of(path):
        if parent not in missing and fs.stat(parent).is_file:
            raise _file_in_the_way(bench, path)


def write_limit(bench: Workbench) -> int:
    """Return how many characters one call may bring."""
    filesystem = bench.filesystem
    if isinstance(filesystem, ReadableFilesystem):
        return filesystem.limits.max_write_length
    return MAX_WRITE_LENGTH


def refuse_long(bench: Workbench, path: str, length: int) -> None:
    """Return if one call may bring so many characters.

    Raises:
        LimitExceededError: It may not; how to do it in parts is said.
    """
    limit = write_limit(bench)
    if length <= limit:
        return
    text = (
        f"Content exceeds the {limit} characters that one call may write: {length}"
        f" for {named(path)!r}; nothing was written."
    )
    appending = said(bench, WriteFileParams(path, "", "append"), "mode")
    if appending is not None:
        text += f" Write the first part, then add each further part: {appending}"
    elif editing_tool(bench) is not None:
        text += f" Write the first part, then add each further part with {editing_tool(bench)}"
    raise LimitExceededError(text)


def editing_tool(bench: Workbench) -> str | None:
    """Return the tool that changes a part of a file; if it has commands, with the right one."""
    speech = bench.speech
    told = speech.call(EditFileParams("", "old", "new"), "dry_run")
    return told or speech.name(EditFileParams) or speech.name(ApplyPatchParams)


def said(bench: Workbench, request: Any, *only: str) -> str | None:
    """Return how a request is said with these parameters; None if it cannot be."""
    spoken = bench.speech.arguments(request)
    if spoken is None or any(key not in spoken[1] for key in only):
        return None
    return bench.speech.call(request, *only)


@contextmanager
def explained(bench: Workbench, path: str) -> Generator[None, None, None]:
    """Say what to do about errors of changing what is at a path."""
    try:
        yield
    except FileExistsError:
        raise _exists(bench, path) from None
    except IsADirectoryError:
        raise directory_in_the_way(bench, path) from None
    except NotADirectoryError:
        raise _file_in_the_way(bench, path) from None
    except LimitExceededError as error:
        remover = bench.speech.name(RmParams)
        if "quota" not in str(error) or remover is None:
            raise
        raise LimitExceededError(
            f"{error}; nothing was changed. Make room with {remover}"
        ) from None


def _exists(bench: Workbench, path: str) -> FileExistsError:
    found = bench.filesystem.stat(path)
    name = named(path)
    if found.is_symlink:
        target = named(found.link_target or "")
        text = f"A symbolic link to {target!r} is there, and links are not followed: {name!r}"
        return FileExistsError(text + hint("; remove it:", said(bench, RmParams(path))))
    hints: list[str] = []
    if editing_tool(bench) is not None:
        hints.append(f"change a part of it with {editing_tool(bench)}")
    replacing = said(bench, WriteFileParams(path, "", "overwrite"), "mode")
    if replacing is not None:
        hints.append(f"replace all of it: {replacing}")
    text = f"File exists already, and was not changed: {name!r}"
    return FileExistsError("; ".join([text, ", or ".join(hints)]) if hints else text)


def _file_in_the_way(bench: Workbench, path: str) -> NotADirectoryError:
    for parent in parents_of(path):
        if bench.filesystem.exists(parent) and bench.filesystem.stat(parent).is_file:
            return NotADirectoryError(
                f"Is a file, so nothing can be below it: {named(parent)!r};"
                " use another path, or move the file away first"
            )
    return NotADirectoryError(f"Not a directory: {named(path)!r}")
