"""A workspace may be given by a relative path, in every sandbox."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weakincentives.sandbox import BubblewrapSandbox, LandlockSandbox, LocalSandbox, PodmanSandbox


@pytest.mark.parametrize("kind", [LocalSandbox, BubblewrapSandbox, LandlockSandbox, PodmanSandbox])
def test_a_command_runs_in_a_directory_of_the_workspace(
    kind: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if kind is PodmanSandbox:
        request.getfixturevalue("default_image")
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path)
    with kind(".") as sandbox:
        done = sandbox.exec(["sh", "-c", "echo 1 > file; ls .."], cwd="inner")
    assert (done.stdout, done.stderr) == ("inner\n", "")
    assert (tmp_path / "inner" / "file").read_text() == "1\n"
