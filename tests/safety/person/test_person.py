"""The person beside the agent: whoever saves meanwhile, in whatever way, loses nothing.

Every operation that changes a directory runs beside a person who saves in eleven ways, at any
moment of it, with kills, interrupts and a full disk. `--long` plays 5,000 rounds; `WINK_SEED`
begins elsewhere.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.safety.person.mcp_operations import MCP
from tests.safety.person.moments import Moments
from tests.safety.person.operations import FILESYSTEM, Operation
from tests.safety.person.project import text
from tests.safety.person.review_operations import REVIEW
from tests.safety.person.rounds import (
    STEPS,
    Fault,
    Plan,
    changes,
    plan_at,
    play,
    random_plan,
    rehearse,
)
from tests.safety.person.run_operations import RUNS
from tests.safety.person.saves import WAYS
from tests.sizes import size

OPERATIONS: Mapping[str, Operation] = {**FILESYSTEM, **MCP, **REVIEW, **RUNS}
Run = Callable[[Path, Moments], str]
FIRST = int(os.environ.get("WINK_SEED", "0"))
ROUNDS = size(4, 160)
"""Random rounds for each operation; more where it takes more to play every way."""
POINTS = size(3, 60)
"""Points of each operation at which a whole save happens, and a fault of each kind in turn."""


@cache
def moments_of(name: str) -> list[str]:
    return rehearse(OPERATIONS[name])


def faults_of(name: str) -> list[Fault]:
    faults: list[Fault] = ["none", "kill", "full"]
    if OPERATIONS[name].has_interrupts:
        faults.append("interrupt")
    return faults


def plans_of(name: str) -> list[Plan]:
    """Return the rounds of an operation: each way once or more, whatever comes first."""
    first = list(OPERATIONS).index(name) % len(WAYS)
    ways = islice(cycle(WAYS), first, None)
    plans = list(plans_at_points(name, ways))
    count = max(ROUNDS // OPERATIONS[name].cost, len(WAYS) - len(plans))
    return [*plans, *random_plans(name, islice(ways, count))]


def random_plans(name: str, ways: Iterator[str]) -> Iterator[Plan]:
    """Choose the moments: each way with one fault, then again with another."""
    faults = faults_of(name)
    for number, way in enumerate(ways):
        seed = FIRST + number
        fault = faults[(number + number // len(WAYS)) % len(faults)]
        yield random_plan(moments_of(name), way, fault, seed)


def plans_at_points(name: str, ways: Iterator[str]) -> Iterator[Plan]:
    """Let a save happen just before each change, and at each fault point; then a fault."""
    operation, moments = OPERATIONS[name], moments_of(name)
    paths = (*operation.targets, *operation.folders)
    entries = {part for each in paths for part in each.split("/")}
    points = [at for at, each in enumerate(moments) if "." in each.partition(" ")[0]]
    points += changes(moments, entries)
    step = max(1, len(points) * operation.cost // POINTS)
    # every fault with every way: their numbers have no common divisor
    faults = cycle(faults_of(name))
    for at in sorted(points)[FIRST % step :: step]:
        # the rest of a save may come when the operation has ended: the file is open meanwhile
        yield plan_at(at, next(ways), next(faults), steps=STEPS if at % 3 else 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_save_is_lost_and_no_file_is_a_mix(name: str) -> None:
    counts: Counter[str] = Counter()
    problems: list[str] = []
    plans = plans_of(name)
    assert {plan.way for plan in plans} == set(WAYS)
    for plan in plans:
        outcome = play(OPERATIONS[name], plan)
        counts += outcome.counts
        problems += [f"{each}\n  {plan}" for each in outcome.problems]
    print(name, dict(counts))
    assert not problems, "\n".join([f"{len(problems)} problems, {dict(counts)}", *problems])
    assert counts["saves"] >= ROUNDS // 4


# --- the test itself ---


def careless(place: Path, moments: Moments) -> str:
    """Look, then overwrite: the oldest mistake."""
    path = place / "root" / "a.txt"
    with moments.count():
        path.read_text()
        moments.mark("looked")
        path.write_text(text("a.txt", "agent", "agent"))
        moments.mark("written")
    return ""


def mixing(place: Path, moments: Moments) -> str:
    """Write into the file itself, in two parts."""
    with moments.count(), (place / "root" / "a.txt").open("r+b", buffering=0) as file:
        moments.mark("opened")
        file.seek(100)
        file.write(b"half")
        moments.mark("half")
    return ""


@pytest.mark.parametrize(
    ("work", "way", "fact"), [(careless, "rename over", "lost"), (mixing, "chmod", "mixed")]
)
def test_a_careless_operation_is_found(work: Run, way: str, fact: str) -> None:
    operation = Operation(work, lambda place, moments: "", targets=("a.txt",))
    found = [
        problem
        for at in range(len(rehearse(operation)))
        for problem in play(operation, plan_at(at, way, "none")).problems
    ]
    assert any(each.startswith(fact) for each in found), found
