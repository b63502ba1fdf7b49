"""Backends that read wrongly, or report wrong metadata."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.filesystem.mutants.sound import Memory
from weakincentives.filesystem import (
    MEMORY_LIMITS,
    FileEntry,
    FileStat,
    Limits,
    ReadBytesResult,
    ReadResult,
    Results,
    WriteResult,
    normalize_path,
)


class SplitsOnFormFeed(Memory):
    """Counts lines as str.splitlines does."""

    def read(self, path: str, **page: Any) -> ReadResult:
        part = super().read(path, **page)
        page.update(offset=0, limit=-1)
        whole = super().read(path, **page)
        lines = whole.content.splitlines(keepends=True)
        stop = None if part.limit < 0 else part.offset + part.limit
        return replace(
            part,
            content="".join(lines[part.offset : stop]),
            total_lines=len(lines),
            truncated=stop is not None and stop < len(lines),
        )


class TextMode(Memory):
    """Opens files in text mode: line ends are translated on the way in."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        plain = content.replace("\r\n", "\n").replace("\r", "\n")
        return super().write(path, plain, **how)


class DropsTheMark(Memory):
    """Reads with utf-8-sig."""

    def read(self, path: str, **page: Any) -> ReadResult:
        part = super().read(path, **page)
        return replace(part, content=part.content.removeprefix("\ufeff"))


class IgnoresLimit(Memory):
    """Returns every line whatever the limit."""

    def read(self, path: str, **page: Any) -> ReadResult:
        page["limit"] = -1
        return super().read(path, **page)


class AcceptsNegatives(Memory):
    """Slices with negative numbers as Python does."""

    def read(self, path: str, **page: Any) -> ReadResult:
        page = {key: 0 if value in {-1, -2} else value for key, value in page.items()}
        return super().read(path, **page)


class DecodesEverything(Memory):
    """Decodes the whole file for one page, and replaces what it cannot decode."""

    def read(self, path: str, **page: Any) -> ReadResult:
        try:
            return super().read(path, **page)
        except ValueError:
            data = self.read_bytes(path).content
            return ReadResult(data.decode(errors="replace"), path, 1, 0, 0, False)


class ForgetsTruncation(Memory):
    """Never reports truncation."""

    def read_bytes(self, path: str, **page: Any) -> ReadBytesResult:
        return replace(super().read_bytes(path, **page), truncated=False)


class Unsorted(Memory):
    """Lists in the order of creation, newest first."""

    def list(self, path: str = ".") -> Results[FileEntry]:
        found = super().list(path)
        return Results(reversed(found), truncated=found.truncated)


class SortsByKind(Memory):
    """Lists directories first, as file managers do."""

    def list(self, path: str = ".") -> Results[FileEntry]:
        return Results(sorted(super().list(path), key=lambda entry: entry.is_file))


class HasNoSizes(Memory):
    """Knows the size of a file only when it was created."""

    def __init__(self, *, read_only: bool = False, limits: Limits = MEMORY_LIMITS) -> None:
        super().__init__(read_only=read_only, limits=limits)
        self.sizes: dict[str, int] = {}

    def _lookup(self, path: str) -> FileStat | None:
        found = super()._lookup(path)
        if found is None or not found.is_file:
            return found
        return replace(found, size_bytes=self.sizes.setdefault(path, found.size_bytes))


class StaleHash(Memory):
    """Takes the hash of the path, not of the bytes."""

    def stat(self, path: str) -> FileStat:
        return replace(super().stat(path), hasher=lambda: "0" * 64)


class OldTimes(Memory):
    """Reports the epoch as every time."""

    def stat(self, path: str) -> FileStat:
        return replace(super().stat(path), modified_at=datetime(1970, 1, 1, tzinfo=UTC))


class FrozenTimes(Memory):
    """Reports the time at which it was opened for every change."""

    def __init__(self, *, read_only: bool = False, limits: Limits = MEMORY_LIMITS) -> None:
        super().__init__(read_only=read_only, limits=limits)
        self.opened = datetime.now(UTC)

    def stat(self, path: str) -> FileStat:
        return replace(super().stat(path), modified_at=self.opened)


class TimesGoBack(Memory):
    """Reports an earlier time after every write."""

    def stat(self, path: str) -> FileStat:
        found = super().stat(path)
        age = timedelta(seconds=found.size_bytes)
        return replace(found, modified_at=found.modified_at and found.modified_at - age)


class PrefixExists(Memory):
    """Reports a path as existing if it is a prefix of another."""

    def exists(self, path: str) -> bool:
        if super().exists(path):
            return True
        return any(match.path.startswith(path) for match in self.glob("**"))


class ExistsRaises(Memory):
    """Raises from `exists` for an invalid path."""

    def exists(self, path: str) -> bool:
        return self._lookup(normalize_path(path)) is not None


class ClaimsToCountAll(Memory):
    """Reports an incomplete count as exact."""

    def read(self, path: str, **page: Any) -> ReadResult:
        return replace(super().read(path, **page), total_is_exact=True)


class LoadsWhatDoesNotFit(Memory):
    """Ignores the limit on bytes to read."""

    def read_bytes(self, path: str, **page: Any) -> ReadBytesResult:
        kept, self._limits = self._limits, replace(self._limits, max_read_bytes=10**12)
        try:
            return super().read_bytes(path, **page)
        finally:
            self._limits = kept
