# pyright: basic, reportMissingImports=false
"""fsspec: LocalFileSystem on disk, MemoryFileSystem in memory; paging and grep by hand."""

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from benchmarks.loops import grep_lines, page_of
from benchmarks.subject import Subject


class _Fsspec(Subject):
    """What both share; `base` is put before every path."""

    def __init__(self, fs: Any, base: str) -> None:
        self.fs = fs
        self.base = base

    def load(self, files: Mapping[str, bytes]) -> None:
        for path, content in files.items():
            self.fs.pipe_file(self.base + path, content)

    def hydrate(self, root: str) -> object:
        return self.fs.put(f"{root}/", self.base, recursive=True)

    def total(self, raw: object) -> tuple[int, int]:
        found = self.fs.find(self.base, detail=True)
        return len(found), sum(info["size"] for info in found.values())

    def list_folder(self, path: str) -> object:
        return self.fs.ls(self.base + path, detail=True)

    def names(self, raw: Any) -> list[str]:
        return sorted(posixpath.basename(entry["name"]) for entry in raw)

    def read(self, path: str) -> object:
        return self.fs.cat_file(self.base + path).decode()

    def text(self, raw: Any) -> str:
        return raw

    def read_page(self, path: str, offset: int, limit: int) -> object:
        return page_of(self.fs.cat_file(self.base + path).decode(), offset, limit)

    def page(self, raw: Any) -> tuple[str, int]:
        return raw

    def write(self, path: str, text: str) -> object:
        return self.fs.pipe_file(self.base + path, text.encode())

    def glob(self, pattern: str) -> object:
        return self.fs.glob(self.base + pattern)

    def paths(self, raw: Any) -> list[str]:
        return sorted(path.removeprefix(self.base) for path in raw)

    def grep(self, pattern: str) -> object:
        paths = self.fs.find(self.base)
        return grep_lines(((path, self.fs.cat_file(path)) for path in paths), pattern)

    def hits(self, raw: Any) -> list[tuple[str, int]]:
        return sorted((path.removeprefix(self.base), line) for path, line in raw)


class FsspecHost(_Fsspec):
    """LocalFileSystem with absolute paths, as it asks for."""

    name = "fsspec LocalFileSystem"

    def __init__(self, root: Path) -> None:
        """Keep the directory as a prefix."""
        super().__init__(LocalFileSystem(auto_mkdir=True), f"{root}/")


class FsspecMemory(_Fsspec):
    """MemoryFileSystem with a store of its own instead of the global one."""

    name = "fsspec MemoryFileSystem"

    def __init__(self) -> None:
        """Start empty."""
        fs = MemoryFileSystem(skip_instance_cache=True)
        fs.store, fs.pseudo_dirs = {}, [""]
        super().__init__(fs, "/")
