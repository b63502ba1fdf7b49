"""The filesystem of a container, for engines that share no directory with this machine.

Every primitive is a request to the runner inside, which serves one at a time, so each is atomic.
Snapshots are kept here, in an in-memory mirror: of an unchanged file only its metadata is
compared, and a restore sends only what differs. Its trees are copy-on-write, so that states share
what they have in common, and what differs between two is found without comparing the rest.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate, islice
from typing import Any

from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    MAX_MEMORY_SNAPSHOTS,
    BytesContent,
    Children,
    Content,
    Diff,
    FileEntry,
    FileStat,
    FilesystemSnapshot,
    InMemoryFilesystem,
    Limits,
    MemoryHistory,
    ReadableFilesystem,
    Results,
    SavepointStorage,
    TransactionalFilesystem,
    normalize_path,
)
from weakincentives.filesystem.base import State
from weakincentives.filesystem.memory import (
    CopyOnWriteDict,
    DirectoryNode,
    FileNode,
    LinkNode,
    Node,
    TreeStack,
    build_tree,
    changed_files,
)
from weakincentives.posix import join, os_error
from weakincentives.sandbox.container.container import Container
from weakincentives.sandbox.container.engine import WORKSPACE
from weakincentives.sandbox.container.file_server import (
    DIRECTORY,
    FILE,
    LARGE_FILE,
    LINK,
    UNREADABLE,
    Facts,
)

_BATCH = 8 * 1024 * 1024  # bytes in one request or reply, about
_MAX_PATHS = 1_000  # in one request
_PIECE = 4 * 1024 * 1024  # bytes of a large file in one request
_RACY = 50_000_000  # nanoseconds; a file changed this recently may change again unnoticed
_NO_LIMITS = Limits(max_total_bytes=None, max_files=None)
_EMPTY = DirectoryNode(CopyOnWriteDict(), 0, 0)


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


class ContainerFilesystem(TransactionalFilesystem):
    """The workspace of a container, or a directory in it, through the runner inside."""

    def __init__(
        self,
        container: Container,
        workdir: str = WORKSPACE,
        *,
        limits: Limits = DEFAULT_LIMITS,
        read_only: bool = False,
        max_snapshots: int | None = MAX_MEMORY_SNAPSHOTS,
    ) -> None:
        """Use the workspace of `container`, which the first operation starts.

        Args:
            container: The container; several filesystems may use it.
            workdir: The directory to use, `/workspace` or below it; it is created if it is missing.
            limits: The limits.
            read_only: Raise ReadOnlyError on every write.
            max_snapshots: The number of snapshots to keep; then the oldest is forgotten. None
                keeps all of them.

        Raises:
            ValueError: `workdir` is not in the workspace.
        """
        super().__init__(limits=limits, read_only=read_only)
        self._container = container
        self._workdir = workdir
        self._prefix = _find_prefix(workdir)
        self._is_prepared = read_only or not self._prefix
        self._mirror = ContainerMirror(max_snapshots, workdir)
        self._savepoints: list[tuple[DirectoryNode, int]] = []
        self._changes = 0

    @property
    def root(self) -> str:
        """The directory in the container; it is not on this machine."""
        return self._workdir

    @property
    def history(self) -> MemoryHistory:
        """The snapshots that can be restored, to list and to forget."""
        return self._mirror.history

    # --- reading ---

    def _lookup(self, path: str) -> FileStat | None:
        facts, _ = self._call("stat", path)
        return None if facts is None else self._stat_of(path, Facts(*facts))

    def _children(self, path: str) -> Children:
        found = Children([], [], [], [])
        groups = {FILE: found[0], DIRECTORY: found[1], LINK: found[2]}
        for name, facts in self._list(path):
            group: Any = groups.get(facts.kind, found[3])
            group.append(name)
        return found

    def _stats(self, path: str) -> dict[str, FileStat]:
        return {name: self._stat_of(join(path, name), facts) for name, facts in self._list(path)}

    def _entries(self, path: str, limit: int) -> Results[FileEntry]:
        found = sorted(self._list(path))
        entries = [
            FileEntry(
                name,
                join(path, name),
                facts.kind == FILE,
                facts.kind == DIRECTORY,
                facts.size if facts.kind == FILE else None,
                facts.kind == LINK,
            )
            for name, facts in found[:limit]
        ]
        return Results(entries, reason="entry limit" if len(found) > limit else None)

    def _open(self, path: str) -> Content:
        found, data = self._call("open", path)
        if not found["handle"]:
            return BytesContent(data)
        return _RemoteContent(self._container, found["handle"], found["size"])

    def _contents(self, paths: Iterable[str]) -> Generator[tuple[str, Content], None, None]:
        pending = iter(paths)
        while batch := list(islice(pending, _MAX_PATHS)):
            for path, data in self._load(batch):
                if data is not None:
                    yield path, BytesContent(data)
                    continue
                yield from super()._contents([path])

    def _walk_tree(self, path: str) -> Iterator[FileStat]:
        found = self._lookup(path)
        if found is None:
            return
        yield found
        if found.is_directory:
            _, entries = self._list_all(path)
            for below, facts in sorted(entries, key=lambda entry: entry[0].split("/")):
                yield self._stat_of(below, facts)

    # --- writing ---

    def _store(
        self, path: str, data: bytes, *, permissions: int | None = None, exclusive: bool = False
    ) -> None:
        arguments = {"mode": permissions, "exclusive": exclusive}
        self._change(path, [SentChange("store", path, data, arguments)])

    def _remove(self, path: str) -> None:
        self._change(path, [SentChange("remove", path)])

    def _make_directory(self, path: str) -> None:
        self._change(path, [SentChange("mkdir", path)])

    def _make_link(self, path: str, target: str) -> None:
        self._change(path, [SentChange("link", path, arguments={"target": target})])

    def _move(self, source: str, destination: str) -> None:
        self._change(source, [SentChange("move", source, arguments={"goal": destination})])

    def _copy(self, source: str, destination: str) -> None:
        self._change(source, [SentChange("copy", source, arguments={"goal": destination})])

    # --- snapshots ---

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        """Keep the present state until it is forgotten; any copy of the value restores it."""
        with self._lock.mutex:
            self._lock.await_turn()
            self._capture()
            return self._mirror.snapshot(tag=tag)

    def restore(
        self,
        snapshot: FilesystemSnapshot,
        *,
        paths: Sequence[str] | None = None,
        expect: FilesystemSnapshot | None = None,
    ) -> None:
        """Restore the state of a snapshot, or only what is at and below `paths`.

        With `expect`, only what changed from `snapshot` to this later state is undone.

        Raises:
            StaleRestoreError: A path is not as in `expect`; nothing has changed.
            SnapshotRestoreError: The state cannot be restored; nothing has changed.
        """
        self._ensure_writable("")
        with self._lock.mutex:
            self._lock.await_turn()
            self._capture()
            target = self._mirror.find_target(snapshot, paths, expect)
            self._quota.check(target.size, target.count - 1)
            self._replace_tree(target)
            self._emit_replaced("restore", snapshot.commit_ref)

    def preview(self, snapshot: FilesystemSnapshot, *, paths: Sequence[str] | None = None) -> Diff:
        """Return what `restore` with the same arguments would change."""
        with self._lock.mutex:
            self._lock.await_turn()
            self._capture()
            return self._mirror.preview(snapshot, paths=paths)

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        """Return the state of a snapshot as a read-only filesystem."""
        return self._mirror.view(snapshot)

    def pin(self, snapshot: FilesystemSnapshot) -> Callable[[], None]:
        """Protect a snapshot from being forgotten until the returned function is called."""
        return self._mirror.pin(snapshot)

    def _replace_all(self, state: ReadableFilesystem, name: str) -> Iterable[str] | None:
        del name  # for error messages of other backends
        target = self._mirror.build(state)
        self._quota.check(target.size, target.count - 1)
        self._capture()
        before = self._mirror.tree
        self._replace_tree(target)
        return changed_files(before, target) if self._listeners else []

    def _savepoint_storage(self) -> SavepointStorage:
        return TreeStack(self._savepoints, self._capture, self._return_to, lambda: self._changes)

    def _return_to(self, tree: DirectoryNode, mark: int) -> None:
        self._capture()
        self._replace_tree(tree)
        self._changes = mark

    def _capture(self) -> DirectoryNode:
        """Make the mirror equal to the container; return its tree, which stays as it is."""
        now, entries = self._list_all("")
        missing = self._mirror.find_unknown(entries)
        contents: dict[str, bytes] = {}
        for start in range(0, len(missing), _MAX_PATHS):
            for path, data in self._load(missing[start : start + _MAX_PATHS]):
                contents[path] = self._read_all(path) if data is None else data
        return self._mirror.update(entries, contents, now)

    def _replace_tree(self, target: DirectoryNode) -> None:
        """Make everything as it is in `target`, or change nothing; the mirror is up to date."""
        before = self._mirror.tree
        try:
            self._change("", find_changes(before, target))
        except BaseException:
            self._capture()
            self._change("", find_changes(self._mirror.tree, before))
            raise
        finally:
            self._capture()

    # --- requests ---

    def _prepare(self) -> None:
        """Create the directory that this uses, with its parents."""
        for path in accumulate(self._prefix.rstrip("/").split("/"), "{}/{}".format):
            with suppress(FileExistsError):
                self._container.call("batch", changes=[{"op": "mkdir", "path": path}])
        self._is_prepared = True

    def _inside(self, path: str) -> str:
        """Return a path of this filesystem as the container has it."""
        if not self._is_prepared:
            self._prepare()
        return self._prefix + path if path else self._prefix.rstrip("/")

    def _call(self, operation: str, path: str) -> tuple[Any, bytes]:
        try:
            return self._container.call(operation, path=self._inside(path))
        except OSError as error:
            raise os_error(error.errno or 0, path) from None

    def _list(self, path: str) -> list[tuple[str, Facts]]:
        found, _ = self._call("list", path)
        return [(name, Facts(*facts)) for name, facts in found]

    def _list_all(self, path: str) -> tuple[int, list[tuple[str, Facts]]]:
        found, _ = self._call("walk", path)
        start = len(self._prefix)
        return found["now"], [(below[start:], Facts(*facts)) for below, facts in found["entries"]]

    def _load(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield the content of each file that can be read; None if it is large."""
        left = list(paths)
        while left:
            inside = [self._inside(path) for path in left]
            sizes, data = self._container.call("load", paths=inside, limit=_BATCH)
            offset = 0
            for path, size in zip(left, sizes, strict=False):
                if size >= 0:
                    yield path, data[offset : offset + size]
                    offset += size
                elif size != UNREADABLE:
                    yield path, None
            left = left[len(sizes) :]

    def _read_all(self, path: str) -> bytes:
        with self._open(path) as content:
            pieces = range(0, content.size, _PIECE)
            return b"".join(content.read(offset, _PIECE) for offset in pieces)

    def _change(self, path: str, changes: Iterable[SentChange]) -> None:
        """Apply changes in order, in as few requests as possible."""
        batch: list[SentChange] = []
        size = 0
        self._changes += 1
        for each in changes:
            batch.append(self._stage(each) if len(each.data) > LARGE_FILE else each)
            size += len(batch[-1].data)
            if size > _BATCH or len(batch) >= _MAX_PATHS:
                self._send(path, batch)
                batch, size = [], 0
        if batch:
            self._send(path, batch)

    def _send(self, path: str, batch: list[SentChange]) -> None:
        data = b"".join(each.data for each in batch)
        try:
            requests = [each.request(self._inside) for each in batch]
            self._container.call("batch", changes=requests, data=data)
        except OSError as error:
            raise os_error(error.errno or 0, path) from None

    def _stage(self, change: SentChange) -> SentChange:
        """Send the data of a large file in pieces; return the change without it."""
        token = 0
        for offset in range(0, len(change.data), _PIECE):
            piece = change.data[offset : offset + _PIECE]
            token, _ = self._container.call("stage", token=token, data=piece)
        return SentChange(change.operation, change.path, b"", {**change.arguments, "staged": token})

    def _stat_of(self, path: str, facts: Facts) -> FileStat:
        is_file = facts.kind == FILE
        return FileStat(
            path,
            is_file,
            facts.kind == DIRECTORY,
            facts.size,
            _date(facts.created),
            _date(facts.modified),
            facts.permissions,
            facts.target if facts.kind == LINK else None,
            (lambda: self.content_hash(path)) if is_file else None,
        )


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

    def find_unknown(self, entries: Sequence[tuple[str, Facts]]) -> list[str]:
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
            contents: The content of the files that `find_unknown` returned.
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
                self._place(path, facts, contents.get(path))
            self._known[path] = facts if facts.changed < now - _RACY else None
        return self._freeze()

    def find_target(
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

    def _place(self, path: str, facts: Facts, data: bytes | None) -> None:
        node = self._find(path)
        if facts.kind == DIRECTORY:
            self._place_directory(path, node, facts.permissions)
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

    def _place_directory(self, path: str, node: Node | None, permissions: int) -> None:
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


class _RemoteContent(Content):
    """A large file, open in the container."""

    __slots__ = ("_container", "_handle", "_size")

    def __init__(self, container: Container, handle: int, size: int) -> None:
        self._container = container
        self._handle = handle
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            wanted = min(size, _PIECE)
            _, data = self._container.call("read", handle=self._handle, offset=offset, size=wanted)
            if not data:
                break
            parts.append(data)
            offset, size = offset + len(data), size - len(data)
        return b"".join(parts)

    def close(self) -> None:
        handle, self._handle = self._handle, 0
        if handle:
            self._container.call("close", handle=handle)


def _find_prefix(workdir: str) -> str:
    """Return what the paths of a directory begin with, relative to the workspace."""
    below = workdir.rstrip("/").removeprefix(WORKSPACE)
    if not workdir.startswith(WORKSPACE) or (below and not below.startswith("/")):
        raise ValueError(f"workdir must be {WORKSPACE!r} or a directory below it: {workdir!r}")
    path = normalize_path(below)
    return f"{path}/" if path else ""


def _date(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC)
