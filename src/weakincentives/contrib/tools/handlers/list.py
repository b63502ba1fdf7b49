"""`ls`, `tree`, `stat` and `workspace`: directory listings, file metadata, the root."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers import render
from weakincentives.contrib.tools.handlers.errors import access_error, stat_path
from weakincentives.contrib.tools.handlers.search import compile_exclude
from weakincentives.contrib.tools.results import LsResult, StatResult, TreeResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import FileEntry, FileStat
from weakincentives.filesystem.base import TOOL_OUTPUT
from weakincentives.posix import display_path
from weakincentives.prompt import ToolResult

_MARGIN = 300  # characters for the lines around the entries


def ls(request: requests.LsParams, context: HandlerContext) -> ToolResult[LsResult]:
    """Return a directory listing: directories first, files with sizes, links with targets."""
    path = context.resolve_path(request.path)
    found, more = list_directory(context, path)
    wanted = compile_exclude(request.exclude)
    entries = found if wanted is None else [each for each in found if wanted(each.name)]
    nothing = _explain_empty(request, path, found, entries)
    if nothing:
        return render.bounded_result(context, [nothing], LsResult(path or ".", ()))
    ordered = sorted(entries, key=_by_name)
    if request.sort_by == "size":
        ordered.sort(key=lambda entry: -(entry.size_bytes or 0))
    head = f"{render.format_path(path)}: {summarize(entries)}" + (", and more" if more else "")
    budget = context.settings.budget
    page = ordered[request.offset : request.offset + context.settings.max_entries]
    lines = (render_entry(context, entry) for entry in page)
    kept = render.take_lines(
        lines, render.room_for(budget, len(head) + _MARGIN + 2 * len(render.format_path(path)))
    )
    end = request.offset + len(kept)
    truncated = more or end < len(ordered)
    foot = (
        _render_foot(context, replace(request, offset=end), len(kept), len(ordered))
        if truncated
        else ""
    )
    value = LsResult(path or ".", tuple(page[: len(kept)]), truncated)
    return render.bounded_result(context, [head, *kept], value, foot)


def stat(request: requests.StatParams, context: HandlerContext) -> ToolResult[StatResult]:
    """Return the type, size, time and permissions of a path."""
    path = context.resolve_path(request.path)
    found = stat_path(context, path)
    lines = [f"{render.format_path(path)}: {_kind_text(found)}"]
    if found.is_file:
        lines.append(f"size: {found.size_bytes:,} bytes")
    if found.modified_at is not None:
        lines.append(f"modified: {found.modified_at:%Y-%m-%d %H:%M:%S} UTC")
    permissions = getattr(found, "permissions", None)
    if permissions is not None and not getattr(found, "is_symlink", False):
        lines.append(f"permissions: {permissions:o}")
    return render.bounded_result(context, lines, found)


def workspace(_request: requests.WorkspaceParams, context: HandlerContext) -> ToolResult[str]:
    """Return the workspace root, and how paths are written."""
    root = next(iter(context.settings.host_roots), context.filesystem.root)
    lines = [
        f"{root}",
        "This is the workspace root; only files below it are accessible. Paths are relative to it"
        " ('.' is the root itself); absolute paths below it work too.",
    ]
    if context.filesystem.read_only:
        lines.append("The workspace is read-only.")
    return render.bounded_result(context, lines, root)


def _by_name(entry: FileEntry) -> tuple[bool, str]:
    return not entry.is_directory, entry.name


def list_directory(context: HandlerContext, path: str) -> tuple[Sequence[FileEntry], bool]:
    """Return the entries of a directory, and whether the list is truncated."""
    try:
        entries = context.filesystem.list(path or ".")
    except OSError as error:
        raise access_error(context, path, error, what="directory") from None
    is_truncated = bool(getattr(entries, "truncated", False))
    if not path:  # those who need it know its name
        entries = [entry for entry in entries if entry.name != TOOL_OUTPUT]
    return entries, is_truncated


def summarize(entries: Iterable[FileEntry]) -> str:
    """Return the number of entries of each kind."""
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
    return ", ".join(render.format_count(number, *noun) for number, *noun in counts if number)


def render_entry(context: HandlerContext, entry: FileEntry) -> str:
    """Return an entry as a line of a listing."""
    name = display_path(entry.name)
    if entry.is_directory:
        return f"{name}/"
    if entry.is_file:
        size = getattr(entry, "size_bytes", None)
        return name if size is None else f"{name} ({render.format_size(size)})"
    if getattr(entry, "is_symlink", False):
        return f"{name} -> {_read_target(context, entry.path)}"
    return f"{name} (special file)"


def _read_target(context: HandlerContext, path: str) -> str:
    try:
        return render.format_path(context.filesystem.stat(path).link_target or "?")
    except OSError:
        return "?"  # removed in the meantime


def _kind_text(found: FileStat) -> str:
    target = getattr(found, "link_target", None)
    if target is not None:
        return f"symbolic link to {render.format_path(target)!r}"
    if found.is_directory:
        return "directory"
    return "file" if found.is_file else "special file"


def _explain_empty(
    request: requests.LsParams, path: str, found: Sequence[FileEntry], entries: Sequence[FileEntry]
) -> str:
    """Return why there is nothing to show; empty if there is something."""
    if request.offset < 0 or (request.offset and request.offset >= len(entries)):
        raise ToolValidationError(
            f"offset {request.offset:,} is out of range: {render.format_path(path)} has"
            f" {render.format_count(len(entries), 'entry', 'entries')}"
        )
    if found and not entries:
        return f"All entries of {render.format_path(path)} are excluded: {summarize(found)}"
    return "" if entries else f"{render.format_path(path)} is an empty directory"


def _render_foot(context: HandlerContext, rest: requests.LsParams, count: int, total: int) -> str:
    text = f"[truncated: {count:,} of {total:,} entries shown"
    text += render.hint(
        "; to continue:", context.dialect.format_call(rest) if rest.offset < total else None
    )
    call = context.dialect.format_call(requests.GlobParams("a*", rest.path))
    return text + render.hint("; to find others by name, for example:", call) + "]"


_NEVER_EXPANDED = frozenset({".git"})  # of no use as a tree
_TREE_MARGIN = 200


def tree(request: requests.TreeParams, context: HandlerContext) -> ToolResult[TreeResult]:
    """Return a directory tree as indented lines."""
    path = context.resolve_path(request.path)
    if request.depth is not None:
        return _render_levels(request, context, path)
    builder = _TreeBuilder(context, _compile_filter(request, path))
    top = builder.expand(path)
    if not top:
        return _empty_tree(context, path)
    builder.expand_all(top)
    lines = list(builder.lines(path, 0))
    budget = context.settings.budget
    head = f"{render.format_path(path)}: {summarize(top)}"
    shown = render.take_lines(lines, render.room_for(budget, len(head) + _TREE_MARGIN))
    truncated = len(shown) < len(lines) or bool(builder.unexpanded)
    foot = _render_tree_foot(len(lines) - len(shown), len(builder.unexpanded)) if truncated else ""
    value = TreeResult(path or ".", tuple(shown), truncated)
    return render.bounded_result(context, [head, *shown], value, foot)


def _empty_tree(context: HandlerContext, path: str) -> ToolResult[TreeResult]:
    text = f"{render.format_path(path)} is an empty directory"
    return render.bounded_result(context, [text], TreeResult(path or ".", ()))


def _compile_filter(request: requests.TreeParams, path: str) -> Callable[[FileEntry], bool]:
    kept = compile_exclude(request.exclude)
    skip = len(path) + 1 if path else 0
    return lambda entry: kept is None or kept(entry.path[skip:])


def _render_levels(
    request: requests.TreeParams, context: HandlerContext, path: str
) -> ToolResult[TreeResult]:
    """Return a page of a directory tree down to a given depth.

    Each directory is followed by its entries, so that a page continues where the last ended.
    """
    _check_page(request)
    is_wanted = _compile_filter(request, path)
    top, more = _list_wanted(context, path, is_wanted)
    room = min(request.limit or context.settings.max_entries, context.settings.max_entries)
    walk = _walk_levels(context, top, is_wanted, 0, request.depth or 1)
    lines = list(islice(walk, request.offset + room + 1))
    if request.offset and request.offset >= len(lines):
        raise ToolValidationError(
            f"offset {request.offset:,} is out of range: {render.format_path(path)} has"
            f" {render.format_count(len(lines), 'entry', 'entries')} at this depth"
        )
    if not lines:
        return _empty_tree(context, path)
    head = f"{render.format_path(path)}: {summarize(top)}" + (", and more" if more else "")
    page = lines[request.offset : request.offset + room]
    budget = context.settings.budget
    kept = render.take_lines(
        page, render.room_for(budget, len(head) + _TREE_MARGIN + 2 * len(render.format_path(path)))
    )
    end = request.offset + len(kept)
    truncated = more or end < len(lines)
    rest = replace(request, offset=end) if end < len(lines) else None
    call = rest and context.dialect.format_call(rest)
    shown = render.format_count(len(kept), "entry", "entries")
    foot = f"[truncated: {shown} shown, more follow{render.hint('; to continue:', call)}]"
    value = TreeResult(path or ".", tuple(kept), truncated)
    return render.bounded_result(context, [head, *kept], value, foot if truncated else "")


def _check_page(request: requests.TreeParams) -> None:
    for name, value, least in (
        ("depth", request.depth, 1),
        ("limit", request.limit, 1),
        ("offset", request.offset, 0),
    ):
        if value is not None and value < least:
            raise ToolValidationError(f"{name} must be at least {least}: {value}")


def _list_wanted(
    context: HandlerContext, path: str, is_wanted: Callable[[FileEntry], bool]
) -> tuple[Sequence[FileEntry], bool]:
    """Return the entries of a directory, directories first, and whether there are more."""
    found, more = list_directory(context, path)
    return sorted(filter(is_wanted, found), key=_by_name), more


def _walk_levels(
    context: HandlerContext,
    entries: Sequence[FileEntry],
    is_wanted: Callable[[FileEntry], bool],
    level: int,
    depth: int,
) -> Iterator[str]:
    """Yield entries as lines, each directory followed by its entries, down to some depth."""
    for entry in entries:
        below: Sequence[FileEntry] = ()
        more = False
        if entry.is_directory and level + 1 < depth and entry.name not in _NEVER_EXPANDED:
            with suppress(OSError):  # removed in the meantime, or not readable
                below, more = _list_wanted(context, entry.path, is_wanted)
        yield "  " * level + render_entry(context, entry) + (" ..." if more else "")
        yield from _walk_levels(context, below, is_wanted, level + 1, depth)


@dataclass(slots=True)
class _TreeBuilder:
    """Expands a directory tree level by level, within a limit."""

    context: HandlerContext
    is_wanted: Callable[[FileEntry], bool]
    expanded: dict[str, Sequence[FileEntry]] = field(default_factory=dict[str, Sequence[FileEntry]])
    unexpanded: set[str] = field(default_factory=set[str])
    count: int = 0

    def expand(self, path: str) -> Sequence[FileEntry]:
        """Return the entries of a directory, directories first."""
        wanted, more = _list_wanted(self.context, path, self.is_wanted)
        room = self.context.settings.max_entries - self.count
        if more or len(wanted) > room:
            self.unexpanded.add(path)
        self.expanded[path] = wanted[:room]
        self.count += len(self.expanded[path])
        return self.expanded[path]

    def expand_all(self, top: Sequence[FileEntry]) -> None:
        """Expand the directories below, level by level, while there is room."""
        waiting = deque(entry for entry in top if entry.is_directory)
        while waiting:
            entry = waiting.popleft()
            if entry.name in _NEVER_EXPANDED or self.count >= self.context.settings.max_entries:
                self.unexpanded.add(entry.path)
                continue
            with suppress(OSError):  # removed in the meantime, or not readable
                waiting += [each for each in self.expand(entry.path) if each.is_directory]

    def lines(self, path: str, depth: int) -> Iterator[str]:
        for entry in self.expanded[path]:
            line = "  " * depth + render_entry(self.context, entry)
            yield f"{line} ..." if entry.path in self.unexpanded else line
            if entry.path in self.expanded:
                yield from self.lines(entry.path, depth + 1)


def _render_tree_foot(lines: int, directories: int) -> str:
    parts = [render.format_count(lines, "line")] if lines else []
    if directories:
        parts.append(
            f"the content of {render.format_count(directories, 'directory', 'directories')} (...)"
        )
    return f"[truncated: {' and '.join(parts)} not shown; list a subdirectory to see more]"
