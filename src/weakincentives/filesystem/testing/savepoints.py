"""Conformance of savepoints: rollback of every change, nesting, events, quotas and threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weakincentives.filesystem import (
    Filesystem,
    Savepoint,
    SavepointError,
    StateReplaced,
    TimeLimitError,
    Transactional,
    TransactionalFilesystem,
    time_limit,
)
from weakincentives.filesystem.testing import changes
from weakincentives.filesystem.testing.contract import LimitedSuite, PlantingSuite, read_state
from weakincentives.filesystem.testing.events import record_events

_OPERATIONS: dict[str, Callable[[TransactionalFilesystem], object]] = {
    "write": lambda fs: fs.write("file", "new"),
    "write twice": lambda fs: [fs.write("file", text) for text in ("new", "newer")],
    "append": lambda fs: fs.write("file", "more", mode="append"),
    "create": lambda fs: fs.write("new", "new", mode="create"),
    "create below missing": lambda fs: fs.write("new/a/b/file", "new"),
    "mkdir": lambda fs: fs.mkdir("new"),
    "mkdir below missing": lambda fs: fs.mkdir("new/a/b"),
    "delete": lambda fs: fs.delete("file"),
    "delete and create": lambda fs: [fs.delete("file"), fs.write("file", "new", mode="create")],
    "delete tree": lambda fs: fs.delete("tree", recursive=True),
    "delete inside": lambda fs: fs.delete("tree/sub/deep"),
    "delete tree after write": lambda fs: [
        fs.write("tree/sub/deep", "new"),
        fs.delete("tree", recursive=True),
    ],
    "move": lambda fs: fs.move("file", "new"),
    "move over": lambda fs: fs.move("file", "tree/one", overwrite=True),
    "move below missing": lambda fs: fs.move("file", "new/a/b"),
    "move tree": lambda fs: fs.move("tree", "new"),
    "move tree below missing": lambda fs: fs.move("tree", "new/a/b"),
    "move tree into new": lambda fs: [fs.mkdir("new"), fs.move("tree", "new/tree")],
    "move tree into new and delete": lambda fs: [
        fs.mkdir("new"),
        fs.move("tree", "new/tree"),
        fs.delete("new", recursive=True),
    ],
    "move tree into new and on": lambda fs: [
        fs.mkdir("new"),
        fs.move("tree", "new/tree"),
        fs.move("new", "newer"),
        fs.write("newer/tree/one", "new"),
        fs.delete("newer/tree/sub", recursive=True),
    ],
    "move to and fro": lambda fs: [fs.move("tree", "new"), fs.move("new", "tree")],
    "copy": lambda fs: fs.copy("file", "new"),
    "copy over": lambda fs: fs.copy("file", "tree/one", overwrite=True),
    "copy tree": lambda fs: fs.copy("tree", "new"),
    "copy tree below missing": lambda fs: fs.copy("tree", "new/a/b"),
    "moved and changed": lambda fs: [
        fs.move("tree", "new/tree"),
        fs.write("new/tree/one", "changed"),
        fs.delete("new/tree/sub/deep"),
        fs.move("other", "tree"),
        fs.write("tree/one", "changed"),
        fs.delete("new", recursive=True),
    ],
    "replaced after a change": lambda fs: [
        fs.write("tree/one", "changed"),
        _within(fs, lambda: [fs.delete("tree", recursive=True)]),
        fs.move("other", "tree"),
        fs.write("tree/one", "changed again"),
    ],
    "replaced inside after a change": lambda fs: [
        fs.write("tree/one", "changed"),
        _within(fs, lambda: [fs.delete("tree", recursive=True), fs.move("other", "tree")]),
        fs.write("tree/one", "changed again"),
    ],
    "moved into something new in something moved": lambda fs: [
        _within(
            fs,
            lambda: [
                fs.move("tree", "new"),
                fs.mkdir("new/newer"),
                fs.move("other", "new/newer/other"),
            ],
        ),
        fs.delete("new/newer", recursive=True),
    ],
}
_TREE = {"file": "text", "tree/one": "1", "tree/sub/deep": "2", "other/one": "3"}


def _within(fs: TransactionalFilesystem, change: Callable[[], object]) -> None:
    with fs.savepoint():
        change()


def _keep(fs: Filesystem) -> changes.Undo:
    assert isinstance(fs, Transactional)
    return fs.savepoint().rollback


_THREAD_TIMEOUT = 20  # seconds for a thread that should not have to wait


class SavepointTests(PlantingSuite, LimitedSuite):
    """`savepoint`."""

    # --- what comes back ---

    @pytest.mark.parametrize("change", changes.CHANGES.values(), ids=changes.CHANGES)
    def test_a_rollback_brings_everything_back(
        self, fs: TransactionalFilesystem, change: changes.TreeChange
    ) -> None:
        changes.check_undo(fs, change, _keep)

    @pytest.mark.parametrize("change", _OPERATIONS.values(), ids=_OPERATIONS)
    def test_every_change_can_be_taken_back(
        self, fs: TransactionalFilesystem, change: Callable[[TransactionalFilesystem], object]
    ) -> None:
        def apply(fs: TransactionalFilesystem) -> None:
            with fs.savepoint() as savepoint:
                change(fs)
                assert savepoint.changed

        prepare = changes.replaced(_TREE).prepare
        for each in (change, apply):
            changes.check_undo(fs, changes.TreeChange(prepare, each), _keep)

    @pytest.mark.parametrize(
        "planted", changes.PLANTED_CHANGES.values(), ids=changes.PLANTED_CHANGES
    )
    def test_a_rollback_makes_anything_what_it_was(
        self, fs: TransactionalFilesystem, planted: changes.Planted
    ) -> None:
        changes.check_undo(fs, planted(self), _keep)

    @pytest.mark.parametrize("check", changes.RESULT_CHECKS.values(), ids=changes.RESULT_CHECKS)
    def test_the_state_that_came_back_is_like_any_other(
        self, fs: TransactionalFilesystem, check: changes.Check
    ) -> None:
        check(fs, _keep)

    # --- how it ends ---

    def test_a_release_keeps_what_was_changed(self, fs: TransactionalFilesystem) -> None:
        changes.write_sample(fs)
        savepoint = fs.savepoint()
        changes.change_sample(fs)
        changed = read_state(fs)
        savepoint.release()
        assert read_state(fs) == changed

    def test_a_block_is_released_at_its_end(self, fs: TransactionalFilesystem) -> None:
        with fs.savepoint() as savepoint:
            fs.write("file", "new")
        assert fs.read("file").content == "new"
        with pytest.raises(SavepointError, match="has ended"):
            savepoint.rollback()

    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
    def test_an_exception_takes_back_what_the_block_did_and_goes_on(
        self, fs: TransactionalFilesystem, kind: type[BaseException]
    ) -> None:
        fs.write("file", "old")
        with pytest.raises(kind), fs.savepoint():  # noqa: PT012 # the whole block is undone
            fs.write("file", "new")
            fs.write("other", "new")
            raise kind
        assert fs.read("file").content == "old"
        assert not fs.exists("other")

    def test_a_block_may_end_its_savepoint_itself(self, fs: TransactionalFilesystem) -> None:
        with fs.savepoint() as savepoint:
            fs.write("file", "taken back")
            savepoint.rollback()
            fs.write("other", "kept")
        with fs.savepoint() as savepoint:
            savepoint.release()
        assert [entry.name for entry in fs.list()] == ["other"]

    @pytest.mark.parametrize("end", ["release", "rollback"])
    def test_a_savepoint_ends_once(self, fs: TransactionalFilesystem, end: str) -> None:
        savepoint = fs.savepoint()
        getattr(savepoint, end)()
        fs.write("file", "kept")
        for use in (savepoint.release, savepoint.rollback, lambda: savepoint.changed):
            with pytest.raises(SavepointError, match="has ended"):
                use()
        assert fs.read("file").content == "kept"

    # --- nested ---

    def test_an_inner_rollback_leaves_what_was_done_before_it(
        self, fs: TransactionalFilesystem
    ) -> None:
        changes.write_sample(fs)
        with fs.savepoint() as outer:
            fs.write("src/main.py", "outer")
            fs.write("outer", "")
            between = read_state(fs)
            inner = fs.savepoint()
            changes.change_sample(fs)
            inner.rollback()
            assert read_state(fs) == between
            assert outer.changed
        assert read_state(fs) == between

    def test_an_outer_rollback_takes_back_what_an_inner_one_released(
        self, fs: TransactionalFilesystem
    ) -> None:
        changes.write_sample(fs)
        before = read_state(fs)
        outer = fs.savepoint()
        fs.write("README.md", "outer")
        with fs.savepoint():
            changes.change_sample(fs)
        fs.write("README.md", "outer again")
        outer.rollback()
        assert read_state(fs) == before

    def test_what_follows_an_inner_rollback_is_taken_back_by_the_outer_one(
        self, fs: TransactionalFilesystem
    ) -> None:
        changes.write_sample(fs)
        before = read_state(fs)
        outer = fs.savepoint()
        inner = fs.savepoint()
        changes.change_sample(fs)
        inner.rollback()
        changes.change_sample(fs)
        outer.rollback()
        assert read_state(fs) == before

    def test_many_deep_and_one_after_the_other(self, fs: TransactionalFilesystem) -> None:
        states = [read_state(fs)]
        savepoints: list[Savepoint] = []
        for number in range(6):
            savepoints.append(fs.savepoint())
            fs.write("file", str(number))
            fs.write(f"dir{number}/file", str(number))
            with fs.savepoint():
                fs.write("all", f"{number} ", mode="append")
            states.append(read_state(fs))
        for savepoint, before in zip(reversed(savepoints), reversed(states[:-1]), strict=True):
            savepoint.rollback()
            assert read_state(fs) == before

    @pytest.mark.parametrize("end", ["release", "rollback"])
    def test_an_outer_end_ends_the_inner_ones(self, fs: TransactionalFilesystem, end: str) -> None:
        outer = fs.savepoint()
        inner, innermost = fs.savepoint(), fs.savepoint()
        fs.write("file", "")
        getattr(outer, end)()
        assert fs.exists("file") == (end == "release")
        for ended in (inner, innermost):
            with pytest.raises(SavepointError, match="has ended"):
                ended.rollback()
        assert fs.exists("file") == (end == "release")

    # --- what has changed ---

    def test_nothing_has_changed_until_something_has(self, fs: TransactionalFilesystem) -> None:
        fs.write("file", "text")
        with fs.savepoint() as savepoint:
            fs.read("file")
            fs.list()
            fs.grep("t")
            fs.glob("**")
            fs.mkdir(".")
            for change in (
                lambda: fs.write("file", "", mode="create"),
                lambda: fs.write("file/below", ""),
                lambda: fs.delete("gone"),
                lambda: fs.move("gone", "new"),
            ):
                with pytest.raises(OSError):  # noqa: PT011 # several kinds, one for each
                    change()
            assert not savepoint.changed
            fs.write("file", "new")
            assert savepoint.changed

    def test_what_was_taken_back_inside_is_no_change(self, fs: TransactionalFilesystem) -> None:
        with fs.savepoint() as outer:
            inner = fs.savepoint()
            fs.write("file", "")
            inner.rollback()
            assert not outer.changed
            with fs.savepoint():
                fs.write("file", "")
            assert outer.changed

    # --- who is received, and the quota ---

    def test_a_rollback_is_reported_once_when_it_is_done(self, fs: TransactionalFilesystem) -> None:
        assert changes.record_undo(fs, _keep) == [
            (StateReplaced("rollback", "savepoint"), "then", 1)
        ]

    def test_what_takes_nothing_back_is_not_reported(self, fs: TransactionalFilesystem) -> None:
        events = record_events(fs)
        fs.savepoint().rollback()
        fs.savepoint().release()
        savepoint = fs.savepoint()
        fs.mkdir("dir")
        received = list(events)
        savepoint.release()
        assert events == received
        assert len(received) == 1

    @pytest.mark.parametrize("check", changes.QUOTA_CHECKS.values(), ids=changes.QUOTA_CHECKS)
    def test_a_rollback_changes_what_the_quota_counts(
        self, tmp_path: Path, check: changes.QuotaCheck
    ) -> None:
        check(self, tmp_path, _keep)

    # --- threads ---

    def test_the_changes_of_other_threads_wait_for_its_end(
        self, fs: TransactionalFilesystem
    ) -> None:
        fs.write("file", "old")
        with ThreadPoolExecutor(1) as pool, fs.savepoint() as savepoint:
            fs.write("file", "mine")
            writing = pool.submit(fs.write, "file", "theirs")
            assert _must_wait(fs)
            assert fs.read("file").content == "mine"
            savepoint.rollback()
            writing.result()
        assert fs.read("file").content == "theirs"

    def test_another_thread_opens_its_own_after_its_end(self, fs: TransactionalFilesystem) -> None:
        def work() -> None:
            with fs.savepoint():
                fs.write("log", "theirs ", mode="append")

        with ThreadPoolExecutor(1) as pool, fs.savepoint() as savepoint:
            fs.write("log", "mine ", mode="append")
            working = pool.submit(work)
            assert _must_wait(fs)
            fs.write("log", "mine too ", mode="append")
            savepoint.release()
            working.result()
        assert fs.read("log").content == "mine mine too theirs "

    def test_other_threads_read_meanwhile(self, fs: TransactionalFilesystem) -> None:
        def read() -> tuple[str, int, int]:
            return fs.read("file").content, len(fs.glob("**")), len(fs.grep("new"))

        fs.write("file", "old")
        with ThreadPoolExecutor(1) as pool, fs.savepoint():
            fs.write("file", "new")
            assert pool.submit(read).result(timeout=_THREAD_TIMEOUT) == ("new", 1, 1)

    def test_only_its_own_thread_ends_it(self, fs: TransactionalFilesystem) -> None:
        with ThreadPoolExecutor(1) as pool, fs.savepoint() as savepoint:
            fs.write("file", "")
            for end in (savepoint.release, savepoint.rollback):
                with pytest.raises(SavepointError, match="thread"):
                    pool.submit(end).result()
            assert savepoint.changed
        assert fs.exists("file")


def _must_wait(fs: TransactionalFilesystem) -> bool:
    """Return whether a write from another thread has to wait."""

    def change() -> None:
        with time_limit(0):
            fs.mkdir("never made")

    with ThreadPoolExecutor(1) as pool:
        return isinstance(pool.submit(change).exception(), TimeLimitError)
