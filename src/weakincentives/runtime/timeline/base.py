"""The base of a timeline: the files of its first step, as a snapshot inside the file.

The snapshot of a workspace is stored already when a recording begins. Its objects are copied as
they are: no file is read, hashed or compressed again. What is left out of the recording is not in
the base.
"""

from collections.abc import Generator, Iterator, MutableMapping
from contextlib import contextmanager

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import Content
from weakincentives.filesystem.derived import DerivedFiles
from weakincentives.filesystem.host import (
    SnapshotBundle,
    SnapshotFilesystem,
    open_blob,
    open_bundle,
)
from weakincentives.gitstore import DIRECTORY, LINK, ObjectError, TreeEntry, max_index_size
from weakincentives.posix import check_time, join
from weakincentives.runtime.timeline.records import (
    BASE,
    HEADER_SIZE,
    RecordReader,
    RecordWriter,
    TimelineError,
)
from weakincentives.runtime.timeline.steps import BaseRecord, Entry

PIECE_SIZE = 4 * 1024 * 1024
"""Bytes of the base in one record; only the last one is shorter."""
_MAX_ENTRIES = 2_000_000  # a crafted tree can have far more entries than bytes
_MAX_TARGET = 64 * 1024  # more than any link has
_LINK_PERMISSIONS = 0o777
_SPECIAL_PERMISSIONS = 0o644


def write_base(
    writer: RecordWriter, snapshot: SnapshotFilesystem, leave_out: DerivedFiles | None
) -> BaseRecord:
    """Append the files of a snapshot without what is in `leave_out`; return where they are.

    Raises:
        ObjectError: The snapshot is not stored in one pack, or damaged.
        OSError: It cannot be written.
    """
    bundle = SnapshotBundle(snapshot, leave_out)
    offset, size = None, 0
    for piece in _pieces(bundle.chunks()):
        check_time("Recording")
        start = writer.append(BASE, piece)
        offset = start if offset is None else offset
        size += len(piece)
    assert offset is not None  # a pack is never empty
    return BaseRecord(offset, bundle.pack_size, size - bundle.pack_size, bundle.tree)


def _pieces(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes, `PIECE_SIZE` at a time."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= PIECE_SIZE:
            yield bytes(buffer[:PIECE_SIZE])
            del buffer[:PIECE_SIZE]
    if buffer:
        yield bytes(buffer)


class BaseFiles:
    """The files of a base; content is verified when it is read."""

    def __init__(self, reader: RecordReader, record: BaseRecord, root: str) -> None:
        """Read the base at `record`.

        Raises:
            TimelineError: It is damaged.
        """
        self._reader = reader
        self._offset = record.offset
        with _errors_in(self._reader):
            self._files = open_bundle(
                self._read,
                pack_size=record.pack_size,
                index=self._read_index(record),
                tree=record.tree,
                root=root,
                name="base",
            )

    def __contains__(self, blob: str) -> bool:
        """Return whether there is a file with the content `blob`, a git id."""
        return blob in self._files.objects

    def open(self, blob: str) -> Content:
        """Open the content with the git id `blob`.

        Raises:
            TimelineError: It is missing or damaged; so may reading.
        """
        with _errors_in(self._reader):
            return _BaseContent(open_blob(self._files.objects, blob), self._reader)

    def lookup(self, path: str) -> Entry | None:
        """Return the entry at a path; None if there is none.

        Raises:
            TimelineError: The base is damaged.
        """
        with _errors_in(self._reader):
            found = self._files.entry(path)
            if found is not None:
                return self._describe(path, found)
            return _special(path) if path in self._files.manifest.specials else None

    def entries(self) -> Iterator[Entry]:
        """Yield every entry, each directory before what is in it.

        Raises:
            TimelineError: The base is damaged.
        """
        with _errors_in(self._reader):
            if self._files.entry_count() > _MAX_ENTRIES:
                raise ObjectError(f"there are more than {_MAX_ENTRIES:,}")
            pending = [("", self._files.files)]
            for path, tree in pending:  # grows while it is iterated
                check_time("Timeline")
                for name, found in self._files.tree(tree).items():
                    inner = join(path, name)
                    yield self._describe(inner, found)
                    if found.mode == DIRECTORY:
                        pending.append((inner, found.id))
            yield from map(_special, self._files.manifest.specials)

    def _describe(self, path: str, found: TreeEntry) -> Entry:
        objects = self._files.objects
        if found.mode == DIRECTORY:
            return Entry(path, "directory", self._files.permissions(path, DIRECTORY))
        if found.mode == LINK:
            with open_blob(objects, found.id) as content:
                target = content.read(0, _MAX_TARGET).decode("utf-8", "surrogateescape")
            return Entry(path, "link", _LINK_PERMISSIONS, target=target)
        permissions = self._files.permissions(path, found.mode)
        return Entry(path, "file", permissions, objects.size_of(found.id), blob=found.id)

    def _read_index(self, record: BaseRecord) -> bytes:
        if not 0 < record.index_size <= max_index_size(record.pack_size):
            raise ObjectError(f"their index cannot have {record.index_size} bytes")
        parts: list[bytes] = []
        at, end = record.pack_size, record.pack_size + record.index_size
        while at < end:
            part = self._read(at, end - at)
            if not part:
                raise ObjectError("they are cut off")
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def _read(self, offset: int, size: int) -> bytes:
        """Return some bytes at an offset in the base; none after the end of the file."""
        number, start = divmod(offset, PIECE_SIZE)
        place = self._offset + number * (HEADER_SIZE + PIECE_SIZE) + HEADER_SIZE + start
        return self._reader.read_bytes(place, min(size, PIECE_SIZE - start))


class BaseEntries(MutableMapping[str, Entry]):
    """The entries of a base and what changed since; they are read when they are needed."""

    def __init__(self, base: BaseFiles) -> None:
        """Begin with the entries of `base`."""
        self._base = base
        self._changed: dict[str, Entry | None] = {}
        self._all: dict[str, Entry] | None = None

    def __getitem__(self, path: str) -> Entry:
        """Return the entry at a path."""
        if self._all is not None:
            return self._all[path]
        found = self._changed[path] if path in self._changed else self._base.lookup(path)
        if not path or found is None:
            raise KeyError(path)
        return found

    def __setitem__(self, path: str, entry: Entry) -> None:
        """Replace the entry at a path."""
        if self._all is not None:
            self._all[path] = entry
        else:
            self._changed[path] = entry

    def __delitem__(self, path: str) -> None:
        """Remove the entry at a path."""
        if self._all is not None:
            del self._all[path]
        else:
            self._changed[self[path].path] = None

    def __iter__(self) -> Iterator[str]:
        """Iterate over the paths."""
        return iter(self._load())

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._load())

    def _load(self) -> dict[str, Entry]:
        if self._all is None:
            found: dict[str, Entry | None] = {each.path: each for each in self._base.entries()}
            found |= self._changed
            self._all = {path: each for path, each in found.items() if each is not None}
        return self._all


class _BaseContent(Content):
    """Content of the base, whose errors are those of a timeline."""

    __slots__ = ("_content", "_reader")

    def __init__(self, content: Content, reader: RecordReader) -> None:
        self._content = content
        self._reader = reader

    @property
    def size(self) -> int:
        return self._content.size

    def read(self, offset: int, size: int) -> bytes:
        with _errors_in(self._reader):
            return self._content.read(offset, size)


def _special(path: str) -> Entry:
    return Entry(path, "special", _SPECIAL_PERMISSIONS)


@contextmanager
def _errors_in(reader: RecordReader) -> Generator[None, None, None]:
    """Turn the errors of a damaged snapshot into those of a timeline."""
    try:
        yield
    except (ObjectError, SnapshotRestoreError) as error:
        raise TimelineError(
            f"The first files of the timeline are damaged: {error}: {str(reader.path)!r}"
        ) from error
