"""The tree of a snapshot without some of its entries, neither by name nor by content."""

from collections.abc import Iterable

from weakincentives.filesystem.derived import DerivedFiles
from weakincentives.filesystem.host.snapshots.tree import store_commit_tree
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.manifest import SnapshotManifest
from weakincentives.filesystem.types import FileStat
from weakincentives.gitstore import DIRECTORY, PackTransaction, TreeEntry, encode_tree
from weakincentives.posix import check_time, join, parents_of


def select_tree(
    snapshot: SnapshotFilesystem, leave_out: DerivedFiles | None, batch: PackTransaction
) -> str:
    """Return the tree of a snapshot without what `leave_out` contains; new trees are in `batch`.

    Raises:
        ObjectError: The snapshot is damaged.
    """
    if leave_out is None:
        return snapshot.tree_id
    return _Selection(snapshot, leave_out, batch).run()


class _Selection:
    """The trees of a snapshot without some entries."""

    def __init__(
        self, snapshot: SnapshotFilesystem, leave_out: DerivedFiles, batch: PackTransaction
    ) -> None:
        self._snapshot = snapshot
        self._leave_out = leave_out
        self._batch = batch
        self._left_out: set[str] = set()

    def run(self) -> str:
        """Return the tree."""
        files = self._select_files()
        manifest = self._select_manifest()
        if (files, manifest) == (self._snapshot.files, self._snapshot.manifest_id):
            return self._snapshot.tree_id
        return store_commit_tree(self._batch, files, manifest)

    def _select_files(self) -> str:
        """Return the tree of the files, without what is left out."""
        directories = [("", self._snapshot.files)]
        kept: list[list[TreeEntry]] = []
        for path, tree in directories:  # grows while it is iterated
            check_time("Recording")
            found = self._snapshot.tree(tree)
            left_out = self._find_left_out(path, found.values())
            entries = [each for name, each in found.items() if name not in left_out]
            kept.append(entries)
            directories += [
                (join(path, each.name), each.id) for each in entries if each.mode == DIRECTORY
            ]
        trees: dict[str, str] = {}
        for (path, tree), entries in zip(reversed(directories), reversed(kept), strict=True):
            trees[path] = self._select_tree(path, tree, entries, trees)
        return trees[""]

    def _select_tree(
        self, path: str, tree: str, entries: list[TreeEntry], trees: dict[str, str]
    ) -> str:
        """Return the id of a directory, whose subdirectories are known."""
        found = [
            each._replace(id=trees[join(path, each.name)]) if each.mode == DIRECTORY else each
            for each in entries
        ]
        if found == list(self._snapshot.tree(tree).values()):
            return tree
        return self._batch.add("tree", encode_tree(found))

    def _select_manifest(self) -> str:
        """Return the blob of the manifest, without what is left out."""
        manifest = self._snapshot.manifest
        for path in manifest.specials:
            if FileStat(path, is_file=False, is_directory=False) in self._leave_out:
                self._left_out.add(path)
        modes = {path: mode for path, mode in manifest.modes.items() if self._has(path)}
        specials = tuple(filter(self._has, manifest.specials))
        if (modes, specials) == (manifest.modes, manifest.specials):
            return self._snapshot.manifest_id
        return self._batch.add("blob", SnapshotManifest(modes, specials).encode())

    def _find_left_out(self, path: str, entries: Iterable[TreeEntry]) -> set[str]:
        """Return the names of the entries of a directory that are left out."""
        names = {each.name: each.mode == DIRECTORY for each in entries}
        found = self._leave_out.find_names(path, names)
        self._left_out.update(join(path, name) for name in found)
        return found

    def _has(self, path: str) -> bool:
        return self._left_out.isdisjoint((path, *parents_of(path)))
