"""Export a workspace to a ZIP archive: deterministic, atomic, incremental.

Files are read in the order of the archive and compressed in threads. Files that are unchanged
since a previous archive are copied from it without compressing them again.
"""

import hashlib
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from weakincentives import posix
from weakincentives.filesystem.archive.format import (
    FILES_PREFIX,
    encode_manifest,
    entry_name,
    error_context,
    escape,
    format_mode,
    is_plain,
)
from weakincentives.filesystem.archive.zip_writer import (
    CompressedContent,
    DamagedError,
    EarlierArchive,
    RawCopy,
    StoredEntry,
    ZipWriter,
    compress,
    open_earlier,
)
from weakincentives.filesystem.base import SearchableFilesystem
from weakincentives.filesystem.manifest import (
    DIRECTORY_PERMISSIONS,
    FILE_PERMISSIONS,
    MANIFEST,
    VERSION,
    ArchiveDocument,
    DirectoryRecord,
    FileRecord,
    LinkRecord,
)
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import FileStat

MAX_WHOLE_FILE = 1024 * 1024
"""Bytes; larger files are read in chunks."""
_BATCH_BYTES = 256 * 1024  # that one thread compresses at a time
_MAX_BATCH_ENTRIES = 256
ENTRY_WRITTEN, ALL_WRITTEN = "archive.entry", "archive.written"
RENAMED, SYNCED = "archive.renamed", "archive.synced"
FAULT_POINTS = (ENTRY_WRITTEN, ALL_WRITTEN, RENAMED, SYNCED)


def list_paths(state: SearchableFilesystem) -> list[tuple[str, str, bool]]:
    """Return every path, escaped and plain, and whether it is a directory with children.

    Sorted by ZIP name; the escaped path of a directory ends with a slash, as its ZIP name does.
    """
    found: list[tuple[str, str, bool]] = []
    folders = [""]
    for directory in folders:
        posix.check_time("Archive")
        files, directories, links = _list_names(state, directory)
        prefix = directory + "/" if directory else ""
        folders += [prefix + name for name in directories]
        if directory:
            is_parent = bool(files or directories or links)
            found.append((escape(directory) + "/", directory, is_parent))
        paths = [prefix + name for name in (*files, *links)]
        if is_plain("".join(paths)):
            found += [(path, path, False) for path in paths]
        else:
            found += [(escape(path), path, False) for path in paths]
    found.sort()
    return found


def _list_names(state: SearchableFilesystem, directory: str) -> list[list[str]]:
    """Return the names of files, directories and links in a directory."""
    try:
        groups = state._children(directory)[:3]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # reads by primitives
    except OSError:
        found = state._lookup(directory)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # the same
        if found is not None and found.is_directory:
            raise
        return [[], [], []]  # removed since it was listed
    return [
        [name for name in group if not name.startswith(posix.RESERVED_PREFIX)] for group in groups
    ]


class _Listing:
    """Looks up sorted paths, of which each directory is listed once."""

    def __init__(self, state: SearchableFilesystem) -> None:
        self._stats = state._stats  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # reads by primitives
        self._lookup = state._lookup  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # the same
        self._open: list[tuple[str, dict[str, FileStat]]] = []  # the directories above a path

    def find(self, path: str) -> FileStat | None:
        """Return the entry at `path`; None if it was removed."""
        parent, _, name = path.rpartition("/")
        while self._open and not _is_within(parent, self._open[-1][0]):
            self._open.pop()
        if not self._open or self._open[-1][0] != parent:
            self._open.append((parent, self._list(parent)))
        # one that is not listed may have been replaced, or its directory cannot be listed any more
        return self._open[-1][1].get(name) or self._lookup(path)

    def _list(self, directory: str) -> dict[str, FileStat]:
        try:
            return self._stats(directory)
        except OSError:
            return {}


def _is_within(path: str, directory: str) -> bool:
    return not directory or path == directory or path.startswith(f"{directory}/")


@dataclass(slots=True, eq=False)
class Entry:
    """A file, link or directory to export."""

    escaped: str
    found: FileStat
    is_parent: bool
    """Whether it is a directory with children."""
    digest: str | None = None
    copy: RawCopy | None = None
    data: bytes | None = None
    packed: CompressedContent | None = None

    @property
    def permissions(self) -> int:
        """The nine permission bits."""
        return self.found.permissions & 0o777

    @property
    def name(self) -> str:
        """The ZIP name of a file."""
        return FILES_PREFIX + entry_name(self.escaped)


class EntryCollector:
    """Collects the entries of a filesystem, in the order of the archive."""

    def __init__(
        self, fs: SearchableFilesystem, earlier: EarlierArchive, codec: posix.Codec
    ) -> None:
        """Read `fs`, frozen if it supports that; files that `earlier` has are not compressed."""
        self._state = fs._stable_view()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # reads by primitives
        self._lookup = self._state._lookup  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # the same
        self._open = self._state._open  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] # the same
        self.is_frozen: bool = self._state is not fs
        self._earlier = earlier
        self._codec = codec

    def entries(self) -> Generator[Entry, None, None]:
        """Yield all entries; small files are compressed, or found in the previous archive."""
        with closing(posix.parallel_map(self._compress_batch, self._batches())) as batches:
            for batch in batches:
                yield from batch

    def open_file(self, found: FileStat) -> Content | None:
        """Open a file; None if it was removed, or is not a file any more."""
        try:
            return self._open(found.path)
        except OSError:
            again = self._lookup(found.path)
            if again is not None and again.is_file:
                raise
            return None

    def _batches(self) -> Iterator[list[Entry]]:
        batch: list[Entry] = []
        size = 0
        listing = _Listing(self._state)
        for escaped, path, is_parent in list_paths(self._state):
            found = listing.find(path)
            if found is None:
                continue  # removed since it was listed
            entry = Entry(escaped.removesuffix("/"), found, is_parent=is_parent)
            if found.is_file and not self._read(entry):
                continue
            batch.append(entry)
            size += 0 if entry.data is None else len(entry.data)
            if size >= _BATCH_BYTES or len(batch) >= _MAX_BATCH_ENTRIES:
                posix.check_time("Archive")
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _read(self, entry: Entry) -> bool:
        """Read a file unless it can be copied or is large; return False if it was removed."""
        found = entry.found
        if self.is_frozen:
            # a frozen state caches the hashes of its files
            entry.digest = found.content_hash
            if entry.digest is not None:
                entry.copy = self._earlier.find(entry.escaped, found.size_bytes, entry.digest)
        if entry.copy is None and found.size_bytes <= MAX_WHOLE_FILE:
            content = self.open_file(found)
            if content is None:
                return False
            with content:
                if content.size <= MAX_WHOLE_FILE:
                    entry.data = content.read(0, content.size)
        return True

    def _compress_batch(self, batch: list[Entry]) -> list[Entry]:
        """Compress the files that have been read; runs in any thread."""
        for entry in batch:
            if entry.data is None:
                continue
            posix.check_time("Archive")
            if entry.digest is None:
                entry.digest = hashlib.sha256(entry.data).hexdigest()
                entry.copy = self._earlier.find(entry.escaped, len(entry.data), entry.digest)
            if entry.copy is None:
                entry.packed = compress(self._codec, entry.data)
        return batch


def export_archive(
    fs: SearchableFilesystem,
    path: Path,
    *,
    created_at: datetime | None = None,
    previous: Path | None = None,
    codec: posix.Codec = posix.DEFAULT_CODEC,
) -> int:
    """Write the state of `fs` to a ZIP file; return the number of files in it.

    Args:
        fs: The source: a live filesystem, a snapshot or another archive.
        path: The target, replaced atomically when the new archive is complete.
        created_at: The date in the manifest; by default now.
        previous: An earlier archive of the same workspace, which may be `path`: the compressed
            bytes of unchanged files are copied from it.
        codec: The compression library.

    Raises:
        ValueError: `created_at` has no time zone.
        OSError: A file cannot be read or written; `path` is unchanged.
    """
    if created_at is not None and created_at.tzinfo is None:
        raise ValueError(f"created_at must have a time zone: {created_at!r}")
    date = (created_at or datetime.now(UTC)).astimezone(UTC).isoformat()
    path.parent.mkdir(parents=True, exist_ok=True)
    with error_context(path), posix.open_directory(path.parent) as directory:
        posix.remove_leftovers(directory)  # of killed exports
        with open_earlier(previous, codec) as earlier:
            export = _Export(fs, earlier, codec, date)
            posix.store_file(directory, path.name, export.write, durable=True)
        posix.fault_point(RENAMED)
        posix.sync_directory(directory)
        posix.fault_point(SYNCED)
    return len(export.files)


class _Export:
    """One export."""

    def __init__(
        self, fs: SearchableFilesystem, earlier: EarlierArchive, codec: posix.Codec, created_at: str
    ) -> None:
        self._collector = EntryCollector(fs, earlier, codec)
        self._earlier = earlier
        self._codec = codec
        self._created_at = created_at
        self.files: list[FileRecord] = []
        self._links: list[LinkRecord] = []
        self._directories: list[DirectoryRecord] = []

    def write(self, descriptor: int) -> None:
        """Write the archive to an empty file; start over if the previous one is damaged."""
        try:
            self._write(ZipWriter(descriptor, self._codec, self._earlier))
        except DamagedError:
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            self.files, self._links, self._directories = [], [], []
            self._earlier.forget()
            self._write(ZipWriter(descriptor, self._codec, self._earlier))

    def _write(self, writer: ZipWriter) -> None:
        with closing(self._collector.entries()) as entries:
            for entry in entries:
                if entry.copy is None or not self._add_copy(writer, entry, entry.copy):
                    self._add(writer, entry)
                posix.fault_point(ENTRY_WRITTEN)
        posix.fault_point(ALL_WRITTEN)
        manifest = ArchiveDocument(
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
        writer.add(MANIFEST, FILE_PERMISSIONS, compress(self._codec, data), data)
        writer.finish()

    def _add(self, writer: ZipWriter, entry: Entry) -> None:
        found, escaped = entry.found, entry.escaped
        if found.is_file:
            self._add_file(writer, entry)
        elif found.link_target is not None:
            self._links.append(LinkRecord(escaped, escape(found.link_target)))
        elif found.is_directory:
            if not entry.is_parent:
                writer.add_directory(f"{FILES_PREFIX}{entry_name(escaped)}/", entry.permissions)
            if not entry.is_parent or entry.permissions != DIRECTORY_PERMISSIONS:
                mode = format_mode(found.permissions)
                self._directories.append(DirectoryRecord(escaped, mode))

    def _add_file(self, writer: ZipWriter, entry: Entry) -> None:
        if entry.data is None:
            self._add_unread(writer, entry)
            return
        packed = entry.packed or compress(self._codec, entry.data)
        self._record(entry, writer.add(entry.name, entry.permissions, packed, entry.data))

    def _add_unread(self, writer: ZipWriter, entry: Entry) -> None:
        content = self._collector.open_file(entry.found)
        if content is None:
            return
        with content:
            if content.size > MAX_WHOLE_FILE:
                self._add_large(writer, entry, content)
                return
            entry.data = content.read(0, content.size)
        entry.digest = hashlib.sha256(entry.data).hexdigest()
        self._add_file(writer, entry)

    def _add_large(self, writer: ZipWriter, entry: Entry, content: Content) -> None:
        hashed = _HashedContent(content)
        if not self._collector.is_frozen and self._earlier.find(entry.escaped, content.size):
            for _ in hashed.chunks():
                pass
            known = self._earlier.find(entry.escaped, content.size, hashed.digest)
            if known is not None and self._add_copy(writer, entry, known):
                return
        stored = writer.add_large(entry.name, entry.permissions, content.size, hashed.chunks)
        entry.digest = hashed.digest
        self._record(entry, stored)

    def _add_copy(self, writer: ZipWriter, entry: Entry, copy: RawCopy) -> bool:
        """Copy a file from the previous archive, unless that would exceed the ratio limit."""
        if not writer.add_copy(copy, entry.permissions):
            return False
        record, mode = copy.record, format_mode(entry.permissions)
        self.files.append(record if record.mode == mode else replace(record, mode=mode))
        return True

    def _record(self, entry: Entry, stored: StoredEntry) -> None:
        place = entry_name(entry.escaped)
        self.files.append(
            FileRecord(
                path=entry.escaped,
                size=stored.size,
                sha256=entry.digest or "",
                mode=format_mode(entry.permissions),
                packed_crc32=f"{stored.packed_crc:08x}",
                entry=None if place == entry.escaped else place,
            )
        )


class _HashedContent:
    """A file read in chunks; `digest` is the hash of the last complete read."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self.digest = ""

    def chunks(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        offset = 0
        while chunk := self._content.read(offset, MAX_WHOLE_FILE):
            posix.check_time("Archive")
            digest.update(chunk)
            yield chunk
            offset += len(chunk)
        self.digest = digest.hexdigest()
