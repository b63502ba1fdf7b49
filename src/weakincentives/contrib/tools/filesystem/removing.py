"""`rm`: a file, a link, or a directory with everything in it; nothing else."""

from contextlib import suppress
from dataclasses import dataclass

from weakincentives.contrib.tools.filesystem.near_names import present
from weakincentives.contrib.tools.filesystem.refusals import refuse_read_only
from weakincentives.contrib.tools.filesystem.wording import counted, named
from weakincentives.contrib.tools.requests import RmParams
from weakincentives.contrib.tools.results import RmResult
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import FileStat, Filesystem
from weakincentives.prompt import ToolResult


@dataclass
class _Contents:
    """How much goes with a path; `more` says that it was not counted to the end."""

    files: int = 0
    directories: int = 0
    more: bool = False

    def __str__(self) -> str:
        below = counted(self.directories, "directory", "directories")
        text = counted(self.files, "file") + (f", {below}" if self.directories else "")
        return f"more than {text}" if self.more else text


def rm(request: RmParams, bench: Workbench) -> ToolResult[RmResult]:
    """Remove what is at a path, with everything in it."""
    path = bench.path(request.path)
    if not path:
        raise ToolValidationError(
            f"The workspace itself cannot be removed: {request.path!r}; name what is in it"
        )
    refuse_read_only(bench, path)
    found = present(bench, path)
    contents = _contents(bench.filesystem, found)
    bench.filesystem.delete(path, recursive=True)
    value = RmResult(path, found.kind, contents.files)
    return ToolResult(_told(found, contents), value, exclude_value_from_context=True)


def _contents(fs: Filesystem, found: FileStat) -> _Contents:
    if not found.is_directory:
        return _Contents(1)
    contents = _Contents()
    pending = [found.path]
    while pending:
        place = pending.pop()
        with suppress(OSError):  # a directory that cannot be read; deleting it says why
            entries = fs.list(place)
            contents.more |= bool(getattr(entries, "truncated", False))
            below = [entry.path for entry in entries if entry.is_directory]
            contents.directories += len(below)
            contents.files += len(entries) - len(below)
            pending += below
    return contents


def _told(found: FileStat, contents: _Contents) -> str:
    name = named(found.path)
    if found.is_symlink:
        target = named(found.link_target or "")
        return f"Removed the link {name}; what it points to, {target!r}, was not touched"
    if not found.is_directory:
        return f"Removed {name}: {counted(found.size_bytes, 'byte')}"
    if contents == _Contents():
        return f"Removed {name}/, which was empty"
    return f"Removed {name}/ and everything in it: {contents}"
