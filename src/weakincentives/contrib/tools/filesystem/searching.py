"""grep: lines that match, the files that have them, or how many there are."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from weakincentives.contrib.tools.filesystem.excerpts import (
    Context,
    ExcerptLine,
    excerpt,
    fitting,
)
from weakincentives.contrib.tools.filesystem.file_types import globs_of
from weakincentives.contrib.tools.filesystem.filters import all_of, below, leaving_out
from weakincentives.contrib.tools.filesystem.finding import head_limit
from weakincentives.contrib.tools.filesystem.matching import FileHits, Hits, Search, Wanted
from weakincentives.contrib.tools.filesystem.near_names import link_refused, present
from weakincentives.contrib.tools.filesystem.unmatched import no_matches
from weakincentives.contrib.tools.filesystem.wording import (
    counted,
    fitted,
    hint,
    missed,
    room_in,
    taken,
)
from weakincentives.contrib.tools.requests import GrepParams
from weakincentives.contrib.tools.results import GrepCount, GrepResult
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    Coverage,
    InvalidRegexError,
    TimeLimitError,
    TruncationReason,
)
from weakincentives.filesystem.limits import early_time_limit
from weakincentives.filesystem.paths import shown
from weakincentives.filesystem.patterns import compile_filter
from weakincentives.filesystem.search import compile_regex
from weakincentives.prompt import ToolResult

_MARGIN = 700  # characters for what is said around the matches
_SECONDS = 10.0
_CONTEXT_SECONDS = 3.0
_MAX_CONTEXT = 100


def grep(request: GrepParams, bench: Workbench) -> ToolResult[GrepResult]:
    """Return what matches, in the mode that was asked for; if nothing does, say why.

    Raises:
        OSError: The path cannot be searched; the text says what may have been meant.
        ValueError: The pattern, or a filter, cannot be.
    """
    search = search_for(request, bench)
    mode = _MODES[request.output_mode]
    settings = bench.settings
    most = head_limit(
        request.head_limit,
        settings.max_matches if request.output_mode == "content" else settings.max_entries,
    )
    found = _gathered(search, mode.wanted(request, most), mode.enough(most), bench)
    if not found.files:
        return _nothing(request, search, found, bench)
    return mode.shown(_Found(request, search, found, most), bench)


def _nothing(
    request: GrepParams, search: Search, found: "_Gathered", bench: Workbench
) -> ToolResult[GrepResult]:
    """Return that nothing was found, and why if that is known."""
    path, budget = search.path or ".", bench.settings.budget
    value = GrepResult(request.pattern, path, request.output_mode, (), (), coverage=found.coverage)
    if not found.stopped:
        text = no_matches(request, search, bench, lambda other: search_for(other, bench))
        return ToolResult(fitted([text], "", budget), value, True, True)
    value = replace(value, truncated=True, reason="time limit")
    text = f"No matches for {request.pattern[:200]!r} in what was searched"
    return ToolResult(fitted([text], _out_of_time(found.coverage), budget), value, True, True)


def search_for(request: GrepParams, bench: Workbench) -> Search:
    """Return the search that a request means.

    Raises:
        ValueError: The pattern, or a filter, cannot be.
    """
    pattern = re.escape(request.pattern) if request.fixed_string else request.pattern
    compile_regex(pattern, DEFAULT_LIMITS)  # errors speak of the pattern as it was written
    path, exclude = bench.path(request.path), request.exclude
    glob = None if request.glob is None else _filter(request.glob, path, bench)
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


def _filter(glob: str, path: str, bench: Workbench) -> str:
    """Return a filter as the filesystem takes it; a directory means the files in it."""
    if glob.startswith("/"):
        slash = "" if path or glob.endswith("/") else "/"  # "/a" is "a" at the top only
        glob = slash + below(bench, glob, path)
    return f"{glob}**" if glob.endswith("/") else glob


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Files with matches; `stopped` if there was no time for all, `coverage` says how far."""

    files: Sequence[FileHits]
    stopped: bool
    coverage: Coverage


def _gathered(
    search: Search, wanted: Wanted, enough: Callable[[FileHits], bool], bench: Workbench
) -> _Gathered:
    """Return the files with matches, as many as are wanted or as there is time for."""
    files: list[FileHits] = []
    found = Hits(search, wanted, bench.filesystem)
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
        raise _explained(bench, search.path, error) from None
    except re.error as error:  # a filesystem of somebody else's that searches with `re`
        raise InvalidRegexError(f"Invalid regex: {error}: {search.pattern[:200]!r}") from None
    return _Gathered(files, found.out_of_time, found.coverage)


def _out_of_time(coverage: Coverage) -> str:
    """Say how far a search got, and what to do about the rest."""
    return (
        f"[stopped at the time limit after {counted(coverage.searched, 'file')}"
        + missed(coverage, "not searched, or not to the end")
        + "; to search the rest, take a narrower path or filter]"
    )


def _explained(bench: Workbench, path: str, error: OSError) -> OSError:
    target = getattr(present(bench, path), "link_target", None)
    return error if target is None else link_refused(bench, path, target)


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
        bench: Workbench,
        head: str,
        lines: Sequence[str],
        value: GrepResult,
        advice: str | None,
    ) -> ToolResult[GrepResult]:
        """Return what was found; `advice` is given if some of it is not shown."""
        feet = [] if advice is None else [f"[truncated; {advice}]"]
        if self.stopped:
            feet.append(_out_of_time(self.gathered.coverage))
        text = fitted([head, *lines], "\n".join(feet), bench.settings.budget)
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

    def shown(self, found: _Found, bench: Workbench) -> ToolResult[GrepResult]:
        files = list(_first(found.files, found.most))
        total = sum(len(each.matches) for each in files)
        cut = sum(len(each.matches) for each in found.files) > total
        context = _context(found.request)
        room = room_in(bench.settings.budget, _MARGIN)
        with early_time_limit(_CONTEXT_SECONDS):  # later matches have no lines around them
            lines, whole = fitting(_excerpts(files, context, bench), room)
        reason: TruncationReason | None = "match limit" if cut else None
        reason = reason if whole else "size limit"
        value = found.value(files, lines, truncated=reason)
        value = replace(value, counts=_counts(value))
        head = _head(value, found.pattern, more=value.truncated)
        capped = [shown(each.path) for each in files if each.more]
        notes = [f"[more matches in {', '.join(capped[:5])}]"] if capped else []
        texts = [line.text for line in lines]
        advice = None if reason is None else _narrower(found.request, bench)
        return found.result(bench, head, [*texts, *notes], value, advice)


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

    def shown(self, found: _Found, bench: Workbench) -> ToolResult[GrepResult]:
        lines = taken(
            (shown(each.path) for each in found.files[: found.most]),
            room_in(bench.settings.budget, _MARGIN),
        )
        cut = found.cut(len(lines))
        value = found.value(found.files[: len(lines)], (), truncated=cut)
        more = "at least " if found.stopped else "more than " if value.truncated else ""
        verb = "has" if len(lines) == 1 else "have"
        head = f"{more}{counted(len(lines), 'file')} {verb} matches for {found.pattern}"
        advice = None if cut is None else "take a narrower pattern, path or filter"
        return found.result(bench, head, lines, value, advice)


class _Counts:
    """How many lines of each file match."""

    def wanted(self, request: GrepParams, most: int) -> Wanted:
        return Wanted(0)

    def enough(self, most: int) -> Callable[[FileHits], bool]:
        return lambda found: False  # the sum is of all files

    def shown(self, found: _Found, bench: Workbench) -> ToolResult[GrepResult]:
        lines = taken(
            (f"{shown(each.path)}:{each.count}" for each in found.files[: found.most]),
            room_in(bench.settings.budget, _MARGIN),
        )
        total = sum(each.count for each in found.files)
        more = "at least " if found.stopped else ""
        verb = "matches" if total == 1 else "match"
        head = f"{more}{counted(total, 'line')} in {counted(len(found.files), 'file')} {verb}"
        cut = found.cut(len(lines))
        value = found.value(found.files[: len(lines)], (), truncated=cut)
        advice = None if cut is None else "take a narrower path or filter"
        return found.result(bench, f"{head} {found.pattern}", lines, value, advice)


_MODES: dict[str, _Content | _Files | _Counts] = {
    "content": _Content(),
    "files_with_matches": _Files(),
    "count": _Counts(),
}


def _context(request: GrepParams) -> Context:
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
    return Context(min(before, _MAX_CONTEXT), min(after, _MAX_CONTEXT))


def _first(files: Sequence[FileHits], most: int) -> Iterator[FileHits]:
    """Yield files until they have `most` matches; of the last one only those that fit."""
    for each in files:
        if most <= 0:
            return
        kept = each.matches[:most]
        most -= len(kept)
        yield replace(each, matches=kept)


def _excerpts(
    files: Sequence[FileHits], context: Context, bench: Workbench
) -> Iterator[ExcerptLine]:
    for number, each in enumerate(files):
        if number:
            yield ExcerptLine("")
        yield from excerpt(each, context, bench)


def _counts(value: GrepResult) -> tuple[GrepCount, ...]:
    """Return how many matches of each file are shown."""
    counts: dict[str, int] = {}
    for match in value.matches:
        counts[match.path] = counts.get(match.path, 0) + 1
    return tuple(GrepCount(path, count) for path, count in counts.items())


def _head(value: GrepResult, pattern: str, *, more: bool) -> str:
    matches = counted(len(value.matches), "match", "matches")
    files = counted(len(value.counts), "file")
    return f"{matches} in {files} for {pattern}" + (", and more" if more else "")


def _narrower(request: GrepParams, bench: Workbench) -> str:
    other = replace(
        request, output_mode="files_with_matches", head_limit=None, context=None, before=None,
        after=None, max_per_file=None,
    )  # fmt: skip
    call = bench.speech.call(other)
    return "there are more matches: take a narrower pattern, path or filter" + hint(
        "; to see which files have them:", call
    )
