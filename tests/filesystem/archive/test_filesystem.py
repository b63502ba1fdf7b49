"""ArchiveFilesystem: the read suites, and its own behaviour."""

import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from weakincentives.filesystem import (
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
    ReadableFilesystem,
    ReadOnlyError,
)
from weakincentives.filesystem.archive.export import export_archive
from weakincentives.filesystem.archive.filesystem import ArchiveFilesystem
from weakincentives.filesystem.archive.format import ArchiveError, ArchiveLimits
from weakincentives.filesystem.testing import (
    FilesystemProtocolTests,
    IgnoreFileTests,
    LinkTests,
    TextTests,
)

MEGABYTE = 1 << 20
DATE = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)


class ThroughArchives(InMemoryFilesystem):
    """Writes go to memory; every answer about what is there comes out of an archive of it."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._archive = directory / "state.zip"
        self._state: tuple[object, ArchiveFilesystem] | None = None

    def _reading(self) -> ArchiveFilesystem:
        """Return an archive of the present state; the last one if nothing has changed."""
        with self._lock.mutex:
            weight = self._stamp()
            if self._state is None or self._state[0] != weight:
                self.close()
                export_archive(self, self._archive, created_at=datetime.now(UTC))
                self._state = (weight, ArchiveFilesystem(self._archive))
            return self._state[1]

    def _stamp(self) -> object:
        return [
            (path, found and (found.kind, found.content_hash, found.link_target))
            for path in sorted(self._paths())
            if (found := InMemoryFilesystem._lookup(self, path))
        ]

    def _paths(self) -> list[str]:
        found = [""]
        for directory in found:
            stat = InMemoryFilesystem._lookup(self, directory)
            if stat is not None and stat.is_directory:
                for group in InMemoryFilesystem._children(self, directory):
                    found += [f"{directory}/{name}".strip("/") for name in group]
        return found

    def close(self) -> None:
        if self._state is not None:
            self._state[1].close()

    def read(self, *args: Any, **kwargs: Any):
        return self._reading().read(*args, **kwargs)

    def read_bytes(self, *args: Any, **kwargs: Any):
        return self._reading().read_bytes(*args, **kwargs)

    def exists(self, path: str) -> bool:
        return self._reading().exists(path)

    def stat(self, path: str):
        return self._reading().stat(path)

    def list(self, path: str = "."):
        return self._reading().list(path)

    def glob(self, *args: Any, **kwargs: Any):
        return self._reading().glob(*args, **kwargs)

    def grep(self, *args: Any, **kwargs: Any):
        return self._reading().grep(*args, **kwargs)


class TestThroughArchives(FilesystemProtocolTests, TextTests, LinkTests, IgnoreFileTests):
    def make_filesystem(self, tmp_path: Path) -> ThroughArchives:
        return ThroughArchives(tmp_path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "state.zip"


def archived(target: Path, **files: bytes) -> ArchiveFilesystem:
    fs = InMemoryFilesystem(limits=Limits(max_write_length=1 << 40))
    for name, data in files.items():
        fs._store(name, data)
    export_archive(fs, target, created_at=DATE)
    return ArchiveFilesystem(target)


def test_the_manifest_tells_about_the_whole(target: Path) -> None:
    with archived(target, a=b"123", b=b"4567") as fs:
        found = fs.manifest
        assert (found.version, found.created_at) == ("1", DATE)
        assert (found.file_count, found.total_bytes) == (2, 7)


def test_the_root_is_the_file_and_nothing_can_be_written(target: Path) -> None:
    with archived(target) as fs:
        assert (fs.root, fs.read_only) == (str(target), True)
        with pytest.raises(ReadOnlyError):
            fs.write("a", "")


def test_times_are_those_of_the_archive(target: Path) -> None:
    with archived(target, a=b"") as fs:
        assert (fs.stat("a").modified_at, fs.stat("a").created_at) == (DATE, None)


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 3 * MEGABYTE, 10 * MEGABYTE + 5])
@pytest.mark.parametrize("kind", ["noise", "lines"])
def test_any_part_of_a_file_can_be_read_in_any_order(target: Path, size: int, kind: str) -> None:
    pattern = os.urandom(65_521) if kind == "noise" else b"".join(b"%d\n" % n for n in range(9_999))
    data = (pattern * (size // len(pattern) + 1))[:size]
    random = Random(size)
    with archived(target, a=data) as fs, fs._open("a") as content:
        assert content.size == size
        for _ in range(40):
            offset, length = random.randrange(size + 10), random.choice([0, 1, 100, MEGABYTE])
            assert content.read(offset, length) == data[offset : offset + length]
        assert content.read(0, size) == data
        assert content.read(size - 1, 10) == data[-1:]


def test_a_large_file_is_read_by_pages(target: Path) -> None:
    lines = b"".join(b"%07d\n" % number for number in range(500_000))
    with archived(target, a=lines) as fs:
        assert fs.read("a", offset=400_000, limit=1).content == "0400000\n"
        assert fs.grep("0300001")[0].line_number == 300_002
        assert fs.read_bytes("a", offset=8, limit=8).content == b"0000001\n"


def test_threads_read_at_the_same_time(target: Path) -> None:
    large = os.urandom(3 * MEGABYTE)
    with archived(target, large=large, small=b"text") as fs, ThreadPoolExecutor(4) as pool:

        def read(number: int) -> bool:
            path, data = ("large", large) if number % 2 else ("small", b"text")
            return fs.read_bytes(path).content == data

        assert all(pool.map(read, range(40)))


def test_a_closed_archive_gives_nothing_more(target: Path) -> None:
    fs = archived(target, small=b"text", large=bytes(2 * MEGABYTE))
    with fs._open("large") as content:
        fs.close()
        fs.close()
        assert content.read(MEGABYTE, 2) == b"\0\0"
    for path in ("small", "large"):
        with pytest.raises(OSError, match="closed"):
            fs.read_bytes(path)


def test_an_archive_that_is_changed_in_place_is_noticed(target: Path) -> None:
    with archived(target, large=bytes(5 * MEGABYTE)) as fs:
        with target.open("ab") as file:
            file.write(b"more")
        with pytest.raises(ArchiveError, match="changed"):
            fs.read_bytes("large")


def test_an_archive_that_is_replaced_stays_readable(target: Path) -> None:
    data = os.urandom(2 * MEGABYTE)
    with archived(target, large=data) as fs:
        archived(target, large=b"new").close()
        assert fs.read_bytes("large").content == data


def test_an_archive_of_an_archive_is_the_same_archive(target: Path, tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    with HostFilesystem(tmp_path / "workspace") as host:
        host.write("a/b", "text" * 100)
        host.mkdir("empty")
        host._make_link("link", "a")
        export_archive(host, target, created_at=DATE)
    with ArchiveFilesystem(target) as fs:
        export_archive(fs, tmp_path / "again.zip", created_at=DATE)
    assert (tmp_path / "again.zip").read_bytes() == target.read_bytes()


@pytest.mark.parametrize(
    "limits",
    [
        ArchiveLimits(max_entries=2),
        ArchiveLimits(max_total_bytes=6),
        ArchiveLimits(max_manifest_bytes=100),
    ],
)
def test_limits_can_be_set(target: Path, limits: ArchiveLimits) -> None:
    archived(target, a=b"1", b=b"23", c=b"4567").close()
    with pytest.raises(ArchiveError, match=r"more than|larger than"):
        ArchiveFilesystem(target, archive_limits=limits)


def test_archives_of_other_programs_are_read(target: Path) -> None:
    """With directory entries, stored and streamed entries, modes, and extra fields."""
    with target.open("wb") as raw, zipfile.ZipFile(Unseekable(raw), "w") as archive:  # pyright: ignore
        archive.mkdir("files")
        archive.mkdir("files/dir")
        archive.writestr("files/dir/stored", b"stored")
        archive.writestr("files/e\u0301", b"not normal", zipfile.ZIP_DEFLATED)
        script = zipfile.ZipInfo("files/script")
        script.external_attr = 0o100755 << 16
        script.extra = b"\x55\x54\x05\x00\x03\x00\x00\x00\x00"
        archive.writestr(script, b"#!")
        archive.writestr(
            "manifest.json",
            '{"version": "1", "created_at": "2024-01-15T10:30:00", "file_count": 3,'
            ' "total_bytes": 18, "tool": {"name": ["other"]}}',
        )
    with ArchiveFilesystem(target) as fs:
        assert tuple(match.path for match in fs.glob("**")) == ("dir/stored", "e\u0301", "script")
        assert fs.read("dir/stored").content == "stored"
        assert (fs.stat("script").permissions, fs.stat("dir/stored").permissions) == (0o755, 0o644)
        assert fs.manifest.created_at == DATE
        assert fs.stat("script").content_hash == fs.content_hash("script")


class Unseekable:
    """A file that can only be written, so that sizes follow the data."""

    def __init__(self, raw: Any) -> None:
        self.write = raw.write
        self.flush = raw.flush


def test_a_readable_filesystem_is_all_that_an_export_needs(target: Path) -> None:
    with archived(target, a=b"text") as fs:
        assert isinstance(fs, ReadableFilesystem)
        assert export_archive(fs, target.with_name("copy.zip")) == 1
