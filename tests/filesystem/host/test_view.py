"""Blobs as content: random access, verified at the end, in every storage form."""

import os
import random
from pathlib import Path

import pytest

from tests.gitstore.gitcommand import git
from weakincentives.filesystem import text
from weakincentives.filesystem.host.snapshots.view import open_blob
from weakincentives.gitstore.objects import ObjectError, ObjectStore

SIZE = 5_000_000


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "--bare", "r")
    return tmp_path / "r"


@pytest.fixture
def data() -> bytes:
    return random.Random(1).randbytes(SIZE // 2) + bytes(SIZE // 2)


def stored(repository: Path, data: bytes) -> tuple[ObjectStore, str]:
    objects = ObjectStore(repository / "objects")
    with objects.begin_pack() as batch:
        blob = batch.add("blob", data)
        batch.finish()
    return objects, blob


@pytest.mark.slow
@pytest.mark.parametrize("how", ["packed", "loose"])
def test_any_part_is_read_in_any_order(
    repository: Path, data: bytes, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "CHECKPOINT_INTERVAL", 1_500_000)
    objects, blob = stored(repository, data)
    if how == "loose":
        [pack] = (repository / "objects" / "pack").glob("*.pack")
        packed = pack.read_bytes()
        for path in pack.parent.iterdir():
            path.unlink()
        git(repository, "unpack-objects", "-q", given=packed)
    content = open_blob(objects, blob)
    assert content.size == SIZE
    choice = random.Random(2)
    for _ in range(60):
        offset, size = choice.randrange(SIZE + 10), choice.randrange(300_000)
        assert content.read(offset, size) == data[offset : offset + size]
    assert content.read(0, SIZE + 1) == data


def test_no_more_is_unpacked_than_is_asked_for(repository: Path, data: bytes) -> None:
    objects, blob = stored(repository, data)
    [pack] = (repository / "objects" / "pack").glob("*.pack")
    before, packed = pack.stat(), pack.read_bytes()
    pack.write_bytes(packed[: len(packed) - 200] + bytes(180) + packed[-20:])
    os.utime(pack, ns=(before.st_atime_ns, before.st_mtime_ns))
    content = open_blob(objects, blob)
    assert content.read(0, 1_000) == data[:1_000]
    with pytest.raises(ObjectError, match="damaged"):
        content.read(0, SIZE)


def test_other_content_under_the_same_id_is_found_out_at_the_end(
    repository: Path, data: bytes
) -> None:
    objects, blob = stored(repository, data)
    other_objects, other = stored(repository, data[:-1] + b"1")
    index = {}
    for path in (repository / "objects" / "pack").glob("*.idx"):
        index[bytes.fromhex(blob) in path.read_bytes()] = path.with_suffix(".pack")
    content = open_blob(objects, blob)
    descriptor = os.open(index[True], os.O_WRONLY)
    os.pwrite(descriptor, index[False].read_bytes()[:-20], 0)
    os.close(descriptor)
    assert content.read(0, 1_000) == data[:1_000]
    with pytest.raises(ObjectError, match="damaged"):
        content.read(0, SIZE)
    assert open_blob(other_objects, other).read(SIZE - 1, 1) == b"1"


def test_a_tree_is_not_a_blob(repository: Path) -> None:
    objects = ObjectStore(repository / "objects")
    with objects.begin_pack() as batch:
        tree = batch.add("tree", b"")
        batch.finish()
    with pytest.raises(ObjectError, match="is a tree, not a blob"):
        open_blob(objects, tree)
