"""Git trees of a workspace: the commit layout, captured nodes, and the import of a state.

A commit's tree has two entries: `files`, the tree of the workspace, and `manifest.json`,
which records what git trees cannot express. Captured nodes are immutable except for the
remembered stat of a file or directory. Each holds its own entry in the parent's tree, so a
directory with one change is encoded without visiting its other children.
"""

import hashlib
import os
from collections.abc import Iterator
from typing import Self, TypeAlias

import msgspec

from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.host.files import Identity, is_stable
from weakincentives.filesystem.manifest import (
    DEFAULT_PERMISSIONS,
    DIRECTORY_PERMISSIONS,
    FILES,
    MANIFEST,
    SnapshotManifest,
)
from weakincentives.filesystem.types import FileStat
from weakincentives.gitstore import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    ObjectStore,
    PackTransaction,
    TreeEntry,
    encode_entry,
    encode_tree,
    entry_id,
    entry_key,
)

_CHUNK_SIZE = 1024 * 1024


# --- the commit layout ---


def store_commit_tree(batch: PackTransaction, files: str, manifest: str) -> str:
    """Store the tree of a commit; `files` is a tree id, `manifest` a blob id."""
    entries = (
        TreeEntry(MANIFEST, FILE, manifest),
        TreeEntry(FILES, DIRECTORY, files),
    )
    return batch.add("tree", encode_tree(entries))


# --- captured nodes ---


class CapturedFile(msgspec.Struct, array_like=True, tag=1, eq=False, gc=False):
    """A file: its tree entry with the blob id, and the stat it had when it was read.

    `identity` is None if the file could change again without a visible change of its stat.
    """

    entry: bytes
    permissions: int
    is_noted: bool
    identity: Identity | None

    @classmethod
    def of(cls, name: str, blob: str, identity: Identity) -> Self:
        """Return a file with the content `blob` and the stat `identity`."""
        found = cls.settled(name, bytes.fromhex(blob), identity)
        found.update_identity(identity)
        return found

    @classmethod
    def settled(cls, name: str, blob: bytes, identity: Identity) -> Self:
        """Return a file; the caller ensures that every later change shows in its stat."""
        permissions = identity[-1] & 0o7777
        mode = EXECUTABLE if permissions & 0o100 else FILE
        is_noted = permissions not in DEFAULT_PERMISSIONS
        return cls(encode_entry(name, mode, blob), permissions, is_noted, identity)

    @property
    def id(self) -> str:
        """The blob id of the content."""
        return entry_id(self.entry)

    @property
    def notes(self) -> bytes:
        """Always empty: only directories have notes."""
        return b""

    def update_identity(self, identity: Identity) -> None:
        """Remember the present stat of the unchanged file."""
        self.identity = identity if is_stable(identity) else None


class CapturedLink(msgspec.Struct, array_like=True, tag=2, eq=False, gc=False):
    """A symbolic link: its tree entry with the id of the blob that holds the target."""

    entry: bytes
    target: bytes

    @classmethod
    def of(cls, name: str, blob: str, target: bytes) -> Self:
        """Return a link to `target`."""
        return cls(encode_entry(name, LINK, bytes.fromhex(blob)), target)

    @property
    def id(self) -> str:
        """The id of the blob that holds the target."""
        return entry_id(self.entry)

    @property
    def is_noted(self) -> bool:
        """Always False: git expresses a link completely."""
        return False


class CapturedDirectory:
    """A directory, with what a git tree cannot express of it and everything below.

    `special_names` are the pipes, sockets and devices in it. A node is *noted* if the
    manifest mentions it or an entry below it; `noted` are such children.
    Equal `notes`, a digest, mean equal `modes` and `specials`.
    """

    __slots__ = (
        "_modes",
        "_specials",
        "children",
        "entry",
        "identity",
        "is_noted",
        "noted",
        "notes",
        "permissions",
        "special_names",
    )

    def __init__(
        self,
        entry: bytes,
        children: "dict[str, Captured]",
        permissions: int,
        special_names: frozenset[str],
    ) -> None:
        """Take the `children` in git's order; the entry ends with the id of their tree."""
        self.entry: bytes = entry
        self.children: dict[str, Captured] = children
        self.permissions: int = permissions
        self.special_names: frozenset[str] = special_names
        self.identity: Identity | None = None
        """The stat that it has as long as exactly these names are in it; None if unknown."""
        self.noted: list[tuple[str, Captured]] = [
            (name, child) for name, child in children.items() if child.is_noted
        ]
        self.is_noted: bool = bool(
            self.noted or special_names or permissions != DIRECTORY_PERMISSIONS
        )
        self.notes: bytes = _digest_notes(self) if self.noted or special_names else b""
        self._modes: dict[str, int] | None = None
        self._specials: tuple[str, ...] | None = None

    @property
    def id(self) -> str:
        """The id of the tree."""
        return entry_id(self.entry)

    @property
    def modes(self) -> dict[str, int]:
        """The permissions below that git cannot express, by path."""
        if self._modes is None:
            self._modes = dict(_iterate_modes(self))
        return self._modes

    @property
    def specials(self) -> tuple[str, ...]:
        """The paths of all pipes, sockets and devices below, sorted."""
        if self._specials is None:
            self._specials = tuple(sorted(_iterate_specials(self)))
        return self._specials

    def reuse_notes(self, other: "CapturedDirectory") -> None:
        """Take over the modes and specials of a directory with the same notes."""
        if self.notes == other.notes:
            self._modes, self._specials = other.modes, other.specials


Captured: TypeAlias = CapturedFile | CapturedLink | CapturedDirectory


def directory_entry(name: str, tree: str) -> bytes:
    """Return the tree entry of a directory; the root has no name and is in no tree."""
    encoded = bytes.fromhex(tree)
    return encode_entry(name, DIRECTORY, encoded) if name else encoded


def sort_as_git(children: dict[str, Captured]) -> dict[str, Captured]:
    """Return the children in git's order."""
    return dict(sorted(children.items(), key=_git_key))


def tree_content(children: dict[str, Captured]) -> bytes:
    """Return the content of the git tree of `children`, which are in git's order."""
    return b"".join([child.entry for child in children.values()])


def _git_key(item: tuple[str, Captured]) -> bytes:
    return entry_key(item[1].entry)


def _digest_notes(directory: CapturedDirectory) -> bytes:
    notes = [
        f"{name}\0{child.permissions:o}\0{child.notes.hex()}"
        for name, child in directory.noted
        if not isinstance(child, CapturedLink)
    ]
    # a name is never empty, so the empty one separates the special files
    text = "\0".join([*notes, "", *sorted(directory.special_names)])
    return hashlib.sha1(os.fsencode(text), usedforsecurity=False).digest()


def _walk_notes(top: CapturedDirectory) -> Iterator[tuple[str, CapturedDirectory]]:
    """Yield every noted directory with the prefix of its paths."""
    pending = [("", top)]
    while pending:
        prefix, directory = pending.pop()
        yield prefix, directory
        for name, child in directory.noted:
            if isinstance(child, CapturedDirectory):
                pending.append((f"{prefix}{name}/", child))


def _iterate_modes(top: CapturedDirectory) -> Iterator[tuple[str, int]]:
    for prefix, directory in _walk_notes(top):
        for name, child in directory.noted:
            if isinstance(child, CapturedFile) or (
                isinstance(child, CapturedDirectory) and child.permissions != DIRECTORY_PERMISSIONS
            ):
                yield prefix + name, child.permissions


def _iterate_specials(top: CapturedDirectory) -> Iterator[str]:
    for prefix, directory in _walk_notes(top):
        for name in directory.special_names:
            yield prefix + name


# --- the import of a state ---


def import_tree(state: State, objects: ObjectStore, batch: PackTransaction) -> str:
    """Store everything in `state`; return the id of the commit's tree.

    Of a pipe, socket or device only its existence is recorded.
    """
    specials: list[str] = []
    modes: dict[str, int] = {}
    listings = list(state.directories("Import"))
    trees: dict[str, str] = {}
    for path, children in reversed(listings):  # parents come before their children
        entries: list[TreeEntry] = []
        for name, found in children.items():
            if found.is_directory:
                entries.append(TreeEntry(name, DIRECTORY, trees.pop(found.path)))
            elif found.is_file:
                mode = EXECUTABLE if found.permissions & 0o100 else FILE
                entries.append(TreeEntry(name, mode, _store_blob(state, found, objects, batch)))
            elif found.link_target is not None:
                target = os.fsencode(found.link_target)
                entries.append(TreeEntry(name, LINK, batch.add("blob", target)))
            if found.kind == "special":
                specials.append(found.path)
            elif _has_other_permissions(found):
                modes[found.path] = found.permissions
        trees[path] = batch.add("tree", encode_tree(entries))
    manifest = SnapshotManifest(modes, tuple(sorted(specials)))
    return store_commit_tree(batch, trees[""], batch.add("blob", manifest.encode()))


def _has_other_permissions(found: FileStat) -> bool:
    """Return whether git cannot express the permissions."""
    if found.is_symlink:
        return False
    plain = {DIRECTORY_PERMISSIONS} if found.is_directory else DEFAULT_PERMISSIONS
    return found.permissions not in plain


def _store_blob(state: State, found: FileStat, objects: ObjectStore, batch: PackTransaction) -> str:
    known = state.known_id(found)
    if known is not None and objects.is_packed(known):
        return known
    with state.open(found.path) as content:
        if content.size <= _CHUNK_SIZE:
            return batch.add("blob", content.read(0, content.size))
        size = content.size
        chunks = (content.read(offset, _CHUNK_SIZE) for offset in range(0, size, _CHUNK_SIZE))
        return batch.add_blob(size, chunks)
