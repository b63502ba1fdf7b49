"""ls, stat and the workspace: what is in a directory, what is at a path, and where that is."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.errors import link_error, missing_path_error, present
from weakincentives.contrib.tools.handlers.filters import leaving_out
from weakincentives.contrib.tools.handlers.render import (
    count_text,
    fit,
    format_path,
    hint,
    room_in,
    size_text,
    take_lines,
)
from weakincentives.contrib.tools.requests import (
    GlobParams,
    LsParams,
    ReadFileParams,
    StatParams,
    TreeParams,
    WorkspaceParams,
)
from weakincentives.contrib.tools.results import LsResult, StatResult, TreeResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import FileEntry, FileStat
from weakincentives.posix import display_path
from weakincentives.prompt import ToolResult

_MARGIN = 300  # characters for what is said around the entries


def ls(request: LsParams, context: HandlerContext) -> ToolResult[LsResult]:
    """Return the entries of a directory: directories first, files with sizes, links with targets.

    Raises:
        OSError: It is no directory; the text says what it is, or what may have been meant.
    """
    path = context.resolve_path(request.path)
    found, more = directory_entries(context, path)
    wanted = leaving_out(request.exclude)
    entries = found if wanted is None else [each for each in found if wanted(each.name)]
    nothing = _nothing(request, path, found, entries)
    if nothing:
        return ToolResult(nothing, LsResult(path or ".", ()), True, True)
    ordered = sorted(entries, key=lambda entry: (not entry.is_directory, entry.name))
    head = f"{format_path(path)}: {summary(entries)}" + (", and more" if more else "")
    budget = context.settings.budget
    page = ordered[request.offset : request.offset + context.settings.max_entries]
    lines = (entry_line(context, entry) for entry in page)
    kept = take_lines(lines, room_in(budget, len(head) + _MARGIN + 2 * len(format_path(path))))
    end = request.offset + len(kept)
    truncated = more or end < len(ordered)
    foot = (
        _foot(context, replace(request, offset=end), len(kept), len(ordered)) if truncated else ""
    )
    value = LsResult(path or ".", tuple(page[: len(kept)]), truncated)
    return ToolResult(fit([head, *kept], foot, budget), value, True, True)


def stat(request: StatParams, context: HandlerContext) -> ToolResult[StatResult]:
    """Return what is at a path.

    Raises:
        FileNotFoundError: Nothing is; the text says what may have been meant.
    """
    path = context.resolve_path(request.path)
    found = present(context, path)
    lines = [f"{format_path(path)}: {_kind_text(found)}"]
    if found.is_file:
        lines.append(f"size: {found.size_bytes:,} bytes")
    if found.modified_at is not None:
        lines.append(f"modified: {found.modified_at:%Y-%m-%d %H:%M:%S} UTC")
    permissions = getattr(found, "permissions", None)
    if permissions is not None and not getattr(found, "is_symlink", False):
        lines.append(f"permissions: {permissions:o}")
    return ToolResult(fit(lines, "", context.settings.budget), found, True, True)


def workspace(request: WorkspaceParams, context: HandlerContext) -> ToolResult[str]:
    """Return where the workspace is, and how paths in it are written."""
    root = context.filesystem.root
    lines = [
        f"{root}",
        "Only what is below it can be reached. Paths are relative to it, '.' is its top;"
        " a path that begins with it means the same.",
    ]
    if context.filesystem.read_only:
        lines.append("It can be read and not changed.")
    return ToolResult(fit(lines, "", context.settings.budget), root, True, True)


def directory_entries(context: HandlerContext, path: str) -> tuple[Sequence[FileEntry], bool]:
    """Return the entries of a directory, and whether there are more.

    Raises:
        OSError: It is no directory; the text says what it is, or what may have been meant.
    """
    try:
        entries = context.filesystem.list(path or ".")
    except OSError as error:
        raise no_directory(context, path, error) from None
    return entries, bool(getattr(entries, "truncated", False))


def no_directory(context: HandlerContext, path: str, error: OSError) -> OSError:
    """Return why something is not a directory, in words that say what to do."""
    try:
        found = context.filesystem.stat(path or ".")
    except (FileNotFoundError, NotADirectoryError):
        return missing_path_error(context, path, what="directory")
    except OSError:
        return error
    target = getattr(found, "link_target", None)
    if target is not None:
        return link_error(context, path, target)
    if found.is_file:
        call = context.dialect.format_call(ReadFileParams(path))
        text = f"{format_path(path)!r} is a file, not a directory"
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
    return ", ".join(count_text(number, *noun) for number, *noun in counts if number)


def entry_line(context: HandlerContext, entry: FileEntry) -> str:
    """Return an entry as a line of a listing."""
    name = display_path(entry.name)
    if entry.is_directory:
        return f"{name}/"
    if entry.is_file:
        size = getattr(entry, "size_bytes", None)
        return name if size is None else f"{name} ({size_text(size)})"
    if getattr(entry, "is_symlink", False):
        return f"{name} -> {_target(context, entry.path)}"
    return f"{name} (special file)"


def _target(context: HandlerContext, path: str) -> str:
    try:
        return format_path(context.filesystem.stat(path).link_target or "?")
    except OSError:
        return "?"  # it went away meanwhile


def _kind_text(found: FileStat) -> str:
    target = getattr(found, "link_target", None)
    if target is not None:
        return f"symbolic link to {format_path(target)!r}"
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
            f"{format_path(path)} has {count_text(len(entries), 'entry', 'entries')}, and"
            f" {request.offset:,}"
            " are to be skipped"
        )
    if found and not entries:
        return f"{format_path(path)} has nothing but what is left out: {summary(found)}"
    return "" if entries else f"{format_path(path)} is an empty directory"


def _foot(context: HandlerContext, rest: LsParams, count: int, total: int) -> str:
    text = f"[truncated: {count:,} of {total:,} entries are shown"
    text += hint(
        "; to continue:", context.dialect.format_call(rest) if rest.offset < total else None
    )
    call = context.dialect.format_call(GlobParams("a*", rest.path))
    return text + hint("; find others by name, for example", call) + "]"


_CLOSED = frozenset({".git"})  # never opened: nobody wants to read it as a tree
_TREE_MARGIN = 200


def tree(request: TreeParams, context: HandlerContext) -> ToolResult[TreeResult]:
    """Return a directory and what is below it, as indented lines.

    Raises:
        OSError: It is no directory; the text says what it is, or what may have been meant.
    """
    path = context.resolve_path(request.path)
    if request.depth is not None:
        return _levels(request, context, path)
    grown = _Grown(context, _wanted(request, path))
    top = grown.open(path)
    if not top:
        return ToolResult(
            f"{format_path(path)} is an empty directory", TreeResult(path or ".", ()), True, True
        )
    grown.grow(top)
    lines = list(grown.lines(path, 0))
    budget = context.settings.budget
    head = f"{format_path(path)}: {summary(top)}"
    shown = take_lines(lines, room_in(budget, len(head) + _TREE_MARGIN))
    truncated = len(shown) < len(lines) or bool(grown.closed)
    foot = _tree_foot(len(lines) - len(shown), len(grown.closed)) if truncated else ""
    value = TreeResult(path or ".", tuple(shown), truncated)
    return ToolResult(fit([head, *shown], foot, budget), value, True, True)


def _wanted(request: TreeParams, path: str) -> Callable[[FileEntry], bool]:
    kept = leaving_out(request.exclude)
    skip = len(path) + 1 if path else 0
    return lambda entry: kept is None or kept(entry.path[skip:])


def _levels(request: TreeParams, context: HandlerContext, path: str) -> ToolResult[TreeResult]:
    """Return a page of the entries of a directory and of some levels below it.

    Each directory is followed by what is in it, so that pages go on where the last one ended.
    """
    _check_page(request)
    shown = _Levels(context, _wanted(request, path), request.depth or 1)
    top, more = shown.entries(path)
    room = min(request.limit or context.settings.max_entries, context.settings.max_entries)
    lines = list(islice(shown.lines(top, 0), request.offset + room + 1))
    if request.offset and request.offset >= len(lines):
        raise ToolValidationError(
            f"{format_path(path)} has {count_text(len(lines), 'entry', 'entries')} to"
            " this depth, and"
            f" {request.offset:,} are to be skipped"
        )
    if not lines:
        value = TreeResult(path or ".", ())
        return ToolResult(f"{format_path(path)} is an empty directory", value, True, True)
    head = f"{format_path(path)}: {summary(top)}" + (", and more" if more else "")
    page = lines[request.offset : request.offset + room]
    budget = context.settings.budget
    kept = take_lines(page, room_in(budget, len(head) + _TREE_MARGIN + 2 * len(format_path(path))))
    end = request.offset + len(kept)
    truncated = more or end < len(lines)
    rest = replace(request, offset=end) if end < len(lines) else None
    foot = _page_foot(context, rest, len(kept)) if truncated else ""
    value = TreeResult(path or ".", tuple(kept), truncated)
    return ToolResult(fit([head, *kept], foot, budget), value, True, True)


def _check_page(request: TreeParams) -> None:
    for name, value, least in (
        ("depth", request.depth, 1),
        ("limit", request.limit, 1),
        ("offset", request.offset, 0),
    ):
        if value is not None and value < least:
            raise ToolValidationError(f"{name} must be at least {least}: {value}")


def _page_foot(context: HandlerContext, rest: TreeParams | None, count: int) -> str:
    text = f"[truncated: {count_text(count, 'entry is', 'entries are')} shown, and there are more"
    return text + hint("; to continue:", rest and context.dialect.format_call(rest)) + "]"


@dataclass(frozen=True, slots=True)
class _Levels:
    """The entries of directories down to some depth, as lines, one directory after the other."""

    context: HandlerContext
    is_wanted: Callable[[FileEntry], bool]
    depth: int

    def entries(self, path: str) -> tuple[Sequence[FileEntry], bool]:
        """Return what is in a directory, directories first, and whether there is more."""
        found, more = directory_entries(self.context, path)
        wanted = filter(self.is_wanted, found)
        return sorted(wanted, key=lambda entry: (not entry.is_directory, entry.name)), more

    def lines(self, entries: Sequence[FileEntry], level: int) -> Iterator[str]:
        """Yield entries as lines, each directory followed by what is in it."""
        for entry in entries:
            line = "  " * level + entry_line(self.context, entry)
            below, more = self._below(entry, level)
            yield f"{line} ..." if more else line
            yield from self.lines(below, level + 1)

    def _below(self, entry: FileEntry, level: int) -> tuple[Sequence[FileEntry], bool]:
        if not entry.is_directory or level + 1 >= self.depth or entry.name in _CLOSED:
            return (), False
        with suppress(OSError):  # it may be gone, or not to be read
            return self.entries(entry.path)
        return (), False


@dataclass(slots=True)
class _Grown:
    """Directories that were opened, and those that were not."""

    context: HandlerContext
    is_wanted: Callable[[FileEntry], bool]
    opened: dict[str, Sequence[FileEntry]] = field(default_factory=dict[str, Sequence[FileEntry]])
    closed: set[str] = field(default_factory=set[str])
    count: int = 0

    def open(self, path: str) -> Sequence[FileEntry]:
        """Return what is in a directory, directories first."""
        entries, more = directory_entries(self.context, path)
        wanted = [entry for entry in entries if self.is_wanted(entry)]
        wanted.sort(key=lambda entry: (not entry.is_directory, entry.name))
        room = self.context.settings.max_entries - self.count
        if more or len(wanted) > room:
            self.closed.add(path)
        self.opened[path] = wanted[:room]
        self.count += len(self.opened[path])
        return self.opened[path]

    def grow(self, top: Sequence[FileEntry]) -> None:
        """Open the directories below, level by level, while there is room."""
        waiting = deque(entry for entry in top if entry.is_directory)
        while waiting:
            entry = waiting.popleft()
            if entry.name in _CLOSED or self.count >= self.context.settings.max_entries:
                self.closed.add(entry.path)
                continue
            with suppress(OSError):  # it may be gone, or not to be read
                waiting += [each for each in self.open(entry.path) if each.is_directory]

    def lines(self, path: str, depth: int) -> Iterator[str]:
        """Yield the lines of a directory that was opened."""
        for entry in self.opened[path]:
            line = "  " * depth + entry_line(self.context, entry)
            yield f"{line} ..." if entry.path in self.closed else line
            if entry.path in self.opened:
                yield from self.lines(entry.path, depth + 1)


def _tree_foot(lines: int, directories: int) -> str:
    parts = [count_text(lines, "line")] if lines else []
    if directories:
        parts.append(f"what is in {count_text(directories, 'directory', 'directories')} (...)")
    return f"[truncated: {' and '.join(parts)} left out; ask for a directory below]"
