"""Conformance of archives: exact export and import, atomic on failure, within quotas."""

import json
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest

from weakincentives.filesystem import (
    ArchivableFilesystem,
    ArchiveError,
    ArchiveFilesystem,
    BaseFilesystem,
    FilesystemEvent,
    InMemoryFilesystem,
    LimitExceededError,
    Limits,
    ReadOnlyError,
    StateReplaced,
)
from weakincentives.filesystem.testing.contract import (
    KIND_CHANGES,
    NAMES,
    PERMISSIONS,
    STRANGE_NAMES,
    ConformanceSuite,
    LimitedSuite,
    PlantingSuite,
    ReadOnlySuite,
    change_sample,
    make_entry,
    make_files,
    make_links,
    make_strange_files,
    read_state,
    write_sample,
)
from weakincentives.filesystem.testing.events import record_events

_DATE = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
_PLANTED = (7, 5_188)  # files and bytes


class DatedArchives(ArchivableFilesystem, Protocol):
    """An archivable filesystem that accepts the date of an archive."""

    def export_archive(self, path: Path, *, created_at: datetime | None = None) -> int:
        """Write the state to a ZIP file; return the number of files."""
        ...


class ArchiveSuite(ConformanceSuite):
    """A suite that needs a path for an archive."""

    @pytest.fixture
    def archive(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The path of an archive, outside every workspace."""
        return tmp_path_factory.mktemp("archives") / "state.zip"


class ArchiveTests(ArchiveSuite):
    """`export_archive` and `import_archive`."""

    def test_the_filesystem_is_archivable(self, fs: DatedArchives) -> None:
        assert isinstance(fs, ArchivableFilesystem)

    def test_the_number_of_files_is_returned(self, fs: DatedArchives, archive: Path) -> None:
        write_sample(fs)
        assert fs.export_archive(archive) == 7
        fs.delete("src", recursive=True)
        assert fs.import_archive(archive) == 7

    def test_an_import_brings_the_state_back(self, fs: DatedArchives, archive: Path) -> None:
        write_sample(fs)
        before = read_state(fs)
        fs.export_archive(archive)
        change_sample(fs)
        fs.import_archive(archive)
        assert read_state(fs) == before

    def test_an_export_changes_nothing(self, fs: DatedArchives, archive: Path) -> None:
        write_sample(fs)
        before = read_state(fs)
        fs.export_archive(archive)
        assert read_state(fs) == before
        assert [each.name for each in archive.parent.iterdir()] == ["state.zip"]

    def test_an_import_changes_kinds_back(self, fs: DatedArchives, archive: Path) -> None:
        fs.write("a/b", "file below a directory")
        fs.write("c", "file")
        fs.export_archive(archive)
        fs.delete("a", recursive=True)
        fs.delete("c")
        fs.write("a", "file")
        fs.write("c/d", "file below a directory")
        fs.import_archive(archive)
        assert fs.read("a/b").content == "file below a directory"
        assert fs.read("c").content == "file"

    def test_an_archive_is_read_as_the_state_it_was_made_of(
        self, fs: DatedArchives, archive: Path
    ) -> None:
        write_sample(fs)
        fs.export_archive(archive)
        with ArchiveFilesystem(archive) as inside:
            assert read_state(inside) == read_state(fs)
            assert (inside.manifest.file_count, inside.manifest.total_bytes) == _PLANTED

    def test_names_that_differ_in_case_are_archived(self, fs: DatedArchives, archive: Path) -> None:
        fs.write("name", "lower")
        fs.write("NAME", "upper")
        fs.export_archive(archive)
        fs.delete("name")
        fs.import_archive(archive)
        assert (fs.read("name").content, fs.read("NAME").content) == ("lower", "upper")

    def test_any_name_is_archived(self, fs: DatedArchives, archive: Path) -> None:
        for name in NAMES:
            fs.write(f"{name}/{name}", name)
        fs.export_archive(archive)
        for name in NAMES:
            fs.delete(name, recursive=True)
        fs.import_archive(archive)
        assert {name: fs.read(f"{name}/{name}").content for name in NAMES} == {
            name: name for name in NAMES
        }

    def test_the_empty_state_is_archived(self, fs: DatedArchives, archive: Path) -> None:
        assert fs.export_archive(archive) == 0
        fs.write("dir/file", "text")
        assert fs.import_archive(archive) == 0
        assert fs.list() == ()

    def test_the_same_state_and_date_give_the_same_bytes(
        self, fs: DatedArchives, archive: Path
    ) -> None:
        write_sample(fs)
        fs.export_archive(archive, created_at=_DATE)
        first = archive.read_bytes()
        fs.write("README.md", "other")
        fs.write("README.md", "# Read me")
        fs.export_archive(archive, created_at=_DATE)
        assert archive.read_bytes() == first

    def test_an_export_makes_parents_and_replaces_what_is_there(
        self, fs: DatedArchives, archive: Path
    ) -> None:
        target = archive.parent / "new" / "folder" / "state.zip"
        fs.write("file", "one")
        fs.export_archive(target)
        fs.write("file", "two")
        fs.export_archive(target)
        assert [each.name for each in target.parent.iterdir()] == ["state.zip"]
        with ArchiveFilesystem(target) as inside:
            assert inside.read("file").content == "two"

    def test_another_backend_takes_the_state_and_gives_it_back(
        self, fs: DatedArchives, archive: Path
    ) -> None:
        write_sample(fs)
        before = read_state(fs)
        fs.export_archive(archive, created_at=_DATE)
        other = InMemoryFilesystem()
        other.import_archive(archive)
        assert read_state(other) == before
        again = archive.with_name("again.zip")
        other.export_archive(again, created_at=_DATE)
        assert again.read_bytes() == archive.read_bytes()
        change_sample(fs)
        fs.import_archive(again)
        assert read_state(fs) == before

    def test_an_imported_state_does_not_need_the_archive(
        self, fs: DatedArchives, archive: Path
    ) -> None:
        write_sample(fs)
        before = read_state(fs)
        fs.export_archive(archive)
        change_sample(fs)
        fs.import_archive(archive)
        archive.unlink()
        assert read_state(fs) == before

    def test_an_imported_state_can_be_changed(self, fs: DatedArchives, archive: Path) -> None:
        write_sample(fs)
        fs.export_archive(archive)
        fs.import_archive(archive)
        fs.write("README.md", ".", mode="append")
        fs.write("empty/below/file", "text")
        fs.delete("src", recursive=True)
        assert fs.read("README.md").content == "# Read me."
        assert [match.path for match in fs.grep("text")] == [".gitattributes", "empty/below/file"]
        assert not fs.exists("src")

    def test_a_plain_archive_is_imported(self, fs: DatedArchives, archive: Path) -> None:
        _write_plain(archive, {"src/main.py": b"print()\n", "README.md": b"# Read me"})
        fs.write("old", "")
        assert fs.import_archive(archive) == 2
        assert [match.path for match in fs.glob("**")] == ["README.md", "src/main.py"]
        assert fs.read("src/main.py").content == "print()\n"

    @pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "a\\b", "C:/out", "a//b"])
    def test_an_archive_that_leads_out_is_refused_and_changes_nothing(
        self, fs: DatedArchives, archive: Path, name: str
    ) -> None:
        write_sample(fs)
        before = read_state(fs)
        _write_plain(archive, {"fine": b"", name: b""})
        with pytest.raises(ArchiveError, match="Entry"):
            fs.import_archive(archive)
        assert read_state(fs) == before

    @pytest.mark.parametrize("kept", [0, 21, 100, -1])
    def test_a_truncated_archive_is_refused_and_changes_nothing(
        self, fs: DatedArchives, archive: Path, kept: int
    ) -> None:
        write_sample(fs)
        fs.export_archive(archive)
        fs.write("later", "")
        before = read_state(fs)
        archive.write_bytes(archive.read_bytes()[:kept])
        with pytest.raises(ArchiveError, match="Archive"):
            fs.import_archive(archive)
        assert read_state(fs) == before

    def test_an_archive_with_one_wrong_byte_is_refused_and_changes_nothing(
        self, fs: DatedArchives, archive: Path
    ) -> None:
        write_sample(fs)
        before = read_state(fs)
        last = {"~last": b"the last file of all"}
        _write_plain(archive, {"first": b"fine", **last}, method=zipfile.ZIP_STORED)
        archive.write_bytes(archive.read_bytes().replace(last["~last"], b"the lost file of all"))
        with pytest.raises(ArchiveError):
            fs.import_archive(archive)
        assert read_state(fs) == before

    @pytest.mark.parametrize("lie", ["file_count", "total_bytes", "version"])
    def test_an_archive_whose_manifest_lies_is_refused_and_changes_nothing(
        self, fs: DatedArchives, archive: Path, lie: str
    ) -> None:
        write_sample(fs)
        before = read_state(fs)
        _write_plain(archive, {"file": b"text"}, lies={lie: 7 if lie != "version" else "7"})
        with pytest.raises(ArchiveError):
            fs.import_archive(archive)
        assert read_state(fs) == before

    def test_a_missing_archive_is_not_found(self, fs: DatedArchives, archive: Path) -> None:
        fs.write("file", "text")
        with pytest.raises(FileNotFoundError):
            fs.import_archive(archive)
        assert fs.read("file").content == "text"

    @pytest.mark.parametrize("content", [None, b"", b"text", b"PK\x05\x06" + bytes(18)])
    def test_what_is_no_archive_is_refused_and_changes_nothing(
        self, fs: DatedArchives, archive: Path, content: bytes | None
    ) -> None:
        fs.write("file", "text")
        if content is None:
            archive.mkdir()
        else:
            archive.write_bytes(content)
        with pytest.raises(ArchiveError):
            fs.import_archive(archive)
        assert fs.read("file").content == "text"


class ArchiveDetailTests(ArchiveSuite, PlantingSuite, LimitedSuite, ReadOnlySuite):
    """Archives with links, permissions, strange names, events, quotas and read-only backends."""

    def test_links_are_archived_as_links(self, fs: BaseFilesystem, archive: Path) -> None:
        make_links(self, fs)
        before = read_state(fs)
        assert fs.export_archive(archive) == 0
        fs.delete("link 0")
        fs.write("link 0", "text")
        fs.delete("link 1")
        fs.import_archive(archive)
        assert read_state(fs) == before

    def test_permissions_are_archived(self, fs: BaseFilesystem, archive: Path) -> None:
        make_files(self, fs)
        before = read_state(fs)
        fs.export_archive(archive)
        for permissions in PERMISSIONS:
            self.make_file(fs, f"{permissions:o}", b"text", 0o711)
        fs.import_archive(archive)
        assert read_state(fs) == before

    def test_names_that_others_made_are_archived(self, fs: BaseFilesystem, archive: Path) -> None:
        make_strange_files(self, fs)
        before = read_state(fs)
        assert fs.export_archive(archive) == len(STRANGE_NAMES)
        for entry in fs.list():
            fs.delete(entry.path)
        fs.import_archive(archive)
        assert read_state(fs) == before

    @pytest.mark.parametrize(("then", "now"), KIND_CHANGES)
    def test_an_import_makes_anything_what_it_was(
        self, fs: BaseFilesystem, archive: Path, then: str, now: str
    ) -> None:
        make_entry(self, fs, "entry", then, "then")
        before = read_state(fs)
        fs.export_archive(archive)
        if fs.exists("entry"):
            fs.delete("entry", recursive=True)
        make_entry(self, fs, "entry", now, "now")
        fs.import_archive(archive)
        assert read_state(fs) == before

    def test_an_import_is_reported_once_when_it_is_done(
        self, fs: BaseFilesystem, archive: Path
    ) -> None:
        fs.write("file", "then")
        fs.export_archive(archive)
        fs.write("file", "now")
        fs.write("dir/other", "")
        received: list[tuple[FilesystemEvent, str]] = []
        fs.subscribe(lambda event: received.append((event, fs.read("file").content)))
        fs.import_archive(archive)
        assert received == [(StateReplaced("import", str(archive)), "then")]

    def test_an_export_and_a_refused_import_are_not_reported(
        self, fs: BaseFilesystem, archive: Path
    ) -> None:
        fs.write("file", "text")
        received = record_events(fs)
        fs.export_archive(archive)
        archive.write_bytes(archive.read_bytes()[:-9])
        with pytest.raises(ArchiveError):
            fs.import_archive(archive)
        assert received == []

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
        assert {path: found[2] for path, found in read_state(limited).items()} == {"old": b"text"}

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


def _write_plain(
    path: Path,
    files: Mapping[str, bytes],
    *,
    method: int = zipfile.ZIP_DEFLATED,
    lies: Mapping[str, object] | None = None,
) -> None:
    """Write an archive as other programs do: only the four manifest fields."""
    manifest = {
        "version": "1",
        "created_at": _DATE.isoformat(),
        "file_count": len(files),
        "total_bytes": sum(map(len, files.values())),
        **(lies or {}),
    }
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(f"files/{name}", data)
        archive.writestr("manifest.json", json.dumps(manifest, indent=2))
