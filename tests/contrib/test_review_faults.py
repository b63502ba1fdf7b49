"""Whatever fails while changes are applied, and wherever it is killed: the old or the new."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.filesystem.forks import KILLED, ends, in_a_child
from tests.filesystem.trees_on_disk import State, clear, difference, lay_out, state_of
from tests.safety.history import ONE, TWO, hidden_names
from tests.safety.places import LONG, temporary
from tests.safety.test_faults import nth_call_fails
from weakincentives.contrib.review import ConflictError, Review, working_copy
from weakincentives.errors import WinkError
from weakincentives.filesystem.faults import fault_hook
from weakincentives.filesystem.paths import RESERVED_PREFIX

CHOSEN = 10_000 if LONG else 20


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
def test_wherever_it_is_killed_the_next_look_finds_the_old_or_the_new(stage: Stage) -> None:
    points = points_of(stage.review.apply)
    stage.begin_again()
    found: set[str] = set()
    for number in numbers(len(points)):
        assert dies_at(number, stage.review.apply)
        found.add("mix" if stage.state().startswith("a mix") else stage.state())
        assert stage.review.conflicts() == ()  # whoever looks takes back what was left
        assert stage.state() in {"one", "two"}, f"{points[number]}: {stage.state()}"
        assert hidden_names(stage.root) == []
        stage.begin_again()
    assert found >= {"one", "mix"}


def test_who_was_killed_when_it_was_done_can_still_undo_it(stage: Stage) -> None:
    points = points_of(stage.review.apply)
    stage.begin_again()
    last = max(number for number, name in enumerate(points) if name == "journal.ended")
    assert dies_at(last, stage.review.apply)
    assert stage.state() == "two"
    assert stage.review.undo().paths
    assert stage.state() == "one"


def test_what_was_never_applied_is_passed_over_by_undo(stage: Stage) -> None:
    stage.review.apply(["d"])
    between = state_of(stage.root)
    points = points_of(stage.review.apply)
    stage.review.undo()
    assert dies_at(points.index("journal.kept"), stage.review.apply)
    assert stage.review.conflicts() == ()
    assert state_of(stage.root) == between
    stage.review.undo()
    assert stage.state() == "one"


def test_who_changes_a_path_at_the_last_moment_is_not_overwritten(stage: Stage) -> None:
    def meddle(point: str) -> None:
        if point == "journal.started":
            (stage.root / "changed").write_bytes(b"by a person")

    with fault_hook(meddle), pytest.raises(ConflictError, match="changed at this moment"):
        stage.review.apply()
    assert (stage.root / "changed").read_bytes() == b"by a person"
    (stage.root / "changed").write_bytes(stage.one[b"changed"][1])
    assert stage.state() == "one"


def test_who_makes_a_path_at_the_last_moment_is_not_overwritten(stage: Stage) -> None:
    def meddle(point: str) -> None:
        if point == "store.closed" and not (stage.root / "only two").exists():
            (stage.root / "only two").write_bytes(b"by a person")

    with fault_hook(meddle), pytest.raises((ConflictError, FileExistsError)):
        stage.review.apply()
    assert (stage.root / "only two").read_bytes() == b"by a person"
    (stage.root / "only two").unlink()
    assert stage.state() == "one"


def test_who_puts_something_into_a_directory_that_goes_keeps_it(stage: Stage) -> None:
    def meddle(point: str) -> None:
        if point == "journal.started":
            (stage.root / "gone/deep/mine").write_bytes(b"by a person")

    with fault_hook(meddle), pytest.raises(ConflictError):
        stage.review.apply()
    assert (stage.root / "gone/deep/mine").read_bytes() == b"by a person"
    (stage.root / "gone/deep/mine").unlink()
    assert stage.state() == "one"
