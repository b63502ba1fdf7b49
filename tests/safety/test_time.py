"""Hostile patterns end soon, time limits hold, and other threads keep running."""

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    InvalidGlobError,
    InvalidRegexError,
    Limits,
    Results,
    TimeLimitError,
    time_limit,
)

LARGE = Limits(max_write_length=100_000_000)

GLOB_BOMBS = {
    "stars and slashes": "**/" * 60 + "x",
    "stars and letters": "*a" * 60,
    "brackets": "[" * 3_000,
    "braces": "{" * 3_000,
    "nested braces": "{a,b}" * 12,
    "deep braces": "{" * 60 + "a" + ",b}" * 60,
    "range": "{1..1000000000}",
    "letters range": "{a..z}" * 8,
    "classes": "[a-z]" * 800,
    "questions": "?" * 4_000,
    "globstars": "**" * 2_000,
    "mixed": "**/*a*/**/*b*/" * 30 + "x",
    "escapes": "\\" * 4_001,
    "too long": "a" * 100_000,
    "unicode": "\U0001f600" * 1_000,
    "negated": "[!a]*" * 500,
    "backwards": "[z-a]" * 500,
}

REGEX_BOMBS = {
    "nested quantifiers": "(a+)+$",
    "nested stars": "((a*)*)*b",
    "alternatives": "(a|aa)+$",
    "overlap": "(.*)(.*)(.*)(.*)(.*)x",
    "optional": "a?" * 100 + "a" * 100,
    "repeat": "(?:(?:a{1,30}){1,30}){1,30}",
    "large repeat": "a{1000}{1000}",
    "parentheses": "(" * 5_000,
    "closed parentheses": "(" * 2_000 + ")" * 2_000,
    "brackets": "[" * 3_000,
    "unicode classes": r"\pL" * 1_000,
    "case folding": "(?i)" + "k" * 2_000,
    "alternation": "|".join(["a" * 30] * 130),
    "long dots": ".{1,1000}.{1,1000}x",
    "too long": "a" * 100_000,
    "look behind": "(?<=a)b",
    "back reference": r"(a+)\1",
    "recursion": "(?R)",
}


@pytest.fixture(params=["host", "memory"])
def fs(request: pytest.FixtureRequest, directory: Path) -> BaseFilesystem:
    if request.param == "host":
        return HostFilesystem(directory, limits=LARGE)
    return InMemoryFilesystem(limits=LARGE)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pattern", GLOB_BOMBS.values(), ids=GLOB_BOMBS)
def test_a_glob_bomb_is_refused_or_answered(fs: BaseFilesystem, pattern: str) -> None:
    fs.write("a" * 80, "")
    fs.write("/".join(["b" * 80] * 16), "")
    for search in (lambda: fs.glob(pattern), lambda: fs.grep("x", glob=pattern)):
        try:
            found = search()
        except InvalidGlobError as error:
            assert str(error).startswith("Invalid glob")
            assert len(str(error)) < 10_000
        else:
            assert len(found) <= 2


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pattern", REGEX_BOMBS.values(), ids=REGEX_BOMBS)
def test_a_regex_bomb_is_refused_or_answered(fs: BaseFilesystem, pattern: str) -> None:
    fs.write("line", "a" * 40_000 + "!\n")
    fs.write("lines", ("a" * 60 + "!\n") * 1_000)
    try:
        found = fs.grep(pattern)
    except InvalidRegexError as error:
        assert str(error).startswith("Invalid regex")
        assert len(str(error)) < 1_000
    else:
        assert len(found) <= 1_000


class Ticks:
    """A clock that moves by one second whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def lay_out(fs: BaseFilesystem) -> None:
    for directory in range(20):
        fs.write(f"d/{directory}/f", "line\n")
    fs.write("large", "a line of text\n" * 300_000)


SEARCHES: dict[str, Callable[[BaseFilesystem], Results[Any]]] = {
    "grep": lambda fs: fs.grep("nothing"),
    "grep a file": lambda fs: fs.grep("(l|i|n|e)+q", path="large"),
    "glob": lambda fs: fs.glob("**"),
}


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_a_search_returns_what_it_has_when_its_time_is_up(
    fs: BaseFilesystem, search: Callable[[BaseFilesystem], Results[Any]]
) -> None:
    lay_out(fs)
    with time_limit(10.0, clock=Ticks()):
        found = search(fs)
    assert (found.truncated, found.reason) == (True, "time limit")
    missed = found.coverage.missed_files + found.coverage.missed_directories
    assert missed >= len(found.coverage.missed_paths) > 0
    assert not search(fs).truncated
    with time_limit(0.0, clock=Ticks()), pytest.raises(TimeLimitError, match="time limit"):
        search(fs)


LIMITED: dict[str, Callable[[BaseFilesystem], object]] = {
    "list": lambda fs: [fs.list(f"d/{number}") for number in range(20)],
    "read": lambda fs: fs.read("large", offset=200_000),
    "read_bytes": lambda fs: [fs.read_bytes(f"d/{number}/f") for number in range(20)],
    "hash": lambda fs: fs.content_hash("large"),
}


@pytest.mark.parametrize("operation", LIMITED.values(), ids=LIMITED)
def test_an_operation_stops_when_its_time_is_up(
    fs: BaseFilesystem, operation: Callable[[BaseFilesystem], object]
) -> None:
    lay_out(fs)
    with time_limit(2.0, clock=Ticks()), pytest.raises(TimeLimitError, match="time limit"):
        operation(fs)
    operation(fs)


def test_a_copy_that_ran_out_of_time_leaves_nothing(directory: Path) -> None:
    fs = HostFilesystem(directory, limits=LARGE)  # in memory a copy takes no time
    lay_out(fs)
    with time_limit(30.0, clock=Ticks()), pytest.raises(TimeLimitError):
        fs.copy("d", "new/copied")
    assert not fs.exists("new")
    fs.copy("d", "new/copied")


def test_a_mount_stops_when_its_time_is_up(directory: Path) -> None:
    for number in range(20):
        (directory / str(number)).mkdir()
    with time_limit(2.0, clock=Ticks()), pytest.raises(TimeLimitError):
        InMemoryFilesystem().hydrate_from_host(HostMount("."), allowed_roots=[directory])


def test_a_clock_that_is_set_changes_no_deadline(
    fs: BaseFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(fs)
    now = datetime.now(UTC).timestamp()
    for day in (-86_400, 86_400):
        monkeypatch.setattr("time.time", lambda day=day: now + day)
        monkeypatch.setattr("time.time_ns", lambda day=day: int((now + day) * 1e9))
        with time_limit(600.0):
            assert len(fs.glob("**")) == 21
            assert fs.read("large", offset=299_999).content == "a line of text\n"
            fs.write("large", "changed\n")
            assert fs.read("large").content == "changed\n"
            fs.write("large", "a line of text\n" * 300_000)


def test_other_threads_go_on_during_a_hostile_search(fs: BaseFilesystem) -> None:
    choice = random.Random(1)
    fs.write("f", "".join(choice.choices("ab", k=100_000)))
    started, done = threading.Event(), threading.Event()

    def search() -> None:
        started.set()
        fs.grep("a[ab]{900}c")  # RE2's slow way, for a good part of a second
        done.set()

    thread = threading.Thread(target=search)
    thread.start()
    started.wait()
    ticks = 0
    while not done.wait(0.001):
        ticks += 1
    thread.join()
    assert ticks > 20  # there would be one or two if the search held the interpreter's lock
