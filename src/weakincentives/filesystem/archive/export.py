"""Every path of a state, in the order in which an archive holds them."""

import hashlib
import os
from collections.abc import Generator, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from weakincentives.filesystem.archive.format import (
    FILES_PREFIX,
    encode_manifest,
    entry_of,
    error_context,
    escape,
    is_plain,
    mode_of,
)
from weakincentives.filesystem.archive.parallel import parallel_map
from weakincentives.filesystem.archive.zip_writer import (
    CompressedContent,
    DamagedError,
    EarlierArchive,
    RawCopy,
    StoredEntry,
    ZipWriter,
    earlier_archive,
    pack,
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
from weakincentives.posix import (
    DEFAULT_CODEC,
    RESERVED_PREFIX,
    Codec,
    check_time,
    fault_point,
    is_temporary,
    remove_leftovers,
    store_file,
    sync_directory,
)


def list_paths(state: SearchableFilesystem) -> list[tuple[str, str, bool]]:
    """Return every path, escaped and plain, and whether something is below it.

    Sorted by the names in the ZIP, where those of directories end with a slash, and so do
    the escaped paths of directories here.
    """
    found: list[tuple[str, str, bool]] = []
    folders = [""]
    for directory in folders:
        check_time("Archive")
        files, directories, links = _names(state, directory)
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


def _names(state: SearchableFilesystem, directory: str) -> list[list[str]]:
    """Return the names of files, directories and links in a directory."""
    try:
        groups = state._children(directory)[:3]  # pyright: ignore[reportPrivateUsage] # a state is read by its primitives
    except OSError:
        found = state._lookup(directory)  # pyright: ignore[reportPrivateUsage] # the same
        if found is not None and found.is_directory:
            raise
        return [[], [], []]  # gone since it was listed
    return [[name for name in group if not name.startswith(RESERVED_PREFIX)] for group in groups]


LARGE = 1024 * 1024
"""Bytes: what is larger is not read as a whole."""
_BATCH = 256 * 1024  # bytes that are packed by one thread at a time
_MOST = 256  # entries in a batch


class Entry:
    """Something in the state, and what becomes of it in the archive."""

    __slots__ = (
        "data",
        "digest",
        "escaped",
        "found",
        "is_parent",
        "known",
        "packed",
        "permissions",
    )

    def __init__(self, escaped: str, found: FileStat, is_parent: bool) -> None:
        """Describe what was found; `is_parent` says that something is below it."""
        self.escaped: str = escaped
        self.found: FileStat = found
        self.is_parent: bool = is_parent
        self.permissions: int = found.permissions & 0o777
        self.digest: str | None = None
        self.known: RawCopy | None = None
        self.data: bytes | None = None
        self.packed: CompressedContent | None = None

    @property
    def name(self) -> str:
        """The name of a file in the ZIP."""
        return FILES_PREFIX + entry_of(self.escaped)


class EntryCollector:
    """The entries of a state, in the order of the archive."""

    def __init__(self, fs: SearchableFilesystem, earlier: EarlierArchive, codec: Codec) -> None:
        """Read `fs` as it is now, if it can be frozen; `earlier` is what need not be packed."""
        self._state = fs._stable()  # pyright: ignore[reportPrivateUsage] # a state is read by its primitives
        self._lookup = self._state._lookup  # pyright: ignore[reportPrivateUsage] # the same
        self._open = self._state._open  # pyright: ignore[reportPrivateUsage] # the same
        self.is_frozen: bool = self._state is not fs
        self._earlier = earlier
        self._codec = codec

    def entries(self) -> Generator[Entry, None, None]:
        """Yield everything; small files have been read and packed, or are known."""
        with closing(parallel_map(self._prepared, self._batches())) as batches:
            for batch in batches:
                yield from batch

    def opened(self, found: FileStat) -> Content | None:
        """Open a file; None if it has gone, or been replaced by something else."""
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
        for escaped, path, is_parent in list_paths(self._state):
            found = self._lookup(path)
            if found is None:
                continue  # gone since it was listed
            entry = Entry(escaped.removesuffix("/"), found, is_parent)
            if found.is_file and not self._read(entry):
                continue
            batch.append(entry)
            size += 0 if entry.data is None else len(entry.data)
            if size >= _BATCH or len(batch) >= _MOST:
                check_time("Archive")
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _read(self, entry: Entry) -> bool:
        """Read a file unless it is known or large; return False if it has gone."""
        found = entry.found
        if self.is_frozen:
            # a state that nobody changes remembers the hashes of its files
            entry.digest = found.content_hash
            if entry.digest is not None:
                entry.known = self._earlier.find(entry.escaped, found.size_bytes, entry.digest)
        if entry.known is None and found.size_bytes <= LARGE:
            content = self.opened(found)
            if content is None:
                return False
            with content:
                if content.size <= LARGE:
                    entry.data = content.read(0, content.size)
        return True

    def _prepared(self, batch: list[Entry]) -> list[Entry]:
        """Pack what has been read; runs in any thread."""
        for entry in batch:
            if entry.data is None:
                continue
            check_time("Archive")
            if entry.digest is None:
                entry.digest = hashlib.sha256(entry.data).hexdigest()
                entry.known = self._earlier.find(entry.escaped, len(entry.data), entry.digest)
            if entry.known is None:
                entry.packed = pack(self._codec, entry.data)
        return batch


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
    codec: Codec = DEFAULT_CODEC,
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
    with error_context(path):
        directory = os.open(path.parent, _DIRECTORY)
        try:
            _sweep(directory)
            with earlier_archive(previous, codec) as earlier:
                export = _Export(fs, earlier, codec, date)
                store_file(directory, path.name, export.write, durable=True)
            fault_point(RENAMED)
            sync_directory(directory)
            fault_point(SYNCED)
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
        self._gathering = EntryCollector(fs, earlier, codec)
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
                fault_point(ENTRY_WRITTEN)
        fault_point(ALL_WRITTEN)
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
        writer.add(MANIFEST, FILE_PERMISSIONS, pack(self._codec, data), data)
        writer.finish()

    def _add(self, writer: ZipWriter, entry: Entry) -> None:
        found, escaped = entry.found, entry.escaped
        if found.is_file:
            self._add_file(writer, entry)
        elif found.link_target is not None:
            self._links.append(LinkRecord(escaped, escape(found.link_target)))
        elif found.is_directory:
            if not entry.is_parent:
                writer.add_directory(f"{FILES_PREFIX}{entry_of(escaped)}/", entry.permissions)
            if not entry.is_parent or entry.permissions != DIRECTORY_PERMISSIONS:
                mode = mode_of(found.permissions)
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

    def _take(self, writer: ZipWriter, entry: Entry, copy: RawCopy) -> bool:
        """Take a file over from the earlier archive, unless that would be packed too tightly."""
        if not writer.add_copy(copy, entry.permissions):
            return False
        record, mode = copy.record, mode_of(entry.permissions)
        self.files.append(record if record.mode == mode else replace(record, mode=mode))
        return True

    def _record(self, entry: Entry, stored: StoredEntry) -> None:
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
