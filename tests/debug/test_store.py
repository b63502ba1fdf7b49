"""The sessions at a path, and the last state of their files."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.debug.recordings import PNG, record
from weakincentives.debug import RecordingError, SnapshotStore
from weakincentives.debug.recording import RecordedSession, SessionFiles
from weakincentives.debug.views import SessionView
from weakincentives.errors import WinkError
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    record(tmp_path)
    return tmp_path / "run.jsonl"


@pytest.mark.parametrize("name", ["run.jsonl", "run.fs.zip", "run.timeline", "run", "."])
def test_a_session_is_found_by_any_of_its_files(dump: Path, name: str):
    store = SnapshotStore(dump.parent / name)
    assert [each.name for each in store.sessions] == ["run"]
    assert store.get_filesystem_archive() == dump.with_suffix(".fs.zip")


def test_the_files_of_the_last_state(dump: Path):
    store = SnapshotStore(dump)
    manifest = store.get_filesystem_manifest()
    assert manifest is not None
    assert manifest["file_count"] == 8
    tree = store.get_filesystem_tree()
    assert tree == sorted(tree, key=lambda each: each["path"])
    assert {"path": "picture.png", "size_bytes": len(PNG)} in tree
    assert "dear" in (store.get_filesystem_file("app.py") or "")
    assert store.get_filesystem_file("nothing") is None
    assert store.get_filesystem_file("picture.png") is None


def test_the_files_of_a_session_by_its_name(tmp_path: Path):
    record(tmp_path, "first")
    record(tmp_path, "second")
    (tmp_path / "second.fs.zip").unlink()  # so its timeline has them
    store = SnapshotStore(tmp_path, name="first")
    assert store.get_filesystem_archive() == tmp_path / "first.fs.zip"
    assert store.get_filesystem_archive("second") is None
    manifest = store.get_filesystem_manifest("second")
    assert manifest is not None
    assert manifest["file_count"] == 8
    assert "dear" in (store.get_filesystem_file("app.py", "second") or "")
    with pytest.raises(RecordingError, match="No session of this name: 'third'"):
        store.get_filesystem_tree("third")
    store.close()


@pytest.mark.parametrize("path", ["../run.jsonl", "a\0b"])
def test_a_path_that_is_none_raises(dump: Path, path: str):
    with pytest.raises(WinkError):
        SnapshotStore(dump).get_filesystem_file(path)


def test_a_dump_without_archive_and_timeline_has_no_files(dump: Path):
    dump.with_suffix(".fs.zip").unlink()
    shutil.rmtree(dump.with_suffix(".timeline"))
    store = SnapshotStore(dump)
    assert store.get_filesystem_archive() is None
    assert store.get_filesystem_manifest() is None
    assert store.get_filesystem_tree() == []
    assert store.get_filesystem_file("app.py") is None


@pytest.mark.parametrize("name", ["nothing.jsonl", "empty", "nothing"])
def test_a_path_without_session_says_what_to_name(tmp_path: Path, name: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordingError, match=r"\.timeline, \.fs\.zip, \.jsonl"):
        SnapshotStore(tmp_path / name)


def test_sessions_that_come_and_go_are_noticed(dump: Path):
    store = SnapshotStore(dump.parent)
    shutil.copytree(dump.with_suffix(".timeline"), dump.with_name("other.timeline"))
    store.refresh()
    assert {each.name for each in store.sessions} == {"run", "other"}
    shutil.rmtree(dump.with_name("other.timeline"))
    store.refresh()
    assert [each.name for each in store.sessions] == ["run"]


def test_the_text_of_one_dump_with_the_archive_of_another_is_named(dump: Path, tmp_path: Path):
    record(tmp_path / "more", "other")
    shutil.copy(tmp_path / "more" / "other.fs.zip", dump.with_suffix(".fs.zip"))
    shutil.rmtree(dump.with_suffix(".timeline"))
    with pytest.raises(RecordingError, match="does not belong"):
        SnapshotStore(dump).session().open()


@pytest.mark.parametrize("suffix", [".jsonl", ".timeline"])
def test_a_link_in_place_of_a_recording_is_not_followed(tmp_path: Path, suffix: str):
    record(tmp_path / "real")
    (tmp_path / f"run{suffix}").symlink_to(tmp_path / "real" / f"run{suffix}")
    with pytest.raises(RecordingError):
        SnapshotStore(tmp_path / f"run{suffix}").session().open()


def test_a_type_that_a_dump_names_is_shown_and_never_imported(dump: Path):
    shutil.rmtree(dump.with_suffix(".timeline"))
    lines = dump.read_text().split("\n")
    for name in ("this", "antigravity"):
        sys.modules.pop(name, None)
    dump.write_text("\n".join([lines[0], lines[1].replace("tests.debug.recordings:", "this:"), ""]))
    recording = SnapshotStore(dump).session().open()
    (session,) = recording.sessions(1).values()
    assert session.slices["this:Plan"].items == [{"goal": "be kind"}]
    assert "this" not in sys.modules


@dataclass(frozen=True)
class Listing:
    names: tuple[str, ...]


def test_a_slice_of_which_a_part_changed_is_shown_whole(tmp_path: Path):
    path = tmp_path / "x.timeline"
    session = Session()
    session.install(Listing)
    session[Listing].seed([Listing(("a", "b", "c"))])
    with SessionRecorder(session, path):
        session[Listing].seed([Listing(("a", "x", "c"))])
        session.dispatch(ToolInvoked(tool="t"))
    recorded = RecordedSession(SessionFiles(tmp_path, "x"))
    view = SessionView(recorded, recorded.open())
    [changed] = [each for each in view.step(2)["slices"] if each["type"].endswith(":Listing")]
    assert changed["removed"] == [{"names": ["a", "b", "c"]}]
    assert changed["added"] == [{"names": ["a", "x", "c"]}]
    assert (changed["before"], changed["after"]) == (1, 1)
    recorded.close()


def test_without_an_archive_the_last_files_are_those_of_the_timeline(dump: Path):
    before = SnapshotStore(dump)
    dump.with_suffix(".fs.zip").unlink()
    store = SnapshotStore(dump)
    assert store.get_filesystem_archive() is None
    manifest = store.get_filesystem_manifest()
    assert manifest is not None
    assert manifest["file_count"] == 8
    assert manifest["total_bytes"] == sum(
        each["size_bytes"] for each in store.get_filesystem_tree()
    )
    assert "dear" in (store.get_filesystem_file("app.py") or "")
    assert store.get_filesystem_file("nothing") is None
    store.close()
    before.close()


def test_the_session_of_a_run_has_the_name_of_the_run(dump: Path, tmp_path: Path):
    run = tmp_path / "runs" / "ab12cd34"
    run.mkdir(parents=True)
    dump.with_suffix(".timeline").rename(run / "history")
    store = SnapshotStore(run / "history")
    assert [each.name for each in store.sessions] == ["ab12cd34"]
    assert store.session("ab12cd34").open().steps
