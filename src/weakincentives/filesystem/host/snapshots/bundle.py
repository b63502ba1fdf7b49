"""A snapshot in one piece: a pack with its index, to be part of another file.

Entries can be left out: neither their names nor their content are in the bundle. Objects are
copied as they are stored; only directories without some of their entries are new.
"""

from collections.abc import Callable, Iterable, Iterator

from weakincentives.filesystem.derived import DerivedFiles
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem
from weakincentives.filesystem.manifest import FILES, MANIFEST, SnapshotManifest
from weakincentives.filesystem.types import FileStat
from weakincentives.gitstore import (
    DIRECTORY,
    FILE,
    EmbeddedPack,
    ObjectError,
    PackedObjects,
    PackError,
    TreeEntry,
    encode_tree,
    hash_object,
)
from weakincentives.posix import check_time, join, parents_of


class SnapshotBundle:
    """The bytes of a snapshot, without what is left out."""

    def __init__(self, snapshot: SnapshotFilesystem, leave_out: DerivedFiles | None = None) -> None:
        """Bundle `snapshot` without the entries that `leave_out` contains.

        Raises:
            ObjectError: It is not stored in one pack, or damaged.
        """
        selection = _Selection(snapshot, leave_out)
        self.tree: str = selection.tree
        """The id of its tree, to open the bundle with."""
        self._subset = snapshot.objects.subset(selection.wanted, selection.new)
        self.pack_size: int = self._subset.pack_size
        """Bytes of the pack; the others are its index."""

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes: the pack, then its index.

        Raises:
            ObjectError: It is damaged.
        """
        try:
            yield from self._subset.chunks()
        except PackError as error:
            raise ObjectError(f"Snapshot cannot be copied: {error}") from error
        yield self._subset.index


def open_bundle(
    read: Callable[[int, int], bytes],
    *,
    pack_size: int,
    index: bytes,
    tree: str,
    root: str,
    name: str,
) -> SnapshotFilesystem:
    """Return the files of a bundle.

    Args:
        read: Returns some of the bytes at an offset of the pack, at most as many as wanted.
        pack_size: Bytes of the pack.
        index: The bytes after it.
        tree: The id of the tree.
        root: Where the workspace was.
        name: What to call the bundle in errors.

    Raises:
        ObjectError: It is damaged.
        SnapshotRestoreError: It is not the tree of a snapshot.
    """
    try:
        pack = EmbeddedPack(read, pack_size, index, name)
    except PackError as error:
        raise ObjectError(str(error)) from error
    return SnapshotFilesystem(PackedObjects(pack), tree, root)


class _Selection:
    """The objects of a snapshot without some entries."""

    def __init__(self, snapshot: SnapshotFilesystem, leave_out: DerivedFiles | None) -> None:
        self._snapshot = snapshot
        self._leave_out = leave_out
        self.wanted: set[bytes] = set()
        self._new: dict[bytes, tuple[str, bytes]] = {}
        self._left_out: set[str] = set()
        files = self._select_files()
        manifest = self._select_manifest()
        if (files, manifest) == (snapshot.files, snapshot.manifest_id):
            self.tree: str = snapshot.tree_id
            self.wanted.add(bytes.fromhex(self.tree))
        else:
            entries = (TreeEntry(MANIFEST, FILE, manifest), TreeEntry(FILES, DIRECTORY, files))
            self.tree = self._add("tree", encode_tree(entries))

    @property
    def new(self) -> list[tuple[str, bytes]]:
        """The objects that the snapshot does not have: kind and content."""
        return [each for key, each in self._new.items() if key not in self.wanted]

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
        self.wanted.update(bytes.fromhex(each.id) for each in found if each.mode != DIRECTORY)
        if found == list(self._snapshot.tree(tree).values()):
            self.wanted.add(bytes.fromhex(tree))
            return tree
        return self._add("tree", encode_tree(found))

    def _select_manifest(self) -> str:
        """Return the blob of the manifest, without what is left out."""
        manifest, leave_out = self._snapshot.manifest, self._leave_out
        if leave_out is not None:
            for path in manifest.specials:
                if FileStat(path, is_file=False, is_directory=False) in leave_out:
                    self._left_out.add(path)
        modes = {path: mode for path, mode in manifest.modes.items() if self._has(path)}
        specials = tuple(filter(self._has, manifest.specials))
        if (modes, specials) == (manifest.modes, manifest.specials):
            self.wanted.add(bytes.fromhex(self._snapshot.manifest_id))
            return self._snapshot.manifest_id
        return self._add("blob", SnapshotManifest(modes, specials).encode())

    def _find_left_out(self, path: str, entries: Iterable[TreeEntry]) -> set[str]:
        """Return the names of the entries of a directory that are left out."""
        if self._leave_out is None:
            return set()
        names = {each.name: each.mode == DIRECTORY for each in entries}
        found = self._leave_out.find_names(path, names)
        self._left_out.update(join(path, name) for name in found)
        return found

    def _has(self, path: str) -> bool:
        return self._left_out.isdisjoint((path, *parents_of(path)))

    def _add(self, kind: str, data: bytes) -> str:
        object_id = hash_object(kind, data)
        self._new[bytes.fromhex(object_id)] = kind, data
        return object_id
