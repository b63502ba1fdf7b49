"""Backends that write, remove or name things wrongly."""

import unicodedata
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tests.filesystem.mutants.sound import Memory
from weakincentives.filesystem import (
    FileStat,
    InvalidPathError,
    LimitExceededError,
    PathEscapeError,
    ReadResult,
    WriteResult,
)


class ForgetsCreate(Memory):
    """Treats "create" as "overwrite"."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        mode = how.pop("mode", "overwrite")
        other = "overwrite" if mode == "create" else mode
        return replace(super().write(path, content, mode=other, **how), mode=mode)


class CountsAppendTotal(Memory):
    """Reports the size of the whole file after an append."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        done = super().write(path, content, **how)
        return replace(done, bytes_written=self.stat(path).size_bytes)


class AlwaysMakesParents(Memory):
    """Ignores create_parents=False and parents=False."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        how["create_parents"] = True
        return super().write(path, content, **how)

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        super().mkdir(path, exist_ok=exist_ok)


class LeavesParents(Memory):
    """Creates the parents before it checks the name."""

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        first, slash, _ = path.partition("/")
        if slash and first and first.isalnum() and len(first) < 80 and not self.exists(first):
            super().mkdir(first)
        super().mkdir(path, parents=parents, exist_ok=exist_ok)


class CountsBytes(Memory):
    """Limits the bytes of a text and not its characters."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        super()._check_length(len(content.encode(errors="replace")))
        return super().write(path, content, **how)


class LimitsTheFile(Memory):
    """Limits the file and not the call."""

    def _append(self, path: str, data: bytes) -> None:
        self._check_length(self.stat(path).size_bytes + len(data))
        super()._append(path, data)


class OffByOne(Memory):
    """Refuses the longest content that is allowed."""

    def _check_length(self, length: int) -> None:
        super()._check_length(length + 1)


class KeepsTheSpelling(Memory):
    """Reports paths as they were given."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        done = super().write(path, content, **how)
        return replace(done, path=path)


class NoLimit(Memory):
    """Writes anything, however long."""

    def _check_length(self, length: int) -> None:
        pass


class DeletesSiblings(Memory):
    """Deletes every path with the same prefix."""

    def delete(self, path: str, *, recursive: bool = False) -> None:
        super().delete(path, recursive=recursive)
        for entry in self.list():
            if recursive and entry.name.startswith(path.strip("/")):
                super().delete(entry.path, recursive=True)


class DeletesEmpty(Memory):
    """Deletes an empty directory without `recursive`."""

    def delete(self, path: str, *, recursive: bool = False) -> None:
        try:
            super().delete(path, recursive=recursive)
        except IsADirectoryError:
            if self.list(path):
                raise
            super().delete(path, recursive=True)


class PrunesParents(Memory):
    """Removes directories that became empty, as git does."""

    def delete(self, path: str, *, recursive: bool = False) -> None:
        super().delete(path, recursive=recursive)
        parent = path.rpartition("/")[0]
        if parent and not self.list(parent):
            super().delete(parent, recursive=True)


class MissingIsFine(Memory):
    """Ignores the deletion of a missing path."""

    def delete(self, path: str, *, recursive: bool = False) -> None:
        with suppress(FileNotFoundError):
            super().delete(path, recursive=recursive)


class DeletesRoot(Memory):
    """Empties the root without `recursive`."""

    def _delete_root(self, *, recursive: bool) -> None:
        super()._delete_root(recursive=True)


class StrictMkdir(Memory):
    """Refuses to make the root, and ignores exist_ok."""

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        if self.exists(path):
            raise FileExistsError(path)
        super().mkdir(path, parents=parents, exist_ok=exist_ok)


class MkdirReplaces(Memory):
    """Puts a directory in the place of a file."""

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        if self.exists(path) and self.stat(path).is_file:
            self.delete(path)
        super().mkdir(path, parents=parents, exist_ok=exist_ok)


class FollowsDotDot(Memory):
    """Drops `..` instead of rejecting it."""

    def read(self, path: str, **page: Any) -> ReadResult:
        try:
            return super().read(path, **page)
        except PathEscapeError:
            raise FileNotFoundError(path) from None


class CutsAtNul(Memory):
    """Cuts a path at a NUL."""

    def stat(self, path: str) -> FileStat:
        return super().stat(path.partition("\0")[0] if isinstance(path, str) else str(path))


class AnyName(Memory):
    """Creates any name that the tree can hold."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        try:
            return super().write(path, content, **how)
        except (InvalidPathError, LimitExceededError):
            if "\0" in path or "/" in path:
                raise
            self._store(path, content.encode())
            return WriteResult(path, len(content), "overwrite", True)


class JudgesByCategory(Memory):
    """Looks at the category of a character only, so fillers and selectors pass."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        try:
            return super().write(path, content, **how)
        except InvalidPathError:
            hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
            if "/" in path or hidden & set(map(unicodedata.category, path)) or path.strip() != path:
                raise
            self._store(path, content.encode())
            return WriteResult(path, len(content), "overwrite", True)


class FoldsCase(Memory):
    """Folds names to lower case."""

    def write(self, path: str, content: str, **how: Any) -> WriteResult:
        return super().write(path.lower(), content, **how)


class ChecksNamesOnRead(Memory):
    """Rejects reads of names that could not be created."""

    def _lookup(self, path: str) -> FileStat | None:
        if any(len(segment) > 80 or "\a" in segment for segment in path.split("/")):
            raise InvalidPathError(f"Bad name: {path!r}")
        return super()._lookup(path)
