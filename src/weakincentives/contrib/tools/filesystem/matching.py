"""Lines that match, file by file: exact counts, however many there are.

A filesystem's own search is quick and ends after some matches. What is left after that
is searched here, file by file and by the same engine, only as far as it is asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from weakincentives.contrib.tools.filesystem.ignoring import find_files, find_lines
from weakincentives.contrib.tools.filesystem.lines import WorkspaceContent
from weakincentives.filesystem import DEFAULT_LIMITS, BytesContent, Content, Filesystem, GrepMatch
from weakincentives.filesystem.patterns import compile_filter
from weakincentives.filesystem.search import Searcher, compile_regex

_READ = 1024 * 1024  # bytes of a file that are read at once


@dataclass(frozen=True, slots=True)
class Search:
    """What is searched for, and in which files.

    Args:
        pattern: The expression as the engine gets it.
        path: A directory or a file.
        glob: Which names, for the filesystem's own search.
        sieve: Which paths below `path` beside that; None takes all.
        ignore: Leave out what ignore files leave out.
    """

    pattern: str
    path: str = ""
    glob: str | None = None
    sieve: Callable[[str], bool] | None = None
    ignore: bool = True

    def below(self, path: str) -> str:
        """Return a path as filters see it: from the place that is searched."""
        if path == self.path:
            return path.rpartition("/")[2]
        return path[len(self.path) + 1 :] if self.path else path

    def takes(self, path: str) -> bool:
        """Whether the sieve lets a path through."""
        return self.sieve is None or self.sieve(self.below(path))


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much is wanted: matches to keep of a file, where to stop counting, matches in all."""

    keep: int
    stop: int | None = None
    in_all: int | None = None


@dataclass(frozen=True, slots=True)
class FileHits:
    """The matches in one file: the first ones, and how many; `more` if counting was stopped."""

    path: str
    matches: Sequence[GrepMatch]
    count: int
    more: bool = False


def hits(search: Search, wanted: Wanted, filesystem: Filesystem) -> Iterator[FileHits]:
    """Yield the files that have matches, sorted by path."""
    simple = search.sieve is None and wanted.in_all is not None and wanted.stop is None
    found = find_lines(
        filesystem,
        search.pattern,
        path=search.path,
        glob=search.glob,
        most=wanted.in_all if simple else None,
        ignore=search.ignore,
    )
    last = found[-1].path if found else ""
    for path, group in groupby(found, key=lambda match: match.path):
        if search.takes(path) and not (found.truncated and path == last):
            yield _bounded(path, list(group), wanted)
    if found.truncated:
        yield from _rest(search, wanted, filesystem, last)


def _bounded(path: str, matches: Sequence[GrepMatch], wanted: Wanted) -> FileHits:
    count, more = len(matches), False
    if wanted.stop is not None and count > wanted.stop:
        count, more = wanted.stop, True
    return FileHits(path, matches[: min(wanted.keep, count)], count, more)


def _rest(search: Search, wanted: Wanted, filesystem: Filesystem, last: str) -> Iterator[FileHits]:
    """Yield the files from `last` on; which files follow is found out when it is needed."""
    searcher = compile_regex(search.pattern, DEFAULT_LIMITS)
    if last and search.takes(last):
        yield from _searched(last, searcher, wanted, filesystem)
    if last == search.path != "":
        return
    fits = None if search.glob is None else compile_filter(search.glob)
    for match in find_files(filesystem, "**", path=search.path, ignore=search.ignore):
        path = match.path
        if not match.is_file or path <= last or not search.takes(path):
            continue
        if fits is None or fits(search.below(path)):
            yield from _searched(path, searcher, wanted, filesystem)


def _searched(
    path: str, searcher: Searcher, wanted: Wanted, filesystem: Filesystem
) -> Iterator[FileHits]:
    """Yield what one file has; nothing if it has nothing, or is gone."""
    with suppress(FileNotFoundError, PermissionError, IsADirectoryError):
        matches: list[GrepMatch] = []
        count, more = 0, False
        for line in searcher.lines(_content(filesystem, path)):
            if count == wanted.stop:
                more = True
                break
            count += 1
            if count <= wanted.keep:
                matches.append(
                    GrepMatch(
                        path, line.line_number, line.line_content, line.match_start, line.match_end
                    )
                )
        if count:
            yield FileHits(path, matches, count, more)


def _content(filesystem: Filesystem, path: str) -> Content:
    page = filesystem.read_bytes(path, limit=_READ)
    if len(page.content) >= page.size_bytes:
        return BytesContent(page.content)
    return WorkspaceContent(filesystem, path, page.size_bytes)
