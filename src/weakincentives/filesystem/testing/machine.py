"""Two filesystems side by side: the same operations, equal results, equal errors, equal events."""

import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from random import Random

from hypothesis import HealthCheck
from hypothesis import settings as Settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import SearchStrategy

from weakincentives.filesystem import Filesystem, InMemoryFilesystem, ObservableFilesystem
from weakincentives.filesystem.testing.operations import (
    Choose,
    Operation,
    Outcome,
    draw_operation,
)
from weakincentives.filesystem.testing.sides import Side, missing_operations
from weakincentives.filesystem.testing.states import state_of, tree_in
from weakincentives.filesystem.testing.strategies import operations

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
