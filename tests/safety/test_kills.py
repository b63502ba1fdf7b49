"""A killed writer leaves the old content or the new one, and no visible leftovers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.safety.kill_loop import SCENARIOS
from tests.safety.places import ROOT
from tests.sizes import size

# where most of the time goes into hidden names, so that some kills hit one
IN_THE_MIDDLE = {"write", "append", "create", "tree"}
ROUNDS = dict.fromkeys(SCENARIOS, size(10, 1_000)) | dict.fromkeys(IN_THE_MIDDLE, size(25, 1_000))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_killed_writer_leaves_old_or_new_and_nothing_in_sight(
    light_directory: Path, scenario: str
) -> None:
    command = [sys.executable, "-m", "tests.safety.kill_loop", scenario]
    done = subprocess.run(
        [*command, str(ROUNDS[scenario]), str(light_directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    seen = json.loads(done.stdout)
    print(
        f"{scenario}: {seen['rounds']} kills, {seen['leftovers']} with leftovers, {seen['states']}"
    )
    assert seen["defects"] == []
    assert seen["rounds"] == ROUNDS[scenario]
    assert seen["steps"] > ROUNDS[scenario]
    assert seen["leftovers"] > 0 or scenario not in IN_THE_MIDDLE
