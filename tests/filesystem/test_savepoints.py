"""Savepoints on the host and in memory: the same in both, and exact on the disk."""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.filesystem.trees_on_disk import State, difference, state_of
from tests.safety.places import temporary, temporary_names
from tests.sizes import size
from weakincentives.filesystem import (
    BaseFilesystem,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    Savepoint,
    SavepointError,
    TimeLimitError,
    diff,
)
from weakincentives.filesystem.base import open_savepoint
from weakincentives.filesystem.testing import Operation, Pair
from weakincentives.filesystem.testing.changes import change_sample, write_sample
from weakincentives.filesystem.testing.contract import read_state as visible_state
from weakincentives.filesystem.testing.strategies import draw_operation
from weakincentives.history import slots
from weakincentives.posix import RESERVED_PREFIX, fault_hook

GUARD = 60.0
"""Seconds that only a thread takes that waits forever."""

Undoable: TypeAlias = InMemoryFilesystem | HostFilesystem


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.fixture
def host(root: Path, tmp_path: Path) -> Iterator[HostFilesystem]:
    with HostFilesystem(root, git_dir=tmp_path / "store") as fs:
        yield fs


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest) -> Undoable:
    if request.param == "memory":
        return InMemoryFilesystem()
    return request.getfixturevalue("host")


# --- any operations, any nesting ---

PATHS = ("a", "b", "a/x", "a/y", "b/x", "a/x/p", "a/d", "a/d/q", "b/x/r", "c", "c/x")


@dataclass(frozen=True)
class End:
    """Ends the savepoint that has so many open inside it."""

    inside: int
    releases: bool


BEGIN = "begin"
Step: TypeAlias = Operation | End | str


def _changes() -> st.SearchStrategy[Operation]:
    path, flag = st.sampled_from(PATHS), st.booleans()
    pair = {"source": path, "destination": path, "overwrite": flag}
    text = st.sampled_from(["1", "22", "333"])
    mode = st.sampled_from(["overwrite", "append", "create"])
    tables: dict[str, dict[str, st.SearchStrategy[object]]] = {
        "write": {"path": path, "content": text, "mode": mode, "create_parents": st.just(True)},
        "delete": {"path": path, "recursive": st.just(True)},
        "mkdir": {"path": path, "parents": st.just(True), "exist_ok": flag},
        "move": pair,
        "copy": pair,
        "link": {"path": path, "target": text},
    }
    weights = ["write", "write", "delete", "move", "move", "move", "copy", "mkdir", "link"]
    return st.sampled_from(weights).flatmap(
        lambda name: st.builds(Operation, st.just(name), st.fixed_dictionaries(tables[name]))
    )


STEPS = st.one_of(
    _changes(),
    _changes(),
    _changes(),
    _changes(),
    st.just(BEGIN),
    st.builds(End, st.sampled_from([0, 0, 0, 1, 2]), st.booleans()),
)


def on_disk(root: Path) -> State:
    """Return what is below `root`, as the kernel tells it, without what is ours."""
    hidden = os.fsencode(RESERVED_PREFIX)
    return {path: entry for path, entry in state_of(root).items() if hidden not in path}


class Twins:
    """The same in memory and on the host, with savepoints open in both."""

    def __init__(self, root: Path, store: Path) -> None:
        self.root = root
        self.sides = (InMemoryFilesystem(), HostFilesystem(root, git_dir=store))
        self.pair = Pair(*self.sides)
        self.open: list[tuple[list[Savepoint], State]] = []

    def perform(self, step: Step) -> None:
        if isinstance(step, Operation):
            self.pair.perform(step)
        elif isinstance(step, End):
            self.end(step)
        else:
            self.open.append(([side.savepoint() for side in self.sides], on_disk(self.root)))

    def end(self, step: End) -> None:
        if step.inside >= len(self.open):
            return
        savepoints, before = self.open[-1 - step.inside]
        del self.open[-1 - step.inside :]
        for savepoint in savepoints:
            savepoint.release() if step.releases else savepoint.rollback()
        for side in self.pair._sides:
            side.events.clear()
        found = on_disk(self.root)
        assert step.releases or found == before, difference(found, before)
        assert self.open or temporary_names(self.root) == []

    def finish(self) -> None:
        self.pair.compare_trees()
        expected = self.open[0][1] if self.open else on_disk(self.root)
        self.pair.close()  # which takes back what is open
        found = state_of(self.root)
        assert found == expected, difference(found, expected)


@given(st.lists(STEPS, max_size=40))
@settings(max_examples=size(200, 2_000))
def test_a_rollback_gives_exactly_the_state_before_and_both_backends_agree(
    steps: list[Step],
) -> None:
    with temporary(light=True) as place:
        (place / "root").mkdir()
        twins = Twins(place / "root", place / "store")
        for step in steps:
            twins.perform(step)
        twins.finish()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_any_operation_is_taken_back_whole_states_and_strange_names_included(seed: int) -> None:
    choice = Random(seed)
    with temporary(light=True) as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # no power is lost here
        (place / "root").mkdir()
        twins = Twins(place / "root", place / "store")
        for _ in range(150):
            kind = choice.random()
            if kind < 0.08:
                twins.perform(BEGIN)
            elif kind < 0.16:
                twins.perform(End(choice.choice([0, 0, 1, 2]), choice.random() < 0.5))
            else:
                known = tuple(twins.pair.known)
                states = (False, False, False, True)
                twins.perform(draw_operation(choice.choice, known=known, states=states))
        twins.finish()


# --- whole states inside a savepoint ---


def _import(fs: Undoable, place: Path) -> None:
    with InMemoryFilesystem() as other:
        other.write("imported/file", "new")
        other.export_archive(place / "a.zip")
    fs.import_archive(place / "a.zip")


def _mount(fs: Undoable, place: Path) -> None:
    (place / "mount").mkdir()
    for name in ("README.md", "new"):
        (place / "mount" / name).write_text("mounted")
    fs.hydrate_from_host(HostMount(str(place / "mount"), "."), allowed_roots=[str(place)])


REPLACING: dict[str, Callable[[Undoable, Path], object]] = {
    "restore": lambda fs, place: fs.restore(fs.snapshot()),
    "import": _import,
    "mount": _mount,
}


@pytest.mark.parametrize("replace", REPLACING.values(), ids=REPLACING)
def test_what_replaces_many_files_is_taken_back_too(
    fs: Undoable, tmp_path: Path, replace: Callable[[Undoable, Path], object]
) -> None:
    write_sample(fs)
    before = visible_state(fs)
    savepoint = fs.savepoint()
    fs.write("README.md", "changed")
    replace(fs, tmp_path)
    fs.write("README.md", "changed again")
    fs.write("late/file", "")
    savepoint.rollback()
    assert visible_state(fs) == before


@pytest.mark.parametrize("paths", [None, ["src", "README.md"]])
def test_a_restore_to_an_earlier_state_is_taken_back(fs: Undoable, paths: list[str] | None) -> None:
    write_sample(fs)
    kept = fs.snapshot()
    change_sample(fs)
    before = visible_state(fs)
    outer = fs.savepoint()
    fs.write("outer", "")
    between = visible_state(fs)
    inner = fs.savepoint()
    fs.delete("vendor")
    fs.restore(kept, paths=paths)
    fs.write("src/main.py", "later")
    inner.rollback()
    assert visible_state(fs) == between
    with fs.savepoint():
        fs.restore(kept, paths=paths)
    fs.move("src", "moved")
    outer.rollback()
    assert visible_state(fs) == before


def test_a_snapshot_outlives_the_rollback_of_what_it_keeps(fs: Undoable) -> None:
    fs.write("file", "old")
    savepoint = fs.savepoint()
    fs.write("file", "new")
    kept = fs.snapshot()
    savepoint.rollback()
    assert fs.read("file").content == "old"
    fs.restore(kept)
    assert fs.read("file").content == "new"


def test_an_exclusive_host_knows_what_a_rollback_has_changed(root: Path, tmp_path: Path) -> None:
    with HostFilesystem(root, git_dir=tmp_path / "store", exclusive=True) as fs:
        write_sample(fs)
        first = fs.snapshot()
        savepoint = fs.savepoint()
        change_sample(fs)
        fs.move("src", "moved")
        fs.snapshot()
        savepoint.rollback()
        second = fs.snapshot()
        fs.invalidate()
        third = fs.snapshot()
        assert not diff(fs.view(first), fs.view(second))
        assert not diff(fs.view(second), fs.view(third))


def test_snapshots_are_not_removed_under_a_savepoint(host: HostFilesystem) -> None:
    kept = host.snapshot()
    with host.savepoint(), pytest.raises(SavepointError, match="savepoint is open"):
        host.cleanup()
    host.restore(kept)


# --- on the disk ---


def test_reading_in_a_savepoint_leaves_the_disk_alone(host: HostFilesystem, root: Path) -> None:
    host.write("file", "text")
    before = root.stat().st_mtime_ns
    with host.savepoint():
        host.read("file")
        host.grep("t")
        assert temporary_names(root) == []
    assert root.stat().st_mtime_ns == before


def test_what_is_kept_is_private_out_of_sight_and_gone_at_the_end(
    host: HostFilesystem, root: Path, tmp_path: Path
) -> None:
    host.write("dir/file", "old")
    with host.savepoint():
        host.write("dir/file", "new")
        host.delete("dir", recursive=True)
        host.write("other", "")
        [journal] = temporary_names(root)
        assert stat.S_IMODE((root / journal).stat().st_mode) == 0o700
        assert [entry.name for entry in host.list()] == ["other"]
        assert [match.path for match in host.glob("**")] == ["other"]
        assert host.grep("old") == ()
        assert visible_state(host.view(host.snapshot())).keys() == {"other"}
        assert host.export_archive(tmp_path / "a.zip") == 1
        report = InMemoryFilesystem().hydrate_from_host(
            HostMount(str(root)), allowed_roots=[str(root)]
        )
        assert report.file_count == 1
    assert temporary_names(root) == []


def test_the_very_same_file_comes_back(host: HostFilesystem, root: Path) -> None:
    for path in ("changed", "deleted", "moved", "dir/below"):
        host.write(path, "text")
    os.link(root / "changed", root / "twin")
    paths = [root / path for path in ("changed", "deleted", "moved", "dir/below", "dir")]
    before = [path.stat() for path in paths]
    savepoint = host.savepoint()
    host.write("changed", "new")
    host.delete("deleted")
    host.move("moved", "changed", overwrite=True)
    host.delete("dir", recursive=True)
    savepoint.rollback()
    after = [path.stat() for path in paths]
    for name in ("st_ino", "st_mode", "st_mtime_ns", "st_uid", "st_gid", "st_nlink"):
        assert [getattr(each, name) for each in after] == [getattr(each, name) for each in before]


def test_pipes_come_back(host: HostFilesystem, root: Path) -> None:
    os.mkfifo(root / "pipe", 0o640)
    (root / "dir").mkdir()
    os.mkfifo(root / "dir" / "pipe")
    before = state_of(root)
    savepoint = host.savepoint()
    host.move("pipe", "elsewhere")
    host.delete("elsewhere")
    host.delete("dir", recursive=True)
    savepoint.rollback()
    assert state_of(root) == before


def test_a_save_of_somebody_else_stays_and_the_file_before_is_kept_beside_it(
    host: HostFilesystem, root: Path
) -> None:
    host.write("file", "old")
    savepoint = host.savepoint()
    host.write("file", "new")
    (root / "file").write_text("somebody else, in place")
    [kept] = savepoint.rollback()
    assert host.read("file").content == "somebody else, in place"
    assert host.kept_changes == (kept,)
    assert (kept.path, host.read(kept.other).content) == ("file", "old")
    assert str(kept) == (
        "file was saved in the meantime and was left alone;"
        " the other version is kept as file.wink-kept"
    )


@pytest.mark.parametrize("code", [errno.EPERM, errno.EMLINK, errno.EXDEV])
def test_where_a_file_can_have_one_name_only_it_is_copied(
    host: HostFilesystem, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    host.write("file", "text")
    host.write("moved", "text")
    (root / "file").chmod(0o640)
    os.utime(root / "file", ns=(1, 2))
    (root / "link").symlink_to("file")
    before = state_of(root)
    monkeypatch.setattr(os, "link", refuse)
    savepoint = host.savepoint()
    host.write("file", "new")
    host.move("moved", "new")
    host.copy("new", "other")
    host.delete("link")
    savepoint.rollback()
    assert state_of(root) == before
    assert (root / "file").stat().st_mtime_ns == 2


def test_what_was_in_a_directory_that_somebody_removed_is_kept_above_it(
    host: HostFilesystem, root: Path
) -> None:
    host.write("a/b/file", "old")
    savepoint = host.savepoint()
    host.write("a/b/file", "new")
    shutil.rmtree(root / "a")
    (root / "a").write_text("in the way")
    savepoint.rollback()
    assert host.read("a").content == "in the way"
    [kept] = host.kept_changes
    assert kept.path == "a/b/file"
    assert host.read(kept.other).content == "old"


def test_what_somebody_made_in_the_last_moment_is_not_taken_for_ours(
    host: HostFilesystem, root: Path
) -> None:
    """Another process makes the directory after we have found that there is none."""
    savepoint = host.savepoint()

    def make(point: str) -> None:
        if point == "journal.recorded":
            (root / "new" / "theirs").mkdir(parents=True, exist_ok=True)

    with fault_hook(make):
        host.write("new/ours", "")
    assert on_disk(root).keys() == {b"new", b"new/ours", b"new/theirs"}
    savepoint.rollback()
    assert on_disk(root).keys() == {b"new", b"new/theirs"}


def test_closing_takes_back_what_is_open(fs: Undoable, tmp_path: Path) -> None:
    fs.write("file", "old")
    outer = fs.savepoint()
    fs.write("file", "new")
    inner = fs.savepoint()
    fs.delete("file")
    fs.close()
    for each in (inner, outer):
        with pytest.raises(SavepointError, match="has ended"):
            each.release()
    if isinstance(fs, HostFilesystem):
        assert (tmp_path / "root" / "file").read_text() == "old"
        assert temporary_names(tmp_path / "root") == []
    else:
        assert fs.read("file").content == "old"


class Announced:
    """A mutex of a filesystem, which says when a thread is about to wait for it, once."""

    def __init__(self, fs: InMemoryFilesystem) -> None:
        self.fs, self.mutex, self.is_awaited = fs, fs._lock.mutex, Event()
        fs._lock.mutex = self  # pyright: ignore[reportAttributeAccessIssue] # it is put back

    def __enter__(self) -> None:
        self.fs._lock.mutex = self.mutex
        self.is_awaited.set()
        self.mutex.acquire()

    def __exit__(self, *_: object) -> None:
        self.mutex.release()


@contextmanager
def closed_meanwhile(fs: InMemoryFilesystem) -> Iterator[None]:
    """Close a filesystem in another thread, while the first thing that is done to it waits."""
    holds, announced = Event(), list[Announced]()

    def close() -> None:
        with fs._lock.mutex:
            announced.append(Announced(fs))
            holds.set()
            assert announced[0].is_awaited.wait(GUARD)
            fs.close()

    closing = Thread(target=close, daemon=True)
    closing.start()
    assert holds.wait(GUARD)
    yield
    closing.join(GUARD)
    assert not closing.is_alive()


def test_a_savepoint_that_begins_while_another_thread_closes_is_a_whole_one() -> None:
    fs = InMemoryFilesystem()
    outer = fs.savepoint()
    fs.write("file", "outer")
    with closed_meanwhile(fs):
        inner = fs.savepoint()
    assert (outer.is_open, inner.is_open) == (False, True)
    fs.write("file", "inner")
    assert inner.changed
    inner.rollback()
    assert not fs.exists("file")
    assert not fs._lock.savepoints


@pytest.mark.parametrize("end", [Savepoint.release, Savepoint.rollback, Savepoint.abandon])
def test_a_savepoint_that_ends_while_another_thread_closes_says_so(
    end: Callable[[Savepoint], None],
) -> None:
    fs = InMemoryFilesystem()
    savepoint = fs.savepoint()
    fs.write("file", "")
    expected = nullcontext() if end is Savepoint.abandon else pytest.raises(SavepointError)
    with closed_meanwhile(fs), expected:
        end(savepoint)
    assert not fs.exists("file")


def test_a_forked_process_cannot_use_the_savepoint(host: HostFilesystem, root: Path) -> None:
    host.write("file", "old")
    with host.savepoint() as savepoint:
        host.write("file", "new")
        child = os.fork()
        if child == 0:
            try:
                host.write("other", "")
            except SavepointError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        savepoint.rollback()
    assert state_of(root).keys() == {b"file"}
    assert host.read("file").content == "old"


# --- a disk that fails ---


def test_a_rollback_that_fails_is_finished_before_the_next_change(
    host: HostFilesystem, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    host.write("one", "old")
    host.write("two", "old")
    before = on_disk(root)
    savepoint = host.savepoint()
    host.write("one", "new")
    host.write("two", "new")
    with monkeypatch.context() as patch:
        patch.setattr(slots, "exchange", fail)
        with pytest.raises(SavepointError, match="Failed to roll back all"):
            savepoint.rollback()
        for use in (lambda: host.mkdir("three"), host.savepoint, host.snapshot):
            with pytest.raises(SavepointError, match="Failed to roll back all"):
                use()
    host.mkdir("three")
    assert on_disk(root) == before | {b"three": (stat.S_IFDIR | 0o755, b"")}
    assert temporary_names(root) == []


@pytest.mark.parametrize("is_reported", [False, True])
def test_a_release_that_fails_is_rolled_back(
    host: HostFilesystem, root: Path, monkeypatch: pytest.MonkeyPatch, *, is_reported: bool
) -> None:
    write, unlink = os.pwrite, os.unlink

    def fail(descriptor: int, data: bytes, offset: int) -> int:
        if b"released" in data:
            monkeypatch.undo()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(descriptor, data, offset)

    def fail_to_remove(path: str, *, dir_fd: int) -> None:
        if path == ".gitignore":
            monkeypatch.undo()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        unlink(path, dir_fd=dir_fd)

    host.write("file", "old")
    if is_reported:
        host.subscribe_changes(lambda _: None)
    monkeypatch.setattr(os, "pwrite", fail)
    monkeypatch.setattr(os, "unlink", fail_to_remove)
    with pytest.raises(OSError, match="Input/output"), host.savepoint():
        host.write("file", "new")
    assert host.read("file").content == "old"
    assert temporary_names(root) == []


def test_a_full_disk_fails_the_change_and_not_the_savepoint(
    host: HostFilesystem, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    host.write("file", "old")
    with host.savepoint():
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fail)
            with pytest.raises(OSError, match="No space"):
                host.write("file", "new")
        assert host.read("file").content == "old"
        host.write("file", "newer")
    assert host.read("file").content == "newer"
    assert temporary_names(root) == []


# --- the write lock ---


def test_who_waits_for_a_savepoint_that_never_ends_is_told_so(fs: Undoable) -> None:
    fs._lock._timeout = 0
    told = pytest.raises(TimeLimitError, match="another thread to end its savepoint")
    with fs.savepoint(), ThreadPoolExecutor(1) as pool, told:
        pool.submit(fs.write, "file", "").result()
    assert not fs.exists("file")


def test_the_base_class_promises_no_savepoints() -> None:
    assert not hasattr(BaseFilesystem, "savepoint")
    assert open_savepoint(object()) is None


def test_an_interrupt_before_a_rollback_leaves_the_savepoint_open(
    fs: Undoable, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint, storage = fs.savepoint(), fs._savepoint_storage()
    fs.write("file", "")

    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(type(storage), "rollback", interrupt)
    with pytest.raises(KeyboardInterrupt):
        savepoint.rollback()
    assert savepoint.is_open
    savepoint.rollback()
    assert not fs.exists("file")
    fs.write("later", "")
    with pytest.raises(ZeroDivisionError), fs.savepoint():
        fs.write("file", str(1 // 0))
    assert fs.exists("later")
    assert not fs._lock.is_claimed


def test_a_savepoint_that_is_lost_is_rolled_back(fs: Undoable) -> None:
    """As one that an interrupt takes from its owner."""
    fs.write("file", "old")
    lost = fs.savepoint()
    fs.write("file", "new")
    del lost
    assert fs.read("file").content == "old"
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fs.write, "file", "next").result(5)
    assert fs.read("file").content == "next"


def test_a_hold_that_is_lost_is_released(fs: Undoable) -> None:
    held = fs.hold()
    assert fs._lock.is_held
    del held
    with ThreadPoolExecutor(1) as pool:
        pool.submit(fs.write, "file", "next").result(5)


def test_what_is_appended_to_what_a_rollback_displaces_is_kept(
    host: HostFilesystem, root: Path
) -> None:
    host.write("file", "old")
    savepoint = host.savepoint()
    host.write("file", "agent\n")
    with (root / "file").open("a") as opened:
        savepoint.rollback()
        opened.write("mine")
    assert any("mine" in each.read_text() for each in root.glob("*") if each.is_file())
