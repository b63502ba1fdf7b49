"""Why a search found nothing, if that is cheap to know."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from weakincentives.contrib.tools.filesystem.ignoring import find_files
from weakincentives.contrib.tools.filesystem.matching import Hits, Search, Wanted
from weakincentives.contrib.tools.filesystem.wording import hint, named
from weakincentives.contrib.tools.requests import GrepParams
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.filesystem import time_limit
from weakincentives.filesystem.patterns import compile_filter

_SECONDS = 1.0
_LINE_END = re.compile(r"\n|(?<!\\)(?:\\\\)*\\n")
_FLAGS = re.compile(r"(?:\(\?[A-Za-z]+\))*")
_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")


def no_matches(
    request: GrepParams,
    search: Search,
    bench: Workbench,
    meaning: Callable[[GrepParams], Search],
) -> str:
    """Return the sentence for a search that found nothing; it says why if that is known.

    Args:
        request: What was asked for.
        search: What that meant.
        bench: What it was carried out with.
        meaning: Returns the search that another request means.
    """
    where = f" in {named(search.path)}" if search.path else ""
    text = f"No matches for {request.pattern[:200]!r}{where}"
    with suppress(OSError, ValueError, re.error), time_limit(_SECONDS):
        return text + next(_reasons(request, search, bench, meaning), "")
    return text


def _reasons(
    request: GrepParams,
    search: Search,
    bench: Workbench,
    meaning: Callable[[GrepParams], Search],
) -> Iterator[str]:
    if _LINE_END.search(request.pattern):
        yield "; lines are searched one at a time, so a line end is never matched"
    if (search.glob or search.sieve) and not _any_file(search, bench):
        yield "; the filters leave no file to search"
    alike = replace(search, pattern=_alike(search.pattern, request.pattern))
    others = _others(request) if _found(alike, bench) else ()
    for other, fact in (*others, *_ignored(request)):
        if _found(meaning(other), bench):
            yield f"; {fact}" + hint(": use", bench.speech.call(other))


def _alike(pattern: str, text: str) -> str:
    """Return what matches a pattern in any case, or a text; flags stay first, for `re`."""
    flags = _FLAGS.match(pattern)
    start = 0 if flags is None else flags.end()
    return f"(?i){pattern[:start]}(?:{pattern[start:]})|{re.escape(text)}"


def _found(search: Search, bench: Workbench) -> bool:
    return next(iter(Hits(search, Wanted(0, 1, 1), bench.filesystem)), None) is not None


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


def _any_file(search: Search, bench: Workbench) -> bool:
    """Whether the filters let any file through."""
    fits = None if search.glob is None else compile_filter(search.glob)
    with suppress(NotADirectoryError):
        found = find_files(bench.filesystem, "**", path=search.path, ignore=search.ignore)
        for match in found:
            below = search.below(match.path)
            if search.takes(match.path) and (fits is None or fits(below)):
                return True
        return found.truncated  # then there may be one
    return search.takes(search.path) and (fits is None or fits(search.below(search.path)))
