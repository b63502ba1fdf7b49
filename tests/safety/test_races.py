"""Links that are swapped in during an operation never lead outside.

A process exchanges a directory (and a file) with a link to a directory that holds a
secret, tens of thousands of times a second, while every operation is tried on them.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.safety.places import ROOT, SECRET, Opener, Place, opened
from tests.safety.swapper import PAIRS
from tests.sizes import size
from weakincentives.contrib.review.removal import remove_place
from weakincentives.filesystem import (
    BaseFilesystem,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    StaleContentError,
)

SECONDS = size(2.0, 60.0)
MORE_SECONDS = 120.0
ENOUGH = size(500, 100_000)

# what may happen to those who lose a race; anything else is a defect
DOCUMENTED = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    StaleContentError,  # of an append to a file that somebody keeps replacing
)

ATTEMPTS: dict[str, Callable[[BaseFilesystem, str], object]] = {
    "read": lambda fs, base: fs.read(f"{base}/s.txt"),
    "read_bytes": lambda fs, base: fs.read_bytes(f"{base}/s.txt"),
    "hash": lambda fs, base: fs.content_hash(f"{base}/s.txt"),
    "stat": lambda fs, base: fs.stat(f"{base}/s.txt").size_bytes,
    "exists": lambda fs, base: fs.exists(f"{base}/outside-only"),
    "list": lambda fs, base: fs.list(base),
    "glob": lambda fs, base: fs.glob("**", path=base),
    "glob_all": lambda fs, base: fs.glob("**/outside-only"),
    "grep": lambda fs, base: fs.grep(".", path=base),
    "grep_all": lambda fs, base: fs.grep("secret"),
    "write": lambda fs, base: fs.write(f"{base}/s.txt", "inside"),
    "append": lambda fs, base: fs.write(f"{base}/log", "inside", mode="append"),
    "create": lambda fs, base: fs.write(f"{base}/new/deep/f", "inside"),
    "mkdir": lambda fs, base: fs.mkdir(f"{base}/made/deep"),
    "delete": lambda fs, base: fs.delete(f"{base}/log"),
    "delete_tree": lambda fs, base: fs.delete(f"{base}/new", recursive=True),
    "delete_base": lambda fs, base: fs.delete(base, recursive=True),
    "move_out": lambda fs, base: fs.move(f"{base}/s.txt", "taken", overwrite=True),
    "move_in": lambda fs, base: fs.move("taken", f"{base}/s.txt", overwrite=True),
    "copy_out": lambda fs, base: fs.copy(f"{base}/s.txt", "copied", overwrite=True),
    "copy_in": lambda fs, base: fs.copy("plain", f"{base}/s.txt", overwrite=True),
    "copy_tree": lambda fs, base: fs.copy(base, "tree"),
    "file_read": lambda fs, _: fs.read("f"),
    "file_append": lambda fs, _: fs.write("f", "inside", mode="append"),
    "file_write": lambda fs, _: fs.write("f", "inside"),
    "file_copy": lambda fs, _: fs.copy("f", "copied", overwrite=True),
}


LOOKING = ("read", "read_bytes", "hash", "stat", "exists", "list", "glob", "grep", "file_read")

# seen to work and seen to be refused, or there was no race
BOTH_WAYS = {"read", "list", "glob", "grep", "stat", "write", "create", "mkdir", "file_read"}


@contextmanager
def swapping(workspace: Path) -> Iterator[list[int]]:
    """Swap names in `workspace` meanwhile; afterwards the list holds how often."""
    command = [sys.executable, "-m", "tests.safety.swapper", str(workspace)]
    swaps: list[int] = []
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as attacker:
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == "ready\n"
            yield swaps
            swaps.append(int(attacker.communicate(timeout=60)[0]))
        finally:
            attacker.kill()


def repair(place: Place) -> None:
    """Make one of each pair a link again, so that the race goes on.

    Operations may remove either, and who replaces a file that somebody keeps exchanging may leave
    two files. Nobody exchanges names of which one is missing, so there is no race in here.
    """
    dropped = place.workspace.parent / "dropped"
    for pair in PAIRS:
        names = [place.workspace / name for name in pair]
        with suppress(FileNotFoundError):
            names[1].rename(dropped)
            remove_place(dropped)
        for name, other in (names, names[::-1]):
            with suppress(FileNotFoundError):
                if not os.path.lexists(name):
                    refill(name, other, place)
    for path in (place.workspace / name for name in ("taken", "copied", "plain", "tree")):
        if path.is_symlink():
            path.unlink()
    shutil.rmtree(place.workspace / "tree", ignore_errors=True)
    for name in ("taken", "copied", "plain"):
        (place.workspace / name).write_text("inside")


def refill(name: Path, other: Path, place: Place) -> None:
    """Make `name` what `other` is not: a link to outside, or something real."""
    is_file = name.name.startswith("f")
    if not other.is_symlink():
        name.symlink_to(place.outside / "s.txt" if is_file else place.outside)
    elif is_file:
        name.touch(exist_ok=False)
    else:
        fresh_directory(place.workspace.parent).rename(name)


def fresh_directory(beside: Path) -> Path:
    """Make a directory with a file in it, where nobody swaps anything."""
    path = beside / "fresh"
    path.mkdir()
    (path / "s.txt").write_text("inside")
    return path


def lay_out(place: Place) -> None:
    (place.outside / "outside-only").write_text(SECRET)
    (place.outside / "log").write_text(SECRET)
    (place.outside / "new").mkdir()
    (place.outside / "new" / "keep").write_text(SECRET)
    (place.workspace / "deep").mkdir()
    repair(place)


def go_on(seconds: float, is_enough: Callable[[], bool]) -> Iterator[None]:
    """Yield for so long, and longer where a busy machine has not let enough happen."""
    end = time.monotonic() + seconds
    limit = end + MORE_SECONDS
    while (now := time.monotonic()) < end or (now < limit and not is_enough()):
        yield


def attack(fs: HostFilesystem, place: Place) -> tuple[Counter[str], Counter[str]]:
    """Try everything, until all has worked and was refused; return what worked and was refused."""
    worked: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    choice = random.Random(1)
    # the attacker keeps directories locked, so changes are slow: look more often than change
    names = list(ATTEMPTS) + [*LOOKING] * 8

    def is_enough() -> bool:
        has_raced = worked.total() + refused.total() > ENOUGH
        return has_raced and worked.keys() & refused.keys() >= BOTH_WAYS

    for _ in go_on(SECONDS, is_enough):
        for name in choice.sample(names, len(names)):
            base = choice.choice(["d", "d", "d", "deep/d"])
            try:
                result = ATTEMPTS[name](fs, base)
            except DOCUMENTED as error:
                assert SECRET not in str(error)
                refused[name] += 1
            else:
                assert SECRET not in repr(result), name
                assert "outside-only" not in repr(result), name
                assert result is not True, name
                worked[name] += 1
        repair(place)
    return worked, refused


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_swapped_links_lead_nobody_out(place: Place, opener: Opener) -> None:
    lay_out(place)
    surroundings = place.surroundings()
    with opened(place.workspace, opener) as fs, swapping(place.workspace) as swaps:
        worked, refused = attack(fs, place)
    assert place.surroundings() == surroundings
    assert secrets_in(place.workspace) == []
    print(f"{opener}: {swaps[0]} swaps, {worked.total()} worked, {refused.total()} refused")
    assert swaps[0] > 1_000
    assert worked.total() + refused.total() > ENOUGH
    assert worked.keys() >= BOTH_WAYS
    assert refused.keys() >= BOTH_WAYS


def secrets_in(workspace: Path) -> list[str]:
    """Return the files of the workspace, links not followed, that hold the secret."""
    return [
        name
        for directory, _, files in os.walk(workspace)
        for name in files
        if not Path(directory, name).is_symlink()
        if SECRET in Path(directory, name).read_text()
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("follow", [False, True], ids=["links skipped", "links followed"])
def test_a_mount_takes_nothing_from_outside_while_links_are_swapped(
    place: Place, follow: bool
) -> None:
    lay_out(place)
    outcomes: Counter[str] = Counter()
    with swapping(place.workspace) as swaps:
        for _ in go_on(size(0.5, 10.0), lambda: outcomes["worked"] > 0):
            memory = InMemoryFilesystem()
            try:
                memory.hydrate_from_host(
                    HostMount(".", follow_symlinks=follow), allowed_roots=[place.workspace]
                )
                outcomes["worked"] += 1
            except DOCUMENTED:
                outcomes["refused"] += 1
            assert memory.grep("secret") == ()
            assert memory.glob("**/outside-only") == ()
    assert swaps[0] > 100
    assert outcomes["worked"] > 0
