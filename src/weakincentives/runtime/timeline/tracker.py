"""What changed in files and sessions since the last step of a recording."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

from weakincentives.filesystem import (
    EntryMoved,
    FileStat,
    FilesystemEvent,
    ReadableFilesystem,
    StateReplaced,
)
from weakincentives.filesystem.paths import outermost
from weakincentives.filesystem.state import State
from weakincentives.filesystem.text import Content
from weakincentives.posix import check_time, parents_of
from weakincentives.runtime.session import Session
from weakincentives.runtime.session.items import Items
from weakincentives.runtime.session.snapshots import Slices, type_name
from weakincentives.runtime.timeline.chunks import CHUNK_SIZE, ChunkWriter
from weakincentives.runtime.timeline.steps import (
    Entry,
    FileChanges,
    ListChange,
    SessionChange,
    SliceChange,
    remove_below,
)
from weakincentives.serde import SerdeError, encode


class FileTracker:
    """Collects what changed in a workspace: events name the paths, and these are looked at."""

    def __init__(
        self, filesystem: ReadableFilesystem, chunks: ChunkWriter, entries: dict[str, Entry]
    ) -> None:
        """Store content with `chunks`; `entries` is the state recorded so far."""
        self._filesystem = filesystem
        self._chunks = chunks
        self._entries = entries
        self._by_content: dict[str, tuple[int, ...]] = {
            each.sha256: each.chunks for each in entries.values() if each.sha256
        }
        self._paths: set[str] = set()
        self._must_walk = False
        self._must_read_all = False

    @property
    def entries(self) -> dict[str, Entry]:
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
        elif isinstance(event, EntryMoved):
            self._paths |= {event.source, event.path}
        else:
            self._paths.add(event.path)

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
                yield self._describe(state, directory)
        if found is not None:
            yield from self._compare(state, found, removed)
        if found is None or found.is_directory:
            yield from self._look_below(state, path, removed)

    def _look_below(self, state: State, path: str, removed: list[str]) -> Iterator[Entry]:
        prefix = f"{path}/" if path else ""
        left = {each for each in self._entries if each.startswith(prefix) and each}
        pending = [path]
        while pending:
            check_time("Recording")
            directory = pending.pop()
            for each in state.children(directory).values():
                left.discard(each.path)
                yield from self._compare(state, each, removed)
                if each.is_directory:
                    pending.append(each.path)
        for each in sorted(left):
            self._remove(each, removed)

    def _compare(self, state: State, found: FileStat, removed: list[str]) -> Iterator[Entry]:
        known = self._entries.get(found.path)
        if known is not None and known.kind == "directory" and not found.is_directory:
            self._remove(found.path, removed)
        if known is not None and found.is_file and self._has_kept_content(known, found):
            if known.permissions != found.permissions:
                yield replace(known, permissions=found.permissions)
            return
        entry = self._describe(state, found)
        if entry != known:
            yield entry

    def _has_kept_content(self, known: Entry, found: FileStat) -> bool:
        """Return whether a file in a walk need not be read: no event named it."""
        if not self._must_walk or self._must_read_all or found.path in self._paths:
            return False
        return known.kind == "file" and known.size == found.size_bytes

    def _remove(self, path: str, removed: list[str]) -> None:
        if path in self._entries:
            remove_below(self._entries, path)
            removed.append(path)

    def _describe(self, state: State, found: FileStat) -> Entry:
        if found.is_directory:
            return Entry(found.path, "directory", found.permissions)
        if found.link_target is not None:
            return Entry(found.path, "link", found.permissions, target=found.link_target)
        if not found.is_file:
            return Entry(found.path, "special", found.permissions)
        try:
            with state.open(found.path) as content:
                return self._store(found, content)
        except OSError:  # nobody may read it, or it is gone: there is no content to keep
            return Entry(found.path, "file", found.permissions, found.size_bytes)

    def _store(self, found: FileStat, content: Content) -> Entry:
        known = self._entries.get(found.path)
        digest, size = _hash(content)
        if known is not None and known.sha256 == digest:
            chunks = known.chunks
        elif digest in self._by_content:
            chunks = self._by_content[digest]
        else:
            before = () if known is None else known.chunks
            chunks = self._by_content[digest] = tuple(self._store_chunks(content, size, before))
        return Entry(found.path, "file", found.permissions, size, digest, chunks)

    def _store_chunks(self, content: Content, size: int, before: tuple[int, ...]) -> Iterator[int]:
        for number, offset in enumerate(range(0, size, CHUNK_SIZE)):
            check_time("Recording")
            data = content.read(offset, min(CHUNK_SIZE, size - offset))
            yield self._chunks.store(data, before[number] if number < len(before) else None)


def _hash(content: Content) -> tuple[str, int]:
    digest = hashlib.sha256()
    size = content.size
    for offset in range(0, size, CHUNK_SIZE):
        check_time("Recording")
        digest.update(content.read(offset, min(CHUNK_SIZE, size - offset)))
    return digest.hexdigest(), size


class SessionTracker:
    """Collects what changed in a session and its descendants."""

    def __init__(self, session: Session) -> None:
        """Track `session`; everything in it is new."""
        self._session = session
        self._known: dict[UUID, dict[type[Any], Items[Any]]] = {}

    def collect(self) -> tuple[SessionChange, ...]:
        """Return what changed since the last time."""
        found: list[SessionChange] = []
        pending: list[tuple[Session, UUID | None]] = [(self._session, None)]
        while pending:
            session, parent = pending.pop()
            pending += [(each, session.session_id) for each in reversed(session.children)]
            change = self._compare(session, parent)
            if change is not None:
                found.append(change)
        return tuple(found)

    def _compare(self, session: Session, parent: UUID | None) -> SessionChange | None:
        snapshot = session.snapshot()
        assert isinstance(snapshot.slices, Slices)
        items = dict(snapshot.slices.items_by_type)
        known = self._known.get(session.session_id)
        before = known or {}
        changes = [
            _compare_slice(kind, each, before.get(kind), log=kind in snapshot.logs)
            for kind, each in items.items()
        ]
        slices = tuple(each for each in changes if each is not None)
        removed = tuple(type_name(kind) for kind in before if kind not in items)
        self._known[session.session_id] = items
        if known is not None and not slices and not removed:
            return None
        return SessionChange(
            session.session_id, parent, session.created_at, dict(session.tags), slices, removed
        )


def _compare_slice(
    kind: type[Any], items: Items[Any], before: Items[Any] | None, *, log: bool
) -> SliceChange | None:
    keep = 0 if before is None else items.shared_length(before)
    if before is not None and keep == len(items) == len(before):
        return None
    added = items.as_tuple()[keep:]
    return SliceChange(type_name(kind), log, ListChange(keep, _storable(added)))


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
