"""Captured entries of a directory, as nodes of a tree.

They are immutable except for the remembered stat of a file or directory. Each holds its own entry
in the parent's git tree, so a directory with one change is encoded without visiting its other
children.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from typing import Self, TypeAlias

import msgspec

from weakincentives.filesystem.host.files import Identity, is_stable
from weakincentives.filesystem.manifest import DEFAULT_PERMISSIONS, DIRECTORY_PERMISSIONS
from weakincentives.gitstore import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    encode_entry,
    entry_id,
    entry_key,
)


class CapturedFile(msgspec.Struct, array_like=True, tag=1, eq=False, gc=False):
    """A file or link: its tree entry with the blob id, and the stat it had when it was read.

    `identity` is None if the file could change again without a visible change of its stat.
    """

    entry: bytes
    permissions: int
    is_noted: bool
    identity: Identity | None
    is_link: bool = False
    """Whether the blob is the target of a symbolic link; git expresses a link completely."""

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

    @classmethod
    def link(cls, name: str, blob: str, identity: Identity | None = None) -> Self:
        """Return a symbolic link whose target is in `blob`; its stat may be known."""
        entry = encode_entry(name, LINK, bytes.fromhex(blob))
        found = cls(entry, 0o777, is_noted=False, identity=None, is_link=True)
        if identity is not None:
            found.update_identity(identity)
        return found

    @property
    def id(self) -> str:
        """The blob id of the content."""
        return entry_id(self.entry)

    @property
    def notes(self) -> bytes:
        """Always empty: only directories have notes."""
        return b""

    def reuse(self, known: "Captured | None") -> "CapturedFile":
        """Return what was captured before if only its stat differs, with the stat of this one."""
        if not isinstance(known, CapturedFile):
            return self
        if (known.entry, known.permissions) != (self.entry, self.permissions):
            return self
        known.identity = self.identity
        return known

    def update_identity(self, identity: Identity) -> None:
        """Remember the present stat of the unchanged file."""
        self.identity = identity if is_stable(identity) else None


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
            noted = _walk_notes(self)
            found = [prefix + name for prefix, each in noted for name in each.special_names]
            self._specials = tuple(sorted(found))
        return self._specials

    def directories(self) -> "Iterator[CapturedDirectory]":
        """Yield this directory and all below it."""
        pending = [self]
        while pending:
            directory = pending.pop()
            yield directory
            below = directory.children.values()
            pending += [child for child in below if isinstance(child, CapturedDirectory)]

    def reuse_notes(self, other: "CapturedDirectory") -> None:
        """Take over the modes and specials of a directory with the same notes."""
        if self.notes == other.notes:
            self._modes, self._specials = other.modes, other.specials


Captured: TypeAlias = CapturedFile | CapturedDirectory


def store_directory(
    add: Callable[[str, bytes], str],
    path: str,
    children: dict[str, Captured],
    permissions: int,
    special_names: frozenset[str] = frozenset(),
) -> CapturedDirectory:
    """Store the tree of `children`, which are in git's order, by `add`; return the directory."""
    tree = bytes.fromhex(add("tree", b"".join([child.entry for child in children.values()])))
    name = path.rpartition("/")[2]
    entry = encode_entry(name, DIRECTORY, tree) if name else tree  # the root is in no tree
    return CapturedDirectory(entry, children, permissions, special_names)


def sort_as_git(children: dict[str, Captured]) -> dict[str, Captured]:
    """Return the children in git's order."""
    return dict(sorted(children.items(), key=lambda item: entry_key(item[1].entry)))


def _digest_notes(directory: CapturedDirectory) -> bytes:
    notes = [
        f"{name}\0{child.permissions:o}\0{child.notes.hex()}" for name, child in directory.noted
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
            if isinstance(child, CapturedFile) or child.permissions != DIRECTORY_PERMISSIONS:
                yield prefix + name, child.permissions
