"""A filesystem with the thirteen members of the protocol and nothing else."""

from collections.abc import Sequence
from typing import Literal

from weakincentives.filesystem import (
    FileEntry,
    FileStat,
    Filesystem,
    GlobMatch,
    GrepMatch,
    InMemoryFilesystem,
    ReadBytesResult,
    ReadResult,
    WriteResult,
)

Mode = Literal["create", "overwrite", "append"]


class Plain:
    """Somebody's own backend: no events, no snapshots, no savepoints, and lists as results."""

    __slots__ = ("backend",)

    def __init__(self) -> None:
        self.backend = InMemoryFilesystem()

    @property
    def root(self) -> str:
        return "/"

    @property
    def read_only(self) -> bool:
        return False

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, encoding: str = "utf-8"
    ) -> ReadResult:
        return self.backend.read(path, offset=offset, limit=limit, encoding=encoding)

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        return self.backend.read_bytes(path, offset=offset, limit=limit)

    def exists(self, path: str) -> bool:
        return self.backend.exists(path)

    def stat(self, path: str) -> FileStat:
        return self.backend.stat(path)

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        return [*self.backend.list(path)]

    def glob(self, pattern: str, *, path: str = ".") -> Sequence[GlobMatch]:
        return [*self.backend.glob(pattern, path=path)]

    def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        max_matches: int | None = None,
    ) -> Sequence[GrepMatch]:
        return [*self.backend.grep(pattern, path=path, glob=glob, max_matches=max_matches)]

    def write(
        self, path: str, content: str, *, mode: Mode = "overwrite", create_parents: bool = True
    ) -> WriteResult:
        return self.backend.write(path, content, mode=mode, create_parents=create_parents)

    def write_bytes(
        self, path: str, content: bytes, *, mode: Mode = "overwrite", create_parents: bool = True
    ) -> WriteResult:
        return self.backend.write_bytes(path, content, mode=mode, create_parents=create_parents)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        self.backend.delete(path, recursive=recursive)

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        self.backend.mkdir(path, parents=parents, exist_ok=exist_ok)


_: type[Filesystem] = Plain  # the type checker proves that it is one
