"""Exports: the whole state of a workspace in one ZIP file.

The same state gives the same bytes. The file is there whole or not at all, whatever
happens meanwhile. Links are written as links; what is neither file, link nor directory
is left out.
"""

import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

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
    entry_of,
    escape,
    mode_of,
)
from weakincentives.filesystem.archives.reuse import EarlierArchive, earlier_archive
from weakincentives.filesystem.archives.zipwriter import Packed, ZipWriter
from weakincentives.filesystem.faults import reached
from weakincentives.filesystem.leftovers import is_temporary
from weakincentives.filesystem.limits import check_time
from weakincentives.filesystem.paths import join
from weakincentives.filesystem.searchable import SearchableFilesystem
from weakincentives.filesystem.staging import remove_leftovers, store_file, sync_directory
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import FileStat

ENTRY_WRITTEN, ALL_WRITTEN = "archive.entry", "archive.written"
RENAMED, SYNCED = "archive.renamed", "archive.synced"
FAULT_POINTS = (ENTRY_WRITTEN, ALL_WRITTEN, RENAMED, SYNCED)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK = 1024 * 1024


def export_archive(
    fs: SearchableFilesystem,
    path: Path,
    *,
    created_at: datetime | None = None,
    previous: Path | None = None,
) -> int:
    """Write the state of `fs` to a ZIP file; return how many files are in it.

    Args:
        fs: What to write: a live filesystem, a snapshot, another archive.
        path: Where to; what is there is replaced once the new file is complete.
        created_at: What the manifest says; by default the time now.
        previous: An earlier archive of the same workspace, which may be `path`: what
            has not changed since is taken over as it is packed there.

    Raises:
        ValueError: `created_at` has no time zone.
        OSError: Something cannot be read or written; what was at `path` is still there.
    """
    if created_at is not None and created_at.tzinfo is None:
        raise ValueError(f"created_at must have a time zone: {created_at!r}")
    date = (created_at or datetime.now(UTC)).astimezone(UTC).isoformat()
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(path.parent, _DIRECTORY)
    try:
        _sweep(directory)
        with earlier_archive(previous) as earlier:
            export = _Export(fs, earlier)
            store_file(
                directory, path.name, lambda target: export.write(target, date), durable=True
            )
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
    """One export: the entries that have been written so far."""

    def __init__(self, fs: SearchableFilesystem, earlier: EarlierArchive) -> None:
        view = fs._stable()  # pyright: ignore[reportPrivateUsage] # a state is read by its primitives
        self._lookup = view._lookup  # pyright: ignore[reportPrivateUsage] # the same
        self._children = view._children  # pyright: ignore[reportPrivateUsage] # the same
        self._open = view._open  # pyright: ignore[reportPrivateUsage] # the same
        self._is_frozen = view is not fs
        self._earlier = earlier
        self.files: list[FileRecord] = []
        self._links: list[LinkRecord] = []
        self._directories: list[DirectoryRecord] = []

    def write(self, descriptor: int, created_at: str) -> None:
        """Write everything to an empty file."""
        writer = ZipWriter(descriptor)
        for escaped, path, is_parent in self._walk():
            check_time("Archive")
            self._add(writer, path, escaped, is_parent)
        reached(ALL_WRITTEN)
        manifest = Manifest(
            version=VERSION,
            created_at=created_at,
            file_count=len(self.files),
            total_bytes=sum(record.size for record in self.files),
            files=self.files,
            links=self._links,
            directories=self._directories,
        )
        writer.add(MANIFEST, 0o644, encode_manifest(manifest))
        writer.finish()

    def _walk(self) -> list[tuple[str, str, bool]]:
        """Return every path, escaped and plain, and whether something is below it.

        Sorted by the names in the ZIP, where those of directories end with a slash.
        """
        found: dict[str, bool] = {}
        folders: list[str] = [""]
        for directory in folders:
            check_time("Archive")
            files, directories, links = self._names(directory)
            if directory and (files or directories or links):
                found[directory] = True
            found.update((join(directory, name), False) for name in (*files, *links, *directories))
            folders.extend(join(directory, name) for name in directories)
        are_folders = set(folders)
        ordered = sorted(found, key=lambda path: escape(path) + "/" * (path in are_folders))
        return [(escape(path), path, found[path]) for path in ordered]

    def _names(self, directory: str) -> list[list[str]]:
        """Return the names of files, directories and links in a directory."""
        try:
            groups = self._children(directory)[:3]
        except OSError:
            found = self._lookup(directory)
            if found is not None and found.is_directory:
                raise
            return [[], [], []]  # gone since it was listed
        return [[name for name in group if not is_temporary(name)] for group in groups]

    def _add(self, writer: ZipWriter, path: str, escaped: str, is_parent: bool) -> None:
        found = self._lookup(path)
        if found is None:
            return  # gone since it was listed
        if found.is_file:
            self._add_file(writer, found, escaped)
        elif found.link_target is not None:
            self._links.append(LinkRecord(escaped, escape(found.link_target)))
        elif found.is_directory:
            mode = mode_of(found.permissions)
            if not is_parent:
                writer.add_directory(f"{FILES}{entry_of(escaped)}/", found.permissions & 0o777)
            if not is_parent or mode != DIRECTORY_MODE:
                self._directories.append(DirectoryRecord(escaped, mode))
        reached(ENTRY_WRITTEN)

    def _add_file(self, writer: ZipWriter, found: FileStat, escaped: str) -> None:
        place = _Place(escaped, entry_of(escaped), found.permissions & 0o777)
        stored = self._store(writer, place, found)
        if stored is None:
            return
        made, digest = stored
        self.files.append(
            FileRecord(
                path=escaped,
                size=made.size,
                sha256=digest,
                mode=mode_of(place.permissions),
                packed_crc32=f"{made.packed_crc:08x}",
                entry=None if place.entry == escaped else place.entry,
            )
        )

    def _store(
        self, writer: ZipWriter, place: "_Place", found: FileStat
    ) -> tuple[Packed, str] | None:
        """Write a file; return what came of it and its hash, or None if it has gone."""
        # a state that nobody changes remembers the hashes of its files
        digest = found.content_hash if self._is_frozen else None
        made = digest and self._take(writer, place, found.size_bytes, digest)
        if digest and made:
            return made, digest
        try:
            content = self._open(found.path)
        except OSError:
            again = self._lookup(found.path)
            if again is not None and again.is_file:
                raise
            return None  # gone or replaced since it was looked at
        with content:
            if content.size > _CHUNK:
                return self._store_large(writer, place, content)
            data = content.read(0, content.size)
        digest = digest or hashlib.sha256(data).hexdigest()
        made = self._take(writer, place, len(data), digest)
        return made or writer.add(place.name, place.permissions, data), digest

    def _store_large(
        self, writer: ZipWriter, place: "_Place", content: Content
    ) -> tuple[Packed, str]:
        hashed = _Hashed(content)
        if self._earlier.find(place.escaped, content.size):
            for _ in hashed.chunks():
                pass
            made = self._take(writer, place, content.size, hashed.digest)
            if made:
                return made, hashed.digest
        made = writer.add_large(place.name, place.permissions, content.size, hashed.chunks)
        return made, hashed.digest

    def _take(self, writer: ZipWriter, place: "_Place", size: int, digest: str) -> Packed | None:
        """Take a file over from the earlier archive if it is the same there."""
        known = self._earlier.find(place.escaped, size)
        if known is None or known.sha256 != digest:
            return None
        member = known.member
        pieces = self._earlier.raw(known)
        if pieces is None or not writer.takes(size, member.packed_size):
            return None
        writer.add_raw(member, place.permissions, pieces)
        return Packed(size, known.packed_crc)


class _Place(NamedTuple):
    """Where a file goes in the archive."""

    escaped: str
    entry: str
    permissions: int

    @property
    def name(self) -> str:
        return FILES + self.entry


class _Hashed:
    """A file read in chunks; `digest` is the hash of what was read last."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self.digest = ""

    def chunks(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        offset = 0
        while chunk := self._content.read(offset, _CHUNK):
            check_time("Archive")
            digest.update(chunk)
            yield chunk
            offset += len(chunk)
        self.digest = digest.hexdigest()
