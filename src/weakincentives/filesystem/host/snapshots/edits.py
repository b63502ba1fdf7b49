"""Edits: what differs between two snapshots, put into a tree or carried out in the directory.

A commit's tree has two entries: `files`, the tree of the workspace, and `manifest.json`,
which records what git trees cannot express. Equal subtrees are recognized by their ids and never
entered. In the directory, edits go through the change engine.
"""

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from weakincentives import posix
from weakincentives.errors import SnapshotRestoreError, StaleRestoreError
from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.diff import Diff
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem, open_blob, read_blob
from weakincentives.filesystem.manifest import (
    DEFAULT_PERMISSIONS,
    DIRECTORY_PERMISSIONS,
    FILES,
    MANIFEST,
    SnapshotManifest,
)
from weakincentives.filesystem.reproducible import ReproducibleFiles
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import FileStat
from weakincentives.gitstore import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    ObjectError,
    ObjectStore,
    PackTransaction,
    TreeEntry,
    encode_tree,
)
from weakincentives.history import (
    ChangeConflictError,
    ChangeRequest,
    ChangeResult,
    Edit,
    EntryState,
    KeepDisplaced,
    LiveTree,
    Policy,
    RecordError,
    change,
    find_changes,
    find_stale,
    matches,
    recover_change,
    remove_abandoned,
)

KIND = "restore"
"""The kind of these changes in their records."""
_log = logging.getLogger(__name__)
_MAX_REPEATED = 1_000_000  # entries of trees that occur more than once
_ABSENT = EntryState()
_SPECIAL = EntryState("special")


def edits_between(
    here: SnapshotFilesystem, then: SnapshotFilesystem, paths: Sequence[str] | None = None
) -> list[Edit]:
    """Return the edits that lead from `here` to `then`, or only those at and below `paths`.

    A pipe, socket or device is removed if `then` has none, and never created.

    Raises:
        SnapshotRestoreError: A snapshot repeats its trees without end.
    """
    found = {each.path: each for each in _Comparison(here, then).run()}
    if paths is None or "" in paths:
        return list(found.values())
    wanted = {path: each for path, each in found.items() if posix.is_within(path, paths)}
    needed = {parent for path in wanted for parent in posix.parents_of(path)}
    for path in needed:  # directories that a restored path needs above it
        edit = found.get(path)
        if edit is not None and edit.before.kind == "absent":
            wanted[path] = edit
    return list(wanted.values())


def differing_paths(one: SnapshotFilesystem, other: SnapshotFilesystem) -> list[str]:
    """Return the paths that differ between two states, sorted."""
    specials = set(one.manifest.specials) ^ set(other.manifest.specials)
    return sorted({*specials, *(each.path for each in edits_between(one, other))})


def entry_state(state: SnapshotFilesystem, path: str) -> EntryState:
    """Return the entry at a path of a snapshot; the size of a file is not known."""
    entry = state.entry(path)
    if entry is None:
        return _SPECIAL if path in state.manifest.specials else _ABSENT
    return _describe(state, path, entry)


def is_same(one: EntryState, other: EntryState) -> bool:
    """Return whether two entries are equal; sizes need not be known."""
    return replace(one, size=-1) == replace(other, size=-1)


def without_new_specials(changes: Diff) -> Diff:
    """Return the changes that a restore makes: it does not recreate special files."""
    return changes.only(lambda each: each.before is not None or not _is_special(each.after))


def put_entries(
    state: SnapshotFilesystem | None,
    entries: Mapping[str, EntryState],
    add: Callable[[str, bytes], str],
) -> str:
    """Return the commit tree of a state with other entries; the blobs of files are stored already.

    `add` stores an object and returns its id. A directory that an entry needs is created, and
    one that is absent goes with all in it. None is the empty state.
    """
    files = _TreeEdit(state, add).run(entries)
    known = SnapshotManifest({}, ()) if state is None else state.manifest
    modes = {path: mode for path, mode in known.modes.items() if not _is_hit(path, entries)}
    modes |= {path: each.mode for path, each in entries.items() if _is_noted(each)}
    specials = [path for path in known.specials if not _is_hit(path, entries)]
    specials += [path for path, each in entries.items() if each.kind == "special"]
    manifest = SnapshotManifest(modes, tuple(sorted(specials)))
    if state is not None and state.manifest_id and manifest == state.manifest:
        return store_commit_tree(add, files, state.manifest_id)
    return store_commit_tree(add, files, add("blob", manifest.encode()))


def import_tree(state: State, objects: ObjectStore, batch: PackTransaction) -> str:
    """Store everything in `state`; return the id of the commit's tree.

    Of a pipe, socket or device only its existence is recorded.
    """
    entries: dict[str, EntryState] = {}
    for _, children in state.directories("Import"):
        for found in children.values():
            blob = _store_blob(state, found, objects, batch) if found.is_file else ""
            entries[found.path] = EntryState(
                found.kind, found.permissions, blob=blob, target=found.link_target or ""
            )
    return put_entries(None, entries, batch.add)


def select_tree(
    snapshot: SnapshotFilesystem, leave_out: ReproducibleFiles | None, batch: PackTransaction
) -> str:
    """Return the tree of a snapshot without what `leave_out` contains; new trees are in `batch`.

    Raises:
        ObjectError: The snapshot is damaged.
    """
    if leave_out is None:
        return snapshot.tree_id
    left_out = [
        path
        for path in snapshot.manifest.specials
        if FileStat(path, is_file=False, is_directory=False) in leave_out
    ]
    directories = [("", snapshot.files)]
    for path, tree in directories:  # grows while it is iterated
        posix.check_time("Recording")
        names = {each.name: each.mode == DIRECTORY for each in snapshot.tree(tree).values()}
        reproducible = leave_out.find_names(path, names)
        left_out += [posix.join(path, name) for name in reproducible]
        directories += [
            (posix.join(path, each.name), each.id)
            for each in snapshot.tree(tree).values()
            if each.mode == DIRECTORY and each.name not in reproducible
        ]
    if not left_out:
        return snapshot.tree_id
    return put_entries(snapshot, dict.fromkeys(left_out, _ABSENT), batch.add)


def store_commit_tree(add: Callable[[str, bytes], str], files: str, manifest: str) -> str:
    """Store the tree of a commit; `files` is a tree id, `manifest` a blob id."""
    entries = (TreeEntry(MANIFEST, FILE, manifest), TreeEntry(FILES, DIRECTORY, files))
    return add("tree", encode_tree(entries))


class _Comparison:
    """Compares two trees, a directory at a time."""

    def __init__(self, here: SnapshotFilesystem, then: SnapshotFilesystem) -> None:
        self._here = here
        self._then = then
        self._specials = set(here.manifest.specials)
        self._seen: set[str] = set()
        self._repeated = 0

    def run(self) -> Iterator[Edit]:
        modes = self._here.manifest.modes, self._then.manifest.modes
        noted = {path for path, _ in modes[0].items() ^ modes[1].items()}
        yielded: set[str] = set()
        pending: list[tuple[str, str | None, str | None]] = [
            ("", self._here.files, self._then.files)
        ]
        while pending:
            path, here, then = pending.pop()
            if here == then:
                continue
            posix.check_time("Restore")
            for name, old, new in self._compare(here, then):
                inner = posix.join(path, name)
                edit = Edit(inner, self._state(inner, old), self._state(inner, new, is_new=True))
                if edit.before != edit.after:
                    yielded.add(inner)
                    yield edit
                pending.append((inner, _tree_of(old), _tree_of(new)))
        for path in sorted(noted - yielded):
            old, new = self._here.entry(path), self._then.entry(path)
            edit = Edit(path, self._state(path, old), self._state(path, new, is_new=True))
            if old is not None and new is not None and edit.before != edit.after:
                yield edit
        for path in sorted(self._specials - set(self._then.manifest.specials) - yielded):
            yield Edit(path, _SPECIAL, _ABSENT)

    def _compare(
        self, here: str | None, then: str | None
    ) -> Iterator[tuple[str, TreeEntry | None, TreeEntry | None]]:
        """Yield the entries of two directories that differ, by name."""
        old = {} if here is None else self._here.tree(here)
        new = {} if then is None else self._then.tree(then)
        self._count(then, len(new))
        for name in old.keys() | new.keys():
            before, after = old.get(name), new.get(name)
            if before != after:
                yield name, before, after

    def _count(self, tree: str | None, size: int) -> None:
        if tree in self._seen:
            self._repeated += size
            if self._repeated > _MAX_REPEATED:
                raise SnapshotRestoreError(
                    f"Failed to restore: the snapshot repeats more than {_MAX_REPEATED} entries"
                )
        if tree is not None:
            self._seen.add(tree)

    def _state(self, path: str, entry: TreeEntry | None, *, is_new: bool = False) -> EntryState:
        if entry is not None:
            return _describe(self._then if is_new else self._here, path, entry)
        return _SPECIAL if path in self._specials and not is_new else _ABSENT


class _TreeEdit:
    """Rebuilds the trees above some entries."""

    def __init__(self, state: SnapshotFilesystem | None, add: Callable[[str, bytes], str]) -> None:
        self._state = state
        self._add = add
        self._trees: dict[str, dict[str, TreeEntry]] = {}

    def run(self, entries: Mapping[str, EntryState]) -> str:
        """Return the tree of the files."""
        tree = ""  # of the last directory, which is the root
        self._trees[""] = {} if self._state is None else dict(self._state.tree(self._state.files))
        for path, wanted in sorted(entries.items()):
            is_new = wanted.kind != "absent"
            # what is absent may have gone with a directory above it
            if all(self._open(parent, is_new=is_new) for parent in posix.parents_of(path)):
                self._put(path, wanted)
        for directory in sorted(self._trees, reverse=True):  # children first
            tree = self._add("tree", encode_tree(self._trees[directory].values()))
            if self._state is not None:
                self._state.trees[tree] = self._trees[directory]
            parent, _, name = directory.rpartition("/")
            if directory:
                self._trees[parent][name] = TreeEntry(name, DIRECTORY, tree)
        return tree

    def _open(self, directory: str, *, is_new: bool) -> bool:
        """Open a directory for changes; return False if it is missing, and may not be new."""
        if directory not in self._trees:
            parent, _, name = directory.rpartition("/")
            tree = _tree_of(self._trees[parent].get(name))
            if tree is None and not is_new:
                return False
            known = {} if tree is None or self._state is None else self._state.tree(tree)
            self._trees[directory] = dict(known)
        return True

    def _put(self, path: str, wanted: EntryState) -> None:
        parent, _, name = path.rpartition("/")
        if wanted.kind == "directory":
            self._open(path, is_new=True)
            return
        if path in self._trees:
            for inner in [each for each in self._trees if f"{each}/".startswith(f"{path}/")]:
                del self._trees[inner]
        self._trees[parent].pop(name, None)
        if wanted.kind == "file":
            mode = EXECUTABLE if wanted.mode & 0o100 else FILE
            self._trees[parent][name] = TreeEntry(name, mode, wanted.blob)
        elif wanted.kind == "symlink":
            blob = self._add("blob", os.fsencode(wanted.target))
            self._trees[parent][name] = TreeEntry(name, LINK, blob)


def _describe(state: SnapshotFilesystem, path: str, entry: TreeEntry) -> EntryState:
    if entry.mode == LINK:
        return EntryState("symlink", target=os.fsdecode(read_blob(state.objects, entry.id)))
    mode = state.permissions(path, entry.mode)
    if entry.mode == DIRECTORY:
        return EntryState("directory", mode)
    return EntryState("file", mode, -1, entry.id)


def _tree_of(entry: TreeEntry | None) -> str | None:
    return entry.id if entry is not None and entry.mode == DIRECTORY else None


def _is_noted(state: EntryState) -> bool:
    """Return whether git cannot express the permissions of an entry."""
    if state.kind == "directory":
        return state.mode != DIRECTORY_PERMISSIONS
    return state.kind == "file" and state.mode not in DEFAULT_PERMISSIONS


def _is_hit(path: str, entries: Mapping[str, EntryState]) -> bool:
    """Return whether entries replace what is at a path, or remove a directory above it."""
    if path in entries:
        return True
    above = (entries.get(parent) for parent in posix.parents_of(path))
    return any(each is not None and each.kind != "directory" for each in above)


def _is_special(found: FileStat | None) -> bool:
    return found is not None and found.kind == "special"


def _store_blob(state: State, found: FileStat, objects: ObjectStore, batch: PackTransaction) -> str:
    known = state.known_id(found)
    if known is not None and objects.is_packed(known):
        return known
    with state.open(found.path) as content:
        return batch.add_file(content.size, content.read)


# --- carrying them out ---


def restore_edits(
    directory: posix.RootedDirectory,
    edits: Sequence[Edit],
    target: SnapshotFilesystem,
    *,
    on_conflict: Policy,
    durable: bool,
    keep: KeepDisplaced,
) -> ChangeResult:
    """Carry out edits whose new content is in `target`: all of them or none.

    Raises:
        StaleRestoreError: A path is not as expected, and the policy is to refuse.
        OSError: The disk failed, or a mount or a directory of somebody else is in the way.
    """
    _check_edits(directory, edits)
    blobs = {each.path: each.after.blob for each in edits}

    def open_content(path: str) -> Content:
        try:
            return open_blob(target.objects, blobs[path])
        except ObjectError as error:
            name = posix.display_path(posix.shorten_path(path))
            raise ObjectError(f"{name!r} cannot be restored: {error}") from error

    request = ChangeRequest(
        edits, open_content, kind=KIND, on_conflict=on_conflict, durable=durable
    )
    try:
        return change(directory, request, keep=keep)
    except ChangeConflictError as error:
        stale = {error.path, *find_stale(directory, edits)}
        raise StaleRestoreError(sorted(map(posix.display_path, stale))) from error


def drop_done(
    directory: posix.RootedDirectory, edits: Sequence[Edit], paths: Sequence[str] | None = None
) -> list[Edit]:
    """Return the edits that are left: the others have happened already.

    Directories above `paths` need only be there.
    """
    tree = LiveTree(directory)

    def is_done(edit: Edit) -> bool:
        if (
            paths is not None
            and not posix.is_within(edit.path, paths)
            and tree.is_directory(edit.path)
        ):
            return True
        return matches(tree, edit.path, edit.after)

    try:
        return [each for each in edits if not is_done(each)]
    finally:
        tree.close()


def has_interrupted(directory: posix.RootedDirectory) -> bool:
    """Return whether a restore was interrupted by a crash, or could not be rolled back."""
    return any(each.record.kind == KIND and not each.is_running for each in find_changes(directory))


def recover_restores(directory: posix.RootedDirectory, root: str) -> None:
    """Finish what restores of dead processes have left; later saves are left alone.

    Raises:
        SnapshotRestoreError: That failed; the next recovery tries again.
    """
    try:
        remove_abandoned(directory)
        for pending in find_changes(directory):
            if pending.record.kind == KIND and not pending.is_running:
                if not pending.is_done:
                    _log.warning("Finishing an interrupted restore: %r", root)
                for each in recover_change(directory, pending).kept:
                    _log.warning("%s", each)
    except (OSError, RecordError) as error:
        raise SnapshotRestoreError(
            f"Failed to restore: an interrupted restore of {root!r} cannot be finished"
            f" ({error}); fix that, or open the directory with read_only=True"
        ) from error


def usage_change(
    edits: Sequence[Edit], here: SnapshotFilesystem, then: SnapshotFilesystem
) -> tuple[int, int]:
    """Return how many bytes and entries more there are after edits that lead from here to then."""
    size = count = 0
    for each in edits:
        size += then.objects.size_of(each.after.blob) if each.after.blob else 0
        size -= here.objects.size_of(each.before.blob) if each.before.blob else 0
        count += (each.after.kind != "absent") - (each.before.kind != "absent")
    return size, count


def _check_edits(directory: posix.RootedDirectory, edits: Sequence[Edit]) -> None:
    """Check that no mount point and no directory of another user has to change.

    Raises:
        OSError: One has.
    """
    points = posix.MountPoints(directory)
    for edit in edits:
        point = None if edit.before.kind == "absent" else points.find_below(edit.path)
        if point is not None and edit.after.kind != "directory":
            raise posix.os_error(errno.EBUSY, point, "Another file system is mounted here")
    new = {each.path for each in edits if each.before.kind == "absent"}
    for parent in sorted({posix.parent_of(each.path) for each in edits} - new):
        try:
            found, _ = directory.lstat(parent)
        except OSError:
            continue  # one that cannot be reached is made accessible, or is a conflict
        if not _may_change(found):
            raise posix.os_error(errno.EPERM, parent, "Directory belongs to another user")


def _may_change(found: os.stat_result) -> bool:
    user = os.geteuid()
    if not user or found.st_uid == user:
        return True
    in_group = found.st_gid in {os.getegid(), *os.getgroups()}
    return bool(found.st_mode & (stat.S_IWOTH | (stat.S_IWGRP if in_group else 0)))
