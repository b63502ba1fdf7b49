"""glob: files by name, and why there are none."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.errors import in_any_case
from weakincentives.contrib.tools.handlers.filters import below, find_files, leaving_out
from weakincentives.contrib.tools.handlers.list import no_directory
from weakincentives.contrib.tools.handlers.render import (
    count_text,
    fit,
    format_path,
    hint,
    join_words,
    missed,
    room_in,
    take_lines,
)
from weakincentives.contrib.tools.requests import GlobParams
from weakincentives.contrib.tools.results import GlobResult
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import GlobMatch, Results, TimeLimitError, time_limit
from weakincentives.posix import display_path
from weakincentives.prompt import ToolResult

_MARGIN = 600
_HINT_SECONDS = 1.0
_PLACES = 5


def glob(request: GlobParams, context: HandlerContext) -> ToolResult[GlobResult]:
    """Return the paths that match, sorted; if there are none, say why.

    Raises:
        OSError: The directory is none; the text says what it is, or what may have been meant.
        ValueError: The pattern cannot be.
    """
    most = head_limit(request.head_limit, context.settings.max_entries)
    request = _relative(request, context)
    found = _matches(request, context)
    budget = context.settings.budget
    if not found:
        value = GlobResult(
            request.pattern, request.path, (), 0, found.truncated, found.reason, found.coverage
        )
        text = _nothing(request, context, found)
        return ToolResult(fit([text], _late(found), budget), value, True, True)
    noun = ("directory", "directories") if request.pattern.endswith("/") else ("file", "files")
    more = "more than " if found.truncated else ""
    more = "at least " if found.reason == "time limit" else more
    where = "" if request.path == "." else f" in {format_path(request.path)}"
    verb = "matches" if len(found) == 1 else "match"
    head = f"{more}{count_text(len(found), *noun)}{where} {verb} {request.pattern[:_MARGIN]!r}"
    slash = "/" if request.pattern.endswith("/") else ""
    lines = (display_path(match.path) + slash for match in found[:most])
    kept = take_lines(lines, room_in(budget, len(head) + _MARGIN))
    foot = _foot(request, found, len(kept)) if len(kept) < len(found) else ""
    foot = "\n".join(filter(None, (foot, _late(found))))
    truncated = found.truncated or len(kept) < len(found)
    shown_matches = tuple(found[: len(kept)])
    cut = "match limit" if len(kept) == most else "size limit"
    reason = found.reason or (cut if len(kept) < len(found) else None)
    value = GlobResult(
        request.pattern, request.path, shown_matches, len(found), truncated, reason, found.coverage
    )
    return ToolResult(fit([head, *kept], foot, budget), value, True, True)


def head_limit(given: int | None, most: int) -> int:
    """Return how many results to show; 0 means as many as there can be.

    Raises:
        ToolValidationError: It is negative.
    """
    if given is not None and given < 0:
        raise ToolValidationError(f"How many results to return must not be negative: {given}")
    return min(given, most) if given else most


def _relative(request: GlobParams, context: HandlerContext) -> GlobParams:
    """Return the request with a pattern below its path, however the two were given."""
    path = context.resolve_path(request.path)
    pattern = below(context, request.pattern, path)
    return replace(request, path=path or ".", pattern=pattern)


def _matches(request: GlobParams, context: HandlerContext) -> Results[GlobMatch]:
    path = "" if request.path == "." else request.path
    wanted = leaving_out(request.exclude)
    try:
        found = find_files(
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
        raise TimeLimitError(f"{error}; look in a smaller directory") from None
    except OSError as error:
        raise no_directory(context, path, error) from None


def _late(found: Results[GlobMatch]) -> str:
    """Say how far the search got if its time was up; else nothing."""
    if found.reason != "time limit":
        return ""
    listed_text = count_text(found.coverage.searched, "directory", "directories")
    return (
        f"[stopped at the time limit after {listed_text}{missed(found.coverage, 'not looked into')}"
        "; to see the rest, take a narrower path or pattern]"
    )


def _foot(request: GlobParams, found: Sequence[GlobMatch], count: int) -> str:
    """Say where the matches are that are not shown."""
    skip = 0 if request.path == "." else len(request.path) + 1
    firsts = (match.path[skip:].partition("/") for match in found[count:])
    places = Counter(name + slash for name, slash, _ in firsts if slash)
    most = [f"{format_path(name)} ({number:,})" for name, number in places.most_common(_PLACES)]
    text = f"[truncated: {count:,} of {len(found):,} are shown; take a narrower pattern or path"
    return text + (f"; the others are in {join_words(most, 'and')}" if most else "") + "]"


def _nothing(request: GlobParams, context: HandlerContext, found: Results[GlobMatch]) -> str:
    """Say that nothing matched and, if it is cheap to know, why."""
    where = "" if request.path == "." else f" in {format_path(request.path)}"
    text = f"No files match {request.pattern[:_MARGIN]!r}{where}"
    if found.reason == "time limit":
        return f"{text}, as far as it was searched"
    with suppress(OSError, ValueError), time_limit(_HINT_SECONDS):
        return text + next(_reasons(request, context), "")
    return text


def _reasons(request: GlobParams, context: HandlerContext) -> Iterator[str]:
    for other in _elsewhere(request):
        found = _matches(other, context)
        if found:
            yield _meant(found, context.dialect.format_call(other) or repr(other.pattern))
    if "[" not in request.pattern:
        found = _matches(replace(request, pattern=in_any_case(request.pattern)), context)
        if found:
            yield f"; case matters: there is {display_path(found[0].path)!r}"
    yield from _left_out(request, context)
    if not request.pattern.endswith("/"):
        found = _matches(replace(request, pattern=request.pattern + "/"), context)
        if found:
            inside = replace(request, pattern=request.pattern + "/**")
            call = hint("; for the files in it:", context.dialect.format_call(inside))
            yield f"; {display_path(found[0].path)!r} is a directory{call}"


def _left_out(request: GlobParams, context: HandlerContext) -> Iterator[str]:
    """Yield what is said if there are matches that were to be left out."""
    if not request.include_ignored:
        other = replace(request, include_ignored=True)
        found = _matches(other, context)
        if found:
            are = "file is" if len(found) == 1 else "files are"
            call = hint("; to see them:", context.dialect.format_call(other))
            yield f"; {len(found):,} {are} left out by ignore files{call}"
    if request.exclude:
        found = _matches(replace(request, exclude=()), context)
        if found:
            yield f"; what matches is left out: {display_path(found[0].path)!r}, for example"


def _elsewhere(request: GlobParams) -> Iterator[GlobParams]:
    """Yield what may have been meant: the same name further below, or from another place."""
    yield replace(request, pattern=f"**/{request.pattern}")
    if request.path != "." and request.pattern.startswith(request.path + "/"):
        yield replace(request, pattern=request.pattern[len(request.path) + 1 :])
    if request.path != "." and "/" in request.pattern.rstrip("/"):
        yield replace(request, path=".")


def _meant(found: Sequence[GlobMatch], call: str) -> str:
    example = display_path(found[0].path)
    others = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
    return f"; did you mean {call}? It finds {example!r}{others}"
