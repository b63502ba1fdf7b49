"""Checkpoints: session and files are restored together, or not at all."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import (
    FilesystemSnapshot,
    HostFilesystem,
    InMemoryFilesystem,
    SnapshotableFilesystem,
)
from weakincentives.posix import fault_hook
from weakincentives.runtime.checkpoints import SessionFile, checkpoint, rollback_to
from weakincentives.runtime.session import Session, SnapshotFormatError


@dataclass(frozen=True)
class Note:
    text: str


TYPES = (Note, FilesystemSnapshot)


@pytest.fixture(params=["memory", "host"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SnapshotableFilesystem]:
    if request.param == "memory":
        yield InMemoryFilesystem()
        return
    root = tmp_path / "workspace"
    root.mkdir()
    with HostFilesystem(root, git_dir=tmp_path / "store") as host:
        yield host


def test_both_go_back_and_share_an_id(fs: SnapshotableFilesystem):
    session = Session()
    fs.write("a", "1")
    session[Note].append(Note("1"))
    kept = checkpoint(session, fs, "turn-1")
    (files,) = session[FilesystemSnapshot].all()
    assert kept.snapshot_id == files.snapshot_id
    assert (kept.tag, files.tag) == ("turn-1", "turn-1")
    fs.write("a", "2")
    session[Note].append(Note("2"))
    rollback_to(session, kept, fs)
    assert fs.read("a").content == "1"
    assert session[Note].all() == (Note("1"),)


def test_a_session_that_knew_no_files_leaves_them(fs: SnapshotableFilesystem):
    session = Session()
    kept = session.snapshot()
    fs.write("a", "1")
    session[Note].append(Note("1"))
    rollback_to(session, kept, fs)
    assert fs.exists("a")
    assert session[Note].all() == ()


def test_neither_goes_back_if_the_files_cannot(tmp_path: Path):
    session, fs = Session(), InMemoryFilesystem()
    kept = checkpoint(session, InMemoryFilesystem())
    session[Note].append(Note("kept"))
    with pytest.raises(SnapshotRestoreError):
        rollback_to(session, kept, fs)
    assert session[Note].all() == (Note("kept"),)


# --- on disk ---


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostFilesystem]:
    (tmp_path / "workspace").mkdir()
    with HostFilesystem(tmp_path / "workspace", git_dir=tmp_path / "store") as fs:
        yield fs


def test_a_session_is_saved_and_resumed(host: HostFilesystem, tmp_path: Path):
    session, file = Session(), SessionFile(tmp_path / "session.json")
    session[Note].append(Note("1"))
    file.save(checkpoint(session, host))
    other = Session()
    other.restore(file.resume(TYPES, host))
    assert other[Note].all() == (Note("1"),)
    assert (tmp_path / "session.json").stat().st_mode & 0o777 == 0o600


def test_all_three_go_back(host: HostFilesystem, tmp_path: Path):
    session, file = Session(), SessionFile(tmp_path / "session.json")
    host.write("a", "1")
    first = checkpoint(session, host)
    host.write("a", "2")
    session[Note].append(Note("2"))
    file.save(checkpoint(session, host))
    file.rollback(session, first, host)
    assert host.read("a").content == "1"
    assert session[Note].all() == ()
    assert file.resume(TYPES, host).slices.get(Note, ()) == ()


def test_a_rollback_that_fails_changes_none(host: HostFilesystem, tmp_path: Path):
    session, file = Session(), SessionFile(tmp_path / "session.json")
    foreign = checkpoint(Session(), InMemoryFilesystem())
    session[Note].append(Note("1"))
    file.save(checkpoint(session, host))
    with pytest.raises(SnapshotRestoreError):
        file.rollback(session, foreign, host)
    assert session[Note].all() == (Note("1"),)
    assert file.resume(TYPES, host).slices[Note] == (Note("1"),)


POINTS = (
    "change.staged",
    "change.changing",
    "change.exchanged",
    "change.changed",
    "commit.stored",
    "store.renamed",
)


@pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning")
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_is_killed_in_between_is_resumed_in_step(tmp_path: Path, point: str):
    root, path = tmp_path / "workspace", tmp_path / "session.json"
    root.mkdir()
    child = os.fork()
    if child == 0:
        _die_during_rollback(root, tmp_path / "store", path, point)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in {-signal.SIGKILL, 0}
    with HostFilesystem(root, git_dir=tmp_path / "store") as fs:
        session = Session()
        session.restore(SessionFile(path).resume(TYPES, fs))
        notes = [each.text for each in session[Note].all()]
        assert (fs.read("a").content, fs.read("b").content, notes) in [
            ("1", "1", ["1"]),
            ("2", "2", ["1", "2"]),
        ]


def _die_during_rollback(root: Path, store: Path, path: Path, point: str) -> None:
    with HostFilesystem(root, git_dir=store) as fs:
        session, file = Session(), SessionFile(path)
        kept = []
        for text in ("1", "2"):
            fs.write("a", text)
            fs.write("b", text)
            session[Note].append(Note(text))
            kept.append(checkpoint(session, fs))
            file.save(kept[-1])

        def die(name: str) -> None:
            if name == point:
                os.kill(os.getpid(), signal.SIGKILL)

        with fault_hook(die):
            file.rollback(session, kept[0], fs)
    os._exit(0)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"wink-session 9 done\n{}", b"wink-session 1 done\n{"]
)
def test_what_is_no_session_is_refused(tmp_path: Path, data: bytes):
    (tmp_path / "session.json").write_bytes(data)
    with pytest.raises(SnapshotFormatError):
        SessionFile(tmp_path / "session.json").resume(TYPES)


def test_a_missing_file_is_missing(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        SessionFile(tmp_path / "none").resume(TYPES)
