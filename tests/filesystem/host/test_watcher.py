"""Changes by confined commands: what the kernel reports is what a walk finds."""

import mmap
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.filesystem.generated_trees import PLAIN, Children, Repositories, Trees
from tests.filesystem.host.test_capture import told
from tests.filesystem.trees_on_disk import clear, lay_out, spoil
from tests.sizes import size
from weakincentives.errors import SnapshotError
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem
from weakincentives.filesystem.host.snapshots import capture, watcher
from weakincentives.filesystem.host.snapshots.capture import Walk
from weakincentives.filesystem.host.snapshots.tracker import CaptureResult, ChangeTracker
from weakincentives.gitstore.objects import ObjectStore
from weakincentives.posix.inotify import Mask
from weakincentives.posix.rooted import RootedDirectory

Content = tuple[str, dict[str, int], tuple[str, ...]]
FILES = ("a/x", "a/y", "a/b/x", "c/x", "top")


class Workspace:
    """A directory, a filesystem on it that trusts the kernel, and a place outside."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.outside = base / "outside"
        self.root.mkdir()
        self.outside.mkdir()
        (base / "objects" / "pack").mkdir(parents=True)
        self._objects = ObjectStore(base / "objects", durable=False)
        self.files = HostFilesystem(self.root, git_dir=base / "store", exclusive=True)
        self.listed: list[str] = []

    def prepare(self, paths: tuple[str, ...] = FILES) -> None:
        """Make files, and take snapshots until everything is watched."""
        for path in paths:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(b"old")
        self.settle()

    def settle(self) -> None:
        with self.files.changed_by_others(confined=True):
            pass
        self.files.snapshot()
        self.listed.clear()

    def command(self, *steps: Callable[[Path], object]) -> None:
        """Do something as a command does: behind the filesystem's back."""
        with self.files.changed_by_others(confined=True):
            for step in steps:
                step(self.root)

    def snapshot(self) -> Content:
        """Return everything in a new snapshot, and check it against a walk that reads all."""
        self.listed.clear()
        taken = self.files.snapshot()
        found = content_of(self.files, taken)
        directory = RootedDirectory(self.root)
        try:
            with self._objects.begin_pack() as batch:
                there = told(capture.capture(directory, batch, None))
        finally:
            directory.close()
        assert found == there
        return found

    @property
    def has_walked(self) -> bool:
        """Whether the last snapshot began with a look at everything."""
        return "" in self.listed


def content_of(files: HostFilesystem, snapshot: FilesystemSnapshot) -> Content:
    view = files._snapshots.view(snapshot)  # pyright: ignore[reportPrivateUsage] # the tree itself is compared
    return view.files, view.manifest.modes, view.manifest.specials


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    made = Workspace(tmp_path)
    observe_walks(made, monkeypatch)
    yield made
    made.files.close()


def observe_walks(made: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record which directories are walked."""
    whole = Walk.capture_directory

    def observed(self: Walk, path: str, prior: object, scope: object = None) -> object:
        # neither a part of a directory, nor the walk that checks
        if scope is None and self._watcher is not None:  # pyright: ignore[reportPrivateUsage]
            made.listed.append(path)
        return whole(self, path, prior, scope)  # type: ignore[arg-type] # passed on

    monkeypatch.setattr(Walk, "capture_directory", observed)


# --- what is found without a walk ---


def write(path: str, data: bytes = b"new") -> Callable[[Path], object]:
    return lambda root: (root / path).write_bytes(data)


def rename(source: str, target: str) -> Callable[[Path], object]:
    return lambda root: (root / source).rename(root / target)


def unlink(path: str) -> Callable[[Path], object]:
    return lambda root: (root / path).unlink()


def link(source: str, target: str) -> Callable[[Path], object]:
    return lambda root: (root / target).hardlink_to(root / source)


def mkdir(path: str) -> Callable[[Path], object]:
    return lambda root: (root / path).mkdir()


def store_in_mapping(root: Path) -> None:
    """Change a file without a write, and without a new time on some file systems."""
    with (root / "a/x").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        mapping[0:3] = b"map"


REPORTED: dict[str, tuple[Callable[[Path], object], ...]] = {
    "nothing": (),
    "a write in place": (write("a/x"),),
    "two writes": (write("a/x"), write("a/b/x")),
    "a new file": (write("a/new"),),
    "a deleted file": (unlink("a/b/x"),),
    "a renamed file": (rename("a/x", "c/moved"),),
    "a file replaced by a temporary one": (write("a/t"), rename("a/t", "a/x")),
    "a file moved away": (lambda root: (root / "a/x").rename(root.parent / "outside/x"),),
    "a file moved in": (
        lambda root: (root.parent / "outside/x").write_bytes(b"in"),
        lambda root: (root.parent / "outside/x").rename(root / "a/x"),
    ),
    "permissions of a file": (lambda root: (root / "a/x").chmod(0o755),),
    "permissions of a directory": (lambda root: (root / "a/b").chmod(0o700),),
    "a truncated file": (lambda root: os.truncate(root / "a/x", 1),),
    "a store into a mapping": (store_in_mapping,),
    "a symbolic link": (lambda root: (root / "a/l").symlink_to("x"),),
    "a pipe": (lambda root: os.mkfifo(root / "a/pipe"),),
    "a deleted directory": (lambda root: shutil.rmtree(root / "a/b"),),
    "the same size and time": (
        lambda root: os.utime(root / "a/x", ns=(1, 1)),
        write("a/x", b"own"),
        lambda root: os.utime(root / "a/x", ns=(1, 1)),
    ),
    "an odd name": (write("a/\udcff\n"),),
}


@pytest.mark.parametrize("steps", REPORTED.values(), ids=REPORTED.keys())
def test_a_report_of_the_kernel_replaces_a_walk(
    workspace: Workspace, steps: tuple[Callable[[Path], object], ...]
) -> None:
    workspace.prepare()
    workspace.command(*steps)
    workspace.snapshot()
    assert not workspace.has_walked


# --- what needs a walk ---

DOUBTFUL: dict[str, tuple[Callable[[Path], object], ...]] = {
    "a new directory": (mkdir("d"), write("d/x")),
    "a renamed directory": (rename("a", "d"), write("d/b/x")),
    "swapped directories": (rename("a", "t"), rename("c", "a"), rename("t", "c"), write("a/x")),
    "a directory moved in": (
        lambda root: shutil.copytree(root / "a", root.parent / "outside/a"),
        lambda root: (root.parent / "outside/a").rename(root / "d"),
    ),
    "a hard link": (link("a/x", "c/l"), write("c/l")),
    "a hard link that is gone": (link("a/x", "l"), write("l"), unlink("l")),
    "a hard link that was replaced": (
        *(link("a/x", "l"), write("l")),
        *(write("t"), rename("t", "l")),
    ),
    "a hard link that was moved away": (
        *(link("a/x", "l"), write("l")),
        lambda root: (root / "l").rename(root.parent / "outside/l"),
    ),
    "a hard link that was moved and is gone": (
        *(link("a/x", "l"), write("l")),
        *(rename("l", "c/l"), unlink("c/l")),
    ),
    "a hard link in a directory that is gone": (
        *(mkdir("d"), link("a/x", "d/l"), write("d/l")),
        lambda root: shutil.rmtree(root / "d"),
    ),
    "a hard link in a new directory": (
        *(mkdir("d"), link("a/x", "d/l"), write("d/l"), unlink("d/l")),
    ),
    "a hard link with a hidden name": (link("a/x", "a/.wink-tmp-l"), write("a/.wink-tmp-l")),
}


@pytest.mark.parametrize("steps", DOUBTFUL.values(), ids=DOUBTFUL.keys())
def test_where_the_report_may_be_incomplete_everything_is_checked(
    workspace: Workspace, steps: tuple[Callable[[Path], object], ...]
) -> None:
    workspace.prepare()
    workspace.command(*steps)
    workspace.snapshot()
    assert workspace.has_walked
    workspace.settle()
    workspace.command(write("c/x", b"later"))
    workspace.snapshot()


def test_a_new_link_is_followed_from_one_command_to_the_next(workspace: Workspace) -> None:
    workspace.prepare()
    workspace.command(link("a/x", "l"), write("l"))
    workspace.command(unlink("l"))
    workspace.snapshot()


def test_a_change_by_one_link_changes_all(workspace: Workspace) -> None:
    workspace.prepare()
    workspace.command(link("a/x", "c/l"))
    workspace.snapshot()
    workspace.command(write("c/l", b"by the new name"))
    workspace.snapshot()
    assert not workspace.has_walked


def test_a_name_that_was_a_link_before_is_a_new_link(workspace: Workspace) -> None:
    workspace.prepare()
    workspace.command(link("a/x", "l"))
    workspace.snapshot()
    workspace.command(unlink("l"), rename("a/x", "c/moved"))
    workspace.snapshot()
    workspace.command(link("c/moved", "l"), write("l"))
    workspace.snapshot()
    assert workspace.has_walked


def test_a_change_by_a_link_outside_is_found(workspace: Workspace) -> None:
    workspace.prepare()
    other = workspace.outside / "l"
    other.hardlink_to(workspace.root / "a/x")
    workspace.files.invalidate()
    workspace.settle()
    workspace.command(lambda _: other.write_bytes(b"by a name outside"))
    workspace.snapshot()
    assert not workspace.has_walked


def test_a_flood_of_events_means_that_everything_is_checked(workspace: Workspace) -> None:
    workspace.prepare()
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())

    def flood(root: Path) -> None:
        for number in range(limit):
            (root / f"a/{'xy'[number % 2]}").chmod(0o600 + 0o100 * (number % 3 == 0))

    workspace.command(flood, write("c/x"))
    workspace.snapshot()
    assert workspace.has_walked


def test_while_a_command_runs_everything_is_checked(workspace: Workspace) -> None:
    workspace.prepare()
    with (
        workspace.files.changed_by_others(confined=True),
        (workspace.root / "a/x").open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as mapping,
    ):
        workspace.files.snapshot()
        assert workspace.has_walked
        mapping[0:3] = b"map"
    workspace.snapshot()


def test_a_command_that_may_have_left_processes_means_that_everything_is_checked(
    workspace: Workspace,
) -> None:
    workspace.prepare()
    with pytest.raises(KeyboardInterrupt), workspace.files.changed_by_others(confined=True):
        raise KeyboardInterrupt
    workspace.snapshot()
    assert workspace.has_walked


def test_a_hidden_directory_is_a_place_without_a_watch(workspace: Workspace) -> None:
    workspace.prepare()
    with workspace.files.savepoint():
        workspace.files.write("a/y", "saved", mode="overwrite")
        (journal,) = workspace.root.glob(".wink-tmp-journal-*")
        workspace.command(
            lambda root: (journal / "l").hardlink_to(root / "a/x"),
            lambda _: (journal / "l").write_bytes(b"by a hidden name"),
            lambda _: (journal / "l").unlink(),
        )
        workspace.snapshot()
        assert workspace.has_walked


# --- between commands ---


def test_what_an_editor_saves_between_commands_is_found(workspace: Workspace) -> None:
    workspace.prepare()
    write("a/x", b"by a person")(workspace.root)
    mkdir("d")(workspace.root)
    write("d/x")(workspace.root)
    workspace.snapshot()
    assert not workspace.has_walked


def test_writes_of_our_own_between_commands_need_no_walk(workspace: Workspace) -> None:
    workspace.prepare()
    for number in range(3):
        workspace.files.write(f"new/{number}/x", "1")
        before = workspace.files.snapshot()
        workspace.command(write("a/x", b"%d" % number), write(f"new/{number}/x"))
        workspace.snapshot()
        assert not workspace.has_walked
        workspace.files.restore(before)
        assert workspace.snapshot() == content_of(workspace.files, before)
        assert not workspace.has_walked


def test_a_new_directory_that_was_not_captured_is_a_place_without_a_watch(
    workspace: Workspace,
) -> None:
    workspace.prepare()
    workspace.files.mkdir("d")
    workspace.command(link("a/x", "d/l"), write("d/l"), unlink("d/l"))
    workspace.snapshot()
    assert workspace.has_walked


def test_two_filesystems_on_one_directory_find_the_same(workspace: Workspace) -> None:
    workspace.prepare()
    with HostFilesystem(
        workspace.root, git_dir=workspace.outside / "store", exclusive=True
    ) as other:
        with other.changed_by_others(confined=True):
            pass
        other.snapshot()
        with (
            workspace.files.changed_by_others(confined=True),
            other.changed_by_others(confined=True),
        ):
            write("a/x")(workspace.root)
        found = workspace.snapshot()
        assert content_of(other, other.snapshot()) == found


def test_a_fork_does_not_take_the_events_of_its_parent(workspace: Workspace) -> None:
    workspace.prepare()
    workspace.command(write("a/x"))
    write("a/y", b"after the command")(workspace.root)
    child = os.fork()
    if not child:
        try:
            with workspace.files.changed_by_others(confined=True):
                pass
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    workspace.snapshot()
    assert not workspace.has_walked


def test_a_workspace_that_is_gone_is_an_error(workspace: Workspace) -> None:
    workspace.prepare()
    workspace.command(lambda root: shutil.rmtree(root))
    with pytest.raises(SnapshotError, match="Directory was removed"):
        workspace.files.snapshot()


def test_a_change_while_a_snapshot_is_stored_is_in_the_next_one(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.prepare()
    workspace.command(write("a/x", b"first"))
    accept = ChangeTracker.accept

    def late(self: ChangeTracker, result: CaptureResult) -> None:
        workspace.command(write("a/x", b"second"))
        accept(self, result)

    with monkeypatch.context() as patch:
        patch.setattr(ChangeTracker, "accept", late)
        workspace.files.snapshot()
    workspace.snapshot()


# --- where there is no watcher ---


def test_beyond_the_number_of_watches_every_snapshot_is_a_walk(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = count_instances()
    monkeypatch.setattr(watcher, "_MAX_WATCHES", 2)
    workspace.prepare()
    workspace.command(write("a/b/x"))
    workspace.snapshot()
    workspace.command(write("a/b/x", b"again"))
    workspace.snapshot()
    assert count_instances() == before


def test_on_other_file_systems_every_snapshot_is_a_walk(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = count_instances()
    monkeypatch.setattr(watcher, "reports_all_changes", lambda _: False)
    workspace.prepare()
    workspace.command(write("a/b/x"))
    workspace.snapshot()
    assert count_instances() == before


def test_closing_releases_the_descriptor(workspace: Workspace) -> None:
    before = count_instances()
    workspace.prepare()
    assert count_instances() == before + 1
    workspace.files.close()
    assert count_instances() == before


def count_instances() -> int:
    """Return how many inotify instances this process has."""
    with os.scandir("/proc/self/fd") as entries:
        return sum("inotify" in os.readlink(each.path) for each in entries)  # noqa: PTH115 # their names are not paths


# --- at random ---


class SmallTrees(Trees):
    """Few names, so that the same ones are met again."""

    def some(self, choice: random.Random, depth: int) -> Children:
        names = choice.sample(PLAIN, choice.randint(0, 5))
        return {name: self.node(choice, depth) for name in names}


TREES = SmallTrees(Repositories({}, {}), Path("/nowhere"))


def trick(root: Path, choice: random.Random) -> None:
    """Change a file by a hard link that does not stay."""
    found = [each for each in root.rglob("*") if not each.is_symlink() and each.is_file()]
    if not found:
        return
    victim = choice.choice(found)
    victim.chmod(0o600)
    name = choice.choice([root / "twin", victim.with_name("twin")])
    if name.exists():
        return
    name.hardlink_to(victim)
    name.write_bytes(choice.randbytes(3))
    if choice.random() < 0.5:
        name.unlink()
    elif choice.random() < 0.5:
        name.rename(name.with_name("moved twin"))


def run_at_random(workspace: Workspace, seed: int, steps: int) -> int:
    """Return how many snapshots needed no walk; each is checked."""
    choice = random.Random(seed)
    lay_out(workspace.root, TREES.some(choice, 3))
    workspace.settle()
    trusted = 0
    for number in range(steps):
        with workspace.files.changed_by_others(confined=True):
            spoil(workspace.root, TREES, choice)
            if choice.random() < 0.1:
                with suppress(OSError):  # a path may be too long
                    trick(workspace.root, choice)
        if choice.random() < 0.2:
            (workspace.root / f"person {number}").write_bytes(choice.randbytes(2))
        if choice.random() < 0.8:  # else the next command comes first
            workspace.snapshot()
            trusted += not workspace.has_walked
    clear(workspace.root)
    return trusted


def test_reports_and_walks_agree_after_random_changes(workspace: Workspace) -> None:
    trusted = 0
    for seed in range(size(12, 200)):
        trusted += run_at_random(workspace, seed, 25)
    assert trusted  # otherwise nothing was compared


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (Mask.MODIFY, "a truncated file"),
        (Mask.CLOSE_WRITE, "a store into a mapping"),
        (Mask.ATTRIB, "permissions of a file"),
        (Mask.CREATE, "a symbolic link"),
        (Mask.DELETE, "a deleted file"),
        (Mask.MOVED_FROM, "a file moved away"),
        (Mask.MOVED_TO, "a file moved in"),
    ],
    ids=lambda each: str(each),
)
def test_without_one_kind_of_event_something_is_overlooked(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, kind: Mask, case: str
) -> None:
    monkeypatch.setattr(watcher, "_IN_DIRECTORY", watcher._IN_DIRECTORY & ~kind)  # pyright: ignore[reportPrivateUsage] # a mutant
    workspace.prepare()
    workspace.command(*REPORTED[case])
    with pytest.raises(AssertionError):
        workspace.snapshot()
