"""tree: a directory and what is below it, as far as there is room.

Directories are opened level by level, so that a deep one cannot use up the room of
all others; those that were not opened say so.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from weakincentives.contrib.tools.filesystem.filters import leaving_out
from weakincentives.contrib.tools.filesystem.listing import (
    directory_entries,
    entry_line,
    summary,
)
from weakincentives.contrib.tools.filesystem.wording import (
    counted,
    fitted,
    hint,
    named,
    room_in,
    taken,
)
from weakincentives.contrib.tools.requests import TreeParams
from weakincentives.contrib.tools.results import TreeResult
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import FileEntry
from weakincentives.prompt import ToolResult

_CLOSED = frozenset({".git"})  # never opened: nobody wants to read it as a tree
_MARGIN = 200


def tree(request: TreeParams, bench: Workbench) -> ToolResult[TreeResult]:
    """Return a directory and what is below it, as indented lines.

    Raises:
        OSError: It is no directory; the text says what it is, or what may have been meant.
    """
    path = bench.path(request.path)
    if request.depth is not None:
        return _levels(request, bench, path)
    grown = _Grown(bench, _wanted(request, path))
    top = grown.open(path)
    if not top:
        return ToolResult(
            f"{named(path)} is an empty directory", TreeResult(path or ".", ()), True, True
        )
    grown.grow(top)
    lines = list(grown.lines(path, 0))
    budget = bench.settings.budget
    head = f"{named(path)}: {summary(top)}"
    shown = taken(lines, room_in(budget, len(head) + _MARGIN))
    truncated = len(shown) < len(lines) or bool(grown.closed)
    foot = _foot(len(lines) - len(shown), len(grown.closed)) if truncated else ""
    value = TreeResult(path or ".", tuple(shown), truncated)
    return ToolResult(fitted([head, *shown], foot, budget), value, True, True)


def _wanted(request: TreeParams, path: str) -> Callable[[FileEntry], bool]:
    kept = leaving_out(request.exclude)
    skip = len(path) + 1 if path else 0
    return lambda entry: kept is None or kept(entry.path[skip:])


def _levels(request: TreeParams, bench: Workbench, path: str) -> ToolResult[TreeResult]:
    """Return a page of the entries of a directory and of some levels below it.

    Each directory is followed by what is in it, so that pages go on where the last one ended.
    """
    _check_page(request)
    shown = _Levels(bench, _wanted(request, path), request.depth or 1)
    top, more = shown.entries(path)
    room = min(request.limit or bench.settings.max_entries, bench.settings.max_entries)
    lines = list(islice(shown.lines(top, 0), request.offset + room + 1))
    if request.offset and request.offset >= len(lines):
        raise ToolValidationError(
            f"{named(path)} has {counted(len(lines), 'entry', 'entries')} to this depth, and"
            f" {request.offset:,} are to be skipped"
        )
    if not lines:
        value = TreeResult(path or ".", ())
        return ToolResult(f"{named(path)} is an empty directory", value, True, True)
    head = f"{named(path)}: {summary(top)}" + (", and more" if more else "")
    page = lines[request.offset : request.offset + room]
    budget = bench.settings.budget
    kept = taken(page, room_in(budget, len(head) + _MARGIN + 2 * len(named(path))))
    end = request.offset + len(kept)
    truncated = more or end < len(lines)
    rest = replace(request, offset=end) if end < len(lines) else None
    foot = _page_foot(bench, rest, len(kept)) if truncated else ""
    value = TreeResult(path or ".", tuple(kept), truncated)
    return ToolResult(fitted([head, *kept], foot, budget), value, True, True)


def _check_page(request: TreeParams) -> None:
    for name, value, least in (
        ("depth", request.depth, 1),
        ("limit", request.limit, 1),
        ("offset", request.offset, 0),
    ):
        if value is not None and value < least:
            raise ToolValidationError(f"{name} must be at least {least}: {value}")


def _page_foot(bench: Workbench, rest: TreeParams | None, count: int) -> str:
    text = f"[truncated: {counted(count, 'entry is', 'entries are')} shown, and there are more"
    return text + hint("; continue with", rest and bench.speech.call(rest)) + "]"


@dataclass(frozen=True, slots=True)
class _Levels:
    """The entries of directories down to some depth, as lines, one directory after the other."""

    bench: Workbench
    is_wanted: Callable[[FileEntry], bool]
    depth: int

    def entries(self, path: str) -> tuple[Sequence[FileEntry], bool]:
        """Return what is in a directory, directories first, and whether there is more."""
        found, more = directory_entries(self.bench, path)
        wanted = filter(self.is_wanted, found)
        return sorted(wanted, key=lambda entry: (not entry.is_directory, entry.name)), more

    def lines(self, entries: Sequence[FileEntry], level: int) -> Iterator[str]:
        """Yield entries as lines, each directory followed by what is in it."""
        for entry in entries:
            line = "  " * level + entry_line(self.bench, entry)
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

    bench: Workbench
    is_wanted: Callable[[FileEntry], bool]
    opened: dict[str, Sequence[FileEntry]] = field(default_factory=dict[str, Sequence[FileEntry]])
    closed: set[str] = field(default_factory=set[str])
    count: int = 0

    def open(self, path: str) -> Sequence[FileEntry]:
        """Return what is in a directory, directories first."""
        entries, more = directory_entries(self.bench, path)
        wanted = [entry for entry in entries if self.is_wanted(entry)]
        wanted.sort(key=lambda entry: (not entry.is_directory, entry.name))
        room = self.bench.settings.max_entries - self.count
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
            if entry.name in _CLOSED or self.count >= self.bench.settings.max_entries:
                self.closed.add(entry.path)
                continue
            with suppress(OSError):  # it may be gone, or not to be read
                waiting += [each for each in self.open(entry.path) if each.is_directory]

    def lines(self, path: str, depth: int) -> Iterator[str]:
        """Yield the lines of a directory that was opened."""
        for entry in self.opened[path]:
            line = "  " * depth + entry_line(self.bench, entry)
            yield f"{line} ..." if entry.path in self.closed else line
            if entry.path in self.opened:
                yield from self.lines(entry.path, depth + 1)


def _foot(lines: int, directories: int) -> str:
    parts = [counted(lines, "line")] if lines else []
    if directories:
        parts.append(f"what is in {counted(directories, 'directory', 'directories')} (...)")
    return f"[truncated: {' and '.join(parts)} left out; ask for a directory below]"
