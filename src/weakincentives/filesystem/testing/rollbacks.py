"""Rollbacks: whatever was done since a savepoint, everything is as it was."""

from collections.abc import Callable

import pytest

from weakincentives.filesystem import BaseFilesystem
from weakincentives.filesystem.testing.hooks import PlantingSuite
from weakincentives.filesystem.testing.states import STRANGE_NAMES, plant, spoil, state_of

_KINDS = ("file", "directory", "symlink", "nothing")
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
    """What comes back when a savepoint is rolled back."""

    def test_a_rollback_brings_everything_back(self, fs: BaseFilesystem) -> None:
        plant(fs)
        before = state_of(fs)
        savepoint = fs.savepoint()
        spoil(fs)
        savepoint.rollback()
        assert state_of(fs) == before

    @pytest.mark.parametrize("change", _CHANGES.values(), ids=_CHANGES)
    def test_every_change_can_be_taken_back(
        self, fs: BaseFilesystem, change: Callable[[BaseFilesystem], object]
    ) -> None:
        fs.write("file", "text")
        fs.write("tree/one", "1")
        fs.write("tree/sub/deep", "2")
        before = state_of(fs)
        savepoint = fs.savepoint()
        change(fs)
        assert savepoint.changed
        savepoint.rollback()
        assert state_of(fs) == before

    @pytest.mark.parametrize("then", _KINDS)
    @pytest.mark.parametrize("now", _KINDS)
    def test_a_rollback_makes_anything_what_it_was(
        self, fs: BaseFilesystem, then: str, now: str
    ) -> None:
        self.make_link(fs, "link", "gone")
        self._change(fs, then, "then")
        before = state_of(fs)
        savepoint = fs.savepoint()
        if then != "nothing":
            fs.delete("entry", recursive=True)
        self._change(fs, now, "now")
        savepoint.rollback()
        assert state_of(fs) == before

    def test_links_and_permissions_come_back(self, fs: BaseFilesystem) -> None:
        for permissions in (0o600, 0o755, 0o444):
            self.make_file(fs, f"{permissions:o}", b"text", permissions)
        self.make_link(fs, "link", "600")
        before = state_of(fs)
        savepoint = fs.savepoint()
        for path in list(before):
            fs.delete(path)
            fs.write(path, "new")
        savepoint.rollback()
        assert state_of(fs) == before

    def test_a_rollback_brings_back_names_that_others_made(self, fs: BaseFilesystem) -> None:
        for name in STRANGE_NAMES:
            self.make_file(fs, name, b"old")
        before = state_of(fs)
        savepoint = fs.savepoint()
        for number, name in enumerate(STRANGE_NAMES):
            if number % 2:
                fs.delete(name)
            else:
                fs.write(name, "new")
        savepoint.rollback()
        assert state_of(fs) == before

    def test_what_was_moved_and_then_changed_comes_back(self, fs: BaseFilesystem) -> None:
        fs.write("a/one", "1")
        fs.write("a/two", "2")
        fs.write("b/one", "3")
        before = state_of(fs)
        savepoint = fs.savepoint()
        fs.move("a", "c/a")
        fs.write("c/a/one", "changed")
        fs.delete("c/a/two")
        fs.move("b", "a")
        fs.write("a/one", "changed")
        fs.delete("c", recursive=True)
        savepoint.rollback()
        assert state_of(fs) == before

    def test_what_took_the_place_of_something_changed_comes_back(self, fs: BaseFilesystem) -> None:
        fs.write("a/one", "1")
        fs.write("b/one", "2")
        before = state_of(fs)
        savepoint = fs.savepoint()
        fs.write("a/one", "changed")
        with fs.savepoint():
            fs.delete("a", recursive=True)
        fs.move("b", "a")
        fs.write("a/one", "changed again")
        savepoint.rollback()
        assert state_of(fs) == before

    def test_what_an_inner_one_put_in_the_place_of_something_changed_comes_back(
        self, fs: BaseFilesystem
    ) -> None:
        fs.write("a/one", "1")
        fs.write("b/one", "2")
        before = state_of(fs)
        savepoint = fs.savepoint()
        fs.write("a/one", "changed")
        with fs.savepoint():
            fs.delete("a", recursive=True)
            fs.move("b", "a")
        fs.write("a/one", "changed again")
        savepoint.rollback()
        assert state_of(fs) == before

    def test_what_was_moved_into_something_new_in_something_moved_comes_back(
        self, fs: BaseFilesystem
    ) -> None:
        fs.write("a/one", "1")
        fs.write("b/one", "2")
        before = state_of(fs)
        savepoint = fs.savepoint()
        with fs.savepoint():
            fs.move("a", "c")
            fs.mkdir("c/new")
            fs.move("b", "c/new/b")
        fs.delete("c/new", recursive=True)
        savepoint.rollback()
        assert state_of(fs) == before

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
