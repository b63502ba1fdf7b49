"""A workspace with a history, the operations on it, and what must hold after any of them.

The workspace is in one of two states that differ in everything that a restore can
change. An operation that was interrupted has left one of them, whole.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.filesystem.generated_trees import Children, Directory, File, Link
from tests.filesystem.trees_on_disk import State, clear, difference, lay_out, state_of
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem
from weakincentives.gitstore.repository import Repository
from weakincentives.history import find_changes
from weakincentives.posix import RESERVED_PREFIX, RootedDirectory

OLD_DATE, NEW_DATE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)

ONE: Children = {
    b"same": File(b"same " * 500),
    b"changed": File(b"one " * 3_000),
    b"mode": File(b"mode", 0o644),
    b"only one": File(b"one"),
    b"to link": File(b"was a file"),
    b"to directory": File(b"was a file", 0o600),
    b"to file": Directory({b"inner": File(b"inner"), b"empty": Directory({})}),
    b".git": Directory({b"HEAD": File(b"ref: refs/heads/main\n"), b"config": File(b"one")}),
    b"d": Directory({b"f%d" % n: File(b"one %d" % n * n) for n in range(6)}, 0o700),
    b"link": Link(b"same"),
    b"closed": Directory({b"f": File(b"one"), b"d": Directory({b"g": File(b"")}, 0o500)}, 0o555),
    b"gone": Directory({b"deep": Directory({b"er": Directory({b"f": File(b"one")})})}),
    b"\xff\n": File(b"odd"),
}
TWO: Children = {
    b"same": File(b"same " * 500),
    b"changed": File(b"two " * 4_000),
    b"mode": File(b"mode", 0o755),
    b"only two": File(b"two"),
    b"to link": Link(b"d"),
    b"to directory": Directory({b"f": File(b"two"), b"g": File(b"")}),
    b"to file": File(b"was a directory"),
    b".git": Directory({b"HEAD": File(b"ref: refs/heads/x\n"), b"hooks": Directory({})}),
    b"d": Directory({b"f%d" % n: File(b"two %d" % n * n) for n in range(3, 9)}, 0o555),
    b"link": Link(b"/etc/passwd"),
    b"closed": Directory({b"f": File(b"two"), b"d": Directory({b"h": File(b"")}, 0o500)}, 0o555),
    b"new": Directory({b"deep": Directory({b"er": Directory({b"f": File(b"two")})})}),
    b"%41": File(b"odd", 0o400),
}


@dataclass
class Stage:
    """A workspace in the state two, with snapshots and archives of both."""

    directory: Path
    states: dict[str, State] = field(default_factory=dict[str, State])
    kept: dict[str, FilesystemSnapshot] = field(default_factory=dict[str, FilesystemSnapshot])
    archives: dict[datetime, bytes] = field(default_factory=dict[datetime, bytes])

    def __post_init__(self) -> None:
        """Lay everything out."""
        for path in (self.root, self.exports):
            path.mkdir(parents=True, exist_ok=True)
        with self.opened() as fs:
            for name, children in (("one", ONE), ("two", TWO)):
                clear(self.root)
                lay_out(self.root, children)
                self.states[name] = state_of(self.root)
                self.kept[name] = fs.snapshot(tag=name)
                fs.export_archive(self.directory / f"{name}.zip", created_at=OLD_DATE)
            for date in (NEW_DATE, OLD_DATE):
                fs.export_archive(self.target, created_at=date)
                self.archives[date] = self.target.read_bytes()

    @property
    def root(self) -> Path:
        """The workspace."""
        return self.directory / "workspace"

    @property
    def store(self) -> Path:
        """Where the snapshots are."""
        return self.directory / "store"

    @property
    def exports(self) -> Path:
        """Where archives are written to."""
        return self.directory / "exports"

    @property
    def target(self) -> Path:
        """The archive that is replaced."""
        return self.exports / "state.zip"

    def opened(self) -> HostFilesystem:
        """Open the workspace, as the next process would."""
        return HostFilesystem(self.root, git_dir=self.store)

    def state(self) -> str:
        """Return the name of the state that the workspace is in, hidden names aside."""
        prefix = RESERVED_PREFIX.encode()
        found = {
            path: entry
            for path, entry in state_of(self.root).items()
            if not any(name.startswith(prefix) for name in path.split(b"/"))
        }
        for name, state in self.states.items():
            if found == state:
                return name
        lines = [f"{name}: {difference(found, state)}" for name, state in self.states.items()]
        return f"a mix: {lines}"

    def listed(self) -> set[str]:
        """Return the commits of all snapshots."""
        return {commit.ref for commit in Repository.open(self.store).commits()}


Work = Callable[[HostFilesystem, Stage], object]


def _snapshot(fs: HostFilesystem, stage: Stage) -> object:
    stage.kept["taken"] = fs.snapshot(tag="taken")
    return stage.kept["taken"]


OPERATIONS: dict[str, Work] = {
    "snapshot": _snapshot,
    "restore": lambda fs, stage: fs.restore(stage.kept["one"]),
    "import": lambda fs, stage: fs.import_archive(stage.directory / "one.zip"),
    "export": lambda fs, stage: fs.export_archive(stage.target, created_at=NEW_DATE),
}
CHANGES_FILES = {"restore", "import"}


def check(stage: Stage, operation: str, *, finished: bool = False, swept: bool = True) -> str:
    """Look at what an operation has left, as the next process would; return what it was.

    `finished` says that it is known to have got to its end; `swept` that nothing hidden
    may be left, because nobody is alive who could still need it.
    """
    with stage.opened() as fs:
        left = stage.state()
        allowed = {"one", "two"} if operation in CHANGES_FILES else {"two"}
        assert left in allowed, left
        assert not finished or operation not in CHANGES_FILES or left == "one", "undone"
        outcome = left if operation in CHANGES_FILES else "unchanged"
        if operation == "export":
            outcome = _check_archive(stage, finished)
        later = fs.snapshot(tag="later")
        if left == "one":
            fs.restore(stage.kept["two"])
        else:
            fs.restore(later)
        assert stage.state() == "two", stage.state()
    hidden = hidden_names(stage.directory)
    assert hidden == [] or not swept, f"not swept: {hidden}"
    return outcome


def _check_archive(stage: Stage, finished: bool) -> str:
    data = stage.target.read_bytes()
    assert data in stage.archives.values(), f"torn archive of {len(data)} bytes"
    assert not finished or data == stage.archives[NEW_DATE]
    outcome = "new" if data == stage.archives[NEW_DATE] else "old"
    with stage.opened() as fs:
        fs.export_archive(stage.target, created_at=OLD_DATE)
    assert stage.target.read_bytes() == stage.archives[OLD_DATE]
    return outcome


def check_store(stage: Stage, acknowledged: set[str]) -> None:
    """Check that no snapshot is lost or damaged, and that git agrees."""
    repository = Repository.open(stage.store)
    assert repository.verify() == []
    lost = acknowledged - stage.listed()
    assert lost == set(), f"lost snapshots: {lost}"
    command = ["git", "-c", "safe.directory=*", "--git-dir", str(stage.store)]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        [*command, "fsck", "--strict", "--no-dangling"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def hidden_names(directory: Path) -> list[str]:
    """Return the hidden names that are on the disk, in the workspace and in the store."""
    found: list[str] = []
    for parent, directories, files, _ in os.fwalk(directory):
        names = [name for name in directories + files if name.startswith(RESERVED_PREFIX)]
        found += [f"{parent}/{name}" for name in names]
    return found


def is_open(stage: Stage) -> bool:
    """Return whether something has been decided and is not finished."""
    with closing(RootedDirectory(stage.root)) as root:
        pending = find_changes(root)
    return any(each.record.rolls_forward and not each.is_done for each in pending)
