"""What a savepoint changed is reported with what came out, and saves of others are not lost."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.safety.places import temporary_names
from weakincentives.filesystem import HostFilesystem, PathChange, StaleContentError
from weakincentives.history.entries import EntryState
from weakincentives.posix import fault_hook


class Told:
    """A listener that remembers what it was told, with the content before."""

    def __init__(self) -> None:
        self.changes: list[PathChange] = []
        self.before: dict[str, bytes | None] = {}
        self.after: dict[str, bytes | None] = {}

    def __call__(self, changes: Sequence[PathChange]) -> None:
        for each in changes:
            self.changes.append(each)
            self.before[each.path] = content(each.open_before())
            self.after[each.path] = content(each.open_after())

    def kinds(self) -> list[tuple[str, str, str]]:
        return [(each.path, each.before.kind, each.after.kind) for each in self.changes]


def content(descriptor: int | None) -> bytes | None:
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def opened(root: Path) -> HostFilesystem:
    return HostFilesystem(root, git_dir=root.parent / "store")


@pytest.fixture
def fs(root: Path) -> Iterator[HostFilesystem]:
    with opened(root) as host:
        yield host


@pytest.fixture
def told(fs: HostFilesystem) -> Told:
    listener = Told()
    fs.subscribe_changes(listener)
    return listener


def test_each_path_is_reported_once_with_the_first_before_and_the_last_after(
    fs: HostFilesystem, told: Told
) -> None:
    fs.write("file", "old")
    fs.write("tree/a/file", "deep")
    told.changes.clear()
    with fs.savepoint():
        fs.write("file", "new")
        fs.write("file", "er", mode="append")
        fs.write("passing", "")
        fs.delete("passing")
        fs.mkdir("made")
        fs.move("tree/a", "made/b")
        fs.write("made/b/file", "changed")
        assert not told.changes
    assert told.kinds() == [
        ("file", "file", "file"),
        ("made", "absent", "directory"),
        ("made/b", "absent", "directory"),
        ("made/b/file", "absent", "file"),
        ("tree/a", "directory", "absent"),
        ("tree/a/file", "file", "absent"),
    ]
    assert told.before["file"] == b"old"
    assert told.before["tree/a/file"] == b"deep"
    assert told.changes[0].after.size == len("newer")
    assert all(each.by_call for each in told.changes)


def test_a_moved_file_and_one_that_is_moved_over_have_their_content(
    fs: HostFilesystem, told: Told
) -> None:
    fs.write("one", "1")
    fs.write("two", "22")
    told.changes.clear()
    fs.move("one", "two", overwrite=True)
    assert told.kinds() == [("one", "file", "absent"), ("two", "file", "file")]
    assert (told.before["one"], told.before["two"]) == (b"1", b"22")
    told.changes.clear()
    fs.move("two", "three")
    assert told.kinds() == [("three", "absent", "file"), ("two", "file", "absent")]
    assert told.before["two"] == b"1"


def test_a_deleted_directory_is_reported_entry_by_entry(fs: HostFilesystem, told: Told) -> None:
    fs.write("dir/a", "a")
    fs.write("dir/sub/b", "b")
    told.changes.clear()
    fs.delete("dir", recursive=True)
    assert [each.path for each in told.changes] == ["dir", "dir/a", "dir/sub", "dir/sub/b"]
    assert (told.before["dir/a"], told.before["dir/sub/b"]) == (b"a", b"b")
    assert all(each.after == EntryState() for each in told.changes)


def test_what_is_rolled_back_is_not_reported(fs: HostFilesystem, told: Told, root: Path) -> None:
    fs.savepoint().rollback()
    savepoint = fs.savepoint()
    fs.write("file", "")
    savepoint.rollback()
    assert told.changes == []
    assert temporary_names(root) == []


def test_what_a_person_saves_just_before_the_exchange_is_what_came_out(
    fs: HostFilesystem, told: Told, root: Path
) -> None:
    fs.write("file", "old")
    told.changes.clear()

    def save(point: str) -> None:
        if point == "journal.recorded":
            (root / "other").write_text("saved")
            (root / "other").rename(root / "file")

    with fault_hook(save):
        fs.write("file", "new")
    assert told.before["file"] == b"saved"


def test_what_a_person_saves_between_two_writes_is_a_change_of_its_own(
    fs: HostFilesystem, told: Told, root: Path
) -> None:
    fs.write("file", "old")
    told.changes.clear()
    with fs.savepoint():
        fs.write("file", "first")
        (root / "file").write_text("a person")
        fs.write("file", "second")
    assert [(each.by_call, each.before.size, each.after.size) for each in told.changes] == [
        (False, len("old"), len("a person")),
        (True, len("a person"), len("second")),
    ]
    assert told.before["file"] == b"a person"


def test_what_is_written_to_a_replaced_file_later_is_reported(
    fs: HostFilesystem, told: Told, root: Path
) -> None:
    fs.write("file", "old")
    with (root / "file").open("ab") as late:
        fs.write("file", "new")
        assert temporary_names(root)
        told.changes.clear()
        late.write(b" and more")
    fs.write("other", "")
    [change, _] = told.changes
    assert (change.path, change.by_call, told.after["file"]) == ("file", False, b"old and more")
    assert temporary_names(root) == []


def test_what_is_moved_there_and_back_has_not_changed(fs: HostFilesystem, told: Told) -> None:
    fs.write("a/file", "old")
    told.changes.clear()
    with fs.savepoint():
        fs.move("a", "b")
        fs.move("b", "a")
    assert told.changes == []


def test_what_is_made_where_something_was_moved_away_from(fs: HostFilesystem, told: Told) -> None:
    fs.write("a/file", "old")
    told.changes.clear()
    with fs.savepoint():
        fs.move("a", "b")
        fs.write("a/file", "another")
        fs.write("b/file", "new")
    found = {each.path: (each.by_call, each.before.size, each.after.size) for each in told.changes}
    assert found["a/file"] == (True, len("old"), len("another"))
    assert found["b/file"] == (True, 0, len("new"))
    assert told.before["a/file"] == b"old"


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a savepoint"])
def test_what_is_written_later_is_kept_if_nobody_listens(root: Path, inside: bool) -> None:
    with opened(root) as fs:
        fs.write("file", "old")
        with (root / "file").open("ab") as late:
            savepoint = fs.savepoint() if inside else None
            fs.write("file", "new")
            if savepoint is not None:
                savepoint.release()
            late.write(b" and more")
    with opened(root):
        pass
    assert (root / "file").read_text() == "new"
    assert (root / "file.wink-kept").read_text() == "old and more"
    assert temporary_names(root) == []


def test_a_file_with_a_writer_stays_until_the_writer_is_gone(root: Path) -> None:
    with opened(root) as fs:
        fs.write("dir/file", "old")
        with (root / "dir" / "file").open("ab") as late:
            fs.delete("dir/file")
            late.write(b" and more")
            late.flush()
        fs.savepoint().release()
    assert (root / "dir" / "file.wink-kept").read_text() == "old and more"


def test_a_listener_that_fails_is_called_again(
    fs: HostFilesystem, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()

    def fail(changes: Sequence[PathChange]) -> None:
        if not caplog.records:
            raise OSError(28, "No space left on device")
        told(changes)

    fs.write("file", "old")
    fs.subscribe_changes(fail)
    fs.write("file", "new")
    assert fs.read("file").content == "new"
    assert "not reported yet: [Errno 28]" in caplog.text
    fs.write("other", "")
    assert told.before == {"file": b"old", "other": None}
    assert temporary_names(root) == []


def test_what_a_killed_process_did_not_report_is_reported_to_the_next_listener(
    root: Path,
) -> None:
    (root / "file").write_text("old")

    def die(point: str) -> None:
        if point == "journal.ended":
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        with fault_hook(die):
            fs = opened(root)
            fs.subscribe_changes(Told())
            fs.write("file", "new")
        os._exit(0)
    os.waitpid(child, 0)
    with opened(root):
        assert temporary_names(root) != []  # nobody listens
    told = Told()
    with opened(root) as fs:
        fs.subscribe_changes(told)
        assert told.before == {"file": b"old"}
        assert fs.read("file").content == "new"
    assert temporary_names(root) == []


def test_without_a_listener_nothing_is_read(
    fs: HostFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.write("file", "old")
    monkeypatch.setattr(os, "read", lambda *_: pytest.fail("nobody wants to know"))
    with fs.savepoint():
        fs.write("file", "new")
        fs.delete("file")


# --- expectations ---


def test_a_file_is_replaced_only_if_it_has_the_expected_bytes(
    fs: HostFilesystem, root: Path
) -> None:
    fs.write("file", "old")
    fs.replace_content("file", b"new", expected=b"old")
    with pytest.raises(StaleContentError, match="Changed by another program"):
        fs.replace_content("file", b"newer", expected=b"old")
    assert fs.read("file").content == "new"
    assert temporary_names(root) == []


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a savepoint"])
def test_a_save_just_before_the_exchange_is_put_back(
    fs: HostFilesystem, root: Path, inside: bool
) -> None:
    fs.write("file", "old")
    savepoint = fs.savepoint() if inside else None

    def save(point: str) -> None:
        if point == "journal.recorded":
            (root / "other").write_text("saved")
            (root / "other").rename(root / "file")

    with fault_hook(save), pytest.raises(StaleContentError):
        fs.replace_content("file", b"new", expected=b"old")
    assert fs.read("file").content == "saved"
    if savepoint is not None:
        savepoint.rollback()
    assert fs.read("file").content == "saved"
    assert temporary_names(root) == []
    assert sorted(each.name for each in root.iterdir()) == ["file"]


def test_a_second_save_on_the_way_back_is_not_hidden(fs: HostFilesystem, root: Path) -> None:
    fs.write("file", "old")
    saves = {"rollback.exchanged": "second"}

    def save(point: str) -> None:
        text = saves.pop(point, "")
        if text:
            (root / "other").write_text(text)
            (root / "other").rename(root / "file")

    savepoint = fs.savepoint()
    fs.write("file", "new")
    (root / "file").write_text("new")  # the same bytes: it looks like ours until it is read
    saves["journal.recorded"] = "xxx"  # as long as ours
    with fault_hook(save):
        savepoint.rollback()
    assert fs.read("file").content == "second"
    assert {fs.read(each.other).content for each in fs.kept_changes} == {"xxx"}


def test_an_attribute_that_a_person_sets_on_what_a_call_wrote_is_a_save(
    fs: HostFilesystem, root: Path
) -> None:
    fs.write("file", "old")
    fs.write("moved", "old")
    os.setxattr(root / "moved", "user.mine", b"0")
    savepoint = fs.savepoint()
    fs.write("file", "new")
    fs.write("created", "new")
    fs.write("over", "old")
    fs.move("moved", "over", overwrite=True)
    for name in ("file", "created"):
        os.setxattr(root / name, "user.mine", b"1")
    kept = {each.path: each.other for each in savepoint.rollback()}
    assert kept == {"file": "file.wink-kept", "created": ""}
    assert fs.read("file.wink-kept").content == "old"
    for name in ("file", "created"):
        assert (fs.read(name).content, os.getxattr(root / name, "user.mine")) == ("new", b"1")
    assert os.getxattr(root / "moved", "user.mine") == b"0"
    assert not fs.exists("over")


@pytest.mark.parametrize("last", [b"0", b"1"], ids=["as it was", "set by a person"])
def test_a_file_with_an_attribute_comes_back_unless_a_person_sets_another(
    fs: HostFilesystem, root: Path, last: bytes
) -> None:
    fs.write("file", "old")
    os.setxattr(root / "file", "user.mine", b"0")
    savepoint = fs.savepoint()
    fs.write("file", "new")
    fs.write("file", "newer")
    assert os.getxattr(root / "file", "user.mine") == b"0"
    os.setxattr(root / "file", "user.mine", last)
    kept = [each.other for each in savepoint.rollback()]
    assert kept == ([] if last == b"0" else ["file.wink-kept"])
    assert fs.read("file").content == ("old" if last == b"0" else "newer")
    assert os.getxattr(root / "file", "user.mine") == last
    assert temporary_names(root) == []


def test_a_rollback_ends_although_somebody_saves_without_pause(
    fs: HostFilesystem, root: Path
) -> None:
    fs.write("file", "old")
    savepoint = fs.savepoint()
    fs.write("file", "new")
    (root / "file").write_text("xxx")  # as long as ours
    saves: list[str] = []

    def save(point: str) -> None:
        if point in {"rollback.exchanged", "rollback.returned"}:
            assert len(saves) < 100
            saves.append(f"save {len(saves)}")
            (root / "other").write_text(saves[-1])
            (root / "other").rename(root / "file")

    with fault_hook(save):
        [kept] = savepoint.rollback()
    assert fs.read("file").content == saves[-1]
    assert fs.read(kept.other).content == saves[-2]


def test_an_append_goes_to_what_was_saved_meanwhile(fs: HostFilesystem, root: Path) -> None:
    fs.write("file", "old")
    saves = ["saved\n"]

    def save(point: str) -> None:
        if point == "journal.recorded" and saves:
            (root / "file").write_text(saves.pop())

    with fault_hook(save):
        fs.write("file", "more", mode="append")
    assert fs.read("file").content == "saved\nmore"


def test_a_move_over_a_file_takes_what_was_saved_meanwhile(fs: HostFilesystem, root: Path) -> None:
    fs.write("one", "1")
    fs.write("two", "2")
    saves = ["saved"]

    def save(point: str) -> None:
        if point == "journal.placed" and saves:
            (root / "other").write_text(saves.pop())
            (root / "other").rename(root / "one")

    with fault_hook(save):
        fs.move("one", "two", overwrite=True)
    assert (root / "two").read_text() == "saved"
    assert not (root / "one").exists()
