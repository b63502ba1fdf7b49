"""A full disk, of the workspace or of the store, fails the operation and harms nothing else.

Where no disk may be mounted, a fault at every named point shows the same.
"""

import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.filesystem.trees_on_disk import State, state_of
from tests.posix.forks import is_killed_at
from tests.safety.history import OPERATIONS, Stage, check, check_store, hidden_names, is_open
from tests.safety.places import mounted
from weakincentives.errors import SnapshotError, SnapshotRestoreError
from weakincentives.filesystem import DEFAULT_LIMITS, HostFilesystem, Limits
from weakincentives.posix import fault_hook
from weakincentives.runtime import checkpoint, rollback_to, transaction
from weakincentives.runtime.checkpoints import SessionFile
from weakincentives.runtime.session import Session

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .*fork:DeprecationWarning"),
    pytest.mark.root,
]

FULL = {errno.ENOSPC, errno.EDQUOT}
REST = "rest"


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
def small(directory: Path, part: str, size: str) -> Iterator[Stage]:
    """Yield a stage of which one part is a small disk."""
    path = directory / part
    path.mkdir(exist_ok=True)
    with mounted(path, size=size):
        yield Stage(directory)


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
        fill_up(stage.root)
        before = state_of(stage.root)
        with stage.opened() as fs:
            OPERATIONS[operation](fs, stage)
        assert state_of(stage.root) == before


@pytest.mark.parametrize("operation", ["snapshot", "import"])
def test_no_room_in_the_store(light_directory: Path, operation: str) -> None:
    with small(light_directory, "store", "512k") as stage:
        kept = stage.listed()
        fill_up(stage.store)
        with stage.opened() as fs:
            fails(fs, stage, operation, stage.states["two"])
            OPERATIONS["export"](fs, stage)
            (stage.store / REST).unlink()
            OPERATIONS[operation](fs, stage)
        check(stage, operation, finished=True)
        check_store(stage, kept)


def is_at(path: bytes, names: list[str]) -> bool:
    """Return whether a path is at or below one of these names."""
    return path.split(b"/")[0] in map(str.encode, names)


@contextmanager
def full(directory: Path) -> Iterator[Stage]:
    """Yield a stage whose store has no room for the present state, which nobody has kept."""
    with small(directory, "store", "512k") as stage:
        (stage.root / "only two").write_bytes(b"changed since")
        (stage.root / "new since").symlink_to("nowhere")
        fill_up(stage.store)
        yield stage


def test_a_restore_needs_no_room_in_the_store(
    light_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with full(light_directory) as stage:
        kept, told = stage.listed(), []
        with stage.opened() as fs:
            fs.subscribe(told.append)
            OPERATIONS["restore"](fs, stage)
            assert stage.state() == "one"
            assert [event.reversible for event in told] == [False]
            assert "cannot be undone" in caplog.text
            fs.restore(stage.kept["two"])  # and again, there and back
            assert stage.state() == "two"
            OPERATIONS["restore"](fs, stage)
            (stage.store / REST).unlink()
            fs.snapshot()
        assert hidden_names(stage.directory) == []
        check(stage, "restore", finished=True)
        check_store(stage, kept)


def test_a_restore_can_be_undone_without_room_if_the_state_is_kept_already(
    light_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small(light_directory, "store", "512k") as stage:
        fill_up(stage.store)
        told = []
        with stage.opened() as fs:
            fs.subscribe(told.append)
            OPERATIONS["restore"](fs, stage)
            fs.restore(stage.kept["two"])
        assert stage.state() == "two"
        assert [event.reversible for event in told] == [True, True]
        assert "cannot be undone" not in caplog.text


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, Limits(max_total_bytes=10**6, max_files=999)])
@pytest.mark.parametrize("change", [True, False])
def test_some_paths_come_back_without_room(
    light_directory: Path, limits: Limits, change: bool
) -> None:
    with small(light_directory, "store", "512k") as stage:
        if change:
            (stage.root / "only two").write_bytes(b"changed since")
            (stage.root / "new since").symlink_to("nowhere")
        fill_up(stage.store)
        paths = ["changed", "to file", "new", "gone", "closed"]
        rest = {
            path: entry for path, entry in state_of(stage.root).items() if not is_at(path, paths)
        }
        back = {path: entry for path, entry in stage.states["one"].items() if is_at(path, paths)}
        with HostFilesystem(stage.root, git_dir=stage.store, limits=limits) as fs:
            fs.restore(stage.kept["one"], paths=paths)
        assert state_of(stage.root) == rest | back
        assert not is_open(stage)


@pytest.mark.parametrize("point", ["change.changing", "change.removed", "change.exchanged"])
def test_some_paths_are_brought_back_by_the_next_process(light_directory: Path, point: str) -> None:
    with full(light_directory) as stage:
        paths = ["changed", "new", "gone", "d"]
        with stage.opened() as fs:
            assert is_killed_at(point, lambda: fs.restore(stage.kept["one"], paths=paths))
        (stage.store / REST).unlink()
        assert is_open(stage)
        stage.opened().close()
        found = state_of(stage.root)
        back = {path: entry for path, entry in stage.states["one"].items() if is_at(path, paths)}
        assert {path: found[path] for path in found if is_at(path, paths)} == back
        assert (stage.root / "only two").read_bytes() == b"changed since"


HALFWAY = [
    "change.staged",
    "change.changing",
    "change.removed",
    "change.created",
    "change.exchanged",
    "change.mode",
    "change.changed",
    "change.done",
]


@pytest.mark.parametrize("how", [OSError(errno.EIO, "Fault"), KeyboardInterrupt()])
@pytest.mark.parametrize("point", HALFWAY)
def test_a_restore_that_fails_without_room_ends_in_one_state(
    light_directory: Path, point: str, how: BaseException
) -> None:
    """The way back needs no room: what was displaced is still there."""
    with full(light_directory) as stage:
        before, failed = state_of(stage.root), []

        def fail_once(reached: str) -> None:
            if reached == point and not failed:
                failed.append(point)
                raise how

        with stage.opened() as fs:
            with fault_hook(fail_once), pytest.raises((SnapshotRestoreError, KeyboardInterrupt)):
                OPERATIONS["restore"](fs, stage)
            assert state_of(stage.root) == before
            fs.write("next", "works")
            fs.delete("next")
        assert failed
        assert state_of(stage.root) == before


def test_a_disk_that_fails_for_good_leaves_the_rollback_to_the_next_process(
    light_directory: Path,
) -> None:
    with full(light_directory) as stage:
        before, seen = state_of(stage.root), []

        def fail(reached: str) -> None:
            seen.append(reached)
            if "change.exchanged" in seen:
                raise OSError(errno.EIO, "Fault")

        with stage.opened() as fs:
            with fault_hook(fail), pytest.raises(SnapshotRestoreError, match="and to roll back"):
                OPERATIONS["restore"](fs, stage)
            with pytest.raises(SnapshotRestoreError, match="half-way"):
                fs.write("next", "text")
        assert hidden_names(stage.root)
        stage.opened().close()
        assert state_of(stage.root) == before
        (stage.store / REST).unlink()
        check_store(stage, set())


def test_a_savepoint_that_could_not_be_rolled_back_any_more_prevents_a_restore(
    light_directory: Path,
) -> None:
    with full(light_directory) as stage:
        before = state_of(stage.root)
        with stage.opened() as fs:
            point = fs.savepoint()
            with pytest.raises(SnapshotRestoreError) as caught:
                OPERATIONS["restore"](fs, stage)
            assert cause_of(caught.value) in FULL
            fs.write("by the savepoint", "text")
            point.rollback()
        assert state_of(stage.root) == before


def test_a_savepoint_with_a_restore_in_it_is_rolled_back_without_room(
    light_directory: Path,
) -> None:
    with small(light_directory, "store", "512k") as stage:
        (stage.root / "only two").write_bytes(b"changed since")
        before = state_of(stage.root)
        with stage.opened() as fs:
            point = fs.savepoint()
            OPERATIONS["restore"](fs, stage)
            fs.write("more", "text")
            fill_up(stage.store)
            point.rollback()
        assert state_of(stage.root) == before


@pytest.mark.parametrize("how", ["rollback_to", "transaction", "session file"])
def test_session_and_files_go_back_without_room(light_directory: Path, how: str) -> None:
    with small(light_directory, "store", "768k") as stage:
        session = Session()
        with stage.opened() as fs:
            kept, before = checkpoint(session, fs), state_of(stage.root)
            if how == "transaction":
                with (
                    pytest.raises(RuntimeError),
                    transaction(session, fs, bypasses_filesystem=True),
                ):
                    (stage.root / "past the protocol").write_text("text")
                    fill_up(stage.store)
                    raise RuntimeError
            else:
                (stage.root / "past the protocol").write_text("text")
                fill_up(stage.store)
                if how == "rollback_to":
                    rollback_to(session, kept, fs)
                else:
                    SessionFile(light_directory / "session").rollback(session, kept, fs)
            assert state_of(stage.root) == before


def test_no_room_for_an_archive(light_directory: Path) -> None:
    with small(light_directory, "exports", "64k") as stage:
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
    with mounted(path, size=f"{size}k"), HostFilesystem(root, git_dir=path) as fs:
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
    with mounted(path, size="256k"), HostFilesystem(root, git_dir=path) as fs:
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


POINTS = [
    "change.staged",
    "change.changing",
    "change.removed",
    "change.created",
    "change.exchanged",
]


@pytest.mark.parametrize("operation", ["restore", "import"])
@pytest.mark.parametrize("point", POINTS)
def test_a_disk_that_fills_up_half_way(light_directory: Path, operation: str, point: str) -> None:
    """Somebody else takes every byte that becomes free, at any moment."""
    with mounted(light_directory, size="1536k"):
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


@pytest.mark.parametrize("part", ["store", "workspace"])
def test_what_was_decided_is_finished_without_room(light_directory: Path, part: str) -> None:
    with small(light_directory, part, "512k") as stage:
        with stage.opened() as fs:
            assert is_killed_at("change.exchanged", lambda: OPERATIONS["restore"](fs, stage))
        assert is_open(stage)
        fill_up(light_directory / part)
        stage.opened().close()
        (light_directory / part / REST).unlink()
        assert check(stage, "restore", finished=True) == "one"
