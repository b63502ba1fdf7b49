"""The operations beside which a person works: each changes a directory that the person can reach.

An operation prepares itself, and opens its moments with `moments.count()` for the part beside
which the person works. `recover` is what the next process does with the same directory.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.safety.person.evidence import snapshot_contents
from tests.safety.person.moments import Moments
from tests.safety.person.project import FILES, FOLDERS, text
from tests.safety.person.saves import Save
from weakincentives.errors import SnapshotRestoreError, WinkError
from weakincentives.filesystem import HostFilesystem
from weakincentives.runtime import transaction
from weakincentives.runtime.session import Session

EXPECTED = (WinkError, ValueError, OSError, KeyboardInterrupt)
"""What may come out of an operation that was disturbed."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that changes a project while a person works in it."""

    run: Callable[[Path, Moments], str]
    recover: Callable[[Path, Moments], str]
    stored: Callable[[Path], Iterable[bytes]] = snapshot_contents
    """Returns what the history of the operation has."""
    regain: Callable[[Path, Save], str] | None = None
    """Gets a save back to its path from the history, as a user would; returns what was said."""
    has_interrupts: bool = True
    needs_git: bool = False
    cost: int = 1
    """How much longer a round takes than others: there are fewer."""
    targets: tuple[str, ...] = FILES
    folders: tuple[str, ...] = FOLDERS
    """Where the person saves: what the operation touches."""
    deletes: tuple[str, ...] = ()
    """What the operation deletes: extended attributes of it are in no history."""
    root: Callable[[Path], Path | None] = lambda place: place / "root"
    """The directory that both work in, as soon as there is one."""
    warm_up: Callable[[], None] = lambda: None
    """Imports what the children need."""


class FailedOnPurposeError(WinkError):
    """The call fails, and is rolled back."""


# --- filesystem ---


def host(place: Path) -> HostFilesystem:
    """Open the project as a library does."""
    return HostFilesystem(place / "root", git_dir=place / "git")


def agent_calls(files: HostFilesystem) -> None:
    """Change, delete, create and move files through the protocol."""
    files.write("a.txt", text("a.txt", "agent", "agent"))
    files.delete("b.txt")
    files.write("d/e.txt", text("d/e.txt", "base", "agent"))
    files.write("n/o.txt", text("n/o.txt", "agent", "agent"))
    files.move("g/j.txt", "g/k.txt")
    files.delete("g/h", recursive=True)


def agent_command(root: Path, moments: Moments) -> None:
    """Do what a command of the agent does: it knows nothing of the protocol.

    What the person saves it leaves alone: nobody can keep a command from removing that.
    """
    (root / "n").mkdir(exist_ok=True)
    (root / "n/o.txt").write_text(text("n/o.txt", "agent", "agent"))
    moments.mark("command")
    for path in ("a.txt", "d/e.txt"):
        with moments.pause(), suppress(OSError):
            if (root / path).read_text() == text(path):
                (root / path).write_text(text(path, "agent", "agent"))
        moments.mark("command")
    (root / "keep.txt").unlink()
    moments.mark("command")


def restore(place: Path, moments: Moments) -> str:
    """Restore a whole snapshot."""
    return _restore(place, moments, None)


def restore_paths(place: Path, moments: Moments) -> str:
    """Restore a file and a directory."""
    return _restore(place, moments, ["a.txt", "d", "g"])


def _restore(place: Path, moments: Moments, paths: list[str] | None) -> str:
    with host(place) as files:
        before = files.snapshot()
        agent_calls(files)
        with moments.count():
            text = attempt(lambda: files.restore(before, paths=paths))
        return text + use_again(files)


def rollback_command(place: Path, moments: Moments) -> str:
    """Roll back a transaction with a command in it."""
    with host(place) as files:

        def work() -> None:
            with transaction(Session(), files, bypasses_filesystem=True):
                agent_command(place / "root", moments)
                raise FailedOnPurposeError("It fails")

        with moments.count():
            text = attempt(work)
        return text + use_again(files)


def rollback_call(place: Path, moments: Moments) -> str:
    """Roll back a transaction with file calls in it."""
    with host(place) as files:

        def work() -> None:
            with transaction(Session(), files):
                agent_calls(files)
                raise FailedOnPurposeError("It fails")

        with moments.count():
            text = attempt(work)
        return text + use_again(files)


def open_again(place: Path, moments: Moments) -> str:
    """Open the project, look at it, change something else."""
    with moments.count(), host(place) as files:
        return attempt(files.snapshot) + use_again(files)


def use_again(files: HostFilesystem) -> str:
    """Change something else: nothing that was interrupted holds a lock."""

    def work() -> None:
        with transaction(Session(), files):
            files.write("probe.txt", text("probe.txt"))

    return attempt(work)


def regain_from_snapshots(place: Path, save: Save) -> str:
    """Restore a path from the last snapshot that has a save, there or where a link led.

    Where a directory above was replaced meanwhile, that is restored, as the error says.
    """
    with host(place) as files:
        for snapshot in reversed(files.history.list()):
            state = files.view(snapshot)
            others = [replace(save, path=each.path) for each in state.glob("**/*.txt")]
            for found in (save, *(others if save.token else ())):
                if found.is_in(state):
                    try:
                        files.restore(snapshot, paths=[found.path])
                    except SnapshotRestoreError as error:
                        assert "is not a directory any more; restore" in str(error)
                        files.restore(snapshot, paths=[found.path.partition("/")[0]])
                    return f"restored {snapshot}"
    return "no snapshot has it"


def attempt(work: Callable[[], object]) -> str:
    """Do it; return what it says, or what the error says that it may raise."""
    try:
        return str(work() or "")
    except EXPECTED as error:
        return f"{type(error).__name__}: {error}"


FILESYSTEM: Mapping[str, Operation] = {
    name: Operation(run, open_again, regain=regain_from_snapshots)
    for name, run in {
        "restore": restore,
        "restore paths": restore_paths,
        "rollback of a command": rollback_command,
        "rollback of a call": rollback_call,
    }.items()
}
