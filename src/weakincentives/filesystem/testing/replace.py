"""Restores and imports on the base classes: links, permissions, events, quotas, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

import pytest

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import (
    ArchiveError,
    BaseFilesystem,
    FilesystemEvent,
    HostFilesystem,
    InMemoryFilesystem,
    LimitExceededError,
    Limits,
    ReadOnlyError,
    SnapshotableFilesystem,
    StateReplaced,
)
from weakincentives.filesystem.testing.archives import ArchiveSuite
from weakincentives.filesystem.testing.contract import (
    STRANGE_NAMES,
    LimitedSuite,
    PlantingSuite,
    ReadOnlySuite,
    state_of,
)
from weakincentives.filesystem.testing.events import listen

# or any other backend on the base classes that has their methods
Snapshots: TypeAlias = InMemoryFilesystem | HostFilesystem
_KINDS = ("file", "directory", "symlink", "nothing")
_CHANGES = [(then, now) for then in _KINDS for now in _KINDS if then != now]
_TARGETS = ("gone", "/etc/passwd", "..", "../../out", ".", "link 5", "a b/é", "x" * 300)
_PERMISSIONS = (0o644, 0o755, 0o600, 0o444, 0o700, 0o777, 0o640)


class SnapshotDetailTests(PlantingSuite, LimitedSuite, ReadOnlySuite):
    """Snapshots, together with all else that a backend on the base classes can do."""

    def test_links_come_back_as_links(self, fs: Snapshots) -> None:
        _make_links(self, fs)
        before = state_of(fs)
        kept = fs.snapshot()
        for number in range(0, len(_TARGETS), 2):
            fs.delete(f"link {number}")
        fs.delete("link 1")
        self.make_link(fs, "link 1", "elsewhere")
        self.make_link(fs, "new", "gone")
        fs.restore(kept)
        assert state_of(fs) == before

    @pytest.mark.parametrize(("then", "now"), _CHANGES)
    def test_anything_becomes_what_it_was(self, fs: Snapshots, then: str, now: str) -> None:
        _make(self, fs, "entry", then, "then")
        before = state_of(fs)
        kept = fs.snapshot()
        if fs.exists("entry"):
            fs.delete("entry", recursive=True)
        _make(self, fs, "entry", now, "now")
        fs.restore(kept)
        assert state_of(fs) == before

    def test_nothing_is_written_through_a_link_that_is_in_the_way(self, fs: Snapshots) -> None:
        fs.write("dir/file", "then")
        fs.mkdir("other")
        kept = fs.snapshot()
        fs.delete("dir", recursive=True)
        self.make_link(fs, "dir", "other")
        fs.restore(kept)
        assert fs.read("dir/file").content == "then"
        assert fs.list("other") == ()

    def test_permissions_come_back(self, fs: Snapshots) -> None:
        _make_files(self, fs)
        before = {path: permissions for path, (_, permissions, _) in state_of(fs).items()}
        kept = fs.snapshot()
        for permissions in _PERMISSIONS[::2]:
            fs.delete(f"{permissions:o}")
            fs.write(f"{permissions:o}", "text")
        for permissions in _PERMISSIONS[1::2]:
            self.make_file(fs, f"{permissions:o}", b"text", 0o711)
        fs.restore(kept)
        assert {path: found[1] for path, found in state_of(fs).items()} == before

    def test_names_that_others_made_come_back(self, fs: Snapshots) -> None:
        _make_strange(self, fs)
        before = state_of(fs)
        kept = fs.snapshot()
        for entry in fs.list():
            fs.delete(entry.path)
        fs.restore(kept)
        assert state_of(fs) == before
        assert len(before) == len(STRANGE_NAMES)

    def test_a_restore_is_told_once_when_it_is_done(self, fs: Snapshots) -> None:
        fs.write("file", "then")
        kept = fs.snapshot()
        fs.write("file", "now")
        fs.write("dir/other", "")
        told: list[tuple[FilesystemEvent, str]] = []
        fs.subscribe(lambda event: told.append((event, fs.read("file").content)))
        fs.restore(kept)
        assert told == [(StateReplaced("restore", kept.commit_ref), "then")]

    def test_a_refused_restore_is_not_told(self, fs: Snapshots) -> None:
        told = listen(fs)
        unknown = replace(fs.snapshot(), snapshot_id=uuid4(), commit_ref="0" * 40)
        with pytest.raises(SnapshotRestoreError):
            fs.restore(unknown)
        assert told == []

    def test_the_quota_counts_what_a_restore_brought_back(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_total_bytes=10, max_files=3))
        assert isinstance(fs, SnapshotableFilesystem)
        fs.write("a", "1234567890")
        kept = fs.snapshot()
        fs.delete("a")
        fs.write("b", "1")
        fs.restore(kept)
        with pytest.raises(LimitExceededError, match="quota"):
            fs.write("c", "1")
        assert [entry.name for entry in fs.list()] == ["a"]

    def test_what_a_restore_took_away_makes_room(self, tmp_path: Path) -> None:
        fs = self.make_limited(tmp_path, Limits(max_total_bytes=10, max_files=2))
        assert isinstance(fs, SnapshotableFilesystem)
        kept = fs.snapshot()
        fs.write("dir/a", "1234567890")
        fs.restore(kept)
        fs.write("dir/b", "1234567890")
        assert fs.read("dir/b").content == "1234567890"

    def test_a_read_only_filesystem_is_not_restored(self, fs: Snapshots) -> None:
        kept = fs.snapshot()
        fs.write("file", "text")
        frozen = self.make_read_only(fs)
        assert isinstance(frozen, SnapshotableFilesystem)
        with pytest.raises(ReadOnlyError):
            frozen.restore(kept)
        assert frozen.read("file").content == "text"


class ArchiveDetailTests(ArchiveSuite, PlantingSuite, LimitedSuite, ReadOnlySuite):
    """Archives, together with all else that a backend on the base classes can do."""

    def test_links_are_archived_as_links(self, fs: BaseFilesystem, archive: Path) -> None:
        _make_links(self, fs)
        before = state_of(fs)
        assert fs.export_archive(archive) == 0
        fs.delete("link 0")
        fs.write("link 0", "text")
        fs.delete("link 1")
        fs.import_archive(archive)
        assert state_of(fs) == before

    def test_permissions_are_archived(self, fs: BaseFilesystem, archive: Path) -> None:
        _make_files(self, fs)
        before = state_of(fs)
        fs.export_archive(archive)
        for permissions in _PERMISSIONS:
            self.make_file(fs, f"{permissions:o}", b"text", 0o711)
        fs.import_archive(archive)
        assert state_of(fs) == before

    def test_names_that_others_made_are_archived(self, fs: BaseFilesystem, archive: Path) -> None:
        _make_strange(self, fs)
        before = state_of(fs)
        assert fs.export_archive(archive) == len(STRANGE_NAMES)
        for entry in fs.list():
            fs.delete(entry.path)
        fs.import_archive(archive)
        assert state_of(fs) == before

    @pytest.mark.parametrize(("then", "now"), _CHANGES)
    def test_an_import_makes_anything_what_it_was(
        self, fs: BaseFilesystem, archive: Path, then: str, now: str
    ) -> None:
        _make(self, fs, "entry", then, "then")
        before = state_of(fs)
        fs.export_archive(archive)
        if fs.exists("entry"):
            fs.delete("entry", recursive=True)
        _make(self, fs, "entry", now, "now")
        fs.import_archive(archive)
        assert state_of(fs) == before

    def test_an_import_is_told_once_when_it_is_done(
        self, fs: BaseFilesystem, archive: Path
    ) -> None:
        fs.write("file", "then")
        fs.export_archive(archive)
        fs.write("file", "now")
        fs.write("dir/other", "")
        told: list[tuple[FilesystemEvent, str]] = []
        fs.subscribe(lambda event: told.append((event, fs.read("file").content)))
        fs.import_archive(archive)
        assert told == [(StateReplaced("import", str(archive)), "then")]

    def test_an_export_and_a_refused_import_are_not_told(
        self, fs: BaseFilesystem, archive: Path
    ) -> None:
        fs.write("file", "text")
        told = listen(fs)
        fs.export_archive(archive)
        archive.write_bytes(archive.read_bytes()[:-9])
        with pytest.raises(ArchiveError):
            fs.import_archive(archive)
        assert told == []

    @pytest.mark.parametrize(
        "limits", [Limits(max_total_bytes=9), Limits(max_files=2)], ids=["bytes", "entries"]
    )
    def test_an_archive_beyond_the_quota_is_refused_and_changes_nothing(
        self, fs: BaseFilesystem, archive: Path, tmp_path: Path, limits: Limits
    ) -> None:
        for name in "abc":
            fs.write(name, "1234")
        fs.export_archive(archive)
        for entry in fs.list():
            fs.delete(entry.path)
        limited = self.make_limited(tmp_path, limits)
        limited.write("old", "text")
        with pytest.raises(LimitExceededError, match="quota"):
            limited.import_archive(archive)
        assert {path: found[2] for path, found in state_of(limited).items()} == {"old": b"text"}

    def test_the_quota_counts_what_an_import_brought(
        self, fs: BaseFilesystem, archive: Path, tmp_path: Path
    ) -> None:
        fs.write("a", "1234567890")
        fs.export_archive(archive)
        fs.delete("a")
        limited = self.make_limited(tmp_path, Limits(max_total_bytes=10, max_files=3))
        limited.write("b", "1")
        limited.import_archive(archive)
        with pytest.raises(LimitExceededError, match="quota"):
            limited.write("c", "1")
        limited.delete("a")
        limited.write("c", "1234567890")
        assert [entry.name for entry in limited.list()] == ["c"]

    def test_a_read_only_filesystem_is_exported_and_not_imported(
        self, fs: BaseFilesystem, archive: Path
    ) -> None:
        fs.write("file", "then")
        fs.export_archive(archive)
        fs.write("file", "now")
        frozen = self.make_read_only(fs)
        assert isinstance(frozen, BaseFilesystem)
        with pytest.raises(ReadOnlyError):
            frozen.import_archive(archive)
        assert frozen.read("file").content == "now"
        assert frozen.export_archive(archive) == 1


def _make(suite: PlantingSuite, fs: BaseFilesystem, path: str, kind: str, text: str) -> None:
    if kind == "file":
        fs.write(path, text)
    elif kind == "directory":
        fs.write(f"{path}/below", text)
    elif kind == "symlink":
        suite.make_link(fs, path, text)


def _make_links(suite: PlantingSuite, fs: BaseFilesystem) -> None:
    for number, target in enumerate(_TARGETS):
        suite.make_link(fs, f"link {number}", target)


def _make_files(suite: PlantingSuite, fs: BaseFilesystem) -> None:
    for permissions in _PERMISSIONS:
        suite.make_file(fs, f"{permissions:o}", b"text", permissions)


def _make_strange(suite: PlantingSuite, fs: BaseFilesystem) -> None:
    for name in STRANGE_NAMES:
        suite.make_file(fs, name, name.encode(errors="surrogateescape"))
