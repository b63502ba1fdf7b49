"""Conformance of thread safety: every operation is atomic for concurrent readers and writers."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import TypeVar

from weakincentives.filesystem import BaseFilesystem, Filesystem
from weakincentives.filesystem.testing.contract import ConformanceSuite

T = TypeVar("T")

_ROUNDS = 60
_WRITERS = 4


class ThreadTests(ConformanceSuite):
    """Several threads on one filesystem."""

    def test_a_reader_sees_the_old_text_or_the_new(self, fs: Filesystem) -> None:
        texts = [letter * 40_000 for letter in "ab"]
        fs.write("file", texts[0])

        def write() -> None:
            for number in range(_ROUNDS):
                fs.write("file", texts[number % 2])

        def read() -> None:
            found = fs.read("file")
            assert found.content in texts, "a read saw half a write"
            assert fs.stat("file").size_bytes == 40_000

        check_while_running(write, read)

    def test_no_append_is_lost(self, fs: Filesystem) -> None:
        def append(writer: int) -> None:
            for number in range(_ROUNDS):
                fs.write("log", f"{writer}-{number}\n", mode="append")

        run_concurrently(append)
        lines = fs.read("log").content.splitlines()
        for writer in range(_WRITERS):
            mine = [line for line in lines if line.startswith(f"{writer}-")]
            assert mine == [f"{writer}-{number}" for number in range(_ROUNDS)]
        assert len(lines) == _WRITERS * _ROUNDS

    def test_a_reader_never_sees_half_an_append(self, fs: Filesystem) -> None:
        fs.write("log", "")

        def append() -> None:
            for _ in range(_ROUNDS):
                fs.write("log", "x" * 999 + "\n", mode="append")

        def read() -> None:
            assert fs.stat("log").size_bytes % 1_000 == 0
            assert len(fs.read("log").content) % 1_000 == 0, "a read saw half an append"

        check_while_running(append, read)

    def test_only_one_of_many_creates_a_file(self, fs: Filesystem) -> None:
        def create(writer: int) -> bool:
            try:
                fs.write(path, str(writer), mode="create")
            except FileExistsError:
                return False
            return True

        for number in range(_ROUNDS):
            path = f"{number}/lock"
            won = run_concurrently(create)
            assert [writer for writer, first in enumerate(won) if first] == [
                int(fs.read(path).content)
            ]

    def test_writers_that_share_a_missing_parent_all_succeed(self, fs: Filesystem) -> None:
        for number in range(_ROUNDS):
            run_concurrently(
                lambda writer, parent=f"{number}/a/b": fs.write(f"{parent}/{writer}", "")
            )
        assert len(fs.glob("*/a/b/*")) == _ROUNDS * _WRITERS

    def test_a_directory_is_there_whole_or_not_at_all(self, fs: BaseFilesystem) -> None:
        names = ("box", "bin")
        for path in ("box/one", "box/sub/two"):
            fs.write(path, "text")

        def move() -> None:
            for number in range(_ROUNDS):
                fs.move(names[number % 2], names[1 - number % 2])

        def read() -> None:
            for name in names:
                try:
                    found = fs.list(name)
                except FileNotFoundError:
                    continue
                entries = [entry.name for entry in found]
                assert entries == ["one", "sub"], "a list saw half a move"

        check_while_running(move, read)

    def test_a_directory_disappears_at_once(self, fs: Filesystem) -> None:
        def build_and_delete() -> None:
            for number in range(_ROUNDS // 2):
                for name in "abcdef":
                    fs.write(f"hidden{number}/{name}", "")
                ready.set()
                fs.delete(f"hidden{number}", recursive=True)
                ready.clear()

        def read() -> None:
            for entry in fs.list():
                complete = ready.is_set()
                try:
                    found = fs.list(entry.name)
                except FileNotFoundError:
                    continue
                assert len(found) == 6 or not complete, "a list saw half a delete"

        ready = Event()
        check_while_running(build_and_delete, read)

    def test_searches_run_beside_writers(self, fs: Filesystem) -> None:
        for number in range(20):
            fs.write(f"{number % 4}/{number}", "kept\n")

        def change() -> None:
            for number in range(_ROUNDS):
                fs.write(f"new{number}/file", "other\n")
                fs.delete(f"new{number}", recursive=True)

        def search() -> None:
            assert len(fs.grep("kept")) == 20
            assert len(fs.glob("[0-9]/*")) == 20

        check_while_running(change, search)


def run_concurrently(work: Callable[[int], T]) -> list[T]:
    """Run `work` in several threads that start together; return their results."""
    start = Barrier(_WRITERS)

    def begin(writer: int) -> T:
        start.wait()
        return work(writer)

    with ThreadPoolExecutor(_WRITERS) as pool:
        return list(pool.map(begin, range(_WRITERS)))


def run_alongside(repeated: Callable[[int], object], work: Callable[[], T]) -> T:
    """Run `repeated` with 1, 2, 3 ... in another thread while `work` runs; return its result."""
    done = Event()

    def repeat() -> None:
        for number in itertools.count(1):
            if done.is_set():
                return
            repeated(number)

    with ThreadPoolExecutor(1) as pool:
        repeating = pool.submit(repeat)
        try:
            return work()
        finally:
            done.set()
            repeating.result()


def check_while_running(work: Callable[[], None], check: Callable[[], None]) -> None:
    """Run `check` repeatedly, at least once, while `work` runs in another thread."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(work)
        check()
        while not running.done():
            check()
        running.result()
