"""`glob`: paths by name as text, and a diagnosis if nothing matches."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers import render, search
from weakincentives.contrib.tools.handlers.errors import access_error
from weakincentives.contrib.tools.handlers.suggestions import ignore_case
from weakincentives.contrib.tools.requests import GlobParams
from weakincentives.contrib.tools.results import GlobResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import GlobMatch, Results, TimeLimitError, time_limit
from weakincentives.posix import display_path
from weakincentives.prompt import ToolResult

_MARGIN = 600
_HINT_TIMEOUT = 1.0
_MAX_DIRECTORIES = 5


def glob(request: GlobParams, context: HandlerContext) -> ToolResult[GlobResult]:
    """Return the matching paths, sorted, or the reason why there are none."""
    most = clamp_head_limit(request.head_limit, context.settings.max_entries)
    request = _normalize_request(request, context)
    found = _find_matches(request, context)
    if not found:
        value = GlobResult(
            request.pattern, request.path, (), 0, found.truncated, found.reason, found.coverage
        )
        text = _render_no_matches(request, context, found)
        return render.bounded_result(context, [text], value, _time_limit_note(found))
    noun = ("directory", "directories") if request.pattern.endswith("/") else ("file", "files")
    more = "more than " if found.truncated else ""
    more = "at least " if found.reason == "time limit" else more
    where = "" if request.path == "." else f" in {render.format_path(request.path)}"
    verb = "matches" if len(found) == 1 else "match"
    count = render.format_count(len(found), *noun)
    head = f"{more}{count}{where} {verb} {request.pattern[:_MARGIN]!r}"
    slash = "/" if request.pattern.endswith("/") else ""
    lines = (display_path(match.path) + slash for match in found[:most])
    kept = render.take_lines(lines, render.room_for(context.settings.budget, len(head) + _MARGIN))
    foot = _render_foot(request, found, len(kept)) if len(kept) < len(found) else ""
    foot = "\n".join(filter(None, (foot, _time_limit_note(found))))
    truncated = found.truncated or len(kept) < len(found)
    shown_matches = tuple(found[: len(kept)])
    cut = "match limit" if len(kept) == most else "size limit"
    reason = found.reason or (cut if len(kept) < len(found) else None)
    value = GlobResult(
        request.pattern, request.path, shown_matches, len(found), truncated, reason, found.coverage
    )
    return render.bounded_result(context, [head, *kept], value, foot)


def clamp_head_limit(given: int | None, maximum: int) -> int:
    """Return the number of results to show; 0 means the maximum."""
    if given is not None and given < 0:
        raise ToolValidationError(f"The number of results must be at least 0: {given}")
    return min(given, maximum) if given else maximum


def _normalize_request(request: GlobParams, context: HandlerContext) -> GlobParams:
    """Return the request with a pattern relative to its path."""
    path = context.resolve_path(request.path)
    pattern = search.relative_pattern(context, request.pattern, path)
    return replace(request, path=path or ".", pattern=pattern)


def _find_matches(request: GlobParams, context: HandlerContext) -> Results[GlobMatch]:
    path = "" if request.path == "." else request.path
    wanted = search.compile_exclude(request.exclude)
    try:
        found = search.find_files(
            context.filesystem, request.pattern, path=path, ignore=not request.include_ignored
        )
        if wanted is None:
            return found
        skip = len(path) + 1 if path else 0
        kept = [match for match in found if wanted(match.path[skip:])]
        return Results(
            kept, truncated=found.truncated, reason=found.reason, coverage=found.coverage
        )
    except TimeLimitError as error:
        raise TimeLimitError(f"{error}; search a smaller directory") from None
    except OSError as error:
        raise access_error(context, path, error, what="directory") from None


def _time_limit_note(found: Results[GlobMatch]) -> str:
    """Return a note on how far the search got before the time limit; empty if it finished."""
    if found.reason != "time limit":
        return ""
    searched = render.format_count(found.coverage.searched, "directory", "directories")
    return (
        f"[stopped at the time limit after {searched}"
        f"{render.format_missed(found.coverage, 'not searched')}"
        "; to see the rest, use a narrower path or pattern]"
    )


def _render_foot(request: GlobParams, found: Sequence[GlobMatch], count: int) -> str:
    """Return a note on which directories have the matches that are not shown."""
    skip = 0 if request.path == "." else len(request.path) + 1
    firsts = (match.path[skip:].partition("/") for match in found[count:])
    places = Counter(name + slash for name, slash, _ in firsts if slash)
    most = [
        f"{render.format_path(name)} ({number:,})"
        for name, number in places.most_common(_MAX_DIRECTORIES)
    ]
    text = f"[truncated: {count:,} of {len(found):,} shown; use a narrower pattern or path"
    return text + (f"; the rest is in {render.join_words(most, 'and')}" if most else "") + "]"


def _render_no_matches(
    request: GlobParams, context: HandlerContext, found: Results[GlobMatch]
) -> str:
    """Return the message for no matches, with the reason if it is cheap to find."""
    where = "" if request.path == "." else f" in {render.format_path(request.path)}"
    text = f"No files match {request.pattern[:_MARGIN]!r}{where}"
    if found.reason == "time limit":
        return f"{text} in the directories searched so far"
    with suppress(OSError, ValueError), time_limit(_HINT_TIMEOUT):
        return text + next(_reasons(request, context), "")
    return text


def _reasons(request: GlobParams, context: HandlerContext) -> Iterator[str]:
    for other in _variants(request):
        found = _find_matches(other, context)
        if found:
            yield _did_you_mean(found, context.dialect.format_call(other) or repr(other.pattern))
    if "[" not in request.pattern:
        found = _find_matches(replace(request, pattern=ignore_case(request.pattern)), context)
        if found:
            yield f"; patterns are case-sensitive: {display_path(found[0].path)!r} exists"
    yield from _excluded_reasons(request, context)
    if not request.pattern.endswith("/"):
        found = _find_matches(replace(request, pattern=request.pattern + "/"), context)
        if found:
            inside = replace(request, pattern=request.pattern + "/**")
            call = render.hint("; to find the files in it:", context.dialect.format_call(inside))
            yield f"; {display_path(found[0].path)!r} is a directory{call}"


def _excluded_reasons(request: GlobParams, context: HandlerContext) -> Iterator[str]:
    """Yield reasons for matches that ignore files or `exclude` left out."""
    if not request.include_ignored:
        other = replace(request, include_ignored=True)
        found = _find_matches(other, context)
        if found:
            files = "file is" if len(found) == 1 else "files are"
            call = render.hint("; to see them:", context.dialect.format_call(other))
            yield f"; {len(found):,} matching {files} excluded by .gitignore or .ignore{call}"
    if request.exclude:
        found = _find_matches(replace(request, exclude=()), context)
        if found:
            yield f"; exclude leaves out all matches, for example {display_path(found[0].path)!r}"


def _variants(request: GlobParams) -> Iterator[GlobParams]:
    """Yield likely alternatives: the same name in subdirectories, or from another directory."""
    yield replace(request, pattern=f"**/{request.pattern}")
    if request.path != "." and request.pattern.startswith(request.path + "/"):
        yield replace(request, pattern=request.pattern[len(request.path) + 1 :])
    if request.path != "." and "/" in request.pattern.rstrip("/"):
        yield replace(request, path=".")


def _did_you_mean(found: Sequence[GlobMatch], call: str) -> str:
    example = display_path(found[0].path)
    others = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
    return f"; did you mean {call}? It finds {example!r}{others}"
