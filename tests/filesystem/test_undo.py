"""Undo of one change: `restore` with the state that is expected, on every backend."""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.posix.forks import is_killed_at
from weakincentives.errors import StaleRestoreError
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem
from weakincentives.filesystem.host.snapshots import commits
from weakincentives.filesystem.host.snapshots.store import CallStates
from weakincentives.history import PathChange
from weakincentives.posix import fault_hook

Files = HostFilesystem | InMemoryFilesystem
OLD, NEW, MINE = "old ", "new ", "mine"  # of the same length: sizes tell nothing


@pytest.fixture(params=["memory", "host", "exclusive"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    if request.param == "memory":
        yield InMemoryFilesystem()
        return
    (tmp_path / "root").mkdir()
    git_dir, is_exclusive = tmp_path / "store", request.param == "exclusive"
    with HostFilesystem(tmp_path / "root", git_dir=git_dir, exclusive=is_exclusive) as made:
        yield made


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostFilesystem]:
    (tmp_path / "root").mkdir()
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as made:
        yield made


def contents(fs: Files) -> dict[str, str]:
    return {each.path: fs.read(each.path).content for each in fs.glob("**")}


def test_only_the_change_is_undone_and_later_ones_stay(fs: Files) -> None:
    fs.write("a", OLD)
    fs.write("d/b", OLD)
    before = fs.snapshot()
    fs.write("a", NEW)
    fs.write("d/new", NEW)
    fs.delete("d/b")
    after = fs.snapshot()
    fs.write("d/later", MINE)
    fs.write("other", MINE)
    fs.restore(before, expect=after)
    assert contents(fs) == {"a": OLD, "d/b": OLD, "d/later": MINE, "other": MINE}


def test_a_later_change_of_the_same_path_is_named_and_nothing_changes(fs: Files) -> None:
    for name in "abc":
        fs.write(name, OLD)
    before = fs.snapshot()
    for name in "abc":
        fs.write(name, NEW)
    after = fs.snapshot()
    fs.write("b", MINE)
    fs.delete("c")
    with pytest.raises(StaleRestoreError) as raised:
        fs.restore(before, expect=after)
    assert raised.value.paths == ("b", "c")
    assert contents(fs) == {"a": NEW, "b": MINE}
    fs.restore(before, expect=after, paths=["a"])
    assert contents(fs) == {"a": OLD, "b": MINE}


def test_a_new_directory_that_others_use_is_not_removed(fs: Files) -> None:
    before = fs.snapshot()
    fs.write("d/new", NEW)
    after = fs.snapshot()
    fs.write("d/later", MINE)
    with pytest.raises(StaleRestoreError):
        fs.restore(before, expect=after)
    assert contents(fs) == {"d/new": NEW, "d/later": MINE}


def test_an_undo_is_redone_by_its_inverse(fs: Files) -> None:
    fs.write("a", OLD)
    before = fs.snapshot()
    fs.delete("a")
    fs.write("d/e/f", NEW)
    after = fs.snapshot()
    fs.restore(before, expect=after)
    assert contents(fs) == {"a": OLD}
    assert not fs.exists("d")
    fs.restore(after, expect=before)
    assert contents(fs) == {"d/e/f": NEW}


def test_a_file_whose_directory_somebody_removed_is_named_and_not_forgotten(fs: Files) -> None:
    fs.write("d/a", OLD)
    fs.write("d/b", OLD)
    before = fs.snapshot()
    fs.delete("d/a")
    after = fs.snapshot()
    fs.delete("d", recursive=True)
    with pytest.raises(StaleRestoreError) as raised:
        fs.restore(before, expect=after)
    assert raised.value.paths == ("d/a",)
    assert contents(fs) == {}


def test_only_the_directory_that_others_use_is_named(fs: Files) -> None:
    before = fs.snapshot()
    fs.write("d/e/new", NEW)
    after = fs.snapshot()
    fs.write("d/e/later", MINE)
    with pytest.raises(StaleRestoreError) as raised:
        fs.restore(before, expect=after)
    assert raised.value.paths == ("d/e",)


def test_a_directory_replaced_by_a_file_comes_back_and_goes_again(fs: Files) -> None:
    fs.write("d/e/f", OLD)
    before = fs.snapshot()
    fs.delete("d", recursive=True)
    fs.write("d", NEW)
    after = fs.snapshot()
    fs.write("other", MINE)
    fs.restore(before, expect=after)
    assert contents(fs) == {"d/e/f": OLD, "other": MINE}
    fs.restore(after, expect=before)
    assert contents(fs) == {"d": NEW, "other": MINE}


def replace_file(path: Path) -> None:
    draft = path.with_name("draft")
    draft.write_text(MINE)
    draft.replace(path)


def write_in_place(path: Path) -> None:
    path.write_text(MINE)


def keep_the_times(path: Path) -> None:
    found = path.stat()
    path.write_text(MINE)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


SAVES = [replace_file, write_in_place, keep_the_times]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("point", ["change.staged", "change.recorded", "change.exchanged"])
def test_a_save_while_an_undo_runs_is_at_its_path(
    host: HostFilesystem, tmp_path: Path, save: Callable[[Path], None], point: str
) -> None:
    host.write("a", OLD)
    before = host.snapshot()
    host.write("a", NEW)
    after = host.snapshot()
    pending = [point]

    def hook(name: str) -> None:
        if [name] == pending:
            pending.clear()
            save(tmp_path / "root" / "a")

    is_too_late = point == "change.exchanged"
    with fault_hook(hook), nullcontext() if is_too_late else pytest.raises(StaleRestoreError):
        host.restore(before, expect=after)
    assert contents(host) == {"a": MINE}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("point", ["change.staged", "change.recorded"])
def test_a_save_while_a_restore_runs_is_kept_in_a_snapshot(
    host: HostFilesystem, tmp_path: Path, save: Callable[[Path], None], point: str
) -> None:
    host.write("a", OLD)
    kept = host.snapshot()
    host.write("a", NEW)
    pending = [point]

    def hook(name: str) -> None:
        if [name] == pending:
            pending.clear()
            save(tmp_path / "root" / "a")

    with fault_hook(hook):
        host.restore(kept)
    assert contents(host) == {"a": OLD}
    assert host.displaced is not None
    assert host.view(host.displaced).read("a").content == MINE
    host.restore(host.displaced, paths=["a"])
    assert contents(host) == {"a": MINE}


def test_what_is_written_to_a_displaced_file_is_kept_beside_it(
    host: HostFilesystem, tmp_path: Path
) -> None:
    host.write("a", OLD)
    kept = host.snapshot()
    host.write("a", NEW)
    with (tmp_path / "root" / "a").open("a") as opened:
        host.restore(kept)
        opened.write("more")
    assert contents(host) == {"a": OLD, "a.wink-kept": NEW + "more"}


@pytest.mark.parametrize("point", ["change.recorded", "change.exchanged", "change.done"])
def test_a_save_after_a_kill_is_left_alone(
    host: HostFilesystem, tmp_path: Path, point: str
) -> None:
    for name in "ab":
        host.write(name, OLD)
    kept = host.snapshot()
    for name in "ab":
        host.write(name, NEW)
    assert is_killed_at(point, lambda: host.restore(kept))
    (tmp_path / "root" / "a").write_text(MINE)  # at once: no delay decides
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as following:
        assert contents(following) == {"a": MINE, "b": OLD}


def test_a_call_is_recorded_from_its_changes_alone(host: HostFilesystem, tmp_path: Path) -> None:
    root = tmp_path / "root"
    host.write("a", OLD)
    host.write("d/b", OLD)
    start = host.snapshot()
    found: list[CallStates] = []
    host.subscribe_changes(lambda changes: found.append(host.record_changes(changes)))
    (root / "unseen").write_text(MINE)  # nobody looks there
    with host.savepoint():
        host.write("a", NEW)
        host.write("new/c", NEW)
        host.delete("d/b")
    (states,) = found
    assert states.before == start
    assert states.known is None
    assert states.paths == ("a", "d/b", "new", "new/c")
    after = host.view(states.after)
    assert [each.path for each in after.glob("**")] == ["a", "new/c"]
    assert after.read("a").content == NEW
    host.restore(states.before, expect=states.after)
    assert contents(host) == {"a": OLD, "d/b": OLD, "unseen": MINE}


def test_a_call_that_writes_and_restores_takes_its_own_text_for_nobody_elses(
    host: HostFilesystem,
) -> None:
    host.write("a", OLD)
    start = host.snapshot()
    found: list[PathChange] = []
    host.subscribe_changes(found.extend)
    with host.savepoint():
        host.write("a", NEW)
        host.restore(start)
    assert found == []
    with host.savepoint():
        host.write("a", NEW)
        host.restore(start)
        host.write("a", MINE)
    assert [(each.path, each.by_call) for each in found] == [("a", True)]


def test_what_a_person_saved_before_a_call_is_in_the_state_before(
    host: HostFilesystem, tmp_path: Path
) -> None:
    host.write("a", OLD)
    start = host.snapshot()
    found: list[CallStates] = []
    host.subscribe_changes(lambda changes: found.append(host.record_changes(changes)))
    replace_file(tmp_path / "root" / "a")
    host.write("a", NEW)
    (states,) = found
    assert states.known == start
    assert host.view(states.before).read("a").content == MINE
    assert host.view(states.after).read("a").content == NEW
    host.restore(states.before, expect=states.after)
    assert contents(host) == {"a": MINE}


def test_a_save_just_after_a_call_is_not_taken_for_what_the_call_left(
    host: HostFilesystem, tmp_path: Path
) -> None:
    host.write("a", OLD)
    host.snapshot()
    found: list[CallStates] = []
    host.subscribe_changes(lambda changes: found.append(host.record_changes(changes)))

    def hook(point: str) -> None:
        if point == "journal.ended" and not found:
            replace_file(tmp_path / "root" / "a")

    with fault_hook(hook), host.savepoint():
        host.write("a", NEW)
        host.write("b", NEW)
    (states,) = found
    assert host.view(states.after).read("a").content == OLD
    assert states.later is not None
    assert host.view(states.later).read("a").content == MINE
    host.restore(states.before, expect=states.after)
    assert contents(host) == {"a": MINE}


@pytest.mark.parametrize("more", [b"", b"more", bytes(1000)])
def test_a_file_that_changes_its_size_while_a_call_is_recorded_is_stored_whole(
    host: HostFilesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bytes
) -> None:
    states: list[CallStates] = []
    host.write("a", OLD)
    host.snapshot()
    host.subscribe_changes(lambda changes: states.append(host.record_changes(changes)))
    read = commits.read_range

    def save_first(descriptor: int, offset: int, size: int) -> bytes:
        if not states and (tmp_path / "root/a").stat().st_size == len(NEW):
            (tmp_path / "root/a").write_bytes(more)  # in place, after its size was asked for
        return read(descriptor, offset, size)

    monkeypatch.setattr(commits, "read_range", save_first)
    host.write("a", NEW)
    [state] = states
    assert state.later is not None
    assert host.view(state.later).read_bytes("a").content == more


@pytest.mark.parametrize("inside", [True, False])
def test_an_undo_is_reported_and_can_be_undone_with_its_directories(
    host: HostFilesystem, *, inside: bool
) -> None:
    host.snapshot()
    found: list[CallStates] = []
    host.subscribe_changes(lambda changes: found.append(host.record_changes(changes)))
    with host.savepoint():
        host.write("d/e/f", NEW)
    for at, expected in ((0, {}), (1, {"d/e/f": NEW}), (2, {})):
        with host.savepoint() if inside else nullcontext():
            host.restore(found[at].before, expect=found[at].after)
        assert contents(host) == expected
        assert host.exists("d") == bool(expected)
        assert found[-1].paths == ("d", "d/e", "d/e/f")
        assert found[-1].known is None


def test_what_is_undone_already_is_no_conflict(host: HostFilesystem) -> None:
    host.write("d/a", OLD)
    before = host.snapshot()
    host.delete("d", recursive=True)
    host.write("b", NEW)
    after = host.snapshot()
    host.delete("b")
    host.mkdir("d")
    host.restore(before, paths=["d/a", "b"], expect=after)
    assert contents(host) == {"d/a": OLD}
    host.restore(before, expect=after)  # nothing is left
    assert contents(host) == {"d/a": OLD}


def test_an_undo_that_is_refused_leaves_nothing_to_a_rollback(host: HostFilesystem) -> None:
    host.write("a", OLD)
    before = host.snapshot()
    host.write("a", NEW)
    host.write("b", NEW)
    after = host.snapshot()
    host.write("b", MINE)
    with pytest.raises(StaleRestoreError), host.savepoint():
        host.restore(before, expect=after)
    assert contents(host) == {"a": NEW, "b": MINE}


def test_two_snapshots_are_compared_by_the_ids_of_their_trees(host: HostFilesystem) -> None:
    host.write("d/a", OLD)
    host.write("e/b", OLD)
    before = host.snapshot()
    host.write("d/a", NEW)
    host.write("n/c", NEW)
    after = host.snapshot()
    assert host.compare(before, after) == ["d/a", "n", "n/c"]
    assert host.compare(after, after) == []


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_view_is_as_good_as_a_snapshot_also_one_of_another_store(
    host: HostFilesystem, tmp_path: Path, is_kept: bool
) -> None:
    (tmp_path / "other").mkdir()
    with HostFilesystem(tmp_path / "other", git_dir=tmp_path / "foreign") as other:
        other.write("d/a", OLD)
        before = other.snapshot()
        other.write("d/a", NEW)
        after = other.snapshot()
        host.write("d/a", NEW)
        host.write("d/mine", MINE)
        with host.savepoint() as savepoint:
            host.restore(other.view(before), expect=other.view(after))
            assert contents(host) == {"d/a": OLD, "d/mine": MINE}
            savepoint.release() if is_kept else savepoint.rollback()
        assert contents(host) == {"d/a": OLD if is_kept else NEW, "d/mine": MINE}
        host.write("d/a", MINE)
        with pytest.raises(StaleRestoreError):
            host.restore(other.view(before), expect=other.view(after))
