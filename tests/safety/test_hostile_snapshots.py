"""Forged snapshots and stores are rejected with a reason, and nothing changes."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self
from uuid import uuid4

import pytest

from tests.filesystem.trees_on_disk import clear, lay_out
from tests.gitstore.gitcommand import git
from tests.safety.history import TWO, Stage, check
from weakincentives.errors import SnapshotError, SnapshotRestoreError, WinkError
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem
from weakincentives.filesystem.host import files as hostfile
from weakincentives.filesystem.host.snapshots import commits
from weakincentives.gitstore.pack_writer import PackTransaction
from weakincentives.gitstore.repository import Repository

MOMENT = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def stage(light_directory: Path) -> Stage:
    return Stage(light_directory)


def refused(stage: Stage, snapshot: FilesystemSnapshot, path: str = "d") -> str:
    """Check that all of a snapshot and one path of it are refused without a change; return why."""
    with stage.opened() as fs:
        with pytest.raises((WinkError, OSError)):
            fs.preview(snapshot)
        with pytest.raises(SnapshotRestoreError):
            fs.restore(snapshot, paths=[path])
        assert stage.state() == "two"
        with pytest.raises(SnapshotRestoreError) as caught:
            fs.restore(snapshot)
        assert stage.state() == "two"
    return str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        str.upper,
        lambda ref: ref[:39],
        lambda ref: ref + "^",
        lambda ref: ref + "\n",
        lambda ref: ref + "\0",
        lambda ref: f"{ref}:files",
        lambda ref: "-q",
        lambda ref: "--upload-pack=touch /tmp/x",
        lambda ref: "HEAD",
        lambda ref: "HEAD~1",
        lambda ref: "main",
        lambda ref: "refs/heads/main",
        lambda ref: "",
        lambda ref: "0" * 40,
        lambda ref: "0" * 64,
        lambda ref: "\u0660" * 40,
        lambda ref: "\udcff" * 40,
        lambda ref: "../" * 13 + "x",
        lambda ref: "mem-1",
    ],
)
def test_only_a_full_id_names_a_snapshot(stage: Stage, change: Callable[[str], str]) -> None:
    kept = stage.kept["one"]
    assert "Unknown snapshot" in refused(stage, replace(kept, commit_ref=change(kept.commit_ref)))


def test_other_objects_are_no_snapshots(stage: Stage) -> None:
    kept = stage.kept["one"]
    for place in (f"{kept.commit_ref}^{{tree}}", f"{kept.commit_ref}:files/same"):
        other = git(stage.store, "rev-parse", place).strip()
        assert "Unknown snapshot" in refused(stage, replace(kept, commit_ref=other))


@pytest.mark.parametrize(
    "place",
    ["/dev/null", "", ".", "/", "/proc/self", "/tmp", "relative", "~", "x" * 5_000, "\udcff", "\0"],
)
def test_only_a_store_of_ours_is_looked_into(stage: Stage, place: str) -> None:
    refused(stage, replace(stage.kept["one"], git_dir=place))


def test_a_link_to_another_store_is_none(stage: Stage) -> None:
    """One to our own is only another way to write its name."""
    link, other = stage.directory / "link", Stage(stage.directory / "other")
    link.symlink_to(other.store)
    elsewhere = replace(other.kept["one"], git_dir=str(link), root_path=str(stage.root))
    assert "not made by this package" in refused(stage, elsewhere)
    link.unlink()
    link.symlink_to(stage.store)
    with stage.opened() as fs:
        fs.restore(replace(stage.kept["one"], git_dir=str(link)))
    assert stage.state() == "one"


def test_a_store_of_git_is_none_of_ours(stage: Stage, light_directory: Path) -> None:
    foreign = light_directory / "foreign"
    subprocess.run(["git", "clone", "-q", "--bare", stage.store, foreign], check=True)
    assert "not made by this package" in refused(
        stage, replace(stage.kept["one"], git_dir=str(foreign))
    )


@pytest.mark.parametrize("root", ["", ".", "/", "/etc", "x" * 5_000, "~", "\0"])
def test_a_snapshot_of_another_workspace_is_refused(stage: Stage, root: str) -> None:
    with stage.opened() as fs, pytest.raises(SnapshotRestoreError):
        fs.restore(replace(stage.kept["one"], root_path=root))
    assert stage.state() == "two"


@pytest.mark.parametrize("place", ["/dev/null", "/proc/self", "/", "/dev", "/etc/hostname"])
def test_nothing_is_made_where_something_else_is(light_directory: Path, place: str) -> None:
    before = os.lstat(place)
    with HostFilesystem(light_directory, git_dir=place) as fs:
        for asked in (fs.snapshot, fs.history.list, fs.history.gc):
            with pytest.raises(SnapshotError, match=r"not made by this package|must not be in"):
                asked()
        assert fs.git_dir is None
        fs.cleanup()
    after = os.lstat(place)
    assert (after.st_mode, after.st_rdev, after.st_ino) == (
        before.st_mode,
        before.st_rdev,
        before.st_ino,
    )


@pytest.mark.parametrize("place", ["/etc/hostname/store", "/proc/self/store", "x" * 5_000])
def test_a_place_where_no_store_can_be_is_no_obstacle_before_it_is_used(
    light_directory: Path, place: str
) -> None:
    with HostFilesystem(light_directory, git_dir=place) as fs:
        fs.write("a", "works")
        with pytest.raises(SnapshotError, match="Failed to create snapshot"):
            fs.snapshot()


def test_a_place_that_cannot_be_one_is_a_mistake(light_directory: Path) -> None:
    with pytest.raises(ValueError, match="git_dir contains a NUL character"):
        HostFilesystem(light_directory, git_dir="\0")


# --- what is in the store ---


def raw(mode: bytes, name: bytes, object_id: str) -> bytes:
    return mode + b" " + name + b"\0" + bytes.fromhex(object_id)


def crafted(
    stage: Stage, files: Callable[[PackTransaction], str], manifest: bytes | None = None
) -> FilesystemSnapshot:
    """Put a snapshot into the store that we would not have made."""
    if manifest is None:
        manifest = json.dumps({"version": "1", "modes": {}, "specials": []}).encode()
    repository = Repository.open(stage.store)
    identity = uuid4()
    with repository.lock(), repository.objects.begin_pack() as batch:
        entries = raw(b"40000", b"files", files(batch))
        entries += raw(b"100644", b"manifest.json", batch.add("blob", manifest))
        tree = batch.add("tree", entries)
        ref = repository.commit(tree, snapshot_id=str(identity), created_at=MOMENT, batch=batch)
    return FilesystemSnapshot(identity, MOMENT, ref, str(stage.root), str(stage.store))


HOSTILE_TREES: dict[str, list[tuple[bytes, bytes]]] = {
    "parent": [(b"100644", b"..")],
    "parent directory": [(b"40000", b"..")],
    "self": [(b"100644", b".")],
    "empty": [(b"100644", b"")],
    "slash": [(b"100644", b"a/b")],
    "escaped parent": [(b"100644", b"%2E%2E")],
    "escaped slash": [(b"100644", b"a%2Fb")],
    "escaped NUL": [(b"100644", b"a%00b")],
    "needless escape": [(b"100644", b"%41")],
    "lower-case escape": [(b"100644", b"%2egit")],
    "plain .git": [(b"40000", b".git")],
    "twice": [(b"100644", b"a"), (b"100644", b"a")],
    "unsorted": [(b"100644", b"b"), (b"100644", b"a")],
    "file and directory": [(b"100644", b"a"), (b"40000", b"a")],
    "submodule": [(b"160000", b"a")],
    "setuid": [(b"104755", b"a")],
    "fifo": [(b"10644", b"a")],
    "zero-padded": [(b"040000", b"a")],
}


@pytest.mark.parametrize("case", HOSTILE_TREES)
def test_a_tree_that_we_did_not_write_is_refused(stage: Stage, case: str) -> None:
    def files(batch: PackTransaction) -> str:
        blob, empty = batch.add("blob", b"evil"), batch.add("tree", b"")
        ids = {b"40000": empty, b"040000": empty}
        entries = [raw(mode, name, ids.get(mode, blob)) for mode, name in HOSTILE_TREES[case]]
        inner = batch.add("tree", b"".join(entries))
        return batch.add("tree", raw(b"40000", b"inner", inner))

    refused(stage, crafted(stage, files), "inner")


def one_file(batch: PackTransaction) -> str:
    return batch.add("tree", raw(b"100644", b"a", batch.add("blob", b"evil")))


MANIFEST = {"version": "1", "modes": {}, "specials": []}
HOSTILE_MANIFESTS: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "nested": b"[" * 100_000,
    "modes of text": json.dumps(MANIFEST | {"modes": {"a": "0644"}}).encode(),
    "modes in a list": json.dumps(MANIFEST | {"modes": ["a"]}).encode(),
    "specials of numbers": json.dumps(MANIFEST | {"specials": [1]}).encode(),
    "not UTF-8": b'{"version": "1", "modes": {"\xff": 1}, "specials": []}',
}


@pytest.mark.parametrize("case", HOSTILE_MANIFESTS)
def test_a_manifest_that_we_did_not_write_is_refused(stage: Stage, case: str) -> None:
    refused(stage, crafted(stage, one_file, HOSTILE_MANIFESTS[case]))


ODD_MANIFESTS: dict[str, dict[str, object]] = {
    "too large": {"modes": {"a": 2**40}},
    "far too large": {"modes": {"a": 2**80}},
    "negative": {"modes": {"a": -1}},
    "kind": {"modes": {"a": 0o40755}},
    "outside": {"modes": {"../outside": 0o777, "/etc/passwd": 0o777, "..": 0o777, "": 0}},
    "missing": {"modes": {"missing": 0o777, "a/below": 0o777}},
    "specials": {"specials": ["../outside", "/dev/null", "a", "", ".."]},
}


@pytest.mark.parametrize("case", ODD_MANIFESTS)
def test_what_a_manifest_says_stays_inside(stage: Stage, case: str) -> None:
    """It is refused, or no more than permissions of what is inside comes of it."""
    outside = stage.directory / "outside"
    outside.write_bytes(b"")
    outside.chmod(0o600)
    snapshot = crafted(stage, one_file, json.dumps(MANIFEST | ODD_MANIFESTS[case]).encode())
    with stage.opened() as fs:
        try:
            fs.restore(snapshot)
        except SnapshotRestoreError:
            assert stage.state() == "two"
        else:
            assert [path.name for path in stage.root.iterdir()] == ["a"]
            assert (stage.root / "a").read_bytes() == b"evil"
        fs.restore(stage.kept["two"])
    assert outside.stat().st_mode & 0o777 == 0o600
    assert stage.root.stat().st_mode & 0o777 != 0
    check(stage, "restore")


def take_apart(stage: Stage) -> list[str]:
    """Let git take the packs apart; return where in the store the objects are."""
    packs = stage.store / "objects" / "pack"
    for pack in list(packs.glob("*.pack")):
        data = pack.read_bytes()
        for path in packs.glob(f"{pack.stem}.*"):
            path.unlink()
        git(stage.store, "unpack-objects", "-q", given=data)
    return [str(path.relative_to(stage.store)) for path in stage.store.glob("objects/??/*")]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "flipped", "cut", "replaced", "no file"])
def test_a_damaged_object_stops_a_restore_before_anything_changes(
    stage: Stage, damage: str
) -> None:
    objects = take_apart(stage)
    whole = stage.directory / "whole"
    shutil.copytree(stage.store, whole)
    stopped = 0
    for number, name in enumerate(objects):
        shutil.rmtree(stage.store)
        shutil.copytree(whole, stage.store)
        spoil(stage.store / name, stage.store / objects[number - 1], damage)
        with stage.opened() as fs:
            try:
                fs.restore(stage.kept["one"])
            except SnapshotRestoreError:
                stopped += 1
                assert stage.state() == "two", name
            else:
                assert stage.state() == "one", name
        lay_out_again(stage)
    assert len(objects) > 30
    assert 20 < stopped < len(objects)  # what both states hold is not looked at


def spoil(path: Path, other: Path, damage: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if damage == "flipped":
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 0x10]) + data[-2:])
    elif damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "replaced":
        shutil.copy(other, path)
    elif damage == "no file":
        path.mkdir()


def test_whatever_somebody_removes_from_the_store_the_next_snapshot_is_whole(stage: Stage) -> None:
    """As those do who clean up the temporary directory."""
    whole = stage.directory / "whole"
    shutil.copytree(stage.store, whole)
    names = sorted(str(path.relative_to(whole)) for path in whole.rglob("*"))
    taken = 0
    for name in names:
        shutil.rmtree(stage.store)
        shutil.copytree(whole, stage.store)
        gone = stage.store / name
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        with suppress(SnapshotRestoreError), stage.opened() as fs:
            fs.restore(stage.kept["one"])
            assert stage.state() == "one", name
        lay_out_again(stage)
        with suppress(SnapshotError), stage.opened() as fs:
            kept = fs.snapshot()
            clear(stage.root)
            fs.restore(kept)
            taken += 1
        assert stage.state() == "two", name
    assert taken > len(names) // 2
    assert len(names) > 15


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "of a directory", "a link"])
def test_a_damaged_index_changes_nothing_that_is_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """It is only what somebody has seen before."""
    monkeypatch.setattr(hostfile, "_RACY_NS", 0)  # as if all of this were long ago
    stage.opened().close()
    with stage.opened() as fs:
        expected = tree_of(stage, fs.snapshot())
    index = stage.store / "wink-index"
    data = index.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 40)):
        spoil_index(index, data, at, damage)
        (stage.root / "changed").write_bytes(b"other")
        with stage.opened() as fs:
            assert tree_of(stage, fs.snapshot()) != expected, at
        spoil_index(index, data, at, damage)
        lay_out_again(stage)
        with stage.opened() as fs:
            assert tree_of(stage, fs.snapshot()) == expected, at
    check(stage, "snapshot")


def tree_of(stage: Stage, snapshot: FilesystemSnapshot) -> str:
    return Repository.open(stage.store).read_commit(snapshot.commit_ref).tree


def lay_out_again(stage: Stage) -> None:
    clear(stage.root)
    lay_out(stage.root, TWO)


def spoil_index(index: Path, data: bytes, at: int, damage: str) -> None:
    if index.is_dir():
        index.rmdir()
    index.unlink(missing_ok=True)
    if damage == "flipped":
        index.write_bytes(data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :])
    elif damage == "cut":
        index.write_bytes(data[:at])
    elif damage == "longer":
        index.write_bytes(data[:at] + b"\x00" + data[at:])
    elif damage == "of a directory":
        index.mkdir()
    else:
        index.symlink_to("/dev/null")


def test_the_order_is_that_of_taking_whatever_the_clock_says(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [0, 2, -3, 1, -1]
    times = iter([MOMENT + timedelta(days=day) for day in days])

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(next(times).timestamp(), tz)

    monkeypatch.setattr(commits, "datetime", Clock)
    with stage.opened() as fs:
        taken = [fs.snapshot(tag="by the clock") for _ in days]
        listed = [each for each in fs.history.list() if each.tag == "by the clock"]
        assert [each.commit_ref for each in listed] == [each.commit_ref for each in taken]
        assert [each.created_at.day for each in listed] == [2, 4, 30, 3, 1]
