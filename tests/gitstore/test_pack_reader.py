"""Packs: git reads ours, we read git's, and damage is always reported."""

import errno
import hashlib
import os
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.descriptors import open_descriptors
from tests.gitstore.gitcommand import git, git_hash_object, new_repository
from weakincentives.gitstore import pack_reader as packs
from weakincentives.gitstore import pack_writer as packing
from weakincentives.gitstore.pack_reader import (
    MAX_OBJECT_SIZE,
    Pack,
    PackError,
    apply_delta,
    hash_object,
)
from weakincentives.gitstore.pack_writer import PackWriter

ALIKE = [
    "".join(f"line {n} {'changed' if n == number else ''}\n" for n in range(200)).encode()
    for number in range(120)
]


def write_pack(directory: Path, objects: list[tuple[str, bytes]]) -> Path:
    """Write a pack; return the path of its index."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "new"
    with path.open("x+b") as file:
        writer = PackWriter(file.fileno)
        for kind, data in objects:
            writer.add(hash_object(kind, data), kind, len(data), zlib.compress(data, 1))
        index = writer.finish()
    name = f"pack-{index[-40:-20].hex()}"
    path.rename(directory / f"{name}.pack")
    (directory / f"{name}.idx").write_bytes(index)
    return directory / f"{name}.idx"


def read_all(pack: Pack) -> dict[str, tuple[str, bytes]]:
    found: dict[str, tuple[str, bytes]] = {}
    for name in pack:
        offset = pack.offset_of(bytes.fromhex(name))
        assert offset is not None
        found[name] = pack.read(offset)
        stream = pack.stream(offset)
        content = b"".join(stream.chunks)
        assert (stream.kind, content) == found[name]
        assert stream.size == len(content)
    return found


def only_pack(repository: Path) -> Pack:
    [index] = (repository / "objects" / "pack").glob("*.idx")
    return Pack(index)


def types_in(pack: Pack) -> set[int]:
    offsets = (pack.offset_of(bytes.fromhex(name)) for name in pack)
    return {pack._header(offset)[0] for offset in offsets if offset is not None}


def test_git_reads_what_we_write(tmp_path: Path) -> None:
    repository = new_repository(tmp_path / "r")
    sizes = [0, 1, 15, 16, 2047, 2048, 100_000]
    blobs = [os.urandom(size) for size in sizes]
    index = write_pack(repository / "objects" / "pack", [("blob", data) for data in blobs])
    git(repository, "verify-pack", "-v", index)
    git(repository, "fsck", "--strict")
    for data in blobs:
        assert git(repository, "cat-file", "-s", hash_object("blob", data)).strip() == str(
            len(data)
        )


@pytest.mark.parametrize(
    ("options", "delta"), [((), 7), (("--delta-base-offset",), 6)], ids=["by id", "by offset"]
)
def test_deltas_of_both_kinds_are_read(
    tmp_path: Path, options: tuple[str, ...], delta: int
) -> None:
    repository = new_repository(tmp_path / "r")
    names = {git_hash_object(repository, data): ("blob", data) for data in ALIKE}
    target = repository / "objects" / "pack" / "pack"
    git(repository, "pack-objects", *options, target, given="\n".join(names).encode())
    pack = only_pack(repository)
    assert delta in types_in(pack)
    assert read_all(pack) == names


@pytest.mark.parametrize("command", ["gc --aggressive", "repack -adf --depth=4095 --window=250"])
def test_what_git_packed_tightly_is_read(tmp_path: Path, command: str) -> None:
    repository = new_repository(tmp_path / "r")
    names = [git_hash_object(repository, data) for data in ALIKE]
    entries = "".join(f"100644 blob {name}\tf{n}\n" for n, name in enumerate(names))
    tree = git(repository, "mktree", given=entries.encode()).strip()
    commit = git(repository, "commit-tree", "-m", "all", tree).strip()
    git(repository, "tag", "-a", "-m", "a tag", "v1", commit)
    git(repository, "update-ref", "refs/heads/main", commit)
    git(repository, *command.split())
    found = read_all(only_pack(repository))
    assert {kind for kind, _ in found.values()} == {"blob", "tree", "commit", "tag"}
    assert [found[name][1] for name in names] == ALIKE
    assert all(hash_object(*content) == name for name, content in found.items())


def test_every_object_is_found_and_no_other(tmp_path: Path) -> None:
    objects = [("blob", b"%d" % number) for number in range(30_000)]
    pack = Pack(write_pack(tmp_path, objects))
    assert len(pack) == len(objects)
    for number in range(0, 30_000, 101):
        name = hash_object("blob", b"%d" % number)
        offset = pack.offset_of(bytes.fromhex(name))
        assert offset is not None
        assert pack.read(offset) == ("blob", b"%d" % number)
        assert pack.offset_of(hashlib.sha1(b"not %d" % number).digest()) is None
    assert pack.offset_of(b"\0" * 20) is None
    assert pack.offset_of(b"\xff" * 20) is None


def test_a_pack_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pack = Pack(write_pack(tmp_path, [("blob", b"a")]))
    monkeypatch.setattr(os, "pread", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(PackError, match=f"cannot be read at 12: '{pack.name}'"):
        pack.read(12)


def test_bytes_that_look_like_an_id_across_two_are_not_taken_for_one() -> None:
    ids = [bytes([7] * 10 + [7] * 9 + [n]) for n in (1, 2)]
    pack = Pack.__new__(Pack)
    pack._ids = b"".join(ids)
    pack._fanout = (0,) * 7 + (2,) * 249
    pack._near = struct.pack(">2I", 12, 99)
    assert pack.offset_of(pack._ids[1:21]) is None
    assert [pack.offset_of(each) for each in ids] == [12, 99]


def test_offsets_beyond_two_gigabytes_are_in_a_table_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = new_repository(tmp_path / "r")
    monkeypatch.setattr(packing, "_FAR", 40)  # so that a small pack has far offsets
    entries = [(hashlib.sha1(b"%d" % n).digest(), n, 12 + 1_000 * n) for n in range(3)]
    index = packing.encode_index(sorted(entries), b"\0" * 20)
    table = index[8 + 1024 + 3 * 28 : -40]
    assert struct.unpack(">2Q", table) in {(1_012, 2_012), (2_012, 1_012)}
    monkeypatch.undo()

    path = write_pack(repository / "objects" / "pack", [("blob", b"a"), ("blob", b"b")])
    data = bytearray(path.read_bytes()[:-20])
    at = 8 + 1024 + 2 * 24
    offsets = struct.unpack_from(">2I", data, at)
    struct.pack_into(">2I", data, at, offsets[0], 0x80000000)
    data[-20:-20] = struct.pack(">Q", offsets[1])
    path.write_bytes(bytes(data) + hashlib.sha1(data).digest())
    git(repository, "verify-pack", path)
    assert {content for _, content in read_all(Pack(path)).values()} == {b"a", b"b"}


def test_a_pack_that_was_removed_is_readable_while_it_is_held(tmp_path: Path) -> None:
    index = write_pack(tmp_path, [("blob", b"kept")])
    pack = Pack(index)
    index.with_suffix(".pack").unlink()
    index.unlink()
    assert list(read_all(pack).values()) == [("blob", b"kept")]


def test_a_pack_that_nobody_holds_is_closed(tmp_path: Path) -> None:
    index = write_pack(tmp_path, [("blob", b"x")])
    before = open_descriptors()
    for _ in range(5):
        Pack(index)
        index.with_suffix(".idx.bad").write_bytes(b"")
    assert open_descriptors() == before


@pytest.mark.parametrize("size", [4, 1_000_000])
def test_an_object_whose_parts_fail_is_not_in_the_pack(tmp_path: Path, size: int) -> None:
    def failing() -> Iterator[bytes]:
        yield random.Random(0).randbytes(size)
        raise OSError(5, "Input/output error")

    with (tmp_path / "p").open("x+b") as file:
        writer = PackWriter(file.fileno)
        writer.add(hash_object("blob", b"1"), "blob", 1, zlib.compress(b"1"))
        with pytest.raises(OSError, match="Input"):
            writer.add_parts("blob", 4, failing(), lambda: "0" * 40)
        writer.add_parts("blob", 1, [zlib.compress(b"d")], lambda: None)
        writer.add_parts("blob", 1, [zlib.compress(b"2")], lambda: hash_object("blob", b"2"))
        index = writer.finish()
    assert len(writer) == 2
    (tmp_path / "p").rename(tmp_path / "x.pack")
    (tmp_path / "x.idx").write_bytes(index)
    assert sorted(read_all(Pack(tmp_path / "x.idx")).values()) == [("blob", b"1"), ("blob", b"2")]


@pytest.mark.parametrize("suffix", [".idx", ".pack"])
def test_a_file_that_is_not_there_is_told_apart_from_damage(tmp_path: Path, suffix: str) -> None:
    index = write_pack(tmp_path, [("blob", b"x")])
    index.with_suffix(suffix).unlink()
    with pytest.raises(FileNotFoundError):
        Pack(index)


@pytest.mark.parametrize("suffix", [".idx", ".pack"])
@pytest.mark.parametrize("kind", ["directory", "fifo", "link", "empty", "other"])
def test_what_is_no_pack_is_refused(tmp_path: Path, suffix: str, kind: str) -> None:
    index = write_pack(tmp_path, [("blob", b"x")])
    other = write_pack(tmp_path / "other", [("blob", b"y")])
    path = index.with_suffix(suffix)
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(other.with_suffix(suffix))
    elif kind == "empty":
        path.touch()
    else:
        path.write_bytes(other.with_suffix(suffix).read_bytes())
    with pytest.raises(PackError):
        Pack(index)


def resealed(index: bytes) -> bytes:
    """Return an index whose checksum is right, whatever is in it."""
    return index[:-20] + hashlib.sha1(index[:-20]).digest()


@pytest.mark.parametrize("of", ["pack", "index", "sealed index"])
def test_damage_gives_a_pack_error_or_the_right_content_and_nothing_else(
    tmp_path: Path, of: str
) -> None:
    repository = new_repository(tmp_path / "r")
    names = {git_hash_object(repository, data): ("blob", data) for data in ALIKE[:40]}
    target = repository / "objects" / "pack" / "pack"
    git(repository, "pack-objects", "--delta-base-offset", target, given="\n".join(names).encode())
    [index] = (repository / "objects" / "pack").glob("*.idx")
    path = index.with_suffix(".pack") if of == "pack" else index
    whole = path.read_bytes()
    chance = random.Random(3)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 1, 4, 40])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        damaged = bytes(data[: chance.randrange(len(data))] if chance.random() < 0.1 else data)
        path.unlink()
        path.write_bytes(resealed(damaged) if of == "sealed index" else damaged)
        try:
            pack = Pack(index)
        except PackError:
            refused += 1
            continue
        refused += sum(not readable(pack, name) for name in pack)
    assert refused > 50


def readable(pack: Pack, name: str) -> bool:
    try:
        offset = pack.offset_of(bytes.fromhex(name))
        if offset is None:
            return False
        found = pack.read(offset)
    except PackError:
        return False
    return hash_object(*found) == name


def number(value: int) -> bytes:
    """Encode a number as deltas do."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def test_a_delta_copies_and_inserts() -> None:
    delta = number(6) + number(8) + b"\x91\x02\x04" + b"\x04wink"
    assert apply_delta(b"abcdef", delta) == b"cdef" + b"wink"
    large = bytes(70_000)
    assert apply_delta(large, number(70_000) + number(0x10000) + b"\x80") == large[:0x10000]


@pytest.mark.parametrize(
    "delta",
    [
        b"",
        b"\x80",
        b"\xff" * 12,
        number(5) + number(0),
        number(6) + number(4),
        number(6) + number(0) + b"\0",
        number(6) + number(3) + b"\x03ab",
        number(6) + number(1) + b"\x03abc",
        number(6) + number(4) + b"\x91\x03\x04",
        number(6) + number(4) + b"\x91\x03",
        number(6) + number(MAX_OBJECT_SIZE + 1) + b"\x80",
    ],
)
def test_a_damaged_delta_is_refused(delta: bytes) -> None:
    with pytest.raises(PackError):
        apply_delta(b"abcdef", delta)


@settings(max_examples=300)
@given(base=st.binary(max_size=64), delta=st.binary(max_size=64), fits=st.booleans())
def test_no_delta_breaks_anything(base: bytes, delta: bytes, fits: bool) -> None:
    if fits:
        delta = number(len(base)) + delta
    try:
        made = apply_delta(base, delta)
    except PackError:
        return
    assert len(made) <= MAX_OBJECT_SIZE


BOMB = """
import resource, sys, zlib
from pathlib import Path
from tests.gitstore.test_pack_reader import bomb
from weakincentives.gitstore.pack_reader import PackError
from weakincentives.gitstore.pack_reader import Pack
index = bomb(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
pack = Pack(index)
for name in pack:
    try:
        pack.read(pack.offset_of(bytes.fromhex(name)))
        print("read")
    except PackError as error:
        print("refused")
"""


def bomb(directory: Path) -> Path:
    """Write a pack whose deltas make more and more of little, each 16 MiB times 4,000."""
    body = bytearray(struct.pack(">4sII", b"PACK", 2, 3))
    base = bytes(1 << 20)
    offsets = [len(body)]
    body += packing.entry_header(3, len(base)) + zlib.compress(base)
    for size in (len(base), 1 << 38):
        offsets.append(len(body))
        copies = b"\xf0\xff\xff\x0f" * 4_000
        delta = number(size) + number(1 << 38) + copies
        back = offsets[-1] - offsets[-2]
        encoded = bytearray([back & 0x7F])
        while back := back >> 7:
            back -= 1
            encoded.insert(0, back & 0x7F | 0x80)
        body += packing.entry_header(6, len(delta)) + encoded + zlib.compress(delta)
    checksum = hashlib.sha1(body).digest()
    entries = [(bytes([n]) * 20, 0, offset) for n, offset in enumerate(offsets)]
    index = directory / "pack-bomb.idx"
    index.with_suffix(".pack").write_bytes(bytes(body) + checksum)
    index.write_bytes(packing.encode_index(entries, checksum))
    return index


def test_a_delta_bomb_is_refused_before_it_grows(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOMB, tmp_path], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("read\nrefused\nrefused\n", "")


def test_an_object_that_says_it_is_huge_is_refused(tmp_path: Path) -> None:
    body = struct.pack(">4sII", b"PACK", 2, 1) + packing.entry_header(3, 1 << 50)
    body += zlib.compress(b"little")
    checksum = hashlib.sha1(body).digest()
    index = tmp_path / "x.idx"
    index.with_suffix(".pack").write_bytes(body + checksum)
    index.write_bytes(packing.encode_index([(b"\1" * 20, 0, 12)], checksum))
    pack = Pack(index)
    with pytest.raises(PackError, match="too large"):
        pack.read(12)
    with pytest.raises(PackError, match="another size"):
        b"".join(pack.stream(12).chunks)


def test_deltas_in_a_circle_are_refused(tmp_path: Path) -> None:
    names = [b"\1" * 20, b"\2" * 20]
    body = bytearray(struct.pack(">4sII", b"PACK", 2, 2))
    offsets: list[int] = []
    for other in reversed(names):
        offsets.append(len(body))
        delta = number(0) + number(0)
        body += packing.entry_header(7, len(delta)) + other + zlib.compress(delta)
    checksum = hashlib.sha1(body).digest()
    index = tmp_path / "x.idx"
    index.with_suffix(".pack").write_bytes(bytes(body) + checksum)
    entries = [(name, 0, offset) for name, offset in zip(names, offsets, strict=True)]
    index.write_bytes(packing.encode_index(entries, checksum))
    with pytest.raises(PackError, match="delta chain of more than 4095"):
        Pack(index).read(offsets[0])


def test_the_bases_that_are_kept_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = new_repository(tmp_path / "r")
    names = {git_hash_object(repository, data): ("blob", data) for data in ALIKE}
    target = repository / "objects" / "pack" / "pack"
    git(repository, "pack-objects", target, given="\n".join(names).encode())
    monkeypatch.setattr(packs, "_MAX_BASES", 3 * len(ALIKE[0]))
    pack = only_pack(repository)
    assert read_all(pack) == names
    assert sum(len(content) for _, content in pack._bases.values()) == pack._bases_size
    assert 0 < pack._bases_size <= 3 * len(ALIKE[0])
