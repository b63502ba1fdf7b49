"""The object store: objects are stored once, verified when read, and written all or none."""

import gc
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.descriptors import open_descriptors
from tests.gitstore.gitcommand import git, git_hash_object, new_repository
from weakincentives.gitstore import objects
from weakincentives.gitstore.objects import ObjectError, ObjectStore, is_object_id
from weakincentives.gitstore.pack_reader import hash_object
from weakincentives.posix import fault_hook

POINTS = ["objects.packed", "objects.indexed", "objects.named", "objects.visible"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return new_repository(tmp_path / "r")


@pytest.fixture
def store(repository: Path) -> ObjectStore:
    return ObjectStore(repository / "objects")


def put(store: ObjectStore, *blobs: bytes) -> list[str]:
    """Store blobs in one batch; return their ids."""
    with store.begin_pack() as batch:
        ids = [batch.add("blob", data) for data in blobs]
        batch.finish()
    return ids


def files(repository: Path) -> list[str]:
    return sorted(path.name for path in (repository / "objects" / "pack").iterdir())


def test_what_is_put_in_comes_out_and_git_reads_it(repository: Path, store: ObjectStore) -> None:
    blobs = [b"", b"a", b"a" * 8_192, b"a" * 8_193, os.urandom(300_000)]
    ids = put(store, *blobs)
    assert [store.read(each) for each in ids] == [("blob", data) for data in blobs]
    assert [b"".join(store.chunks(each)) for each in ids] == blobs
    assert [store.size_of(each) for each in ids] == [len(data) for data in blobs]
    assert all(each in store for each in ids)
    git(repository, "fsck", "--strict")
    assert [git(repository, "hash-object", "--stdin", given=data).strip() for data in blobs] == ids


def test_an_object_is_stored_once(repository: Path, store: ObjectStore) -> None:
    first = put(store, b"a", b"b", b"a")
    again = put(ObjectStore(repository / "objects"), b"b", b"c", b"c")
    assert first[1] == again[0]
    assert sorted(store.ids()) == sorted({*first, *again})


def test_a_batch_with_nothing_new_writes_nothing(repository: Path, store: ObjectStore) -> None:
    put(store, b"a")
    before = files(repository)
    with store.begin_pack() as batch:
        batch.add("blob", b"a")
        assert batch.finish() is None
    assert files(repository) == before


def test_nothing_is_visible_before_the_batch_is_finished(
    repository: Path, store: ObjectStore
) -> None:
    with store.begin_pack() as batch:
        name = batch.add("blob", b"a")
        assert name in batch
        assert name not in store
    assert name not in store
    assert files(repository) == []


def test_a_large_batch_does_not_look_for_packs_again(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[None] = []
    refresh = ObjectStore.refresh

    def counted(self: ObjectStore, *, sweep: bool = False, closely: bool = False) -> None:
        looked.append(None)
        refresh(self, sweep=sweep, closely=closely)

    monkeypatch.setattr(ObjectStore, "refresh", counted)
    put(store, *(b"%d" % number for number in range(1_000)))
    assert len(looked) <= 2


def test_closing_a_store_closes_its_packs_at_once(repository: Path) -> None:
    gc.disable()
    try:
        before = open_descriptors()
        for _ in range(2):  # written, then found
            store = ObjectStore(repository / "objects")
            put(store, b"a")
            assert store.read(hash_object("blob", b"a"))[1] == b"a"
            store.close()
            del store
        assert open_descriptors() == before
    finally:
        gc.enable()


def test_objects_that_another_instance_wrote_are_found(
    repository: Path, store: ObjectStore
) -> None:
    put(store, b"a")
    [other] = put(ObjectStore(repository / "objects"), b"b")
    assert other in store
    assert store.read(other) == ("blob", b"b")


@pytest.mark.parametrize("command", [None, "repack -adf", "gc --aggressive", "unpack"])
def test_objects_are_found_wherever_git_puts_them(
    repository: Path, store: ObjectStore, command: str | None
) -> None:
    blobs = [f"{number}\n".encode() * 500 for number in range(30)]
    ids = [*put(store, *blobs[:15]), *(git_hash_object(repository, data) for data in blobs[15:])]
    entries = "".join(f"100644 blob {name}\tf{n}\n" for n, name in enumerate(ids))
    tree = git(repository, "mktree", given=entries.encode()).strip()
    git(repository, "update-ref", "refs/heads/main", git(repository, "commit-tree", tree).strip())
    if command == "unpack":
        for pack in (repository / "objects" / "pack").glob("*.pack"):
            data = pack.read_bytes()
            for path in (repository / "objects" / "pack").iterdir():
                path.unlink()
            git(repository, "unpack-objects", "-q", given=data)
    elif command:
        git(repository, *command.split())
    assert [store.read(each) for each in ids] == [("blob", data) for data in blobs]
    assert [b"".join(store.chunks(each)) for each in ids] == blobs
    assert {*ids, tree} <= set(store.ids())
    assert put(store, *blobs) == ids


def parts(size: int) -> Iterator[bytes]:
    chance = random.Random(size)
    left = size
    while left:
        part = chance.randbytes(min(left, 700_000))
        left -= len(part)
        yield part


def test_a_large_blob_is_stored_and_read_in_chunks(repository: Path, store: ObjectStore) -> None:
    size = 5 * 1024 * 1024 + 3
    content = b"".join(parts(size))
    with store.begin_pack() as batch:
        name = batch.add_blob(size, parts(size))
        assert batch.add_blob(size, parts(size)) == name
        batch.finish()
    assert name == hash_object("blob", content)
    chunks = list(store.chunks(name))
    assert b"".join(chunks) == content
    assert max(map(len, chunks)) <= 1024 * 1024
    assert git(repository, "cat-file", "-s", name).strip() == str(size)
    git(repository, "fsck", "--strict")
    assert list(store.ids()) == [name]


MEMORY = """
import resource, sys
from pathlib import Path
from weakincentives.gitstore.objects import ObjectStore
store = ObjectStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
size = 400 << 20
with store.begin_pack() as batch:
    name = batch.add_blob(size, (bytes([n & 255]) * (1 << 20) for n in range(400)))
    batch.finish()
assert sum(map(len, store.chunks(name))) == size
store.rewrite([name], store.packs())
assert sum(map(len, store.chunks(name))) == size
print("done")
"""


@pytest.mark.slow
def test_the_size_of_a_blob_does_not_bound_the_memory_needed(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, repository / "objects"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")


@pytest.mark.parametrize("length", [5, 7])
def test_a_blob_that_changes_while_it_is_read_is_not_stored(
    store: ObjectStore, length: int
) -> None:
    with store.begin_pack() as batch:
        with pytest.raises(ValueError, match="another size than 6"):
            batch.add_blob(6, [b"x" * length])
        kept = batch.add("blob", b"kept")
        batch.finish()
    assert list(store.ids()) == [kept]


@pytest.mark.parametrize(
    "name", ["", "HEAD", "a" * 39, "a" * 41, "A" * 40, "a" * 40 + "\n", "../" + "a" * 37]
)
def test_what_is_no_id_is_nothing(store: ObjectStore, name: str) -> None:
    assert not is_object_id(name)
    assert name not in store
    with pytest.raises(ObjectError, match="missing"):
        store.read(name)
    with pytest.raises(ObjectError, match="missing"):
        store.chunks(name)


def test_a_missing_object_is_told(store: ObjectStore) -> None:
    put(store, b"a")
    with pytest.raises(ObjectError, match="Object is missing: '00"):
        store.read("0" * 40)


def test_only_blobs_come_in_chunks(store: ObjectStore) -> None:
    with store.begin_pack() as batch:
        name = batch.add("tree", b"")
        batch.finish()
    with pytest.raises(ObjectError, match="is a tree, not a blob"):
        store.chunks(name)


def break_pack(repository: Path, *, seen: bool = True) -> None:
    """Change a byte in the middle of the only pack, as a program does or as a bad disk does."""
    [path] = (repository / "objects" / "pack").glob("*.pack")
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    if not seen:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("who", ["the same", "another"])
def test_what_is_damaged_is_stored_again_and_then_found(
    repository: Path, store: ObjectStore, seen: bool, who: str
) -> None:
    large = os.urandom(3_000_000)
    [name, small] = put(store, large, b"small")
    break_pack(repository, seen=seen)
    if not seen:  # only who reads it finds out
        with pytest.raises(ObjectError, match="damaged"):
            b"".join(store.chunks(name))
    next_one = store if who == "the same" else ObjectStore(repository / "objects")
    next_one.refresh(closely=True)
    assert not next_one.is_packed(name)
    assert next_one.read(small)[1] == b"small"  # what is undamaged beside it is still there
    assert put(next_one, large, b"small") == [name, small]
    store.refresh(closely=True)  # it has the file open that was changed in place
    for reader in (store, next_one, ObjectStore(repository / "objects")):
        assert b"".join(reader.chunks(name)) == large
        assert reader.is_packed(small)


def test_of_two_copies_the_undamaged_one_is_read(repository: Path, store: ObjectStore) -> None:
    large = os.urandom(3_000_000)
    [name] = put(store, large)
    [first] = store.packs()
    with store.begin_pack(rewrite=True) as batch:
        batch.add("blob", large)
        batch.add("blob", b"another name for the pack")
        batch.finish()
    for pack in store.packs():
        path = repository / "objects" / "pack" / f"{pack}.pack"
        before, data = path.stat(), path.read_bytes()
        path.write_bytes(data[:1_000_000] + bytes(10) + data[1_000_010:])
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert b"".join(ObjectStore(repository / "objects").chunks(name)) == large
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert first in store.packs()


def test_a_damaged_object_is_told_by_all_who_read_it(repository: Path, store: ObjectStore) -> None:
    [name] = put(store, os.urandom(3_000_000))
    break_pack(repository)
    with pytest.raises(ObjectError, match="damaged"):
        store.read(name)
    got: list[bytes] = []
    with pytest.raises(ObjectError, match="damaged"):
        got.extend(store.chunks(name))
    assert sum(map(len, got)) < 3_000_000


def test_content_under_another_id_is_damage(repository: Path, store: ObjectStore) -> None:
    wrong = "1" * 40
    path = repository / "objects" / "11" / wrong[2:]
    path.parent.mkdir()
    path.write_bytes(zlib.compress(b"blob 1\0a"))
    with pytest.raises(ObjectError, match="another id"):
        store.read(wrong)
    with pytest.raises(ObjectError, match="another id"):
        b"".join(store.chunks(wrong))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"garbage",
        zlib.compress(b""),
        zlib.compress(b"blob 1"),
        zlib.compress(b"blob 2\0a"),
        zlib.compress(b"blob 0\0a"),
        zlib.compress(b"blob -1\0a"),
        zlib.compress(b"blob \xb2\0a"),
        zlib.compress(b"blub 1\0a"),
        zlib.compress(b"\xff 1\0a"),
        zlib.compress(b"blob " + b"1" * 5_000 + b"\0a"),
        zlib.compress(b"blob 1\0a")[:-3],
    ],
)
def test_a_damaged_loose_object_is_told(repository: Path, store: ObjectStore, raw: bytes) -> None:
    name = hash_object("blob", b"a")
    path = repository / "objects" / name[:2] / name[2:]
    path.parent.mkdir()
    path.write_bytes(raw)
    for reading in (store.read, lambda each: b"".join(store.chunks(each))):
        with pytest.raises(ObjectError, match="damaged"):
            reading(name)


@pytest.mark.parametrize("lie", [-1, 0, 1])
def test_a_large_loose_object_is_read_in_chunks_and_measured(
    repository: Path, store: ObjectStore, lie: int
) -> None:
    content = os.urandom(3_000_000)
    name = hash_object("blob", content)
    path = repository / "objects" / name[:2] / name[2:]
    path.parent.mkdir()
    path.write_bytes(zlib.compress(b"blob %d\0" % (len(content) + lie) + content, 0))
    if lie:
        with pytest.raises(ObjectError, match="damaged"):
            b"".join(store.chunks(name))
        return
    chunks = list(store.chunks(name))
    assert b"".join(chunks) == content
    assert max(map(len, chunks)) <= 1024 * 1024


@pytest.mark.parametrize("kind", ["directory", "fifo", "link"])
def test_a_loose_object_that_is_no_file_is_refused(
    repository: Path, store: ObjectStore, kind: str
) -> None:
    name = hash_object("blob", b"a")
    path = repository / "objects" / name[:2] / name[2:]
    path.parent.mkdir()
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        (repository / "elsewhere").write_bytes(zlib.compress(b"blob 1\0a"))
        path.symlink_to(repository / "elsewhere")
    with pytest.raises(ObjectError, match="damaged"):
        store.read(name)


def test_an_undamaged_copy_is_found(repository: Path, store: ObjectStore) -> None:
    content = os.urandom(50_000)
    [name] = put(store, content)
    break_pack(repository)
    (repository / "objects" / name[:2]).mkdir()
    loose = repository / "objects" / name[:2] / name[2:]
    loose.write_bytes(zlib.compress(b"blob %d\0" % len(content) + content))
    assert store.read(name) == ("blob", content)
    store.collect([name])
    assert store.read(name) == ("blob", content)
    git(repository, "fsck", "--strict")


def test_a_damaged_pack_does_not_hide_the_others(repository: Path, store: ObjectStore) -> None:
    put(store, b"a")
    [index] = (repository / "objects" / "pack").glob("*.idx")
    index.write_bytes(b"nonsense")
    fresh = ObjectStore(repository / "objects")
    [name] = put(fresh, b"b")
    assert fresh.read(name) == ("blob", b"b")
    assert list(fresh.damaged_packs()) == [index.stem]


def test_small_packs_are_merged_and_large_ones_left(
    repository: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_SMALL_PACK", 50_000)
    large = os.urandom(60_000)
    put(store, large)
    [large_pack] = store.packs()
    contents = [b"content %d" % number for number in range(200)]
    most = 0
    for content in contents:
        put(store, content)
        store.merge_small_packs()
        most = max(most, len(store.packs()))
    assert most <= 66
    assert large_pack in store.packs()
    ids = [hash_object("blob", data) for data in contents]
    assert [store.read(each)[1] for each in ids] == contents
    assert sorted(store.ids()) == sorted([*ids, hash_object("blob", large)])
    git(repository, "fsck", "--strict")


def test_merging_stops_at_damage_and_then_leaves_it_out(
    repository: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_MAX_SMALL_PACKS", 4)
    put(store, os.urandom(1_000))
    [damaged] = store.packs()
    break_pack(repository, seen=False)
    blobs = [os.urandom(1_000) for _ in range(5)]
    ids = [put(store, blob)[0] for blob in blobs]
    before = files(repository)
    with pytest.raises(ObjectError, match="damaged"):
        store.merge_small_packs()
    assert files(repository) == before
    store.merge_small_packs()
    assert len(store.packs()) < 5
    assert damaged in store.packs()
    assert [store.read(each)[1] for each in ids] == blobs


def test_a_pack_that_a_person_wants_to_keep_is_kept(repository: Path, store: ObjectStore) -> None:
    [name] = put(store, b"a")
    [pack] = store.packs()
    (repository / "objects" / "pack" / f"{pack}.keep").touch()
    [other] = put(store, b"b")
    store.rewrite([name, other], store.packs())
    assert pack in store.packs()
    assert len(store.packs()) == 2
    store.begin_pack().__exit__()
    assert pack in store.packs()


def test_a_large_pack_without_garbage_is_not_written_again(
    repository: Path, store: ObjectStore
) -> None:
    many = put(store, *(b"%d" % each for each in range(300)))
    [large] = store.packs()
    other, garbage = put(store, b"other", b"garbage")
    store.collect([*many, other])
    assert large in store.packs()
    assert sorted(store.ids()) == sorted([*many, other])
    store.collect(many)
    assert list(store.packs()) == [large]
    store.collect(many[1:])  # a blob of it is garbage now
    assert sorted(store.ids()) == sorted(many[1:])
    assert garbage not in store.ids()
    git(repository, "fsck", "--strict")


def test_a_damaged_copy_in_a_large_pack_does_not_cost_the_other_one(
    repository: Path, store: ObjectStore
) -> None:
    content = os.urandom(50_000)
    ids = put(store, content, *(b"%d" % each for each in range(300)))
    break_pack(repository, seen=False)
    fresh = ObjectStore(repository / "objects")
    with fresh.begin_pack(rewrite=True) as batch:
        batch.add("blob", content)
        batch.finish()
    ObjectStore(repository / "objects").collect(ids)
    assert ObjectStore(repository / "objects").read(ids[0]) == ("blob", content)


def test_a_reader_goes_on_while_packs_are_rewritten(repository: Path, store: ObjectStore) -> None:
    contents = [b"%d" % number * 1_000 for number in range(200)]
    ids = put(store, *contents[:100])
    ids += put(store, *contents[100:])
    reader = ObjectStore(repository / "objects")
    stop = threading.Event()
    failures: list[Exception] = []

    def read() -> None:
        while not stop.is_set():
            for name, content in zip(ids, contents, strict=True):
                try:
                    assert reader.read(name) == ("blob", content)
                except (AssertionError, ObjectError) as error:
                    failures.append(error)
                    return
            reader.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for number in range(20):
            put(store, b"other %d" % number)
            store.rewrite(ids[number % 2 :] + ids[: number % 2], store.packs())
    finally:
        stop.set()
        thread.join()
    assert failures == []


def die_at(point: str, repository: Path, work: str) -> None:
    """Run `work` on the store in a child that is killed when it reaches `point`."""
    script = f"""
import os, signal, sys
from pathlib import Path
from weakincentives.posix import fault_hook
from weakincentives.gitstore.objects import ObjectStore
def hook(point):
    if point == {point!r}:
        os.kill(os.getpid(), signal.SIGKILL)
store = ObjectStore(Path(sys.argv[1]))
with fault_hook(hook):
{work}
"""
    done = subprocess.run([sys.executable, "-c", script, repository / "objects"], check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_batch_is_there_or_not_and_leaves_nothing(
    repository: Path, store: ObjectStore, point: str
) -> None:
    old = put(store, b"old")
    work = """
    with store.begin_pack() as batch:
        batch.add("blob", b"1")
        batch.add("blob", b"2")
        batch.finish()
"""
    die_at(point, repository, work)
    new = [hash_object("blob", data) for data in (b"1", b"2")]
    found = set(ObjectStore(repository / "objects").ids())
    assert found == ({*old, *new} if point == "objects.visible" else set(old))
    git(repository, "fsck", "--strict")
    assert put(store, b"1", b"2", b"3")[:2] == new
    assert set(store.ids()) == {*old, *new, hash_object("blob", b"3")}
    suffixes = sorted(Path(name).suffix for name in files(repository))
    assert suffixes == [".idx"] * (len(suffixes) // 2) + [".pack"] * (len(suffixes) // 2)


@pytest.mark.parametrize("point", [*POINTS, "objects.rewritten", "objects.removed"])
def test_a_killed_rewrite_loses_nothing_and_leaves_nothing(
    repository: Path, store: ObjectStore, point: str
) -> None:
    old = put(store, b"1") + put(store, b"2") + [git_hash_object(repository, b"3")]
    die_at(point, repository, f"    store.rewrite({old!r}, store.packs())\n")
    git(repository, "fsck", "--strict")
    fresh = ObjectStore(repository / "objects")
    assert [fresh.read(each)[1] for each in old] == [b"1", b"2", b"3"]
    fresh.collect(old)
    assert sorted(fresh.ids()) == sorted(old)
    assert len(files(repository)) == 2


@pytest.mark.parametrize("point", POINTS)
def test_a_batch_that_fails_is_there_or_not_and_leaves_nothing(
    repository: Path, store: ObjectStore, point: str
) -> None:
    def hook(reached: str) -> None:
        if reached == point:
            raise OSError(28, "No space left on device")

    with fault_hook(hook), pytest.raises(OSError, match="No space"):
        put(store, b"1")
    [name] = put(store, b"1")
    assert store.read(name) == ("blob", b"1")
    assert len(files(repository)) == 2


def test_data_reach_the_disk_before_names(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync = os.fsync

    def recorded(descriptor: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        steps.append("sync directory" if is_directory else "sync file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    with fault_hook(steps.append):
        put(store, b"1")
    assert steps == [
        "objects.packed",
        "objects.indexed",
        "sync file",
        "sync file",
        "objects.named",
        "objects.visible",
        "sync directory",
    ]


def test_a_store_that_need_not_be_durable_does_not_wait_for_the_disk(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int) -> None:
        raise AssertionError("fsync")

    monkeypatch.setattr(os, "fsync", refused)
    put(ObjectStore(repository / "objects", durable=False), b"1")
