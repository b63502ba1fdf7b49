"""Filters on paths: what to leave out."""

from collections.abc import Iterable, Sequence

from weakincentives.contrib.tools.filesystem.wording import named
from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem.paths import parents_of
from weakincentives.filesystem.patterns import Predicate, compile_filter

_SHOWN = 200


def leaving_out(patterns: Iterable[str]) -> Predicate | None:
    """Return the test for paths that neither match nor lie below something that does.

    A pattern without `/` is about names at any depth. None if there are no patterns.

    Raises:
        InvalidGlobError: One of them cannot be.
    """
    tests = [_below(pattern) for pattern in patterns if pattern]
    if not tests:
        return None
    return lambda path: (
        not any(matches(each) for each in (path, *parents_of(path)) for matches in tests)
    )


def below(bench: Workbench, pattern: str, path: str) -> str:
    """Return a pattern as it counts from `path`; it may have been given from the root.

    Raises:
        ToolValidationError: It begins at the root and leads elsewhere.
    """
    root = bench.filesystem.root.rstrip("/")
    if root and f"{pattern}/".startswith(f"{root}/"):
        pattern = pattern[len(root) :] or "/"
    if not pattern.startswith("/"):
        return pattern
    inside = pattern.strip("/") if pattern.strip("/") == path else pattern.lstrip("/")
    if path and not f"{inside}/".startswith(f"{path}/"):
        raise ToolValidationError(
            f"Pattern begins at the top of the workspace and leads out of {named(path)!r}:"
            f" {pattern[:_SHOWN]!r}; look in '.', or begin it at the directory"
        )
    return inside[len(path) :].lstrip("/") or "**"


def all_of(tests: Sequence[Predicate]) -> Predicate | None:
    """Return the test that is passed by what passes all of several; None if there are none."""
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda path: all(test(path) for test in tests)


def _below(pattern: str) -> Predicate:
    """Return the test for what a pattern names; a directory, however it is written."""
    directory = pattern.removesuffix("**").rstrip("/") if pattern.endswith("/**") else pattern
    return compile_filter(directory.rstrip("/") or pattern)
