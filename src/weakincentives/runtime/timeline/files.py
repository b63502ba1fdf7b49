"""The files of a recording: what changed in a workspace since its last step."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress

from weakincentives.errors import SnapshotError
from weakincentives.filesystem import (
    Content,
    EntryMoved,
    FileStat,
    FilesystemEvent,
    FilesystemSnapshot,
    PermissionsChanged,
    ReadableFilesystem,
    ReproducibleFiles,
    SourceFilesystem,
    StateReplaced,
    Viewable,
    diff,
)
from weakincentives.filesystem.base import State, outermost
from weakincentives.filesystem.diff import Change
from weakincentives.filesystem.host import (
    HostFile,
    LineIndexes,
    SnapshotFilesystem,
    entry_state,
    is_same,
    put_entries,
    select_tree,
)
from weakincentives.gitstore import ObjectError
from weakincentives.history import (
    Edit,
    EntryState,
    HistoryStore,
    PathChange,
    StepObjects,
    open_nothing,
)
from weakincentives.posix import check_time

_MAX_WHOLE = 1024 * 1024  # bytes of a file that is read at once
_MAX_ATTEMPTS = 3  # to read a file that grows
_log = logging.getLogger(__name__)


class FileTracker:
    """Collects what changed in a workspace: events name the paths, and these are compared."""

    def __init__(
        self,
        filesystem: ReadableFilesystem,
        store: HistoryStore,
        recorded: SnapshotFilesystem | None,
        base: FilesystemSnapshot | None,
        leave_out: ReproducibleFiles | None,
    ) -> None:
        """Compare with `recorded`, the files as the last step has them.

        Everything is looked at, unless this begins with `base`, a snapshot of the workspace as
        it is now. A walk ignores what is in `leave_out`, which keeps what is recorded, and what
        an event names.
        """
        is_unchanged = False
        if recorded is None and base is not None:
            recorded = _find_base(store, filesystem, base, leave_out)
            is_unchanged = recorded is not None
        if recorded is None:
            tree = put_entries(None, {}, store.compute)
            recorded = SnapshotFilesystem(store.objects, tree, filesystem.root)
        self._filesystem = filesystem
        self._store = store
        self.recorded: SnapshotFilesystem = recorded
        self._leave_out = leave_out
        self._paths: set[str] = set()
        self._modes: set[str] = set()  # directories whose permissions have changed
        self._must_walk = self._must_read_all = not is_unchanged
        self._unrecorded: dict[str, EntryState] = {}  # what calls have put since the last step
        if leave_out is not None and not is_unchanged:
            for _, children in State(recorded).directories("Recording"):
                for each in children.values():
                    leave_out.keep(each.path)

    def mark(self, event: FilesystemEvent) -> None:
        """Look at the paths of an event at the next step."""
        if isinstance(event, StateReplaced):
            self._paths |= event.rewritten or frozenset()
            self._must_walk |= not event.partial
            self._must_read_all |= event.rewritten is None
            return
        if isinstance(event, PermissionsChanged):
            self._modes.add(event.path)
            return
        if isinstance(event, EntryMoved):
            self._paths.add(event.source)
        self._paths.add(event.path)
        if self._leave_out is not None:
            self._leave_out.keep(event.path)

    @property
    def has_changes(self) -> bool:
        """Whether anything may have changed since the last step."""
        return bool(self._paths or self._modes) or self._must_walk

    def collect(
        self, objects: StepObjects, saved: Sequence[PathChange] = (), *, is_stored: bool = False
    ) -> tuple[Edit, ...]:
        """Return what changed since the last time, or only what was `saved`.

        New content is added to `objects`; `recorded` has it from now on. If the tree `is_stored`
        as a whole, nothing is returned.
        """
        is_stored = is_stored and self.has_changes
        if is_stored:
            # the repository must have all that the tree refers to
            put_entries(None, {}, objects.begin().add)
        edits = _store_saved(saved, objects) if saved else self._find_edits(objects)
        self._paths.update(each.path for each in saved)  # something else is there by now
        entries = {each.path: each.after for each in edits}
        before, tree = self.recorded, self.recorded.tree_id
        if edits or is_stored:
            add = objects.begin().add if is_stored else self._store.compute
            tree = put_entries(before, entries, add)
        if is_stored:
            self._store.keep(tree, objects.take_pack())
        like = None if self._store.trim(tree) else before
        self.recorded = SnapshotFilesystem(self._store.objects, tree, before.root, like=like)
        return () if is_stored else tuple(edits)

    def find_saved(self, changes: Sequence[PathChange]) -> list[PathChange]:
        """Return what a call replaced although it is not recorded: somebody saved it meanwhile.

        `after` of each is what was saved, and `open_after` opens it.
        """
        found: list[PathChange] = []
        for each in changes:
            state, opened = each.before, each.open_before
            if not each.by_call:
                state, opened = each.after, each.open_after
            # what a restore replaced is in a snapshot, and cannot be opened
            is_content = state.kind in {"file", "symlink"} and opened is not open_nothing
            is_left_out = self._leave_out is not None and self._leave_out.excludes(each.path)
            recorded = entry_state(self.recorded, each.path)
            known = recorded, self._unrecorded.get(each.path, recorded)
            if is_content and not is_left_out and not any(is_same(state, one) for one in known):
                found.append(PathChange(each.path, recorded, state, open_after=opened))
            self._unrecorded[each.path] = each.after
        return found

    def _find_edits(self, objects: StepObjects) -> list[Edit]:
        if not self.has_changes:
            return []
        changes = self._compare()
        before = {each.path: self._recorded_state(each.before) for each in changes}
        objects.known.update(each.blob for each in before.values())  # a move stores nothing again
        stored = dict(self._store_files(changes, objects))
        self._paths, self._modes, self._unrecorded = set(), set(), {}
        self._must_walk = self._must_read_all = False
        edits: list[Edit] = []
        for each in changes:
            old = before[each.path]
            blob, size = stored.get(each.path, ("", 0))
            if each.kind == "mode-changed":  # its content is the same
                blob, size = old.blob, old.size
            edits.append(Edit(each.path, old, _describe(each.after, blob, size)))
        return [each for each in edits if each.before != each.after]

    def _compare(self) -> list[Change]:
        # what no event named need not be read in a walk; if anything may have changed, only if
        # it has the stat with which a snapshot found the same content
        trusted = State(self._filesystem if self._must_read_all else self.recorded)

        def known_id(path: str) -> str | None:
            is_suspect = path in self._paths or not self._must_walk
            return None if is_suspect else next(trusted.known_ids([path]))

        live = _Workspace(self._filesystem, self._leave_out, known_id)
        old, new = State(self.recorded), State(live)

        def exists(path: str) -> bool:
            return old.lookup(path) is not None or new.lookup(path) is not None

        paths = [""] if self._must_walk else list(filter(exists, outermost(self._paths)))
        changes = list(diff(self.recorded, live, path=paths, renames=False).entries)
        for path in self._modes - {each.path for each in changes}:
            before, after = old.lookup(path), new.lookup(path)
            if before is not None and after is not None and before.kind == after.kind:
                changes.append(Change(path, "mode-changed", before, after))
        return changes

    def _recorded_state(self, found: FileStat | None) -> EntryState:
        blob = None if found is None else State(self.recorded).known_id(found)
        return _describe(found, blob or "", 0 if found is None else found.size_bytes)

    def _store_files(
        self, changes: Iterable[Change], objects: StepObjects
    ) -> Iterator[tuple[str, tuple[str, int]]]:
        """Yield each file that can be read with the id of its content and its size."""
        state = State(self._filesystem)
        left = {
            each.path
            for each in changes
            if each.after is not None and each.after.is_file and each.kind != "mode-changed"
        }
        with suppress(OSError), closing(state.contents(sorted(left))) as contents:
            for path, content in contents:
                with suppress(ValueError):  # it changes meanwhile
                    yield path, _store(content, objects)
                    left.discard(path)
        for path in left:
            for _ in range(_MAX_ATTEMPTS):
                with suppress(OSError, ValueError), state.open(path) as content:
                    yield path, _store(content, objects)
                    break


class _Workspace(SourceFilesystem):
    """The files of a workspace that are recorded; `known_id` says what need not be read."""

    def __init__(
        self,
        filesystem: ReadableFilesystem,
        leave_out: ReproducibleFiles | None,
        known_id: Callable[[str], str | None],
    ) -> None:
        super().__init__(filesystem, () if leave_out is None else leave_out)
        self._known_id = known_id

    def _blob_id(self, path: str) -> str | None:
        return self._known_id(path)


def _find_base(
    store: HistoryStore,
    filesystem: ReadableFilesystem,
    snapshot: FilesystemSnapshot,
    leave_out: ReproducibleFiles | None,
) -> SnapshotFilesystem | None:
    """Return the files of a snapshot whose content is in the history; None if it is not."""
    repository = store.repository
    if repository is None or not isinstance(filesystem, Viewable):
        return None
    try:
        files = filesystem.view(snapshot)
        repository.objects.refresh()
        if not isinstance(files, SnapshotFilesystem) or files.tree_id not in repository.objects:
            return None
        pack = repository.objects.begin_pack()
        tree = select_tree(files, leave_out, pack)
        store.keep(tree, pack)
        return SnapshotFilesystem(store.objects, tree, filesystem.root, like=files)
    except (ObjectError, SnapshotError) as error:
        _log.warning("Reading the files again to record them: %s", error)
        return None


def _store_saved(saved: Iterable[PathChange], objects: StepObjects) -> list[Edit]:
    """Return what somebody saved as edits; its content is added to `objects`."""
    edits: list[Edit] = []
    for each in saved:
        state = each.after
        if state.kind == "file":
            descriptor, state = each.open_after(), EntryState("special")
            if descriptor is not None:
                with HostFile(descriptor, os.fstat(descriptor), LineIndexes()) as content:
                    blob, size = _store(content, objects)
                state = EntryState("file", each.after.mode, size, blob)
        edits.append(Edit(each.path, each.before, state))
    return edits


def _describe(found: FileStat | None, blob: str, size: int) -> EntryState:
    """Return the state of an entry; a file that could not be read counts as special."""
    if found is None:
        return EntryState()
    if found.is_directory:
        return EntryState("directory", found.permissions)
    if found.link_target is not None:
        return EntryState("symlink", target=found.link_target)
    return EntryState("file", found.permissions, size, blob) if blob else EntryState("special")


def _store(content: Content, objects: StepObjects) -> tuple[str, int]:
    """Store a file; return its id and size.

    Raises:
        ValueError: It is large, and its size changed meanwhile.
    """
    check_time("Recording")
    size = content.size
    if size <= _MAX_WHOLE:
        data = content.read(0, size)
        return objects.add(data), len(data)
    return objects.add_large(size, _chunks(content, size)), size


def _chunks(content: Content, size: int) -> Iterator[bytes]:
    for offset in range(0, size, _MAX_WHOLE):
        check_time("Recording")
        yield content.read(offset, min(_MAX_WHOLE, size - offset))
