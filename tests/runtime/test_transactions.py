"""Transactions: files and session change together, or not at all."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from weakincentives.errors import SnapshotError
from weakincentives.filesystem import (
    BaseFilesystem,
    DirectoryCreated,
    FileDeleted,
    FilesystemEvent,
    FilesystemSnapshot,
    FileWritten,
    HostFilesystem,
    InMemoryFilesystem,
    LinkCreated,
    time_limit,
)
from weakincentives.filesystem.host import SnapshotFilesystem
from weakincentives.filesystem.savepoints import SavepointError
from weakincentives.filesystem.testing import MockFilesystem
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session, append_all
from weakincentives.runtime.transactions import current_transaction, transaction


@dataclass(frozen=True)
class Note:
    text: str


class Stopped(BaseException):
    """What a handler may be left by, besides exceptions."""


@pytest.fixture
def session() -> Session:
    session = Session()
    session[Note].append(Note("first"))
    return session


@pytest.fixture(params=["memory", "host", "exclusive"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseFilesystem]:
    if request.param == "memory":
        yield InMemoryFilesystem()
        return
    root = tmp_path / "workspace"
    root.mkdir()
    exclusive = request.param == "exclusive"
    with HostFilesystem(root, git_dir=tmp_path / "store", exclusive=exclusive) as fs:
        yield fs


def state(fs: BaseFilesystem, session: Session) -> object:
    files = {each.path: fs.read(each.path).content for each in fs.glob("**")}
    folders = [each.path for each in fs.glob("**/")]
    return files, folders, session[Note].all()


def work(fs: BaseFilesystem, session: Session) -> None:
    fs.write("a", "changed")
    fs.write("new/file", "new")
    fs.delete("b", recursive=True)
    fs.move("c", "d")
    session[Note].append(Note("second"))


def plant(fs: BaseFilesystem) -> None:
    for path in ("a", "b/x", "b/y/z", "c"):
        fs.write(path, f"old {path}")


def test_success_keeps_everything(fs: BaseFilesystem, session: Session):
    plant(fs)
    with transaction(session, fs):
        work(fs, session)
    assert fs.read("a").content == "changed"
    assert session[Note].all() == (Note("first"), Note("second"))


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyboardInterrupt(), SystemExit(), Stopped(), GeneratorExit()]
)
def test_any_other_way_out_takes_everything_back(
    fs: BaseFilesystem, session: Session, error: BaseException
):
    plant(fs)
    before = state(fs, session)
    with pytest.raises(type(error)), transaction(session, fs):
        work(fs, session)
        raise error
    assert state(fs, session) == before


def test_it_can_be_taken_back_without_an_exception(fs: BaseFilesystem, session: Session):
    plant(fs)
    before = state(fs, session)
    with transaction(session, fs) as step:
        work(fs, session)
        step.rollback()
    assert state(fs, session) == before


def test_logs_stay(fs: BaseFilesystem, session: Session):
    with pytest.raises(ValueError, match="no"), transaction(session, fs):
        session.dispatch(ToolInvoked(tool="x"))
        raise ValueError("no")
    assert [each.tool for each in session[ToolInvoked].all()] == ["x"]


def listen(session: Session) -> list[FilesystemEvent]:
    session[FileWritten].register(FileWritten, append_all)
    told: list[FilesystemEvent] = []
    for kind in (FileWritten, FileDeleted, DirectoryCreated, LinkCreated):
        session.bus.subscribe(kind, told.append)
    return told


def test_the_session_learns_of_changes_after_success_only(fs: BaseFilesystem, session: Session):
    told = listen(session)
    with transaction(session, fs):
        fs.write("a", "1")
        assert told == []
    assert [str(each) for each in told] == ["a created"]
    assert [each.path for each in session[FileWritten].all()] == ["a"]
    with transaction(session, fs) as step:
        fs.write("b", "1")
        step.rollback()
    assert len(told) == 1


def test_an_inner_transaction_is_part_of_the_outer(fs: BaseFilesystem, session: Session):
    plant(fs)
    before = state(fs, session)
    told = listen(session)
    with transaction(session, fs) as outer:
        fs.write("a", "outer")
        with transaction(session, fs):
            fs.write("b/x", "inner")
            session[Note].append(Note("inner"))
        assert told == []
        outer.rollback()
    assert state(fs, session) == before
    assert told == []


def test_an_inner_transaction_can_fail_alone(fs: BaseFilesystem, session: Session):
    plant(fs)
    told = listen(session)
    with transaction(session, fs):
        fs.write("a", "outer")
        with pytest.raises(ValueError, match="no"), transaction(session, fs):
            fs.write("b/x", "inner")
            fs.write("deep/er", "inner")
            session[Note].append(Note("inner"))
            raise ValueError("no")
        fs.write("c", "outer")
    assert (fs.read("a").content, fs.read("b/x").content) == ("outer", "old b/x")
    assert not fs.exists("deep")
    assert session[Note].all() == (Note("first"),)
    assert [each.path for each in told if isinstance(each, FileWritten)] == ["a", "c"]


def test_it_can_be_used_for_one_block_after_the_other(fs: BaseFilesystem, session: Session):
    work = transaction(session, fs)
    with work:
        fs.write("a.txt", "1")
    with suppress(Stopped), work:
        fs.write("b.txt", "2")
        raise Stopped
    with work:
        fs.write("c.txt", "3")
        session[Note].append(Note("second"))
    assert sorted(entry.name for entry in fs.list(".")) == ["a.txt", "c.txt"]
    assert session[Note].latest() == Note("second")
    writer = threading.Thread(target=fs.write, args=("d.txt", "4"), daemon=True)
    writer.start()
    writer.join(60)
    assert fs.exists("d.txt"), "nobody holds the lock any more"


def test_it_begins_where_its_block_is_entered(fs: BaseFilesystem, session: Session):
    inner = transaction(session, fs)
    with transaction(session, fs) as outer:
        with inner:
            session[Note].append(Note("second"))
        outer.rollback()
    assert [note.text for note in session[Note].all()] == ["first"]


def test_it_cannot_be_entered_while_it_is_open(fs: BaseFilesystem, session: Session):
    with transaction(session, fs) as work:
        fs.write("a.txt", "1")
        with pytest.raises(RuntimeError, match="open already"):
            work.__enter__()
    assert fs.exists("a.txt")
    assert current_transaction() is None


def test_a_filesystem_that_is_made_late_can_join(session: Session):
    fs = InMemoryFilesystem()
    fs.write("a", "mounted")

    def late() -> InMemoryFilesystem:
        step = current_transaction()
        assert step is not None
        step.join(fs)
        return fs

    with pytest.raises(ValueError, match="no"), transaction(session):
        late().write("a", "changed")
        raise ValueError("no")
    assert fs.read("a").content == "mounted"
    assert current_transaction() is None


def test_what_joins_an_inner_one_is_the_outers_too(session: Session):
    fs = InMemoryFilesystem()
    with transaction(session) as outer:
        with transaction(session, fs):
            fs.write("a", "1")
        outer.rollback()
    assert not fs.exists("a")


def test_a_double_of_a_filesystem_goes_back_without_a_call_on_record(session: Session):
    fs = MockFilesystem()
    fs.backend.write("a", "before")
    told = listen(session)
    with pytest.raises(ValueError, match="no"), transaction(session, fs):
        fs.write("a", "never")
        raise ValueError("no")
    assert fs.backend.read("a").content == "before"
    assert [each.method for each in fs.calls] == ["write"]
    with transaction(session, fs):
        fs.write("b", "kept")
    assert [str(each) for each in told] == ["b created"]


# --- backends without savepoints ---


class WithoutSavepoints(InMemoryFilesystem):
    """A backend that keeps snapshots and nothing else."""

    savepoint: Any = None


def test_a_backend_without_savepoints_goes_back_by_snapshots(session: Session):
    fs = WithoutSavepoints()
    plant(fs)
    before = state(fs, session)
    with pytest.raises(ValueError, match="no"), transaction(session, fs) as step:
        work(fs, session)
        assert step.snapshot_ref is not None
        raise ValueError("no")
    assert state(fs, session) == before


def test_a_backend_without_savepoints_tells_what_changed_and_nothing_else(session: Session):
    fs = WithoutSavepoints()
    told = listen(session)
    with transaction(session, fs) as outer:
        fs.write("a", "1")
        with pytest.raises(ValueError, match="no"), transaction(session, fs):
            fs.write("b", "undone")
            raise ValueError("no")
        fs.write("c", "1")
        assert [str(each) for each in outer.events] == ["a created", "c created"]
    with transaction(session, fs) as step:
        assert step.events == []
    assert [str(each) for each in told] == ["a created", "c created"]
    assert not fs.exists("b")


class WithoutUndo(WithoutSavepoints):
    """A backend that has neither."""

    snapshot: Any = None


def test_a_backend_with_neither_is_put_back_by_its_own_methods(session: Session):
    fs = WithoutUndo()
    plant(fs)
    fs.mkdir("empty")
    before = state(fs, session)
    told = listen(session)
    with pytest.raises(ValueError, match="no"), transaction(session, fs):
        work(fs, session)
        fs.delete("empty", recursive=True)
        raise ValueError("no")
    assert state(fs, session) == before
    assert told == []
    with transaction(session, fs):
        fs.write("a", "changed")
        fs.delete("c")
    assert [str(each) for each in told] == ["c deleted", "a written"]


class WithSnapshots(InMemoryFilesystem):
    """A backend with nothing but snapshots."""

    savepoint: Any = None
    hold: Any = None
    pin: Any = None


@pytest.mark.parametrize("bypasses_filesystem", [False, True])
def test_a_capability_that_is_missing_is_not_needed(session: Session, bypasses_filesystem: bool):
    fs = WithSnapshots()
    plant(fs)
    before = state(fs, session)
    changes = transaction(session, fs, bypasses_filesystem=bypasses_filesystem)
    with pytest.raises(ValueError, match="no"), changes:
        work(fs, session)
        raise ValueError("no")
    assert state(fs, session) == before
    with changes:
        fs.write("a", "changed")
    assert fs.read("a").content == "changed"


# --- changes past the filesystem ---


@pytest.fixture(params=[False, True])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostFilesystem]:
    root = tmp_path / "shell"
    root.mkdir()
    with HostFilesystem(root, git_dir=tmp_path / "store", exclusive=request.param) as fs:
        yield fs


def shell(fs: HostFilesystem) -> None:
    root = Path(fs.root)
    (root / "a").write_text("by a shell")
    (root / "b" / "x").unlink()
    (root / "made").mkdir()
    (root / "made" / "link").symlink_to("../a")


def test_what_a_shell_did_is_taken_back(host: HostFilesystem, session: Session):
    plant(host)
    before = state(host, session)
    with (
        pytest.raises(ValueError, match="no"),
        transaction(session, host, bypasses_filesystem=True),
    ):
        shell(host)
        host.write("c", "through the filesystem")
        raise ValueError("no")
    assert state(host, session) == before
    assert not Path(host.root, "made").exists()


def test_what_a_shell_did_is_told(host: HostFilesystem, session: Session):
    plant(host)
    host.snapshot()
    told = listen(session)
    with transaction(session, host, bypasses_filesystem=True) as step:
        shell(host)
    assert step.snapshot_ref is None or len(step.snapshot_ref) == 40
    assert sorted(map(str, told)) == [
        "a written",
        "b/x deleted",
        "made/ created",
        "made/link -> ../a created",
    ]
    written = next(each for each in told if isinstance(each, FileWritten))
    assert written.before_size == len("old a")
    assert written.after_size == len("by a shell")


def test_a_shell_inside_another_call_is_taken_back_with_it(host: HostFilesystem, session: Session):
    plant(host)
    before = state(host, session)
    with transaction(session, host) as outer:
        host.write("c", "outer")
        with transaction(session, host, bypasses_filesystem=True):
            shell(host)
        host.write("d", "outer, later")
        outer.rollback()
    assert state(host, session) == before


def test_a_shell_inside_another_call_is_told_once(host: HostFilesystem, session: Session):
    plant(host)
    told = listen(session)
    with transaction(session, host):
        host.write("c", "outer")
        with transaction(session, host, bypasses_filesystem=True):
            shell(host)
        host.write("d", "outer, later")
    paths = [each.path for each in told if isinstance(each, FileWritten)]
    assert sorted(paths) == ["a", "c", "d"]


class CountsLooks(HostFilesystem):
    """Counts how often it is compared with a snapshot."""

    looks = 0

    def view(self, snapshot: FilesystemSnapshot) -> SnapshotFilesystem:
        self.looks += 1
        return super().view(snapshot)


def test_what_a_shell_did_is_looked_for_once(tmp_path: Path, session: Session):
    (tmp_path / "shell").mkdir()
    with CountsLooks(tmp_path / "shell", git_dir=tmp_path / "store") as fs:
        plant(fs)
        told = listen(session)
        with transaction(session, fs, bypasses_filesystem=True):
            with transaction(session, fs, bypasses_filesystem=True) as step:
                shell(fs)
            assert fs.looks == 0
        assert fs.looks == 1
        with transaction(session, fs, bypasses_filesystem=True) as step:
            Path(fs.root, "late").write_text("")
            assert [str(each) for each in step.freeze()] == ["late created"]
        assert fs.looks == 2
    assert "late created" in map(str, told)


def test_calls_on_one_filesystem_wait_for_each_other(session: Session):
    fs = InMemoryFilesystem()
    fs.write("counter", "0")

    def count() -> None:
        with transaction(session, fs):
            fs.write("counter", str(int(fs.read("counter").content) + 1))

    run_all([count] * 8)
    assert fs.read("counter").content == "8"


def run_all(functions: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=each) for each in functions]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def test_a_reducer_that_fails_does_not_undo_the_files(
    fs: BaseFilesystem, session: Session, caplog: pytest.LogCaptureFixture
):
    def broken(items: tuple[Note, ...], event: FileWritten) -> tuple[Note, ...]:
        raise RuntimeError("broken reducer")

    session[Note].register(FileWritten, broken)
    with transaction(session, fs):
        fs.write("a", "kept")
    assert fs.read("a").content == "kept"
    assert "broken reducer" in caplog.text


def test_nothing_is_left_behind_on_the_disk(host: HostFilesystem, session: Session):
    for attempt in range(2):
        with transaction(session, host) as step:
            host.write("a/b", "1")
            if attempt:
                step.rollback()
    assert [each.name for each in Path(host.root).iterdir()] == ["a"]


def test_everything_is_taken_back_although_the_time_is_up(session: Session, fs: BaseFilesystem):
    fs.write("a", "before")
    before = state(fs, session)
    for bypasses_filesystem in (False, True):
        now = [0.0]
        with (
            time_limit(1, clock=lambda now=now: now[0]),
            pytest.raises(Stopped),
            transaction(session, fs, bypasses_filesystem=bypasses_filesystem),
        ):
            fs.write("a", "after")
            fs.write("b/c", "new")
            session[Note].append(Note("second"))
            now[0] = 2.0
            raise Stopped
        assert state(fs, session) == before


@pytest.mark.parametrize("bypasses_filesystem", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_no_bound_takes_the_snapshot_of_an_open_transaction(
    bypasses_filesystem: bool, inner: bool, session: Session
) -> None:
    fs = InMemoryFilesystem(max_snapshots=1)
    fs.write("a", "1")
    with pytest.raises(Stopped), transaction(session, fs, bypasses_filesystem=bypasses_filesystem):
        fs.write("a", "2")
        with suppress(ZeroDivisionError), transaction(session, fs, bypasses_filesystem=True):
            fs.write("a", "3")
            fs.snapshot()
            if inner:
                raise ZeroDivisionError
        assert fs.read("a").content == ("2" if inner else "3")
        fs.snapshot()
        raise Stopped
    assert fs.read("a").content == "1"
    assert len(fs.history.list()) == 1


@pytest.mark.parametrize("kind", ["memory", "host"])
def test_nothing_forgets_the_snapshot_of_an_open_transaction(
    kind: str, session: Session, tmp_path: Path
) -> None:
    fs = InMemoryFilesystem() if kind == "memory" else HostFilesystem(tmp_path)
    fs.write("a", "1")
    with pytest.raises(Stopped), transaction(session, fs, bypasses_filesystem=True):
        fs.write("a", "2")
        other = fs if isinstance(fs, InMemoryFilesystem) else HostFilesystem(tmp_path)
        other.history.prune(keep=0)
        with pytest.raises(SnapshotError, match=r"Cannot delete snapshot .* an open"):
            other.history.forget(*other.history.list())
        if isinstance(fs, HostFilesystem):
            fs.history.gc()
            with pytest.raises(SavepointError, match="while a transaction is open"):
                fs.cleanup()
        raise Stopped
    assert fs.read("a").content == "1"
    fs.history.prune(keep=0)
    assert not fs.history.list()
    if isinstance(fs, HostFilesystem):
        fs.cleanup()


def test_what_is_rolled_back_with_a_command_is_named_and_can_be_had_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "root").mkdir()
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as files:
        files.write("a", "old")
        with (
            pytest.raises(ValueError, match="cancelled"),
            transaction(Session(), files, bypasses_filesystem=True) as step,
        ):
            (tmp_path / "root" / "a").write_text("mine")  # a person, or the command
            raise ValueError("cancelled")
        assert files.read("a").content == "old"
        assert files.replaced is not None
        [result] = step.rollbacks
        assert (result.displaced, result.before) == (("a",), files.replaced)
        assert result.after is not None
        assert files.view(result.after).read("a").content == "old"
        (message,) = caplog.messages
        assert message.count("Rolled back") == message.count("a. To get") == 1
        assert str(files.replaced.snapshot_id) in message
        files.restore(files.replaced, paths=["a"])
        assert files.read("a").content == "mine"


def test_what_the_rollback_of_a_call_left_alone_is_in_its_result(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with HostFilesystem(tmp_path / "root", git_dir=tmp_path / "store") as files:
        files.write("a", "old")
        with transaction(Session(), files) as step:
            files.write("a", "new")
            (tmp_path / "root" / "a").write_text("mine")
            step.rollback()
        [result] = step.rollbacks
        [kept] = result.kept
        assert (kept.path, files.read(kept.other).content) == ("a", "old")
        assert files.read("a").content == "mine"
        with transaction(Session(), files) as step:
            files.write("b", "new")
        assert step.rollbacks == []
