"""Mutation tests of the suites: every mutant of mutants/table.py must fail its test."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.filesystem.mutants.mutant import Mutant
from tests.filesystem.mutants.table import BROAD, MUTANTS, SOUND, class_name
from weakincentives.filesystem.testing.suites import CAPABILITY_SUITES, PROTOCOL_SUITES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MODULE = "tests/filesystem/mutants/table.py"

Report = Mapping[str, Mapping[str, bool]]
"""By test class, and by test function and by single case: whether all of it passed."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The results of running the table in a separate process.

    A mutant gets the test that must fail; the sound backend and those that are wrong in
    many ways get all tests of their suites.
    """
    # one worker runs it, the others reuse the report
    shared = tmp_path_factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else None
    place = shared or tmp_path_factory.mktemp("mutants")
    written = place / "mutants.xml"
    with (place / "mutants.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not written.exists():
            _run_table(written)
    found: dict[str, dict[str, bool]] = {}
    for case in ElementTree.parse(written).iter("testcase"):
        owner = case.attrib["classname"].rpartition(".")[2]
        name = case.attrib["name"]
        passed = not case.findall("failure") and not case.findall("error")
        tests = found.setdefault(owner, {})
        for test in {name, name.partition("[")[0]}:
            tests[test] = tests.get(test, True) and passed
    return found


def _run_table(written: Path) -> None:
    """Run the table; the report file appears when it is complete."""
    part = written.with_suffix(".part")
    whole = [class_name(each) for each in (*SOUND, *BROAD)]
    killers = [f"{class_name(each)}::{each.killer}" for each in MUTANTS]
    wanted = [f"{MODULE}::{name}" for name in dict.fromkeys((*whole, *killers))]
    # plain: thousands of failures, and nobody reads their explanations
    options = ["-q", "-p", "no:cacheprovider", "--tb=no", "-n0", "--assert=plain"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--junitxml={part}", *wanted],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    part.rename(written)


def case_id(mutant: Mutant) -> str:
    return f"{mutant.backend.__name__}-{mutant.killer}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=case_id)
def test_a_mutant_fails_where_it_should(report: Report, mutant: Mutant):
    tests = report[class_name(mutant)]
    assert tests[mutant.killer] is False


@pytest.mark.parametrize("sound", SOUND, ids=lambda sound: sound.suite.__name__)
def test_the_sound_backend_passes_the_same_run(report: Report, sound: Mutant):
    tests = report[class_name(sound)]
    assert [test for test, passed in tests.items() if not passed] == []
    assert len(tests) >= 4


def test_every_test_of_the_suite_fails_for_some_mutant(report: Report):
    sound = {class_name(each) for each in SOUND}
    every = {test for owner in sound for test in report[owner] if "[" not in test}
    failed = {
        test
        for owner, tests in report.items()
        for test, passed in tests.items()
        if owner not in sound and not passed
    }
    assert sorted(every - failed) == []


def test_every_suite_has_a_mutant():
    assert {mutant.suite for mutant in MUTANTS} == {*PROTOCOL_SUITES, *CAPABILITY_SUITES}
