"""Files too large for memory or time: sparse ones of 64 GB, endless lines, holes."""

import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.filesystem import (
    ArchiveFilesystem,
    BytesContent,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    LimitExceededError,
    Limits,
    ReadableFilesystem,
    TimeLimitError,
    diff,
    time_limit,
)
from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.limits import available_memory, check_fits
from weakincentives.filesystem.memory.nodes import build_tree
from weakincentives.filesystem.testing.contract import TickingClock
from weakincentives.filesystem.text import BLOCK, LineIndex, read_page

GIGABYTE = 1024**3


class Reads(BytesContent):
    """Content that remembers how far it was read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.furthest = 0

    def read(self, offset: int, size: int) -> bytes:
        data = super().read(offset, size)
        self.furthest = max(self.furthest, offset + len(data))
        return data


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[HostFilesystem]:
    with HostFilesystem(tmp_path) as opened:
        yield opened


def make_sparse(path: Path, size: int, *, head: bytes = b"", tail: bytes = b"") -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
        if tail:
            file.seek(size - len(tail))
            file.write(tail)


# --- pages ---


def test_a_page_reads_what_is_before_it_and_a_bounded_part_of_the_rest() -> None:
    content = Reads(b"a line of text\n" * 1_000_000)
    limits = Limits(max_count_bytes=1024 * 1024)
    page = read_page(content, 1_000, 10, "utf-8", limits)
    assert (page.text, page.exact) == ("a line of text\n" * 10, False)
    assert 70_000 < page.total < 1_000_000
    assert content.furthest <= 3 * 1024 * 1024
    assert read_page(content, 999_000, 10, "utf-8", limits)[1:] == (1_000_000, True)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, BLOCK), max_size=30),
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(0, 4 * BLOCK),
)
def test_a_count_that_is_given_up_is_a_lower_bound(
    lengths: list[int], offset: int, limit: int, counted: int
) -> None:
    data = b"".join(b"x" * length + b"\n" for length in lengths) + b"end"
    lines = len(lengths) + 1
    page = read_page(BytesContent(data), offset, limit, "utf-8", Limits(max_count_bytes=counted))
    expected = [*(b"x" * length + b"\n" for length in lengths), b"end"][offset : offset + limit]
    assert page.text.encode() == b"".join(expected)
    assert page.total == lines if page.exact else min(offset + limit, lines) < page.total <= lines


def test_the_same_page_is_the_same_result_whatever_was_read_before(fs: HostFilesystem) -> None:
    small = Limits(max_count_bytes=100_000)
    (Path(fs.root) / "f").write_bytes(b"0123456\n" * 200_000)
    memory = InMemoryFilesystem(limits=small)
    memory.hydrate_from_host(HostMount("f"), allowed_roots=[fs.root])
    with HostFilesystem(fs.root, limits=small) as host:
        for offset in (0, 190_000, 0, 60_000, 0):
            assert host.read("f", offset=offset, limit=5) == memory.read(
                "f", offset=offset, limit=5
            )
        assert not host.read("f", limit=5).total_is_exact


def test_a_page_of_a_sparse_file_skips_its_holes(fs: HostFilesystem, tmp_path: Path) -> None:
    head, tail = b"one\ntwo\n", b"\nlast\n"
    make_sparse(tmp_path / "sparse", 64 * GIGABYTE, head=head, tail=tail)
    page = fs.read("sparse", limit=2)
    assert (page.content, page.total_lines, page.total_is_exact) == ("one\ntwo\n", 3, False)
    assert str(page) == "sparse (from line 0 of at least 3, more from offset 2)"
    last = fs.read("sparse", offset=3)
    assert (last.content, last.total_lines, last.total_is_exact) == ("last\n", 4, True)
    assert fs.read("sparse", offset=10_000_000).content == ""
    assert fs.line_start("sparse", 3) == (64 * GIGABYTE - 5, 4, True)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=8), st.booleans())
def test_holes_are_lines_like_the_bytes_that_they_are(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[bool, int]], ends: bool
) -> None:
    path = tmp_path_factory.mktemp("holes") / "f"
    with path.open("wb") as file:
        for is_hole, blocks in parts:
            if is_hole:
                file.seek(blocks * BLOCK, os.SEEK_CUR)
            else:
                file.write((b"x" * 999 + b"\n") * (blocks * BLOCK // 1000))
        file.truncate(file.tell() + (0 if ends else 3 * BLOCK))
    data = path.read_bytes()
    with HostFilesystem(path.parent) as fs:
        for offset in (0, 1, 60, 200):
            page = fs.read("f", offset=offset, limit=70)
            text, total, exact = read_page(BytesContent(data), offset, 70, "utf-8")
            assert (page.content, page.total_lines, page.total_is_exact) == (text, total, exact)
        found = fs.grep("x$")
        memory = InMemoryFilesystem()
        memory.hydrate_from_host(HostMount("f"), allowed_roots=[fs.root])
        assert list(found) == list(memory.grep("x$"))


def test_a_page_that_is_not_found_in_time_says_what_to_do(
    fs: HostFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"0123456\n" * 1_000_000)
    told = (
        r"^Read stopped: the time limit passed before the page at line 900,000 was found"
        r" in 'f', which has 8,000,000 bytes; use a smaller offset, grep for the text, or read"
    )
    with time_limit(5, clock=TickingClock()), pytest.raises(TimeLimitError, match=told):
        fs.read("f", offset=900_000)
    with time_limit(5, clock=TickingClock()), pytest.raises(TimeLimitError, match=told):
        fs.line_start("f", line=900_000)
    fs = HostFilesystem(tmp_path, limits=Limits(max_read_seconds=0))
    with pytest.raises(TimeLimitError, match=told):
        fs.read("f", offset=900_000)


def test_a_page_that_was_found_is_returned_though_there_is_no_time_to_count(
    fs: HostFilesystem, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"0123456\n" * 1_000_000)
    with time_limit(7, clock=TickingClock()):
        page = fs.read("f", limit=2)
    assert (page.content, page.total_is_exact, page.truncated) == ("0123456\n" * 2, False, True)
    assert 100_000 < page.total_lines < 1_000_000


def test_an_index_goes_on_where_it_stopped() -> None:
    content = Reads(b"0123456\n" * 1_000_000)
    index = LineIndex()
    for _ in range(3):
        with time_limit(3, clock=TickingClock()), pytest.raises(TimeLimitError):
            index.find(900_000, content)
    assert content.furthest == 6 * 1024 * 1024
    assert index.find(900_000, content) == 7_200_000
    assert index.count(content) == (1_000_000, True)


# --- what does not fit ---


@pytest.mark.parametrize("size", [8 * GIGABYTE, 64 * GIGABYTE])
def test_what_does_not_fit_is_refused_before_it_is_read(
    fs: HostFilesystem, tmp_path: Path, size: int
) -> None:
    make_sparse(tmp_path / "huge", size)
    told = rf"exceeds max_read_bytes of 1,073,741,824: 'huge' has {size:,} bytes; (read|leave)"
    for refused in (
        lambda: fs.read_bytes("huge"),
        lambda: fs.read_bytes("huge", offset=10, limit=2 * GIGABYTE),
        lambda: fs.read("huge"),
        lambda: fs.read("huge", limit=-1),
        lambda: fs.read("huge", encoding="utf-16"),
        lambda: InMemoryFilesystem(limits=Limits()).hydrate_from_host(
            HostMount("huge"), allowed_roots=[tmp_path]
        ),
    ):
        with pytest.raises(LimitExceededError, match=told):
            refused()
    assert fs.read_bytes("huge", offset=size - 5).content == bytes(5)


def test_a_state_that_does_not_fit_is_not_imported(tmp_path: Path) -> None:
    small = Limits(max_read_bytes=1_000)
    source = InMemoryFilesystem()
    source.write("large", "x" * 2_000)
    source.export_archive(tmp_path / "a.zip")
    with ArchiveFilesystem(tmp_path / "a.zip", limits=small) as archive:
        with pytest.raises(LimitExceededError, match=r"'large' has 2,000 bytes"):
            archive.read_bytes("large")
        with pytest.raises(LimitExceededError, match=r"'large' has 2,000 bytes"):
            diff(InMemoryFilesystem(), archive).patch()
        with pytest.raises(LimitExceededError, match=r"'large' has 2,000 bytes"):
            build_tree(State(archive), 0, 0)


def test_what_is_in_memory_can_be_appended_to_and_copied_whatever_its_size(
    tmp_path: Path,
) -> None:
    limits = Limits(max_read_bytes=100, max_write_length=1_000)
    for each in (InMemoryFilesystem(limits=limits), HostFilesystem(tmp_path, limits=limits)):
        each.write("large", "x" * 1_000)
        each.write("large", "more", mode="append")
        each.copy("large", "copy")
        assert each.stat("copy").size_bytes == 1_004


def test_more_than_the_memory_that_is_left_is_refused() -> None:
    memory = available_memory()
    if memory is None:
        pytest.skip("The system does not say how much memory is available")
    limits = Limits(max_read_bytes=10**18)
    check_fits("f", memory // 8, 10**18, limits)
    with pytest.raises(LimitExceededError, match="exceeds the available memory of"):
        check_fits("f", memory, memory, limits)


def test_a_process_with_little_memory_gets_an_error_of_ours(tmp_path: Path) -> None:
    make_sparse(tmp_path / "large", 600 * 1024 * 1024)
    program = textwrap.dedent(
        """
        import resource, sys
        from weakincentives.filesystem import HostFilesystem, LimitExceededError, memory
        fs = HostFilesystem(sys.argv[1])
        resource.setrlimit(resource.RLIMIT_AS, (400 * 1024 * 1024,) * 2)
        for hidden in (False, True):
            if hidden:  # the system does not say, so that the allocation itself fails
                memory.available_memory = lambda: None
            for call in (fs.read_bytes, lambda path: fs.read(path, limit=-1)):
                try:
                    call("large")
                except LimitExceededError as error:
                    print(error)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 4, done.stderr
    assert all("exceeds the available memory" in each for each in lines)
    assert all("'large' has 629,145,600 bytes" in each for each in lines)


# --- searches ---


def test_a_search_goes_past_huge_files_that_are_no_text(fs: HostFilesystem, tmp_path: Path) -> None:
    make_sparse(tmp_path / "a.bin", 64 * GIGABYTE)
    make_sparse(tmp_path / "b.log", 64 * GIGABYTE, head=b"needle\n" * 2_000, tail=b"\nneedle\n")
    (tmp_path / "c.py").write_text("needle = 1\n")
    found = fs.grep("needle", glob="*.py")
    assert [(match.path, match.line_number) for match in found] == [("c.py", 1)]
    with HostFilesystem(tmp_path, limits=Limits(max_grep_matches=10_000)) as roomy:
        found = roomy.grep("needle")
    assert (len(found), found.truncated, found.coverage.searched) == (2_002, False, 3)
    assert [(each.path, each.line_number) for each in found[-2:]] == [("b.log", 2_002), ("c.py", 1)]


def test_a_large_file_cannot_use_up_the_time_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"no match here\n" * 800_000)
    (tmp_path / "b.txt").write_text("needle\n")
    limits = Limits(max_search_seconds=1_000)
    with HostFilesystem(tmp_path, limits=limits) as fs, time_limit(1, clock=TickingClock(0.01)):
        found = fs.grep("needle|[xm].{900}y")  # that is slow: a few thousand bytes at a time
    assert [match.path for match in found] == ["b.txt"]
    assert (found.reason, found.coverage.missed_paths) == ("time limit", ("a.txt",))
    assert (found.coverage.searched, found.coverage.missed_files) == (1, 1)


def test_a_walk_that_takes_too_long_leaves_time_to_search(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number:03}").mkdir()
        (tmp_path / f"{number:03}" / "f").write_text("needle\n")
    limits = Limits(max_search_seconds=1_000)
    with HostFilesystem(tmp_path, limits=limits) as fs, time_limit(60, clock=TickingClock()):
        found = fs.grep("needle")
    assert found
    assert found.reason == "time limit"
    assert found.coverage.missed_directories > 10
    assert all(each.endswith(("/", "/f")) for each in found.coverage.missed_paths)


def test_what_is_binary_is_so_on_every_backend(tmp_path: Path) -> None:
    choice = random.Random(7)
    memory = InMemoryFilesystem()
    for number in range(40):
        lines = choice.choice([1, 1_000, 1_024, 1_025, 2_000])
        data = bytearray(b"needle\n" + b"no text\n" * lines + b"needle\n")
        for _ in range(choice.randrange(3)):
            at = choice.choice([0, 8_190, 8_191, 8_192, 8_193, len(data) - 1])
            data[min(at, len(data) - 1)] = choice.choice([0, 0xFF, 0xC3])
        memory.write_bytes(f"{number:02}", bytes(data))
    memory.export_archive(tmp_path / "a.zip")
    (tmp_path / "ws").mkdir()
    with HostFilesystem(tmp_path / "ws", git_dir=tmp_path / "git") as host:
        host.import_archive(tmp_path / "a.zip")
        backends: list[ReadableFilesystem] = [host, host.view(host.snapshot())]
        backends += [ArchiveFilesystem(tmp_path / "a.zip"), memory.view(memory.snapshot())]
        expected = memory.grep("needle", max_matches=1_000)
        assert len({match.path for match in expected}) in range(10, 40)
        for each in backends:
            assert each.grep("needle", max_matches=1_000) == expected
            for name in ("00", "17", "39"):
                assert each.grep("text$", path=name) == memory.grep("text$", path=name)


def test_what_is_found_in_time_is_the_same_on_every_backend(tmp_path: Path) -> None:
    memory, other = InMemoryFilesystem(), InMemoryFilesystem()
    names = [f"{letter}/{number}.txt" for letter in "dbcaxq" for number in (3, 1, 2)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("needle\n")
        memory.write(name, "needle\n")
    for name in reversed(names):
        other.write(name, "needle\n")
    seen: set[int] = set()
    with HostFilesystem(tmp_path) as host:
        for tenths in range(6, 60):
            found: list[object] = []
            for fs in (memory, other, host):
                with time_limit(tenths / 10, clock=TickingClock(0.1)):
                    globbed = fs.glob("**")
                    found.append(([match.path for match in globbed], globbed.coverage))
                with time_limit(tenths / 10, clock=TickingClock(0.1)):
                    lines = fs.grep("needle")
                    found.append(([match.path for match in lines], lines.coverage))
                    seen.add(len(lines))
            assert found[:2] == found[2:4] == found[4:]
    assert {0, 18} < seen
