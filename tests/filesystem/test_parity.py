"""Two backends side by side: the same random operations, no divergence.

A divergence names its seed; `run_parity` meets it again. See docs/write-a-backend.md.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.filesystem.mutants import archives, snapshots
from tests.sizes import size
from weakincentives.filesystem import (
    FilesystemSnapshot,
    HostFilesystem,
    InMemoryFilesystem,
    Listener,
    ReadResult,
)
from weakincentives.filesystem.host.snapshots.store import SnapshotStore
from weakincentives.filesystem.testing import (
    DivergenceError,
    MockFilesystem,
    Operation,
    Pair,
    run_machine,
    run_parity,
)
from weakincentives.posix.rooted import RootedDirectory

OPERATIONS = size(16_000, 1_000_000)
SEED = 0
SHARES = 4  # so that several processes can take part
MACHINE = settings(
    max_examples=40,
    stateful_step_count=15,
    phases=(Phase.generate, Phase.shrink),
    database=None,
    derandomize=True,
)

HostFactory = Callable[..., HostFilesystem]


@pytest.fixture
def new_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostFactory]:
    """A function that makes an empty workspace on disk, and removes the one before."""
    numbers = count()
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power is lost here

    def make(*, exclusive: bool = False) -> HostFilesystem:
        number = next(numbers)
        shutil.rmtree(tmp_path / str(number - 1), ignore_errors=True)
        root = tmp_path / str(number) / "root"
        root.mkdir(parents=True)
        return HostFilesystem(root, git_dir=root.with_name("store"), exclusive=exclusive)

    yield make
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_host_and_memory_never_diverge(new_host: HostFactory, share: int):
    wanted = -(-OPERATIONS // SHARES)
    subject = partial(new_host, exclusive=share % 2 == 1)
    assert run_parity(SEED * SHARES + share, wanted, subject=subject) == wanted
    assert wanted * SHARES >= OPERATIONS


def test_the_step_by_step_host_and_memory_never_diverge(new_host: HostFactory):
    def step_by_step() -> HostFilesystem:
        fs = new_host()
        root = Path(fs.root)
        fs._directory = RootedDirectory(root, kernel=False)
        fs._snapshots = fs._completion.snapshots = SnapshotStore(
            fs._directory, fs.root, root.resolve(), git_dir=root.with_name("store")
        )
        return fs

    assert run_parity(SEED, 2_000, subject=step_by_step) == 2_000


@pytest.mark.parametrize("exclusive", [False, True])
def test_the_machine_finds_no_divergence(new_host: HostFactory, exclusive: bool):
    run_machine(partial(new_host, exclusive=exclusive), settings=MACHINE)


def test_the_mock_and_memory_never_diverge():
    assert run_parity(SEED, 2_000, subject=MockFilesystem) == 2_000


class CountsFromOne(InMemoryFilesystem):
    """A backend with a small mistake."""

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, encoding: str = "utf-8"
    ) -> ReadResult:
        found = super().read(path, offset=offset, limit=limit, encoding=encoding)
        return replace(found, total_lines=found.total_lines + 1) if offset else found


class ReportsNothing(InMemoryFilesystem):
    def subscribe(self, listener: Listener) -> Callable[[], None]:
        return super().subscribe(lambda event: None)


class Crashes(InMemoryFilesystem):
    def delete(self, path: str, *, recursive: bool = False) -> None:
        raise KeyError(path)


class RestoresMore(InMemoryFilesystem):
    def restore(
        self,
        snapshot: FilesystemSnapshot,
        *,
        paths: Sequence[str] | None = None,
        expect: FilesystemSnapshot | None = None,
    ) -> None:
        super().restore(snapshot, paths=paths)
        if paths:
            self._store("more", b"")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (CountsFromOne, "outcomes differ"),
        (ReportsNothing, "events differ"),
        (Crashes, "KeyError.* was raised"),
    ],
)
def test_the_driver_finds_a_mistake(broken: type[InMemoryFilesystem], message: str):
    with pytest.raises(DivergenceError, match=message) as caught:
        run_parity(1, 2_000, subject=broken)
    assert len(caught.value.operations) <= 2


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (snapshots.ForgetsEmptyDirectories, "The restored state differs from the saved one"),
        (RestoresMore, "trees differ"),
        (snapshots.TakesAll, "outcomes differ"),
        (snapshots.LooksBackwards, "outcomes differ"),
        (snapshots.ShowsTheLiveState, "outcomes differ"),
        (snapshots.ReportsNothingOfStates, "events differ"),
        (snapshots.EndsWithARestore, "outcomes differ"),
        (archives.Merges, "The imported state differs from the saved one"),
        (archives.CountsEntries, "outcomes differ"),
    ],
)
def test_the_driver_finds_a_mistake_with_whole_states(
    broken: type[InMemoryFilesystem], message: str
):
    with pytest.raises(DivergenceError, match=message) as caught:
        run_parity(1, 10_000, subject=broken)
    assert len(caught.value.operations) <= 5


def test_the_machine_shrinks_a_mistake_to_the_fewest_operations():
    often = settings(MACHINE, max_examples=200, phases=[Phase.generate])
    with pytest.raises(DivergenceError) as caught:
        run_machine(CountsFromOne, settings=often)
    *_, last = caught.value.operations
    assert last.name == "read"
    assert last.arguments["offset"] > 0
    assert len(caught.value.operations) <= 4


def test_trees_that_differ_behind_the_protocol_are_noticed():
    model, subject = InMemoryFilesystem(), InMemoryFilesystem()
    pair = Pair(model, subject)
    pair.perform(Operation("write", {"path": "a", "content": "text"}))
    subject._store("a", b"changed")
    with pytest.raises(DivergenceError, match="trees differ after 1 operations"):
        pair.compare_trees()


def test_a_seed_repeats_its_run():
    def history(seed: int) -> list[str]:
        fs = MockFilesystem()
        run_parity(seed, 100, subject=lambda: fs)
        return [str(call) for call in fs.calls]

    assert history(3) == history(3) != history(4)


def test_the_root_is_emptied_on_both_sides(new_host: HostFactory):
    pair = Pair(InMemoryFilesystem(), new_host())
    pair.perform(Operation("write", {"path": "a/b", "content": ""}))
    pair.perform(Operation("delete", {"path": "/", "recursive": True}))
    pair.compare_trees()
    assert pair.perform(Operation("list", {"path": "."})).value == ((), False)


def test_an_archive_of_either_side_is_imported_by_both(new_host: HostFactory):
    pair = Pair(InMemoryFilesystem(), new_host())
    pair.perform(Operation("write", {"path": "a/b", "content": "text"}))
    pair.perform(Operation("export"))
    for across in (True, False):
        pair.perform(Operation("delete", {"path": "a", "recursive": True}))
        assert pair.perform(Operation("import", {"number": 0, "across": across})).value == 1
    assert pair.perform(Operation("list", {"path": "a"})).value != ((), False)
    pair.close()


def test_operations_that_a_filesystem_lacks_are_left_out():
    pair = Pair(InMemoryFilesystem(), MockFilesystem())
    assert {"snapshot", "restore", "restore_paths", "export", "import"} <= pair.without
    assert Pair(InMemoryFilesystem(), InMemoryFilesystem()).without == frozenset()


def test_a_divergence_shows_the_messages_that_are_not_compared():
    pair = Pair(InMemoryFilesystem(), InMemoryFilesystem(read_only=True))
    pair.perform(Operation("read", {"path": "gone"}))
    with pytest.raises(DivergenceError, match="Filesystem is read-only"):
        pair.perform(Operation("write", {"path": "a", "content": "text"}))
