"""Concurrent saves survive an apply, its rollback and its recovery."""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

from tests.posix.forks import is_killed_at
from weakincentives.contrib.review import (
    ApplyInterruptedError,
    ConflictError,
    CopyError,
    Review,
    recover,
    working_copy,
)
from weakincentives.contrib.review.apply import ApplyHistory
from weakincentives.contrib.review.original import Look
from weakincentives.contrib.review.records import Application
from weakincentives.filesystem import HostFilesystem
from weakincentives.history import slots
from weakincentives.posix import RESERVED_PREFIX, atomic, fault_hook

OLD, NEW, MINE = "old ", "new ", "mine"  # of the same length: sizes tell nothing


def write_in_place(path: Path) -> None:
    path.write_text(MINE)


def write_first_bytes(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(MINE.encode())


def rename_over(path: Path) -> None:
    draft = path.with_name("draft")
    draft.write_text(MINE)
    draft.replace(path)


def unlink_and_create(path: Path) -> None:
    path.unlink()
    path.write_text(MINE)


def keep_the_times(path: Path) -> None:
    """Save as `cp -p` does: size and time of the last change are those of before."""
    before = path.stat()
    path.write_text(MINE)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


SAVES = [write_in_place, write_first_bytes, rename_over, unlink_and_create, keep_the_times]


class Project:
    """An original with files f0, f1, ..., and a review of a copy in which all are new."""

    def __init__(self, directory: Path, count: int = 3, size: int = 1) -> None:
        self.root = directory / "original"
        self.root.mkdir()
        self.names = [f"f{number}" for number in range(count)]
        for name in self.names:
            (self.root / name).write_text(OLD * size)
            os.utime(self.root / name, (1_000_000_000, 1_000_000_000))
        self.copy = working_copy(self.root, place=directory / "place")
        for name in self.names:
            (self.copy.root / name).write_text(NEW * size)
        self.review = Review(self.copy)
        assert len(self.review.diff.entries) == count

    def texts(self) -> list[str]:
        return [(self.root / name).read_text()[: len(OLD)] for name in self.names]

    def others(self) -> list[str]:
        return sorted(each.name for each in self.root.iterdir() if each.name not in self.names)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.review.close()


@contextmanager
def at_point(point: str, work: Callable[[], object], number: int = 1) -> Iterator[None]:
    """Do something when a fault point is reached for the nth time."""
    count = 0

    def hook(name: str) -> None:
        nonlocal count
        count += name == point
        if name == point and count == number:
            work()

    with fault_hook(hook):
        yield


def fail(code: int = errno.EIO) -> None:
    raise OSError(code, os.strerror(code))


# --- while it is applied ---


def become_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("save", [*SAVES, Path.unlink, become_a_directory])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("nth", range(1, 6))
def test_a_save_while_both_sides_are_compared_is_a_conflict(
    project: Project,
    save: Callable[[Path], None],
    merge: bool,
    nth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, seen = project.root / "f1", 0
    path.write_text("1st\n")

    def looked(name: str) -> None:
        nonlocal seen
        seen += name == path.name
        if name == path.name and seen == nth:
            save(path)

    def late(method: str) -> None:
        look: Callable[..., object] = getattr(Look, method)

        def look_and_save(*arguments: Any) -> object:
            found = look(*arguments)
            looked(arguments[1])
            return found

        monkeypatch.setattr(Look, method, look_and_save)

    late("state")
    late("version")
    with pytest.raises(ConflictError) as raised:
        project.review.apply(merge=merge)
    assert [each.path for each in raised.value.conflicts] == ["f1"]
    assert project.others() == []


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("size", [1, 50_000], ids=["small", "large"])
@pytest.mark.parametrize("point", ["change.recorded", "change.written", "change.staged"])
def test_a_save_before_the_exchange_is_a_conflict(
    tmp_path: Path, save: Callable[[Path], None], size: int, point: str
) -> None:
    project = Project(tmp_path, size=size)
    with at_point(point, lambda: save(project.root / "f1")), pytest.raises(ConflictError) as raised:
        project.review.apply()
    assert [each.path for each in raised.value.conflicts] == ["f1"]
    assert project.texts() == [OLD, MINE, OLD]
    assert project.others() == []


@pytest.mark.parametrize("save", SAVES)
def test_a_save_between_the_last_look_and_the_exchange_is_put_back(
    project: Project, save: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = slots.exchange
    saved: list[bool] = []

    def late(first: tuple[int, str], second: tuple[int, str]) -> None:
        if second[1] == "f1" and not saved:
            saved.append(True)
            save(project.root / "f1")
        real(first, second)

    monkeypatch.setattr(slots, "exchange", late)
    with pytest.raises(ConflictError, match="f1: modified in the copy, changed just now"):
        project.review.apply()
    assert project.texts() == [OLD, MINE, OLD]
    assert project.others() == []


def test_who_writes_to_a_file_that_was_open_is_not_cut_off(project: Project) -> None:
    with (project.root / "f1").open("r+b") as file:
        with pytest.raises(ConflictError, match="being written to by another program"):
            project.review.apply()
        file.write(MINE.encode())
    assert project.texts() == [OLD, MINE, OLD]
    assert project.others() == []


def test_who_wrote_to_an_open_file_after_the_exchange_gets_it_back(project: Project) -> None:
    file = (project.root / "f1").open("r+b")

    def write() -> None:
        with file:
            file.write(MINE.encode())

    with at_point("change.changed", write), pytest.raises(ConflictError):
        project.review.apply()
    assert project.texts() == [OLD, MINE, OLD]
    assert project.others() == []


@pytest.mark.parametrize("save", SAVES)
def test_a_save_after_the_exchange_is_the_latest(
    project: Project, save: Callable[[Path], None]
) -> None:
    with at_point("change.exchanged", lambda: save(project.root / "f0"), 2):
        project.review.apply()
    assert project.texts() == [MINE, NEW, NEW]
    assert project.others() == []


@pytest.mark.slow
@pytest.mark.parametrize("save", [write_in_place, write_first_bytes, rename_over])
def test_a_save_at_the_same_time_as_a_large_apply_survives(
    tmp_path: Path, save: Callable[[Path], None]
) -> None:
    project = Project(tmp_path, count=1, size=5_000_000)
    begun = threading.Event()

    def person() -> None:
        begun.wait()
        save(project.root / "f0")

    thread = threading.Thread(target=person)
    thread.start()
    with at_point("change.recorded", begun.set), suppress(ConflictError):
        project.review.apply()
    thread.join()
    assert project.texts() == [MINE]
    assert project.others() == []


def test_a_path_that_was_made_or_removed_meanwhile_is_a_conflict(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (project.copy.root / "added").write_text(NEW)
    project.review.refresh()
    with (
        at_point("change.staged", lambda: (project.root / "added").write_text(MINE)),
        pytest.raises(ConflictError, match="added"),
    ):
        project.review.apply()
    assert (project.root / "added").read_text() == MINE
    assert project.texts() == [OLD] * 3
    (project.root / "added").unlink()
    with (
        at_point("change.exchanged", (project.root / "f2").unlink),
        pytest.raises(ConflictError, match="f2"),
    ):
        project.review.apply()
    assert not (project.root / "f2").exists()
    assert project.others() == []


# --- while it is rolled back ---


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize(
    "end",
    [lambda: fail(errno.ENOSPC), lambda: fail(errno.EIO), "conflict", "interrupt"],
    ids=["full", "broken", "conflict", "interrupt"],
)
def test_a_save_survives_the_rollback_and_is_named(
    project: Project, save: Callable[[Path], None], end: Callable[[], None] | str
) -> None:
    def happen() -> None:
        save(project.root / "f0")
        if end == "conflict":
            (project.root / "f2").write_text("another")
        elif end == "interrupt":
            raise KeyboardInterrupt
        else:
            assert callable(end)
            end()

    with at_point("change.exchanged", happen, 2), pytest.raises(BaseException) as raised:  # noqa: PT011  four ways to end
        project.review.apply()
    assert project.texts()[:2] == [MINE, OLD]
    assert (project.root / "f0.wink-kept").read_text() == OLD
    told = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "f0 was saved in the meantime and was left alone" in told
    assert "f0.wink-kept" in told
    assert project.review.interrupted is None


@pytest.mark.parametrize("save", SAVES)
def test_a_save_in_the_middle_of_a_rollback_survives(
    project: Project, save: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = slots.exchange
    count = 0

    def late(first: tuple[int, str], second: tuple[int, str]) -> None:
        nonlocal count
        count += second[1] == "f0"
        if second[1] == "f0" and count == 2:  # the exchange back
            save(project.root / "f0")
        real(first, second)

    monkeypatch.setattr(slots, "exchange", late)
    with at_point("change.exchanged", fail, 2), pytest.raises(OSError, match="Input/output"):
        project.review.apply()
    assert project.texts() == [MINE, OLD, OLD]
    assert (project.root / "f0.wink-kept").read_text() == OLD


def test_who_has_a_new_file_open_for_writing_keeps_it(project: Project) -> None:
    opened: list[IO[bytes]] = []

    def happen() -> None:
        opened.append((project.root / "f0").open("r+b"))
        fail()

    with at_point("change.exchanged", happen, 2), pytest.raises(OSError, match="Input/output"):
        project.review.apply()
    with opened[0]:
        opened[0].write(MINE.encode())
    assert project.texts() == [MINE, OLD, OLD]


def test_a_new_file_that_was_saved_stays(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (project.copy.root / "added").write_text(NEW)
    project.review.refresh()

    def happen() -> None:
        (project.root / "added").write_text(MINE)
        fail()

    with at_point("change.changed", happen), pytest.raises(OSError, match="Input/output") as raised:
        project.review.apply()
    assert (project.root / "added").read_text() == MINE
    assert project.texts() == [OLD] * 3
    assert raised.value.__notes__ == ["added was saved in the meantime and was left alone"]


def test_what_was_put_into_a_new_directory_stays(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (project.copy.root / "d").mkdir()
    (project.copy.root / "d/added").write_text(NEW)
    project.review.refresh()

    def happen() -> None:
        (project.root / "d/mine").write_text(MINE)
        fail()

    with at_point("change.changed", happen), pytest.raises(OSError, match="Input/output"):
        project.review.apply()
    assert [each.name for each in (project.root / "d").iterdir()] == ["mine"]


@pytest.mark.parametrize("point", ["change.recorded", "change.written", "change.staged"])
def test_a_directory_that_goes_meanwhile_is_a_conflict(tmp_path: Path, point: str) -> None:
    root = tmp_path / "original"
    (root / "d").mkdir(parents=True)
    for name in ("a", "b"):
        (root / "d" / name).write_text(OLD)
        (root / name).write_text(OLD)
    copy = working_copy(root, place=tmp_path / "place")
    for name in ("a", "b", "d/a", "d/b"):
        (copy.root / name).write_text(NEW)
    with (
        Review(copy) as review,
        at_point(point, lambda: shutil.rmtree(root / "d")),
        pytest.raises(ConflictError, match="d/a"),
    ):
        review.apply()
    assert {each.name: each.read_text() for each in root.iterdir()} == {"a": OLD, "b": OLD}


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_rollback_follows_a_directory_that_was_renamed(tmp_path: Path, is_replaced: bool) -> None:
    root = tmp_path / "original"
    (root / "d").mkdir(parents=True)
    for name in ("a", "b"):
        (root / "d" / name).write_text(OLD)
    copy = working_copy(root, place=tmp_path / "place")
    for name in ("a", "b", "c"):
        (copy.root / "d" / name).write_text(NEW)

    def happen() -> None:
        (root / "d").rename(root / "elsewhere")
        if is_replaced:
            (root / "d").mkdir()

    with (
        Review(copy) as review,
        at_point("change.exchanged", happen),
        pytest.raises(ConflictError),
    ):
        review.apply()
    found = {each.name: each.read_text() for each in (root / "elsewhere").iterdir()}
    assert found == {"a": OLD, "b": OLD}
    assert (root / "d").exists() == is_replaced


@pytest.mark.parametrize("back", ["rollback.exchanged", "rollback.removing", "rollback.undone"])
def test_a_directory_that_is_renamed_away_and_back_is_rolled_back(
    tmp_path: Path, back: str
) -> None:
    root = tmp_path / "original"
    (root / "d").mkdir(parents=True)
    for name in ("a", "b"):
        (root / "d" / name).write_text(OLD)
    copy = working_copy(root, place=tmp_path / "place")
    for name in ("a", "b"):
        (copy.root / "d" / name).write_text(NEW)
    away = tmp_path / "away"

    def hook(name: str) -> None:
        if name == "change.changed":
            (root / "d").rename(away)
        elif name == back and away.exists():
            away.rename(root / "d")

    with Review(copy) as review, fault_hook(hook), pytest.raises(ConflictError):
        review.apply()
    assert {each.name: each.read_text() for each in (root / "d").iterdir()} == {"a": OLD, "b": OLD}
    assert [each.name for each in root.iterdir()] == ["d"]


def test_a_second_save_while_the_first_is_given_back_stays_at_the_path(project: Project) -> None:
    def hook(name: str) -> None:
        if name == "change.changed":
            rename_over(project.root / "f0")
            fail()
        if name == "rollback.exchanged" and (project.root / "f0").read_text() == OLD:
            (project.root / "f0").write_text("two ")

    with fault_hook(hook), pytest.raises(OSError, match="Input/output"):
        project.review.apply()
    assert project.texts() == ["two ", OLD, OLD]
    assert (project.root / "f0.wink-kept").read_text() == MINE


@pytest.mark.parametrize("point", ["change.staged", "change.removed"])
def test_an_attribute_that_is_set_on_a_file_that_goes_is_a_conflict(
    tmp_path: Path, point: str
) -> None:
    root = tmp_path / "original"
    root.mkdir()
    (root / "a").write_text(OLD)
    (root / "b").write_text(OLD)
    copy = working_copy(root, place=tmp_path / "place")
    (copy.root / "a").unlink()

    def set_attribute() -> None:
        found = [root / "a", *root.glob(f"{RESERVED_PREFIX}*/1")]
        os.setxattr(next(each for each in found if each.exists()), "user.mine", b"1")

    with Review(copy) as review, at_point(point, set_attribute), pytest.raises(ConflictError):
        review.apply()
    assert os.getxattr(root / "a", "user.mine") == b"1"


def tag(path: Path) -> None:
    os.setxattr(path, "user.mine", b"1")


def make_executable(path: Path) -> None:
    path.chmod(0o755)


@pytest.mark.parametrize("save", [tag, make_executable])
@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("point", ["looked", "change.written", "change.staged"])
def test_what_is_set_after_the_look_at_a_file_is_a_conflict(
    project: Project,
    save: Callable[[Path], None],
    is_removed: bool,
    point: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = project.root / "f1"
    os.setxattr(path, "user.before", b"0")
    if is_removed:
        (project.copy.root / "f1").unlink()
        project.review.refresh()
    begin = ApplyHistory.begin

    def late(applies: ApplyHistory, entry: Application) -> int:
        if point == "looked":
            save(path)
        return begin(applies, entry)

    monkeypatch.setattr(ApplyHistory, "begin", late)
    with at_point(point, lambda: save(path)), pytest.raises(ConflictError) as raised:
        project.review.apply()
    assert [each.path for each in raised.value.conflicts] == ["f1"]
    assert project.texts() == [OLD] * 3
    expected = (0o755, ["user.before"]) if save == make_executable else (0o644, None)
    assert path.stat().st_mode & 0o777 == expected[0]
    assert sorted(os.listxattr(path)) == (expected[1] or ["user.before", "user.mine"])
    assert project.others() == []


def test_permissions_that_are_set_on_a_directory_that_goes_are_a_conflict(tmp_path: Path) -> None:
    root = tmp_path / "original"
    (root / "d").mkdir(parents=True)
    (root / "d/a").write_text(OLD)
    copy = working_copy(root, place=tmp_path / "place")
    shutil.rmtree(copy.root / "d")

    with (
        Review(copy) as review,
        at_point("change.staged", lambda: (root / "d").chmod(0o711)),
        pytest.raises(ConflictError, match="d: removed in the copy"),
    ):
        review.apply()
    assert (root / "d").stat().st_mode & 0o777 == 0o711
    assert (root / "d/a").read_text() == OLD


# --- when it is recovered ---


@pytest.mark.parametrize("save", SAVES)
def test_recovery_leaves_what_was_saved_since_and_says_so(
    project: Project, save: Callable[[Path], None]
) -> None:
    assert is_killed_at("change.changed", project.review.apply)
    save(project.root / "f1")
    recovered = project.review.recover()
    assert recovered.paths == ("f0", "f2")
    assert [(each.path, each.other) for each in recovered.kept] == [("f1", "f1.wink-kept")]
    assert project.texts() == [OLD, MINE, OLD]
    assert (project.root / "f1.wink-kept").read_text() == OLD
    assert project.others() == ["f1.wink-kept"]


@pytest.mark.parametrize(
    "point", ["rollback.exchanged", "rollback.returned", "rollback.kept", "rollback.undone"]
)
def test_a_recovery_that_was_killed_says_the_same_the_next_time(
    project: Project, point: str
) -> None:
    assert is_killed_at("change.changed", project.review.apply)
    (project.root / "f2").write_text(MINE)
    assert is_killed_at(point, project.review.recover)
    recovered = project.review.recover()
    assert [(each.path, each.other) for each in recovered.kept] == [("f2", "f2.wink-kept")]
    assert project.texts() == [OLD, OLD, MINE]
    assert (project.root / "f2.wink-kept").read_text() == OLD
    assert project.others() == ["f2.wink-kept"]


@pytest.mark.parametrize("work", [Review.apply, Review.undo, Review.discard])
def test_who_goes_on_is_told_what_recovery_left_and_nothing_more_is_done(
    project: Project, work: Callable[[Review], object]
) -> None:
    assert is_killed_at("change.changed", project.review.apply)
    (project.root / "f1").write_text(MINE)
    with pytest.raises(ConflictError, match=r"f1 was saved in the meantime.*f1\.wink-kept"):
        work(project.review)
    assert project.texts() == [OLD, MINE, OLD]
    assert project.copy.place.exists()


def facts_in(directory: Path) -> dict[str, tuple[object, ...]]:
    """Return what is known of each entry but when it was last read: looking is reading."""
    found = {each.name: each.lstat() for each in directory.iterdir()}
    return {
        name: (each.st_ino, each.st_mode, each.st_size, each.st_mtime_ns, each.st_ctime_ns)
        for name, each in found.items()
    }


def test_looking_changes_nothing_after_a_kill(project: Project, tmp_path: Path) -> None:
    other = Review(working_copy(project.root, place=tmp_path / "other"))
    (other.copy.root / "f0").write_text("another")
    assert is_killed_at("change.changed", project.review.apply)
    before = facts_in(project.root)
    assert project.review.interrupted is not None
    assert project.review.interrupted.paths == ("f0", "f1", "f2")
    for look in (project.review.conflicts, project.review.merges, other.apply, other.conflicts):
        with pytest.raises(ApplyInterruptedError, match="to roll it back: wink review"):
            look()
    other.close()
    with HostFilesystem(project.root) as fs:  # whoever else works there
        assert [each.path for each in fs.list(".")] == project.names
    assert facts_in(project.root) == before
    assert len(before) == 4  # three files, and one directory with what they were
    assert all(name in project.names or name.startswith(RESERVED_PREFIX) for name in before)


def test_an_interrupted_undo_is_recovered_as_well(project: Project) -> None:
    project.review.apply()
    assert is_killed_at("change.changed", project.review.undo)
    (project.root / "f1").write_text(MINE)
    recovered = project.review.recover()
    assert recovered.paths == ("f0", "f2")
    assert project.texts() == [NEW, MINE, NEW]
    assert (project.root / "f1.wink-kept").read_text() == NEW
    with pytest.raises(ConflictError):
        project.review.undo()
    (project.root / "f1").write_text(NEW)
    project.review.undo()
    assert project.texts() == [OLD] * 3


def test_an_undo_that_was_killed_at_its_end_is_not_done_twice(project: Project) -> None:
    project.review.apply(["f0"])
    project.review.apply()
    assert is_killed_at("change.done", project.review.undo)
    assert project.review.undo().paths == ("f1", "f2")
    assert project.texts() == [NEW, OLD, OLD]
    assert project.review.undo().paths == ("f0",)


def test_undo_takes_back_an_interrupted_apply_and_no_more(project: Project) -> None:
    project.review.apply(["f0"])
    assert is_killed_at("change.changed", project.review.apply)
    assert project.review.undo().paths == ("f1", "f2")
    assert project.texts() == [NEW, OLD, OLD]


def test_what_was_interrupted_can_be_recovered_without_its_copy(project: Project) -> None:
    assert is_killed_at("change.changed", project.review.apply)
    with pytest.raises(ApplyInterruptedError):
        recover(project.root)
    shutil.rmtree(project.copy.place)
    with pytest.raises(ApplyInterruptedError, match=f"{project.root} --recover"):
        working_copy(project.root)
    assert [each.paths for each in recover(project.root)] == [("f0", "f1", "f2")]
    assert project.texts() == [OLD] * 3
    assert project.others() == []


def test_a_record_that_is_damaged_is_refused_and_nothing_changes(project: Project) -> None:
    assert is_killed_at("change.changed", project.review.apply)
    (record,) = project.root.glob(f"{RESERVED_PREFIX}change-*/record")
    record.write_text("{")
    before = sorted(project.root.iterdir())
    with pytest.raises(CopyError, match="journal of an interrupted apply is damaged"):
        project.review.recover()
    assert sorted(project.root.iterdir()) == before


# --- where names cannot be exchanged ---


@pytest.fixture(params=["links", "no links"])
def without_exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file system be one without `renameat2`, and perhaps without hard links."""

    def refuse(*_: object, **__: object) -> None:
        fail(errno.EPERM)

    monkeypatch.setattr(atomic, "_renameat2", lambda *_: errno.EINVAL)
    if request.param == "no links":
        monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("without_exchange")
def test_it_works_without_an_exchange_of_names(project: Project) -> None:
    project.review.apply()
    assert project.texts() == [NEW] * 3
    project.review.undo()
    assert project.texts() == [OLD] * 3
    assert project.others() == []


@pytest.mark.usefixtures("without_exchange")
@pytest.mark.parametrize("save", SAVES)
def test_a_save_survives_without_an_exchange_of_names(
    project: Project, save: Callable[[Path], None]
) -> None:
    with (
        at_point("slot.out", lambda: save(project.root / "f1")),
        pytest.raises(ConflictError),
    ):
        project.review.apply()
    assert project.texts() == [OLD, MINE, OLD]
    assert project.others() == []


@pytest.mark.usefixtures("without_exchange")
def test_a_save_while_the_path_is_absent_stays_and_the_file_before_is_kept(
    project: Project,
) -> None:
    with (
        at_point("slot.out", lambda: (project.root / "f1").write_text(MINE), 2),
        pytest.raises(ConflictError),
    ):
        project.review.apply()
    assert project.texts() == [OLD, MINE, OLD]
    assert project.others() == ["f1.wink-kept"]
    assert (project.root / "f1.wink-kept").read_text() == OLD


@pytest.mark.usefixtures("without_exchange")
@pytest.mark.parametrize("point", ["slot.out", "change.exchanged", "change.changed", "change.done"])
def test_a_kill_is_recovered_without_an_exchange_of_names(project: Project, point: str) -> None:
    assert is_killed_at(point, project.review.apply)
    project.review.recover()
    assert project.texts() == [NEW if point == "change.done" else OLD] * 3
    assert project.others() == []
