"""Partial restore: the present tree with some paths as they were in a snapshot."""

from collections.abc import Iterable, Iterator, Sequence

from weakincentives.filesystem.base.state import State, check_restorable
from weakincentives.filesystem.diff import Diff
from weakincentives.filesystem.host.snapshots.tree import store_commit_tree
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.manifest import SnapshotManifest
from weakincentives.filesystem.types import FileStat
from weakincentives.gitstore import DIRECTORY, PackTransaction, TreeEntry, encode_tree
from weakincentives.posix import parents_of


def without_new_specials(changes: Diff) -> Diff:
    """Return the changes that a restore makes: it does not recreate special files."""
    return changes.only(lambda each: each.before is not None or not _is_special(each.after))


def merge_tree(
    here: SnapshotFilesystem, then: SnapshotFilesystem, paths: Sequence[str], batch: PackTransaction
) -> str:
    """Return the commit tree of the state `here` with `paths` as they are in `then`.

    The paths are normalized, and none is below another.

    Raises:
        SnapshotRestoreError: A path is in neither state, or a file is in its way.
    """
    check_restorable(State(here), State(then), paths)
    files = _TreeMerge(here, then, batch).run(paths)
    manifest = _merge_manifests(here, then, paths)
    return store_commit_tree(batch, files, batch.add("blob", manifest.encode()))


class _TreeMerge:
    def __init__(
        self, here: SnapshotFilesystem, then: SnapshotFilesystem, batch: PackTransaction
    ) -> None:
        self._here = here
        self._then = then
        self._batch = batch
        self._changed: dict[str, dict[str, TreeEntry]] = {}

    def run(self, paths: Sequence[str]) -> str:
        """Return the merged tree of the files."""
        if "" in paths:
            return self._then.files
        for path in paths:
            self._take_over(path)
        # deepest first: each is an entry of its parent
        for directory in sorted(self._changed, key=_depth, reverse=True):
            tree = self._batch.add("tree", encode_tree(self._changed[directory].values()))
            if not directory:
                return tree
            parent, _, name = directory.rpartition("/")
            self._changed[parent][name] = TreeEntry(name, DIRECTORY, tree)
        return self._here.files

    def _take_over(self, path: str) -> None:
        """Put the entry that `path` has in `then` into the directories of `here`."""
        for parent in ("", *parents_of(path)):
            if parent not in self._changed:
                entry = self._here.entry(parent)
                self._changed[parent] = {} if entry is None else dict(self._here.tree(entry.id))
        parent, _, name = path.rpartition("/")
        wanted = self._then.entry(path)
        if wanted is None:
            self._changed[parent].pop(name, None)
        else:
            self._changed[parent][name] = wanted


def _merge_manifests(
    here: SnapshotFilesystem, then: SnapshotFilesystem, paths: Sequence[str]
) -> SnapshotManifest:
    modes = {
        path: mode for path, mode in here.manifest.modes.items() if not _is_within(path, paths)
    }
    created = {
        parent for path in paths for parent in parents_of(path) if here.entry(parent) is None
    }
    modes.update(
        (path, mode)
        for path, mode in then.manifest.modes.items()
        if path in created or _is_within(path, paths)
    )
    specials = (
        *_filter_paths(here.manifest.specials, paths, within=False),
        *_filter_paths(then.manifest.specials, paths, within=True),
    )
    return SnapshotManifest(modes, tuple(sorted(specials)))


def _is_special(found: FileStat | None) -> bool:
    return found is not None and found.kind == "special"


def _depth(path: str) -> int:
    return path.count("/") + bool(path)


def _filter_paths(found: Iterable[str], paths: Sequence[str], *, within: bool) -> Iterator[str]:
    return (path for path in found if _is_within(path, paths) == within)


def _is_within(path: str, paths: Sequence[str]) -> bool:
    return any(not parent or f"{path}/".startswith(f"{parent}/") for parent in paths)
