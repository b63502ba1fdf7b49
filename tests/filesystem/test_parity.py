"""Two backends side by side: the same random operations, no divergence.

WINK_PARITY_OPERATIONS sets how many operations are done in all (100,000 by default) and
WINK_PARITY_SEED where the random numbers start. See docs/write-a-backend.md.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem, Listener, ReadResult
from weakincentives.filesystem.rooted import RootedDirectory
from weakincentives.filesystem.testing import (
    DivergenceError,
    MockFilesystem,
    Operation,
    Pair,
    run_machine,
    run_parity,
)

OPERATIONS = int(os.environ.get("WINK_PARITY_OPERATIONS", "100000"))
SEED = int(os.environ.get("WINK_PARITY_SEED", "0"))
SHARES = 4  # so that several processes can take part
MACHINE = settings(
    max_examples=60,
    stateful_step_count=15,
    phases=(Phase.generate, Phase.shrink),
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)

HostFactory = Callable[[], HostFilesystem]


@pytest.fixture
def new_host(tmp_path: Path) -> Iterator[HostFactory]:
    """A function that makes an empty workspace on disk, and removes the one before."""
    numbers = count()

    def make() -> HostFilesystem:
        number = next(numbers)
        shutil.rmtree(tmp_path / str(number - 1), ignore_errors=True)
        root = tmp_path / str(number)
        root.mkdir()
        return HostFilesystem(root)

    yield make
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_host_and_memory_never_diverge(new_host: HostFactory, share: int):
    wanted = -(-OPERATIONS // SHARES)
    assert run_parity(SEED * SHARES + share, wanted, subject=new_host) == wanted
    assert wanted * SHARES >= OPERATIONS


def test_the_step_by_step_host_and_memory_never_diverge(new_host: HostFactory):
    def step_by_step() -> HostFilesystem:
        fs = new_host()
        fs._directory = RootedDirectory(Path(fs.root), kernel=False)
        return fs

    assert run_parity(SEED, 2_000, subject=step_by_step) == 2_000


def test_the_machine_finds_no_divergence(new_host: HostFactory):
    run_machine(new_host, settings=MACHINE)


def test_the_mock_and_memory_never_diverge():
    assert run_parity(SEED, 2_000, subject=MockFilesystem) == 2_000


class CountsFromOne(InMemoryFilesystem):
    """A backend with a small mistake."""

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, encoding: str = "utf-8"
    ) -> ReadResult:
        found = super().read(path, offset=offset, limit=limit, encoding=encoding)
        return replace(found, total_lines=found.total_lines + 1) if offset == 1 else found


class TellsNothing(InMemoryFilesystem):
    def subscribe(self, listener: Listener) -> Callable[[], None]:
        return super().subscribe(lambda event: None)


class Crashes(InMemoryFilesystem):
    def delete(self, path: str, *, recursive: bool = False) -> None:
        raise KeyError(path)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (CountsFromOne, "outcomes differ"),
        (TellsNothing, "events differ"),
        (Crashes, "KeyError.* was raised"),
    ],
)
def test_the_driver_meets_a_mistake(broken: type[InMemoryFilesystem], told: str):
    with pytest.raises(DivergenceError, match=told) as caught:
        run_parity(1, 2_000, subject=broken)
    assert len(caught.value.operations) <= 2


def test_the_machine_finds_a_mistake_and_tells_the_shortest_way():
    with pytest.raises(DivergenceError) as caught:
        run_machine(CountsFromOne, settings=settings(MACHINE, phases=[Phase.generate]))
    *_, last = caught.value.operations
    assert (last.name, last.arguments["offset"]) == ("read", 1)
    assert len(caught.value.operations) == 2


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
