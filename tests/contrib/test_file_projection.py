"""The VirtualFileSystem slice: what a session knows about its files."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.contrib.tools.file_projection import ProjectionUpdater, VirtualFileSystem
from weakincentives.filesystem import (
    BaseFilesystem,
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    VfsPath,
)
from weakincentives.runtime import InProcessEventBus, ManualClock
from weakincentives.runtime.checkpoints import checkpoint, rollback_to
from weakincentives.runtime.session import Session, Snapshot, select_latest
from weakincentives.runtime.transactions import transaction

BEGINNING = datetime(2026, 5, 4, 3, 2, 1, 987654, UTC)


@dataclass
class TrackedWorkspace:
    session: Session
    files: BaseFilesystem
    clock: ManualClock
    updater: ProjectionUpdater

    @property
    def known(self) -> VirtualFileSystem:
        found = select_latest(self.session, VirtualFileSystem)
        assert found is not None
        return found

    def versions(self) -> dict[str, int]:
        return {str(file.path): file.version for file in self.known.files}


def make_workspace(files: BaseFilesystem, root_path: str = "") -> TrackedWorkspace:
    session, clock = Session(), ManualClock(BEGINNING)
    return TrackedWorkspace(
        session, files, clock, ProjectionUpdater(session, files, root_path=root_path, clock=clock)
    )


@pytest.fixture(params=["memory", "host"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TrackedWorkspace]:
    if request.param == "memory":
        yield make_workspace(InMemoryFilesystem())
        return
    (tmp_path / "root").mkdir()
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as files:
        yield make_workspace(files, files.root)


def in_transaction(workspace: TrackedWorkspace) -> Any:
    return transaction(workspace.session, workspace.files)


def test_a_new_file_is_version_one_with_both_dates(workspace: TrackedWorkspace):
    with in_transaction(workspace):
        workspace.files.write("src/main.py", "print()\n")
    [file] = workspace.known.files
    assert file.path == VfsPath(("src", "main.py"))
    assert VfsPath(("src", "main.py")) == file.path
    assert (file.version, file.size_bytes, file.encoding) == (1, 8, "utf-8")
    assert file.created_at == file.updated_at == datetime(2026, 5, 4, 3, 2, 1, 987000, UTC)


class ChangesOnly:
    """Two sessions over the same files: one knows all of them, the other those that changed."""

    def __init__(self, files: BaseFilesystem) -> None:
        self.files = files
        self.clock = ManualClock(BEGINNING)
        self.all, self.changed = Session(), Session()
        ProjectionUpdater(self.all, files, clock=self.clock)
        ProjectionUpdater(self.changed, files, clock=self.clock, files="changed")

    def compare(self) -> set[str]:
        """Check that both agree; return the files that were changed."""
        both = [select_latest(each, VirtualFileSystem) for each in (self.all, self.changed)]
        everything, changes = both
        assert everything is not None
        assert changes is not None
        for file in everything.files:
            known = changes.file(str(file.path))
            described = (file.version, file.size_bytes, file.created_at, file.updated_at)
            if known is None:
                assert file.version == 1
            else:
                assert described == (
                    known.version,
                    known.size_bytes,
                    known.created_at,
                    known.updated_at,
                )
        assert {str(each.path) for each in changes.files} <= {
            str(each.path) for each in everything.files
        }
        return {str(each.path) for each in changes.files}


def test_only_changed_files_are_known_if_that_is_asked_for(tmp_path: Path):
    (tmp_path / "root" / "src").mkdir(parents=True)
    for name in ("a.py", "b.py", "src/c.py", "data"):
        (tmp_path / "root" / name).write_bytes(b"before")
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as files:
        both = ChangesOnly(files)
        assert both.compare() == set()
        both.clock.advance(5)
        files.write("a.py", "after", mode="overwrite")
        files.write("new.py", "new")
        files.write("data", "more", mode="append")
        assert both.compare() == {"a.py", "new.py", "data"}
        both.clock.advance(5)
        files.write("a.py", "again", mode="overwrite")
        files.move("src", "lib")
        files.move("a.py", "lib/a.py")
        assert both.compare() == {"lib/a.py", "new.py", "data"}
        files.delete("lib", recursive=True)
        files.delete("b.py")
        files.write("b.py", "another")
        assert both.compare() == {"b.py", "new.py", "data"}
        found = select_latest(both.changed, VirtualFileSystem)
        assert found is not None
        assert {str(each.path): each.version for each in found.files} == {
            "b.py": 1,
            "data": 2,
            "new.py": 1,
        }


def test_a_restore_is_found_without_looking_at_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "root").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "root" / name).write_text("before")
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as files:
        session = Session()

        def refuse(*_: object) -> object:
            raise AssertionError("listed")

        monkeypatch.setattr(HostFilesystem, "_stats", refuse)
        updater = ProjectionUpdater(session, files, files="changed")
        start = files.snapshot()
        files.write("a.py", "changed", mode="overwrite")
        files.write("new.py", "new")
        files.restore(start)
        known = select_latest(session, VirtualFileSystem)
        assert known is not None
        [file] = known.files
        assert (str(file.path), file.version, file.size_bytes) == ("a.py", 3, len("before"))
        updater.rescan()
        assert select_latest(session, VirtualFileSystem) == VirtualFileSystem()


def test_writing_again_counts_up_and_moves_only_the_second_date(workspace: TrackedWorkspace):
    workspace.files.write("a.txt", "one")
    workspace.clock.advance(5)
    workspace.files.write("a.txt", "three", mode="overwrite")
    workspace.clock.advance(5)
    workspace.files.write("a.txt", "!", mode="append")
    file = workspace.known.file("a.txt")
    assert file is not None
    assert (file.version, file.size_bytes, file.encoding) == (3, 6, "utf-8")
    assert file.updated_at - file.created_at == timedelta(seconds=10)


def test_bytes_that_are_no_text_are_said_to_be_binary(workspace: TrackedWorkspace):
    workspace.files.write_bytes("a", b"\xff\x00")
    workspace.files.write_bytes("b", b"text")
    assert [file.encoding for file in workspace.known.files] == ["binary", "utf-8"]


def test_files_are_sorted_by_their_segments(workspace: TrackedWorkspace):
    for path in ("b", "a-b", "a/z", "a/b/c", "a.txt"):
        workspace.files.write(path, "x")
    assert [str(file.path) for file in workspace.known.files] == [
        "a/b/c",
        "a/z",
        "a-b",
        "a.txt",
        "b",
    ]


def test_deleting_a_directory_takes_everything_below_it_and_nothing_else(
    workspace: TrackedWorkspace,
):
    for path in ("a/b/c", "a/b-c", "a/d", "a.txt", "ab"):
        workspace.files.write(path, "x")
    workspace.files.delete("a/b", recursive=True)
    assert list(workspace.versions()) == ["a/b-c", "a/d", "a.txt", "ab"]
    workspace.files.delete("a", recursive=True)
    assert list(workspace.versions()) == ["a.txt", "ab"]


def test_a_file_that_comes_back_begins_again(workspace: TrackedWorkspace):
    workspace.files.write("a", "1")
    workspace.files.write("a", "2", mode="overwrite")
    workspace.files.delete("a")
    workspace.files.write("a", "3")
    assert workspace.versions() == {"a": 1}


def test_a_renamed_directory_keeps_the_versions_of_its_files(workspace: TrackedWorkspace):
    workspace.files.write("a/x", "1")
    workspace.files.write("a/x", "2", mode="overwrite")
    workspace.files.write("a/b/y", "1")
    workspace.clock.advance(1)
    workspace.files.move("a", "z")
    assert workspace.versions() == {"z/b/y": 1, "z/x": 2}
    moved = workspace.known.file("z/x")
    assert moved is not None
    assert moved.updated_at > moved.created_at


def test_what_was_rolled_back_was_never_known(workspace: TrackedWorkspace):
    workspace.files.write("a", "1")
    before = workspace.known
    with pytest.raises(RuntimeError), in_transaction(workspace):
        workspace.files.write("a", "2", mode="overwrite")
        workspace.files.write("b", "1")
        raise RuntimeError
    assert workspace.known == before


def test_nothing_is_known_before_the_transaction_is_over(workspace: TrackedWorkspace):
    with in_transaction(workspace):
        workspace.files.write("a", "1")
        assert workspace.versions() == {}
    assert workspace.versions() == {"a": 1}


def test_an_import_counts_up_only_what_it_changed(workspace: TrackedWorkspace, tmp_path: Path):
    for path in ("same", "other", "gone"):
        workspace.files.write(path, "1")
    workspace.files.export_archive(tmp_path / "a.zip")
    workspace.files.write("other", "2", mode="overwrite")
    workspace.files.write("new", "1")
    workspace.files.delete("gone")
    workspace.files.import_archive(tmp_path / "a.zip")
    assert workspace.versions() == {"gone": 1, "other": 3, "same": 1}


def test_a_restore_counts_up_only_what_it_changed(workspace: TrackedWorkspace):
    assert isinstance(workspace.files, HostFilesystem | InMemoryFilesystem)
    workspace.files.write("same", "1")
    workspace.files.write("other", "1")
    kept = workspace.files.snapshot()
    workspace.files.write("other", "2", mode="overwrite")
    workspace.files.restore(kept)
    assert workspace.versions() == {"other": 3, "same": 1}


def test_what_was_there_first_is_compared_after_a_restore_too(workspace: TrackedWorkspace):
    assert isinstance(workspace.files, HostFilesystem | InMemoryFilesystem)
    workspace.files.write("same", "1")
    workspace.files.write("other", "1")
    workspace.session.reset()
    kept = workspace.files.snapshot()
    workspace.files.write("other", "2", mode="overwrite")
    workspace.files.restore(kept)
    assert workspace.versions() == {"other": 3, "same": 1}


def test_what_a_shell_changed_is_known_when_its_call_is_over(tmp_path: Path):
    with HostFilesystem(tmp_path) as files:
        workspace = make_workspace(files, files.root)
        files.write("a", "1")
        files.write("b", "1")
        with transaction(workspace.session, files, bypasses_filesystem=True):
            (tmp_path / "a").write_text("22")
            (tmp_path / "b").unlink()
            (tmp_path / "c").write_bytes(b"\0\1")
        assert workspace.versions() == {"a": 2, "c": 1}
        files.cleanup()


def test_the_first_look_finds_everything_whatever_its_name(tmp_path: Path):
    (tmp_path / "däta").mkdir()
    (tmp_path / "däta" / "x.bin").write_bytes(b"\xff\0")
    (tmp_path / ("n" * 120)).write_text("long")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "empty").mkdir()
    with HostFilesystem(tmp_path) as files:
        known = make_workspace(files, files.root).known
    assert known.root_path == str(tmp_path)
    assert {str(file.path): file.encoding for file in known.files} == {
        "däta/x.bin": "binary",
        "n" * 120: "utf-8",
    }


def test_it_goes_into_json_and_back(workspace: TrackedWorkspace):
    workspace.files.write("a/b.txt", "1")
    workspace.session[VirtualFileSystem].seed(workspace.known)
    snapshot = workspace.session.snapshot()
    again = Snapshot.from_json(snapshot.to_json())
    other = Session()
    other.restore(again)
    assert select_latest(other, VirtualFileSystem) == workspace.known


def test_sessions_on_one_bus_know_only_their_own_files():
    bus = InProcessEventBus()
    mine, theirs = Session(bus=bus), Session(bus=bus)
    my_files, their_files = InMemoryFilesystem(), InMemoryFilesystem()
    ProjectionUpdater(mine, my_files)
    ProjectionUpdater(theirs, their_files)
    with transaction(mine, my_files):
        my_files.write("mine", "1")
    their_files.write("theirs", "1")
    their_files.restore(their_files.snapshot())
    assert _paths(mine) == ["mine"]
    assert _paths(theirs) == ["theirs"]


def test_one_that_is_closed_follows_no_more(workspace: TrackedWorkspace):
    workspace.updater.close()
    workspace.files.write("a", "1")
    other = InMemoryFilesystem()
    with transaction(workspace.session, other):
        other.write("b", "1")
    assert workspace.versions() == {}


def _paths(session: Session) -> list[str]:
    known = select_latest(session, VirtualFileSystem)
    assert known is not None
    return [str(file.path) for file in known.files]


NAMES = st.sampled_from(["a", "b", "a/b", "a/c", "d/e/f", "d"])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["write", "delete", "move", "restore"]), NAMES, NAMES)))
def test_it_always_lists_exactly_the_files_that_are_there(steps: list[tuple[str, str, str]]):
    workspace = make_workspace(InMemoryFilesystem())
    files = workspace.files
    assert isinstance(files, InMemoryFilesystem)
    kept = files.snapshot()
    for operation, path, other in steps:
        try:
            with in_transaction(workspace):
                if operation == "write":
                    files.write(path, other, mode="overwrite")
                elif operation == "delete":
                    files.delete(path, recursive=True)
                elif operation == "move":
                    files.move(path, other)
                else:
                    files.restore(kept)
        except (OSError, ValueError):  # a directory cannot move into itself
            pass
        assert [str(file.path) for file in workspace.known.files] == _sorted_files(files)
        assert all(
            file.size_bytes == files.stat(str(file.path)).size_bytes
            for file in workspace.known.files
        )


def _sorted_files(files: Filesystem) -> list[str]:
    return sorted((match.path for match in files.glob("**")), key=lambda path: path.split("/"))


def test_going_back_to_a_checkpoint_brings_back_exactly_what_was_known(workspace: TrackedWorkspace):
    assert isinstance(workspace.files, HostFilesystem | InMemoryFilesystem)
    workspace.files.write("a", "1")
    workspace.files.write("b", "1")
    workspace.session.reset()
    kept = checkpoint(workspace.session, workspace.files)
    before = workspace.known
    workspace.files.write("a", "2", mode="overwrite")
    workspace.files.delete("b")
    workspace.clock.advance(1)
    rollback_to(workspace.session, kept, workspace.files)
    assert workspace.known == before
    # and what was written again by that counts as the same from then on
    workspace.files.restore(workspace.files.snapshot())
    assert workspace.known == before


def test_an_import_compares_what_was_there_first_by_its_bytes(
    workspace: TrackedWorkspace, tmp_path: Path
):
    for path in ("same", "other"):
        workspace.files.write(path, "1")
    workspace.files.export_archive(tmp_path / "a.zip")
    workspace.files.write("other", "2", mode="overwrite")
    workspace.session.reset()
    workspace.files.import_archive(tmp_path / "a.zip")
    assert workspace.versions() == {"other": 2, "same": 1}
