"""A snapshot as a read-only filesystem: to look into it, compare it and export it."""

import errno
import json
import os
from collections import OrderedDict
from dataclasses import asdict, dataclass
from functools import partial
from threading import Lock
from typing import Self

import msgspec

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem.limits import DEFAULT_LIMITS, Limits, check_time
from weakincentives.filesystem.paths import os_error
from weakincentives.filesystem.readable import ReadableFilesystem, hash_of
from weakincentives.filesystem.store.blobs import open_blob, read_blob
from weakincentives.filesystem.store.objects import ObjectError, ObjectStore
from weakincentives.filesystem.store.trees import (
    DIRECTORY,
    EXECUTABLE,
    LINK,
    TreeEntry,
    decode_tree,
)
from weakincentives.filesystem.text import Content, LineIndex
from weakincentives.filesystem.types import Children, FileStat

MANIFEST = "manifest.json"
FILES = "files"

_ALL_BITS = 0o7777
_REMEMBERED = 64  # blobs whose lines have been counted


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a git tree cannot say: permissions that git has none for, and special files."""

    modes: dict[str, int]
    specials: tuple[str, ...]
    version: str = "1"

    def encode(self) -> bytes:
        """Return the JSON; bytes of a name that are no text become lone surrogates in escapes."""
        return json.dumps(asdict(self), sort_keys=True, indent=1).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return what the JSON says.

        Raises:
            ValueError: It is not a manifest.
        """
        try:
            found = msgspec.convert(json.loads(data), cls)
        except RecursionError:
            raise ValueError("Manifest is nested too deeply") from None
        for path, mode in found.modes.items():
            if not 0 <= mode <= _ALL_BITS:
                raise ValueError(f"Manifest has no permissions for {path!r} but {mode}")
        return found


class SnapshotFilesystem(ReadableFilesystem):
    """The state that one commit of a store holds."""

    def __init__(
        self, objects: ObjectStore, tree: str, root: str, *, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        """Read the commit's `tree`, which is of the workspace at `root`.

        Raises:
            SnapshotRestoreError: The tree is none of ours, or damaged.
        """
        super().__init__(limits=limits)
        self._objects = objects
        self._root = root
        self._trees: dict[str, dict[str, TreeEntry]] = {}
        self._lines = _Lines()
        try:
            top = self.tree(tree)
            self.files: str = top[FILES].id
            self.manifest: Manifest = Manifest.decode(self._objects.read(top[MANIFEST].id)[1])
            self._specials = frozenset(self.manifest.specials)
        except (KeyError, ValueError, msgspec.ValidationError) as error:
            raise SnapshotRestoreError(
                f"Failed to restore: the snapshot is damaged ({error})"
            ) from None

    @property
    def root(self) -> str:
        """Where the workspace was."""
        return self._root

    def tree(self, tree: str) -> dict[str, TreeEntry]:
        """Return the entries of a tree by name."""
        found = self._trees.get(tree)
        if found is None:
            kind, data = self._objects.read(tree)
            if kind != "tree":
                raise ObjectError(f"Object is no tree but a {kind}: {tree!r}")
            found = self._trees[tree] = {entry.name: entry for entry in decode_tree(data)}
        return found

    def entry_count(self) -> int:
        """Return how many files, links and directories there are, each tree counted where it is.

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
        """Return the permissions of what is at `path` and has git's `mode`."""
        plain = 0o644 if mode not in {DIRECTORY, EXECUTABLE} else 0o755
        return self.manifest.modes.get(path, plain)

    def entry(self, path: str) -> TreeEntry | None:
        """Return the tree entry at `path`; the root has none of its own."""
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
            is_special = path in self._specials
            return FileStat(path, False, False, permissions=0o644) if is_special else None
        if entry.mode == DIRECTORY:
            return FileStat(path, False, True, permissions=self.permissions(path, DIRECTORY))
        if entry.mode == LINK:
            target = os.fsdecode(read_blob(self._objects, entry.id))
            return FileStat(path, False, False, permissions=0o777, link_target=target)
        return FileStat(
            path,
            is_file=True,
            is_directory=False,
            size_bytes=self._objects.size_of(entry.id),
            permissions=self.permissions(path, entry.mode),
            hasher=partial(self._hash, entry.id),
        )

    def _children(self, path: str) -> Children:
        entry = self.entry(path)
        if entry is None or entry.mode != DIRECTORY:
            raise os_error(errno.ENOTDIR, path)
        files: list[str] = []
        directories: list[str] = []
        symlinks: list[str] = []
        for name, child in self.tree(entry.id).items():
            if child.mode == DIRECTORY:
                directories.append(name)
            elif child.mode == LINK:
                symlinks.append(name)
            else:
                files.append(name)
        return Children(files, directories, symlinks, self._specials_in(path))

    def _specials_in(self, path: str) -> list[str]:
        prefix = f"{path}/" if path else ""
        below = (each[len(prefix) :] for each in self._specials if each.startswith(prefix))
        return [name for name in below if "/" not in name]

    def _open(self, path: str) -> Content:
        entry = self.entry(path)
        if entry is None or entry.mode in {DIRECTORY, LINK}:
            raise os_error(errno.ENOENT, path)
        return _Indexed(open_blob(self._objects, entry.id), entry.id, self._lines)

    def _blob_id(self, path: str) -> str | None:
        entry = self.entry(path)
        return None if entry is None or entry.mode in {DIRECTORY, LINK} else entry.id

    def _hash(self, blob: str) -> str:
        return hash_of(open_blob(self._objects, blob))


class _Lines:
    """Where the lines of the blobs are that were read last."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, LineIndex] = OrderedDict()
        self._lock = Lock()

    def of(self, blob: str) -> LineIndex:
        with self._lock:
            index = self._known.setdefault(blob, LineIndex())
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return index


class _Indexed(Content):
    """A blob, whose lines are counted once."""

    __slots__ = ("_blob", "_content", "_lines")

    def __init__(self, content: Content, blob: str, lines: _Lines) -> None:
        self._content = content
        self._blob = blob
        self._lines = lines

    @property
    def size(self) -> int:
        return self._content.size

    def read(self, offset: int, size: int) -> bytes:
        return self._content.read(offset, size)

    def next_data(self, offset: int) -> int:
        return self._content.next_data(offset)

    def line_index(self) -> LineIndex:
        return self._lines.of(self._blob)
