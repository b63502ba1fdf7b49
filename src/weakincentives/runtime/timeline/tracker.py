"""What changed in files and sessions since the last step of a recording."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, cast
from uuid import UUID

from weakincentives.filesystem import (
    Content,
    EntryMoved,
    FileStat,
    FilesystemEvent,
    PermissionsChanged,
    ReadableFilesystem,
    StateReplaced,
)
from weakincentives.filesystem.base import State, outermost
from weakincentives.filesystem.derived import DerivedFiles
from weakincentives.gitstore import DIRECTORY, LINK, TreeEntry
from weakincentives.history import EntryState, PathChange, open_nothing
from weakincentives.posix import check_time, parents_of
from weakincentives.runtime.session import Session, Snapshot
from weakincentives.runtime.session.items import Items
from weakincentives.runtime.session.snapshots import (
    Slices,
    UnknownItem,
    list_slices,
    type_name,
)
from weakincentives.runtime.timeline.steps import (
    Entry,
    FileChanges,
    ItemChange,
    ListChange,
    SessionChange,
    SliceChange,
    Splice,
)
from weakincentives.runtime.timeline.store import MAX_SPLICE, StepObjects
from weakincentives.runtime.timeline.tree import WorkspaceTree
from weakincentives.serde import SerdeError, encode

_MAX_WHOLE = 1024 * 1024  # bytes of a file that is read at once
_MAX_ATTEMPTS = 3  # to read a file that grows


class SavedFile(NamedTuple):
    """A file or link that somebody saved, and a call replaced; `open` opens its content."""

    path: str
    state: EntryState
    open: Callable[[], int | None]


class FileTracker:
    """Collects what changed in a workspace: events name the paths, and these are looked at."""

    def __init__(
        self,
        filesystem: ReadableFilesystem,
        tree: WorkspaceTree,
        leave_out: DerivedFiles | None = None,
    ) -> None:
        """Compare with `tree`, which has what is recorded so far.

        A walk ignores what is in `leave_out`, which keeps what an event names.
        """
        self._filesystem = filesystem
        self.tree: WorkspaceTree = tree
        self._leave_out = leave_out
        self._paths: set[str] = set()
        self._moved: set[str] = set()
        self._modes: set[str] = set()  # directories whose permissions have changed
        self._must_walk = False
        self._must_read_all = False
        self._unrecorded: dict[str, EntryState] = {}  # what calls have put since the last step

    def mark(self, event: FilesystemEvent) -> None:
        """Look at the paths of an event at the next step."""
        if isinstance(event, StateReplaced):
            self._must_walk = True  # directories, links and permissions may differ as well
            if event.rewritten is None:
                self._must_read_all = True
            else:
                self._paths |= event.rewritten
            return
        if isinstance(event, PermissionsChanged):
            self._modes.add(event.path)
            return
        if isinstance(event, EntryMoved):
            self._paths.add(event.source)
            self._moved.add(event.source)
        self._paths.add(event.path)
        if self._leave_out is not None:
            self._leave_out.keep(event.path)

    @property
    def has_changes(self) -> bool:
        """Whether anything may have changed since the last step."""
        return bool(self._paths or self._modes) or self._must_walk

    def mark_all(self) -> None:
        """Look at everything at the next step."""
        self._must_walk = self._must_read_all = True

    def collect(self, objects: StepObjects) -> FileChanges:
        """Put what changed since the last time into the tree, and return it.

        New content is added to `objects`.
        """
        if not self.has_changes:
            return FileChanges()
        for path in self._moved:  # its content is stored already
            objects.known.update(self.tree.ids(path))
        found = _Changes(self.tree)
        state = State(self._filesystem)
        for path in [""] if self._must_walk else outermost(self._paths):
            self._look(state, path, found, objects)
        for path in self._modes:
            self._look_at_mode(state, path, found)
        self._paths, self._moved, self._modes = set(), set(), set()
        self._unrecorded = {}
        self._must_walk = self._must_read_all = False
        return found.result()

    def find_saved(self, changes: Sequence[PathChange]) -> list[SavedFile]:
        """Return what a call replaced although it is not recorded: somebody saved it meanwhile."""
        found: list[SavedFile] = []
        for each in changes:
            state, opened = each.before, each.open_before
            if not each.by_call:
                state, opened = each.after, each.open_after
            # what a restore replaced is in a snapshot, and cannot be opened
            is_content = state.kind in {"file", "symlink"} and opened is not open_nothing
            is_left_out = self._leave_out is not None and self._leave_out.excludes(each.path)
            if is_content and not is_left_out and not self._is_recorded(each.path, state):
                found.append(SavedFile(each.path, state, opened))
            self._unrecorded[each.path] = each.after
        return found

    def put_saved(self, saved: Sequence[SavedFile], objects: StepObjects) -> FileChanges:
        """Put what somebody saved into the tree, and return it; content goes into `objects`."""
        found = _Changes(self.tree)
        for each in saved:
            state = each.state
            if state.kind == "symlink":
                target = state.target.encode("utf-8", "surrogateescape")
                entry = Entry(each.path, "link", 0o777, 0, objects.add(target), state.target)
            else:
                blob, size = _store_opened(each.open(), objects)
                entry = Entry(each.path, "file", state.mode, size, blob)
            found.put(entry)
        return found.result()

    def _is_recorded(self, path: str, state: EntryState) -> bool:
        """Return whether an entry is that of the last step, or of a call since then."""
        if self._unrecorded.get(path) == state:
            return True
        entry = self.tree.entry(path)
        if entry is None:
            return False
        if state.kind == "symlink":
            return entry.target == state.target
        return entry.id == state.blob and entry.permissions == state.mode

    def _look(self, state: State, path: str, changes: "_Changes", objects: StepObjects) -> None:
        """Find what differs at and below a path."""
        found = state.lookup(path) if path else None
        if path and found is None:
            changes.remove(path)
            return
        for parent in parents_of(path):
            directory = state.lookup(parent)
            if directory is not None and self.tree.find(parent) is None:
                changes.put(_describe(directory))
        pending = [""] if found is None else []
        if found is not None:
            pending += self._compare(state, [found], changes, objects)
        while pending:
            check_time("Recording")
            directory_path = pending.pop()
            children = state.children(directory_path)
            if self._leave_out is not None:
                out = self._leave_out
                children = {name: each for name, each in children.items() if each not in out}
            for name in sorted(self.tree.names(directory_path) - children.keys()):
                changes.remove(f"{directory_path}/{name}" if directory_path else name)
            pending += self._compare(state, list(children.values()), changes, objects)

    def _look_at_mode(self, state: State, path: str, changes: "_Changes") -> None:
        """Find whether the permissions of a directory differ."""
        found, known = state.lookup(path), self.tree.find(path)
        if found is None or known is None or not found.is_directory:
            return
        if not self._is_same(known, found):
            changes.put(_describe(found))

    def _compare(
        self, state: State, found: list[FileStat], changes: "_Changes", objects: StepObjects
    ) -> list[str]:
        """Put the entries that differ; return the directories to look into."""
        unread: list[FileStat] = []
        for each in found:
            known = self.tree.find(each.path)
            if each.is_file and not self._has_kept_content(state, known, each):
                unread.append(each)
            elif not self._is_same(known, each):
                size = each.size_bytes
                entry = _describe(each)
                if each.is_file and known is not None:
                    entry = Entry(each.path, "file", each.permissions, size, known.id)
                elif each.link_target is not None:
                    target = each.link_target.encode("utf-8", "surrogateescape")
                    link = objects.add(target)
                    entry = Entry(each.path, "link", each.permissions, 0, link, each.link_target)
                changes.put(entry)
        for each, blob, size in self._store_all(state, unread, objects):
            known = self.tree.find(each.path)
            if known is None or known.id != blob or not self._is_same(known, each):
                changes.put(Entry(each.path, "file", each.permissions, size, blob))
        return [each.path for each in found if each.is_directory]

    def _is_same(self, known: TreeEntry | None, found: FileStat) -> bool:
        """Return whether everything but the content of a file is as it is recorded."""
        if found.link_target is not None:
            entry = self.tree.entry(found.path)
            return entry is not None and entry.target == found.link_target
        if known is None:
            entry = self.tree.entry(found.path)
            return entry is not None and found.kind == "special"
        if found.kind == "special" or (known.mode == DIRECTORY) != found.is_directory:
            return False
        return known.mode != LINK and (
            self.tree.permissions(found.path, known.mode) == found.permissions
        )

    def _has_kept_content(self, state: State, known: TreeEntry | None, found: FileStat) -> bool:
        """Return whether a file in a walk need not be read.

        No event named it. If anything may have changed, it also has the stat with which a
        snapshot found the same content.
        """
        if not self._must_walk or found.path in self._paths:
            return False
        if known is None or known.mode in {DIRECTORY, LINK}:
            return False
        return not self._must_read_all or state.known_id(found) == known.id

    def _store_all(
        self, state: State, files: list[FileStat], objects: StepObjects
    ) -> Iterator[tuple[FileStat, str | None, int]]:
        """Yield each file with the id of its content and its size; None if it cannot be read."""
        stats = {each.path: each for each in files}
        with suppress(OSError), closing(state.contents(sorted(stats))) as contents:
            for path, content in contents:
                check_time("Recording")
                if content.size <= _MAX_WHOLE:
                    data = content.read(0, content.size)
                    blob = objects.add(data, self._similar(path))
                    yield stats.pop(path), blob, len(data)
        for each in stats.values():
            yield each, *_store_large(state, each.path, self._similar(each.path), objects)

    def _similar(self, path: str) -> str | None:
        """Return the id of the content that a file has in the tree."""
        known = self.tree.find(path)
        return None if known is None or known.mode in {DIRECTORY, LINK} else known.id


class _Changes:
    """The changes of one step, which are put into the tree as they are found."""

    def __init__(self, tree: WorkspaceTree) -> None:
        self._tree = tree
        self._removed: list[str] = []
        self._entries: dict[str, Entry] = {}
        self._before: dict[str, Entry] = {}

    def remove(self, path: str) -> None:
        """Note that an entry is gone, with everything below it."""
        if self._note_before(path):
            self._tree.remove(path)
            self._removed.append(path)

    def put(self, entry: Entry) -> None:
        """Note that an entry is new, or differs."""
        before = self._note_before(entry.path)
        if before is not None and before.kind == "directory" != entry.kind:
            self._tree.remove(entry.path)
            self._removed.append(entry.path)
        self._tree.put(entry)
        self._entries[entry.path] = entry

    def result(self) -> FileChanges:
        """Return the changes."""
        return FileChanges(
            tuple(self._removed), tuple(self._entries.values()), tuple(self._before.values())
        )

    def _note_before(self, path: str) -> Entry | None:
        found = self._tree.entry(path)
        if found is not None and path not in self._entries:
            self._before.setdefault(path, found)
        return found


def _describe(found: FileStat) -> Entry:
    """Return the entry for a directory or a special file."""
    kind = "directory" if found.is_directory else "special"
    return Entry(found.path, kind, found.permissions)


def _store_large(
    state: State, path: str, known: str | None, objects: StepObjects
) -> tuple[str | None, int]:
    """Store a file in chunks unless it is known; return its id, None if unreadable, and size."""
    for _ in range(_MAX_ATTEMPTS):
        try:
            with state.open(path) as content:
                size = content.size
                if size <= (_MAX_WHOLE if known is None else MAX_SPLICE):
                    data = content.read(0, size)
                    return objects.add(data, known), len(data)
                if known is not None and _hash(content, size) == known:
                    return known, size
                return objects.add_large(size, _chunks(content, size)), size
        except ValueError:
            continue  # it changed meanwhile
        except OSError:
            break
    return None, 0


def _store_opened(descriptor: int | None, objects: StepObjects) -> tuple[str | None, int]:
    """Store an open file, and close it; return its id and size."""
    if descriptor is None:
        return None, 0
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size <= _MAX_WHOLE:
            data = file.read()
            return objects.add(data), len(data)
        return objects.add_large(size, iter(lambda: file.read(_MAX_WHOLE), b"")), size


def _hash(content: Content, size: int) -> str:
    """Return git's id of a large file."""
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for chunk in _chunks(content, size):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(content: Content, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _MAX_WHOLE):
        check_time("Recording")
        yield content.read(offset, min(_MAX_WHOLE, size - offset))


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
        stored = storable(added)
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


def storable(items: Iterable[Any]) -> tuple[Any, ...]:
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
        return {"not_serializable": _shorten(item), "reason": str(error)}
    return item


def _shorten(item: Any) -> str:
    """Return a description of an item; one that is nested too deeply has only its type."""
    try:
        return repr(item)
    except RecursionError:
        return type(item).__name__
