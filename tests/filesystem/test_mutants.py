"""Mutation tests of the suites: every mutant of mutants/table.py must fail its test."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.filesystem.mutants.mutant import Mutant
from tests.filesystem.mutants.suites import CAPABILITY_SUITES, PROTOCOL_SUITES
from tests.filesystem.mutants.table import BROAD, KILLERS, MUTANTS, SOUND, class_name
from weakincentives.filesystem.testing import FilesystemProtocolTests

ROOT = Path(__file__).parents[2]
MODULE = "tests/filesystem/mutants/table.py"

Report = Mapping[str, Mapping[str, bool]]
"""By test class, and by test function and by single case: whether all of it passed."""


def run_table(written: Path) -> Report:
    """Return the results of running the table in a separate process.

    A mutant gets the test that must fail; the sound backend gets all tests of its suites; those
    that are wrong in many ways get the tests that no mutant has to fail.
    """
    whole = [class_name(each) for each in SOUND]
    killers = [f"{class_name(each)}::{each.killer}" for each in MUTANTS]
    rest = [
        f"{class_name(each)}::{name}"
        for each in BROAD
        for name in dir(each.suite)
        if name.startswith("test_") and name not in KILLERS
    ]
    wanted = [f"{MODULE}::{name}" for name in (*whole, *dict.fromkeys(killers), *rest)]
    # plain: thousands of failures, and nobody reads their explanations
    options = ["-q", "-p", "no:cacheprovider", "--tb=no", "-n0", "--assert=plain"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--junitxml={written}", *wanted],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    found: dict[str, dict[str, bool]] = {}
    for case in ElementTree.parse(written).iter("testcase"):
        owner = case.attrib["classname"].rpartition(".")[2]
        name = case.attrib["name"]
        passed = not case.findall("failure") and not case.findall("error")
        tests = found.setdefault(owner, {})
        for test in {name, name.partition("[")[0]}:
            tests[test] = tests.get(test, True) and passed
    return found


@pytest.mark.slow
def test_every_mutant_fails_where_it_should_and_the_sound_backend_does_not(tmp_path: Path):
    report = run_table(tmp_path / "mutants.xml")
    survivors = [each for each in MUTANTS if report[class_name(each)][each.killer]]
    assert [f"{each.backend.__name__}-{each.killer}" for each in survivors] == []
    for sound in SOUND:
        check_sound(report, sound)
    check_every_test_fails_for_some_mutant(report)


def check_sound(report: Report, sound: Mutant) -> None:
    tests = report[class_name(sound)]
    failed = [test for test, passed in tests.items() if not passed]
    assert (sound.suite.__name__, failed) == (sound.suite.__name__, [])
    assert len(tests) >= 4


def check_every_test_fails_for_some_mutant(report: Report) -> None:
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
    assert FilesystemProtocolTests.__bases__ == PROTOCOL_SUITES
