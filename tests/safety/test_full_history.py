"""A full disk costs the operation and nothing else, where the files are and where the store is.

Where no disk may be mounted, a fault at every named point shows the same.
"""

import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import State, state_of
from tests.safety.history import OPERATIONS, Stage, check, check_store, hidden_names, is_open
from tests.safety.places import mounted
from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem import HostFilesystem
from weakincentives.filesystem.faults import fault_hook

FULL = {errno.ENOSPC, errno.EDQUOT}
REST = "rest"


class Killed(BaseException):
    """Stands for a process that ends here."""


def fill_up(directory: Path) -> None:
    """Leave no byte on the disk."""
    size = 65_536
    with (directory / REST).open("ab", buffering=0) as rest:
        while size:
            try:
                rest.write(b"x" * size)
            except OSError as error:
                assert error.errno in FULL
                size //= 2


@contextmanager
def small(directory: Path, part: str, size: str) -> Iterator[Stage | None]:
    """Yield a stage of which one part is a small disk, if we may mount one."""
    path = directory / part
    path.mkdir(exist_ok=True)
    with mounted(path, size=size) as done:
        yield Stage(directory) if done else None


def cause_of(error: BaseException | None) -> int | None:
    """Return the error number at the bottom of a chain of errors."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return None if error is None else error.errno


def fails(fs: HostFilesystem, stage: Stage, operation: str, before: State) -> None:
    """Check that there is no room for an operation, and that this changes nothing."""
    for _ in range(2):
        with pytest.raises((SnapshotError, OSError)) as caught:
            OPERATIONS[operation](fs, stage)
        assert cause_of(caught.value) in FULL
        assert state_of(stage.root) == before
        assert hidden_names(stage.directory) == []


@pytest.mark.parametrize("operation", ["restore", "import"])
def test_no_room_where_the_files_are(light_directory: Path, operation: str) -> None:
    with small(light_directory, "workspace", "384k") as stage:
        if stage is None:
            return
        fill_up(stage.root)
        with stage.opened() as fs:
            fails(fs, stage, operation, state_of(stage.root))
            (stage.root / REST).unlink()
            OPERATIONS[operation](fs, stage)
        assert stage.state() == "one"
        check(stage, operation, finished=True)


@pytest.mark.parametrize("operation", ["snapshot", "export"])
def test_what_writes_elsewhere_needs_no_room_where_the_files_are(
    light_directory: Path, operation: str
) -> None:
    with small(light_directory, "workspace", "384k") as stage:
        if stage is None:
            return
        fill_up(stage.root)
        before = state_of(stage.root)
        with stage.opened() as fs:
            OPERATIONS[operation](fs, stage)
        assert state_of(stage.root) == before


@pytest.mark.parametrize("operation", ["snapshot", "restore", "import"])
def test_no_room_in_the_store(light_directory: Path, operation: str) -> None:
    with small(light_directory, "store", "512k") as stage:
        if stage is None:
            return
        kept = stage.listed()
        fill_up(stage.store)
        with stage.opened() as fs:
            fails(fs, stage, operation, stage.states["two"])
            OPERATIONS["export"](fs, stage)
            (stage.store / REST).unlink()
            OPERATIONS[operation](fs, stage)
        check(stage, operation, finished=True)
        check_store(stage, kept)


def test_no_room_for_an_archive(light_directory: Path) -> None:
    with small(light_directory, "exports", "64k") as stage:
        if stage is None:
            return
        fill_up(stage.exports)
        archive = stage.target.read_bytes()
        with stage.opened() as fs:
            fails(fs, stage, "export", stage.states["two"])
            assert stage.target.read_bytes() == archive
            (stage.exports / REST).unlink()
            OPERATIONS["export"](fs, stage)
        check(stage, "export", finished=True)


@pytest.mark.parametrize("size", [192, 256, 384, 512, 640, 768])
def test_a_store_that_fills_up_keeps_all_and_room_can_be_made(
    light_directory: Path, size: int
) -> None:
    path, root = light_directory / "store", light_directory / "workspace"
    path.mkdir()
    root.mkdir()
    choice = random.Random(size)
    with mounted(path, size=f"{size}k") as done, HostFilesystem(root, git_dir=path) as fs:
        if not done:
            return
        (root / "keep").write_bytes(choice.randbytes(10_000))
        kept, states = [fs.snapshot()], [state_of(root)]
        with pytest.raises(SnapshotError):
            while True:
                (root / "changes").write_bytes(choice.randbytes(choice.randrange(9_000)))
                states.append(state_of(root))
                kept.append(fs.snapshot())
        assert fs.history.verify() == []
        assert [each.commit_ref for each in fs.history.list()] == [k.commit_ref for k in kept]
        fs.history.prune(keep=3)
        fs.history.gc()
        latest = fs.snapshot()
        for snapshot, state in zip([*kept[-3:], latest], states[-4:], strict=True):
            fs.restore(snapshot)
            assert state_of(root) == state
        assert fs.history.verify() == []


def test_the_latest_snapshots_can_be_forgotten_where_no_byte_is_free(light_directory: Path) -> None:
    path, root = light_directory / "store", light_directory / "workspace"
    path.mkdir()
    root.mkdir()
    choice = random.Random(1)
    with mounted(path, size="256k") as done, HostFilesystem(root, git_dir=path) as fs:
        if not done:
            return
        kept = [fs.snapshot()]
        with pytest.raises(SnapshotError):
            while True:
                (root / "changes").write_bytes(choice.randbytes(5_000))
                kept.append(fs.snapshot())
        fill_up(path)
        fs.history.forget(*kept[2:])
        assert list(fs.history.list()) == kept[:2]
        (path / REST).unlink()
        fs.history.gc()
        assert fs.history.verify() == []
        fs.snapshot()
        assert len(fs.history.list()) == 3


POINTS = ["restore.staged", "restore.decided", "restore.removed", "restore.made", "restore.stored"]


@pytest.mark.parametrize("operation", ["restore", "import"])
@pytest.mark.parametrize("point", POINTS)
def test_a_disk_that_fills_up_half_way(light_directory: Path, operation: str, point: str) -> None:
    """Somebody else takes every byte that becomes free, at any moment."""
    with mounted(light_directory, size="1536k") as done:
        if not done:
            return
        stage = Stage(light_directory)
        seen: list[str] = []

        def hook(reached: str) -> None:
            seen.append(reached)
            if point in seen:
                fill_up(light_directory)

        with stage.opened() as fs:
            try:
                with fault_hook(hook):
                    OPERATIONS[operation](fs, stage)
            except (SnapshotError, OSError) as error:
                assert cause_of(error) in FULL, error
        assert point in seen
        (light_directory / REST).unlink()
        check(stage, operation)
        check_store(stage, set())


def test_what_was_decided_is_finished_once_there_is_room(light_directory: Path) -> None:
    with small(light_directory, "store", "512k") as stage:
        if stage is None:
            return

        def die(point: str) -> None:
            if point == "restore.stored":
                raise Killed

        with stage.opened() as fs, pytest.raises(Killed), fault_hook(die):
            OPERATIONS["restore"](fs, stage)
        fill_up(stage.store)
        assert is_open(stage)
        half = state_of(stage.root)
        with pytest.raises(SnapshotRestoreError, match="cannot be finished"):
            stage.opened()
        assert state_of(stage.root) == half
        (stage.store / REST).unlink()
        assert check(stage, "restore", finished=True) == "one"
