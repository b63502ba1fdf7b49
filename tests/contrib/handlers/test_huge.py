"""Huge files, and searches that run out of time, as reported in every dialect."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contrib.handlers.requests import ask, refusal
from weakincentives.adapters import ToolCall, ToolExecutor, ToolOutcome
from weakincentives.contrib.tools import HostWorkspaceSection
from weakincentives.contrib.tools.handlers.render import read_lines
from weakincentives.contrib.tools.requests import GlobParams, GrepParams, ReadFileParams
from weakincentives.filesystem import (
    BytesContent,
    Coverage,
    HostFilesystem,
    Limits,
    TimeLimitError,
    time_limit,
)
from weakincentives.filesystem.testing import MockFilesystem
from weakincentives.filesystem.testing.contract import TickingClock
from weakincentives.prompt import ToolContext
from weakincentives.runtime import Deadline
from weakincentives.runtime.session import Session

GIGABYTE = 1024**3

READS: dict[str, tuple[str, dict[str, Any]]] = {
    "wink": ("read_file", {"file_path": "big.txt", "limit": 2}),
    "classic": ("read_file", {"path": "big.txt", "limit": 2}),
    "claude": ("Read", {"file_path": "big.txt", "limit": 2}),
    "anthropic-editor": (
        "str_replace_based_edit_tool",
        {"command": "view", "path": "big.txt", "view_range": [1, 2]},
    ),
    "openai": ("read_file", {"file_path": "big.txt", "limit": 2}),
    "gemini": ("read_file", {"file_path": "big.txt", "end_line": 2}),
    "mcp": ("read_text_file", {"path": "big.txt", "head": 2}),
}
GREPS: dict[str, tuple[str, dict[str, Any]]] = {
    "wink": ("grep", {"pattern": "needle"}),
    "claude": ("Grep", {"pattern": "needle"}),
    "openai": ("grep_files", {"pattern": "needle"}),
    "gemini": ("grep_search", {"pattern": "needle"}),
}
GLOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "wink": ("glob", {"pattern": "**"}),
    "claude": ("Glob", {"pattern": "**"}),
    "gemini": ("glob", {"pattern": "**"}),
    "mcp": ("search_files", {"path": ".", "pattern": "**"}),
}


class SlowClock:
    """The clock of a deadline that moves by a tenth of a second whenever somebody looks."""

    def __init__(self) -> None:
        self._real = Deadline.after(1).clock
        self.monotonic = TickingClock(0.1)

    def now(self) -> Any:
        return self._real.now()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with (tmp_path / "big.txt").open("wb") as file:
        file.write(b"one\ntwo\n" + b"line\n" * 39_998)
        file.truncate(8 * GIGABYTE)
    return tmp_path


@pytest.fixture
def host(root: Path) -> Iterator[HostFilesystem]:
    with HostFilesystem(root, limits=Limits(max_search_seconds=10_000)) as opened:
        yield opened


def call(
    root: Path, dialect: str, name: str, arguments: dict[str, Any], seconds: float | None = None
) -> ToolOutcome:
    limits = Limits(max_search_seconds=10_000)
    section = HostWorkspaceSection(root=root, dialect=dialect, limits=limits)
    deadline = None if seconds is None else Deadline.after(seconds, clock=SlowClock())
    context = ToolContext(
        None, None, None, Session(), filesystem=section.filesystem, deadline=deadline
    )
    executor = ToolExecutor(section.tools, context=context)
    return executor.execute(ToolCall(name, arguments, "call-1"))


def plant(root: Path, count: int = 30) -> None:
    for number in range(count):
        (root / f"{number:02}").mkdir()
        (root / f"{number:02}" / "f.py").write_text("needle\n")


# --- pages ---


@pytest.mark.parametrize("dialect", READS)
def test_every_dialect_says_that_the_lines_of_a_huge_file_were_not_counted(
    root: Path, dialect: str
):
    outcome = call(root, dialect, *READS[dialect])
    head, first, second, more, *_ = outcome.text.split("\n")
    assert head == "big.txt: lines 1 to 2 of at least 40001"
    assert (first, second) == ("     1\tone", "     2\ttwo")
    assert more.startswith("[truncated; the file is too large to count all lines")
    assert "to continue:" in more


def test_the_value_says_so_too(host: HostFilesystem):
    value = ask(host, ReadFileParams("big.txt", limit=2)).value
    assert (value.total, value.total_is_exact, value.next_offset) == (40_001, False, 2)


def test_a_line_without_an_end_is_shown_by_its_beginning(host: HostFilesystem):
    result = ask(host, ReadFileParams("big.txt", offset=40_000, view="text"))
    assert result.message.startswith(
        "big.txt: lines 40001 to 40001 of at least 40001\n 40001\t\0\0"
    )
    assert "[... at least 268,4" in result.message
    assert "[line 40001 is too long to show in full; the end of the line was not reached; to" in (
        result.message
    )
    assert "no newline" not in result.message


def test_lines_are_read_as_far_as_it_is_said():
    data = b"one\n" + b"x" * 1_000_000 + b"\nlast\n"
    every = list(read_lines(BytesContent(data), 0, 10))
    assert [(line.data, line.left_out, line.endless) for line in every] == [
        (b"one", 0, False),
        (b"x" * 10, 999_990, False),
        (b"last", 0, False),
    ]
    part = list(read_lines(BytesContent(data), 0, 10, max_bytes=500_000))
    assert part[0] == every[0]
    assert (part[1].data, part[1].endless, len(part)) == (b"x" * 10, True, 2)
    assert 490_000 < part[1].left_out < 999_990
    assert list(read_lines(BytesContent(b"a\n" * 200_000), 0, 10, max_bytes=131_072))[-1].ended


def test_a_page_that_is_not_found_in_time_says_what_to_do(root: Path):
    (root / "lines").write_bytes(b"0123456\n" * 1_000_000)
    for seconds in (12, None):
        limits = Limits(max_read_seconds=0 if seconds is None else 10_000)
        with HostFilesystem(root, limits=limits) as fs:
            with time_limit(10_000 if seconds is None else seconds, clock=TickingClock()):
                text = refusal(fs, ReadFileParams("lines", offset=900_000), TimeLimitError)
            assert "start at an earlier line; grep shows the text around a match; byte" in text
            assert text.endswith("read_file with file_path='lines', offset=4000000, view='base64'")


def test_a_filesystem_of_somebody_else_is_bound_by_the_same_time(root: Path):
    (root / "lines").write_bytes(b"0123456\n" * 1_000_000)
    foreign = MockFilesystem()
    with HostFilesystem(root) as host:
        foreign.backend = host  # pyright: ignore[reportAttributeAccessIssue] # any will do
        value = ask(foreign, ReadFileParams("lines", offset=900_000, limit=1)).value
        assert (value.total, value.total_is_exact) == (1_000_000, True)
        with time_limit(9, clock=TickingClock()):
            text = refusal(foreign, ReadFileParams("lines", offset=900_000), TimeLimitError)
    assert "before it reached line 900,001 of 'lines'" in text


def test_a_deadline_leaves_time_to_say_that_a_page_was_not_found(root: Path):
    (root / "lines").write_bytes((b"x" * 79 + b"\n") * 1_250_000)
    arguments = {"file_path": "lines", "offset": 1_240_000}
    outcome = call(root, "wink", "read_file", arguments, 8)
    assert not outcome.result.success
    assert "Read timed out before it reached line 1,240,001" in outcome.text


@pytest.mark.parametrize("dialect", READS)
def test_a_page_that_is_not_found_is_told_in_the_words_of_the_dialect(root: Path, dialect: str):
    (root / "big.txt").write_bytes((b"x" * 79 + b"\n") * 1_250_000)
    name, arguments = READS[dialect]
    late: dict[str, dict[str, Any]] = {
        "anthropic-editor": {"view_range": [1_240_001, 1_240_002]},
        "gemini": {"start_line": 1_240_001, "end_line": 1_240_002},
        "mcp": {"start_line": 1_240_001},
    }
    first = 1_240_000 if dialect in {"wink", "classic"} else 1_240_001
    given = {**arguments, **late.get(dialect, {"offset": first})}
    outcome = call(root, dialect, name, given, 8)
    assert "before it reached line 1,240,001 of 'big.txt'" in outcome.text
    tools = HostWorkspaceSection(root=root, dialect=dialect).tools
    shows_lines = any(tool.name in {"grep", "Grep", "grep_search"} for tool in tools)
    assert ("around a match" in outcome.text) == shows_lines
    assert ("byte offsets need no search" in outcome.text) == (dialect == "wink")


def test_the_last_lines_of_a_huge_file_are_refused_and_not_guessed(root: Path):
    outcome = call(root, "mcp", "read_text_file", {"path": "big.txt", "tail": 2})
    assert not outcome.result.success
    assert "tail is not available for 'big.txt': the file has 8,589,934,592 bytes" in outcome.text


def test_what_is_too_large_to_change_is_refused_before_it_is_read(root: Path):
    arguments = {"file_path": "big.txt", "old_string": "one", "new_string": "1"}
    outcome = call(root, "wink", "edit_file", arguments)
    assert not outcome.result.success
    assert "8589934592 bytes" in outcome.text


# --- searches ---


@pytest.mark.parametrize("dialect", GREPS)
def test_every_dialect_returns_what_a_search_found_in_time(root: Path, dialect: str):
    plant(root)
    for seconds in (6, 7, 8):
        outcome = call(root, dialect, *GREPS[dialect], seconds=seconds)
        assert outcome.result.success
        head, *lines, foot = outcome.text.split("\n")
        assert "for 'needle'" in head
        assert any(line.endswith("f.py") for line in lines)
        assert foot.startswith("[stopped at the time limit after ")
        assert "; not searched to the end: " in foot
        assert foot.endswith("; to search the rest, use a narrower path, glob or type]")
        value = outcome.result.value
        assert value is not None
        assert (value.truncated, value.reason) == (True, "time limit")
        assert value.coverage.missed_files + value.coverage.missed_directories > 0
        assert value.coverage.missed_paths


@pytest.mark.parametrize("dialect", GREPS)
def test_nothing_found_in_time_is_not_said_to_be_nothing(root: Path, dialect: str):
    plant(root)
    name, arguments = GREPS[dialect]
    outcome = call(root, dialect, name, {**arguments, "pattern": "gone"}, seconds=7)
    first, foot = outcome.text.split("\n")
    assert first == "No matches for 'gone' in the files searched so far"
    assert foot.startswith("[stopped at the time limit after ")
    assert outcome.result.value is not None
    assert outcome.result.value.reason == "time limit"


@pytest.mark.parametrize("dialect", GLOBS)
def test_every_dialect_returns_what_a_glob_found_in_time(root: Path, dialect: str):
    plant(root)
    outcome = call(root, dialect, *GLOBS[dialect], seconds=2.4)
    assert outcome.result.success
    head, *lines, foot = outcome.text.split("\n")
    assert head.startswith("at least ")
    assert lines
    assert foot.startswith("[stopped at the time limit after ")
    assert "; not searched: " in foot
    assert foot.endswith("; to see the rest, use a narrower path or pattern]")
    assert outcome.result.value is not None
    assert outcome.result.value.reason == "time limit"


def test_a_glob_that_found_nothing_in_time_says_so(host: HostFilesystem, root: Path):
    plant(root)
    with time_limit(24, clock=TickingClock()):
        result = ask(host, GlobParams("**/gone"))
    first, foot = result.message.split("\n")
    assert first == "No files match '**/gone' in the directories searched so far"
    assert foot.startswith("[stopped at the time limit after ")


@pytest.mark.parametrize("mode", ["content", "files_with_matches", "count"])
def test_matches_before_the_time_limit_are_kept_whatever_their_number(
    host: HostFilesystem, root: Path, mode: Any
):
    (root / "many").write_bytes((b"needle\n" + b"x" * 19_999 + b"\n") * 2_000)
    (root / "more").write_bytes(b"needle\n")
    seen: set[int] = set()
    for tenths in range(12, 40, 3):
        with time_limit(tenths / 10, clock=TickingClock(0.1)):
            value = ask(host, GrepParams("needle", output_mode=mode)).value
        assert value.truncated or [each.path for each in value.counts] == ["many", "more"]
        if value.truncated and value.counts:
            seen.add(value.counts[0].count)
    assert seen
    assert mode == "count" or max(seen) < 2_000


@pytest.mark.parametrize("mode", ["content", "files_with_matches"])
def test_matches_that_are_not_shown_are_mentioned_though_time_ran_out_too(
    host: HostFilesystem, root: Path, mode: Any
):
    (root / "big.txt").unlink()
    (root / "0").write_bytes((b"x" * 1_999 + b"\n") * 5_000)
    for name in "abc":
        (root / name).write_text("needle\n")
    with time_limit(1, clock=TickingClock(0.01)):
        # a large pattern looks at the clock often
        result = ask(host, GrepParams("needle|q{500}", output_mode=mode, head_limit=2))
    assert result.value.coverage.missed_paths == ("0",)
    *_, truncated, stopped = result.message.split("\n")
    assert truncated.startswith("[truncated; ")
    assert stopped.startswith("[stopped at the time limit after 3 files")


def test_why_a_search_ended_is_in_the_value(host: HostFilesystem, root: Path):
    plant(root)
    whole = ask(host, GrepParams("needle")).value
    assert (whole.reason, whole.coverage) == (None, Coverage(31))
    few = ask(host, GrepParams("needle", head_limit=3)).value
    assert (few.truncated, few.reason) == (True, "match limit")
    assert ask(host, GlobParams("**", head_limit=3)).value.reason == "match limit"


def test_a_huge_file_that_is_no_text_costs_a_search_nothing(host: HostFilesystem, root: Path):
    with (root / "a.bin").open("wb") as file:
        file.truncate(64 * GIGABYTE)
    (root / "b.py").write_text("needle\n")
    result = ask(host, GrepParams("needle"))
    assert result.message == "1 match in 1 file for 'needle'\nb.py\n1:needle"
