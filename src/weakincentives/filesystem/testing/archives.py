"""Conformance of archives: exact export and import, atomic on failure, within quotas."""

import json
import zipfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from weakincentives.filesystem import (
    ArchivableFilesystem,
    ArchiveError,
    ArchiveFilesystem,
    BaseFilesystem,
    InMemoryFilesystem,
    LimitExceededError,
    Limits,
    ReadOnlyError,
    StateReplaced,
)
from weakincentives.filesystem.testing import changes
from weakincentives.filesystem.testing.contract import (
    ConformanceSuite,
    LimitedSuite,
    PlantingSuite,
    ReadOnlySuite,
    read_state,
)
from weakincentives.filesystem.testing.events import record_events

_DATE = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
_PLANTED = (7, 5_188)  # files and bytes


class ArchiveSuite(ConformanceSuite):
    """A suite that needs a path for an archive."""

    @pytest.fixture
    def archive(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The path of an archive, outside every workspace."""
        return tmp_path_factory.mktemp("archives") / "state.zip"


def _keep(archive: Path, fs: ArchivableFilesystem) -> changes.Undo:
    fs.export_archive(archive)
    return lambda: fs.import_archive(archive)


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


def _spoil_content(archive: Path) -> None:
    """Change one byte of the last file."""
    last = b"the last file of all"
    _write_plain(archive, {"first": b"fine", "~last": last}, method=zipfile.ZIP_STORED)
    archive.write_bytes(archive.read_bytes().replace(last, b"the lost file of all"))


def _replace_by_directory(archive: Path) -> None:
    archive.unlink()
    archive.mkdir()


def _cut(archive: Path, size: int) -> None:
    archive.write_bytes(archive.read_bytes()[:size])


_Spoiled: TypeAlias = tuple[Callable[[Path], object], str | None]
_SPOILED: dict[str, _Spoiled] = {
    **{
        f"name {name}": (partial(_write_plain, files={"fine": b"", name: b""}), "Entry")
        for name in ("../out", "/out", "a/../../out", "a\\b", "C:/out", "a//b")
    },
    **{f"cut at {size}": (partial(_cut, size=size), "Archive") for size in (0, 21, 100, -1)},
    **{
        f"wrong {field}": (partial(_write_plain, files={"file": b"text"}, lies={field: lie}), None)
        for field, lie in {"file_count": 7, "total_bytes": 7, "version": "7"}.items()
    },
    **{
        f"only {len(content)} bytes": (partial(Path.write_bytes, data=content), None)
        for content in (b"", b"text", b"PK\x05\x06" + bytes(18))
    },
    "wrong byte": (_spoil_content, None),
    "directory": (_replace_by_directory, None),
}
"""Archives that cannot be imported, and what the error says if that is known."""


class ArchiveTests(ArchiveSuite):
    """`export_archive` and `import_archive`."""

    def test_the_filesystem_is_archivable(self, fs: BaseFilesystem) -> None:
        assert isinstance(fs, ArchivableFilesystem)

    def test_the_number_of_files_is_returned(self, fs: BaseFilesystem, archive: Path) -> None:
        changes.write_sample(fs)
        assert fs.export_archive(archive) == 7
        fs.delete("src", recursive=True)
        assert fs.import_archive(archive) == 7

    @pytest.mark.parametrize("change", changes.CHANGES.values(), ids=changes.CHANGES)
    def test_an_import_brings_the_state_back(
        self, fs: BaseFilesystem, archive: Path, change: changes.TreeChange
    ) -> None:
        changes.check_undo(fs, change, partial(_keep, archive))

    def test_an_export_changes_nothing(self, fs: BaseFilesystem, archive: Path) -> None:
        changes.write_sample(fs)
        before = read_state(fs)
        fs.export_archive(archive)
        assert read_state(fs) == before
        assert [each.name for each in archive.parent.iterdir()] == ["state.zip"]

    def test_an_archive_is_read_as_the_state_it_was_made_of(
        self, fs: BaseFilesystem, archive: Path
    ) -> None:
        changes.write_sample(fs)
        fs.export_archive(archive)
        with ArchiveFilesystem(archive) as inside:
            assert read_state(inside) == read_state(fs)
            assert (inside.manifest.file_count, inside.manifest.total_bytes) == _PLANTED

    def test_the_empty_state_is_archived(self, fs: BaseFilesystem, archive: Path) -> None:
        assert fs.export_archive(archive) == 0
        fs.write("dir/file", "text")
        assert fs.import_archive(archive) == 0
        assert fs.list() == ()

    def test_the_same_state_and_date_give_the_same_bytes(
        self, fs: BaseFilesystem, archive: Path
    ) -> None:
        changes.write_sample(fs)
        fs.export_archive(archive, created_at=_DATE)
        first = archive.read_bytes()
        fs.write("README.md", "other")
        fs.write("README.md", "# Read me")
        fs.export_archive(archive, created_at=_DATE)
        assert archive.read_bytes() == first

    def test_an_export_makes_parents_and_replaces_what_is_there(
        self, fs: BaseFilesystem, archive: Path
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
        self, fs: BaseFilesystem, archive: Path
    ) -> None:
        changes.write_sample(fs)
        before = read_state(fs)
        fs.export_archive(archive, created_at=_DATE)
        other = InMemoryFilesystem()
        other.import_archive(archive)
        assert read_state(other) == before
        again = archive.with_name("again.zip")
        other.export_archive(again, created_at=_DATE)
        assert again.read_bytes() == archive.read_bytes()
        changes.change_sample(fs)
        fs.import_archive(again)
        assert read_state(fs) == before

    def test_an_imported_state_does_not_need_the_archive(
        self, fs: BaseFilesystem, archive: Path
    ) -> None:
        changes.write_sample(fs)
        before = read_state(fs)
        fs.export_archive(archive)
        changes.change_sample(fs)
        fs.import_archive(archive)
        archive.unlink()
        assert read_state(fs) == before

    @pytest.mark.parametrize("check", changes.RESULT_CHECKS.values(), ids=changes.RESULT_CHECKS)
    def test_an_imported_state_is_like_any_other(
        self, fs: BaseFilesystem, archive: Path, check: changes.Check
    ) -> None:
        check(fs, partial(_keep, archive))

    def test_a_plain_archive_is_imported(self, fs: BaseFilesystem, archive: Path) -> None:
        _write_plain(archive, {"src/main.py": b"print()\n", "README.md": b"# Read me"})
        fs.write("old", "")
        assert fs.import_archive(archive) == 2
        assert [match.path for match in fs.glob("**")] == ["README.md", "src/main.py"]
        assert fs.read("src/main.py").content == "print()\n"

    @pytest.mark.parametrize("spoiled", _SPOILED.values(), ids=_SPOILED)
    def test_a_wrong_archive_is_refused_and_changes_nothing(
        self, fs: BaseFilesystem, archive: Path, spoiled: _Spoiled
    ) -> None:
        spoil, message = spoiled
        changes.write_sample(fs)
        fs.export_archive(archive)
        fs.write("later", "")
        before = read_state(fs)
        spoil(archive)
        with pytest.raises(ArchiveError, match=message):
            fs.import_archive(archive)
        assert read_state(fs) == before

    def test_a_missing_archive_is_not_found(self, fs: BaseFilesystem, archive: Path) -> None:
        fs.write("file", "text")
        with pytest.raises(FileNotFoundError):
            fs.import_archive(archive)
        assert fs.read("file").content == "text"


class ArchiveDetailTests(ArchiveSuite, PlantingSuite, LimitedSuite, ReadOnlySuite):
    """Archives with links, permissions, strange names, events, quotas and read-only backends."""

    @pytest.mark.parametrize(
        "planted", changes.PLANTED_CHANGES.values(), ids=changes.PLANTED_CHANGES
    )
    def test_an_import_makes_anything_what_it_was(
        self, fs: BaseFilesystem, archive: Path, planted: changes.Planted
    ) -> None:
        changes.check_undo(fs, planted(self), partial(_keep, archive))

    def test_an_import_is_reported_once_when_it_is_done(
        self, fs: BaseFilesystem, archive: Path
    ) -> None:
        received = changes.record_undo(fs, partial(_keep, archive))
        assert received == [(StateReplaced("import", str(archive)), "then", 1)]

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

    @pytest.mark.parametrize("check", changes.QUOTA_CHECKS.values(), ids=changes.QUOTA_CHECKS)
    def test_an_import_changes_what_the_quota_counts(
        self, archive: Path, tmp_path: Path, check: changes.QuotaCheck
    ) -> None:
        check(self, tmp_path, partial(_keep, archive))

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
