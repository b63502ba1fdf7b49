"""Archives by both compression libraries and by many threads: each reads the other's."""

import os
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from threading import enumerate as threads
from zlib import compress

import pytest

from weakincentives.filesystem import InMemoryFilesystem, Limits, TimeLimitError, time_limit
from weakincentives.filesystem.archive.export import export_archive
from weakincentives.filesystem.archive.format import DEFAULT_ARCHIVE_LIMITS, ArchiveError
from weakincentives.filesystem.archive.tree import ArchivedFile
from weakincentives.filesystem.archive.verify import read_archive
from weakincentives.posix import check_time
from weakincentives.posix.compression import DEFAULT_CODEC, ISAL, ZLIB, Codec, parallel_map

DATE = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
UNLIMITED = Limits(max_write_length=1 << 40)
MEGABYTE = 1 << 20
CODECS = [each for each in (ZLIB, ISAL) if each is not None]
WITHOUT_ISAL = """
import sys
sys.modules["isal"] = None
from pathlib import Path
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.posix.compression import DEFAULT_CODEC, ISAL

assert ISAL is None and DEFAULT_CODEC.name == "zlib"
fs = InMemoryFilesystem()
print(fs.import_archive(Path(sys.argv[1])), fs.read("text").content[:4])
"""


AT_THE_END = """
import atexit, os, sys
from pathlib import Path
from weakincentives.filesystem import InMemoryFilesystem

fs = InMemoryFilesystem()
for number in range(200):
    fs.write_bytes(str(number), os.urandom(10_000))
atexit.register(lambda: print(fs.export_archive(sys.argv[1]), fs.import_archive(sys.argv[1])))
"""


@pytest.fixture(params=CODECS, ids=lambda codec: codec.name)
def codec(request: pytest.FixtureRequest) -> Codec:
    return request.param


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "state.zip"


def mixed() -> InMemoryFilesystem:
    """Return text, noise, nothing, and something large."""
    fs = InMemoryFilesystem(limits=UNLIMITED)
    fs.write("text", "line of text\n" * 500)
    fs.write_bytes("noise", os.urandom(5_000))
    fs.write("nothing", "")
    fs.write_bytes("large", os.urandom(997) * 3_000)
    return fs


def contents(path: Path, codec: Codec) -> dict[str, bytes | None]:
    state = read_archive(path, codec=codec)
    os.close(state.descriptor)
    children = state.root.children.items()
    return {name: node.data for name, node in children if isinstance(node, ArchivedFile)}


# --- codecs ---


@pytest.mark.parametrize("data", [b"", b"a", b"text " * 1_000, os.urandom(70_000), bytes(300_000)])
def test_what_is_packed_is_unpacked(codec: Codec, data: bytes) -> None:
    packed = codec.deflate(data)
    assert codec.inflate(packed, len(data)) == data
    assert codec.inflate(memoryview(b"__" + packed)[2:], len(data)) == data
    assert codec.crc32(data) == zlib.crc32(data)
    engine = codec.deflater()
    assert codec.inflate(engine.compress(data) + engine.flush(), len(data)) == data


@pytest.mark.parametrize(
    "spoil",
    [
        lambda packed: packed[:-1],
        lambda packed: packed + b"\0",
        lambda packed: packed + b"1234567",
        lambda packed: packed + packed,
        lambda packed: b"\xff" + packed,
        lambda packed: b"",
    ],
)
def test_what_is_not_exactly_that_is_not_unpacked(
    codec: Codec, spoil: Callable[[bytes], bytes]
) -> None:
    data = b"some text " * 100
    assert codec.inflate(spoil(compress(data, 6, -15)), len(data)) is None


@pytest.mark.parametrize("size", [0, 1, 99, 101, 1 << 20])
def test_content_of_another_size_is_not_unpacked(codec: Codec, size: int) -> None:
    assert codec.inflate(compress(b"x" * 100, 6, -15), size) is None


def test_no_more_than_the_size_is_unpacked(codec: Codec) -> None:
    bomb = compress(bytes(30 * MEGABYTE), 1, -15)
    tracemalloc.start()
    try:
        assert codec.inflate(bomb, 1_000) is None
        assert tracemalloc.get_traced_memory()[1] < MEGABYTE
    finally:
        tracemalloc.stop()


# --- archives ---


@pytest.mark.parametrize("reader", CODECS, ids=lambda codec: codec.name)
def test_each_library_reads_what_the_other_wrote(target: Path, codec: Codec, reader: Codec) -> None:
    fs = mixed()
    export_archive(fs, target, codec=codec)
    found = contents(target, reader)
    assert found == {name: fs.read_bytes(name).content for name in found}
    assert len(found) == 4
    assert zipfile.ZipFile(target).testzip() is None


def test_an_archive_is_read_where_the_extra_is_not_installed(target: Path) -> None:
    export_archive(mixed(), target)
    command = [sys.executable, "-c", WITHOUT_ISAL, str(target)]
    assert subprocess.check_output(command, text=True) == "4 line\n"


def test_the_same_library_gives_the_same_bytes(target: Path, codec: Codec) -> None:
    fs = mixed()
    export_archive(fs, target, created_at=DATE, codec=codec)
    first = target.read_bytes()
    export_archive(fs, target, created_at=DATE, codec=codec)
    assert target.read_bytes() == first
    export_archive(fs, target, created_at=DATE, codec=codec, previous=target)
    assert target.read_bytes() == first


@pytest.mark.parametrize("packer", CODECS, ids=lambda codec: codec.name)
def test_what_another_library_packed_is_not_taken_over(
    target: Path, codec: Codec, packer: Codec
) -> None:
    fs = mixed()
    previous = target.with_name("previous.zip")
    export_archive(fs, previous, codec=packer)
    export_archive(fs, target, created_at=DATE, codec=codec, previous=previous)
    with_previous = target.read_bytes()
    export_archive(fs, target, created_at=DATE, codec=codec)
    assert target.read_bytes() == with_previous


@pytest.mark.parametrize("spoilt", ["crc", "content", "trailing"])
def test_damage_is_found_by_either_library(target: Path, codec: Codec, spoilt: str) -> None:
    fs = InMemoryFilesystem()
    fs.write("text", "line of text\n" * 500)
    export_archive(fs, target, codec=codec)
    data = bytearray(target.read_bytes())
    directory = data.index(b"PK\1\2")
    if spoilt == "crc":
        for at in (14, directory + 16):
            data[at] ^= 1
    elif spoilt == "content":
        data[60] ^= 1
    else:  # one byte more for the entry, which was the first of the manifest's header
        packed = int.from_bytes(data[18:22], "little")
        data[40 + packed : 40 + packed] = b"\0"
        moved = directory + 1
        for at in (18, moved + 20):
            data[at : at + 4] = (packed + 1).to_bytes(4, "little")
        second = data.index(b"PK\1\2", moved + 4)
        for at in (second + 42, len(data) - 6):
            offset = int.from_bytes(data[at : at + 4], "little")
            data[at : at + 4] = (offset + 1).to_bytes(4, "little")
    target.write_bytes(data)
    with pytest.raises(ArchiveError, match="files/text"):
        read_archive(target, DEFAULT_ARCHIVE_LIMITS, codec=codec)


def test_nothing_beside_a_large_file_is_passed_over(target: Path) -> None:
    fs = InMemoryFilesystem(limits=UNLIMITED)
    fs.write_bytes("b", os.urandom(5 * MEGABYTE))
    for name in ("a", "c", "d"):
        fs.write(name, "")
    export_archive(fs, target)
    found = contents(target, DEFAULT_CODEC)
    assert found == {"a": b"", "b": None, "c": b"", "d": b""}


def test_an_archive_of_many_pieces_is_whole(target: Path, codec: Codec) -> None:
    fs = InMemoryFilesystem(limits=UNLIMITED)
    for number in range(300):
        fs.write_bytes(f"{number // 10}/{number}", os.urandom(1_000) * (number % 50))
    assert export_archive(fs, target, created_at=DATE, codec=codec) == 300
    first = target.read_bytes()
    fresh = InMemoryFilesystem(limits=UNLIMITED)
    assert fresh.import_archive(target) == 300
    for match in fs.glob("**"):
        assert fresh.read_bytes(match.path) == fs.read_bytes(match.path)
    fs.write("5/55", "changed")
    fs.delete("7/77")
    export_archive(fs, target, created_at=DATE, codec=codec, previous=target)
    again = target.read_bytes()
    export_archive(fs, target, created_at=DATE, codec=codec)
    assert target.read_bytes() == again != first


# --- many at a time ---


def test_results_come_in_order() -> None:
    assert list(parallel_map(str, range(100))) == [str(number) for number in range(100)]


def test_pieces_are_taken_a_few_ahead() -> None:
    taken: list[int] = []

    def pieces():
        for number in range(1_000):
            taken.append(number)
            yield number

    results = parallel_map(str, pieces())
    for _ in range(10):
        next(results)
    assert len(taken) < 30
    results.close()


def test_an_error_ends_the_work_and_its_threads() -> None:
    def fail(number: int) -> int:
        if number == 50:
            raise ValueError("fifty")
        return number

    with pytest.raises(ValueError, match="fifty"):
        list(parallel_map(fail, range(1_000)))
    assert not any(thread.name.startswith("wink-archive") for thread in threads())


def test_a_time_limit_holds_in_every_thread() -> None:
    with pytest.raises(TimeLimitError), time_limit(0):
        list(parallel_map(lambda number: number and check_time("Work"), range(100)))


def test_a_process_that_ends_can_still_write_archives(target: Path) -> None:
    command = [sys.executable, "-c", AT_THE_END, str(target)]
    assert subprocess.check_output(command, text=True) == "200 200\n"


def test_archives_are_read_by_many_threads(target: Path) -> None:
    export_archive(mixed(), target)
    found: list[dict[str, bytes | None]] = []
    readers = [
        Thread(target=lambda: found.append(contents(target, DEFAULT_CODEC))) for _ in range(4)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [contents(target, DEFAULT_CODEC)] * 4
