"""No known way out of a sandbox works, for root and for an ordinary user."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.steps import ROOT
from tests.safety import escapes
from weakincentives.sandbox.bubblewrap import BubblewrapSandbox, find_bubblewrap

ISOLATED = ("bubblewrap", "bubblewrap with an allow-list", "landlock")
NOT_HARMFUL_ALONE = {
    "read a key in the environment",
    "flood the memory of the caller with output",
    "a daemon that stays",
    "outlive the timeout",
    "kill the supervisor",
}
"""What the bare host stops too, because every sandbox does."""


def attempt_all(sandbox: str) -> dict[str, str]:
    """Return the escapes that are not stopped, with what became of them."""
    results = escapes.attempt_all(sandbox)
    assert len(results) == len(escapes.ESCAPES)
    return {name: found for name, found in results.items() if found != "stopped"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sandbox", ISOLATED)
def test_every_escape_is_stopped(sandbox: str) -> None:
    assert attempt_all(sandbox) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("default_image")
def test_every_escape_is_stopped_in_a_container() -> None:
    assert attempt_all("podman") == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.root
def test_an_escape_works_where_nothing_stops_it() -> None:
    harmful = {each.name for each in escapes.ESCAPES} - NOT_HARMFUL_ALONE
    assert attempt_all("bare host") == dict.fromkeys(harmful, "possible")


@pytest.mark.slow
@pytest.mark.usefixtures("default_image")
@pytest.mark.root
def test_nobody_gets_out_either() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.safety.escapes", "--as-nobody", "bare host"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert set(results) == {each.name for each in escapes.ESCAPES}
    for name, cells in results.items():
        sandboxes = (*ISOLATED, "podman")
        assert {cells[each] for each in sandboxes} == {"stopped"}, name


@pytest.mark.root
def test_plain_bubblewrap_lets_root_remount_and_ours_does_not(tmp_path: Path) -> None:
    """What `--unshare-all` alone leaves open, on a directory of our own."""
    program = find_bubblewrap()
    assert program is not None
    target = tmp_path / "target"
    target.mkdir()
    script = f"mount -o remount,rw,bind {target}; touch {target}/planted"
    plain = [program, "--unshare-all", "--ro-bind", "/", "/", "--ro-bind", target, target]
    subprocess.run([*plain, "--", "sh", "-c", script], check=True)
    assert (target / "planted").exists()
    (target / "planted").unlink()
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with BubblewrapSandbox(workspace, readable=[target]) as ours:
        done = ours.exec(["sh", "-c", script])
    assert "Read-only file system" in done.stderr
    assert not (target / "planted").exists()
