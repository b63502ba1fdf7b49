"""A restore of some paths: the present state, with these paths as they were then."""

from collections.abc import Iterable, Iterator, Sequence

from weakincentives.filesystem.diff import Diff
from weakincentives.filesystem.host.snapshots.view import (
    SnapshotFilesystem,
)
from weakincentives.filesystem.manifest import FILES, MANIFEST, SnapshotManifest
from weakincentives.filesystem.state import State, check_restorable
from weakincentives.filesystem.types import FileStat
from weakincentives.gitstore import DIRECTORY, FILE, PackTransaction, TreeEntry, encode_tree
from weakincentives.posix import parents_of


def without_new_specials(changes: Diff) -> Diff:
    """Return what a restore does: pipes, sockets and devices that are gone are not made again."""
    return changes.only(lambda each: each.before is not None or not _is_special(each.after))


def mixed_tree(
    here: SnapshotFilesystem, then: SnapshotFilesystem, paths: Sequence[str], batch: PackTransaction
) -> str:
    """Return the commit's tree of the state `here` with `paths` as they are in `then`.

    The paths are in normal form, and none lies below another.

    Raises:
        SnapshotRestoreError: A path is nowhere, or something is in its way.
    """
    check_restorable(State(here), State(then), paths)
    files = _Mixing(here, then, batch).tree(paths)
    manifest = _mixed_manifest(here, then, paths)
    return store_tree(batch, files, batch.add("blob", manifest.encode()))


def store_tree(batch: PackTransaction, files: str, manifest: str) -> str:
    """Store the tree of a commit: the blob of the manifest beside the tree of the files."""
    entries = (
        TreeEntry(MANIFEST, FILE, manifest),
        TreeEntry(FILES, DIRECTORY, files),
    )
    return batch.add("tree", encode_tree(entries))


class _Mixing:
    def __init__(
        self, here: SnapshotFilesystem, then: SnapshotFilesystem, batch: PackTransaction
    ) -> None:
        self._here = here
        self._then = then
        self._batch = batch

    def tree(self, paths: Sequence[str]) -> str:
        """Return the tree of the files; directories are changed one path at a time."""
        if "" in paths:
            return self._then.files
        changed: dict[str, dict[str, TreeEntry]] = {}
        for path in paths:
            self._bring_back(path, changed)
        # the deepest first: each is an entry of the one above it
        for directory in sorted(changed, key=_depth, reverse=True):
            tree = self._batch.add("tree", encode_tree(changed[directory].values()))
            if not directory:
                return tree
            above, _, name = directory.rpartition("/")
            changed[above][name] = TreeEntry(name, DIRECTORY, tree)
        return self._here.files

    def _bring_back(self, path: str, changed: dict[str, dict[str, TreeEntry]]) -> None:
        for parent in ("", *parents_of(path)):
            if parent not in changed:
                entry = self._here.entry(parent)
                changed[parent] = {} if entry is None else dict(self._here.tree(entry.id))
        above, _, name = path.rpartition("/")
        wanted = self._then.entry(path)
        if wanted is None:
            changed[above].pop(name, None)
        else:
            changed[above][name] = wanted


def _mixed_manifest(
    here: SnapshotFilesystem, then: SnapshotFilesystem, paths: Sequence[str]
) -> SnapshotManifest:
    modes = {
        path: mode for path, mode in here.manifest.modes.items() if not _is_within(path, paths)
    }
    made = {parent for path in paths for parent in parents_of(path) if here.entry(parent) is None}
    modes.update(
        (path, mode)
        for path, mode in then.manifest.modes.items()
        if path in made or _is_within(path, paths)
    )
    specials = (
        *_chosen(here.manifest.specials, paths, within=False),
        *_chosen(then.manifest.specials, paths, within=True),
    )
    return SnapshotManifest(modes, tuple(sorted(specials)))


def _is_special(found: FileStat | None) -> bool:
    return found is not None and found.kind == "special"


def _depth(path: str) -> int:
    return path.count("/") + bool(path)


def _chosen(found: Iterable[str], paths: Sequence[str], *, within: bool) -> Iterator[str]:
    return (path for path in found if _is_within(path, paths) == within)


def _is_within(path: str, paths: Sequence[str]) -> bool:
    return any(not place or f"{path}/".startswith(f"{place}/") for place in paths)
