"""Conformance of savepoints: rollback of every change, nesting, events, quotas and threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weakincentives.filesystem import (
    BaseFilesystem,
    Limits,
    Savepoint,
    SavepointError,
    StateReplaced,
    TimeLimitError,
    time_limit,
)
from weakincentives.filesystem.testing.contract import (
    ENTRY_KINDS,
    STRANGE_NAMES,
    LimitedSuite,
    PlantingSuite,
    change_sample,
    read_state,
    write_sample,
)
from weakincentives.filesystem.testing.events import record_events

_CHANGES: dict[str, Callable[[BaseFilesystem], object]] = {
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
}


class RollbackTests(PlantingSuite):
    """What a rollback restores."""

    def test_a_rollback_brings_everything_back(self, fs: BaseFilesystem) -> None:
        write_sample(fs)
        before = read_state(fs)
        savepoint = fs.savepoint()
        change_sample(fs)
        savepoint.rollback()
        assert read_state(fs) == before

    @pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
    def test_every_change_can_be_taken_back(
        self, fs: BaseFilesystem, change: Callable[[BaseFilesystem], object]
    ) -> None:
        fs.write("file", "text")
        fs.write("tree/one", "1")
        fs.write("tree/sub/deep", "2")
        before = read_state(fs)
        savepoint = fs.savepoint()
        change(fs)
        assert savepoint.changed
        savepoint.rollback()
        assert read_state(fs) == before

    @pytest.mark.parametrize("then", ENTRY_KINDS)
    @pytest.mark.parametrize("now", ENTRY_KINDS)
    def test_a_rollback_makes_anything_what_it_was(
        self, fs: BaseFilesystem, then: str, now: str
    ) -> None:
        self.make_link(fs, "link", "gone")
        self._change(fs, then, "then")
        before = read_state(fs)
        savepoint = fs.savepoint()
        if then != "nothing":
            fs.delete("entry", recursive=True)
        self._change(fs, now, "now")
        savepoint.rollback()
        assert read_state(fs) == before

    def test_links_and_permissions_come_back(self, fs: BaseFilesystem) -> None:
        for permissions in (0o600, 0o755, 0o444):
            self.make_file(fs, f"{permissions:o}", b"text", permissions)
        self.make_link(fs, "link", "600")
        before = read_state(fs)
        savepoint = fs.savepoint()
        for path in list(before):
            fs.delete(path)
            fs.write(path, "new")
        savepoint.rollback()
        assert read_state(fs) == before

    def test_a_rollback_brings_back_names_that_others_made(self, fs: BaseFilesystem) -> None:
        for name in STRANGE_NAMES:
            self.make_file(fs, name, b"old")
        before = read_state(fs)
        savepoint = fs.savepoint()
        for number, name in enumerate(STRANGE_NAMES):
            if number % 2:
                fs.delete(name)
            else:
                fs.write(name, "new")
        savepoint.rollback()
        assert read_state(fs) == before

    def test_what_was_moved_and_then_changed_comes_back(self, fs: BaseFilesystem) -> None:
        fs.write("a/one", "1")
        fs.write("a/two", "2")
        fs.write("b/one", "3")
        before = read_state(fs)
        savepoint = fs.savepoint()
        fs.move("a", "c/a")
        fs.write("c/a/one", "changed")
        fs.delete("c/a/two")
        fs.move("b", "a")
        fs.write("a/one", "changed")
        fs.delete("c", recursive=True)
        savepoint.rollback()
        assert read_state(fs) == before

    def test_what_took_the_place_of_something_changed_comes_back(self, fs: BaseFilesystem) -> None:
        fs.write("a/one", "1")
        fs.write("b/one", "2")
        before = read_state(fs)
        savepoint = fs.savepoint()
        fs.write("a/one", "changed")
        with fs.savepoint():
            fs.delete("a", recursive=True)
        fs.move("b", "a")
        fs.write("a/one", "changed again")
        savepoint.rollback()
        assert read_state(fs) == before

    def test_what_an_inner_one_put_in_the_place_of_something_changed_comes_back(
        self, fs: BaseFilesystem
    ) -> None:
        fs.write("a/one", "1")
        fs.write("b/one", "2")
        before = read_state(fs)
        savepoint = fs.savepoint()
        fs.write("a/one", "changed")
        with fs.savepoint():
            fs.delete("a", recursive=True)
            fs.move("b", "a")
        fs.write("a/one", "changed again")
        savepoint.rollback()
        assert read_state(fs) == before

    def test_what_was_moved_into_something_new_in_something_moved_comes_back(
        self, fs: BaseFilesystem
    ) -> None:
        fs.write("a/one", "1")
        fs.write("b/one", "2")
        before = read_state(fs)
        savepoint = fs.savepoint()
        with fs.savepoint():
            fs.move("a", "c")
            fs.mkdir("c/new")
            fs.move("b", "c/new/b")
        fs.delete("c/new", recursive=True)
        savepoint.rollback()
        assert read_state(fs) == before

    def test_the_state_after_a_rollback_can_be_changed(self, fs: BaseFilesystem) -> None:
        fs.write("dir/file", "text")
        savepoint = fs.savepoint()
        fs.delete("dir", recursive=True)
        savepoint.rollback()
        fs.write("dir/file", " and more", mode="append")
        fs.write("dir/other", "")
        assert fs.read("dir/file").content == "text and more"
        assert [entry.name for entry in fs.list("dir")] == ["file", "other"]

    def test_pages_hashes_and_searches_are_of_the_state_that_came_back(
        self, fs: BaseFilesystem
    ) -> None:
        fs.write("file", "one\ntwo\n")
        digest = fs.content_hash("file")
        savepoint = fs.savepoint()
        fs.write("file", "six\nnine\nten\n")
        assert fs.read("file").total_lines == 3
        savepoint.rollback()
        assert fs.read("file", offset=1).content == "two\n"
        assert fs.content_hash("file") == digest
        assert [match.line_content for match in fs.grep(".")] == ["one", "two"]

    def _change(self, fs: BaseFilesystem, kind: str, text: str) -> None:
        if kind == "file":
            fs.write("entry", text)
        elif kind == "directory":
            fs.write("entry/below", text)
        elif kind == "symlink":
            fs.copy("link", "entry")


_THREAD_TIMEOUT = 20  # seconds for a thread that should not have to wait


class SavepointTests(RollbackTests, LimitedSuite):
    """`savepoint`."""

    # --- how it ends ---

    def test_a_release_keeps_what_was_changed(self, fs: BaseFilesystem) -> None:
        write_sample(fs)
        savepoint = fs.savepoint()
        change_sample(fs)
        changed = read_state(fs)
        savepoint.release()
        assert read_state(fs) == changed

    def test_a_block_is_released_at_its_end(self, fs: BaseFilesystem) -> None:
        with fs.savepoint() as savepoint:
            fs.write("file", "new")
        assert fs.read("file").content == "new"
        with pytest.raises(SavepointError, match="has ended"):
            savepoint.rollback()

    @pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
    def test_an_exception_takes_back_what_the_block_did_and_goes_on(
        self, fs: BaseFilesystem, kind: type[BaseException]
    ) -> None:
        fs.write("file", "old")
        with pytest.raises(kind), fs.savepoint():  # noqa: PT012 # the whole block is undone
            fs.write("file", "new")
            fs.write("other", "new")
            raise kind
        assert fs.read("file").content == "old"
        assert not fs.exists("other")

    def test_a_block_may_end_its_savepoint_itself(self, fs: BaseFilesystem) -> None:
        with fs.savepoint() as savepoint:
            fs.write("file", "taken back")
            savepoint.rollback()
            fs.write("other", "kept")
        with fs.savepoint() as savepoint:
            savepoint.release()
        assert [entry.name for entry in fs.list()] == ["other"]

    @pytest.mark.parametrize("end", ["release", "rollback"])
    def test_a_savepoint_ends_once(self, fs: BaseFilesystem, end: str) -> None:
        savepoint = fs.savepoint()
        getattr(savepoint, end)()
        fs.write("file", "kept")
        for use in (savepoint.release, savepoint.rollback, lambda: savepoint.changed):
            with pytest.raises(SavepointError, match="has ended"):
                use()
        assert fs.read("file").content == "kept"

    # --- nested ---

    def test_an_inner_rollback_leaves_what_was_done_before_it(self, fs: BaseFilesystem) -> None:
        write_sample(fs)
        with fs.savepoint() as outer:
            fs.write("src/main.py", "outer")
            fs.write("outer", "")
            between = read_state(fs)
            inner = fs.savepoint()
            change_sample(fs)
            inner.rollback()
            assert read_state(fs) == between
            assert outer.changed
        assert read_state(fs) == between

    def test_an_outer_rollback_takes_back_what_an_inner_one_released(
        self, fs: BaseFilesystem
    ) -> None:
        write_sample(fs)
        before = read_state(fs)
        outer = fs.savepoint()
        fs.write("README.md", "outer")
        with fs.savepoint():
            change_sample(fs)
        fs.write("README.md", "outer again")
        outer.rollback()
        assert read_state(fs) == before

    def test_what_follows_an_inner_rollback_is_taken_back_by_the_outer_one(
        self, fs: BaseFilesystem
    ) -> None:
        write_sample(fs)
        before = read_state(fs)
        outer = fs.savepoint()
        inner = fs.savepoint()
        change_sample(fs)
        inner.rollback()
        change_sample(fs)
        outer.rollback()
        assert read_state(fs) == before

    def test_many_deep_and_one_after_the_other(self, fs: BaseFilesystem) -> None:
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
    def test_an_outer_end_ends_the_inner_ones(self, fs: BaseFilesystem, end: str) -> None:
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

    def test_nothing_has_changed_until_something_has(self, fs: BaseFilesystem) -> None:
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

    def test_what_was_taken_back_inside_is_no_change(self, fs: BaseFilesystem) -> None:
        with fs.savepoint() as outer:
            inner = fs.savepoint()
            fs.write("file", "")
            inner.rollback()
            assert not outer.changed
            with fs.savepoint():
                fs.write("file", "")
            assert outer.changed

    # --- who is received, and the quota ---

    def test_a_rollback_is_reported_once_when_it_is_done(self, fs: BaseFilesystem) -> None:
        fs.write("file", "old")
        savepoint = fs.savepoint()
        fs.write("file", "new")
        fs.write("new/file", "new")
        events = record_events(fs)
        seen: list[list[str]] = []
        fs.subscribe(lambda _: seen.append([match.path for match in fs.glob("**")]))
        savepoint.rollback()
        assert events == [StateReplaced("rollback", "savepoint")]
        assert seen == [["file"]]

    def test_what_takes_nothing_back_is_not_reported(self, fs: BaseFilesystem) -> None:
        events = record_events(fs)
        fs.savepoint().rollback()
        fs.savepoint().release()
        savepoint = fs.savepoint()
        fs.mkdir("dir")
        received = list(events)
        savepoint.release()
        assert events == received
        assert len(received) == 1

    def test_what_a_rollback_took_away_makes_room(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_total_bytes=10, max_files=2))
        for _ in range(3):
            savepoint = fs.savepoint()
            fs.write("one", "12345")
            fs.write("two", "12345")
            savepoint.rollback()
        fs.write("file", "1234567890")
        assert fs.read("file").content == "1234567890"

    def test_the_quota_counts_what_a_rollback_brought_back(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_total_bytes=10))
        fs.write("file", "1234567890")
        savepoint = fs.savepoint()
        fs.delete("file")
        fs.write("other", "1")
        savepoint.rollback()
        with pytest.raises(ValueError, match="quota"):
            fs.write("other", "1")

    # --- threads ---

    def test_the_changes_of_other_threads_wait_for_its_end(self, fs: BaseFilesystem) -> None:
        fs.write("file", "old")
        with ThreadPoolExecutor(1) as pool, fs.savepoint() as savepoint:
            fs.write("file", "mine")
            writing = pool.submit(fs.write, "file", "theirs")
            assert _must_wait(fs)
            assert fs.read("file").content == "mine"
            savepoint.rollback()
            writing.result()
        assert fs.read("file").content == "theirs"

    def test_another_thread_opens_its_own_after_its_end(self, fs: BaseFilesystem) -> None:
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

    def test_other_threads_read_meanwhile(self, fs: BaseFilesystem) -> None:
        def read() -> tuple[str, int, int]:
            return fs.read("file").content, len(fs.glob("**")), len(fs.grep("new"))

        fs.write("file", "old")
        with ThreadPoolExecutor(1) as pool, fs.savepoint():
            fs.write("file", "new")
            assert pool.submit(read).result(timeout=_THREAD_TIMEOUT) == ("new", 1, 1)

    def test_only_its_own_thread_ends_it(self, fs: BaseFilesystem) -> None:
        with ThreadPoolExecutor(1) as pool, fs.savepoint() as savepoint:
            fs.write("file", "")
            for end in (savepoint.release, savepoint.rollback):
                with pytest.raises(SavepointError, match="thread"):
                    pool.submit(end).result()
            assert savepoint.changed
        assert fs.exists("file")


def _must_wait(fs: BaseFilesystem) -> bool:
    """Return whether a write from another thread has to wait."""

    def change() -> None:
        with time_limit(0):
            fs.mkdir("never made")

    with ThreadPoolExecutor(1) as pool:
        return isinstance(pool.submit(change).exception(), TimeLimitError)
