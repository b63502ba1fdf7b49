"""Every way in which a save was lost once, the tests that notice it, and a mutant that they kill.

A mutant is one change in a copy of the package. Its tests run on that copy in a process of their
own, and one of them must fail. `--long` tries all; otherwise, a part of them.
"""

import ast
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.safety.losses import LOSSES, Loss
from tests.sizes import size

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "weakincentives"
TESTS_FAILED = 1  # pytest's exit status; an import that fails has another


@cache
def functions_of(file: str) -> set[str]:
    found = ast.walk(ast.parse((ROOT / file).read_text()))
    return {each.name for each in found if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_losses_are_numbered() -> None:
    numbers = {each.number for each in LOSSES}
    assert numbers == {*range(1, len(numbers) + 1)}


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_its_tests_and_the_line_that_its_mutant_changes_are_there(loss: Loss) -> None:
    for test in loss.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions_of(file), test
    assert (PACKAGE / loss.file).read_text().count(loss.old) == 1, loss.file


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("loss", LOSSES[:: size(6, 1)], ids=str)
def test_its_mutant_is_killed(loss: Loss, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "weakincentives", ignore=shutil.ignore_patterns("*.pyc"))
    file = tmp_path / "weakincentives" / loss.file
    file.write_text(file.read_text().replace(loss.old, loss.new))
    options = ["-q", "-x", "-n0", "-p", "no:cacheprovider", "--tb=short"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *loss.tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == TESTS_FAILED, done.stdout[-3000:] + done.stderr[-1000:]
