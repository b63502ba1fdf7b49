"""Backends whose savepoints roll back, keep or report the wrong things."""

from collections.abc import Callable, Iterator
from typing import Any

from tests.filesystem.mutants.sound import Memory
from weakincentives.filesystem import Kept, Limits, ReadResult, Savepoint, StateReplaced
from weakincentives.filesystem.memory.filesystem import MEMORY_LIMITS
from weakincentives.filesystem.memory.nodes import DirectoryNode, FileNode, LinkNode
from weakincentives.filesystem.savepoints import SavepointStorage, WriteLock


class OwnStorage:
    """Savepoints that ask their filesystem what to do."""

    def __init__(self, fs: "Hooked", sound: SavepointStorage) -> None:
        self.fs = fs
        self.sound = sound

    @property
    def depth(self) -> int:
        return self.sound.depth

    def begin(self) -> None:
        self.sound.begin()

    def has_changed(self, depth: int) -> bool:
        return self.fs.has_changed(depth)

    def release(self, depth: int) -> None:
        self.fs.keep(depth)

    def rollback(self, depth: int) -> tuple[()]:
        self.fs.undo(depth)
        return ()


class Hooked(Memory):
    """A sound backend, in steps that can be replaced."""

    @property
    def sound(self) -> SavepointStorage:
        return super()._savepoint_storage()

    def _savepoint_storage(self) -> SavepointStorage:
        return OwnStorage(self, self.sound)

    def has_changed(self, depth: int) -> bool:
        return self.sound.has_changed(depth)

    def keep(self, depth: int) -> None:
        self.sound.release(depth)

    def undo(self, depth: int) -> None:
        self.sound.rollback(depth)

    def nodes(self) -> Iterator[tuple[DirectoryNode, str, object]]:
        pending = [self._root_node]
        while pending:
            directory = pending.pop()
            for name, node in directory.children.items():
                yield directory, name, node
                if type(node) is DirectoryNode:
                    pending.append(node)


class NeverRollsBack(Hooked):
    """Rolls nothing back."""

    def undo(self, depth: int) -> None:
        self.keep(depth)


class RollsBackAlways(Hooked):
    """Rolls back on release."""

    def keep(self, depth: int) -> None:
        self.undo(depth)


class SharesTheTree(Memory):
    """Keeps the live tree instead of a copy."""

    def savepoint(self) -> Savepoint:
        begun = super().savepoint()
        self._edition -= 1
        return begun


class GoesOnWithTheKeptTree(Hooked):
    """Changes what an outer savepoint needs."""

    def undo(self, depth: int) -> None:
        super().undo(depth)
        self._root_node.edition = self._edition


class ForgetsModes(Hooked):
    """Brings files back with other permissions."""

    def undo(self, depth: int) -> None:
        super().undo(depth)
        for _, _, node in self.nodes():
            if type(node) is FileNode:
                node.permissions = 0o644


class LosesLinks(Hooked):
    """Brings links back as files."""

    def undo(self, depth: int) -> None:
        super().undo(depth)
        for directory, name, node in list(self.nodes()):
            if type(node) is LinkNode:
                directory.children[name] = FileNode(b"", 0o777, 0, 0)


class SkipsNames(Hooked):
    """Restores only printable names."""

    def undo(self, depth: int) -> None:
        super().undo(depth)
        for directory, name, _ in list(self.nodes()):
            if not name.isprintable():
                del directory.children[name]


class EndsWithARollback(Hooked):
    """Cannot be changed any more."""

    def undo(self, depth: int) -> None:
        super().undo(depth)
        self._read_only = True


class GoesBackToTheFirst(Hooked):
    """Knows one savepoint at a time."""

    def undo(self, depth: int) -> None:
        first, _ = self._savepoints[0]
        super().undo(depth)
        self._root_node = first


class KeepsWhatWasReleased(Hooked):
    """An outer savepoint goes back to where an inner one was released."""

    def keep(self, depth: int) -> None:
        super().keep(depth)
        for outer in range(depth):
            self._savepoints[outer] = self._root_node, self._savepoints[outer][1]


class AlwaysChanged(Hooked):
    """Always reports a change."""

    def has_changed(self, depth: int) -> bool:
        return True


class NeverChanged(Hooked):
    """Never reports a change."""

    def has_changed(self, depth: int) -> bool:
        return False


class CountsWhatWasTakenBack(Hooked):
    """Reports a change that was rolled back."""

    begun = False

    def undo(self, depth: int) -> None:
        super().undo(depth)
        self.begun = True

    def has_changed(self, depth: int) -> bool:
        return self.begun or super().has_changed(depth)


class ReportsEveryRelease(Hooked):
    """Emits a rollback on every release."""

    def keep(self, depth: int) -> None:
        super().keep(depth)
        self._emit_rollback()


class ReportsTooEarly(Hooked):
    """Emits a rollback before it is done."""

    def undo(self, depth: int) -> None:
        self._emit_rollback()
        super().undo(depth)


class NeverCountsAgain(Memory):
    """Keeps the quota of the rolled-back state."""

    def _emit_rollback(self) -> None:
        self._listeners.notify(StateReplaced("rollback", "savepoint"))


class NeverFindsRoom(Memory):
    """Counts rolled-back files in the quota."""

    most = 0

    def _store(self, path: str, data: bytes, **how: Any) -> None:
        super()._store(path, data, **how)
        self.most = max(self.most, super()._usage()[0])

    def _usage(self) -> tuple[int, int]:
        return self.most, super()._usage()[1]


class RemembersPages(Hooked):
    """Serves cached reads until the next write."""

    def __init__(self, *, read_only: bool = False, limits: Limits = MEMORY_LIMITS) -> None:
        super().__init__(read_only=read_only, limits=limits)
        self.pages: dict[str, ReadResult] = {}

    def _store(self, path: str, data: bytes, **how: Any) -> None:
        self.pages.clear()
        super()._store(path, data, **how)

    def read(self, path: str, **page: Any) -> ReadResult:
        return self.pages.setdefault(path, super().read(path, **page))


# --- savepoints that end in the wrong way ---


class Handing(Memory):
    """A backend that hands out savepoints of another class."""

    kind: type[Savepoint] = Savepoint

    def savepoint(self) -> Savepoint:
        return self.kind(self._lock, self._savepoint_storage(), self._emit_rollback)


class _Swallowing(Savepoint):
    def __exit__(self, *given: object) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] # its defect
        super().__exit__(*given)  # pyright: ignore[reportArgumentType] # passed on
        return True


class SwallowsExceptions(Handing):
    """Emits no event for a rollback."""

    kind = _Swallowing


class _Uninterrupted(Savepoint):
    def __exit__(self, kind: type[BaseException] | None, *given: object) -> None:
        ordinary = kind is not None and issubclass(kind, Exception)
        super().__exit__(kind if ordinary else None, *given)


class KeepsWhatWasInterrupted(Handing):
    """Releases after exceptions that are not errors."""

    kind = _Uninterrupted


class _Strict(Savepoint):
    def __exit__(self, kind: type[BaseException] | None, *given: object) -> None:
        self._check_usable()
        super().__exit__(kind, *given)


class ComplainsAtTheEnd(Handing):
    """Does not let a block end its savepoint."""

    kind = _Strict


class _Lenient(Savepoint):
    def _check_usable(self) -> None:
        pass

    def release(self) -> None:
        if self.is_open:
            super().release()

    def _undo(self) -> tuple[Kept, ...]:
        return super()._undo() if self.is_open else ()


class EndsTwice(Handing):
    """Lets a savepoint end again, and any thread end it."""

    kind = _Lenient


# --- savepoints that others do not wait for, or too much ---


class _FreeForAll(WriteLock):
    def await_turn(self) -> None:
        pass


class WaitsForNobody(Memory):
    """Lets every thread write during a savepoint."""

    def __init__(self, **given: object) -> None:
        super().__init__(**given)  # pyright: ignore[reportArgumentType] # passed on
        self._lock = _FreeForAll()


class _Closed(Savepoint):
    def __init__(
        self, lock: WriteLock, storage: SavepointStorage, on_rollback: Callable[[], None]
    ) -> None:
        super().__init__(lock, storage, on_rollback)
        lock.mutex.acquire()

    def _end(self) -> None:
        super()._end()
        self._lock.mutex.release()


class LetsNobodyRead(Handing):
    """Keeps readers waiting too."""

    kind = _Closed
