"""Operations of a review: what was changed in a copy goes into the original, and back."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.safety.person.moments import Moments
from tests.safety.person.operations import Operation, attempt
from tests.safety.person.project import end_line, text
from tests.safety.person.saves import Save
from weakincentives.contrib.review import Review, commit_changes, open_copy, working_copy
from weakincentives.contrib.review.commit import undo_commit

Work = Callable[[Review], object]


def change_copy(root: Path) -> None:
    """Do what an agent does in its copy."""
    for path in ("a.txt", "d/e.txt"):
        found = (root / path).read_text()
        (root / path).write_text(found.replace(end_line("base"), end_line("agent")))
    (root / "b.txt").unlink()
    (root / "d/f.txt").chmod(0o600)
    (root / "n").mkdir()
    (root / "n/o.txt").write_text(text("n/o.txt", "agent", "agent"))
    (root / "g/j.txt").rename(root / "g/k.txt")
    (root / "g/h/i.txt").unlink()
    (root / "g/h").rmdir()


def review_operation(
    work: Work,
    *,
    prepare: Work | None = None,
    undo: Work | None = None,
    needs_git: bool = False,
):
    """Return the operation that does something with a review, after something else.

    What it took away, an undo brings back.
    """

    def run(place: Path, moments: Moments) -> str:
        copy = working_copy(place / "root", place=place / "copy")
        change_copy(copy.root)
        with Review(copy) as review:
            if prepare is not None:
                prepare(review)
            with moments.count():
                return attempt(lambda: work(review))

    def regain(place: Path, save: Save) -> str:
        del save
        with Review(open_copy(place / "copy")) as review:
            return attempt(lambda: None if undo is None else undo(review))

    return Operation(run, recover, regain=regain, needs_git=needs_git)


def recover(place: Path, moments: Moments) -> str:
    """Look at the review again, and recover what was interrupted."""
    with moments.count(), Review(open_copy(place / "copy")) as review:
        return attempt(review.recover)


def _apply_hunks(review: Review) -> object:
    hunks = [hunk for path in ("a.txt", "d/e.txt") for hunk in review.hunks(path)]
    return review.apply(hunks=hunks)


def _commit(review: Review) -> object:
    return commit_changes(review, "Do it")


def _undo_commit(review: Review) -> object:
    undo_commit(review)
    return review.undo(partial=True)


REVIEW: Mapping[str, Operation] = {
    "apply": review_operation(Review.apply, undo=Review.undo),
    "apply and merge": review_operation(lambda review: review.apply(merge=True), undo=Review.undo),
    "apply hunks": review_operation(_apply_hunks, undo=Review.undo),
    "undo of an apply": review_operation(Review.undo, prepare=Review.apply),
    "undo and merge": review_operation(
        lambda review: review.undo(merge=True), prepare=Review.apply
    ),
    "commit": review_operation(_commit, undo=_undo_commit, needs_git=True),
    "undo of a commit": review_operation(_undo_commit, prepare=_commit, needs_git=True),
}
