"""Directories for the workspaces of sections: removed when they are not in use, and only then."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from weakincentives.sandbox.container.overlays import Overlay, prune_overlays

PROGRAM = """
import sys
from pathlib import Path
from weakincentives.sandbox.container.overlays import Overlay
overlay = Overlay(Path(sys.argv[1]))
(overlay.workspace / "file").write_text("1")
print(overlay.workspace.parent, flush=True)
if sys.argv[2:]:
    sys.stdin.read()
"""


def start(cache: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, str(cache), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_an_overlay_is_removed_with_its_content(tmp_path: Path) -> None:
    overlay = Overlay(tmp_path)
    (overlay.workspace / "deep").mkdir(mode=0)
    overlay.remove()
    overlay.remove()
    assert list((tmp_path / "podman").iterdir()) == []


def test_the_overlay_of_a_process_that_runs_is_kept(tmp_path: Path) -> None:
    with start(tmp_path, "wait") as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        assert prune_overlays(tmp_path) == []
        assert Path(path, "workspace", "file").exists()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert prune_overlays(tmp_path) == [path]
    assert not Path(path).exists()
    assert prune_overlays(tmp_path) == []


def test_the_end_of_a_process_removes_its_overlay(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        path = process.communicate()[0].strip()
    assert not Path(path).exists()


def test_there_may_be_nothing_to_prune(tmp_path: Path) -> None:
    assert prune_overlays(tmp_path / "missing") == []
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman" / "file").write_text("not an overlay")
    assert prune_overlays(tmp_path) == []
