"""A linearizability checker: can one order of the calls explain what threads observed?

A call is a program of steps. It runs on a session, and on a plain model, where it gives what it
saw and the state after it. A history is linearizable if the calls that succeeded can be put in
an order in which none comes before one that ended before it began, in which each sees on the
model what it saw in the session, and whose last state is that of the session.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from weakincentives.runtime.session import Session
from weakincentives.runtime.transactions import transaction


@dataclass(frozen=True)
class Note:
    number: int


@dataclass(frozen=True)
class Total:
    value: int = 1


@dataclass(frozen=True)
class Added:
    number: int


def note(items: tuple[Note, ...], event: Added) -> tuple[Note, ...]:
    return (*items, Note(event.number))


def total(items: tuple[Total, ...], event: Added) -> tuple[Total, ...]:
    """Fold in a way in which the order matters."""
    return (Total((items[-1].value * 31 + event.number) % 1_000_003 if items else 1),)


State = tuple[tuple[Note, ...], tuple[Total, ...]]
START: State = ((), (Total(),))


class FailedError(Exception):
    """What a transaction inside a call ends with if it is to fail."""


class World:
    """What a program runs on: a session, or the model of one."""

    def append(self, number: int) -> None:
        raise NotImplementedError

    def seed(self, numbers: Iterable[int]) -> None:
        raise NotImplementedError

    def dispatch(self, number: int) -> None:
        raise NotImplementedError

    def notes(self) -> tuple[int, ...]:
        raise NotImplementedError

    def value(self) -> int:
        raise NotImplementedError

    def set_value(self, value: int) -> None:
        raise NotImplementedError

    def back(self) -> None:
        """Go back to the very beginning."""
        raise NotImplementedError

    def inner(self, program: "Program", saw: list[object], *, fails: bool) -> None:
        raise NotImplementedError


class OnSession(World):
    def __init__(self, session: Session) -> None:
        self.session = session

    def append(self, number: int) -> None:
        self.session[Note].append(Note(number))

    def seed(self, numbers: Iterable[int]) -> None:
        self.session[Note].seed(map(Note, numbers))

    def dispatch(self, number: int) -> None:
        self.session.dispatch(Added(number))

    def notes(self) -> tuple[int, ...]:
        return tuple(each.number for each in self.session[Note].all())

    def value(self) -> int:
        found = self.session[Total].latest()
        return 0 if found is None else found.value

    def set_value(self, value: int) -> None:
        self.session[Total].seed(Total(value))

    def back(self) -> None:
        self.session.rollback("start")

    def inner(self, program: "Program", saw: list[object], *, fails: bool) -> None:
        try:
            with transaction(self.session):
                run(program, self, saw)
                if fails:
                    raise FailedError
        except FailedError:
            pass


class OnModel(World):
    def __init__(self, state: State) -> None:
        self.state = state

    def append(self, number: int) -> None:
        self.state = ((*self.state[0], Note(number)), self.state[1])

    def seed(self, numbers: Iterable[int]) -> None:
        self.state = (tuple(map(Note, numbers)), self.state[1])

    def dispatch(self, number: int) -> None:
        event = Added(number)
        self.state = (note(self.state[0], event), total(self.state[1], event))

    def notes(self) -> tuple[int, ...]:
        return tuple(each.number for each in self.state[0])

    def value(self) -> int:
        return self.state[1][-1].value if self.state[1] else 0

    def set_value(self, value: int) -> None:
        self.state = (self.state[0], (Total(value),))

    def back(self) -> None:
        self.state = START

    def inner(self, program: "Program", saw: list[object], *, fails: bool) -> None:
        before = self.state
        run(program, self, saw)
        if fails:
            self.state = before


@dataclass(frozen=True)
class Step:
    """One thing that a program does."""

    kind: str
    number: int = 0
    program: "tuple[Step, ...]" = ()
    fails: bool = False

    def perform(self, world: World, saw: list[object]) -> None:  # noqa: C901 # a plain table
        match self.kind:
            case "append":
                world.append(self.number)
            case "dispatch":
                world.dispatch(self.number)
            case "seed":
                world.seed([self.number, self.number + 1])
            case "see notes":
                saw.append(world.notes())
            case "see value":
                saw.append(world.value())
            case "append length":
                world.append(len(world.notes()))
            case "count":
                saw.append(world.value())
                world.set_value(world.value() + 1)
            case "back":
                world.back()
            case _:
                world.inner(self.program, saw, fails=self.fails)


Program = Sequence[Step]


def run(program: Program, world: World, saw: list[object]) -> None:
    for step in program:
        step.perform(world, saw)


@dataclass
class Record:
    """One call: what it was to do, when it began and ended, and what became of it."""

    program: Program
    began: int = 0
    ended: int = 0
    succeeded: bool = False
    saw: list[object] = field(default_factory=list[object])


def explain(records: Sequence[Record], end: State) -> list[int] | None:
    """Return an order of the calls that succeeded which explains everything; None if none does."""
    calls = [each for each in records if each.succeeded]
    dead: set[tuple[frozenset[int], State]] = set()

    def search(left: frozenset[int], state: State) -> list[int] | None:
        if not left:
            return [] if state == end else None
        if (left, state) in dead:
            return None
        soonest = min(calls[each].ended for each in left)
        for each in sorted(left):
            call = calls[each]
            if call.began > soonest:
                continue  # another had ended before it began
            model, saw = OnModel(state), list[object]()
            run(call.program, model, saw)
            if saw == call.saw:
                rest = search(left - {each}, model.state)
                if rest is not None:
                    return [each, *rest]
        dead.add((left, state))
        return None

    return search(frozenset(range(len(calls))), START)
