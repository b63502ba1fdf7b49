"""Hostile archives are rejected with a reason, in bounded time and memory.

Most are built byte by byte, because no honest program would write them.
"""

import hashlib
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.descriptors import open_descriptors
from tests.safety.places import ROOT
from tests.sizes import size
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.filesystem.archive.export import export_archive
from weakincentives.filesystem.archive.filesystem import ArchiveFilesystem
from weakincentives.filesystem.archive.format import ArchiveError

SECONDS = 5
MEMORY = 300 << 20
MUTATIONS = size(1_000, 50_000)


@dataclass(frozen=True)
class Entry:
    """An entry of a ZIP, and the lies about it: None means the truth."""

    name: bytes
    data: bytes = b""
    method: int = 8
    flags: int = 0x800
    mode: int = stat.S_IFREG | 0o644
    size: int | None = None
    packed_size: int | None = None
    crc: int | None = None
    disk: int = 0
    offset: int | None = None
    extra: bytes = b""
    packed: bytes | None = None
    local_name: bytes | None = None
    local_size: int | None = None
    local_method: int | None = None
    local_crc: int | None = None
    local_flags: int | None = None
    local_signature: bytes = b"PK\3\4"
    hidden: bool = False  # not in the directory


def packed(data: bytes) -> bytes:
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    return engine.compress(data) + engine.flush()


def packed_zeros(size: int) -> bytes:
    """Return many zeros, packed: one block again and again, for compressing all takes seconds."""
    block = 1 << 20
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = engine.compress(bytes(block)) + engine.flush(zlib.Z_FULL_FLUSH)
    return first * (size // block) + packed(b"")


def zipped(*entries: Entry, **lies: Any) -> bytes:
    """Return the bytes of a ZIP; `lies` are about the directory as a whole."""
    body, directory = bytearray(), bytearray()
    for entry in entries:
        content = entry.packed
        if content is None:
            content = entry.data if entry.method == 0 else packed(entry.data)
        size = len(entry.data) if entry.size is None else entry.size
        packed_size = len(content) if entry.packed_size is None else entry.packed_size
        crc = zlib.crc32(entry.data) if entry.crc is None else entry.crc
        offset = len(body) if entry.offset is None else entry.offset
        name = entry.name if entry.local_name is None else entry.local_name
        body += struct.pack(
            "<4s5H3L2H",
            entry.local_signature,
            20,
            entry.flags if entry.local_flags is None else entry.local_flags,
            entry.method if entry.local_method is None else entry.local_method,
            0,
            33,
            crc if entry.local_crc is None else entry.local_crc,
            packed_size,
            size if entry.local_size is None else entry.local_size,
            len(name),
            0,
        )
        body += name + content
        if entry.hidden:
            continue
        lengths = len(entry.name), len(entry.extra), 0
        directory += struct.pack(
            "<4s6H3L5H2L",
            b"PK\1\2",
            3 << 8,
            20,
            entry.flags,
            entry.method,
            0,
            33,
            crc,
            packed_size,
            size,
            *lengths,
            entry.disk,
            0,
            entry.mode << 16,
            offset,
        )
        directory += entry.name + entry.extra
    count = sum(not entry.hidden for entry in entries)
    end: dict[str, Any] = {
        "disk": 0,
        "first": 0,
        "here": count,
        "count": count,
        "size": len(directory),
        "offset": len(body),
        "comment": b"",
        **lies,
    }
    numbers = [end[key] for key in ("disk", "first", "here", "count", "size", "offset")]
    tail = struct.pack("<4s4H2LH", b"PK\5\6", *numbers, len(end["comment"]))
    return bytes(body + directory) + end.get("before_end", b"") + tail + end["comment"]


def manifest(*files: Entry, **fields: Any) -> Entry:
    """Return a manifest; without `files=` it is one that other programs write."""
    content = {
        "version": "1",
        "created_at": "2024-01-15T10:30:00+00:00",
        "file_count": len(files),
        "total_bytes": sum(len(file.data) if file.size is None else file.size for file in files),
        **fields,
    }
    return Entry(b"manifest.json", json.dumps(content).encode())


def plain(*files: Entry, **lies: Any) -> bytes:
    return zipped(*files, manifest(*files), **lies)


def named(*names: bytes) -> bytes:
    return plain(*(Entry(b"files/" + name, b"x") for name in names))


def record(path: str, data: bytes = b"", **fields: Any) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    return {"path": path, "size": len(data), "sha256": digest, "mode": "644", **fields}


def declared(*files: Entry, **fields: Any) -> bytes:
    """Return an archive with a manifest of ours, whose fields are `fields`."""
    fields.setdefault("files", [record(each.name[6:].decode(), each.data) for each in files])
    return zipped(*files, manifest(*files, **fields))


def raw_manifest(data: bytes) -> bytes:
    return zipped(Entry(b"manifest.json", data))


def truncated(by: int) -> bytes:
    return GOOD[:-by]


def zip64_end(count: int, size: int, offset: int, **lies: int) -> bytes:
    values = {"length": 44, "disk": 0, "disks": 1, "here": count, **lies}
    record = struct.pack(
        "<4sQ2H2L4Q",
        b"PK\6\6",
        values["length"],
        45,
        45,
        values["disk"],
        0,
        values["here"],
        count,
        size,
        offset,
    )
    return record + struct.pack("<4sLQL", b"PK\6\7", 0, values["at"], values["disks"])


def wide(**lies: int) -> bytes:
    """Return an archive with 64-bit records of which some lie."""
    plain_end = plain(FILE)
    _, _, _, _, count, size, offset, _ = struct.unpack("<4s4H2LH", plain_end[-22:])
    end = zip64_end(
        lies.pop("count", count),
        lies.pop("size", size),
        lies.pop("offset", offset),
        **{"at": offset + size, **lies},
    )
    tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return plain_end[:-22] + end + tail


def flipped(position: int) -> bytes:
    data = bytearray(GOOD)
    data[position] ^= 0xFF
    return bytes(data)


FILE = Entry(b"files/a", b"some text " * 100)
GOOD = plain(FILE)
BIG = 300 << 20
ZEROS = packed_zeros(BIG)
DIGEST = "0" * 64


def overlapping() -> bytes:
    """Return two entries that share their content, as in a bomb that quotes itself."""
    kernel = Entry(b"files/b", b"x" * 1000, method=0)
    inner = 30 + len(b"files/a")
    outer_data = zipped(kernel)[: 30 + len(kernel.name) + 1000]
    outer = Entry(b"files/a", outer_data, method=0)
    return zipped(outer, replace(kernel, offset=inner), manifest(outer, kernel))


def many_directories() -> bytes:
    """Return few names that stand for millions of directories."""
    deep = b"/".join([b"a"] * 32_000)
    return plain(*(Entry(b"files/%d/" % number + deep) for number in range(60)))


def shared_deep_path() -> bytes:
    deep = b"/".join([b"a"] * 30_000)
    return plain(*(Entry(b"files/" + deep + b"/%d" % number) for number in range(100)), Entry(b"x"))


def many_entries() -> bytes:
    return plain(
        *(Entry(b"files/%d" % number, method=0) for number in range(30_000)),
        here=65_000,
        count=65_000,
    )


def many_links() -> bytes:
    links = b",".join([b'{"path":"a","target":"b"}'] * 1_400_000)
    start = b'{"version":"1","created_at":"2024-01-15T10:30:00Z","file_count":0,"total_bytes":0,'
    return raw_manifest(start + b'"files":[],"links":[' + links + b"]}")


def long_string(character: bytes) -> bytes:
    start = b'{"version":"1","created_at":"' + character
    return raw_manifest(start + b"a" * (44 << 20) + b'","file_count":0,"total_bytes":0}')


HOSTILE: dict[str, Callable[[], bytes]] = {
    # names
    "climbs out": lambda: named(b"../out"),
    "climbs out from below": lambda: named(b"a/../../out"),
    "climbs and stays": lambda: named(b"a/../b"),
    "climbs out beside files": lambda: plain(Entry(b"../out")),
    "absolute": lambda: named(b"/etc/passwd"),
    "absolute beside files": lambda: plain(Entry(b"/etc/passwd")),
    "empty segment": lambda: named(b"a//b"),
    "dot segment": lambda: named(b"./a"),
    "backslashes": lambda: named(b"..\\..\\out"),
    "drive": lambda: named(b"C:/out"),
    "drive beside files": lambda: plain(Entry(b"C:out")),
    "NUL": lambda: named(b"a\0.txt"),
    "line end": lambda: named(b"a\nb"),
    "escape character": lambda: named(b"a\x1b[31m"),
    "not UTF-8": lambda: named(b"\xff\xfe"),
    "empty name": lambda: plain(Entry(b"")),
    "slash": lambda: plain(Entry(b"/")),
    "reserved": lambda: named(b".wink-tmp-1-2-3-4"),
    "reserved directory": lambda: named(b".wink-tmp-x/a"),
    "long segment": lambda: named(b"a" * 256),
    "elsewhere": lambda: plain(Entry(b"other/a")),
    "twice": lambda: named(b"a", b"a"),
    "manifest twice": lambda: zipped(manifest(), manifest()),
    "case twins": lambda: named(b"readme", b"README"),
    "case twins of directories": lambda: named(b"src/a", b"SRC/b"),
    "case twins beyond ASCII": lambda: named("straße".encode(), b"STRASSE"),
    "normal form twins": lambda: named("é".encode(), "e\u0301".encode()),
    "file and directory": lambda: named(b"a", b"a/b"),
    "directory and file": lambda: named(b"a/b", b"a"),
    # kinds
    "link": lambda: plain(Entry(b"files/a", b"/etc/passwd", mode=stat.S_IFLNK | 0o777)),
    "pipe": lambda: plain(Entry(b"files/a", mode=stat.S_IFIFO | 0o644)),
    "socket": lambda: plain(Entry(b"files/a", mode=stat.S_IFSOCK | 0o644)),
    "device": lambda: plain(Entry(b"files/a", mode=stat.S_IFBLK | 0o644)),
    "directory without a slash": lambda: plain(Entry(b"files/a", mode=stat.S_IFDIR | 0o755)),
    "file with a slash": lambda: plain(Entry(b"files/a/", mode=stat.S_IFREG | 0o755)),
    "directory with content": lambda: plain(Entry(b"files/a/", b"text", mode=stat.S_IFDIR)),
    "link as manifest": lambda: zipped(replace(manifest(), mode=stat.S_IFLNK | 0o777)),
    # the container
    "empty": lambda: b"",
    "no zip": lambda: b"This is not a ZIP file. " * 100,
    "an empty zip": lambda: zipped(),
    "truncated at the end": lambda: truncated(1),
    "truncated in the directory": lambda: truncated(60),
    "truncated in the middle": lambda: GOOD[: len(GOOD) // 2],
    "something before": lambda: b"#!/bin/sh\n" + GOOD,
    "something after": lambda: GOOD + b"more",
    "two ends": lambda: plain(FILE, comment=GOOD[-22:]),
    "a gap before the end": lambda: plain(FILE, before_end=b"gap"),
    "several disks": lambda: plain(FILE, disk=1, first=1),
    "entries elsewhere": lambda: plain(FILE, here=1),
    "an entry on another disk": lambda: plain(replace(FILE, disk=2)),
    "more entries than declared": lambda: plain(FILE, here=1, count=1),
    "fewer entries than declared": lambda: plain(FILE, here=9, count=9),
    "directory beyond the end": lambda: plain(FILE, offset=1 << 30),
    "directory too long": lambda: plain(FILE, size=1 << 30),
    "too many entries": lambda: wide(count=10**15, here=10**15),
    "too many entries for the directory": lambda: many_entries(),
    "wide without records": lambda: plain(FILE, here=0xFFFF, count=0xFFFF),
    "wide with a wrong length": lambda: wide(length=99),
    "wide on several disks": lambda: wide(disks=2),
    "wide on another disk": lambda: wide(disk=1),
    "wide elsewhere": lambda: wide(at=0),
    "wide with a huge offset": lambda: wide(offset=2**64 - 1),
    "wide with a huge directory": lambda: wide(size=2**64 - 1),
    "wide entry without a field": lambda: plain(replace(FILE, offset=0xFFFFFFFF)),
    "wide entry with a short field": lambda: plain(
        replace(FILE, offset=0xFFFFFFFF, extra=b"\1\0\4\0\0\0\0\0")
    ),
    "wide entry far away": lambda: plain(
        replace(FILE, offset=0xFFFFFFFF, extra=b"\1\0\10\0" + b"\xff" * 8)
    ),
    "encrypted": lambda: plain(replace(FILE, flags=0x801)),
    "strongly encrypted": lambda: plain(replace(FILE, flags=0x841)),
    "masked": lambda: plain(replace(FILE, flags=0x2800)),
    "patched": lambda: plain(replace(FILE, flags=0x820)),
    "bzip2": lambda: plain(replace(FILE, method=12)),
    "lzma": lambda: plain(replace(FILE, method=14)),
    "zstd": lambda: plain(replace(FILE, method=93)),
    "AES": lambda: plain(replace(FILE, method=99)),
    # headers that contradict the directory
    "other name": lambda: plain(replace(FILE, local_name=b"files/b")),
    "longer name": lambda: plain(replace(FILE, local_name=b"files/aa")),
    "other size": lambda: plain(replace(FILE, local_size=5)),
    "other method": lambda: plain(replace(FILE, local_method=0)),
    "other checksum": lambda: plain(replace(FILE, local_crc=5)),
    "encrypted in one place": lambda: plain(replace(FILE, local_flags=0x801)),
    "no header": lambda: plain(replace(FILE, local_signature=b"PK\7\10")),
    "header elsewhere": lambda: plain(replace(FILE, offset=7)),
    "header beyond the end": lambda: plain(replace(FILE, offset=1 << 31)),
    "content beyond the end": lambda: plain(replace(FILE, packed_size=1 << 30)),
    "into the directory": lambda: zipped(
        manifest(FILE), replace(FILE, method=0, size=1050, packed_size=1050)
    ),
    "overlap": overlapping,
    "the same content twice": lambda: zipped(
        FILE, replace(FILE, offset=0, hidden=False), manifest(FILE, FILE)
    ),
    # content
    "bomb": lambda: plain(Entry(b"files/a", size=BIG, packed=ZEROS, crc=0)),
    "many bombs": lambda: plain(
        *(Entry(b"files/%d" % n, size=BIG, packed=ZEROS, crc=0) for n in range(20))
    ),
    "bomb that lies about its size": lambda: plain(Entry(b"files/a", size=10, packed=ZEROS, crc=0)),
    "bomb as manifest": lambda: zipped(Entry(b"manifest.json", size=BIG, packed=ZEROS, crc=0)),
    "bomb as manifest that lies": lambda: zipped(
        Entry(b"manifest.json", size=100, packed=ZEROS, crc=0)
    ),
    "petabyte": lambda: plain(
        Entry(
            b"files/a",
            size=0xFFFFFFFF,
            packed=ZEROS,
            crc=0,
            extra=b"\1\0\10\0" + (10**15).to_bytes(8, "little"),
        )
    ),
    "size too small": lambda: plain(replace(FILE, size=10)),
    "size too large": lambda: plain(replace(FILE, size=100_000)),
    "stored with two sizes": lambda: plain(replace(FILE, method=0, size=10)),
    "wrong checksum": lambda: plain(replace(FILE, crc=1)),
    "damaged content": lambda: flipped(45),
    "not deflate": lambda: plain(replace(FILE, packed=b"\xff" * 100)),
    "nothing packed": lambda: plain(replace(FILE, packed=b"")),
    "deflate without end": lambda: plain(replace(FILE, packed=packed(FILE.data)[:-3])),
    "deflate with a tail": lambda: plain(replace(FILE, packed=packed(FILE.data) + b"tail")),
    "deflate twice": lambda: plain(replace(FILE, packed=packed(FILE.data) * 2)),
    # what a few bytes unfold to
    "many directories": many_directories,
    "a deep path many times": shared_deep_path,
    # the manifest
    "neither a manifest nor files": lambda: zipped(),
    "no manifest, and a file elsewhere": lambda: zipped(FILE, replace(FILE, name=b"b")),
    "no manifest, and names that differ in case": lambda: zipped(
        FILE, replace(FILE, name=b"files/A")
    ),
    "empty manifest": lambda: raw_manifest(b""),
    "manifest that is no JSON": lambda: raw_manifest(b"{"),
    "manifest that is a list": lambda: raw_manifest(b"[]"),
    "manifest that is null": lambda: raw_manifest(b"null"),
    "manifest that is not UTF-8": lambda: raw_manifest(b'{"version": "\xff"}'),
    "deep manifest": lambda: raw_manifest(b'{"x":' + b"[" * 1_000_000),
    "deep objects": lambda: raw_manifest(b'{"x":' * 200_000),
    "huge number": lambda: zipped(manifest(file_count=10**4000)),
    "fractional count": lambda: zipped(manifest(file_count=0.5)),
    "negative count": lambda: zipped(manifest(file_count=-1)),
    "not a number": lambda: raw_manifest(b'{"version":"1","file_count":NaN}'),
    "version of the future": lambda: zipped(manifest(version="2")),
    "version as a number": lambda: zipped(manifest(version=1)),
    "no date": lambda: zipped(manifest(created_at="yesterday")),
    "date as a number": lambda: zipped(manifest(created_at=5)),
    "other count": lambda: zipped(FILE, manifest(FILE, file_count=2)),
    "other total": lambda: zipped(FILE, manifest(FILE, total_bytes=2)),
    "endless names": lambda: long_string(b""),
    "endless wide names": lambda: long_string("\U0001f600".encode()),
    "millions of links": many_links,
    # what the manifest declares
    "file that is missing": lambda: declared(FILE, files=[record("b", FILE.data)]),
    "entry that is not declared": lambda: declared(
        FILE, Entry(b"files/b"), files=[record("a", FILE.data)]
    ),
    "declared twice": lambda: declared(FILE, files=[record("a", FILE.data)] * 2),
    "directory entry not declared": lambda: declared(
        Entry(b"files/d/", mode=stat.S_IFDIR | 0o755), files=[], file_count=0
    ),
    "wrong hash": lambda: declared(FILE, files=[record("a", FILE.data, sha256=DIGEST)]),
    "hash that is none": lambda: declared(FILE, files=[record("a", FILE.data, sha256="x")]),
    "mode that is none": lambda: declared(FILE, files=[record("a", FILE.data, mode="999")]),
    "mode of root": lambda: declared(FILE, files=[record("a", FILE.data, mode="4755")]),
    "checksum that is none": lambda: declared(
        FILE, files=[record("a", FILE.data, packed_crc32="-0000001")]
    ),
    "other size declared": lambda: declared(FILE, files=[record("a", FILE.data, size=1)]),
    "size as text": lambda: declared(FILE, files=[record("a", FILE.data, size="1000")]),
    "negative size": lambda: declared(FILE, files=[record("a", FILE.data, size=-1)]),
    "path that climbs out": lambda: declared(FILE, files=[record("../a", FILE.data, entry="a")]),
    "path that is escaped to climb": lambda: declared(
        FILE, files=[record("%2E%2E/a", FILE.data, entry="a")]
    ),
    "path with an escaped slash": lambda: declared(
        FILE, files=[record("x%2F..%2F..%2Fa", FILE.data, entry="a")]
    ),
    "path with an escaped NUL": lambda: declared(
        FILE, files=[record("a%00b", FILE.data, entry="a")]
    ),
    "absolute path": lambda: declared(FILE, files=[record("/a", FILE.data, entry="a")]),
    "empty path": lambda: declared(FILE, files=[record("", FILE.data, entry="a")]),
    "reserved path": lambda: declared(
        FILE, files=[record(".wink-tmp-1-2-3-4", FILE.data, entry="a")]
    ),
    "entry outside": lambda: declared(
        FILE, files=[record("a", FILE.data, entry="../manifest.json")]
    ),
    "link twice": lambda: declared(links=[{"path": "l", "target": "a"}] * 2),
    "link and file": lambda: declared(FILE, links=[{"path": "a", "target": "b"}]),
    "file below a link": lambda: declared(
        Entry(b"files/l/a"), links=[{"path": "l", "target": "/etc"}]
    ),
    "link below a link": lambda: declared(
        links=[{"path": "l", "target": "/etc"}, {"path": "l/x", "target": "y"}]
    ),
    "link that climbs out": lambda: declared(links=[{"path": "../l", "target": "a"}]),
    "link to nothing": lambda: declared(links=[{"path": "l", "target": ""}]),
    "link to NUL": lambda: declared(links=[{"path": "l", "target": "a%00"}]),
    "link too long": lambda: declared(links=[{"path": "l", "target": "a" * 4096}]),
    "link without target": lambda: declared(links=[{"path": "l"}]),
    "directory twice": lambda: declared(directories=[{"path": "d", "mode": "755"}] * 2),
    "directory and declared file": lambda: declared(
        FILE, directories=[{"path": "a", "mode": "755"}]
    ),
    "directory at the root": lambda: declared(directories=[{"path": "", "mode": "755"}]),
    "directory that climbs out": lambda: declared(directories=[{"path": "..", "mode": "755"}]),
    "directory that climbs from below": lambda: declared(
        directories=[{"path": "../x", "mode": "755"}]
    ),
    "links without files": lambda: zipped(manifest(links=[{"path": "l", "target": "a"}])),
    "files as an object": lambda: declared(files={}),
    "files with null": lambda: declared(files=[None]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_with_a_reason(light_directory: Path, name: str) -> None:
    path = light_directory / "hostile.zip"
    path.write_bytes(HOSTILE[name]())
    descriptors = open_descriptors()
    began = time.process_time()
    with pytest.raises(ArchiveError) as caught:
        ArchiveFilesystem(path)
    assert time.process_time() - began < SECONDS
    assert 10 < len(str(caught.value)) < 3_000
    assert open_descriptors() <= descriptors


def test_the_archives_are_hostile_for_one_reason_only(light_directory: Path) -> None:
    """What they are built from is fine, so each is refused for what its name says."""
    path = light_directory / "good.zip"
    for data in (
        GOOD,
        named(b"a", b"b/c"),
        wide(),
        declared(FILE, links=[{"path": "l", "target": "../.."}]),
        declared(directories=[{"path": "d", "mode": "700"}]),
        declared(Entry(b"files/A"), Entry(b"files/a")),
        plain(FILE, comment=b"comment"),
        plain(replace(FILE, flags=0)),
        zipped(Entry(b"files/d/", method=0, mode=stat.S_IFDIR | 0o755), FILE, manifest(FILE)),
    ):
        path.write_bytes(data)
        with ArchiveFilesystem(path) as fs:
            assert fs.manifest.file_count == len([m for m in fs.glob("**") if m.is_file])


# --- what is at the path of the archive ---


def test_only_a_regular_file_is_an_archive(light_directory: Path) -> None:
    good = light_directory / "good.zip"
    good.write_bytes(GOOD)
    link, pipe = light_directory / "link.zip", light_directory / "pipe.zip"
    link.symlink_to(good)
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(light_directory / "socket.zip"))
        for path in (
            link,
            pipe,
            light_directory / "socket.zip",
            light_directory,
            Path("/dev/zero"),
        ):
            with pytest.raises(ArchiveError, match="regular"):
                ArchiveFilesystem(path)


def test_git_and_python_files_are_only_data(light_directory: Path) -> None:
    names = (b".git/config", b".git/hooks/pre-commit", b".gitattributes", b"conftest.py")
    path = light_directory / "state.zip"
    path.write_bytes(named(*names))
    with ArchiveFilesystem(path) as fs:
        assert {match.path.encode() for match in fs.glob("**")} == {*names}


# --- memory ---

_MEASURE = """
import sys
from tests.safety.measured import peak
from tests.sizes import size
from weakincentives.filesystem.archive.filesystem import ArchiveFilesystem
try:
    ArchiveFilesystem(sys.argv[1])
except ValueError as error:
    print(type(error).__name__)
print(peak())
"""


@pytest.mark.parametrize(
    "name",
    [
        "bomb", "many bombs", "bomb that lies about its size", "bomb as manifest",
        "bomb as manifest that lies", "petabyte", "many directories", "a deep path many times",
        "deep manifest", "endless names", "endless wide names", "millions of links",
    ],
)  # fmt: skip
def test_a_hostile_archive_takes_little_memory(light_directory: Path, name: str) -> None:
    path = light_directory / "hostile.zip"
    path.write_bytes(HOSTILE[name]())
    command = [sys.executable, "-c", _MEASURE, str(path)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    kind, peak = done.stdout.split()
    assert kind == "ArchiveError"
    assert int(peak) < MEMORY


# --- mutations ---


def originals(directory: Path) -> Iterator[bytes]:
    """Yield archives of every kind, small enough that a mutation hits something."""
    fs = InMemoryFilesystem()
    fs.write("a", "text " * 20)
    fs._store("noise", bytes(range(256)), permissions=0o755)
    fs._make_link("link", "a")
    fs.mkdir("empty")
    fs.write("d/e/f", "")
    export_archive(fs, directory / "ours.zip")
    yield (directory / "ours.zip").read_bytes()
    yield named(b"a", b"b/c", b"d")
    yield wide()
    with zipfile.ZipFile(directory / "theirs.zip", "w") as archive:
        archive.writestr("files/a", "text")
        archive.writestr("manifest.json", manifest(Entry(b"files/a", b"text")).data)
    yield (directory / "theirs.zip").read_bytes()


def mutated(data: bytes, random: Random) -> bytes:
    result = bytearray(data)
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        at = random.randrange(len(result) + 1)
        kind, bit = random.randrange(5), 1 << random.randrange(8)
        if kind == 0:
            result[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 1:
            result[at : at + 1] = bytes(each ^ bit for each in result[at : at + 1])
        elif kind == 2:
            del result[at : at + random.choice([1, 2, 4, 30])]
        elif kind == 3:
            result[at:at] = random.randbytes(random.choice([1, 2, 4, 22]))
        else:
            value = random.choice([0, 1, 0xFFFF, 0xFFFFFFFF, 0x7FFFFFFF])
            result[at : at + 4] = value.to_bytes(4, "little")
    return bytes(result)


def test_a_mutated_archive_is_refused_or_is_what_its_manifest_says(light_directory: Path) -> None:
    random = Random(20240115)
    path = light_directory / "mutated.zip"
    sources = list(originals(light_directory))
    refused = 0
    for number in range(MUTATIONS):
        path.write_bytes(mutated(sources[number % len(sources)], random))
        try:
            fs = ArchiveFilesystem(path)
        except ArchiveError:
            refused += 1
            continue
        with fs:
            files = [match.path for match in fs.glob("**") if match.is_file]
            contents = [fs.read_bytes(name).content for name in files]
            assert len(files) == fs.manifest.file_count
            assert sum(map(len, contents)) == fs.manifest.total_bytes
            hashes = [hashlib.sha256(content).hexdigest() for content in contents]
            assert [fs.stat(name).content_hash for name in files] == hashes
    assert refused > MUTATIONS * 0.8


def test_a_mutated_manifest_is_refused_or_is_what_it_says(light_directory: Path) -> None:
    """The same with valid checksums, so that the mutations get past the container."""
    random = Random(20240116)
    path = light_directory / "mutated.zip"
    files = [Entry(b"files/a", b"text"), Entry(b"files/b/c", b"")]
    records = [record(each.name[6:].decode(), each.data) for each in files]
    links = [{"path": "l", "target": "a"}]
    original = manifest(*files, files=records, links=links, directories=[]).data
    accepted = 0
    for _ in range(MUTATIONS):
        path.write_bytes(zipped(*files, Entry(b"manifest.json", mutated(original, random))))
        try:
            fs = ArchiveFilesystem(path)
        except ArchiveError:
            continue
        accepted += 1
        with fs:
            assert [fs.read(m.path).content for m in fs.glob("**") if m.is_file] == ["text", ""]
    assert 0 < accepted < MUTATIONS
