"""A read-only filesystem over the commit of a snapshot.

Blobs are inflated as they are read; a large one is never loaded as a whole.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Self

import msgspec

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.base import Primitives, ReadableFilesystem, content_hash
from weakincentives.filesystem.host.files import LineIndexes
from weakincentives.filesystem.manifest import (
    DIRECTORY_PERMISSIONS,
    EXECUTABLE_PERMISSIONS,
    FILE_PERMISSIONS,
    FILES,
    MANIFEST,
    SnapshotManifest,
)
from weakincentives.filesystem.text import BytesContent, Content, LineIndex, StreamedContent
from weakincentives.filesystem.types import Children, FileStat
from weakincentives.gitstore import (
    CHUNK_SIZE,
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    Inflater,
    ObjectError,
    ObjectStore,
    PackError,
    TreeEntry,
    decode_tree,
)
from weakincentives.posix import check_time, display_path, join, os_error, parents_of

_PLAIN_BITS = 0o777
_DEFAULTS = {DIRECTORY: DIRECTORY_PERMISSIONS, EXECUTABLE: EXECUTABLE_PERMISSIONS}


def read_blob(objects: ObjectStore, blob: str) -> bytes:
    """Return the content of a blob, verified.

    Raises:
        ObjectError: It is missing, damaged, not a blob, or too large to load.
    """
    return objects.read(blob, "blob")[1]


def open_blob(
    objects: ObjectStore, blob: str, index: Callable[[], LineIndex] | None = None
) -> Content:
    """Open a blob for reading, with a cached line `index`; a small one is verified first.

    Raises:
        ObjectError: It is missing, damaged or not a blob. Reading may raise this too.
    """
    if objects.size_of(blob) > CHUNK_SIZE:
        found = objects.stream(blob)
        if found.kind != "blob":
            raise ObjectError(f"Object is a {found.kind}, not a blob: {blob!r}")
        if found.inflater is not None:  # else git made it a delta, which is read as a whole
            return _LargeBlob(found.inflater, found.size, index, blob)
    return BytesContent(read_blob(objects, blob), index)


class _LargeBlob(StreamedContent):
    """A blob that is inflated as it is read.

    The content is verified when the end is reached; until then it is read unverified.
    """

    __slots__ = ("_blob", "_digest", "_hashed")

    def __init__(
        self, inflater: Inflater, size: int, index: Callable[[], LineIndex] | None, blob: str
    ) -> None:
        super().__init__(inflater, size, index)
        self._blob = blob
        self._hashed = 0
        self._digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)

    def _next_chunk(self) -> bytes:
        try:
            piece = self._stream.read_chunk()
        except PackError as error:
            raise ObjectError(f"Object is damaged: {self._blob!r}: {error}") from error
        if not piece:
            raise ObjectError(f"Object is damaged: {self._blob!r}: it ends too early")
        if self._at == self._hashed:
            self._digest.update(piece)
            self._hashed += len(piece)
            if self._hashed == self._size and self._digest.hexdigest() != self._blob:
                raise ObjectError(
                    f"Object is damaged: {self._blob!r}: its content does not match the id"
                )
        return piece


class SnapshotFilesystem(ReadableFilesystem):
    """The state of one commit, read-only."""

    def __init__(
        self,
        objects: ObjectStore,
        tree: str,
        root: str,
        *,
        like: "SnapshotFilesystem | None" = None,
    ) -> None:
        """Read the commit's `tree`, taken of the workspace at `root`.

        What it shares with the state `like`, in the same store, is not read again.

        Raises:
            SnapshotRestoreError: The tree does not have our layout, or is damaged.
        """
        super().__init__()
        self._objects = objects
        self._root = root
        self.tree_id: str = tree
        self.commit: str = ""
        """The commit, if this is the state of one."""
        self.trees: dict[str, dict[str, TreeEntry]] = {} if like is None else like.trees
        """Entries by name of each directory that was read, by its id."""
        self._line_indexes = LineIndexes()
        try:
            top = self.tree(tree)
            self.files: str = top[FILES].id
            self.manifest_id: str = top[MANIFEST].id
            self._unequal: tuple[str, frozenset[str]] = self.manifest_id, frozenset()
            self.manifest: SnapshotManifest = (
                like.manifest
                if like is not None and like.manifest_id == self.manifest_id
                else SnapshotManifest.decode(objects.read(self.manifest_id)[1])
            )
            self._specials = frozenset(self.manifest.specials)
        except (KeyError, ValueError, msgspec.ValidationError) as error:
            raise SnapshotRestoreError(
                f"Failed to restore: the snapshot is damaged ({error})"
            ) from None

    def __str__(self) -> str:
        """Return the tree and the workspace, for messages."""
        return f"state {self.tree_id[:12]} of {display_path(self._root)}"

    @property
    def root(self) -> str:
        """Where the workspace was."""
        return self._root

    @property
    def objects(self) -> ObjectStore:
        """The store that has its content."""
        return self._objects

    def without_rights(self) -> Self:
        """Return the state without set-user-ID and set-group-ID bits, and sticky bits of files."""
        modes = dict(self.manifest.modes)
        for path, mode in modes.items():
            if mode & ~_PLAIN_BITS:
                entry = self.entry(path)
                is_directory = entry is not None and entry.mode == DIRECTORY
                modes[path] = mode & (_PLAIN_BITS | stat.S_ISVTX if is_directory else _PLAIN_BITS)
        if modes == self.manifest.modes:
            return self
        found = copy(self)
        found.manifest, found.manifest_id = SnapshotManifest(modes, self.manifest.specials), ""
        return found

    def tree(self, tree: str) -> dict[str, TreeEntry]:
        """Return the entries of a tree by name."""
        found = self.trees.get(tree)
        if found is None:
            entries = decode_tree(self.tree_content(tree))
            found = self.trees[tree] = {entry.name: entry for entry in entries}
        return found

    def tree_content(self, tree: str) -> bytes:
        """Return a tree as it is stored."""
        return self._objects.read(tree, "tree")[1]

    def entry_count(self) -> int:
        """Count files, links and directories; a tree that occurs twice counts twice.

        Raises:
            ObjectError: A tree is missing or damaged.
        """
        counts: dict[str, int] = {}
        pending = [self.files]
        while pending:
            tree = pending[-1]
            entries = self.tree(tree).values()
            inner = [entry.id for entry in entries if entry.mode == DIRECTORY]
            unknown = [each for each in inner if each not in counts]
            if unknown:
                check_time("Snapshot")
                pending += unknown
                continue
            counts[tree] = len(entries) + sum(counts[each] for each in inner)
            pending.pop()
        return counts[self.files]

    def permissions(self, path: str, mode: int) -> int:
        """Return the permissions of the entry at `path`, whose git mode is `mode`."""
        return self.manifest.modes.get(path, _DEFAULTS.get(mode, FILE_PERMISSIONS))

    def entry(self, path: str) -> TreeEntry | None:
        """Return the tree entry at `path`; the root gets a synthetic one."""
        entry = TreeEntry("", DIRECTORY, self.files)
        for segment in path.split("/") if path else ():
            if entry.mode != DIRECTORY:
                return None
            found = self.tree(entry.id).get(segment)
            if found is None:
                return None
            entry = found
        return entry

    def _lookup(self, path: str) -> FileStat | None:
        entry = self.entry(path)
        if entry is None:
            if path not in self._specials:
                return None
            return _special(path)
        return self._describe(path, entry)

    def _stats(self, path: str) -> dict[str, FileStat]:
        children = self._directory(path).items()
        stats: dict[str, FileStat] = {}
        for name, child in children:
            try:
                stats[name] = self._describe(join(path, name), child)
            except ObjectError as error:
                raise ObjectError(f"{display_path(join(path, name))}: {error}") from error
        return stats | {name: _special(join(path, name)) for name in self._specials_in(path)}

    def _has_same_tree(self, path: str, other: Primitives) -> bool:
        if not isinstance(other, SnapshotFilesystem):
            return False
        here, there = self.entry(path), other.entry(path)
        if here is None or there is None or here.id != there.id or here.mode != DIRECTORY:
            return False
        return path not in self._find_unequal(other)

    def _find_unequal(self, other: "SnapshotFilesystem") -> frozenset[str]:
        """Return the directories above entries that the two manifests describe differently."""
        key, found = self._unequal
        if key != other.manifest_id:
            mine, theirs = self.manifest, other.manifest
            paths = {path for path, _ in mine.modes.items() ^ theirs.modes.items()}
            paths |= set(mine.specials) ^ set(theirs.specials)
            found = frozenset(parent for path in paths for parent in ("", *parents_of(path)))
            self._unequal = other.manifest_id, found
        return found

    def _describe(self, path: str, entry: TreeEntry) -> FileStat:
        if entry.mode == DIRECTORY:
            permissions = self.permissions(path, DIRECTORY)
            return FileStat(path, is_file=False, is_directory=True, permissions=permissions)
        if entry.mode == LINK:
            target = os.fsdecode(read_blob(self._objects, entry.id))
            return FileStat(
                path, is_file=False, is_directory=False, permissions=0o777, link_target=target
            )
        return FileStat(
            path,
            is_file=True,
            is_directory=False,
            size_bytes=self._objects.size_of(entry.id),
            permissions=self.permissions(path, entry.mode),
            hasher=partial(self._hash, entry.id),
        )

    def _children(self, path: str) -> Children:
        names: dict[int, list[str]] = {FILE: [], EXECUTABLE: [], DIRECTORY: [], LINK: []}
        for name, entry in self._directory(path).items():
            names[entry.mode].append(name)
        files = names[FILE] + names[EXECUTABLE]
        return Children(files, names[DIRECTORY], names[LINK], self._specials_in(path))

    def _directory(self, path: str) -> dict[str, TreeEntry]:
        entry = self.entry(path)
        if entry is None or entry.mode != DIRECTORY:
            raise os_error(errno.ENOTDIR, path)
        return self.tree(entry.id)

    def _specials_in(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        below = (each[len(prefix) :] for each in self._specials if each.startswith(prefix))
        return [name for name in below if "/" not in name]

    def _open(self, path: str) -> Content:
        entry = self.entry(path)
        if entry is None or entry.mode in {DIRECTORY, LINK}:
            raise os_error(errno.ENOENT, path)
        index = partial(self._line_indexes.get, entry.id)
        return open_blob(self._objects, entry.id, index)

    def _tree_id(self) -> str:
        return self.tree_id

    def _blob_id(self, path: str) -> str | None:
        entry = self.entry(path)
        return None if entry is None or entry.mode in {DIRECTORY, LINK} else entry.id

    def _hash(self, blob: str) -> str:
        return content_hash(open_blob(self._objects, blob))


def _special(path: str) -> FileStat:
    return FileStat(path, is_file=False, is_directory=False, permissions=0o644)
