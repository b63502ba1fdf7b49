"""`grep`: matching lines, paths or counts as text, and a diagnosis if nothing matches."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers import render
from weakincentives.contrib.tools.handlers.errors import access_error
from weakincentives.contrib.tools.handlers.glob import clamp_head_limit
from weakincentives.contrib.tools.handlers.search import (
    FileHits,
    Hits,
    Search,
    SearchLimits,
    compile_exclude,
    find_files,
    relative_pattern,
    type_globs,
)
from weakincentives.contrib.tools.handlers.source import open_file
from weakincentives.contrib.tools.requests import GrepMode, GrepParams
from weakincentives.contrib.tools.results import GrepCount, GrepResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    Coverage,
    GrepMatch,
    InvalidRegexError,
    TimeLimitError,
    TruncationReason,
    time_limit,
)
from weakincentives.filesystem.base import compile_filter, compile_regex
from weakincentives.posix import display_path, early_time_limit
from weakincentives.prompt import ToolResult

_ELLIPSIS = "..."
_MAX_LONG_LINE = 500  # characters shown of a long line, around the match


LineContext: TypeAlias = tuple[int, int]
"""The number of lines to show before and after a match."""


@dataclass(frozen=True, slots=True)
class ExcerptLine:
    """A line of an excerpt, and its match, if it has one."""

    text: str
    match: GrepMatch | None = None


def render_excerpt(
    found: FileHits, around: LineContext, context: HandlerContext
) -> Iterator[ExcerptLine]:
    """Yield the path and the matches of a file: `:` marks matches, `-` the lines around."""
    yield ExcerptLine(display_path(found.path))
    width = context.settings.max_line_characters
    if not any(around):
        for match in found.matches:
            yield _render_match(match, width)
        return
    by_line = {match.line_number: match for match in found.matches}
    for number, (first, last) in enumerate(_group_lines(found.matches, around)):
        if number:
            yield ExcerptLine("--")
        lines = _read_lines(found.path, first, last, context)
        for line in range(first, last + 1):
            if line in by_line:
                yield _render_match(by_line[line], width)
            elif line in lines:
                yield ExcerptLine(f"{line}-{lines[line]}")


def _group_lines(matches: Iterable[GrepMatch], around: LineContext) -> list[tuple[int, int]]:
    """Return the first and last lines of each group; adjacent groups are merged."""
    groups: list[tuple[int, int]] = []
    before, after = around
    for match in matches:
        first = max(match.line_number - before, 1)
        last = match.line_number + after
        if groups and first <= groups[-1][1] + 1:
            groups[-1] = (groups[-1][0], max(last, groups[-1][1]))
        else:
            groups.append((first, last))
    return groups


def _read_lines(path: str, first: int, last: int, context: HandlerContext) -> dict[int, str]:
    """Return a range of lines by number; empty if the file can no longer be read."""
    width = context.settings.max_line_characters
    with suppress(OSError):
        file = open_file(context, path)
        content, line = file.content(), first - 1
        if file.complete:
            start = render.find_line(content, line)
        else:
            start = render.line_start(context.filesystem, path, line, file.size)
        raw = islice(render.read_lines(content, start.offset, 4 * width + 4), last - first + 1)
        return {number: _decode_line(line, width) for number, line in enumerate(raw, first)}
    return {}


def _decode_line(line: render.RawLine, width: int) -> str:
    text = line.data.removesuffix(b"\r").decode(errors="replace")
    return text[:width] + _ELLIPSIS if len(text) > width or line.left_out else text


def _render_match(match: GrepMatch, width: int) -> ExcerptLine:
    """Return a match; a long line is cut around it."""
    text = match.line_content
    if len(text) >= min(width + 1, DEFAULT_LIMITS.max_line_length):  # it may be cut already
        width = min(width, _MAX_LONG_LINE)
        begin = min(max(match.match_start - width // 4, 0), len(text) - width)
        end = begin + width
        head, tail = _ELLIPSIS if begin else "", _ELLIPSIS if end < len(text) else ""
        text = f"{head}{text[begin:end]}{tail}"
    return ExcerptLine(f"{match.line_number}:{text}", match)


def fit_excerpts(lines: Iterable[ExcerptLine], room: int) -> tuple[Sequence[ExcerptLine], bool]:
    """Return the lines that fit into `room` characters, and whether all did."""
    kept: list[ExcerptLine] = []
    for line in lines:
        room -= len(line.text) + 1
        if room < 0:
            return kept, False
        kept.append(line)
    return kept, True


_DIAGNOSIS_TIMEOUT = 1.0
_LINE_END = re.compile(r"\n|(?<!\\)(?:\\\\)*\\n")
_FLAGS = re.compile(r"(?:\(\?[A-Za-z]+\))*")
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")


def _reasons(request: GrepParams, search: Search, context: HandlerContext) -> Iterator[str]:
    if _LINE_END.search(request.pattern):
        yield "; lines are searched one at a time, so a pattern with a newline cannot match"
    if (search.glob or search.predicate) and not _any_file_passes(search, context):
        yield "; no file passes the filters; check glob, type and exclude"
    alike = replace(search, pattern=_loosen(search.pattern, request.pattern))
    others = _variants(request) if _finds_any(alike, context) else ()
    everywhere = replace(request, include_ignored=True)
    ignored = (everywhere, "it matches in files that .gitignore or .ignore exclude")
    for other, fact in (*others, *(() if request.include_ignored else (ignored,))):
        if _finds_any(build_search(other, context), context):
            yield f"; {fact}" + render.hint("; use", context.dialect.format_call(other))


def _loosen(pattern: str, text: str) -> str:
    """Return a pattern that ignores case or matches a literal text; flags stay first for `re`."""
    flags = _FLAGS.match(pattern)
    start = 0 if flags is None else flags.end()
    return f"(?i){pattern[:start]}(?:{pattern[start:]})|{re.escape(text)}"


def _finds_any(search: Search, context: HandlerContext) -> bool:
    return next(iter(Hits(search, SearchLimits(0, 1, 1), context.filesystem)), None) is not None


def _variants(request: GrepParams) -> Iterator[tuple[GrepParams, str]]:
    """Yield requests that may match, and the fact to report if they do."""
    if not request.ignore_case:
        yield replace(request, ignore_case=True), "it matches if case is ignored"
    if not request.fixed_string and _SPECIAL.search(request.pattern):
        yield replace(request, fixed_string=True), "it matches as plain text"


def _any_file_passes(search: Search, context: HandlerContext) -> bool:
    fits = None if search.glob is None else compile_filter(search.glob)
    with suppress(NotADirectoryError):
        found = find_files(context.filesystem, "**", path=search.path, ignore=search.ignore)
        for match in found:
            relative = search.relative(match.path)
            if search.accepts(match.path) and (fits is None or fits(relative)):
                return True
        return found.truncated  # if truncated, there may be one
    return search.accepts(search.path) and (fits is None or fits(search.relative(search.path)))


_MARGIN = 700  # characters for the lines around the matches
_SEARCH_TIMEOUT = 10.0
_CONTEXT_TIMEOUT = 3.0
_MAX_CONTEXT = 100


def grep(request: GrepParams, context: HandlerContext) -> ToolResult[GrepResult]:
    """Return the matches in the requested mode, or the reason why there are none."""
    search = build_search(request, context)
    settings, mode = context.settings, request.output_mode
    head_limit = clamp_head_limit(
        request.head_limit, settings.max_matches if mode == "content" else settings.max_entries
    )
    hits = Hits(search, _search_limits(request, head_limit), context.filesystem)
    found = _Outcome(
        request, search, head_limit, context, *_collect(hits, mode, head_limit, context)
    )
    if not found.files:
        return _render_no_matches(found)
    return _render_lines(found) if mode == "content" else _render_paths(found)


def _search_limits(request: GrepParams, head_limit: int) -> SearchLimits:
    if request.output_mode == "count":  # the total covers all files
        return SearchLimits(0)
    if request.output_mode == "files_with_matches":
        return SearchLimits(0, 1)
    if request.max_per_file is not None and request.max_per_file < 1:
        raise ToolValidationError(
            f"The number of matches per file must be at least 1: {request.max_per_file}"
        )
    return SearchLimits(head_limit + 1, request.max_per_file, head_limit + 1)


def _render_no_matches(found: "_Outcome") -> ToolResult[GrepResult]:
    """Return the result for a search without matches, with the reason if it is known."""
    request, context = found.request, found.context
    value = found.make_value((), (), truncated=None)
    if found.timed_out:
        text = f"No matches for {found.pattern} in the files searched so far"
        return render.bounded_result(context, [text], value, _time_limit_note(found.coverage))
    where = f" in {render.format_path(found.search.path)}" if found.search.path else ""
    text = f"No matches for {found.pattern}{where}"
    with suppress(OSError, ValueError, re.error), time_limit(_DIAGNOSIS_TIMEOUT):
        text += next(_reasons(request, found.search, context), "")
    return render.bounded_result(context, [text], value)


def build_search(request: GrepParams, context: HandlerContext) -> Search:
    """Return the search for a request."""
    pattern = re.escape(request.pattern) if request.fixed_string else request.pattern
    compile_regex(pattern, DEFAULT_LIMITS)  # errors should quote the original pattern
    path, exclude = context.resolve_path(request.path), request.exclude
    glob = None if request.glob is None else _normalize_glob(request.glob, path, context)
    unwanted = [exclude or ""]
    if glob is not None and glob.startswith("!"):
        unwanted.append(glob[1:])
        glob = None
    kept = compile_exclude(unwanted)
    predicates = [] if kept is None else [kept]
    if request.type:
        globs = type_globs(request.type)
        names = globs[0] if len(globs) == 1 else "{" + ",".join(globs) + "}"
        if glob:
            predicates.append(compile_filter(names))
        glob = glob or names
    return Search(
        pattern=f"(?i){pattern}" if request.ignore_case else pattern,
        path=path,
        glob=glob or None,
        predicate=(lambda name: all(test(name) for test in predicates)) if predicates else None,
        ignore=not request.include_ignored,
    )


def _normalize_glob(glob: str, path: str, context: HandlerContext) -> str:
    """Return a glob for the filesystem; a directory means the files in it."""
    if glob.startswith("/"):
        slash = "" if path or glob.endswith("/") else "/"  # "/a" matches "a" at the root only
        glob = slash + relative_pattern(context, glob, path)
    return f"{glob}**" if glob.endswith("/") else glob


def _collect(
    found: Hits, mode: GrepMode, left: int, context: HandlerContext
) -> tuple[Sequence[FileHits], bool, Coverage]:
    """Return files with matches until too many are `left` out, or time runs out."""
    files: list[FileHits] = []
    timed_out = False
    try:
        with early_time_limit(_SEARCH_TIMEOUT):
            for each in found:
                files.append(each)
                # in other modes than "content" no matches are kept
                left -= len(each.matches) + (mode == "files_with_matches")
                if left < 0:
                    break
    except TimeLimitError as error:
        if not files:
            raise TimeLimitError(f"{error}; search a smaller directory or fewer files") from None
        timed_out = True
    except OSError as error:
        raise access_error(context, found.search.path, error) from None
    except re.error as error:  # a third-party filesystem that searches with `re`
        pattern = found.search.pattern[:200]
        raise InvalidRegexError(f"Invalid regex: {error}: {pattern!r}") from None
    return files, timed_out or found.timed_out, found.coverage


def _time_limit_note(coverage: Coverage) -> str:
    """Return a note on how far a search got, and how to search the rest."""
    return (
        f"[stopped at the time limit after {render.format_count(coverage.searched, 'file')}"
        + render.format_missed(coverage, "not searched to the end")
        + "; to search the rest, use a narrower path, glob or type]"
    )


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a request before it is rendered; see `coverage` if it `timed_out`."""

    request: GrepParams
    search: Search
    head_limit: int
    context: HandlerContext
    files: Sequence[FileHits]
    timed_out: bool
    coverage: Coverage

    @property
    def pattern(self) -> str:
        return repr(self.request.pattern[:200])

    @property
    def room(self) -> int:
        return render.room_for(self.context.settings.budget, _MARGIN)

    def make_result(
        self, head: str, lines: Sequence[str], value: GrepResult, advice: str | None
    ) -> ToolResult[GrepResult]:
        """Return the result; `advice` says how to see what is not shown."""
        feet = [] if advice is None else [f"[truncated; {advice}]"]
        if self.timed_out:
            feet.append(_time_limit_note(self.coverage))
        return render.bounded_result(self.context, [head, *lines], value, "\n".join(feet))

    def make_value(
        self,
        files: Sequence[FileHits],
        lines: Sequence[ExcerptLine],
        *,
        truncated: TruncationReason | None,
    ) -> GrepResult:
        reason = "time limit" if self.timed_out else truncated
        return GrepResult(
            self.request.pattern,
            self.search.path or ".",
            self.request.output_mode,
            tuple(line.match for line in lines if line.match is not None),
            tuple(GrepCount(each.path, each.count) for each in files),
            reason is not None,
            reason,
            self.coverage,
        )


def _render_lines(found: _Outcome) -> ToolResult[GrepResult]:
    """Return matching lines, with lines around them."""
    request, context = found.request, found.context
    files = list(_take_matches(found.files, found.head_limit))
    total = sum(len(each.matches) for each in files)
    cut = sum(len(each.matches) for each in found.files) > total
    around = _line_context(request)
    with early_time_limit(_CONTEXT_TIMEOUT):  # after that, matches are shown without context
        lines, whole = fit_excerpts(_render_excerpts(files, around, context), found.room)
    reason: TruncationReason | None = "match limit" if cut else None
    reason = reason if whole else "size limit"
    value = found.make_value(files, lines, truncated=reason)
    value = replace(value, counts=_count_shown(value))
    head = _render_head(value, found.pattern, more=value.truncated)
    capped = [display_path(each.path) for each in files if each.more]
    notes = [f"[more matches in {', '.join(capped[:5])}]"] if capped else []
    advice = None if reason is None else _narrow_hint(request, context)
    return found.make_result(head, [*(line.text for line in lines), *notes], value, advice)


def _render_paths(found: _Outcome) -> ToolResult[GrepResult]:
    """Return the files with matches, or the number of matching lines of each."""
    is_count = found.request.output_mode == "count"
    most = found.files[: found.head_limit]
    paths = ((display_path(each.path), each.count) for each in most)
    lines = render.take_lines(
        (f"{path}:{count}" if is_count else path for path, count in paths), found.room
    )
    cut: TruncationReason | None = "match limit" if len(lines) == found.head_limit else "size limit"
    cut = None if len(lines) == len(found.files) else cut
    value = found.make_value(found.files[: len(lines)], (), truncated=cut)
    more, advice = "at least " if found.timed_out else "", "use a narrower path or glob"
    if is_count:
        total = sum(each.count for each in found.files)
        verb = "matches" if total == 1 else "match"
        files = render.format_count(len(found.files), "file")
        head = f"{more}{render.format_count(total, 'line')} in {files} {verb} {found.pattern}"
    else:
        more = more or ("more than " if value.truncated else "")
        verb = "has" if len(lines) == 1 else "have"
        head = f"{more}{render.format_count(len(lines), 'file')} {verb} matches for {found.pattern}"
        advice = "use a narrower pattern, path or glob"
    return found.make_result(head, lines, value, None if cut is None else advice)


def _line_context(request: GrepParams) -> LineContext:
    both = request.context or 0
    before = both if request.before is None else request.before
    after = both if request.after is None else request.after
    if min(before, after) < 0:
        raise ToolValidationError(
            f"The number of lines around a match must be at least 0: {min(before, after)}"
        )
    return min(before, _MAX_CONTEXT), min(after, _MAX_CONTEXT)


def _take_matches(files: Sequence[FileHits], head_limit: int) -> Iterator[FileHits]:
    """Yield files with `head_limit` matches in total; the last file is cut to fit."""
    for each in files:
        if head_limit <= 0:
            return
        kept = each.matches[:head_limit]
        head_limit -= len(kept)
        yield replace(each, matches=kept)


def _render_excerpts(
    files: Sequence[FileHits], around: LineContext, context: HandlerContext
) -> Iterator[ExcerptLine]:
    for number, each in enumerate(files):
        if number:
            yield ExcerptLine("")
        yield from render_excerpt(each, around, context)


def _count_shown(value: GrepResult) -> tuple[GrepCount, ...]:
    counts: dict[str, int] = {}
    for match in value.matches:
        counts[match.path] = counts.get(match.path, 0) + 1
    return tuple(GrepCount(path, count) for path, count in counts.items())


def _render_head(value: GrepResult, pattern: str, *, more: bool) -> str:
    matches = render.format_count(len(value.matches), "match", "matches")
    files = render.format_count(len(value.counts), "file")
    return f"{matches} in {files} for {pattern}" + (", and more" if more else "")


def _narrow_hint(request: GrepParams, context: HandlerContext) -> str:
    other = replace(
        request, output_mode="files_with_matches", head_limit=None, context=None, before=None,
        after=None, max_per_file=None,
    )  # fmt: skip
    call = context.dialect.format_call(other)
    return "more matches follow: use a narrower pattern, path or glob" + render.hint(
        "; to list the files with matches:", call
    )
