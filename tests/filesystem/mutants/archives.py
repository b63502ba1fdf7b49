"""Backends whose archives are exported or imported wrongly."""

import zipfile
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.filesystem.mutants.sound import Memory
from weakincentives.filesystem import (
    ArchiveError,
    ArchiveFilesystem,
    LimitExceededError,
    ReadableFilesystem,
    StateReplaced,
)


class NotArchivable(Memory):
    """Cannot be imported into."""

    import_archive = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride] # its defect


class CountsEntries(Memory):
    """Counts directories too."""

    def export_archive(self, path: Any, **how: Any) -> int:
        super().export_archive(path, **how)
        return self._usage()[1]


class Merges(Memory):
    """Merges an archive with the existing files."""

    def _replace_all(self, state: ReadableFilesystem, name: str) -> None:
        now = {match.path: self.read_bytes(match.path).content for match in self.glob("**")}
        super()._replace_all(state, name)
        for path, content in now.items():
            with suppress(OSError):
                self.write_bytes(path, content, mode="create")


class EmptiesFirst(Memory):
    """Deletes everything before it validates the archive."""

    def import_archive(self, path: Any, **how: Any) -> int:
        self._delete_root(recursive=True)
        return super().import_archive(path, **how)


class Unpacks(Memory):
    """Writes while it reads, and checks only the names."""

    def import_archive(self, path: Any, **how: Any) -> int:
        if self.read_only:
            return super().import_archive(path, **how)
        self._delete_root(recursive=True)
        count = 0
        for name, content in _unpacked(path):
            self._install_plain(name, content)
            count += 1
        self._emit_replaced("import", str(path))
        return count

    def _install_plain(self, name: str, content: bytes) -> None:
        parts = [part for part in name.split("/") if part not in {"", ".", ".."}]
        for end in range(1, len(parts)):
            self.mkdir("/".join(parts[:end]))
        self._store("/".join(parts), content)


class DropsWhatIsEmpty(Memory):
    """Ignores empty directories in archives."""

    def _replace_all(self, state: ReadableFilesystem, name: str) -> None:
        super()._replace_all(state, name)
        for match in reversed(self.glob("**/")):
            if not self.list(match.path):
                self._remove(match.path)


class DropsBitsAndLinks(Memory):
    """Archives regular files only."""

    def _replace_all(self, state: ReadableFilesystem, name: str) -> None:
        super()._replace_all(state, name)
        for match in self.glob("**"):
            if match.is_file:
                self._store(match.path, self.read_bytes(match.path).content, permissions=0o644)
            else:
                self._remove(match.path)


class PrintableNames(Memory):
    """Skips unprintable names and names of git."""

    def _replace_all(self, state: ReadableFilesystem, name: str) -> None:
        super()._replace_all(state, name)
        for entry in self.list():
            if not entry.name.isprintable() or entry.name == ".git":
                self._remove(entry.path)


class FoldsCaseOnImport(Memory):
    """Keeps one of two names that differ in case."""

    def _replace_all(self, state: ReadableFilesystem, name: str) -> None:
        super()._replace_all(state, name)
        for entry in self.list():
            if entry.name.lower() != entry.name and self.exists(entry.name.lower()):
                self._remove(entry.name)


class LeavesADraft(Memory):
    """Leaves a file beside the archive."""

    def export_archive(self, path: Any, **how: Any) -> int:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).with_suffix(".tmp").write_bytes(b"")
        return super().export_archive(path, **how)


class ExportsIntoItself(Memory):
    """Writes a marker into the workspace on export."""

    def export_archive(self, path: Any, **how: Any) -> int:
        self.write(".exported", str(path))
        return super().export_archive(path, **how)


class DatesItself(Memory):
    """Ignores the given date."""

    def export_archive(self, path: Any, **how: Any) -> int:
        self.exports = getattr(self, "exports", 0) + 1
        how["created_at"] = datetime(2000, 1, self.exports, tzinfo=UTC)
        return super().export_archive(path, **how)


class KeepsTheFirst(Memory):
    """Does not replace an existing archive."""

    def export_archive(self, path: Any, **how: Any) -> int:
        if Path(path).exists():
            return 0
        return super().export_archive(path, **how)


class ReadsLater(Memory):
    """Reads the archive lazily, when a file is read."""

    def import_archive(self, path: Any, **how: Any) -> int:
        count = super().import_archive(path, **how)
        self.source = Path(path)
        return count

    def _open(self, path: str) -> Any:
        source = getattr(self, "source", None)
        if source is not None and not source.exists():
            raise FileNotFoundError(source)
        return super()._open(path)


class EndsWithAnImport(Memory):
    """Cannot be changed after an import."""

    def import_archive(self, path: Any, **how: Any) -> int:
        count = super().import_archive(path, **how)
        self._read_only = True
        return count


class OwnArchivesOnly(Memory):
    """Reads only its own archives, and treats a missing one as empty."""

    def import_archive(self, path: Any, **how: Any) -> int:
        if not Path(path).exists():
            self._delete_root(recursive=True)
            return 0
        with ArchiveFilesystem(Path(path)) as state:
            if b"sha256" not in zipfile.ZipFile(path).read("manifest.json"):
                raise ArchiveError(f"Archive is of another program: {state.root!r}")
        return super().import_archive(path, **how)


class ReportsExports(Memory):
    """Emits a state change for an export."""

    def export_archive(self, path: Any, **how: Any) -> int:
        count = super().export_archive(path, **how)
        self._listeners.notify(StateReplaced("import", str(path)))
        return count


class ImportsBeyondTheQuota(Memory):
    """Checks the quota after the import."""

    def _replace_all(self, state: ReadableFilesystem, name: str) -> None:
        check, self._quota.check = self._quota.check, lambda size, files: None
        super()._replace_all(state, name)
        self._quota.check = check
        if self._quota:
            size, files = self._usage()
            check(size, files)


class IgnoresTheQuota(Memory):
    """Imports anything, however large."""

    def _replace_all(self, state: ReadableFilesystem, name: str) -> None:
        with suppress(LimitExceededError):
            super()._replace_all(state, name)


class ImportsReadOnly(Memory):
    """Rejects writes, but imports while read-only."""

    def import_archive(self, path: Any, **how: Any) -> int:
        frozen, self._read_only = self._read_only, False
        count = super().import_archive(path, **how)
        self._read_only = frozen
        return count


def _unpacked(path: Any) -> Iterable[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.filename.startswith("files/") and not info.filename.endswith("/"):
                    yield info.filename.removeprefix("files/"), archive.read(info)
    except (zipfile.BadZipFile, IsADirectoryError) as error:
        raise ArchiveError(f"Archive cannot be read: {error}") from error
