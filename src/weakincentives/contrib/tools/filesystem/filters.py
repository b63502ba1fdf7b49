"""Filters on paths: what to leave out."""

from collections.abc import Iterable, Sequence

from weakincentives.contrib.tools.workbench import Workbench
from weakincentives.filesystem.paths import parents_of
from weakincentives.filesystem.patterns import Predicate, compile_filter


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


def below(bench: Workbench, pattern: str, path: str) -> tuple[str, str]:
    """Return a pattern and the place from which it counts, however the two were given.

    A pattern that begins at the root counts from there, unless it lies below `path`.
    """
    root = bench.filesystem.root.rstrip("/")
    if root and f"{pattern}/".startswith(f"{root}/"):
        pattern = pattern[len(root) :] or "/"
    if not pattern.startswith("/"):
        return pattern, path
    pattern = pattern.lstrip("/") or "**"
    if not path:
        return pattern, path
    inside = pattern.removeprefix(f"{path}/")
    return (inside, path) if inside != pattern else (pattern, "")


def all_of(tests: Sequence[Predicate]) -> Predicate | None:
    """Return the test that is passed by what passes all of several; None if there are none."""
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda path: all(test(path) for test in tests)


def _below(pattern: str) -> Predicate:
    """Return the test for what a pattern names; a directory, however it is written."""
    directory = pattern.removesuffix("**").rstrip("/") if pattern.endswith("/**") else pattern
    return compile_filter(directory.rstrip("/") or pattern)
