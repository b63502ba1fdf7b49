"""The difference of two snapshots as edits, and edits put into a snapshot.

Equal subtrees are recognized by their ids and never entered.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.diff import Diff
from weakincentives.filesystem.host.snapshots.tree import store_commit_tree
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem, read_blob
from weakincentives.filesystem.manifest import (
    DEFAULT_PERMISSIONS,
    DIRECTORY_PERMISSIONS,
    SnapshotManifest,
)
from weakincentives.filesystem.types import FileStat
from weakincentives.gitstore import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    PackTransaction,
    TreeEntry,
    encode_tree,
)
from weakincentives.history import Edit, EntryState
from weakincentives.posix import check_time, join, parents_of

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
    wanted = {path: each for path, each in found.items() if is_within(path, paths)}
    needed = {parent for path in wanted for parent in parents_of(path)}
    for path in needed:  # directories that a restored path needs above it
        edit = found.get(path)
        if edit is not None and edit.before.kind == "absent":
            wanted[path] = edit
    return list(wanted.values())


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
    state: SnapshotFilesystem, entries: Mapping[str, EntryState], batch: PackTransaction
) -> str:
    """Return the commit tree of a state with other entries; their blobs are in `batch`.

    A directory that an entry needs is created, and one that is absent goes with all in it.
    """
    files = _TreeEdit(state, batch).run(entries)
    modes = {
        path: mode for path, mode in state.manifest.modes.items() if not _is_hit(path, entries)
    }
    modes |= {path: each.mode for path, each in entries.items() if _is_noted(each)}
    specials = [path for path in state.manifest.specials if not _is_hit(path, entries)]
    specials += [path for path, each in entries.items() if each.kind == "special"]
    manifest = SnapshotManifest(modes, tuple(sorted(specials)))
    return store_commit_tree(batch, files, batch.add("blob", manifest.encode()))


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
            check_time("Restore")
            for name, old, new in self._compare(here, then):
                inner = join(path, name)
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

    def __init__(self, state: SnapshotFilesystem, batch: PackTransaction) -> None:
        self._state = state
        self._batch = batch
        self._trees: dict[str, dict[str, TreeEntry]] = {}

    def run(self, entries: Mapping[str, EntryState]) -> str:
        """Return the tree of the files."""
        self._open("")
        for path in sorted(entries):
            if entries[path].kind == "absent" and not self._has_parent(path):
                continue  # it went with a directory above it
            for parent in parents_of(path):
                self._open(parent)
            self._put(path, entries[path])
        for directory in sorted(self._trees, key=_depth, reverse=True):
            tree = self._batch.add("tree", encode_tree(self._trees[directory].values()))
            if not directory:
                return tree
            parent, _, name = directory.rpartition("/")
            self._trees[parent][name] = TreeEntry(name, DIRECTORY, tree)
        return self._state.files

    def _has_parent(self, path: str) -> bool:
        for parent in parents_of(path):
            above, _, name = parent.rpartition("/")
            entry = self._trees[above].get(name)
            if parent not in self._trees and (entry is None or entry.mode != DIRECTORY):
                return False
            self._open(parent)
        return True

    def _open(self, directory: str) -> None:
        if directory not in self._trees:
            parent, _, name = directory.rpartition("/")
            entry = self._state.entry("") if not directory else self._trees[parent].get(name)
            tree = _tree_of(entry)
            self._trees[directory] = {} if tree is None else dict(self._state.tree(tree))

    def _put(self, path: str, wanted: EntryState) -> None:
        parent, _, name = path.rpartition("/")
        if wanted.kind == "directory":
            self._open(path)
            return
        for inner in [each for each in self._trees if f"{each}/".startswith(f"{path}/")]:
            del self._trees[inner]
        self._trees[parent].pop(name, None)
        if wanted.kind == "file":
            mode = EXECUTABLE if wanted.mode & 0o100 else FILE
            self._trees[parent][name] = TreeEntry(name, mode, wanted.blob)
        elif wanted.kind == "symlink":
            blob = self._batch.add("blob", os.fsencode(wanted.target))
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
    above = (entries.get(parent) for parent in parents_of(path))
    return any(each is not None and each.kind != "directory" for each in above)


def _is_special(found: FileStat | None) -> bool:
    return found is not None and found.kind == "special"


def _depth(path: str) -> int:
    return path.count("/") + bool(path)


def is_within(path: str, paths: Iterable[str]) -> bool:
    """Return whether a path is at or below one of `paths`."""
    return any(not parent or f"{path}/".startswith(f"{parent}/") for parent in paths)
