"""Faults and kills at every step of an apply: the old state or the new one."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import State, clear, difference, lay_out, state_of
from tests.posix.forks import KILLED, ends, in_a_child
from tests.safety.history import ONE, TWO, hidden_names
from tests.safety.places import mounted, temporary
from tests.safety.test_faults import nth_call_fails
from tests.sizes import size
from weakincentives.contrib.review import (
    ApplyInterruptedError,
    ConflictError,
    Review,
    working_copy,
)
from weakincentives.errors import WinkError
from weakincentives.posix import RESERVED_PREFIX, fault_hook

NOBODY = 65534
CHOSEN = size(10, 10_000)


class Stage:
    """An original in the state one, and the review of a copy in the state two."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "original"
        self.root.mkdir()
        lay_out(self.root, ONE)
        self.one = state_of(self.root)
        self.copy = working_copy(self.root, place=directory / "place")
        clear(self.copy.root)
        lay_out(self.copy.root, TWO)
        self.two = state_of(self.copy.root)
        self.review = Review(self.copy, with_git=True)
        assert self.review.diff
        assert self.review.conflicts() == ()

    def state(self) -> str:
        """Return the name of the state that the original is in, hidden names aside."""
        found: State = {
            path: entry
            for path, entry in state_of(self.root).items()
            if not path.startswith(RESERVED_PREFIX.encode())
            and f"/{RESERVED_PREFIX}".encode() not in path
        }
        if found in (self.one, self.two):
            return "one" if found == self.one else "two"
        return f"a mix: {difference(found, self.one)} or {difference(found, self.two)}"

    def begin_again(self) -> None:
        """Go back to the state one, and look at everything anew."""
        self.review.close()
        self.review = Review(self.copy, with_git=True)
        assert self.review.recover().kept == ()
        assert not any("apply" in name.rpartition("/")[2] for name in hidden_names(self.root))
        if self.state() == "two":
            assert self.review.conflicts() == ()
            try:
                self.review.undo()
            except ValueError:  # the failure came when all was done, and it was forgotten
                clear(self.root)
                lay_out(self.root, ONE)
        assert self.state() == "one"
        assert self.review.diff


@pytest.fixture
def stage() -> Iterator[Stage]:
    with temporary(light=True) as directory:
        made = Stage(directory)
        yield made
        made.review.close()


def numbers(count: int) -> list[int]:
    """Return which of so many faults are tried: all, or some from the first to the last."""
    step = max(1.0, (count - 1) / CHOSEN)
    return sorted({round(number * step) for number in range(int((count - 1) / step) + 1)})


@pytest.mark.slow
@pytest.mark.parametrize(("work", "code"), [(Review.apply, errno.ENOSPC), (Review.undo, errno.EIO)])
def test_whichever_call_fails_the_old_or_the_new_is_there(
    stage: Stage, work: Callable[[Review], object], code: int
) -> None:
    def attempt(nth: int, called: list[str]) -> None:
        if work is Review.undo:
            stage.review.apply()
        with nth_call_fails(nth, code, called):
            work(stage.review)

    called: list[str] = []
    attempt(-1, called)
    stage.begin_again()
    raised = 0
    for nth in numbers(len(called)):
        try:
            attempt(nth, [])
        except (OSError, WinkError):
            raised += 1
        assert stage.state() in {"one", "two"}, f"call {nth}, {called[nth]}: {stage.state()}"
        stage.begin_again()
    assert raised > 5


def points_of(work: Callable[[], object]) -> list[str]:
    points: list[str] = []
    with fault_hook(points.append):
        work()
    return points


def dies_at(number: int, work: Callable[[], object]) -> bool:
    """Do `work` in a process that is gone at the fault point of this number."""
    reached = 0

    def hook(_: str) -> None:
        nonlocal reached
        reached += 1
        if reached == number + 1:
            os._exit(KILLED)

    def run() -> None:
        with fault_hook(hook):
            work()

    return ends(in_a_child(run)) == KILLED


@pytest.mark.slow
@pytest.mark.parametrize("work", [Review.apply, Review.undo])
def test_wherever_it_is_killed_recovery_finds_the_old_or_the_new(
    stage: Stage, work: Callable[[Review], object]
) -> None:
    def ready() -> None:
        if work is Review.undo:
            stage.review.apply()

    ready()
    points = points_of(lambda: work(stage.review))
    stage.begin_again()
    found: set[str] = set()
    for number in numbers(len(points)):
        ready()
        assert dies_at(number, lambda: work(stage.review))
        found.add("mix" if stage.state().startswith("a mix") else stage.state())
        before = stats_of(stage.root)
        look(stage.review)
        assert stats_of(stage.root) == before, points[number]
        stage.review.recover()
        assert stage.state() in {"one", "two"}, f"{points[number]}: {stage.state()}"
        assert hidden_names(stage.root) == []
        stage.begin_again()
    assert found >= {"one", "mix"}


def look(review: Review) -> None:
    """Do everything that only looks."""
    assert str(review.diff)  # empty before an undo: everything was applied
    if review.interrupted is None:
        review.conflicts()
        review.merges()
        return
    other = review.copy.place.parent / "other"
    for question in (
        review.conflicts,
        review.merges,
        lambda: working_copy(review.copy.original, place=other),
    ):
        with pytest.raises(ApplyInterruptedError, match="--recover"):
            question()
    assert not other.exists()


def stats_of(root: Path) -> dict[str, tuple[int, ...]]:
    found = {str(path): path.lstat() for path in (root, *root.rglob("*"))}
    return {
        name: (each.st_ino, each.st_mtime_ns, each.st_ctime_ns, each.st_mode)
        for name, each in found.items()
    }


@pytest.mark.slow
def test_recovery_can_be_killed_anywhere_too(stage: Stage) -> None:
    points = points_of(stage.review.apply)
    stage.begin_again()
    last = max(number for number, name in enumerate(points) if name == "change.checked")
    assert dies_at(last, stage.review.apply)
    points = points_of(stage.review.recover)
    assert stage.state() == "one"
    assert len(points) > 20
    for number in {*numbers(len(points)), *map(points.index, points)}:
        assert dies_at(last, stage.review.apply)
        assert dies_at(number, stage.review.recover), points[number]
        assert dies_at(0, stage.review.recover) or stage.review.interrupted is None
        stage.review.recover()
        assert stage.state() == "one"
        assert hidden_names(stage.root) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken"), KeyboardInterrupt()],
    ids=["full", "broken", "interrupted"],
)
@pytest.mark.parametrize("work", [Review.apply, Review.undo])
def test_a_fault_at_any_named_point_leaves_the_old_or_the_new(
    stage: Stage, work: Callable[[Review], object], fault: BaseException
) -> None:
    def attempt(number: int) -> None:
        reached = 0

        def hook(_: str) -> None:
            nonlocal reached
            reached += 1
            if reached == number + 1:
                raise fault

        if work is Review.undo:
            stage.review.apply()
        with fault_hook(hook):
            work(stage.review)

    points = points_of(lambda: attempt(-1))
    stage.begin_again()
    for number in numbers(len(points)):
        with suppress(OSError, KeyboardInterrupt):
            attempt(number)
        assert stage.state() in {"one", "two"}, f"{points[number]}: {stage.state()}"
        stage.begin_again()


@pytest.mark.slow
@pytest.mark.root  # for others, the other tests do the same
def test_an_ordinary_user_recovers_in_closed_directories_too(stage: Stage) -> None:
    points = points_of(stage.review.apply)
    stage.review.undo()

    def work(directory: Path) -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        mine = Stage(directory)
        for number in numbers(len(points)):
            assert dies_at(number, mine.review.apply)
            mine.review.recover()
            assert mine.state() in {"one", "two"}, f"{points[number]}: {mine.state()}"
            assert hidden_names(mine.root) == []
            mine.begin_again()
        mine.review.apply()
        assert hidden_names(mine.root) == []
        assert mine.state() == "two"
        hide_a_directory(directory / "more")

    with temporary(light=True) as directory:
        os.chown(directory, NOBODY, NOBODY)
        assert ends(in_a_child(lambda: work(directory))) == 0


def hide_a_directory(directory: Path) -> None:
    """Apply a directory that its owner cannot look into, and undo it."""
    root = directory / "original"
    (root / "d").mkdir(parents=True)
    (root / "d/f").write_text("one")
    copy = working_copy(root, place=directory / "place")
    (copy.root / "d/f").write_text("two")
    (copy.root / "d/g").write_text("two")
    (copy.root / "d").chmod(0o300)
    with Review(copy) as review:
        review.apply()
        assert stat.S_IMODE((root / "d").stat().st_mode) == 0o300
        (root / "d").chmod(0o700)
        found = {each.name: each.read_text() for each in (root / "d").iterdir()}
        assert found == {"f": "two", "g": "two"}


@pytest.mark.root
def test_a_disk_that_is_full_changes_nothing() -> None:
    with temporary(light=True) as directory, mounted(directory, "4m"):
        root = directory / "original"
        root.mkdir()
        (root / "f").write_bytes(os.urandom(1_000_000))
        before = state_of(root)
        with temporary(light=True) as elsewhere:
            copy = working_copy(root, place=elsewhere / "place")
            (copy.root / "f").write_bytes(os.urandom(5_000_000))
            (copy.root / "g").write_bytes(b"new")
            with Review(copy) as review:
                with pytest.raises(OSError, match="No space left"):
                    review.apply()
                assert state_of(root) == before
                assert review.interrupted is None


@pytest.mark.root
def test_a_rollback_needs_no_space() -> None:
    with temporary(light=True) as directory, mounted(directory, "4m"):
        root = directory / "original"
        root.mkdir()
        for name in ("f", "g", "h"):
            (root / name).write_bytes(os.urandom(300_000))
        before = state_of(root)

        def fill(point: str) -> None:
            if point == "change.changed":
                with (directory / "filler").open("wb", buffering=0) as file:
                    while file.write(bytes(4_096)) == 4_096:
                        pass

        with temporary(light=True) as elsewhere:
            copy = working_copy(root, place=elsewhere / "place")
            for name in ("f", "g", "i"):
                (copy.root / name).write_bytes(os.urandom(300_000))
            (copy.root / "h").unlink()
            full = pytest.raises(OSError, match="No space left")
            with Review(copy) as review, fault_hook(fill), full:
                review.apply()
            assert state_of(root) == before


def test_who_was_killed_when_it_was_done_can_still_undo_it(stage: Stage) -> None:
    points = points_of(stage.review.apply)
    stage.begin_again()
    last = max(number for number, name in enumerate(points) if name == "change.done")
    assert dies_at(last, stage.review.apply)
    assert stage.state() == "two"
    assert stage.review.undo().paths
    assert stage.state() == "one"


def test_what_was_never_applied_is_passed_over_by_undo(stage: Stage) -> None:
    stage.review.apply(["d"])
    between = state_of(stage.root)
    points = points_of(stage.review.apply)
    stage.review.undo()
    assert dies_at(points.index("change.recorded"), stage.review.apply)
    stage.review.recover()
    assert state_of(stage.root) == between
    stage.review.undo()
    assert stage.state() == "one"


def test_who_changes_a_path_at_the_last_moment_is_not_overwritten(stage: Stage) -> None:
    def meddle(point: str) -> None:
        if point == "change.staged":
            (stage.root / "changed").write_bytes(b"by a person")

    with fault_hook(meddle), pytest.raises(ConflictError, match="changed just now"):
        stage.review.apply()
    assert (stage.root / "changed").read_bytes() == b"by a person"
    (stage.root / "changed").write_bytes(stage.one[b"changed"][1])
    assert stage.state() == "one"


def test_who_makes_a_path_at_the_last_moment_is_not_overwritten(stage: Stage) -> None:
    def meddle(point: str) -> None:
        if point == "change.staged" and not (stage.root / "only two").exists():
            (stage.root / "only two").write_bytes(b"by a person")

    with fault_hook(meddle), pytest.raises(ConflictError):
        stage.review.apply()
    assert (stage.root / "only two").read_bytes() == b"by a person"
    (stage.root / "only two").unlink()
    assert stage.state() == "one"


def test_who_puts_something_into_a_directory_that_goes_keeps_it(stage: Stage) -> None:
    def meddle(point: str) -> None:
        if point == "change.staged":
            (stage.root / "gone/deep/mine").write_bytes(b"by a person")

    with fault_hook(meddle), pytest.raises(ConflictError):
        stage.review.apply()
    assert (stage.root / "gone/deep/mine").read_bytes() == b"by a person"
    (stage.root / "gone/deep/mine").unlink()
    assert stage.state() == "one"
