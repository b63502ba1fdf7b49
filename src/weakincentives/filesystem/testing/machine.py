"""Differential testing of two filesystems: a Hypothesis state machine and a seeded random run.

Both sides get the same operations; results, errors, events and trees must be equal.
"""

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

import hypothesis
from hypothesis import HealthCheck
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
from weakincentives.filesystem.testing.contract import State, drop_permissions, read_state
from weakincentives.filesystem.testing.strategies import (
    Choose,
    Operation,
    Outcome,
    draw_operation,
    operations,
)

_MAX_KEPT = 8  # snapshots, and archives, that can still be used
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


class PairMember:
    """One filesystem of a pair, with the snapshots, archives and events recorded on the way."""

    def __init__(self, filesystem: Any, new_archive: Callable[[], Path]) -> None:
        """Wrap a Filesystem with its further capabilities; `new_archive` returns an unused path."""
        self.filesystem: Any = filesystem
        self.other = self
        self.events: list[FilesystemEvent] = []
        self._new_archive = new_archive
        self.archives: deque[tuple[Path, State]] = deque(maxlen=_MAX_KEPT)
        self._snapshots: deque[tuple[FilesystemSnapshot, State]] = deque(maxlen=_MAX_KEPT)

    def record_events(self) -> None:
        """Record events from now on."""
        if isinstance(self.filesystem, ObservableFilesystem):
            self.filesystem.subscribe(self._record_event)

    def perform(self, operation: Operation) -> Outcome:
        """Perform `operation`; an import `across` reads an archive of the other side.

        Raises:
            Exception: Anything but OSError, ValueError, TypeError and WinkError is a bug.
        """
        try:
            return Outcome(normalize_result(self._call(operation)))
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
        """Create a link where nothing is in the way, as another program would."""
        fs, key = self.filesystem, normalize_path(path)
        parent = key.rpartition("/")[0]
        if fs.exists(key) or not fs.stat(parent).is_directory or not _can_be_named(key):
            return False
        if isinstance(fs, BaseFilesystem):
            fs._make_link(key, target)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] # the protocol creates no links
        return True

    def _delete(self, path: str, *, recursive: bool = False) -> object:
        fs = self.filesystem
        if recursive and _is_root(path):
            # the one permitted difference: memory empties the root, the host raises
            return [fs.delete(entry.path, recursive=True) for entry in fs.list()]
        return fs.delete(path, recursive=recursive)

    def _snapshot(self, tag: str | None) -> str | None:
        state = read_state(self.filesystem)
        kept = self.filesystem.snapshot(tag=tag)
        self._snapshots.append((kept, state))
        return kept.tag

    def _restore(self, number: int) -> None:
        if self._snapshots:
            kept, state = _pick(self._snapshots, number)
            self.filesystem.restore(kept)
            _check_state(read_state(self.filesystem), state, "restored")

    def _restore_paths(self, number: int, paths: Sequence[str]) -> None:
        if self._snapshots:
            self.filesystem.restore(_pick(self._snapshots, number)[0], paths=paths)

    def _preview(self, number: int, paths: Sequence[str] | None) -> object:
        if self._snapshots:
            return self.filesystem.preview(_pick(self._snapshots, number)[0], paths=paths)
        return None

    def _view(self, number: int, path: str) -> object:
        if self._snapshots:
            return self.filesystem.view(_pick(self._snapshots, number)[0]).stat(path)
        return None

    def _export(self) -> int:
        place = self._new_archive()
        count = self.filesystem.export_archive(place)
        self.archives.append((place, read_state(self.filesystem)))
        return count

    def _import(self, number: int, *, across: bool) -> int | None:
        archives = self.other.archives if across else self.archives
        if not archives:
            return None
        archive, state = _pick(archives, number)
        count = self.filesystem.import_archive(archive)
        # not every backend keeps the permissions of directories
        _check_state(
            drop_permissions(read_state(self.filesystem)), drop_permissions(state), "imported"
        )
        return count

    def _record_event(self, event: FilesystemEvent) -> None:
        # the names of snapshots and archives differ between the sides
        self.events.append(
            StateReplaced(event.reason, "") if isinstance(event, StateReplaced) else event
        )


def normalize_result(value: object) -> object:
    """Return a result without the parts that may differ between backends.

    - Times and permissions of a stat: clocks and the process umask differ. So changes of
      permissions only are left out of a preview too.
    - Everything else must be equal. `PairMember` handles `delete` of the root.
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
    """Return the operations beyond the protocol that `fs` lacks."""
    missing = {name for name, method in _BEYOND_THE_PROTOCOL.items() if not hasattr(fs, method)}
    restore = getattr(fs, "restore", None)
    if restore is None or "paths" not in inspect.signature(restore).parameters:
        missing.add("restore_paths")
    return frozenset(missing)


def _pick(kept: Sequence[Any], number: int) -> Any:
    """Return one of the kept values; 0 is the last one."""
    return kept[-1 - number % len(kept)]


def _check_state(found: dict[str, Any], wanted: dict[str, Any], how: str) -> None:
    if found != wanted:
        paths = sorted(path for path in {**found, **wanted} if found.get(path) != wanted.get(path))
        raise AssertionError(f"The {how} state differs from the saved one at {paths}")


def _can_be_named(key: str) -> bool:
    """Return whether an ordinary disk could store the last segment of `key`."""
    name = key.rpartition("/")[2]
    with suppress(UnicodeEncodeError):
        return len(name.encode()) <= 255 and not name.startswith(".wink-tmp-")
    return False


def _is_root(path: str) -> bool:
    with suppress(WinkError):
        return normalize_path(path) == ""
    return False


_BATCH_SIZE = 250  # operations per pair, so that both small and full trees occur
_STATE_INTERVAL = 8  # one batch in so many uses snapshots and archives, which are slow on a disk
_STATE_ODDS = (*[False] * 9, True)
_STATE_REPLACING = frozenset({"restore", "restore_paths", "import"})
_MAX_KNOWN_PATHS = 20  # recently created paths
_MAX_SHOWN = 12
_MAX_VALUE_LENGTH = 2_000
Factory = Callable[[], Filesystem]


class DivergenceError(AssertionError):
    """Two filesystems behaved differently for the same `operations`."""

    def __init__(self, fact: str, operations: Sequence[Operation], answers: str = "") -> None:
        """Describe the difference, the last operations that led to it, and both results."""
        self.operations: tuple[Operation, ...] = tuple(operations)
        last = "".join(f"\n  {each}" for each in operations[-_MAX_SHOWN:])
        super().__init__(
            f"{fact} after {len(operations)} operations, the last of them{last}{answers}"
        )


class Pair:
    """A model and a subject that perform the same operations."""

    def __init__(self, model: Filesystem, subject: Filesystem) -> None:
        """Compare `subject` with `model`; both must be empty."""
        self._sides = (PairMember(model, self._new_archive), PairMember(subject, self._new_archive))
        self._sides[0].other, self._sides[1].other = reversed(self._sides)
        self._numbers = itertools.count()
        self._history: list[Operation] = []
        self._stack = ExitStack()
        self.known: deque[str] = deque(maxlen=_MAX_KNOWN_PATHS)
        self.without: frozenset[str] = missing_operations(model) | missing_operations(subject)
        if all(isinstance(side, ObservableFilesystem) for side in (model, subject)):
            for side in self._sides:
                side.record_events()

    def perform(self, operation: Operation) -> Outcome:
        """Perform `operation` on both sides.

        Raises:
            DivergenceError: Their results, errors or events differ, a saved state is not
                restored exactly, or one raises an error that no filesystem may raise.
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
        if operation.name in _STATE_REPLACING:
            self.compare_trees()
        if model.error is None and operation.created_path is not None:
            self.known.append(operation.created_path)
        return model

    def compare_trees(self) -> None:
        """Compare the complete trees.

        Raises:
            DivergenceError: The trees differ.
        """
        self._compare(
            "trees", *(drop_permissions(read_state(side.filesystem)) for side in self._sides)
        )

    def close(self) -> None:
        """Close both sides if they have `close`, and remove the archives."""
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
            answers = f"\nmodel:   {_format_value(model)}\nsubject: {_format_value(subject)}"
            raise DivergenceError(f"{what} differ", self._history, answers)


def _draw_operations(machine: "FilesystemMachine") -> SearchStrategy[Operation]:
    pair = machine.pair
    return operations(known=tuple(pair.known), without=pair.without, states=True)


class FilesystemMachine(RuleBasedStateMachine):
    """A Hypothesis state machine over a pair; it shrinks a divergence to the fewest operations."""

    def __init__(self, subject: Factory, model: Factory = InMemoryFilesystem) -> None:
        """Compare the filesystems that `subject` and `model` create."""
        super().__init__()
        self.pair: Pair = Pair(model(), subject())

    @rule(operation=st.runner().flatmap(_draw_operations))
    def perform(self, operation: Operation) -> None:
        """Perform one operation on both sides."""
        self.pair.perform(operation)

    @invariant()
    def trees_are_equal(self) -> None:
        """Compare the trees after every step; they are small here."""
        self.pair.compare_trees()

    def teardown(self) -> None:
        """Close both sides."""
        self.pair.close()


def run_machine(
    subject: Factory,
    *,
    model: Factory = InMemoryFilesystem,
    settings: hypothesis.settings | None = None,
) -> None:
    """Let Hypothesis search for a divergence between the filesystems of `subject` and `model`.

    Raises:
        DivergenceError: The two filesystems differ; it has the fewest operations found.
    """

    class Machine(FilesystemMachine):
        def __init__(self) -> None:
            super().__init__(subject, model)

    try:
        run_state_machine_as_test(Machine, settings=settings and _without_deadline(settings))
    except DivergenceError as found:
        raise _shrink(found, model, subject) from found


def _without_deadline(settings: hypothesis.settings) -> hypothesis.settings:
    # the time of a step depends on the load of the machine, and is not under test
    allowed = {*settings.suppress_health_check, HealthCheck.too_slow}
    checks = sorted(allowed, key=str)
    return hypothesis.settings(settings, deadline=None, suppress_health_check=checks)


def run_parity(
    seed: int, count: int, *, subject: Factory, model: Factory = InMemoryFilesystem
) -> int:
    """Perform `count` random operations on both sides; return their number.

    The operations depend only on `seed`, so a divergence is reproducible.

    Raises:
        DivergenceError: The two filesystems differ.
    """
    choose = Random(seed).choice
    for batch, done in enumerate(range(0, count, _BATCH_SIZE)):
        with _open_pair(model, subject) as pair:
            try:
                states = (False,) if batch % _STATE_INTERVAL else _STATE_ODDS
                _run_batch(choose, pair, min(_BATCH_SIZE, count - done), states)
            except DivergenceError as found:
                raise _shrink(found, model, subject) from found
    return count


def _run_batch(choose: Choose, pair: Pair, count: int, states: Sequence[bool]) -> None:
    for _ in range(count):
        pair.perform(draw_operation(choose, known=pair.known, without=pair.without, states=states))
    pair.compare_trees()


def _shrink(found: DivergenceError, model: Factory, subject: Factory) -> DivergenceError:
    """Remove every operation that the divergence does not need."""
    size = len(found.operations) // 2
    while size:
        start = 0
        while start < len(found.operations):
            fewer = [*found.operations[:start], *found.operations[start + size :]]
            still = _find_divergence(fewer, model, subject)
            found = still or found
            start += 0 if still else size
        size //= 2
    return found


def _find_divergence(
    steps: Sequence[Operation], model: Factory, subject: Factory
) -> DivergenceError | None:
    with _open_pair(model, subject) as pair:
        try:
            for operation in steps:
                pair.perform(operation)
            pair.compare_trees()
        except DivergenceError as found:
            return found
    return None


def _format_value(value: object) -> str:
    text = repr(value)
    return (
        text
        if len(text) <= _MAX_VALUE_LENGTH
        else f"{text[:_MAX_VALUE_LENGTH]}... ({len(text)} characters)"
    )


@contextmanager
def _open_pair(model: Factory, subject: Factory) -> Generator[Pair]:
    pair = Pair(model(), subject())
    try:
        yield pair
    finally:
        pair.close()
