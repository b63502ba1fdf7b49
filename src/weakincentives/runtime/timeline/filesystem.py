"""The files of a workspace at one step, as a read-only filesystem."""

import errno
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    BytesContent,
    Children,
    Content,
    FileStat,
    Limits,
)
from weakincentives.filesystem.base import ReadableFilesystem, content_hash
from weakincentives.filesystem.manifest import DIRECTORY_PERMISSIONS
from weakincentives.posix import os_error
from weakincentives.runtime.timeline.chunks import ChunkedContent, ChunkReader
from weakincentives.runtime.timeline.records import TimelineError
from weakincentives.runtime.timeline.steps import Entry, EntryKind

_ROOT = Entry("", "directory", DIRECTORY_PERMISSIONS)


class StepFilesystem(ReadableFilesystem):
    """The files as they were after a step; content is read from the timeline on demand."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        chunks: ChunkReader,
        *,
        root: str,
        date: datetime,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Show `entries`, whose content `chunks` reads."""
        super().__init__(limits=limits)
        self._recorded = entries
        self._chunks = chunks
        self._root = root
        self._date = date
        self._names: dict[str, Children] | None = None

    @property
    def root(self) -> str:
        """The directory that was recorded; `/` if it was not on disk."""
        return self._root

    def _lookup(self, path: str) -> FileStat | None:
        found = self._recorded.get(path) if path else _ROOT
        if found is None:
            return None
        hasher = None if found.blob is None else partial(self._hash, found.blob)
        return found.stat(self._date, hasher)

    def _children(self, path: str) -> Children:
        if self._names is None:
            self._names = _index(self._recorded)
        found = self._names.get(path)
        if found is None:
            raise os_error(errno.ENOTDIR, path)
        return found

    def _open(self, path: str) -> Content:
        found = self._recorded.get(path)
        if found is None or found.kind != "file":
            raise os_error(errno.ENOENT, path)
        if found.blob is not None:
            return self._open_base(found.blob)
        if found.sha256 is None:
            raise os_error(errno.EACCES, path, "It could not be read when it was recorded")
        if not found.chunks:
            return BytesContent(b"")
        return ChunkedContent(self._chunks, found.chunks, found.size)

    def _blob_id(self, path: str) -> str | None:
        found = self._recorded.get(path)
        return None if found is None else found.blob

    def _open_base(self, blob: str) -> Content:
        if self._chunks.base is None:
            raise TimelineError("The timeline refers to a base that it does not have")
        return self._chunks.base.open(blob)

    def _hash(self, blob: str) -> str:
        with self._open_base(blob) as content:
            return content_hash(content)


def _index(entries: Mapping[str, Entry]) -> dict[str, Children]:
    """Return the names in every directory."""
    names: dict[str, dict[EntryKind, list[str]]] = {"": {}}
    for path, entry in entries.items():
        if entry.kind == "directory":
            names.setdefault(path, {})
        parent, _, name = path.rpartition("/")
        names.setdefault(parent, {}).setdefault(entry.kind, []).append(name)
    return {
        path: Children(*(kinds.get(kind, ()) for kind in ("file", "directory", "link", "special")))
        for path, kinds in names.items()
    }
