"""Lines that match, file by file: exact counts, however many there are.

A filesystem's own search is quick and ends after some matches. What is left after that
is searched here, file by file and by the same engine, only as far as it is asked for.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import groupby, islice

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.errors import link_error, present
from weakincentives.contrib.tools.handlers.filters import (
    all_of,
    below,
    find_files,
    find_lines,
    globs_of,
    leaving_out,
)
from weakincentives.contrib.tools.handlers.glob import head_limit
from weakincentives.contrib.tools.handlers.render import (
    RawLine,
    WorkspaceContent,
    count_text,
    fit,
    format_path,
    hint,
    line_start,
    lines_from,
    missed,
    room_in,
    take_lines,
)
from weakincentives.contrib.tools.handlers.source import FileSource, open_file
from weakincentives.contrib.tools.requests import GrepParams
from weakincentives.contrib.tools.results import GrepCount, GrepResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    BytesContent,
    Content,
    Coverage,
    Filesystem,
    GrepMatch,
    InvalidRegexError,
    TimeLimitError,
    TruncationReason,
    time_limit,
)
from weakincentives.filesystem.base import Searcher, compile_filter, compile_regex, share_of_time
from weakincentives.posix import display_path, early_time_limit, is_time_up
from weakincentives.prompt import ToolResult

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
        self.out_of_time: bool = False
        self.coverage: Coverage = Coverage()

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


_GONE = "..."
_WINDOW = 500  # characters shown of a line that is too long, around the match


@dataclass(frozen=True, slots=True)
class LineContext:
    """How many lines to show before and after a match."""

    before: int = 0
    after: int = 0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.before or self.after)


@dataclass(frozen=True, slots=True)
class ExcerptLine:
    """A line of an excerpt, and the match that is in it, if there is one."""

    text: str
    match: GrepMatch | None = None


def excerpt(found: FileHits, around: LineContext, context: HandlerContext) -> Iterator[ExcerptLine]:
    """Yield the matches of a file under its name; matches have `:`, lines around them `-`."""
    yield ExcerptLine(display_path(found.path))
    width = context.settings.max_line_characters
    if not around:
        for match in found.matches:
            yield _matched(match, width)
        return
    by_line = {match.line_number: match for match in found.matches}
    for number, (first, last) in enumerate(_groups(found.matches, around)):
        if number:
            yield ExcerptLine("--")
        lines = _lines_between(found.path, first, last, context)
        for line in range(first, last + 1):
            if line in by_line:
                yield _matched(by_line[line], width)
            elif line in lines:
                yield ExcerptLine(f"{line}-{lines[line]}")


def _groups(matches: Iterable[GrepMatch], around: LineContext) -> list[tuple[int, int]]:
    """Return first and last lines of the groups; those that touch are one."""
    groups: list[tuple[int, int]] = []
    for match in matches:
        first = max(match.line_number - around.before, 1)
        last = match.line_number + around.after
        if groups and first <= groups[-1][1] + 1:
            groups[-1] = (groups[-1][0], max(last, groups[-1][1]))
        else:
            groups.append((first, last))
    return groups


def _lines_between(path: str, first: int, last: int, context: HandlerContext) -> dict[int, str]:
    """Return the lines of a part of a file by number; none if it cannot be read any more."""
    width = context.settings.max_line_characters
    with suppress(OSError):
        file = open_file(context, path)
        start = _start(file, first - 1, context)
        raw = islice(lines_from(file.content(context), start, 4 * width + 4), last - first + 1)
        return {number: _text(line, width) for number, line in enumerate(raw, first)}
    return {}


def _start(file: FileSource, line: int, context: HandlerContext) -> int:
    if file.complete:
        return _after_lines(file.head, line)
    return line_start(context.filesystem, file.path, line, file.size).offset


def _after_lines(data: bytes, count: int) -> int:
    """Return where the line after `count` lines begins."""
    pieces = data.split(b"\n", count)
    return len(data) - len(pieces[-1]) if len(pieces) > count else len(data)


def _text(line: RawLine, width: int) -> str:
    text = line.data.removesuffix(b"\r").decode(errors="replace")
    return text[:width] + _GONE if len(text) > width or line.left_out else text


def _matched(match: GrepMatch, width: int) -> ExcerptLine:
    """Return a match; of a long line the part around it."""
    text = match.line_content
    if len(text) >= min(width + 1, DEFAULT_LIMITS.max_line_length):  # it may be a part already
        width = min(width, _WINDOW)
        begin = min(max(match.match_start - width // 4, 0), len(text) - width)
        text = _cut_out(text, begin, begin + width)
    return ExcerptLine(f"{match.line_number}:{text}", match)


def _cut_out(text: str, begin: int, end: int) -> str:
    return (_GONE if begin else "") + text[begin:end] + (_GONE if end < len(text) else "")


def fit_excerpts(lines: Iterable[ExcerptLine], room: int) -> tuple[Sequence[ExcerptLine], bool]:
    """Return the lines that fit into `room` characters, and whether these are all."""
    kept: list[ExcerptLine] = []
    for line in lines:
        room -= len(line.text) + 1
        if room < 0:
            return kept, False
        kept.append(line)
    return kept, True


_DIAGNOSIS_SECONDS = 1.0
_LINE_END = re.compile(r"\n|(?<!\\)(?:\\\\)*\\n")
_FLAGS = re.compile(r"(?:\(\?[A-Za-z]+\))*")
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")


def no_matches(
    request: GrepParams,
    search: Search,
    context: HandlerContext,
    meaning: Callable[[GrepParams], Search],
) -> str:
    """Return the sentence for a search that found nothing; it says why if that is known.

    Args:
        request: What was asked for.
        search: What that meant.
        context: What it was carried out with.
        meaning: Returns the search that another request means.
    """
    where = f" in {format_path(search.path)}" if search.path else ""
    text = f"No matches for {request.pattern[:200]!r}{where}"
    with suppress(OSError, ValueError, re.error), time_limit(_DIAGNOSIS_SECONDS):
        return text + next(_reasons(request, search, context, meaning), "")
    return text


def _reasons(
    request: GrepParams,
    search: Search,
    context: HandlerContext,
    meaning: Callable[[GrepParams], Search],
) -> Iterator[str]:
    if _LINE_END.search(request.pattern):
        yield "; lines are searched one at a time, so a line end is never matched"
    if (search.glob or search.sieve) and not _any_file(search, context):
        yield "; the filters leave no file to search"
    alike = replace(search, pattern=_alike(search.pattern, request.pattern))
    others = _others(request) if _found(alike, context) else ()
    for other, fact in (*others, *_ignored(request)):
        if _found(meaning(other), context):
            yield f"; {fact}" + hint(": use", context.dialect.format_call(other))


def _alike(pattern: str, text: str) -> str:
    """Return what matches a pattern in any case, or a text; flags stay first, for `re`."""
    flags = _FLAGS.match(pattern)
    start = 0 if flags is None else flags.end()
    return f"(?i){pattern[:start]}(?:{pattern[start:]})|{re.escape(text)}"


def _found(search: Search, context: HandlerContext) -> bool:
    return next(iter(Hits(search, Wanted(0, 1, 1), context.filesystem)), None) is not None


def _others(request: GrepParams) -> Iterator[tuple[GrepParams, str]]:
    """Yield requests that may find something, and what it means if they do."""
    if not request.ignore_case:
        yield replace(request, ignore_case=True), "there are matches if case is ignored"
    if not request.fixed_string and _SPECIAL.search(request.pattern):
        yield replace(request, fixed_string=True), "there are matches for it as plain text"


def _ignored(request: GrepParams) -> Iterator[tuple[GrepParams, str]]:
    if not request.include_ignored:
        other = replace(request, include_ignored=True)
        yield other, "there are matches in files that ignore files leave out"


def _any_file(search: Search, context: HandlerContext) -> bool:
    """Whether the filters let any file through."""
    fits = None if search.glob is None else compile_filter(search.glob)
    with suppress(NotADirectoryError):
        found = find_files(context.filesystem, "**", path=search.path, ignore=search.ignore)
        for match in found:
            below = search.below(match.path)
            if search.takes(match.path) and (fits is None or fits(below)):
                return True
        return found.truncated  # then there may be one
    return search.takes(search.path) and (fits is None or fits(search.below(search.path)))


_MARGIN = 700  # characters for what is said around the matches
_SECONDS = 10.0
_CONTEXT_SECONDS = 3.0
_MAX_CONTEXT = 100


def grep(request: GrepParams, context: HandlerContext) -> ToolResult[GrepResult]:
    """Return what matches, in the mode that was asked for; if nothing does, say why.

    Raises:
        OSError: The path cannot be searched; the text says what may have been meant.
        ValueError: The pattern, or a filter, cannot be.
    """
    search = search_for(request, context)
    mode = _MODES[request.output_mode]
    settings = context.settings
    most = head_limit(
        request.head_limit,
        settings.max_matches if request.output_mode == "content" else settings.max_entries,
    )
    found = _gathered(search, mode.wanted(request, most), mode.enough(most), context)
    if not found.files:
        return _nothing(request, search, found, context)
    return mode.shown(_Found(request, search, found, most), context)


def _nothing(
    request: GrepParams, search: Search, found: "_Gathered", context: HandlerContext
) -> ToolResult[GrepResult]:
    """Return that nothing was found, and why if that is known."""
    path, budget = search.path or ".", context.settings.budget
    value = GrepResult(request.pattern, path, request.output_mode, (), (), coverage=found.coverage)
    if not found.stopped:
        text = no_matches(request, search, context, lambda other: search_for(other, context))
        return ToolResult(fit([text], "", budget), value, True, True)
    value = replace(value, truncated=True, reason="time limit")
    text = f"No matches for {request.pattern[:200]!r} in what was searched"
    return ToolResult(fit([text], _out_of_time(found.coverage), budget), value, True, True)


def search_for(request: GrepParams, context: HandlerContext) -> Search:
    """Return the search that a request means.

    Raises:
        ValueError: The pattern, or a filter, cannot be.
    """
    pattern = re.escape(request.pattern) if request.fixed_string else request.pattern
    compile_regex(pattern, DEFAULT_LIMITS)  # errors speak of the pattern as it was written
    path, exclude = context.resolve_path(request.path), request.exclude
    glob = None if request.glob is None else _filter(request.glob, path, context)
    unwanted = [exclude or ""]
    if glob is not None and glob.startswith("!"):
        unwanted.append(glob[1:])
        glob = None
    kept = leaving_out(unwanted)
    sieves = [] if kept is None else [kept]
    if request.type:
        globs = globs_of(request.type)
        names = globs[0] if len(globs) == 1 else "{" + ",".join(globs) + "}"
        if glob:
            sieves.append(compile_filter(names))
        glob = glob or names
    return Search(
        pattern=f"(?i){pattern}" if request.ignore_case else pattern,
        path=path,
        glob=glob or None,
        sieve=all_of(sieves),
        ignore=not request.include_ignored,
    )


def _filter(glob: str, path: str, context: HandlerContext) -> str:
    """Return a filter as the filesystem takes it; a directory means the files in it."""
    if glob.startswith("/"):
        slash = "" if path or glob.endswith("/") else "/"  # "/a" is "a" at the top only
        glob = slash + below(context, glob, path)
    return f"{glob}**" if glob.endswith("/") else glob


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Files with matches; `stopped` if there was no time for all, `coverage` says how far."""

    files: Sequence[FileHits]
    stopped: bool
    coverage: Coverage


def _gathered(
    search: Search, wanted: Wanted, enough: Callable[[FileHits], bool], context: HandlerContext
) -> _Gathered:
    """Return the files with matches, as many as are wanted or as there is time for."""
    files: list[FileHits] = []
    found = Hits(search, wanted, context.filesystem)
    try:
        with early_time_limit(_SECONDS):
            for each in found:
                files.append(each)
                if enough(each):
                    break
    except TimeLimitError as error:
        if not files:
            raise TimeLimitError(f"{error}; search a smaller directory, or fewer files") from None
        return _Gathered(files, stopped=True, coverage=found.coverage)
    except OSError as error:
        raise _explained(context, search.path, error) from None
    except re.error as error:  # a filesystem of somebody else's that searches with `re`
        raise InvalidRegexError(f"Invalid regex: {error}: {search.pattern[:200]!r}") from None
    return _Gathered(files, found.out_of_time, found.coverage)


def _out_of_time(coverage: Coverage) -> str:
    """Say how far a search got, and what to do about the rest."""
    return (
        f"[stopped at the time limit after {count_text(coverage.searched, 'file')}"
        + missed(coverage, "not searched, or not to the end")
        + "; to search the rest, take a narrower path or filter]"
    )


def _explained(context: HandlerContext, path: str, error: OSError) -> OSError:
    target = getattr(present(context, path), "link_target", None)
    return error if target is None else link_error(context, path, target)


@dataclass(frozen=True, slots=True)
class _Found:
    """What was found for a request."""

    request: GrepParams
    search: Search
    gathered: _Gathered
    most: int

    @property
    def files(self) -> Sequence[FileHits]:
        return self.gathered.files

    @property
    def stopped(self) -> bool:
        return self.gathered.stopped

    @property
    def pattern(self) -> str:
        return repr(self.request.pattern[:200])

    def result(
        self,
        context: HandlerContext,
        head: str,
        lines: Sequence[str],
        value: GrepResult,
        advice: str | None,
    ) -> ToolResult[GrepResult]:
        """Return what was found; `advice` is given if some of it is not shown."""
        feet = [] if advice is None else [f"[truncated; {advice}]"]
        if self.stopped:
            feet.append(_out_of_time(self.gathered.coverage))
        text = fit([head, *lines], "\n".join(feet), context.settings.budget)
        return ToolResult(text, value, True, True)

    def value(
        self,
        files: Sequence[FileHits],
        lines: Sequence[ExcerptLine],
        *,
        truncated: TruncationReason | None,
    ) -> GrepResult:
        reason = "time limit" if self.stopped else truncated
        matches = tuple(line.match for line in lines if line.match is not None)
        counts = tuple(GrepCount(each.path, each.count) for each in files)
        path, request = self.search.path or ".", self.request
        return GrepResult(
            request.pattern,
            path,
            request.output_mode,
            matches,
            counts,
            reason is not None,
            reason,
            self.gathered.coverage,
        )

    def cut(self, shown: int) -> TruncationReason | None:
        """Return why only some of the files are shown, if that is so."""
        if shown == len(self.files):
            return None
        return "match limit" if shown == self.most else "size limit"


class _Content:
    """Lines that match, with lines around them."""

    def wanted(self, request: GrepParams, most: int) -> Wanted:
        if request.max_per_file is not None and request.max_per_file < 1:
            raise ToolValidationError(
                f"How many matches of a file to return must be at least 1: {request.max_per_file}"
            )
        return Wanted(most + 1, request.max_per_file, most + 1)

    def enough(self, most: int) -> Callable[[FileHits], bool]:
        left = most

        def counting(found: FileHits) -> bool:
            nonlocal left
            left -= len(found.matches)
            return left < 0

        return counting

    def shown(self, found: _Found, context: HandlerContext) -> ToolResult[GrepResult]:
        files = list(_first(found.files, found.most))
        total = sum(len(each.matches) for each in files)
        cut = sum(len(each.matches) for each in found.files) > total
        around = _context(found.request)
        room = room_in(context.settings.budget, _MARGIN)
        with early_time_limit(_CONTEXT_SECONDS):  # later matches have no lines around them
            lines, whole = fit_excerpts(_excerpts(files, around, context), room)
        reason: TruncationReason | None = "match limit" if cut else None
        reason = reason if whole else "size limit"
        value = found.value(files, lines, truncated=reason)
        value = replace(value, counts=_counts(value))
        head = _head(value, found.pattern, more=value.truncated)
        clamp = [display_path(each.path) for each in files if each.more]
        notes = [f"[more matches in {', '.join(clamp[:5])}]"] if clamp else []
        texts = [line.text for line in lines]
        advice = None if reason is None else _narrower(found.request, context)
        return found.result(context, head, [*texts, *notes], value, advice)


class _Files:
    """The files that have matches."""

    def wanted(self, request: GrepParams, most: int) -> Wanted:
        return Wanted(0, 1)

    def enough(self, most: int) -> Callable[[FileHits], bool]:
        left = most

        def counting(found: FileHits) -> bool:
            nonlocal left
            left -= 1
            return left < 0

        return counting

    def shown(self, found: _Found, context: HandlerContext) -> ToolResult[GrepResult]:
        lines = take_lines(
            (display_path(each.path) for each in found.files[: found.most]),
            room_in(context.settings.budget, _MARGIN),
        )
        cut = found.cut(len(lines))
        value = found.value(found.files[: len(lines)], (), truncated=cut)
        more = "at least " if found.stopped else "more than " if value.truncated else ""
        verb = "has" if len(lines) == 1 else "have"
        head = f"{more}{count_text(len(lines), 'file')} {verb} matches for {found.pattern}"
        advice = None if cut is None else "take a narrower pattern, path or filter"
        return found.result(context, head, lines, value, advice)


class _Counts:
    """How many lines of each file match."""

    def wanted(self, request: GrepParams, most: int) -> Wanted:
        return Wanted(0)

    def enough(self, most: int) -> Callable[[FileHits], bool]:
        return lambda found: False  # the sum is of all files

    def shown(self, found: _Found, context: HandlerContext) -> ToolResult[GrepResult]:
        lines = take_lines(
            (f"{display_path(each.path)}:{each.count}" for each in found.files[: found.most]),
            room_in(context.settings.budget, _MARGIN),
        )
        total = sum(each.count for each in found.files)
        more = "at least " if found.stopped else ""
        verb = "matches" if total == 1 else "match"
        head = f"{more}{count_text(total, 'line')} in {count_text(len(found.files), 'file')} {verb}"
        cut = found.cut(len(lines))
        value = found.value(found.files[: len(lines)], (), truncated=cut)
        advice = None if cut is None else "take a narrower path or filter"
        return found.result(context, f"{head} {found.pattern}", lines, value, advice)


_MODES: dict[str, _Content | _Files | _Counts] = {
    "content": _Content(),
    "files_with_matches": _Files(),
    "count": _Counts(),
}


def _context(request: GrepParams) -> LineContext:
    """Return how many lines to show around matches.

    Raises:
        ToolValidationError: It is negative.
    """
    both = request.context or 0
    before = both if request.before is None else request.before
    after = both if request.after is None else request.after
    if min(before, after) < 0:
        raise ToolValidationError(
            f"Lines to show around a match must not be negative: {min(before, after)}"
        )
    return LineContext(min(before, _MAX_CONTEXT), min(after, _MAX_CONTEXT))


def _first(files: Sequence[FileHits], most: int) -> Iterator[FileHits]:
    """Yield files until they have `most` matches; of the last one only those that fit."""
    for each in files:
        if most <= 0:
            return
        kept = each.matches[:most]
        most -= len(kept)
        yield replace(each, matches=kept)


def _excerpts(
    files: Sequence[FileHits], around: LineContext, context: HandlerContext
) -> Iterator[ExcerptLine]:
    for number, each in enumerate(files):
        if number:
            yield ExcerptLine("")
        yield from excerpt(each, around, context)


def _counts(value: GrepResult) -> tuple[GrepCount, ...]:
    """Return how many matches of each file are shown."""
    counts: dict[str, int] = {}
    for match in value.matches:
        counts[match.path] = counts.get(match.path, 0) + 1
    return tuple(GrepCount(path, count) for path, count in counts.items())


def _head(value: GrepResult, pattern: str, *, more: bool) -> str:
    matches = count_text(len(value.matches), "match", "matches")
    files = count_text(len(value.counts), "file")
    return f"{matches} in {files} for {pattern}" + (", and more" if more else "")


def _narrower(request: GrepParams, context: HandlerContext) -> str:
    other = replace(
        request, output_mode="files_with_matches", head_limit=None, context=None, before=None,
        after=None, max_per_file=None,
    )  # fmt: skip
    call = context.dialect.format_call(other)
    return "there are more matches: take a narrower pattern, path or filter" + hint(
        "; to see which files have them:", call
    )
