"""What commands in bubblewrap change is in the next snapshot, usually without a walk."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.filesystem.host.test_watcher import Workspace, observe_walks
from tests.sizes import size
from weakincentives.filesystem import FilesystemEvent, FileWritten
from weakincentives.runtime.rollback import begin_rollback
from weakincentives.sandbox import BubblewrapSandbox

MAP = "import mmap; f = open('a/x', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[0:3] = b'map'"
SCRIPTS = {
    "cat a/x": False,
    "echo 1 > a/x": False,
    "echo 2 >> a/y; echo 3 > a/b/new": False,
    "rm a/b/x": False,
    "mv a/x c/moved": False,
    "sed -i s/old/new/ a/x": False,
    "chmod 755 a/x": False,
    "ln -sf elsewhere a/link": False,
    "truncate -s 1 a/x": False,
    f'python3 -c "{MAP}"': False,
    "(sleep 60; echo late > a/x) & echo now > a/x": False,
    "ln a/x $HOME/l || echo no > a/y": False,
    "mkdir -p d/e; echo 1 > d/e/f": True,
    "mv a d; echo 1 > d/b/x": True,
    "ln a/x l; echo linked > l; rm l": True,
    "mkdir d; ln a/x d/l; echo linked > d/l; rm -r d": True,
}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    made = Workspace(tmp_path)
    observe_walks(made, monkeypatch)
    made.prepare()
    yield made
    made.files.close()


@pytest.fixture
def sandbox(workspace: Workspace) -> Iterator[BubblewrapSandbox]:
    with BubblewrapSandbox(workspace.files, grace=0.1) as made:
        yield made


def paths(events: Sequence[FilesystemEvent]) -> list[str]:
    return [each.path for each in events if isinstance(each, FileWritten)]


@pytest.mark.parametrize(("script", "needs_walk"), SCRIPTS.items())
def test_a_snapshot_after_a_command_is_complete(
    workspace: Workspace, sandbox: BubblewrapSandbox, script: str, needs_walk: bool
) -> None:
    sandbox.exec(["sh", "-c", script])
    workspace.snapshot()
    assert workspace.has_walked == needs_walk


def test_while_a_process_runs_in_the_background_every_snapshot_is_a_walk(
    workspace: Workspace, sandbox: BubblewrapSandbox
) -> None:
    process = sandbox.start(["sh", "-c", "echo up; cat; sleep 600"])
    workspace.snapshot()
    assert workspace.has_walked
    process.stop()
    workspace.snapshot()


def test_a_tool_call_that_runs_a_command_needs_no_walk(
    workspace: Workspace, sandbox: BubblewrapSandbox
) -> None:
    call = begin_rollback(workspace.files, bypasses_filesystem=True)
    sandbox.exec(["sh", "-c", "echo 1 > a/x; echo 2 > a/new"])
    assert paths(call.events()) == ["a/new", "a/x"]
    call.rollback()
    workspace.snapshot()
    assert not workspace.has_walked
    assert (workspace.root / "a/x").read_text() == "old"


def test_after_a_tool_call_that_changes_files_by_other_means_everything_is_checked(
    workspace: Workspace,
) -> None:
    call = begin_rollback(workspace.files, bypasses_filesystem=True)
    (workspace.root / "a/x").write_text("by the tool itself")
    assert paths(call.events()) == ["a/x"]
    call.release()
    workspace.snapshot()
    assert workspace.has_walked


def test_random_commands_are_found_completely(
    workspace: Workspace, sandbox: BubblewrapSandbox
) -> None:
    choice = random.Random(7)
    quick = [each for each in SCRIPTS if "sleep" not in each]
    for _ in range(size(12, 400)):
        sandbox.exec(["sh", "-c", "; ".join(choice.sample(quick, choice.randint(1, 3)))])
        if choice.random() < 0.8:
            workspace.snapshot()
