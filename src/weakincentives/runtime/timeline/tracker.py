"""What changed in files and sessions since the last step of a recording."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import closing, suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, cast
from uuid import UUID

from weakincentives.filesystem import (
    Content,
    EntryMoved,
    FileStat,
    FilesystemEvent,
    ReadableFilesystem,
    StateReplaced,
)
from weakincentives.filesystem.base import State, outermost
from weakincentives.filesystem.derived import DerivedFiles
from weakincentives.gitstore import hash_object
from weakincentives.posix import check_time, parallel_map, parent_of, parents_of
from weakincentives.runtime.session import Session, Snapshot
from weakincentives.runtime.session.items import Items
from weakincentives.runtime.session.snapshots import (
    Slices,
    UnknownItem,
    list_slices,
    type_name,
)
from weakincentives.runtime.timeline.base import BaseEntries, BaseFiles
from weakincentives.runtime.timeline.chunks import (
    CHUNK_SIZE,
    BaseChunk,
    ChunkWriter,
    PackedChunk,
    Reference,
    pack,
)
from weakincentives.runtime.timeline.steps import (
    Entry,
    FileChanges,
    ItemChange,
    ListChange,
    SessionChange,
    SliceChange,
    Splice,
    remove_below,
)
from weakincentives.serde import SerdeError, encode

_MAX_BATCH = 64  # files


class FileTracker:
    """Collects what changed in a workspace: events name the paths, and these are looked at."""

    def __init__(
        self,
        filesystem: ReadableFilesystem,
        chunks: ChunkWriter,
        entries: MutableMapping[str, Entry],
        leave_out: DerivedFiles | None = None,
        base: BaseFiles | None = None,
    ) -> None:
        """Store content with `chunks`; `entries` is the state recorded so far.

        A walk ignores what is in `leave_out`, which keeps what an event names. Content that is
        in `base` is not stored again.
        """
        self._filesystem = filesystem
        self._chunks = chunks
        self._entries = entries
        self._leave_out = leave_out
        self._base = base
        self._by_content: dict[str, tuple[int, ...]] = {}
        if not isinstance(entries, BaseEntries):
            self._by_content = {
                each.sha256: each.chunks for each in entries.values() if each.sha256
            }
        self._paths: set[str] = set()
        self._must_walk = False
        self._must_read_all = False

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The state recorded so far, by path."""
        return self._entries

    def mark(self, event: FilesystemEvent) -> None:
        """Look at the paths of an event at the next step."""
        if isinstance(event, StateReplaced):
            self._must_walk = True  # directories, links and permissions may differ as well
            if event.rewritten is None:
                self._must_read_all = True
            else:
                self._paths |= event.rewritten
            return
        if isinstance(event, EntryMoved):
            self._paths.add(event.source)
        self._paths.add(event.path)
        self._keep(event.path)

    @property
    def has_changes(self) -> bool:
        """Whether anything may have changed since the last step."""
        return bool(self._paths) or self._must_walk

    def mark_all(self) -> None:
        """Look at everything at the next step."""
        self._must_walk = self._must_read_all = True

    def collect(self) -> FileChanges:
        """Return what changed since the last time, and store new content."""
        if not self.has_changes:
            return FileChanges()
        state = State(self._filesystem)
        removed: list[str] = []
        changed: dict[str, Entry] = {}
        for path in [""] if self._must_walk else outermost(self._paths):
            for entry in self._look(state, path, removed):
                changed[entry.path] = entry
                self._entries[entry.path] = entry
        self._paths = set()
        self._must_walk = self._must_read_all = False
        return FileChanges(tuple(removed), tuple(changed.values()))

    def _look(self, state: State, path: str, removed: list[str]) -> Iterator[Entry]:
        """Yield the entries that differ at and below a path; note those that are gone."""
        found = state.lookup(path) if path else None
        if path and found is None:
            self._remove(path, removed)
            return
        for parent in parents_of(path):
            directory = state.lookup(parent)
            if parent not in self._entries and directory is not None:
                yield _describe(directory)
        files: list[FileStat] = []
        for each in self._walk(state, path, found, removed):
            known = self._entries.get(each.path)
            if each.is_file and not self._has_kept_content(state, known, each):
                files.append(each)
                continue
            entry = _describe(each, known)
            if entry != known:
                yield entry
        yield from self._store_all(state, files)

    def _store_all(self, state: State, files: list[FileStat]) -> Iterator[Entry]:
        """Yield the entries of the files that differ; threads read and compress them."""
        with closing(parallel_map(partial(self._read_batch, state), _batches(files))) as batches:
            for batch in batches:
                for found, read in batch:
                    entry = self._store(state, found, read)
                    if entry != self._entries.get(found.path):
                        yield entry

    def _walk(
        self, state: State, path: str, found: FileStat | None, removed: list[str]
    ) -> Iterator[FileStat]:
        """Yield everything at and below a path; note what was there and is gone."""
        if found is not None:
            self._make_way(found, removed)
            yield found
            if not found.is_directory:
                return
        prefix = f"{path}/" if path else ""
        left = {each for each in self._entries if each.startswith(prefix)}
        pending = [path]
        while pending:
            check_time("Recording")
            for each in state.children(pending.pop()).values():
                if self._leave_out is not None and each in self._leave_out:
                    continue
                left.discard(each.path)
                self._make_way(each, removed)
                yield each
                if each.is_directory:
                    pending.append(each.path)
        for each in sorted(left):
            self._remove(each, removed)

    def _keep(self, path: str) -> None:
        if self._leave_out is not None:
            self._leave_out.keep(path)

    def _has_kept_content(self, state: State, known: Entry | None, found: FileStat) -> bool:
        """Return whether a file in a walk need not be read.

        No event named it. If anything may have changed, it also has the stat with which a
        snapshot found the same content.
        """
        if not self._must_walk or found.path in self._paths:
            return False
        if known is None or known.kind != "file" or known.size != found.size_bytes:
            return False
        if not self._must_read_all:
            return True
        return known.blob is not None and state.known_id(found) == known.blob

    def _make_way(self, found: FileStat, removed: list[str]) -> None:
        """Remove a directory that is something else now, with everything below it."""
        known = self._entries.get(found.path)
        if known is not None and known.kind == "directory" and not found.is_directory:
            self._remove(found.path, removed)

    def _remove(self, path: str, removed: list[str]) -> None:
        if path in self._entries:
            remove_below(self._entries, path)
            removed.append(path)

    def _read_batch(
        self, state: State, batch: list[FileStat]
    ) -> list[tuple[FileStat, "_Content | None"]]:
        """Read some files of a directory; None for each that nobody may read."""
        check_time("Recording")
        read: dict[str, _Content] = {}
        with (
            suppress(OSError),
            closing(state.contents(each.path for each in batch)) as contents,
        ):
            for path, content in contents:
                read[path] = self._read(path, content)
        for each in batch:
            if each.path not in read:
                with suppress(OSError), state.open(each.path) as content:
                    read[each.path] = self._read(each.path, content)
        return [(each, read.get(each.path)) for each in batch]

    def _read(self, path: str, content: Content) -> "_Content":
        """Read a file of one chunk, and compress it if it is new."""
        has_base = self._base is not None
        if content.size > CHUNK_SIZE:
            return _Content(content.size, *_hash(content, has_base=has_base))
        data = content.read(0, CHUNK_SIZE)
        digest = hashlib.sha256(data).hexdigest()
        blob = hash_object("blob", data) if has_base else None
        is_new = path not in self._entries and digest not in self._by_content
        packed = pack(data) if data and is_new and not self._has_in_base(blob) else None
        return _Content(len(data), digest, blob, data, packed)

    def _has_in_base(self, blob: str | None) -> bool:
        return blob is not None and self._base is not None and blob in self._base

    def _store(self, state: State, found: FileStat, read: "_Content | None") -> Entry:
        if read is None:  # there is no content to keep
            return Entry(found.path, "file", found.permissions, found.size_bytes)
        if self._has_in_base(read.blob):
            return Entry(found.path, "file", found.permissions, read.size, blob=read.blob)
        known = self._entries.get(found.path)
        size, digest = read.size, read.sha256
        if known is not None and known.sha256 == digest:
            chunks = known.chunks
        elif digest in self._by_content:
            chunks = self._by_content[digest]
        elif read.data is None:
            size, digest, chunks = self._store_large(state, found, known)
        elif read.packed is not None:
            chunks = (self._chunks.store_packed(read.packed),)
        else:
            chunks = (self._chunks.store(read.data, _find_similar(known, 0)),) if read.data else ()
        self._by_content[digest] = chunks
        return Entry(found.path, "file", found.permissions, size, digest, chunks)

    def _store_large(
        self, state: State, found: FileStat, known: Entry | None
    ) -> tuple[int, str, tuple[int, ...]]:
        """Store a file of several chunks as it is read: it may be changing."""
        digest, size = hashlib.sha256(), 0
        chunks: list[int] = []
        with state.open(found.path) as content:
            while data := content.read(size, CHUNK_SIZE):
                check_time("Recording")
                chunks.append(self._chunks.store(data, _find_similar(known, len(chunks))))
                digest.update(data)
                size += len(data)
                if len(data) < CHUNK_SIZE:
                    break
        return size, digest.hexdigest(), tuple(chunks)


class _Content(NamedTuple):
    """What was read of a file: all of it if that is one chunk, and compressed if it is new."""

    size: int
    sha256: str
    blob: str | None
    """Its git id, if the timeline has a base."""
    data: bytes | None = None
    packed: PackedChunk | None = None


def _batches(files: Iterable[FileStat]) -> Iterator[list[FileStat]]:
    """Yield the files in batches, each of one directory, for one thread at a time."""
    for _, group in groupby(files, key=lambda each: parent_of(each.path)):
        batch: list[FileStat] = []
        room = CHUNK_SIZE
        for each in group:
            if batch and (room < each.size_bytes or len(batch) == _MAX_BATCH):
                yield batch
                batch, room = [], CHUNK_SIZE
            batch.append(each)
            room -= each.size_bytes
        yield batch


def _describe(found: FileStat, known: Entry | None = None) -> Entry:
    """Return the entry for anything but a file, or for a file whose content is that of `known`."""
    if found.is_file and known is not None:
        return replace(known, permissions=found.permissions)
    if found.is_directory:
        return Entry(found.path, "directory", found.permissions)
    if found.link_target is not None:
        return Entry(found.path, "link", found.permissions, target=found.link_target)
    return Entry(found.path, "special", found.permissions)


def _find_similar(known: Entry | None, number: int) -> Reference | None:
    """Return the chunk with this number of a file as it is recorded, if it has one."""
    if known is None:
        return None
    if known.blob is not None and number * CHUNK_SIZE < known.size:
        return BaseChunk(known.blob, number)
    return known.chunks[number] if number < len(known.chunks) else None


def _hash(content: Content, *, has_base: bool) -> tuple[str, str | None]:
    """Return the SHA-256 of a large file, and its git id if there is a base."""
    digest = hashlib.sha256()
    blob = hashlib.sha1(b"blob %d\0" % content.size, usedforsecurity=False)
    for offset in range(0, content.size, CHUNK_SIZE):
        check_time("Recording")
        data = content.read(offset, CHUNK_SIZE)
        digest.update(data)
        if has_base:
            blob.update(data)
    return digest.hexdigest(), blob.hexdigest() if has_base else None


class CapturedSession(NamedTuple):
    """A session at one moment, and the ID of its parent."""

    session: Session
    parent: UUID | None
    snapshot: Snapshot


class SessionTracker:
    """Collects what changed in a session and its descendants."""

    def __init__(self, session: Session) -> None:
        """Track `session`; everything in it is new."""
        self._session = session
        self._known: dict[UUID, dict[type[Any], Items[Any]]] = {}
        self._described: set[tuple[UUID, type[Any]]] = set()  # slices that JSON cannot represent

    def capture(self) -> "list[CapturedSession]":
        """Return the sessions as they are now, parents first; nothing is encoded."""
        found: list[CapturedSession] = []
        pending: list[tuple[Session, UUID | None]] = [(self._session, None)]
        while pending:
            session, parent = pending.pop()
            pending += [(each, session.session_id) for each in reversed(session.children)]
            found.append(CapturedSession(session, parent, session.snapshot()))
        return found

    def compare(self, captured: "Iterable[CapturedSession]") -> tuple[SessionChange, ...]:
        """Return what changed since the last time."""
        changes = (self._compare(*each) for each in captured)
        return tuple(each for each in changes if each is not None)

    def _compare(
        self, session: Session, parent: UUID | None, snapshot: Snapshot
    ) -> SessionChange | None:
        assert isinstance(snapshot.slices, Slices)
        items = dict(snapshot.slices.items_by_type)
        others = items.pop(UnknownItem, None)
        known = self._known.get(session.session_id)
        before = known or {}
        changes = [
            self._compare_slice(
                (session.session_id, kind), each, before.get(kind), log=kind in snapshot.logs
            )
            for kind, each in items.items()
        ]
        slices = tuple(each for each in changes if each is not None)
        if others is not None and known is None:  # nothing can change what nobody knows
            slices += tuple(
                SliceChange(each.name, each.is_log, ListChange(0, each.items))
                for each in list_slices({UnknownItem: others.as_tuple()}, ())
            )
        removed = tuple(type_name(kind) for kind in before if kind not in items)
        self._known[session.session_id] = items
        if known is not None and not slices and not removed:
            return None
        return SessionChange(
            session.session_id, parent, session.created_at, dict(session.tags), slices, removed
        )

    def _compare_slice(
        self,
        key: tuple[UUID, type[Any]],
        items: Items[Any],
        before: Items[Any] | None,
        *,
        log: bool,
    ) -> SliceChange | None:
        keep = 0 if before is None else items.shared_length(before)
        if before is not None and keep == len(items) == len(before):
            return None
        added = items.as_tuple()[keep:]
        is_one = before is not None and len(before) == len(items) == keep + 1
        if before is not None and is_one and key not in self._described:
            changed = _compare_items(before.as_tuple()[keep], added[0])
            if changed is not None:
                return SliceChange(type_name(key[1]), log, ListChange(keep, (), changed))
        stored = _storable(added)
        if stored is not added:
            self._described.add(key)
        return SliceChange(type_name(key[1]), log, ListChange(keep, stored))


def _compare_items(before: Any, after: Any) -> ItemChange | None:
    """Return how an item differs from the one before it; None if it must be stored whole."""
    if type(before) is not type(after) or not is_dataclass(after):
        return None
    changed: dict[str, Any] = {}
    lists: dict[str, Splice] = {}
    for each in fields(after):
        old, new = getattr(before, each.name), getattr(after, each.name)
        if old is new or each.name.startswith("_"):
            continue
        if isinstance(old, tuple) and isinstance(new, tuple):
            lists[each.name] = _splice(cast("tuple[Any, ...]", old), cast("tuple[Any, ...]", new))
        else:
            changed[each.name] = new
    if not lists:
        return None  # what is stored whole needs no change of its own
    found = ItemChange(changed, lists)
    try:
        encode(found)
    except SerdeError:
        return None
    return found


def _splice(before: tuple[Any, ...], after: tuple[Any, ...]) -> Splice:
    """Return the shortest middle part that differs."""
    shorter = min(len(before), len(after))
    start = _shared_length(before, after, shorter)
    stop = _shared_length(before[start:][::-1], after[start:][::-1], shorter - start)
    return Splice(start, stop, after[start : len(after) - stop])


def _shared_length(first: Sequence[Any], second: Sequence[Any], most: int) -> int:
    """Return how many items both begin with; an item that is equal but another one counts too."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (old, new) in pairs if old is not new and old != new), most)


def _storable(items: Iterable[Any]) -> tuple[Any, ...]:
    """Return items that JSON can represent; one that it cannot becomes its description."""
    items = tuple(items)
    try:
        encode(items)
    except SerdeError:
        return tuple(map(_storable_item, items))
    return items


def _storable_item(item: Any) -> Any:
    try:
        encode(item)
    except SerdeError as error:
        return {"not_serializable": repr(item), "reason": str(error)}
    return item
