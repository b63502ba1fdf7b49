"""Captures: their content, and which files they read."""

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sizes import size
from weakincentives.filesystem.host.files import identity_of, is_stable
from weakincentives.filesystem.host.snapshots.capture import Walk, capture
from weakincentives.filesystem.host.snapshots.nodes import CapturedDirectory
from weakincentives.gitstore.objects import ObjectStore
from weakincentives.posix.rooted import RootedDirectory

NAMES = ("a", "b", "a.b", "a-b", ".git")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)
ACTIONS = ("write", "append", "mkdir", "link", "pipe", "delete", "move", "executable", "private")
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), PATHS, PATHS, st.binary(max_size=3)), max_size=12
)


class Workspace:
    """A directory with a store beside it."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.root.mkdir()
        (base / "objects" / "pack").mkdir(parents=True)
        self.objects = ObjectStore(base / "objects", durable=False)
        self.directory = RootedDirectory(self.root)
        self.touched: set[str] = set()

    def capture(
        self, prior: CapturedDirectory | None = None, touched: set[str] | None = None
    ) -> CapturedDirectory:
        with self.objects.begin_pack() as batch:
            found = capture(self.directory, batch, prior, touched)
            batch.finish()
        return found

    def operate(self, action: str, path: str, other: str, data: bytes) -> None:
        """Do something and remember which paths it touched; impossible things do nothing."""
        here, there = self.root / path, self.root / other
        if self._is_direct(here) and self._is_direct(there):
            with suppress(OSError, shutil.Error):
                self._do(action, here, there, data)
        self.touched |= {path, other} if action == "move" else {path}

    def _is_direct(self, path: Path) -> bool:
        """Return whether no link is on the way, which would lead to what is not touched."""
        return path.parent.resolve() == path.parent

    def _do(self, action: str, here: Path, there: Path, data: bytes) -> None:
        match action:
            case "write" | "append" if not (here.is_fifo() or here.is_symlink()):
                here.parent.mkdir(parents=True, exist_ok=True)
                with here.open("ab" if action == "append" else "wb") as file:
                    file.write(data)
            case "mkdir":
                here.mkdir(parents=True)
            case "link":
                here.symlink_to(data.hex() or "nowhere")
            case "pipe":
                os.mkfifo(here)
            case "delete":
                delete(here)
            case "move":
                here.rename(there)
            case "executable" | "private" if not here.is_symlink():
                here.chmod(0o755 if action == "executable" else 0o700)
            case _:
                pass


def delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def told(found: CapturedDirectory) -> tuple[str, dict[str, int], tuple[str, ...]]:
    """Return everything that a capture says."""
    return found.id, found.modes, found.specials


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    made = Workspace(tmp_path)
    yield made
    made.directory.close()


@pytest.fixture(scope="module")
def short_wait() -> Iterator[None]:
    """Trust a stat after two ticks of the clock, so that a test need not wait long for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weakincentives.filesystem.host.files._RACY_NS", 20_000_000)
        yield


def settle(root: Path) -> None:
    """Wait until any change of a directory will show in its stat."""
    for path in (root, *root.rglob("*")):
        while path.is_dir() and not is_stable(identity_of(path.lstat())):
            time.sleep(0.001)


@settings(max_examples=size(25, 300))
@given(before=OPERATIONS, after=OPERATIONS)
@pytest.mark.usefixtures("short_wait")
def test_names_are_remembered_as_long_as_they_are_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[tuple[str, str, str, bytes]],
    after: list[tuple[str, str, str, bytes]],
) -> None:
    base = tmp_path_factory.mktemp("capture")
    workspace = Workspace(base)
    try:
        for operation in before:
            workspace.operate(*operation)
        settle(workspace.root)
        found = workspace.capture(workspace.capture())
        for operation in after:
            workspace.operate(*operation)
            found = workspace.capture(found)
        assert told(found) == told(workspace.capture())
    finally:
        workspace.directory.close()
        shutil.rmtree(base)


@pytest.mark.usefixtures("short_wait")
def test_a_directory_is_listed_again_only_if_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path)
    for name in ("a", "b"):
        (workspace.root / name).mkdir()
        (workspace.root / name / "file").write_text(name)
        (workspace.root / name / "link").symlink_to("file")
        os.mkfifo(workspace.root / name / "pipe")
    settle(workspace.root)
    found = workspace.capture()
    listed: list[str] = []
    scandir = os.scandir

    def noted(descriptor: int) -> object:
        listed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        return scandir(descriptor)

    monkeypatch.setattr(os, "scandir", noted)
    assert workspace.capture(found) is found
    assert listed == []
    old = (workspace.root / "b").stat()
    (workspace.root / "b" / "new").touch()
    os.utime(workspace.root / "b", ns=(old.st_atime_ns, old.st_mtime_ns))  # this cannot hide it
    (workspace.root / "a" / "file").write_text("changed")
    again = workspace.capture(found)
    assert listed == ["b"]
    assert told(again) == told(workspace.capture())


def test_a_directory_that_has_just_changed_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weakincentives.filesystem.host.files._RACY_NS", 3_600_000_000_000)
    workspace = Workspace(tmp_path)
    (workspace.root / "0").touch()
    found = workspace.capture()
    for number in range(1, 10):  # perhaps within one tick of the clock
        (workspace.root / str(number - 1)).rename(workspace.root / str(number))
        found = workspace.capture(found)
        assert list(found.children) == [str(number)]
        assert found.identity is None  # nothing to rely on


@settings(max_examples=size(50, 500))
@given(before=OPERATIONS, after=OPERATIONS, again=OPERATIONS)
def test_looking_at_what_was_touched_finds_what_a_walk_finds(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[tuple[str, str, str, bytes]],
    after: list[tuple[str, str, str, bytes]],
    again: list[tuple[str, str, str, bytes]],
) -> None:
    base = tmp_path_factory.mktemp("capture")
    workspace = Workspace(base)
    try:
        for operation in before:
            workspace.operate(*operation)
        found = workspace.capture()
        for operations in (after, again):
            workspace.touched.clear()
            for operation in operations:
                workspace.operate(*operation)
            before_that, found = found, workspace.capture(found, workspace.touched)
            anew = workspace.capture()
            assert told(found) == told(anew)
            assert told(workspace.capture(found)) == told(found)
            assert found.notes == anew.notes
            assert (found.notes == before_that.notes) == (told(anew)[1:] == told(before_that)[1:])
    finally:
        workspace.directory.close()
        shutil.rmtree(base)


def test_nothing_is_looked_at_but_what_was_touched(workspace: Workspace) -> None:
    for path in ("a/x", "a/y", "b/x"):
        workspace.operate("write", path, "", b"1")
    before = workspace.capture()
    for path in ("a/x", "a/y", "b/x"):
        workspace.operate("write", path, "", b"2")
    found = workspace.capture(before, {"a/x"})
    a, old = found.children["a"], before.children["a"]
    assert isinstance(a, CapturedDirectory)
    assert isinstance(old, CapturedDirectory)
    assert found.children["b"] is before.children["b"]
    assert a.children["y"] is old.children["y"]
    assert a.children["x"].id != old.children["x"].id


@pytest.mark.parametrize("touched", [set[str](), {"a/x"}, {"a"}, {"missing"}, {"missing/below"}])
def test_where_nothing_changed_the_same_objects_are_returned(
    workspace: Workspace, touched: set[str]
) -> None:
    workspace.operate("write", "a/x", "", b"1")
    before = workspace.capture()
    assert workspace.capture(before, touched) is before


def test_a_touched_directory_is_looked_at_with_everything_below(workspace: Workspace) -> None:
    workspace.operate("write", "a/b/x", "", b"1")
    before = workspace.capture()
    workspace.operate("write", "a/b/x", "", b"2")
    workspace.operate("private", "a", "", b"")
    found = workspace.capture(before, {"a"})
    assert told(found) == told(workspace.capture())
    assert found.modes == {"a": 0o700}


def test_the_root_among_what_was_touched_means_everything(workspace: Workspace) -> None:
    before = workspace.capture()
    workspace.operate("write", "a/x", "", b"1")
    assert told(workspace.capture(before, {""})) == told(workspace.capture())


def test_temporary_names_are_not_captured_though_touched(workspace: Workspace) -> None:
    before = workspace.capture()
    workspace.operate("write", ".wink-tmp-1/x", "", b"1")
    assert workspace.capture(before, {".wink-tmp-1", ".wink-tmp-1/x"}) is before


def test_what_is_below_a_directory_that_became_a_file_or_a_link_is_gone(
    workspace: Workspace,
) -> None:
    for path in ("a/b/x", "c/d/x"):
        workspace.operate("write", path, "", b"1")
    before = workspace.capture()
    workspace.operate("delete", "a", "", b"")
    workspace.operate("write", "a", "", b"now a file")
    workspace.operate("move", "c", "e", b"")
    (workspace.root / "c").symlink_to("e")
    found = workspace.capture(before, {"a/b/x", "c/d/x", "e"})
    assert told(found) == told(workspace.capture())


def test_a_directory_that_was_not_known_is_captured_with_all_of_it(workspace: Workspace) -> None:
    before = workspace.capture()
    for name in ("x", "y"):
        workspace.operate("write", f"a/b/{name}", "", b"1")
    assert told(workspace.capture(before, {"a/b/x"})) == told(workspace.capture())


def test_sockets_and_pipes_are_told_of_where_they_appear_and_disappear(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.operate("mkdir", "a", "", b"")
    before = workspace.capture()
    monkeypatch.chdir(workspace.root / "a")  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
    os.mkfifo("p")
    found = workspace.capture(before, {"a/s", "a/p"})
    assert found.specials == ("a/p", "a/s")
    assert found.id == before.id
    workspace.operate("delete", "a/p", "", b"")
    assert workspace.capture(found, {"a/p"}).specials == ("a/s",)


class Restless(RootedDirectory):
    """A directory in which something happens right before a path is opened."""

    def __init__(self, path: Path, moment: str, happening: Callable[[], object]) -> None:
        super().__init__(path)
        self._moment = moment
        self._happening = happening

    def open_directory(self, path: str) -> int:
        self._pass(path)
        return super().open_directory(path)

    def open_parent(self, path: str) -> tuple[int, str]:
        self._pass(path)
        return super().open_parent(path)

    def open_entry(self, directory: int, name: str) -> tuple[int, os.stat_result]:
        self._pass(name)
        return super().open_entry(directory, name)

    def _pass(self, path: str) -> None:
        if path == self._moment:
            self._moment = ""
            self._happening()


def replaced(path: Path, by: Callable[[Path], object]) -> Callable[[], None]:
    def happening() -> None:
        delete(path)
        by(path)

    return happening


@pytest.mark.parametrize("name", ["file", "directory"])
@pytest.mark.parametrize(
    "by",
    [
        lambda path: None,
        lambda path: path.write_bytes(b"new"),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("elsewhere"),
        os.mkfifo,
    ],
    ids=["nothing", "file", "directory", "link", "pipe"],
)
def test_what_is_replaced_during_a_walk_is_captured_as_what_it_has_become(
    workspace: Workspace, name: str, by: Callable[[Path], object]
) -> None:
    workspace.operate("write", "file", "", b"old")
    workspace.operate("write", "directory/x", "", b"old")
    happening = replaced(workspace.root / name, by)
    workspace.directory = Restless(workspace.root, name, happening)
    found = workspace.capture()
    workspace.directory = RootedDirectory(workspace.root)
    assert told(found) == told(workspace.capture())


def test_what_is_above_wins_if_it_goes_while_what_is_below_is_looked_at(
    workspace: Workspace,
) -> None:
    for path in ("a/x", "a/y"):
        workspace.operate("write", path, "", b"1")
    before = workspace.capture()
    workspace.operate("write", "a/x", "", b"2")
    happening = replaced(workspace.root / "a", lambda path: path.write_bytes(b"now a file"))
    workspace.directory = Restless(workspace.root, "a/y", happening)
    found = workspace.capture(before, {"a/x", "a/y"})
    assert told(found) == told(workspace.capture())


def test_a_file_that_never_comes_to_rest_is_refused(workspace: Workspace) -> None:
    path = workspace.root / "x"
    path.write_bytes(b"")

    class Written(RootedDirectory):
        def open_entry(self, directory: int, name: str) -> tuple[int, os.stat_result]:
            opened = super().open_entry(directory, name)
            with path.open("ab") as file:
                file.write(b"more")
            return opened

    workspace.directory = Written(workspace.root)
    with pytest.raises(OSError, match=r"File keeps changing.*'x'"):
        workspace.capture()


def test_permissions_that_somebody_sets_during_a_capture_stay(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    closed, changed = workspace.root / "closed", workspace.root / "changed"
    for each in (closed, changed):
        each.mkdir()
        each.chmod(0o300)
    with workspace.objects.begin_pack() as batch:
        walk = Walk(workspace.directory, batch)
        for each in (closed, changed):
            walk._make_accessible(each.name)
        changed.chmod(0o750)
        walk.close()
    assert [each.stat().st_mode & 0o777 for each in (closed, changed)] == [0o300, 0o750]
