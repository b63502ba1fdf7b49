"""Small programs of the kind that models write, and the engines that run them."""

import pytest

from scripts import evaluate_programs, programs
from weakincentives.contrib.evaluation import DEFAULT_EVAL_LIMITS, ENGINES

THEMES = programs.read_programs()
ALL = [each for theme in THEMES.values() for each in theme]


def test_there_are_enough_programs_within_the_limits() -> None:
    assert len({each.name for each in ALL}) == len(ALL) == 210
    assert all(len(each.code) <= DEFAULT_EVAL_LIMITS.max_code_length for each in ALL)
    assert all(each.expected.stdout or each.expected.value for each in ALL)


def test_the_expectations_are_those_of_cpython() -> None:
    found = dict(zip((each.name for each in ALL), programs.run_in_cpython(ALL), strict=True))
    assert found == {each.name: each.expected for each in ALL}


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_runs_the_programs_that_are_stored(engine: str) -> None:
    """If this is an improvement: python -m scripts.evaluate_programs --record."""
    stored = evaluate_programs.read_stored()[engine]
    assert evaluate_programs.find_failures(engine).keys() == stored.keys()
