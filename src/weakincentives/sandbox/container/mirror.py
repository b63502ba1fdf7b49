"""The mirror of a container's workspace: an in-memory tree that holds snapshots.

Trees are copy-on-write, so that states share what they have in common, and what differs
between two of them is found without comparing the rest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weakincentives.filesystem import (
    FilesystemSnapshot,
    InMemoryFilesystem,
    Limits,
    ReadableFilesystem,
)
from weakincentives.filesystem.base import State
from weakincentives.filesystem.memory import (
    CopyOnWriteDict,
    DirectoryNode,
    FileNode,
    LinkNode,
    Node,
    build_tree,
)
from weakincentives.sandbox.container.entries import DIRECTORY, FILE, LINK, Facts

_RACY = 50_000_000  # nanoseconds; a file changed this recently may change again unnoticed
_NO_LIMITS = Limits(max_total_bytes=None, max_files=None)


@dataclass(frozen=True, slots=True)
class SentChange:
    """A change to send to the container."""

    operation: str
    path: str
    data: bytes = b""
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])

    def request(self, inside: Callable[[str], str]) -> dict[str, object]:
        """Return it as the file server reads it; `inside` turns its paths into the container's."""
        request = {"op": self.operation, "path": inside(self.path), **self.arguments}
        if "goal" in request:
            request["goal"] = inside(str(request["goal"]))
        if self.operation == "store":
            request.setdefault("staged", 0)
        if self.data:
            request["size"] = len(self.data)
        return request


class ContainerMirror(InMemoryFilesystem):
    """The state of a container when it was last looked at, and its snapshots."""

    def __init__(self, max_snapshots: int | None, root: str) -> None:
        """Start empty; `root` is the directory in the container."""
        super().__init__(limits=_NO_LIMITS, max_snapshots=max_snapshots)
        self._root = root
        self._known: dict[str, Facts | None] = {}  # None: changed recently

    @property
    def root(self) -> str:
        """The directory in the container."""
        return self._root

    @property
    def tree(self) -> DirectoryNode:
        """The tree, which must not be changed."""
        return self._root_node

    def find_missing(self, entries: Sequence[tuple[str, Facts]]) -> list[str]:
        """Return the files whose content is not known."""
        known = self._known
        return [path for path, facts in entries if facts.kind == FILE and known.get(path) != facts]

    def update(
        self,
        entries: Sequence[tuple[str, Facts]],
        contents: Mapping[str, bytes],
        now: int,
    ) -> DirectoryNode:
        """Make the mirror equal to a container; return its tree, which stays as it is.

        Args:
            entries: All entries, each directory before those below it.
            contents: The content of the files that `find_missing` returned.
            now: When the entries were listed, by the clock of the container.
        """
        self._freeze()
        old, self._known = self._known, {}
        present = {path for path, _ in entries}
        for path in sorted(old.keys() - present, reverse=True):
            if self._find(path) is not None:
                self._remove(path)
        for path, facts in entries:
            if old.get(path) != facts:
                self._put(path, facts, contents.get(path))
            self._known[path] = facts if facts.changed < now - _RACY else None
        return self._freeze()

    def restored(
        self,
        snapshot: FilesystemSnapshot,
        paths: Sequence[str] | None,
        expect: FilesystemSnapshot | None,
    ) -> DirectoryNode:
        """Return the tree that a restore results in; nothing changes."""
        if expect is not None:
            return self._undone_tree(snapshot, expect, paths)
        return self._restored_tree(snapshot, paths)

    def build(self, state: ReadableFilesystem) -> DirectoryNode:
        """Return a tree with the content of `state`."""
        return build_tree(State(state), self._edition, self._clock())

    def _put(self, path: str, facts: Facts, data: bytes | None) -> None:
        node = self._find(path)
        if facts.kind == DIRECTORY:
            self._put_directory(path, node, facts.permissions)
        elif facts.kind == FILE and data is not None:
            if isinstance(node, FileNode) and node.data == data:
                if node.permissions == facts.permissions:
                    return
                data = node.data  # states share it
            self._store(path, data, permissions=facts.permissions)
        elif facts.kind == LINK:
            if not isinstance(node, LinkNode) or node.target != facts.target:
                self._make_link(path, facts.target)
        elif node is not None:
            self._remove(path)  # a special file, or one that is gone

    def _put_directory(self, path: str, node: Node | None, permissions: int) -> None:
        if not isinstance(node, DirectoryNode):
            if node is not None:
                self._remove(path)
            self._make_directory(path)
        elif node.permissions == permissions:
            return
        chain, _ = self._writable_chain(f"{path}/x")
        chain[-1].permissions = permissions


def find_changes(old: DirectoryNode, new: DirectoryNode) -> Iterator[SentChange]:
    """Yield the changes that make the tree `old` equal to `new`."""
    pending = [("", old, new)]
    modes: list[SentChange] = []
    while pending:
        prefix, before, after = pending.pop()
        names = dict(after.children.items())
        yield from _removals(prefix, before, names)
        for name, node in names.items():
            known, path = before.children.get(name), f"{prefix}{name}"
            if node is known:
                continue
            if isinstance(node, DirectoryNode):
                below = known if isinstance(known, DirectoryNode) else _EMPTY
                if below is _EMPTY:
                    yield SentChange("mkdir", path)
                if below.permissions != node.permissions:
                    modes.append(SentChange("chmod", path, arguments={"mode": node.permissions}))
                pending.append((f"{path}/", below, node))
            else:
                yield from _entry_changes(path, known, node)
    yield from reversed(modes)  # a directory may become read-only


def _removals(prefix: str, old: DirectoryNode, new: Mapping[str, Node]) -> Iterator[SentChange]:
    for name, node in old.children.items():
        if type(new.get(name)) is not type(node):
            yield SentChange("remove", f"{prefix}{name}")


def _entry_changes(path: str, old: Node | None, new: FileNode | LinkNode) -> Iterator[SentChange]:
    if isinstance(new, LinkNode):
        if isinstance(old, LinkNode):
            if old.target == new.target:
                return
            yield SentChange("remove", path)
        yield SentChange("link", path, arguments={"target": new.target})
        return
    if isinstance(old, FileNode) and old.data == new.data:
        if old.permissions != new.permissions:
            yield SentChange("chmod", path, arguments={"mode": new.permissions})
        return
    yield SentChange("store", path, new.data, {"mode": new.permissions, "exclusive": False})


_EMPTY = DirectoryNode(CopyOnWriteDict(), 0, 0)
