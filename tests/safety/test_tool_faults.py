"""A tool that changes many files, hit at every step: files and session are old or new."""

import errno
import hashlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sizes import size
from weakincentives.adapters import ToolCall, ToolExecutor
from weakincentives.filesystem import BaseFilesystem, HostFilesystem
from weakincentives.posix import fault_hook
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session


@dataclass(frozen=True)
class Rewrite:
    text: str


@dataclass(frozen=True)
class Note:
    text: str


def rewrite(params: Rewrite, *, context: ToolContext) -> ToolResult[str]:
    """Change files in every way that there is."""
    fs = context.filesystem
    assert isinstance(fs, BaseFilesystem)
    fs.write("a.txt", params.text)
    context.session[Note].append(Note("a"))
    fs.write("new/deep/file.txt", params.text)
    fs.write("log.txt", params.text, mode="append")
    fs.delete("old", recursive=True)
    fs.move("b.txt", "moved/b.txt")
    fs.move("dir", "renamed")
    fs.write("renamed/x", params.text)
    fs.copy("renamed", "copied")
    fs.mkdir("empty/er")
    context.session[Note].append(Note("all"))
    return ToolResult("done")


TOOL = Tool("rewrite", "Changes files in every way.", rewrite)
OLD, NEW = (Note("start"),), (Note("start"), Note("a"), Note("all"))


def plant(root: Path) -> None:
    for path in ("a.txt", "b.txt", "log.txt", "old/one", "old/two/three", "dir/x", "dir/y/z"):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"old {path}")
    (root / "b.txt").chmod(0o600)


def tree_hash(root: Path) -> str:
    """Return a hash of every name, kind, mode and byte, by our own means.

    What is out of sight, and removed by the next instance, is not looked at.
    """
    digest = hashlib.sha256()
    for top, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".wink-tmp-"))
        for name in sorted(folders + files):
            path = Path(top, name)
            digest.update(str(path.relative_to(root)).encode())
            digest.update(oct(path.lstat().st_mode).encode())
            if path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()


def executor_on(fs: HostFilesystem) -> tuple[ToolExecutor, Session]:
    session = Session()
    session[Note].append(Note("start"))
    context = ToolContext(None, None, None, session, filesystem=fs)
    return ToolExecutor([TOOL], context=context), session


CALL = ToolCall("rewrite", {"text": "new"})


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str, str]:
    """The points that the tool passes, and the hashes of the tree before and after."""
    root = tmp_path_factory.mktemp("model") / "root"
    root.mkdir()
    plant(root)
    before = tree_hash(root)
    passed: list[str] = []
    with HostFilesystem(root, git_dir=root.parent / "store") as fs:
        executor, _ = executor_on(fs)
        with fault_hook(passed.append):
            assert executor.execute(CALL).result.success
    return passed, before, tree_hash(root)


def at(step: int, act: Callable[[], None]) -> Callable[[str], None]:
    """Return a hook that does `act` at the `step`-th point."""
    left = [step]

    def hook(_: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            act()

    return hook


def fail(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


ERRORS = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EIO, "Input/output error"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", ERRORS, ids=["full", "broken", "interrupted"])
def test_an_error_at_any_step_leaves_old_or_new(
    tmp_path: Path, steps: tuple[list[str], str, str], error: BaseException
):
    points, before, after = steps
    for step in range(len(points)):
        root = tmp_path / f"root-{step}"
        root.mkdir()
        plant(root)
        with HostFilesystem(root, git_dir=tmp_path / f"store-{step}") as fs:
            executor, session = executor_on(fs)
            try:
                with fault_hook(at(step, fail(error))):
                    executor.execute(CALL)
            except (OSError, KeyboardInterrupt):
                pass
            notes = session[Note].all()
            assert (tree_hash(root), notes) in {(before, OLD), (after, NEW)}, points[step]
            assert len(session[ToolInvoked].all()) == 1
            assert executor.execute(CALL).result.success or notes == NEW


@pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning")
def test_a_kill_at_any_step_leaves_old_or_new(tmp_path: Path, steps: tuple[list[str], str, str]):
    points, before, after = steps
    for step in range(0, len(points), size(3, 1)):
        root, store = tmp_path / f"root-{step}", tmp_path / f"store-{step}"
        root.mkdir()
        plant(root)
        child = os.fork()
        if not child:
            fs = HostFilesystem(root, git_dir=store)
            with fault_hook(at(step, lambda: os.kill(os.getpid(), signal.SIGKILL))):
                executor_on(fs)[0].execute(CALL)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        with HostFilesystem(root, git_dir=store) as fs:
            assert tree_hash(root) in {before, after}, points[step]
            fs.write("goes on", "")
