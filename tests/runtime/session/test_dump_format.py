"""The two files of a dump are replaced together, whatever happens in between."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TypeAlias

import pytest

from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.filesystem.archive import export
from weakincentives.posix import fault_hook
from weakincentives.runtime.session import (
    DumpError,
    Session,
    dump_session_tree,
    load_dump,
)
from weakincentives.runtime.session.dump_format import ARCHIVED, FAULT_POINTS, DumpFiles

NAME = "x"


@dataclass(frozen=True)
class Note:
    text: str


@pytest.fixture
def target(tmp_path: Path) -> Path:
    made = tmp_path / "dumps"
    made.mkdir()
    return made


def dump(target: Path, text: str | None, content: str | None) -> None:
    """Dump a session with a note, and a workspace with a file."""
    session = Session(tags={"session_id": NAME})
    session[Note].seed([] if text is None else [Note(text)])
    fs = None
    if content is not None:
        fs = InMemoryFilesystem()
        fs.write("a", content)
    dump_session_tree(session, target, fs)


def found(target: Path) -> tuple[str, str | None] | None:
    """Return the note and the file of the dump; None if there is no dump."""
    try:
        loaded = load_dump(target / f"{NAME}.jsonl", [Note])
    except FileNotFoundError:
        return None
    (note,) = loaded.session[Note].all()
    files = loaded.filesystem
    return note.text, None if files is None else files.read("a").content


def points_of(work: Callable[[], None]) -> list[str]:
    points: list[str] = []
    with fault_hook(points.append):
        work()
    return points


def names_in(target: Path) -> set[str]:
    return {each.name for each in target.iterdir()}


def killed_at(index: int, work: Callable[[], None]) -> None:
    """Do the work in a child that is killed at a fault point."""
    child = os.fork()
    if child == 0:
        count = iter(range(index + 1))

        def hook(_: str) -> None:
            if next(count) == index:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            with fault_hook(hook):
                work()
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


Pair: TypeAlias = tuple[str, str | None]

# before and after, each a note and a file
CHANGES: dict[str, tuple[Pair | None, Pair]] = {
    "the first dump": (None, ("new", "new file")),
    "both change": (("old", "old file"), ("new", "new file")),
    "the session changes": (("old", "same"), ("new", "same")),
    "files come": (("old", None), ("new", "new file")),
    "files go": (("old", "old file"), ("new", None)),
    "no files": (("old", None), ("new", None)),
}


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> tuple[Pair | None, Pair]:
    return CHANGES[request.param]


def prepared(target: Path, index: int, before: Pair | None) -> Path:
    made = target / str(index)
    made.mkdir()
    if before is not None:
        dump(made, *before)
    return made


def test_the_fault_points_are_reached(target: Path):
    reached = points_of(lambda: dump(target, "a", "b")) + points_of(lambda: dump(target, "a", None))
    assert {*FAULT_POINTS, *export.FAULT_POINTS} <= {*reached}


@pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning")
def test_a_killed_dump_leaves_the_old_one_or_the_new_one(
    target: Path, change: tuple[Pair | None, Pair]
):
    before, after = change
    first = prepared(target, -1, before)
    count = len(points_of(lambda: dump(first, *after)))
    seen: list[tuple[str, str | None] | None] = []
    for index in range(count):
        place = prepared(target, index, before)
        killed_at(index, lambda place=place: dump(place, *after))
        seen.append(found(place))
        dump(place, "next", "next file")
        assert found(place) == ("next", "next file")
        assert names_in(place) == {f"{NAME}.jsonl", f"{NAME}.fs.zip"}
    # old, then new, and nothing in between
    turn = seen.index(after)
    assert seen == [before] * turn + [after] * (count - turn)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning")
def test_a_dump_that_follows_a_killed_one_may_be_killed_as_well(target: Path):
    old, first, second = ("old", "old file"), ("first", "first file"), ("second", "second file")
    place = prepared(target, -1, old)
    points = points_of(lambda: dump(place, *first))
    between = points.index(ARCHIVED)
    for index in range(len(points)):
        place = prepared(target, index, old)
        killed_at(between, lambda place=place: dump(place, *first))
        assert found(place) == first
        killed_at(index, lambda place=place: dump(place, *second))
        assert found(place) in {first, second}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_dump_that_fails_leaves_the_old_one_or_the_new_one(
    target: Path, code: int, change: tuple[Pair | None, Pair]
):
    before, after = change
    first = prepared(target, -1, before)
    count = len(points_of(lambda: dump(first, *after)))
    for index in range(count):
        place = prepared(target, index, before)
        reached = iter(range(count + 100))

        def hook(_: str, reached: Iterator[int] = reached, index: int = index) -> None:
            if next(reached) == index:
                raise OSError(code, os.strerror(code))

        with fault_hook(hook), pytest.raises(OSError, match=os.strerror(code)):
            dump(place, *after)
        assert found(place) in {before, after}
        assert not [name for name in names_in(place) if name.startswith(".wink-tmp-")]
        dump(place, "next", "next file")
        assert found(place) == ("next", "next file")
        assert names_in(place) == {f"{NAME}.jsonl", f"{NAME}.fs.zip"}


def test_a_dump_without_files_takes_the_earlier_archive_with_it(target: Path):
    dump(target, "old", "old file")
    dump(target, "new", None)
    assert names_in(target) == {f"{NAME}.jsonl"}
    assert found(target) == ("new", None)


def test_nothing_to_persist_leaves_the_earlier_dump(target: Path):
    dump(target, "old", "old file")
    dump(target, None, None)
    assert found(target) == ("old", "old file")


def test_what_is_no_file_is_not_replaced(target: Path):
    dump(target, "old", "old file")
    files = DumpFiles(target / f"{NAME}.jsonl")
    files.text.unlink()
    files.text.mkdir()
    kept = files.archive.read_bytes()
    with pytest.raises(FileExistsError):
        dump(target, "new", "new file")
    assert files.archive.read_bytes() == kept
    assert names_in(target) == {files.text.name, files.archive.name}
    files.text.rmdir()
    files.archive.unlink()
    files.archive.symlink_to("/etc/hostname")
    with pytest.raises(FileExistsError):
        dump(target, "new", "new file")
    assert names_in(target) == {files.archive.name}


@pytest.mark.parametrize("data", ["my own lines\n", '{"format":"wink-session"}\n', "{}\n", "\n"])
def test_a_file_of_somebody_else_is_not_replaced(target: Path, data: str):
    (target / f"{NAME}.jsonl").write_text(data)
    for content in ("file", None):
        with pytest.raises(FileExistsError, match="Existing file is not a dump"):
            dump(target, "new", content)
    assert (target / f"{NAME}.jsonl").read_text() == data
    assert names_in(target) == {f"{NAME}.jsonl"}


@pytest.mark.parametrize("size", [0, 1, 10, 20, 100, -1])
def test_a_dump_that_was_cut_off_is_replaced(target: Path, size: int):
    dump(target, "old", "old file")
    text = target / f"{NAME}.jsonl"
    text.write_bytes(text.read_bytes()[:size])
    dump(target, "new", "new file")
    assert found(target) == ("new", "new file")


def test_a_waiting_text_that_is_damaged_does_no_harm(target: Path):
    dump(target, "old", "old file")
    files = DumpFiles(target / f"{NAME}.jsonl")
    files.pending.write_text("not a dump")
    assert found(target) == ("old", "old file")
    files.archive.write_bytes(b"")
    with pytest.raises(DumpError, match="Archive does not belong to"):
        found(target)
    dump(target, "new", "new file")
    assert found(target) == ("new", "new file")
    assert not files.pending.exists()


def test_dumps_of_one_name_from_several_threads_end_in_one_of_them(target: Path):
    def work(name: str) -> None:
        for number in range(5):
            dump(target, f"{name}{number}", f"{name}{number}")

    threads = [Thread(target=work, args=(name,)) for name in "abc"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    last = found(target)
    assert last is not None
    assert last[0] == last[1]
    assert last[0] in {"a4", "b4", "c4"}
    assert names_in(target) == {f"{NAME}.jsonl", f"{NAME}.fs.zip"}


def test_a_dump_that_is_replaced_while_it_is_loaded_is_loaded_whole(target: Path):
    dump(target, "0", "0")
    # between the check of the archive and its import, twice
    fresh = iter(range(1, 3))
    loading = InMemoryFilesystem()

    def replace(_: object) -> None:
        with suppress(StopIteration):
            number = str(next(fresh))
            dump(target, number, number)

    loading.subscribe(replace)
    loaded = load_dump(target / f"{NAME}.jsonl", [Note], filesystem=loading)
    assert loaded.session[Note].all() == (Note("2"),)
    assert loading.read("a").content == "2"


def test_a_dump_that_never_comes_to_rest_is_refused(target: Path):
    dump(target, "0", "0")
    loading = InMemoryFilesystem()
    loading.subscribe(lambda _: dump(target, "1", "1"))
    with pytest.raises(DumpError, match="keeps being replaced"):
        load_dump(target / f"{NAME}.jsonl", [Note], filesystem=loading)


def test_readers_meet_a_whole_dump_at_every_step_of_a_new_one(target: Path):
    dump(target, "old", "old file")
    seen: list[tuple[str, str | None] | None] = []

    def look(point: str) -> None:
        if point in {*FAULT_POINTS}:
            seen.append(found(target))

    with fault_hook(look):
        dump(target, "new", "new file")
    assert seen == [("old", "old file")] * 2 + [("new", "new file")] * 2
