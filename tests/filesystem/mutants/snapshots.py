"""Backends that take or restore snapshots wrongly."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from tests.filesystem.mutants.sound import Memory
from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem import (
    Diff,
    FilesystemEvent,
    FilesystemSnapshot,
    Listener,
    ReadableFilesystem,
    ReadResult,
    StateReplaced,
    diff,
)
from weakincentives.filesystem.memory.nodes import DirectoryNode

Paths = Sequence[str] | None
Snapshot = FilesystemSnapshot | None


class NotSnapshotable(Memory):
    """Has no snapshots."""

    snapshot = None  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride] # its defect


class SharesState(Memory):
    """Keeps the live tree instead of a copy."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        kept = super().snapshot(tag=tag)
        self._edition -= 1
        return kept


class SharesRestored(Memory):
    """Continues to write into the restored snapshot."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        nodes = [self._root_node]
        for node in nodes:
            node.edition = self._edition
            nodes += [below for _, below in node.children.items() if type(below) is DirectoryNode]


class KeepsNewFiles(Memory):
    """Restores old files, and leaves new ones."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        now = {match.path: self.read_bytes(match.path).content for match in self.glob("**")}
        super().restore(snapshot, paths=paths)
        for path, content in now.items():
            with suppress(OSError):
                self.write_bytes(path, content, mode="create")


class ForgetsEmptyDirectories(Memory):
    """Knows files only, as git does."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        for match in reversed(self.glob("**/")):
            if not self.list(match.path):
                self._remove(match.path)


class KeepsNewDirectories(Memory):
    """Removes new files, and leaves their directories."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        now = [match.path for match in self.glob("**/")]
        super().restore(snapshot, paths=paths)
        for path in now:
            with suppress(OSError):
                self.mkdir(path)


class ForgetsModes(Memory):
    """Restores contents only."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        for match in self.glob("**"):
            if match.is_file:
                self._store(match.path, self.read_bytes(match.path).content, permissions=0o644)


class FollowsLinksBack(Memory):
    """Restores links as files with the target as text."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        for match in self.glob("**"):
            target = self.stat(match.path).link_target
            if target is not None:
                self._store(match.path, target.encode())


class WritesThroughLinks(Memory):
    """Writes through a link that is in the way."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        links = {match.path: self.stat(match.path).link_target for match in self.glob("**")}
        super().restore(snapshot, paths=paths)
        for path, target in links.items():
            if target is not None and self.exists(target) and self.exists(path):
                for entry in self.list(path):
                    self.copy(entry.path, f"{target}/{entry.name}")


class TranslatesLineEnds(Memory):
    """Applies `.gitattributes`."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        for match in self.glob("**"):
            if match.is_file:
                content = self.read_bytes(match.path).content
                self._store(match.path, content.replace(b"\r\n", b"\n"))


class CutsAtNulByte(Memory):
    """Cuts contents at a NUL."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        for match in self.glob("**"):
            if match.is_file:
                self._store(match.path, self.read_bytes(match.path).content.partition(b"\0")[0])


class SkipsNames(Memory):
    """Leaves out names that git does not store or that are not plain."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        for entry in self.list():
            if entry.name in {".git", ".GIT", "git~1"} or not entry.name.isprintable():
                self._remove(entry.path)


class FoldsCaseBack(Memory):
    """Keeps one of two names that differ in case."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        for entry in self.list():
            if entry.name.lower() != entry.name and self.exists(entry.name.lower()):
                self.delete(entry.name, recursive=True)


class KeepsKinds(Memory):
    """Does not put a directory where a file is, nor a file where a directory is."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        before = {entry.name: self._find(entry.name) for entry in self.list()}
        kinds = {entry.name: entry.kind for entry in self.list()}
        super().restore(snapshot, paths=paths)
        for entry in self.list():
            if kinds.get(entry.name, entry.kind) != entry.kind:
                self._place_node(entry.name, before[entry.name], 0)


class LimitsDepth(Memory):
    """Goes down ten levels and no further."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        for match in self.glob("**"):
            if match.path.count("/") > 10:
                self.delete(match.path)


class DoubtsTheEmptyState(Memory):
    """Ignores every error, and restores nothing."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        if self.view(snapshot).list():
            super().restore(snapshot, paths=paths)


class StoresInTheWorkspace(Memory):
    """Stores its data among the files."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        kept = super().snapshot(tag=tag)
        self._store(".snapshots", kept.commit_ref.encode())
        return kept


class RemembersTheLast(Memory):
    """Keeps one snapshot only."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        self._history._kept.clear()
        return super().snapshot(tag=tag)


class ForgetsWhatCameBack(Memory):
    """Drops a snapshot when it is restored, and all that were taken later."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        keys = [*self._history._kept]
        for key in keys[keys.index(snapshot.snapshot_id) :]:
            del self._history._kept[key]


class EndsWithARestore(Memory):
    """Cannot be changed after a restore."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        self._read_only = True


class RemembersPages(Memory):
    """Caches pages while the size is the same."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.pages: dict[object, ReadResult] = {}

    def read(self, path: str, **page: Any) -> ReadResult:
        key = (path, str(page), self.stat(path).size_bytes)
        if key not in self.pages:
            self.pages[key] = super().read(path, **page)
        return self.pages[key]


class ForgetsTheTag(Memory):
    """Keeps no tag, and the local time."""

    real: tuple[FilesystemSnapshot, ...] = ()

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        kept = super().snapshot()
        return self._renamed(kept, created_at=datetime.now())  # noqa: DTZ005 # its defect

    def _renamed(self, kept: FilesystemSnapshot, **fields: Any) -> FilesystemSnapshot:
        self.real = (*self.real, kept)
        return replace(kept, **fields)


class NamesTheContent(ForgetsTheTag):
    """Gives the same reference to the same content."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        kept = Memory.snapshot(self, tag=tag)
        return self._renamed(kept, commit_ref=f"{hash(str(self.glob('**'))):x}")


class KnowsObjectsOnly(Memory):
    """Accepts only the returned object, not a copy of it."""

    last: FilesystemSnapshot | None = None

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        if snapshot is not self.last:
            raise SnapshotRestoreError(f"Unknown snapshot: {snapshot}")
        super().restore(snapshot, paths=paths)

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        self.last = super().snapshot(tag=tag)
        return self.last


class DiesWithItsObject(Memory):
    """Drops a snapshot when the returned object is no longer referenced."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        kept, forget = super().snapshot(tag=tag), self.history.forget

        class Value(FilesystemSnapshot):
            def __del__(self) -> None:
                forget(self.snapshot_id)

            def __reduce__(self) -> tuple[Any, ...]:
                return replace, (kept,)

        fields = (kept.snapshot_id, kept.created_at, kept.commit_ref, kept.root_path)
        return Value(*fields, kept.git_dir, kept.tag)


class NeedsThePlace(Memory):
    """Rejects a value without the path of its store."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        if snapshot.git_dir is None:
            raise SnapshotRestoreError(f"Unknown snapshot: {snapshot}")
        super().restore(snapshot, paths=paths)

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        return replace(super().snapshot(tag=tag), git_dir="memory")


class GuessesTheSnapshot(Memory):
    """Restores the last snapshot instead of an unknown one."""

    def _snapshot_root(self, snapshot: FilesystemSnapshot) -> Any:
        if snapshot.snapshot_id not in self._history._kept and self._history._kept:
            return [*self._history._kept.values()][-1][0]
        return super()._snapshot_root(snapshot)


class ChangesThenRefuses(Memory):
    """Empties the workspace before it looks for the snapshot."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        if paths is None or snapshot.snapshot_id not in self._history._kept:
            self._delete_root(recursive=True)
        super().restore(snapshot, paths=paths)


class KnowsEverySnapshot(Memory):
    """Shares its snapshots with every other workspace."""

    everywhere: dict[UUID, Any] = {}  # noqa: RUF012 # its defect

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self._history._kept = self.everywhere


class WalksWithoutALock(Memory):
    """Captures file by file while others write."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        kept = super().snapshot(tag=tag)
        for name in ("last", "first"):
            node = self._find(name)
            root, value = self._history._kept[kept.snapshot_id]
            root = root.copy(-1)
            if node is not None:
                root.children[name] = node
            self._history._kept[kept.snapshot_id] = (root, value)
            time.sleep(0.003)  # another thread gets its chance, as a large tree would give it
        return kept


class RestoresInHalves(Memory):
    """Writes a file in two halves."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        if self.exists("file"):
            content = self.read_bytes("file").content
            self._store("file", content[: len(content) // 2])
            time.sleep(0.02)  # as above, and longer: a reader must come by on a busy machine
        super().restore(snapshot, paths=paths)


class RefusesOthers(Memory):
    """Fails where it should wait."""

    busy = False

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        if self.busy:
            raise SnapshotError("Failed to create snapshot: somebody else is at it")
        self.busy = True
        time.sleep(0.003)  # as above
        self.busy = False
        return super().snapshot(tag=tag)


class ReportsNothingOfStates(Memory):
    """Emits no event for a restore."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        def some(event: FilesystemEvent) -> None:
            if not isinstance(event, StateReplaced):
                listener(event)

        return super().subscribe(some)


class ReportsTooEarly(Memory):
    """Emits a restore or import before it is done."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        self._listeners.notify(StateReplaced("restore", snapshot.commit_ref))
        super().restore(snapshot, paths=paths)

    def import_archive(self, path: Any, **how: Any) -> int:
        self._listeners.notify(StateReplaced("import", str(path)))
        return super().import_archive(path, **how)


class NeverCountsAgain(Memory):
    """Keeps the quota of the state before."""

    def _emit_replaced(
        self,
        reason: Any,
        reference: str,
        rewritten: Any = None,
        *,
        reversible: bool = True,
        **_: Any,
    ) -> None:
        self._listeners.notify(StateReplaced(reason, reference, reversible=reversible))


class CountsForever(Memory):
    """Counts the files of the previous state."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        before = self._usage()
        super().restore(snapshot, paths=paths)
        self._root_node.size, self._root_node.count = before[0], before[1] + 1


class RestoresReadOnly(Memory):
    """Restores while read-only."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        frozen, self._read_only = self._read_only, False
        with suppress(SnapshotRestoreError):
            super().restore(snapshot, paths=paths)
        self._read_only = frozen


class TakesAll(Memory):
    """Ignores the paths."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot)

    def preview(self, snapshot: FilesystemSnapshot, *, paths: Paths = None) -> Diff:
        return super().preview(snapshot)


class TakesTheFirst(Memory):
    """Restores the first path only."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths[:1] if paths else paths)


class TakesNoneForAll(Memory):
    """Treats an empty list of paths as all paths."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths or None)


class TakesTheParents(Memory):
    """Restores the parent directory of a path."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        if paths:
            paths = [path.rpartition("/")[0] or path for path in paths]
        super().restore(snapshot, paths=paths)


class OneByOne(Memory):
    """Restores path by path, until one fails."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        if paths is None:
            super().restore(snapshot)
        for path in paths or ():
            super().restore(snapshot, paths=[path])


class KeepsWhatWasNotThere(Memory):
    """Restores old files, and removes nothing."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        if paths is not None:
            view = self.view(snapshot)
            paths = [path for path in paths if view.exists(path)]
        super().restore(snapshot, paths=paths)


class NeedsTheParent(Memory):
    """Creates no parents, and reports the path as unknown."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        for path in paths or ():
            parent = path.strip("/").rpartition("/")[0]
            if parent and not self.exists(parent):
                raise SnapshotRestoreError(f"Failed to restore '{path}': no such directory")
        super().restore(snapshot, paths=paths)


class ReplacesWhatIsInTheWay(Memory):
    """Replaces a file where a parent directory was."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        for path in paths or ():
            first = path.strip("/").partition("/")[0]
            if first != path.strip("/") and self.exists(first) and self.stat(first).is_file:
                self.delete(first)
        super().restore(snapshot, paths=paths)


class ReadsPathsAsGiven(Memory):
    """Knows one spelling of a path."""

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        for path in paths or ():
            if not path.strip("./") or path != path.strip("/"):
                raise SnapshotRestoreError(f"Failed to restore {path!r}")
        super().restore(snapshot, paths=paths)


class LosesTheRest(Memory):
    """Cannot take a snapshot after a partial restore."""

    partly: DirectoryNode | None = None

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        kept = super().snapshot(tag=tag)
        if self.partly is not None:
            self._history._kept[kept.snapshot_id] = (self.partly, kept)
        return kept

    def restore(
        self, snapshot: FilesystemSnapshot, *, paths: Paths = None, expect: Snapshot = None
    ) -> None:
        super().restore(snapshot, paths=paths)
        self.partly = None if paths is None else self._snapshot_root(snapshot)


class ShowsTheLiveState(Memory):
    """Returns itself as the view."""

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        return self


class ShowsNothing(Memory):
    """Shows an empty state for every snapshot."""

    def view(self, snapshot: FilesystemSnapshot) -> ReadableFilesystem:
        return Memory(read_only=True)

    def preview(self, snapshot: FilesystemSnapshot, *, paths: Paths = None) -> Diff:
        return diff(Memory(), Memory())


class LooksBackwards(Memory):
    """Previews the reverse of a restore."""

    def preview(self, snapshot: FilesystemSnapshot, *, paths: Paths = None) -> Diff:
        return diff(self.view(snapshot), self)


class RestoresToLook(Memory):
    """Restores in order to preview."""

    def preview(self, snapshot: FilesystemSnapshot, *, paths: Paths = None) -> Diff:
        found = super().preview(snapshot, paths=paths)
        self.restore(snapshot, paths=paths)
        return found
