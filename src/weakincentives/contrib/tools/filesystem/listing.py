"""ls, stat and the workspace: what is in a directory, what is at a path, and where that is."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from weakincentives.contrib.tools.filesystem.filters import leaving_out
from weakincentives.contrib.tools.filesystem.near_names import link_refused, missing, present
from weakincentives.contrib.tools.filesystem.wording import (
    counted,
    fitted,
    hint,
    named,
    room_in,
    size_text,
    taken,
)
from weakincentives.contrib.tools.requests import (
    GlobParams,
    LsParams,
    ReadFileParams,
    StatParams,
    WorkspaceParams,
)
from weakincentives.contrib.tools.results import LsResult, StatResult
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import FileEntry, FileStat
from weakincentives.filesystem.paths import shown
from weakincentives.prompt import ToolResult

_MARGIN = 300  # characters for what is said around the entries


def ls(request: LsParams, bench: Workbench) -> ToolResult[LsResult]:
    """Return the entries of a directory: directories first, files with sizes, links with targets.

    Raises:
        OSError: It is no directory; the text says what it is, or what may have been meant.
    """
    path = bench.path(request.path)
    found, more = directory_entries(bench, path)
    wanted = leaving_out(request.exclude)
    entries = found if wanted is None else [each for each in found if wanted(each.name)]
    nothing = _nothing(request, path, found, entries)
    if nothing:
        return ToolResult(nothing, LsResult(path or ".", ()), True, True)
    ordered = sorted(entries, key=lambda entry: (not entry.is_directory, entry.name))
    head = f"{named(path)}: {summary(entries)}" + (", and more" if more else "")
    budget = bench.settings.budget
    page = ordered[request.offset : request.offset + bench.settings.max_entries]
    lines = (entry_line(bench, entry) for entry in page)
    kept = taken(lines, room_in(budget, len(head) + _MARGIN + 2 * len(named(path))))
    end = request.offset + len(kept)
    truncated = more or end < len(ordered)
    foot = _foot(bench, replace(request, offset=end), len(kept), len(ordered)) if truncated else ""
    value = LsResult(path or ".", tuple(page[: len(kept)]), truncated)
    return ToolResult(fitted([head, *kept], foot, budget), value, True, True)


def stat(request: StatParams, bench: Workbench) -> ToolResult[StatResult]:
    """Return what is at a path.

    Raises:
        FileNotFoundError: Nothing is; the text says what may have been meant.
    """
    path = bench.path(request.path)
    found = present(bench, path)
    lines = [f"{named(path)}: {_kind_text(found)}"]
    if found.is_file:
        lines.append(f"size: {found.size_bytes:,} bytes")
    if found.modified_at is not None:
        lines.append(f"modified: {found.modified_at:%Y-%m-%d %H:%M:%S} UTC")
    permissions = getattr(found, "permissions", None)
    if permissions is not None and not getattr(found, "is_symlink", False):
        lines.append(f"permissions: {permissions:o}")
    return ToolResult(fitted(lines, "", bench.settings.budget), found, True, True)


def workspace(request: WorkspaceParams, bench: Workbench) -> ToolResult[str]:
    """Return where the workspace is, and how paths in it are written."""
    root = bench.filesystem.root
    lines = [
        f"{root}",
        "Only what is below it can be reached. Paths are relative to it, '.' is its top;"
        " a path that begins with it means the same.",
    ]
    if bench.filesystem.read_only:
        lines.append("It can be read and not changed.")
    return ToolResult(fitted(lines, "", bench.settings.budget), root, True, True)


def directory_entries(bench: Workbench, path: str) -> tuple[Sequence[FileEntry], bool]:
    """Return the entries of a directory, and whether there are more.

    Raises:
        OSError: It is no directory; the text says what it is, or what may have been meant.
    """
    try:
        entries = bench.filesystem.list(path or ".")
    except OSError as error:
        raise no_directory(bench, path, error) from None
    return entries, bool(getattr(entries, "truncated", False))


def no_directory(bench: Workbench, path: str, error: OSError) -> OSError:
    """Return why something is not a directory, in words that say what to do."""
    try:
        found = bench.filesystem.stat(path or ".")
    except (FileNotFoundError, NotADirectoryError):
        return missing(bench, path, what="directory")
    except OSError:
        return error
    target = getattr(found, "link_target", None)
    if target is not None:
        return link_refused(bench, path, target)
    if found.is_file:
        call = bench.speech.call(ReadFileParams(path))
        text = f"{named(path)!r} is a file, not a directory"
        return NotADirectoryError(text + hint("; to read it:", call))
    return error


def summary(entries: Iterable[FileEntry]) -> str:
    """Return how many entries of which kind there are."""
    directories = files = links = others = 0
    for entry in entries:
        directories += entry.is_directory
        files += entry.is_file
        is_link = getattr(entry, "is_symlink", False)
        links += is_link
        others += not (entry.is_directory or entry.is_file or is_link)
    counts = [
        (directories, "directory", "directories"),
        (files, "file", ""),
        (links, "link", ""),
        (others, "special file", ""),
    ]
    return ", ".join(counted(number, *noun) for number, *noun in counts if number)


def entry_line(bench: Workbench, entry: FileEntry) -> str:
    """Return an entry as a line of a listing."""
    name = shown(entry.name)
    if entry.is_directory:
        return f"{name}/"
    if entry.is_file:
        size = getattr(entry, "size_bytes", None)
        return name if size is None else f"{name} ({size_text(size)})"
    if getattr(entry, "is_symlink", False):
        return f"{name} -> {_target(bench, entry.path)}"
    return f"{name} (special file)"


def _target(bench: Workbench, path: str) -> str:
    try:
        return named(bench.filesystem.stat(path).link_target or "?")
    except OSError:
        return "?"  # it went away meanwhile


def _kind_text(found: FileStat) -> str:
    target = getattr(found, "link_target", None)
    if target is not None:
        return f"symbolic link to {named(target)!r}"
    if found.is_directory:
        return "directory"
    return "file" if found.is_file else "special file"


def _nothing(
    request: LsParams, path: str, found: Sequence[FileEntry], entries: Sequence[FileEntry]
) -> str:
    """Say why there is nothing to show; empty if there is something.

    Raises:
        ToolValidationError: More entries are to be skipped than there are.
    """
    if request.offset < 0 or (request.offset and request.offset >= len(entries)):
        raise ToolValidationError(
            f"{named(path)} has {counted(len(entries), 'entry', 'entries')}, and {request.offset:,}"
            " are to be skipped"
        )
    if found and not entries:
        return f"{named(path)} has nothing but what is left out: {summary(found)}"
    return "" if entries else f"{named(path)} is an empty directory"


def _foot(bench: Workbench, rest: LsParams, count: int, total: int) -> str:
    text = f"[truncated: {count:,} of {total:,} entries are shown"
    text += hint("; continue with", bench.speech.call(rest) if rest.offset < total else None)
    call = bench.speech.call(GlobParams("a*", rest.path))
    return text + hint("; find others by name, for example", call) + "]"
