"""Undo works if an agent removed all permissions of an entry, or replaced it by a pipe."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import difference, state_of, without_specials
from tests.safety.places import ROOT, temporary
from weakincentives.contrib.review import ConflictError, Review, working_copy

NOBODY = 65_534


def _pipe(root: Path) -> None:
    (root / "file").unlink()
    os.mkfifo(root / "file")


def _pipe_for_a_directory(root: Path) -> None:
    (root / "d/e/f").unlink()
    (root / "d/e").rmdir()
    os.mkfifo(root / "d/e")


def _closed_file(root: Path) -> None:
    (root / "file").write_text("changed\n")
    (root / "file").chmod(0)
    (root / "new").write_text("new\n")
    (root / "new").chmod(0o200)


def _closed_directory(root: Path) -> None:
    (root / "d/e/f").write_text("changed\n")
    (root / "d/e/new").write_text("new\n")
    (root / "d/e").chmod(0)


def _closed_directories(root: Path) -> None:
    (root / "d/e/f").write_text("changed\n")
    (root / "d/e/f").chmod(0)
    (root / "d/e").chmod(0o300)
    (root / "d").chmod(0o100)


def _closed_directories_to_all(root: Path) -> None:
    (root / "d/e/f").write_text("changed\n")
    (root / "d/e").chmod(0)
    (root / "d").chmod(0)


def _new_and_closed(root: Path) -> None:
    (root / "n/m").mkdir(parents=True)
    (root / "n/m/x").write_text("new\n")
    (root / "n/m").chmod(0)
    (root / "n").chmod(0)


def _removed_from_a_closed_directory(root: Path) -> None:
    (root / "d/e/f").unlink()
    (root / "d/e").chmod(0o500)


CASES: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        _pipe,
        _pipe_for_a_directory,
        _closed_file,
        _closed_directory,
        _closed_directories,
        _closed_directories_to_all,
        _new_and_closed,
        _removed_from_a_closed_directory,
    )
}


def apply_and_undo(directory: Path, case: Callable[[Path], None]) -> None:
    """Apply what an agent did, and take it back: everything is as it was."""
    original = directory / "original"
    (original / "d/e").mkdir(parents=True)
    (original / "d/e/f").write_text("inner\n")
    (original / "file").write_text("text\n")
    before = state_of(original)
    copy = working_copy(original, place=directory / "place")
    case(copy.root)
    wanted = without_specials(state_of(copy.root))
    with Review(copy) as review:
        assert review.conflicts() == ()
        applied = review.apply()
        assert applied.paths
        assert state_of(original) == wanted, difference(state_of(original), wanted)
        seen = state_of(original)
        review.conflicts()  # a look
        assert state_of(original) == seen
        assert review.apply().paths == ()
        assert review.undo().paths == applied.paths
        assert state_of(original) == before, difference(state_of(original), before)


def save_and_refuse(directory: Path) -> None:
    """What somebody has changed in a closed file since is not taken back."""
    original = directory / "original"
    original.mkdir()
    (original / "file").write_text("text\n")
    copy = working_copy(original, place=directory / "place")
    _closed_file(copy.root)
    with Review(copy) as review:
        review.apply()
        (original / "file").chmod(0o600)
        (original / "file").write_text("CHANGED\n")  # as long as what was applied
        (original / "file").chmod(0)
        seen = state_of(original)
        try:
            review.undo()
        except ConflictError as error:
            assert [each.path for each in error.conflicts] == ["file"]  # in a child
        else:
            raise AssertionError("taken back")
        assert state_of(original) == seen


@pytest.mark.parametrize("case", CASES)
def test_what_was_applied_is_taken_back(case: str, tmp_path: Path):
    apply_and_undo(tmp_path, CASES[case])


UNPRIVILEGED = """
import os, sys
from pathlib import Path
from tests.contrib.review.test_closed import CASES, apply_and_undo, save_and_refuse
from tests.filesystem.host.restore_trees import become
base = Path(sys.argv[1])
if os.geteuid() == 0:
    become(65534, base)
if sys.argv[2] in CASES:
    apply_and_undo(base, CASES[sys.argv[2]])
else:
    save_and_refuse(base)
"""


@pytest.mark.parametrize("case", [*CASES, "a save"])
def test_an_ordinary_user_takes_it_back_too(case: str):
    with temporary(light=True) as directory:
        directory.chmod(0o755)
        work = directory / "work"
        work.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(work), case],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
