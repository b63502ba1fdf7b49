"""A recorded run that is killed anywhere loses at most the step in flight."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.safety.places import ROOT
from tests.sizes import size

ROUNDS = size(40, 2_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_that_is_killed_anywhere_can_be_read_and_continued(light_directory: Path) -> None:
    command = [sys.executable, "-m", "tests.safety.kill_timeline", str(ROUNDS), light_directory]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    print(f"{seen['rounds']} rounds, {seen['steps']} steps, {seen['torn']} torn, {seen['kinds']}")
    assert seen["defects"] == []
    assert seen["rounds"] == ROUNDS
    assert seen["steps"] > ROUNDS
    assert len(seen["kinds"]) >= 3
