"""What was found in a directory of the host: files, links and directories as git knows them.

Nothing here changes, but for what is remembered about the looks of a file. Everything
holds its own entry in the tree of its parent, so that a directory in which one thing
has changed is written anew without a look at the others.
"""

import hashlib
import os
from collections.abc import Iterator
from typing import Self, TypeAlias

import msgspec

from weakincentives.filesystem.host.files import Identity, is_stable
from weakincentives.filesystem.host.snapshots.partial import store_tree
from weakincentives.filesystem.manifest import (
    DEFAULT_PERMISSIONS,
    DIRECTORY_PERMISSIONS,
    SnapshotManifest,
)
from weakincentives.filesystem.state import State
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


class CapturedFile(msgspec.Struct, array_like=True, tag=1, eq=False, gc=False):
    """A file: its entry with the id of the content, and what tells whether it has changed since.

    It has no `identity` if it could change again and look the same.
    """

    entry: bytes
    permissions: int
    is_noted: bool
    identity: Identity | None

    @classmethod
    def of(cls, name: str, blob: str, identity: Identity) -> Self:
        """Return a file that had the content `blob` when it looked so."""
        permissions = identity[-1] & 0o7777
        entry = encode_entry(name, EXECUTABLE if permissions & 0o100 else FILE, blob)
        is_noted = permissions not in DEFAULT_PERMISSIONS
        return cls(entry, permissions, is_noted, identity if is_stable(identity) else None)

    @property
    def id(self) -> str:
        """The id of the content."""
        return entry_id(self.entry)

    @property
    def notes(self) -> bytes:
        """What a directory has, and a file has not."""
        return b""

    def see(self, identity: Identity) -> None:
        """Remember how the file looks now."""
        self.identity = identity if is_stable(identity) else None


class CapturedLink(msgspec.Struct, array_like=True, tag=2, eq=False, gc=False):
    """A symbolic link: its entry with the id of a blob, which is its target."""

    entry: bytes
    target: bytes

    @classmethod
    def of(cls, name: str, blob: str, target: bytes) -> Self:
        """Return a link that leads to `target`."""
        return cls(encode_entry(name, LINK, blob), target)

    @property
    def id(self) -> str:
        """The id of the blob that holds the target."""
        return entry_id(self.entry)

    @property
    def is_noted(self) -> bool:
        """Whether git's tree does not say all of it."""
        return False


class CapturedDirectory:
    """A directory, and what a git tree cannot say of it and everything below.

    `here` are the names of the pipes, sockets and devices in it. It is noted if git's
    tree does not say all of it and what is below, and so are some of its children. Where
    `notes` are the same, so are `modes` and `specials`.
    """

    __slots__ = (
        "_modes",
        "_specials",
        "children",
        "entry",
        "here",
        "is_noted",
        "noted",
        "notes",
        "permissions",
    )

    def __init__(
        self,
        entry: bytes,
        children: "dict[str, Captured]",
        permissions: int,
        specials: frozenset[str],
    ) -> None:
        """Hold the `children` in git's order; the entry ends with the id of their tree."""
        self.entry: bytes = entry
        self.children: dict[str, Captured] = children
        self.permissions: int = permissions
        self.here: frozenset[str] = specials
        self.noted: list[tuple[str, Captured]] = [
            (name, child) for name, child in children.items() if child.is_noted
        ]
        self.is_noted: bool = bool(self.noted or specials or permissions != DIRECTORY_PERMISSIONS)
        self.notes: bytes = _notes(self) if self.noted or specials else b""
        self._modes: dict[str, int] | None = None
        self._specials: tuple[str, ...] | None = None

    @property
    def id(self) -> str:
        """The id of the tree."""
        return entry_id(self.entry)

    @property
    def modes(self) -> dict[str, int]:
        """The permissions below that are not git's own, by path."""
        if self._modes is None:
            self._modes = dict(_modes(self))
        return self._modes

    @property
    def specials(self) -> tuple[str, ...]:
        """The paths of all pipes, sockets and devices below, sorted."""
        if self._specials is None:
            self._specials = tuple(sorted(_specials(self)))
        return self._specials

    def learn(self, other: "CapturedDirectory") -> None:
        """Take over what has been found out about another one, if it is true of this one."""
        if self.notes == other.notes:
            self._modes, self._specials = other.modes, other.specials


Captured: TypeAlias = CapturedFile | CapturedLink | CapturedDirectory


def directory_entry(name: str, tree: str) -> bytes:
    """Return the entry of a directory; the root, which has no name, is in no tree."""
    return encode_entry(name, DIRECTORY, tree) if name else bytes.fromhex(tree)


def git_order(children: dict[str, Captured]) -> dict[str, Captured]:
    """Return the same children in git's order."""
    return dict(sorted(children.items(), key=_key))


def tree_content(children: dict[str, Captured]) -> bytes:
    """Return the content of the git tree that holds `children`, which are in git's order."""
    return b"".join([child.entry for child in children.values()])


def git_mode(node: Captured) -> int:
    """Return the mode that a git tree gives to `node`."""
    if isinstance(node, CapturedDirectory):
        return DIRECTORY
    if isinstance(node, CapturedLink):
        return LINK
    return EXECUTABLE if node.permissions & 0o100 else FILE


def _key(item: tuple[str, Captured]) -> bytes:
    return entry_key(item[1].entry)


def _notes(directory: CapturedDirectory) -> bytes:
    """Return a digest of what git's tree does not say."""
    notes = [
        f"{name}\0{child.permissions:o}\0{child.notes.hex()}"
        for name, child in directory.noted
        if not isinstance(child, CapturedLink)
    ]
    # a name is never empty, so what follows the empty one are special files
    text = "\0".join([*notes, "", *sorted(directory.here)])
    return hashlib.sha1(os.fsencode(text), usedforsecurity=False).digest()


def _below(top: CapturedDirectory) -> Iterator[tuple[str, CapturedDirectory]]:
    """Yield every directory of which something is noted, with the prefix of its paths."""
    pending = [("", top)]
    while pending:
        prefix, directory = pending.pop()
        yield prefix, directory
        for name, child in directory.noted:
            if isinstance(child, CapturedDirectory):
                pending.append((f"{prefix}{name}/", child))


def _modes(top: CapturedDirectory) -> Iterator[tuple[str, int]]:
    for prefix, directory in _below(top):
        for name, child in directory.noted:
            if isinstance(child, CapturedFile) or (
                isinstance(child, CapturedDirectory) and child.permissions != DIRECTORY_PERMISSIONS
            ):
                yield prefix + name, child.permissions


def _specials(top: CapturedDirectory) -> Iterator[str]:
    for prefix, directory in _below(top):
        for name in directory.here:
            yield prefix + name


_PIECE = 1024 * 1024


def import_tree(state: State, objects: ObjectStore, batch: PackTransaction) -> str:
    """Store everything that is in `state`; return the id of the commit's tree.

    Of a pipe, socket or device it is kept that it was there.
    """
    specials: list[str] = []
    modes: dict[str, int] = {}
    listings = list(state.directories("Import"))
    trees: dict[str, str] = {}
    for path, children in reversed(listings):  # a directory comes before those below it
        entries: list[TreeEntry] = []
        for name, found in children.items():
            if found.is_directory:
                entries.append(TreeEntry(name, DIRECTORY, trees.pop(found.path)))
            elif found.is_file:
                mode = EXECUTABLE if found.permissions & 0o100 else FILE
                entries.append(TreeEntry(name, mode, _blob(state, found, objects, batch)))
            elif found.link_target is not None:
                target = os.fsencode(found.link_target)
                entries.append(TreeEntry(name, LINK, batch.add("blob", target)))
            if found.kind == "special":
                specials.append(found.path)
            elif _is_odd(found):
                modes[found.path] = found.permissions
        trees[path] = batch.add("tree", encode_tree(entries))
    return store_tree(
        batch,
        trees[""],
        batch.add("blob", SnapshotManifest(modes, tuple(sorted(specials))).encode()),
    )


def _is_odd(found: FileStat) -> bool:
    """Return whether git's tree does not say what the permissions are."""
    if found.is_symlink:
        return False
    plain = {DIRECTORY_PERMISSIONS} if found.is_directory else DEFAULT_PERMISSIONS
    return found.permissions not in plain


def _blob(state: State, found: FileStat, objects: ObjectStore, batch: PackTransaction) -> str:
    known = state.known_id(found)
    if known is not None and objects.is_packed(known):
        return known
    with state.open(found.path) as content:
        if content.size <= _PIECE:
            return batch.add("blob", content.read(0, content.size))
        size = content.size
        pieces = (content.read(offset, _PIECE) for offset in range(0, size, _PIECE))
        return batch.add_blob(size, pieces)
