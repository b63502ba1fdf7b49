"""Archives: a state goes into one file and comes back exactly, or nothing happens."""

import json
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest

from weakincentives.filesystem import ArchivableFilesystem, BaseFilesystem, Filesystem
from weakincentives.filesystem.archives.archivefs import ArchiveFilesystem
from weakincentives.filesystem.testing.contract import ConformanceSuite

_DATE = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
_EVERY_BYTE = bytes(range(256)) * 20


class DatedArchives(ArchivableFilesystem, Protocol):
    """An archivable filesystem that can be told the date of an archive."""

    def export_archive(self, path: Path, *, created_at: datetime | None = None) -> int:
        """Write the state to a ZIP file; return the number of files."""
        ...


class ArchiveTests(ConformanceSuite):
    """`export_archive` and `import_archive`."""

    @pytest.fixture
    def archive(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Where an archive goes: outside of every workspace."""
        return tmp_path_factory.mktemp("archives") / "state.zip"

    def test_the_number_of_files_is_returned(self, fs: DatedArchives, archive: Path) -> None:
        _plant(fs)
        assert fs.export_archive(archive) == 3
        fs.delete("src", recursive=True)
        assert fs.import_archive(archive) == 3

    def test_an_import_brings_the_state_back(self, fs: DatedArchives, archive: Path) -> None:
        _plant(fs)
        before = _state(fs)
        fs.export_archive(archive)
        fs.write("src/main.py", "changed")
        fs.delete("README.md")
        fs.delete("empty", recursive=True)
        fs.write("new/file", "new")
        fs.mkdir("new/empty")
        fs.import_archive(archive)
        assert _state(fs) == before

    def test_what_changed_its_kind_changes_back(self, fs: DatedArchives, archive: Path) -> None:
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
        _plant(fs)
        fs.export_archive(archive)
        with ArchiveFilesystem(archive) as inside:
            assert _state(inside) == _state(fs)
            assert (inside.manifest.file_count, inside.manifest.total_bytes) == (3, 5_135)

    def test_links_are_archived_as_links(self, fs: BaseFilesystem, archive: Path) -> None:
        for path, target in (("link", "/etc/passwd"), ("loop", "loop"), ("out", "../..")):
            fs._make_link(path, target)  # pyright: ignore[reportPrivateUsage] # the protocol makes no links
        count = fs.export_archive(archive)  # pyright: ignore # the suite is for those that have it
        fs.delete("link")
        fs.write("link", "text")
        fs.import_archive(archive)  # pyright: ignore # the same
        assert count == 0
        assert fs.stat("link").link_target == "/etc/passwd"
        assert fs.stat("loop").link_target == "loop"
        assert fs.stat("out").link_target == "../.."

    def test_names_that_differ_in_case_come_back(self, fs: DatedArchives, archive: Path) -> None:
        fs.write("name", "lower")
        fs.write("NAME", "upper")
        fs.export_archive(archive)
        fs.delete("name")
        fs.import_archive(archive)
        assert (fs.read("name").content, fs.read("NAME").content) == ("lower", "upper")

    def test_the_empty_state_is_a_state(self, fs: DatedArchives, archive: Path) -> None:
        assert fs.export_archive(archive) == 0
        fs.write("dir/file", "text")
        assert fs.import_archive(archive) == 0
        assert fs.list() == ()

    def test_the_same_state_and_date_give_the_same_bytes(
        self, fs: DatedArchives, archive: Path
    ) -> None:
        _plant(fs)
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
        _plant(fs)
        before = _state(fs)
        _write_plain(archive, {"fine": b"", name: b""})
        with pytest.raises(ValueError, match="Entry"):
            fs.import_archive(archive)
        assert _state(fs) == before

    @pytest.mark.parametrize("kept", [0, 21, 100, -1])
    def test_a_truncated_archive_is_refused_and_changes_nothing(
        self, fs: DatedArchives, archive: Path, kept: int
    ) -> None:
        _plant(fs)
        fs.export_archive(archive)
        fs.write("later", "")
        before = _state(fs)
        archive.write_bytes(archive.read_bytes()[:kept])
        with pytest.raises(ValueError, match="Archive"):
            fs.import_archive(archive)
        assert _state(fs) == before

    def test_a_missing_archive_is_not_found(self, fs: DatedArchives, archive: Path) -> None:
        fs.write("file", "")
        with pytest.raises(FileNotFoundError):
            fs.import_archive(archive)
        assert fs.exists("file")


def _plant(fs: Filesystem) -> None:
    fs.write("README.md", "# Read me")
    fs.write("src/main.py", "print()\n")
    fs.write_bytes("src/data.bin", _EVERY_BYTE[:-2])
    fs.mkdir("empty/below")


def _state(fs: Filesystem | ArchiveFilesystem) -> dict[str, bytes | None]:
    files = {match.path: fs.read_bytes(match.path).content for match in fs.glob("**")}
    return {**files, **{match.path: None for match in fs.glob("**/")}}


def _write_plain(path: Path, files: Mapping[str, bytes]) -> None:
    """Write an archive as other programs do: the four fields of the manifest and no more."""
    manifest = {
        "version": "1",
        "created_at": _DATE.isoformat(),
        "file_count": len(files),
        "total_bytes": sum(map(len, files.values())),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"files/{name}", data)
        archive.writestr("manifest.json", json.dumps(manifest, indent=2))
