"""Lines that match, file by file: exact counts, however many there are.

A filesystem's own search is quick and ends after some matches. What is left after that
is searched here, file by file and by the same engine, only as far as it is asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby

from weakincentives.contrib.tools.filesystem.ignoring import find_files, find_lines
from weakincentives.contrib.tools.filesystem.lines import WorkspaceContent
from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    BytesContent,
    Content,
    Coverage,
    Filesystem,
    GrepMatch,
    TimeLimitError,
    time_limit,
)
from weakincentives.filesystem.limits import is_time_up, share_of_time
from weakincentives.filesystem.patterns import compile_filter
from weakincentives.filesystem.search import Searcher, compile_regex

_READ = 1024 * 1024  # bytes of a file that are read at once
_NAMED = 10  # files that are named of those that were not searched


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
    """The matches in one file: the first ones, and how many; `more` if counting was stopped.

    `late` says that there was no time to search it to the end.
    """

    path: str
    matches: Sequence[GrepMatch]
    count: int
    more: bool = False
    late: bool = False


class Hits:
    """The files that have matches, found as they are asked for, sorted by path.

    Afterwards `out_of_time` says whether something was left out for want of time, and
    `coverage` what was searched and what was not.
    """

    def __init__(self, search: Search, wanted: Wanted, filesystem: Filesystem) -> None:
        """Search `filesystem`."""
        self._search = search
        self._wanted = wanted
        self._filesystem = filesystem
        self.out_of_time = False
        self.coverage = Coverage()

    def __iter__(self) -> Iterator[FileHits]:
        """Yield the files that have matches."""
        search, wanted = self._search, self._wanted
        simple = search.sieve is None and wanted.in_all is not None and wanted.stop is None
        found = find_lines(
            self._filesystem,
            search.pattern,
            path=search.path,
            glob=search.glob,
            most=wanted.in_all if simple else None,
            ignore=search.ignore,
        )
        last = found[-1].path if found else ""
        enough = wanted.in_all is not None and simple and len(found) >= wanted.in_all
        goes_on = found.truncated and found.reason != "time limit" and not enough
        self._note(found.coverage, before=None if found.reason == "time limit" else last)
        known = FileHits(last, (), 0)  # what has been found in the last one
        for path, group in groupby(found, key=lambda match: match.path):
            if search.takes(path):
                known = _bounded(path, list(group), wanted)
                if not (goes_on and path == last):
                    yield known
        if goes_on:
            yield from self._rest(known if known.path == last else FileHits(last, (), 0))

    def _rest(self, last: FileHits) -> Iterator[FileHits]:
        """Yield the files from `last` on; which files follow is found out when it is needed."""
        searcher = compile_regex(self._search.pattern, DEFAULT_LIMITS)
        paths = self._following(last.path)
        for number, path in enumerate(paths):
            if is_time_up():
                self._miss(paths[number:])
                if path == last.path:
                    yield last
                return
            seconds = share_of_time(len(paths) - number - 1)
            found = _searched(path, searcher, self._wanted, self._filesystem, seconds)
            if found.late and path == last.path and found.count < last.count:
                found = replace(last, late=True)
            if found.late:
                self._miss([path])
            else:
                self.coverage = replace(self.coverage, searched=self.coverage.searched + 1)
            if found.count:
                yield found

    def _following(self, last: str) -> list[str]:
        """Return the files that are to be searched from `last` on."""
        search = self._search
        paths = [last] if last and search.takes(last) else []
        if last == search.path != "":
            return paths
        fits = None if search.glob is None else compile_filter(search.glob)
        try:
            found = find_files(self._filesystem, "**", path=search.path, ignore=search.ignore)
        except TimeLimitError:
            self._note(Coverage(0, 0, 1, (f"{search.path or '.'}/",)), before=None)
            return paths
        if found.reason == "time limit":
            self._note(replace(found.coverage, searched=0), before=None)
        for match in found:
            path = match.path
            if not match.is_file or path <= last or not search.takes(path):
                continue
            if fits is None or fits(search.below(path)):
                paths.append(path)
        return paths

    def _note(self, coverage: Coverage, *, before: str | None) -> None:
        """Take over how far a search got; what is not `before` a path is searched later."""
        missed = coverage.missed_paths
        files = coverage.missed_files
        if before is not None:
            missed = tuple(each for each in missed if each < before or each.endswith("/"))
            files = sum(not each.endswith("/") for each in missed)
        self.out_of_time = self.out_of_time or bool(missed or coverage.missed_directories)
        self.coverage = Coverage(
            self.coverage.searched + coverage.searched,
            self.coverage.missed_files + files,
            self.coverage.missed_directories + coverage.missed_directories,
            tuple(dict.fromkeys((*self.coverage.missed_paths, *missed)))[:_NAMED],
        )

    def _miss(self, paths: Sequence[str]) -> None:
        """Note files for which there was no time."""
        self._note(Coverage(0, len(paths), 0, tuple(paths[:_NAMED])), before=None)


def _bounded(path: str, matches: Sequence[GrepMatch], wanted: Wanted) -> FileHits:
    count, more = len(matches), False
    if wanted.stop is not None and count > wanted.stop:
        count, more = wanted.stop, True
    return FileHits(path, matches[: min(wanted.keep, count)], count, more)


def _searched(
    path: str, searcher: Searcher, wanted: Wanted, filesystem: Filesystem, seconds: float
) -> FileHits:
    """Return what one file has, or what was found of it in time; nothing if it is gone."""
    try:
        content = _content(filesystem, path)
        with nullcontext() if isinstance(content, BytesContent) else time_limit(seconds):
            return _hits_in(path, content, searcher, wanted)
    except TimeLimitError:
        return FileHits(path, (), 0, late=True)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return FileHits(path, (), 0)


def _hits_in(path: str, content: Content, searcher: Searcher, wanted: Wanted) -> FileHits:
    matches: list[GrepMatch] = []
    count = 0
    try:
        for line in searcher.lines(content):
            if count == wanted.stop:
                return FileHits(path, matches, count, more=True)
            count += 1
            if count <= wanted.keep:
                matches.append(
                    GrepMatch(
                        path, line.line_number, line.line_content, line.match_start, line.match_end
                    )
                )
    except TimeLimitError:
        return FileHits(path, matches, count, late=True)
    return FileHits(path, matches, count)


def _content(filesystem: Filesystem, path: str) -> Content:
    page = filesystem.read_bytes(path, limit=_READ)
    if len(page.content) >= page.size_bytes:
        return BytesContent(page.content)
    return WorkspaceContent(filesystem, path, page.size_bytes)
