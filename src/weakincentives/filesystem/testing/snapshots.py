"""Conformance of snapshots: exact restores in any order, serialized values, threads."""

import copy
import gc
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import FilesystemSnapshot, SnapshotableFilesystem
from weakincentives.filesystem.testing import changes
from weakincentives.filesystem.testing.contract import ConformanceSuite, read_state
from weakincentives.filesystem.testing.threads import (
    check_while_running,
    run_alongside,
    run_concurrently,
)
from weakincentives.serde import decode, encode

_ROUNDS = 6
_COPY_METHODS: dict[str, Callable[[FilesystemSnapshot], FilesystemSnapshot]] = {
    "json": lambda kept: decode(encode(kept), FilesystemSnapshot),
    "pickle": lambda kept: pickle.loads(pickle.dumps(kept)),
    "copy": copy.deepcopy,
}


def keep_snapshot(fs: SnapshotableFilesystem) -> changes.Undo:
    """Keep the state as a snapshot."""
    kept = fs.snapshot()
    return lambda: fs.restore(kept)


def unknown_snapshot(kept: FilesystemSnapshot) -> FilesystemSnapshot:
    """Return a snapshot like `kept` that nothing was kept for."""
    return replace(kept, snapshot_id=uuid4(), commit_ref="0" * 40)


class SnapshotTests(ConformanceSuite):
    """`snapshot` and `restore`."""

    def test_the_filesystem_is_snapshotable(self, fs: SnapshotableFilesystem) -> None:
        assert isinstance(fs, SnapshotableFilesystem)

    @pytest.mark.parametrize("change", changes.CHANGES.values(), ids=changes.CHANGES)
    def test_everything_comes_back_and_nothing_else_stays(
        self, fs: SnapshotableFilesystem, change: changes.TreeChange
    ) -> None:
        changes.check_undo(fs, change, keep_snapshot)

    def test_keeping_a_state_does_not_change_it(self, fs: SnapshotableFilesystem) -> None:
        changes.write_sample(fs)
        before = read_state(fs)
        fs.snapshot(tag="tag")
        assert read_state(fs) == before

    def test_many_snapshots_come_back_in_any_order(self, fs: SnapshotableFilesystem) -> None:
        kept: list[FilesystemSnapshot] = []
        for number in range(6):
            fs.write("number", str(number))
            fs.write(f"only/{number}", "")
            kept.append(fs.snapshot(tag=f"number {number}"))
            fs.delete("only", recursive=True)
        for number in (5, 0, 3, 3, 1, 4, 2, 0):
            fs.restore(kept[number])
            assert fs.read("number").content == str(number)
            assert [entry.name for entry in fs.list("only")] == [str(number)]

    def test_a_snapshot_does_not_see_later_changes(self, fs: SnapshotableFilesystem) -> None:
        changes.write_sample(fs)
        before = read_state(fs)
        kept = fs.snapshot()
        for _ in range(3):
            changes.change_sample(fs)
            fs.restore(kept)
        assert read_state(fs) == before

    def test_a_restored_state_can_be_kept_again(self, fs: SnapshotableFilesystem) -> None:
        fs.write("file", "one")
        first = fs.snapshot()
        fs.write("file", "two")
        fs.restore(first)
        again = fs.snapshot()
        fs.write("file", "three")
        fs.write("new", "")
        fs.restore(again)
        assert fs.read("file").content == "one"
        assert [entry.name for entry in fs.list()] == ["file"]

    def test_a_restore_can_be_undone(self, fs: SnapshotableFilesystem) -> None:
        changes.write_sample(fs)
        first = fs.snapshot()
        changes.change_sample(fs)
        after = read_state(fs)
        second = fs.snapshot()
        fs.restore(first)
        fs.restore(second)
        assert read_state(fs) == after

    @pytest.mark.parametrize("check", changes.RESULT_CHECKS.values(), ids=changes.RESULT_CHECKS)
    def test_a_restored_state_is_like_any_other(
        self, fs: SnapshotableFilesystem, check: changes.Check
    ) -> None:
        check(fs, keep_snapshot)

    def test_the_value_has_date_root_and_tag(self, fs: SnapshotableFilesystem) -> None:
        kept = fs.snapshot(tag="before")
        assert isinstance(kept, FilesystemSnapshot)
        assert isinstance(kept.snapshot_id, UUID)
        assert (kept.tag, kept.root_path) == ("before", fs.root)
        assert kept.created_at.utcoffset() == timedelta(0)
        assert abs(datetime.now(UTC) - kept.created_at) < timedelta(hours=1)
        assert fs.snapshot().tag is None

    def test_every_snapshot_has_a_unique_name(self, fs: SnapshotableFilesystem) -> None:
        fs.write("file", "")
        kept = [fs.snapshot(tag="same") for _ in range(4)]
        assert len({each.snapshot_id for each in kept}) == 4
        assert len({each.commit_ref for each in kept}) == 4

    @pytest.mark.parametrize("copied", _COPY_METHODS.values(), ids=_COPY_METHODS)
    def test_a_stored_value_restores_when_the_first_one_is_gone(
        self, fs: SnapshotableFilesystem, copied: Callable[[FilesystemSnapshot], FilesystemSnapshot]
    ) -> None:
        def keep(fs: SnapshotableFilesystem) -> changes.Undo:
            kept = fs.snapshot(tag="é")
            stored = copied(kept)
            assert stored == kept
            del kept
            gc.collect()
            fs.snapshot()
            return lambda: fs.restore(stored)

        changes.check_undo(fs, changes.SAMPLE_CHANGE, keep)

    def test_a_value_without_the_place_of_its_store_restores(
        self, fs: SnapshotableFilesystem
    ) -> None:
        def keep(fs: SnapshotableFilesystem) -> changes.Undo:
            kept = replace(fs.snapshot(), git_dir=None)
            return lambda: fs.restore(kept)

        changes.check_undo(fs, changes.SAMPLE_CHANGE, keep)

    def test_an_unknown_snapshot_is_refused_and_changes_nothing(
        self, fs: SnapshotableFilesystem
    ) -> None:
        fs.write("file", "one")
        kept = fs.snapshot()
        fs.write("file", "two")
        with pytest.raises(SnapshotRestoreError, match="Unknown snapshot"):
            fs.restore(unknown_snapshot(kept))
        assert fs.read("file").content == "two"

    def test_a_snapshot_of_another_workspace_is_refused_and_changes_nothing(
        self, fs: SnapshotableFilesystem, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        other = self.make_filesystem(tmp_path_factory.mktemp("other"))
        assert isinstance(other, SnapshotableFilesystem)
        other.write("file", "of another")
        foreign = other.snapshot()
        fs.write("file", "mine")
        mine = fs.snapshot()
        with pytest.raises(SnapshotRestoreError):
            fs.restore(foreign)
        assert fs.read("file").content == "mine"
        fs.restore(mine)

    def test_a_snapshot_is_one_moment(self, fs: SnapshotableFilesystem) -> None:
        def write(number: int) -> None:
            fs.write("first", str(number))
            for place in range(3):
                fs.write(f"{place}/other", str(number))
            fs.write("last", str(number))

        write(0)
        kept = run_alongside(write, lambda: [fs.snapshot() for _ in range(2 * _ROUNDS)])
        for each in kept:
            fs.restore(each)
            ahead = int(fs.read("first").content) - int(fs.read("last").content)
            assert ahead in {0, 1}, "a snapshot saw a later write and not an earlier one"

    def test_a_reader_sees_the_old_state_of_a_file_or_the_new(
        self, fs: SnapshotableFilesystem
    ) -> None:
        texts = [letter * 40_000 for letter in "ab"]
        kept: list[FilesystemSnapshot] = []
        for text in texts:
            fs.write("file", text)
            kept.append(fs.snapshot())

        def restore() -> None:
            for number in range(_ROUNDS):
                fs.restore(kept[number % 2])

        def read() -> None:
            assert fs.read("file").content in texts, "a read saw half a restore"

        check_while_running(restore, read)

    def test_snapshots_of_several_threads_all_succeed(self, fs: SnapshotableFilesystem) -> None:
        def keep(writer: int) -> FilesystemSnapshot:
            fs.write(f"{writer}/file", str(writer))
            return fs.snapshot(tag=str(writer))

        kept = run_concurrently(keep)
        assert len({each.commit_ref for each in kept}) == len(kept)
        for writer, each in enumerate(kept):
            fs.restore(each)
            assert fs.read(f"{writer}/file").content == each.tag == str(writer)
