# keywords would slow down listings of thousands of entries
# ruff: noqa: FBT003
"""Copy-on-write nodes of the in-memory tree: files, links, directories and their dictionary.

A copy of a large dictionary shares the base and copies only the changes since the last rebuild,
so a directory of a thousand names can be kept in a hundred states for little memory.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Generic, TypeAlias, TypeVar

from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.text import BytesContent, LineIndex
from weakincentives.filesystem.types import FileEntry, FileStat

V = TypeVar("V")
_MAX_PLAIN_COPY = 64  # names; up to here a plain copy is cheaper
_MAX_CHANGES = 32  # plus an eighth of the entries; more changes cause a rebuild


class CopyOnWriteDict(Generic[V]):
    """A copy-on-write dictionary: a copy is cheap, and neither side sees the other's changes."""

    __slots__ = ("_base", "_changes", "_owned")

    def __init__(self) -> None:
        """Start empty."""
        self._base: dict[str, V] = {}
        self._changes: dict[str, V | None] = {}  # None: removed
        self._owned = True

    def get(self, name: str) -> V | None:
        """Return the value of `name`, or None."""
        if self._changes and name in self._changes:
            return self._changes[name]
        return self._base.get(name)

    def __setitem__(self, name: str, value: V) -> None:
        """Set the value of `name`."""
        if self._owned:
            self._base[name] = value
        else:
            self._change(name, value)

    def __delitem__(self, name: str) -> None:
        """Remove `name`, which is there."""
        if self._owned:
            del self._base[name]
        else:
            self._change(name, None)

    def items(self) -> list[tuple[str, V]]:
        """Return every name with its value."""
        if not self._changes:
            return list(self._base.items())
        return list(self._merge().items())

    def copy(self) -> "CopyOnWriteDict[V]":
        """Return a copy with the same entries; this one must not change any more."""
        twin: CopyOnWriteDict[V] = CopyOnWriteDict()
        if self._owned and len(self._base) <= _MAX_PLAIN_COPY:
            twin._base = self._base.copy()
        else:
            twin._base = self._base
            twin._changes = self._changes.copy()
            twin._owned = False
        return twin

    def _change(self, name: str, value: V | None) -> None:
        self._changes[name] = value
        if len(self._changes) > _MAX_CHANGES + len(self._base) // 8:
            self._base = self._merge()
            self._changes = {}
            self._owned = True

    def _merge(self) -> dict[str, V]:
        merged = self._base.copy()
        for name, value in self._changes.items():
            if value is None:
                merged.pop(name, None)
            else:
                merged[name] = value
        return merged


@dataclass(slots=True, eq=False)
class FileNode:
    """Immutable bytes, with a cached hash and line index."""

    count: ClassVar[int] = 1
    data: bytes
    permissions: int
    created: int
    modified: int
    digest: str | None = None
    index: LineIndex | None = None

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.data)

    def hash(self) -> str:
        """Return the SHA-256 of the content, computed once."""
        if self.digest is None:
            self.digest = hashlib.sha256(self.data).hexdigest()
        return self.digest

    def open(self) -> BytesContent:
        """Return the content."""
        return BytesContent(self.data, self._line_index)

    def _line_index(self) -> LineIndex:
        if self.index is None:
            self.index = LineIndex()
        return self.index

    def stat(self, path: str) -> FileStat:
        """Return the metadata, with `path` as its path."""
        modified = _date(self.modified)
        created = modified if self.created == self.modified else _date(self.created)
        mode = self.permissions
        return FileStat(path, True, False, len(self.data), created, modified, mode, None, self.hash)

    def entry(self, name: str, path: str) -> FileEntry:
        """Return the entry for a listing."""
        return FileEntry(name, path, True, False, len(self.data))


@dataclass(slots=True, eq=False)
class LinkNode:
    """A symbolic link."""

    count: ClassVar[int] = 1
    size: ClassVar[int] = 0
    target: str
    created: int

    def stat(self, path: str) -> FileStat:
        """Return the metadata, with `path` as its path."""
        date = _date(self.created)
        return FileStat(path, False, False, 0, date, date, 0o777, self.target)

    def entry(self, name: str, path: str) -> FileEntry:
        """Return the entry for a listing."""
        return FileEntry(name, path, False, False, None, True)


class DirectoryNode:
    """A directory; `size` and `count` are totals of everything below and itself."""

    __slots__ = ("children", "count", "created", "edition", "modified", "permissions", "size")

    def __init__(self, children: "CopyOnWriteDict[Node]", edition: int, now: int) -> None:
        """Hold `children`; the totals are not computed yet."""
        self.children: CopyOnWriteDict[Node] = children
        self.edition: int = edition
        self.permissions: int = 0o755
        self.created: int = now
        self.modified: int = now
        self.size: int = 0
        self.count: int = 1

    def copy(self, edition: int) -> "DirectoryNode":
        """Return a copy that belongs to `edition`, which may change it."""
        copy = DirectoryNode(self.children.copy(), edition, self.created)
        copy.permissions = self.permissions
        copy.modified = self.modified
        copy.size = self.size
        copy.count = self.count
        return copy

    def stat(self, path: str) -> FileStat:
        """Return the metadata, with `path` as its path."""
        created, modified = _date(self.created), _date(self.modified)
        return FileStat(path, False, True, 0, created, modified, self.permissions)

    def entry(self, name: str, path: str) -> FileEntry:
        """Return the entry for a listing."""
        return FileEntry(name, path, False, True)


Node: TypeAlias = FileNode | LinkNode | DirectoryNode


def find(root: DirectoryNode, path: str) -> Node | None:
    """Return the node at `path` below `root`, or None."""
    node: Node | None = root
    for segment in path.split("/") if path else ():
        if type(node) is not DirectoryNode:
            return None
        node = node.children.get(segment)
    return node


def is_same(one: Node | None, other: Node | None) -> bool:
    """Return whether two entries are equal; what is in a directory does not count."""
    match one, other:
        case FileNode(), FileNode():
            return (one.data, one.permissions) == (other.data, other.permissions)
        case LinkNode(), LinkNode():
            return one.target == other.target
        case DirectoryNode(), DirectoryNode():
            return one.permissions == other.permissions
        case _:
            return one is other


def build_tree(state: State, edition: int, now: int) -> DirectoryNode:
    """Return a copy of all files in `state`, as a tree of `edition`."""
    built: dict[str, DirectoryNode] = {}
    for path, children in state.directories("Import"):
        directory = built.setdefault(path, DirectoryNode(CopyOnWriteDict(), edition, now))
        for name, found in children.items():
            node = _node_of(state, found, edition, now)
            if node is not None:
                directory.children[name] = node
            if type(node) is DirectoryNode:
                built[found.path] = node
    for directory in reversed(built.values()):  # a directory comes before those below it
        nodes = [node for _, node in directory.children.items()]
        directory.size = sum(node.size for node in nodes)
        directory.count = 1 + sum(node.count for node in nodes)
    return built[""]


def _node_of(state: State, found: FileStat, edition: int, now: int) -> Node | None:
    """Return the node for an entry; None for a special file, which cannot be stored."""
    if found.is_file:
        node = FileNode(state.read(found), found.permissions & 0o777, now, now)
        node.digest = found.content_hash or None  # an archive has verified it
        return node
    if found.link_target is not None:
        return LinkNode(found.link_target, now)
    if not found.is_directory:
        return None
    directory = DirectoryNode(CopyOnWriteDict(), edition, now)
    directory.permissions = found.permissions & 0o777
    return directory


def changed_files(before: DirectoryNode, after: DirectoryNode) -> list[str]:
    """Return the paths of files that are in both trees with different bytes."""
    found: list[str] = []
    pending = [("", before, after)]
    while pending:
        prefix, old, new = pending.pop()
        for name, node in new.children.items():
            known, path = old.children.get(name), f"{prefix}{name}"
            if isinstance(node, DirectoryNode) and isinstance(known, DirectoryNode):
                pending.append((f"{path}/", known, node))
            elif isinstance(node, FileNode) and isinstance(known, FileNode):
                found += [path] if node.data != known.data else []
    return found


def set_node(chain: list[DirectoryNode], name: str, node: Node | None, now: int) -> None:
    """Set or remove an entry of the last directory, and update the totals of all of them."""
    directory = chain[-1]
    old = directory.children.get(name)
    if node is not None:
        directory.children[name] = node
    elif old is not None:
        del directory.children[name]
    directory.modified = now
    size = (node.size if node else 0) - (old.size if old else 0)
    count = (node.count if node else 0) - (old.count if old else 0)
    if size or count:
        for above in chain:
            above.size += size
            above.count += count


def _date(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)


class TreeStack:
    """The tree at each open savepoint of a filesystem, with a mark that every change changes."""

    __slots__ = ("_capture", "_mark", "_points", "_return_to")

    def __init__(
        self,
        points: list[tuple[DirectoryNode, int]],
        capture: Callable[[], DirectoryNode],
        return_to: Callable[[DirectoryNode, int], None],
        mark: Callable[[], int],
    ) -> None:
        """Keep trees in `points`, which belong to the filesystem like the functions."""
        self._points = points
        self._capture = capture
        self._return_to = return_to
        self._mark = mark

    @property
    def depth(self) -> int:
        """How many savepoints are open."""
        return len(self._points)

    def begin(self) -> None:
        """Open a savepoint."""
        self._points.append((self._capture(), self._mark()))

    def has_changed(self, depth: int) -> bool:
        """Return whether there are changes since a savepoint."""
        return self._points[depth][1] != self._mark()

    def release(self, depth: int) -> None:
        """End a savepoint."""
        del self._points[depth:]

    def rollback(self, depth: int) -> tuple[()]:
        """Return to a savepoint, and end it."""
        self._return_to(*self._points[depth])
        del self._points[depth:]
        return ()
