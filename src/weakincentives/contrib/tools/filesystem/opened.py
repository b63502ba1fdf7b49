"""A file that is about to be shown: its beginning, its size, and which part is wanted."""

from dataclasses import dataclass

from weakincentives.contrib.tools.filesystem.lines import CHUNK, WorkspaceContent
from weakincentives.contrib.tools.filesystem.near_names import link_refused, present
from weakincentives.contrib.tools.filesystem.wording import counted, hint, named
from weakincentives.contrib.tools.requests import LsParams, ReadFileParams
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import READ_ENTIRE_FILE, BytesContent, Content


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file: its path, its first bytes, and how large it is."""

    path: str
    head: bytes
    size: int

    @property
    def whole(self) -> bool:
        """Whether the head is all of it."""
        return len(self.head) >= self.size

    @property
    def name(self) -> str:
        """Its path as it is shown."""
        return named(self.path)

    def content(self, bench: Workbench) -> Content:
        """Return its bytes; those of a large file are read as they are asked for."""
        if self.whole:
            return BytesContent(self.head)
        return WorkspaceContent(bench.filesystem, self.path, self.size)


@dataclass(frozen=True, slots=True)
class Part:
    """Which part is wanted: how many lines (bytes, cells) to skip, and how many to show."""

    first: int
    count: int | None

    def capped(self, most: int) -> int:
        """Return how many to show where `most` are a page."""
        return most if self.count is None else min(self.count, most)


def open_file(bench: Workbench, path: str) -> OpenedFile:
    """Open a file.

    Raises:
        OSError: It cannot be read; the text says what to do instead.
    """
    try:
        page = bench.filesystem.read_bytes(path or ".", limit=CHUNK)
    except OSError as error:
        raise _explained(bench, path, error) from None
    return OpenedFile(path, page.content, page.size_bytes)


def part_of(request: ReadFileParams) -> Part:
    """Return the part that a request asks for.

    Raises:
        ToolValidationError: It asks for something that cannot be.
    """
    offset, start, limit = request.offset, request.start_line, request.limit
    if offset < 0:
        raise ToolValidationError(f"How much to skip must not be negative: {offset}")
    if limit is not None and limit < 1 and limit != READ_ENTIRE_FILE:
        raise ToolValidationError(f"How much to return must be at least 1: {limit}")
    if start is not None:
        if start < 1:
            raise ToolValidationError(f"Lines count from 1: {start}")
        if offset not in {0, start - 1}:
            raise ToolValidationError(
                "The page is to begin in two places, say it once:"
                f" after {counted(offset, 'line')}, and at line {start}"
            )
        offset = start - 1
    return Part(offset, None if limit == READ_ENTIRE_FILE else limit)


def past_the_end(
    file: OpenedFile, bench: Workbench, part: Part, total: int, noun: str, request: ReadFileParams
) -> ToolValidationError:
    """Return the error for a page that begins after the last line."""
    wanted = part.first if noun == "byte" else part.first + 1  # as they are shown
    text = f"There is no {noun} {wanted:,}: {file.name!r} has {counted(total, noun)}"
    return ToolValidationError(text + hint("; use", bench.speech.call(request)))


def _explained(bench: Workbench, path: str, error: OSError) -> OSError:
    """Return why a file cannot be read, in words that say what to do."""
    found = present(bench, path, what="file")
    target = getattr(found, "link_target", None)
    if target is not None:
        return link_refused(bench, path, target)
    if found.is_directory:
        call = bench.speech.call(LsParams(path or "."))
        return IsADirectoryError(f"{named(path)!r} is a directory" + hint("; to list it:", call))
    return error
