"""The image of the tests: a session that a test starts leaves it to the session that named it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FINISH = "from tests.sandbox.container_image import remove_test_image; remove_test_image()"


@pytest.mark.parametrize("tag", [None, "localhost/weakincentives-test:outer"])
def test_only_the_session_that_named_the_image_removes_it(tag: str | None, tmp_path: Path) -> None:
    podman = tmp_path / "podman"
    podman.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    podman.chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "WINK_TEST_IMAGE"}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    if tag:
        environment["WINK_TEST_IMAGE"] = tag
    subprocess.run([sys.executable, "-c", FINISH], cwd=ROOT, env=environment, check=True)
    assert (tmp_path / "calls").exists() == (tag is None)
