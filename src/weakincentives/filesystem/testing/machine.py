"""One side of a comparison: a filesystem, and what was kept of it on the way."""

import inspect
import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck
from hypothesis import settings as Settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    BaseFilesystem,
    Diff,
    FileStat,
    Filesystem,
    FilesystemEvent,
    FilesystemSnapshot,
    InMemoryFilesystem,
    ObservableFilesystem,
    Results,
    StateReplaced,
    normalize_path,
)
from weakincentives.filesystem.testing.contract import State, state_of, tree_in
from weakincentives.filesystem.testing.operations import (
    Choose,
    Operation,
    Outcome,
    draw_operation,
    operations,
)

_KEPT = 8  # snapshots, and archives, that can still be asked for
_BEYOND_THE_PROTOCOL = {
    "move": "move",
    "copy": "copy",
    "link": "_make_link",
    "content_hash": "content_hash",
    "snapshot": "snapshot",
    "restore": "restore",
    "restore_paths": "restore",
    "preview": "preview",
    "view": "view",
    "export": "export_archive",
    "import": "import_archive",
}


class Side:
    """A filesystem that operations are done to; it remembers snapshots, archives and events."""

    def __init__(self, filesystem: Any, new_archive: Callable[[], Path]) -> None:
        """Watch a Filesystem with all it can do beyond that; `new_archive` returns a free place."""
        self.filesystem: Any = filesystem
        self.other = self
        self.events: list[FilesystemEvent] = []
        self._new_archive = new_archive
        self._archives: deque[tuple[Path, State]] = deque(maxlen=_KEPT)
        self._snapshots: deque[tuple[FilesystemSnapshot, State]] = deque(maxlen=_KEPT)

    def listen(self) -> None:
        """Remember events from now on."""
        if isinstance(self.filesystem, ObservableFilesystem):
            self.filesystem.subscribe(self._hear)

    def perform(self, operation: Operation) -> Outcome:
        """Do `operation`; an import `across` takes an archive of the other side.

        Raises:
            Exception: What is neither OSError, ValueError, TypeError nor ours is a bug.
        """
        try:
            return Outcome(comparable(self._call(operation)))
        except (OSError, ValueError, TypeError, WinkError) as error:
            return Outcome(None, type(error), getattr(error, "errno", None), str(error))

    def _call(self, operation: Operation) -> object:
        own: dict[str, Callable[..., object]] = {
            "link": self._link,
            "delete": self._delete,
            "snapshot": self._snapshot,
            "restore": self._restore,
            "restore_paths": self._restore_paths,
            "preview": self._preview,
            "view": self._view,
            "export": self._export,
            "import": self._import,
        }
        name = operation.name.removesuffix("_at")
        call = own.get(name) or getattr(self.filesystem, name)
        return call(**operation.arguments)

    def _link(self, path: str, target: str) -> bool:
        """Make a link where there is room for one, as another program would."""
        fs, key = self.filesystem, normalize_path(path)
        parent = key.rpartition("/")[0]
        if fs.exists(key) or not fs.stat(parent).is_directory or not _can_be_named(key):
            return False
        if isinstance(fs, BaseFilesystem):
            fs._make_link(key, target)  # pyright: ignore[reportPrivateUsage] # the protocol makes no links
        return True

    def _delete(self, path: str, recursive: bool = False) -> object:
        fs = self.filesystem
        if recursive and _is_root(path):
            # the one stated difference: memory empties, the host refuses; so do what both can
            return [fs.delete(entry.path, recursive=True) for entry in fs.list()]
        return fs.delete(path, recursive=recursive)

    def _snapshot(self, tag: str | None) -> str | None:
        state = state_of(self.filesystem)
        kept = self.filesystem.snapshot(tag=tag)
        self._snapshots.append((kept, state))
        return kept.tag

    def _restore(self, number: int) -> None:
        if self._snapshots:
            kept, state = _picked(self._snapshots, number)
            self.filesystem.restore(kept)
            _expect(state_of(self.filesystem), state, "restored")

    def _restore_paths(self, number: int, paths: Sequence[str]) -> None:
        if self._snapshots:
            self.filesystem.restore(_picked(self._snapshots, number)[0], paths=paths)

    def _preview(self, number: int, paths: Sequence[str] | None) -> object:
        if self._snapshots:
            return self.filesystem.preview(_picked(self._snapshots, number)[0], paths=paths)
        return None

    def _view(self, number: int, path: str) -> object:
        if self._snapshots:
            return self.filesystem.view(_picked(self._snapshots, number)[0]).stat(path)
        return None

    def _export(self) -> int:
        place = self._new_archive()
        count = self.filesystem.export_archive(place)
        self._archives.append((place, state_of(self.filesystem)))
        return count

    def _import(self, number: int, across: bool) -> int | None:
        archives = self.other._archives if across else self._archives
        if not archives:
            return None
        archive, state = _picked(archives, number)
        count = self.filesystem.import_archive(archive)
        # permissions of directories are not everybody's
        _expect(tree_in(state_of(self.filesystem)), tree_in(state), "imported")
        return count

    def _hear(self, event: FilesystemEvent) -> None:
        # a snapshot and an archive have different names on both sides
        self.events.append(
            StateReplaced(event.reason, "") if isinstance(event, StateReplaced) else event
        )


def comparable(value: object) -> object:
    """Return a result without what may differ: the one place that says what that is.

    - Times and permissions of a stat: clocks and the umask of the process differ. So a
      preview is compared without what changes permissions only.
    - Everything else must be equal. `delete` of the root is dealt with in `Side`.
    """
    if isinstance(value, FileStat):
        return value.path, value.kind, value.size_bytes, value.link_target, value.content_hash
    if isinstance(value, Diff):
        changes = [each for each in value.entries if each.kind != "mode-changed"]
        return tuple((each.kind, each.path, each.source) for each in changes)
    if isinstance(value, Results):
        found: Results[object] = value  # pyright: ignore[reportUnknownVariableType] # of whatever
        return tuple(found), found.truncated
    return value


def missing_operations(fs: Filesystem) -> frozenset[str]:
    """Return the operations beyond the protocol that `fs` does not have."""
    missing = {name for name, method in _BEYOND_THE_PROTOCOL.items() if not hasattr(fs, method)}
    restore = getattr(fs, "restore", None)
    if restore is None or "paths" not in inspect.signature(restore).parameters:
        missing.add("restore_paths")
    return frozenset(missing)


def _picked(kept: Sequence[Any], number: int) -> Any:
    """Return one of those that were kept; 0 is the last one."""
    return kept[-1 - number % len(kept)]


def _expect(found: dict[str, Any], wanted: dict[str, Any], how: str) -> None:
    if found != wanted:
        paths = sorted(path for path in {**found, **wanted} if found.get(path) != wanted.get(path))
        raise AssertionError(f"The {how} state is not what was kept, at {paths}")


def _can_be_named(key: str) -> bool:
    """Return whether an ordinary disk could hold the last segment of `key`."""
    name = key.rpartition("/")[2]
    with suppress(UnicodeEncodeError):
        return len(name.encode()) <= 255 and not name.startswith(".wink-tmp-")
    return False


def _is_root(path: str) -> bool:
    with suppress(WinkError):
        return normalize_path(path) == ""
    return False


_BATCH = 250  # operations on one pair, so that full trees and young ones are both met
_STATES = 8  # one batch in so many keeps states and brings them back, which takes time on a disk
_SOMETIMES = (*[False] * 9, True)
_REPLACING = frozenset({"restore", "restore_paths", "import"})
_KNOWN = 20  # paths that something was put at lately
_SHOWN = 12
_LENGTH = 2_000
Factory = Callable[[], Filesystem]


class DivergenceError(AssertionError):
    """Two filesystems answered the same `operations` differently."""

    def __init__(self, fact: str, operations: Sequence[Operation], answers: str = "") -> None:
        """Tell the fact, the last of the operations that led to it, and both answers."""
        self.operations: tuple[Operation, ...] = tuple(operations)
        last = "".join(f"\n  {each}" for each in operations[-_SHOWN:])
        super().__init__(
            f"{fact} after {len(operations)} operations, the last of them{last}{answers}"
        )


class Pair:
    """A model and a subject that get the same operations."""

    def __init__(self, model: Filesystem, subject: Filesystem) -> None:
        """Compare `subject` with `model`; both must be empty."""
        self._sides = (Side(model, self._new_archive), Side(subject, self._new_archive))
        self._sides[0].other, self._sides[1].other = reversed(self._sides)
        self._numbers = itertools.count()
        self._history: list[Operation] = []
        self._stack = ExitStack()
        self.known: deque[str] = deque(maxlen=_KNOWN)
        self.without: frozenset[str] = missing_operations(model) | missing_operations(subject)
        if all(isinstance(side, ObservableFilesystem) for side in (model, subject)):
            for side in self._sides:
                side.listen()

    def perform(self, operation: Operation) -> Outcome:
        """Do `operation` on both sides.

        Raises:
            DivergenceError: They return, raise or tell something different, a state that
                was kept does not come back, or one raises what no filesystem may.
        """
        self._history.append(operation)
        try:
            model, subject = (side.perform(operation) for side in self._sides)
        except Exception as error:
            raise DivergenceError(f"{error!r} was raised", self._history) from error
        self._compare("outcomes", model, subject)
        self._compare("events", *(side.events for side in self._sides))
        for side in self._sides:
            side.events.clear()
        if operation.name in _REPLACING:
            self.compare_trees()
        if model.error is None and operation.made is not None:
            self.known.append(operation.made)
        return model

    def compare_trees(self) -> None:
        """Compare everything that is there.

        Raises:
            DivergenceError: The trees differ.
        """
        self._compare("trees", *(tree_in(state_of(side.filesystem)) for side in self._sides))

    def close(self) -> None:
        """Close what can be closed, and remove the archives."""
        self._stack.close()
        for side in self._sides:
            close = getattr(side.filesystem, "close", None)
            if close is not None:
                close()

    @cached_property
    def _archives(self) -> Path:
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory()))

    def _new_archive(self) -> Path:
        return self._archives / f"{next(self._numbers)}.zip"

    def _compare(self, what: str, model: object, subject: object) -> None:
        if model != subject:
            answers = f"\nmodel:   {_shown(model)}\nsubject: {_shown(subject)}"
            raise DivergenceError(f"{what} differ", self._history, answers)


def _operations(machine: "FilesystemMachine") -> SearchStrategy[Operation]:
    pair = machine.pair
    return operations(known=tuple(pair.known), without=pair.without, states=True)


class FilesystemMachine(RuleBasedStateMachine):
    """A Hypothesis state machine over a pair; it finds the shortest way to a divergence."""

    def __init__(self, subject: Factory, model: Factory = InMemoryFilesystem) -> None:
        """Compare what `subject` makes with what `model` makes."""
        super().__init__()
        self.pair: Pair = Pair(model(), subject())

    @rule(operation=st.runner().flatmap(_operations))
    def perform(self, operation: Operation) -> None:
        """Do one operation on both sides."""
        self.pair.perform(operation)

    @invariant()
    def trees_are_equal(self) -> None:
        """Compare everything after every step: trees are small here."""
        self.pair.compare_trees()

    def teardown(self) -> None:
        """Close both sides."""
        self.pair.close()


def run_machine(
    subject: Factory, *, model: Factory = InMemoryFilesystem, settings: Settings | None = None
) -> None:
    """Let Hypothesis look for a divergence between what `subject` and `model` make.

    Raises:
        DivergenceError: The two filesystems differ; it tells the shortest way found.
    """

    class Machine(FilesystemMachine):
        def __init__(self) -> None:
            super().__init__(subject, model)

    try:
        run_state_machine_as_test(Machine, settings=settings and _patient(settings))
    except DivergenceError as found:
        raise _shortest(found, model, subject) from found


def _patient(settings: Settings) -> Settings:
    # how long a step takes depends on what else the machine does, and is not the question
    allowed = {*settings.suppress_health_check, HealthCheck.too_slow}
    return Settings(settings, deadline=None, suppress_health_check=sorted(allowed, key=str))


def run_parity(
    seed: int, count: int, *, subject: Factory, model: Factory = InMemoryFilesystem
) -> int:
    """Do `count` random operations side by side; return how many were done.

    The operations are a function of `seed`: a divergence is met again by the same call.

    Raises:
        DivergenceError: The two filesystems differ.
    """
    choose = Random(seed).choice
    for batch, done in enumerate(range(0, count, _BATCH)):
        with _pair(model, subject) as pair:
            try:
                states = (False,) if batch % _STATES else _SOMETIMES
                _run_batch(choose, pair, min(_BATCH, count - done), states)
            except DivergenceError as found:
                raise _shortest(found, model, subject) from found
    return count


def _run_batch(choose: Choose, pair: Pair, count: int, states: Sequence[bool]) -> None:
    for _ in range(count):
        pair.perform(draw_operation(choose, known=pair.known, without=pair.without, states=states))
    pair.compare_trees()


def _shortest(found: DivergenceError, model: Factory, subject: Factory) -> DivergenceError:
    """Leave out every operation that is not needed to diverge."""
    size = len(found.operations) // 2
    while size:
        start = 0
        while start < len(found.operations):
            fewer = [*found.operations[:start], *found.operations[start + size :]]
            still = _divergence(fewer, model, subject)
            found = still or found
            start += 0 if still else size
        size //= 2
    return found


def _divergence(
    steps: Sequence[Operation], model: Factory, subject: Factory
) -> DivergenceError | None:
    with _pair(model, subject) as pair:
        try:
            for operation in steps:
                pair.perform(operation)
            pair.compare_trees()
        except DivergenceError as found:
            return found
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}... ({len(text)} characters)"


@contextmanager
def _pair(model: Factory, subject: Factory) -> Generator[Pair]:
    pair = Pair(model(), subject())
    try:
        yield pair
    finally:
        pair.close()
