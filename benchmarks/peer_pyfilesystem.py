# pyright: basic, reportMissingImports=false
"""PyFilesystem2: OSFS on disk, MemoryFS in memory; paging and grep as users write them."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it still declares itself through pkg_resources
    from fs.copy import copy_fs
    from fs.memoryfs import MemoryFS
    from fs.osfs import OSFS

from benchmarks.loops import grep_lines, page_of
from benchmarks.subject import Subject


class _PyFilesystem(Subject):
    """What both share."""

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    def load(self, files: Mapping[str, bytes]) -> None:
        made: set[str] = set()
        for path, content in files.items():
            parent = path.rpartition("/")[0]
            if parent not in made:
                self.fs.makedirs(parent, recreate=True)
                made.add(parent)
            self.fs.writebytes(path, content)

    def hydrate(self, root: str) -> object:
        with OSFS(root) as source:
            copy_fs(source, self.fs)
        return None

    def total(self, raw: object) -> tuple[int, int]:
        sizes = [info.size for _, info in self.fs.walk.info(namespaces=["details"]) if info.is_file]
        return len(sizes), sum(sizes)

    def list_folder(self, path: str) -> object:
        return list(self.fs.scandir(path))

    def names(self, raw: Any) -> list[str]:
        return sorted(info.name for info in raw)

    def read(self, path: str) -> object:
        return self.fs.readtext(path, encoding="utf-8")

    def text(self, raw: Any) -> str:
        return raw

    def read_page(self, path: str, offset: int, limit: int) -> object:
        return page_of(self.fs.readtext(path, encoding="utf-8"), offset, limit)

    def page(self, raw: Any) -> tuple[str, int]:
        return raw

    def write(self, path: str, text: str) -> object:
        return self.fs.writetext(path, text, encoding="utf-8")

    def glob(self, pattern: str) -> object:
        return [match.path for match in self.fs.glob(pattern)]

    def paths(self, raw: Any) -> list[str]:
        return sorted(path.lstrip("/") for path in raw)

    def grep(self, pattern: str) -> object:
        paths = self.fs.walk.files()
        return grep_lines(((path, self.fs.readbytes(path)) for path in paths), pattern)

    def hits(self, raw: Any) -> list[tuple[str, int]]:
        return sorted((path.lstrip("/"), line) for path, line in raw)

    def close(self) -> None:
        self.fs.close()


class PyFilesystemHost(_PyFilesystem):
    """OSFS on a directory."""

    name = "PyFilesystem2 OSFS"

    def __init__(self, root: Path) -> None:
        """Open the directory."""
        super().__init__(OSFS(str(root)))


class PyFilesystemMemory(_PyFilesystem):
    """MemoryFS."""

    name = "PyFilesystem2 MemoryFS"

    def __init__(self) -> None:
        """Start empty."""
        super().__init__(MemoryFS())
