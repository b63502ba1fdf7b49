"""One round: a person saves beside an operation that is disturbed, and every save is looked for."""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

from tests.root import is_root
from tests.safety.person.evidence import find_problems, find_save
from tests.safety.person.moments import CHANGING, Action, Ending, Moments, free_disk, run
from tests.safety.person.operations import Operation
from tests.safety.person.project import lay_out
from tests.safety.person.saves import Person, Save, make_repository
from tests.safety.places import mounted, temporary

Fault = Literal["none", "kill", "interrupt", "full"]
Schedule = dict[int, list[Action]]

STEPS = 3
"""The most steps that a save has."""
_AFTER = 1_000_000_000
_FAULTS: dict[Fault, Action] = {"kill": "kill", "interrupt": "interrupt", "full": "fill"}
_SMALL_DISK = "4m"


@dataclass(frozen=True, slots=True)
class Plan:
    """A round: how the person saves, and when; what goes wrong, and when."""

    way: str
    fault: Fault = "none"
    schedule: Schedule = field(default_factory=Schedule)
    again: Schedule | None = None
    """What happens during a first recovery; None if there is none."""
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """What came of the saves of a round, and what is wrong."""

    counts: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])


def rehearse(operation: Operation) -> list[str]:
    """Run an operation without anybody beside it; return its moments."""
    operation.warm_up()
    with _place(operation, Plan("rename over")) as place:

        def work(moments: Moments) -> str:
            text = operation.run(place, moments)
            (place / "moments").write_text("\n".join(moments.names))
            return text

        ending = run(work, place, {}, lambda: None)
        assert ending.code == 0, ending.text
        assert not ending.text.startswith("failed"), ending.text
        return (place / "moments").read_text().split("\n")


def random_plan(moments: list[str], way: str, fault: Fault, seed: int) -> Plan:
    """Choose when the steps of a save happen, and a fault: any moment of the operation."""
    choice = Random(seed)
    schedule = _choose(choice, moments, fault, STEPS)
    again = None
    if choice.random() < 0.5:
        again = _choose(choice, moments, "kill" if fault == "kill" else "none", 1)
    return Plan(way, fault, schedule, again, seed)


def plan_at(moment: int, way: str, fault: Fault, steps: int = STEPS) -> Plan:
    """Let a save happen at one moment, or the first steps of it, and then the fault."""
    return Plan(way, fault, {moment: [*_acts(steps), *_actions(fault)]}, seed=moment)


def changes(moments: list[str], names: Collection[str] | None = None) -> list[int]:
    """Return the moments just before a change, of entries with these names only."""
    calls = [(at, *each.partition(" ")[::2]) for at, each in enumerate(moments)]
    return [at for at, call, name in calls if call in CHANGING and (names is None or name in names)]


def play(operation: Operation, plan: Plan) -> Outcome:
    """Play one round."""
    with _place(operation, plan) as place:
        person = Person(place / "root", Random(plan.seed), operation.targets, operation.folders)
        saving = person.begin(plan.way)

        def act() -> None:
            root = operation.root(place)
            if root is not None:
                person.root = root
                next(saving, None)

        def recover(schedule: Schedule) -> Ending:
            return run(lambda moments: operation.recover(place, moments), place, schedule, act)

        endings = [run(lambda moments: operation.run(place, moments), place, plan.schedule, act)]
        free_disk(place)
        if plan.again is not None:
            endings.append(recover(plan.again))
        for _ in range(STEPS):  # whatever is not done yet
            act()
        endings.append(recover({}))
        return _judge(operation, place, person, endings)


def _judge(operation: Operation, place: Path, person: Person, endings: list[Ending]) -> Outcome:
    outcome = Outcome()
    for ending in endings:
        outcome.counts["killed"] += ending.is_killed
        if ending.is_hung or not (ending.is_killed or ending.code == 0):
            outcome.problems.append(f"{'hung' if ending.is_hung else 'crashed'}: {ending.text}")
    outcome.problems += find_problems(person)
    texts = "\n".join(each.text for each in endings)
    for save in person.saves:
        outcome.counts["saves"] += 1
        where = find_save(person.root, save, lambda: operation.stored(place))
        outcome.counts[where] += 1
        if where == "lost" and save.way == "mmap" and not person.root.exists():
            # docs/undo.md says it: nobody can tell that a mapping on a tmpfs was written after it
            # is closed, and a copy in which nothing else was changed is removed
            outcome.counts["unseen"] += 1
        elif where in ("lost", "hidden"):
            outcome.problems.append(f"{where}: {save.way} at {save.path}")
        elif save.attribute and save.path in operation.deletes:
            outcome.counts["deleted"] += 1
        elif where in ("in history", "changed"):
            outcome.counts["named" if save.path in texts else "not named"] += 1
            outcome.problems += _regain(operation, place, person.root, save)
    return outcome


def _regain(operation: Operation, place: Path, root: Path, save: Save) -> Iterator[str]:
    """Get a save back as a user would; yield what is wrong if that does not work."""
    regain = operation.regain
    if regain is None:
        yield f"no way back: {save.way} at {save.path}"
        return
    ending = run(lambda _: regain(place, save), place, {}, lambda: None)
    if find_save(root, save, lambda: ()) not in ("there", "elsewhere"):
        yield f"no way back: {save.way} at {save.path}: {ending.text}"


@contextmanager
def _place(operation: Operation, plan: Plan) -> Iterator[Path]:
    """Make a directory with the project in it; on a small disk if it is to be filled."""
    with ExitStack() as stack:
        place = stack.enter_context(temporary(light=True))
        if plan.fault == "full" and is_root():  # nobody else can mount
            stack.enter_context(mounted(place, _SMALL_DISK))
        root = place / "root"
        root.mkdir()
        lay_out(root)
        if operation.needs_git or plan.way == "git checkout":
            make_repository(root)
        yield place


def _choose(choice: Random, moments: list[str], fault: Fault, steps: int) -> Schedule:
    changing = changes(moments) or [0]

    def moment() -> int:
        """Choose any moment, one just before a change, or one after the end."""
        kind = choice.random()
        if kind < 0.1:
            return _AFTER
        return choice.choice(changing) if kind < 0.6 else choice.randrange(len(moments))

    found: Schedule = {}
    for at in sorted(moment() for _ in range(steps)):
        found.setdefault(at, []).append("act")
    for action in _actions(fault):
        found.setdefault(choice.randrange(len(moments)), []).append(action)
    return found


def _acts(count: int) -> list[Action]:
    return ["act"] * count


def _actions(fault: Fault) -> list[Action]:
    return [_FAULTS[fault]] if fault in _FAULTS else []
