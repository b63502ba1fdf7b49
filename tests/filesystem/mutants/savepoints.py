"""Backends whose savepoints take back, keep or tell the wrong things."""

from collections.abc import Callable, Iterator
from typing import Any

from tests.filesystem.mutants.sound import Memory
from weakincentives.filesystem import Limits, ReadResult, Savepoint, StateReplaced
from weakincentives.filesystem.memory.filesystem import MEMORY_LIMITS
from weakincentives.filesystem.memory.nodes import DirectoryNode, FileNode, LinkNode
from weakincentives.filesystem.savepoints import SavepointStorage, WriteLock


class OwnMark:
    """A mark that asks its filesystem what to do."""

    def __init__(self, fs: "Marking", sound: SavepointStorage) -> None:
        self.fs = fs
        self.sound = sound
        self.root = fs._root_node
        self.is_open = True

    @property
    def changed(self) -> bool:
        return self.fs.has_changed(self)

    def release(self) -> None:
        self.fs.keep(self)
        self.is_open = False

    def roll_back(self) -> None:
        self.fs.take_back(self)


class Marking(Memory):
    """A sound backend, in steps that can be replaced."""

    def __init__(self, *, read_only: bool = False, limits: Limits = MEMORY_LIMITS) -> None:
        super().__init__(read_only=read_only, limits=limits)
        self.marks: list[OwnMark] = []

    def _mark(self) -> SavepointStorage:
        self.marks.append(OwnMark(self, super()._mark()))
        return self.marks[-1]

    def has_changed(self, mark: OwnMark) -> bool:
        return mark.sound.changed

    def keep(self, mark: OwnMark) -> None:
        del self.marks[self.marks.index(mark) :]

    def take_back(self, mark: OwnMark) -> None:
        del self.marks[self.marks.index(mark) :]
        mark.sound.roll_back()

    def nodes(self) -> Iterator[tuple[DirectoryNode, str, object]]:
        pending = [self._root_node]
        while pending:
            directory = pending.pop()
            for name, node in directory.children.items():
                yield directory, name, node
                if type(node) is DirectoryNode:
                    pending.append(node)


class NeverRollsBack(Marking):
    """Leaves everything as it is."""

    def take_back(self, mark: OwnMark) -> None:
        pass


class RollsBackAlways(Marking):
    """Takes back what was released."""

    def keep(self, mark: OwnMark) -> None:
        self.take_back(mark)


class SharesTheTree(Memory):
    """Keeps the tree itself, which goes on changing."""

    def _mark(self) -> SavepointStorage:
        mark = super()._mark()
        self._edition -= 1
        return mark


class GoesOnWithTheKeptTree(Marking):
    """Changes what an outer savepoint needs."""

    def take_back(self, mark: OwnMark) -> None:
        super().take_back(mark)
        self._root_node.edition = self._edition


class ForgetsModes(Marking):
    """Brings files back with other permissions."""

    def take_back(self, mark: OwnMark) -> None:
        super().take_back(mark)
        for _, _, node in self.nodes():
            if type(node) is FileNode:
                node.permissions = 0o644


class LosesLinks(Marking):
    """Brings links back as files."""

    def take_back(self, mark: OwnMark) -> None:
        super().take_back(mark)
        for directory, name, node in list(self.nodes()):
            if type(node) is LinkNode:
                directory.children[name] = FileNode(b"", 0o777, 0, 0)


class SkipsNames(Marking):
    """Brings back what it could print."""

    def take_back(self, mark: OwnMark) -> None:
        super().take_back(mark)
        for directory, name, _ in list(self.nodes()):
            if not name.isprintable():
                del directory.children[name]


class EndsWithARollback(Marking):
    """Cannot be changed any more."""

    def take_back(self, mark: OwnMark) -> None:
        super().take_back(mark)
        self._read_only = True


class GoesBackToTheFirst(Marking):
    """Knows one savepoint at a time."""

    def take_back(self, mark: OwnMark) -> None:
        first = self.marks[0]
        super().take_back(mark)
        self._root_node = first.root


class KeepsWhatWasReleased(Marking):
    """An outer savepoint goes back to where an inner one was released."""

    def keep(self, mark: OwnMark) -> None:
        super().keep(mark)
        for outer in self.marks:
            outer.root = self._root_node

    def take_back(self, mark: OwnMark) -> None:
        super().take_back(mark)
        self._root_node = mark.root


class AlwaysChanged(Marking):
    """Says that something has changed."""

    def has_changed(self, mark: OwnMark) -> bool:
        return True


class NeverChanged(Marking):
    """Says that nothing has changed."""

    def has_changed(self, mark: OwnMark) -> bool:
        return False


class CountsWhatWasTakenBack(Marking):
    """Says that something has changed when it was taken back."""

    begun = False

    def take_back(self, mark: OwnMark) -> None:
        super().take_back(mark)
        self.begun = True

    def has_changed(self, mark: OwnMark) -> bool:
        return self.begun or super().has_changed(mark)


class TellsEveryRelease(Marking):
    """Tells of a rollback when there was none."""

    def keep(self, mark: OwnMark) -> None:
        super().keep(mark)
        self._tell_rolled_back()


class TellsTooEarly(Marking):
    """Tells of a rollback before it is done."""

    def take_back(self, mark: OwnMark) -> None:
        self._tell_rolled_back()
        super().take_back(mark)


class NeverCountsAgain(Memory):
    """Goes on with the quota of what was taken back."""

    def _tell_rolled_back(self) -> None:
        self._listeners.tell(StateReplaced("rollback", "savepoint"))


class NeverFindsRoom(Memory):
    """Counts what was taken back."""

    most = 0

    def _store(self, path: str, data: bytes, **how: Any) -> None:
        super()._store(path, data, **how)
        self.most = max(self.most, super()._usage()[0])

    def _usage(self) -> tuple[int, int]:
        return self.most, super()._usage()[1]


class RemembersPages(Marking):
    """Shows what it has shown before, until somebody writes."""

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
        return self.kind(self._lock, self._mark, self._tell_rolled_back)


class _Swallowing(Savepoint):
    def __exit__(self, *given: object) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] # its defect
        super().__exit__(*given)  # pyright: ignore[reportArgumentType] # passed on
        return True


class SwallowsExceptions(Handing):
    """Rolls back and says nothing."""

    kind = _Swallowing


class _Uninterrupted(Savepoint):
    def __exit__(self, kind: type[BaseException] | None, *given: object) -> None:
        ordinary = kind is not None and issubclass(kind, Exception)
        super().__exit__(kind if ordinary else None, *given)


class KeepsWhatWasInterrupted(Handing):
    """Releases after everything that is no error."""

    kind = _Uninterrupted


class _Strict(Savepoint):
    def __exit__(self, kind: type[BaseException] | None, *given: object) -> None:
        self._checked()
        super().__exit__(kind, *given)


class ComplainsAtTheEnd(Handing):
    """Does not let a block end its savepoint."""

    kind = _Strict


class _Nothing:
    changed = False
    is_open = True

    def release(self) -> None:
        pass

    def roll_back(self) -> None:
        pass


class _Lenient(Savepoint):
    def _checked(self) -> SavepointStorage:
        return self._mark or _Nothing()

    def _end(self) -> None:
        if self in self._lock.open:
            super()._end()


class EndsTwice(Handing):
    """Lets a savepoint end again, and any thread end it."""

    kind = _Lenient


# --- savepoints that others do not wait for, or too much ---


class _FreeForAll(WriteLock):
    def take_turn(self) -> None:
        pass

    def end_turn(self) -> None:
        pass


class WaitsForNobody(Memory):
    """Lets every thread change what it wants."""

    def __init__(self, **given: object) -> None:
        super().__init__(**given)  # pyright: ignore[reportArgumentType] # passed on
        self._lock = _FreeForAll()


class _Closed(Savepoint):
    def __init__(
        self, lock: WriteLock, begin: Callable[[], SavepointStorage], told: Callable[[], None]
    ) -> None:
        super().__init__(lock, begin, told)
        lock.reading.acquire()

    def _end(self) -> None:
        super()._end()
        self._lock.reading.release()


class LetsNobodyRead(Handing):
    """Keeps readers waiting too."""

    kind = _Closed
