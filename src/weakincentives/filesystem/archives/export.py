"""Exports: the whole state of a workspace in one ZIP file.

The same state gives the same bytes. The file is there whole or not at all, whatever
happens meanwhile. Links are written as links; what is neither file, link nor directory
is left out.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from weakincentives.filesystem.archives.format import (
    DIRECTORY_MODE,
    FILES,
    MANIFEST,
    VERSION,
    DirectoryRecord,
    FileRecord,
    LinkRecord,
    Manifest,
    encode_manifest,
    mode_of,
)
from weakincentives.filesystem.archives.gathering import LARGE, Entry, Gathering
from weakincentives.filesystem.archives.names import (
    entry_of,
    escape,
)
from weakincentives.filesystem.archives.reuse import (
    DamagedError,
    EarlierArchive,
    earlier_archive,
)
from weakincentives.filesystem.archives.telling import about
from weakincentives.filesystem.archives.zipwriter import Copy, Stored, ZipWriter, pack
from weakincentives.filesystem.compression import BEST, Codec
from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.leftovers import is_temporary
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.searchable import SearchableFilesystem
from weakincentives.filesystem.staging import remove_leftovers, store_file, sync_directory
from weakincentives.filesystem.text import Content

ENTRY_WRITTEN, ALL_WRITTEN = "archive.entry", "archive.written"
RENAMED, SYNCED = "archive.renamed", "archive.synced"
FAULT_POINTS = (ENTRY_WRITTEN, ALL_WRITTEN, RENAMED, SYNCED)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def export_archive(
    fs: SearchableFilesystem,
    path: Path,
    *,
    created_at: datetime | None = None,
    previous: Path | None = None,
    codec: Codec = BEST,
) -> int:
    """Write the state of `fs` to a ZIP file; return how many files are in it.

    Args:
        fs: What to write: a live filesystem, a snapshot, another archive.
        path: Where to; what is there is replaced once the new file is complete.
        created_at: What the manifest says; by default the time now.
        previous: An earlier archive of the same workspace, which may be `path`: what
            has not changed since is taken over as it is packed there.
        codec: What packs the files.

    Raises:
        ValueError: `created_at` has no time zone.
        OSError: Something cannot be read or written; what was at `path` is still there.
    """
    if created_at is not None and created_at.tzinfo is None:
        raise ValueError(f"created_at must have a time zone: {created_at!r}")
    date = (created_at or datetime.now(UTC)).astimezone(UTC).isoformat()
    path.parent.mkdir(parents=True, exist_ok=True)
    with about(path):
        directory = os.open(path.parent, _DIRECTORY)
        try:
            _sweep(directory)
            with earlier_archive(previous, codec) as earlier:
                export = _Export(fs, earlier, codec, date)
                store_file(directory, path.name, export.write, durable=True)
            reached(RENAMED)
            sync_directory(directory)
            reached(SYNCED)
        finally:
            os.close(directory)
    return len(export.files)


def _sweep(directory: int) -> None:
    """Remove what killed exports left behind."""
    with os.scandir(directory) as entries:
        leftovers = [entry.name for entry in entries if is_temporary(entry.name)]
    remove_leftovers(directory, leftovers)


class _Export:
    """One export."""

    def __init__(
        self, fs: SearchableFilesystem, earlier: EarlierArchive, codec: Codec, created_at: str
    ) -> None:
        self._gathering = Gathering(fs, earlier, codec)
        self._earlier = earlier
        self._codec = codec
        self._created_at = created_at
        self.files: list[FileRecord] = []
        self._links: list[LinkRecord] = []
        self._directories: list[DirectoryRecord] = []

    def write(self, descriptor: int) -> None:
        """Write everything to an empty file."""
        try:
            self._write(ZipWriter(descriptor, self._codec, self._earlier))
        except DamagedError:
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            self.files, self._links, self._directories = [], [], []
            self._earlier.forget()
            self._write(ZipWriter(descriptor, self._codec, self._earlier))

    def _write(self, writer: ZipWriter) -> None:
        with closing(self._gathering.entries()) as entries:
            for entry in entries:
                if entry.known is None or not self._take(writer, entry, entry.known):
                    self._add(writer, entry)
                reached(ENTRY_WRITTEN)
        reached(ALL_WRITTEN)
        manifest = Manifest(
            version=VERSION,
            created_at=self._created_at,
            file_count=len(self.files),
            total_bytes=sum(record.size for record in self.files),
            files=self.files,
            links=self._links,
            directories=self._directories,
            packer=self._codec.name,
        )
        data = encode_manifest(manifest)
        writer.add(MANIFEST, 0o644, pack(self._codec, data), data)
        writer.finish()

    def _add(self, writer: ZipWriter, entry: Entry) -> None:
        found, escaped = entry.found, entry.escaped
        if found.is_file:
            self._add_file(writer, entry)
        elif found.link_target is not None:
            self._links.append(LinkRecord(escaped, escape(found.link_target)))
        elif found.is_directory:
            mode = mode_of(found.permissions)
            if not entry.is_parent:
                writer.add_directory(f"{FILES}{entry_of(escaped)}/", entry.permissions)
            if not entry.is_parent or mode != DIRECTORY_MODE:
                self._directories.append(DirectoryRecord(escaped, mode))

    def _add_file(self, writer: ZipWriter, entry: Entry) -> None:
        if entry.data is None:
            self._add_unread(writer, entry)
            return
        packed = entry.packed or pack(self._codec, entry.data)
        self._record(entry, writer.add(entry.name, entry.permissions, packed, entry.data))

    def _add_unread(self, writer: ZipWriter, entry: Entry) -> None:
        content = self._gathering.opened(entry.found)
        if content is None:
            return
        with content:
            if content.size > LARGE:
                self._add_large(writer, entry, content)
                return
            entry.data = content.read(0, content.size)
        entry.digest = hashlib.sha256(entry.data).hexdigest()
        self._add_file(writer, entry)

    def _add_large(self, writer: ZipWriter, entry: Entry, content: Content) -> None:
        hashed = _Hashed(content)
        if not self._gathering.is_frozen and self._earlier.find(entry.escaped, content.size):
            for _ in hashed.chunks():
                pass
            known = self._earlier.find(entry.escaped, content.size, hashed.digest)
            if known is not None and self._take(writer, entry, known):
                return
        stored = writer.add_large(entry.name, entry.permissions, content.size, hashed.chunks)
        entry.digest = hashed.digest
        self._record(entry, stored)

    def _take(self, writer: ZipWriter, entry: Entry, copy: Copy) -> bool:
        """Take a file over from the earlier archive, unless that would be packed too tightly."""
        if not writer.add_copy(copy, entry.permissions):
            return False
        record, mode = copy.record, mode_of(entry.permissions)
        self.files.append(record if record.mode == mode else replace(record, mode=mode))
        return True

    def _record(self, entry: Entry, stored: Stored) -> None:
        place = entry_of(entry.escaped)
        self.files.append(
            FileRecord(
                path=entry.escaped,
                size=stored.size,
                sha256=entry.digest or "",
                mode=mode_of(entry.permissions),
                packed_crc32=f"{stored.packed_crc:08x}",
                entry=None if place == entry.escaped else place,
            )
        )


class _Hashed:
    """A file read in chunks; `digest` is the hash of what was read last."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self.digest = ""

    def chunks(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        offset = 0
        while chunk := self._content.read(offset, LARGE):
            check_time("Archive")
            digest.update(chunk)
            yield chunk
            offset += len(chunk)
        self.digest = digest.hexdigest()
