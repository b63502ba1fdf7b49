"""A process killed in a savepoint is rolled back, even if recovery is killed too."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.safety.places import ROOT
from tests.safety.savepoints import WORKS
from tests.sizes import size

ROUNDS = size(25, 2_000)


def run(*arguments: str | int | Path) -> Any:
    command = [sys.executable, "-m", "tests.safety.kill_savepoints", *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", WORKS)
def test_a_kill_at_any_point_takes_back_what_was_not_released(
    light_directory: Path, name: str
) -> None:
    seen = run("points", name, light_directory)
    print(f"{name}: {seen['rounds']} kills, {seen['openers']} openers too, {seen['outcomes']}")
    assert seen["defects"] == []
    assert seen["rounds"] >= size(7, 15)
    assert seen["leftovers"] > seen["rounds"] // 2
    assert seen["openers"] >= size(2, 3)
    assert seen["outcomes"]["before"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_kill_at_any_moment_takes_back_what_was_not_released(light_directory: Path) -> None:
    seen = run("random", ROUNDS, light_directory)
    print(f"{seen['rounds']} kills, {seen['openers']} openers too, {seen['outcomes']}")
    assert seen["defects"] == []
    assert seen["rounds"] == ROUNDS
    assert seen["leftovers"] > ROUNDS // 10
    assert seen["openers"] > ROUNDS // 10
