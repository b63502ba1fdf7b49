"""Hogs and ways out, tried in each engine: SAFETY section H."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.safety import evaluate_attacks as attacks
from tests.safety.escapes import LONG, SECRET
from tests.safety.hostile_code import ESCAPES, HOGS, REACHED, STOLEN
from tests.sizes import size
from weakincentives.contrib.evaluation import ENGINES, EvalLimits, EvalParams, EvalResult, Evaluator

QUICK_HOGS = ("loop that catches everything", "growing list", "output flood")
NOT_IN_CPYTHON = {
    *("closure of a function that is given", "breakpoint", "XML file", "configuration file"),
    *("open of a module", "file of a module"),
}
"""Ways to internals that end before them in CPython too; all others show that the code works."""
LIMITS = EvalLimits(max_seconds=1.0)
"""Short, because many hogs use all of it; `evaluate_attacks` gives them five seconds."""
ENDLESS = {
    *("infinite loop", "loop that catches everything", "tower of powers", "regex backtracking"),
    *("digits of a huge number", "deep recursion that catches everything", "endless range"),
    *("deeply nested value", "comparison that never ends", "repr that never ends", "sleep"),
    *("threads", "signals ignored", "output flood of short lines", "error output flood"),
    "searches in an endless loop",
}
"""Hogs that go on until their time is up, whenever that is, at least in one of the engines.

Others need a second to reach another limit, or to show whether they keep this process busy.
"""
SHORT = EvalLimits(max_seconds=size(short=0.25, long=1.0))
PATIENT = EvalLimits(max_seconds=LONG)
"""For what ends by itself, on a busy machine too."""


def check_hog(arena: attacks.Arena, name: str, idle: list[str]) -> None:
    limited = Evaluator(arena.evaluator.engine, limits=SHORT if name in ENDLESS else LIMITS)
    result, cost = attacks.measure(replace(arena, evaluator=limited), HOGS[name])
    assert cost.seconds < LONG
    assert cost.growth < attacks.MAX_GROWTH
    assert cost.beats > 0 or cost.seconds < 1, "the call held the interpreter"
    assert max(map(len, (result.stdout, result.stderr, result.value_repr or ""))) < 5_000
    assert sum(map(len, result.globals.values())) <= LIMITS.max_globals_length
    attacks.await_idle(idle)
    with_time = Evaluator(arena.evaluator.engine, limits=PATIENT)
    assert with_time.evaluate(EvalParams("6 * 7"), arena.workspace).value_repr == "42"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hog_is_stopped(engine: str) -> None:
    with attacks.open_arena(engine) as arena:
        idle = attacks.find_idle(arena)
        for name in QUICK_HOGS:
            check_hog(arena, name, idle)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_every_other_hog_is_stopped(engine: str) -> None:
    with attacks.open_arena(engine) as arena:
        idle = attacks.find_idle(arena)
        for name in (each for each in HOGS if each not in QUICK_HOGS):
            check_hog(arena, name, idle)


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_gets_out(engine: str) -> None:
    """In CPython the code reaches all internals that it tries, and still gets nothing outside."""
    reached: set[str] = set()
    got: dict[str, str] = {}
    with attacks.open_arena(engine, limits=PATIENT) as arena:
        for name, code in ESCAPES.items():
            result = arena.run(code)
            got |= {name: loot} if (loot := arena.find_loot(result)) else {}
            reached |= {name} if REACHED in result.stdout else set()
    assert got == {}
    if engine == "python":
        tried = {name for name, code in ESCAPES.items() if '"REA"' in code}
        assert tried - reached == NOT_IN_CPYTHON


@pytest.fixture(scope="module")
def arena() -> Iterator[attacks.Arena]:
    with attacks.open_arena("python") as arena:
        yield arena


def result(stdout: str) -> EvalResult:
    return EvalResult(None, stdout, "", {}, (), ())


@pytest.mark.parametrize("stdout", [SECRET, STOLEN])
def test_loot_in_the_output_is_found(arena: attacks.Arena, stdout: str) -> None:
    assert arena.find_loot(result(stdout))
    assert not arena.find_loot(result("nothing"))


def test_loot_outside_is_found_and_removed(arena: attacks.Arena) -> None:
    (arena.stage.directory / "planted").touch()
    assert arena.find_loot(result("")) == "wrote outside"
    arena.stage.connections.append("hello")
    assert arena.find_loot(result("")) == "connected"
    arena.stage.secret.write_text("x")
    assert arena.find_loot(result("")) == "changed the secret"
    assert arena.find_loot(result("")) is None
