"""W10: the memory of 100 snapshots in memory, with one change between any two."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator

from benchmarks.corpus import FOLDER, synthetic_files
from benchmarks.harness import Case, Contender, Fact, Workload, expect
from benchmarks.ours import OurMemory
from benchmarks.stage import Stage

SNAPSHOTS = 100
GOAL = 500_000
Places = Callable[[int], str]


def cases(stage: Stage) -> Iterator[Case]:
    """Take them, and look into every one; how long it takes is only told."""
    for size in stage.sizes_or(1_000, 100_000):
        ours = _loaded(size)
        contender = Contender(
            ours.name,
            "ours",
            lambda ours=ours, size=size: _take(ours, _spread(size)),
            lambda answer, ours=ours: _check(ours, answer),
        )
        yield Case(f"{SNAPSHOTS} snapshots, {size:,} files", (contender,), size=size)


def facts(stage: Stage) -> Iterator[Fact]:
    """What they hold beside the state that is there anyway."""
    for size in stage.sizes_or(100_000):
        for name, places in (("one file", _same), (f"{SNAPSHOTS} files", _spread(size))):
            held = _held(_loaded(size), places)
            text = f"{held / 1e6:.3f} MB (goal <= {GOAL / 1e6:g} MB)"
            yield Fact(
                f"memory of {SNAPSHOTS} snapshots of {size:,} files, changes of {name}",
                text,
                held <= GOAL,
            )


def _loaded(size: int) -> OurMemory:
    ours = OurMemory()
    ours.load(dict(synthetic_files(size)))
    return ours


def _same(_number: int) -> str:
    return "d0003/f000321.py"


def _spread(size: int) -> Places:
    """Every change elsewhere, in as many folders as there are."""
    folders = size // FOLDER - 1

    def place(number: int) -> str:
        folder = number % folders
        return f"d{folder:04}/f{folder * FOLDER + number // folders:06}.py"

    return place


def _take(ours: OurMemory, places: Places) -> list[tuple[object, str, str]]:
    """Change, keep, change, keep: the snapshots, and what each must hold where."""
    kept: list[tuple[object, str, str]] = []
    for number in range(SNAPSHOTS):
        path, text = places(number), f"changed = {number}\n"
        ours.write(path, text)
        kept.append((ours.fs.snapshot(), path, text))
    return kept


def _check(ours: OurMemory, answer: object) -> None:
    kept: list[tuple[object, str, str]] = answer  # pyright: ignore[reportAssignmentType] - what `_take` returned
    for snapshot, path, text in kept:
        expect(ours.fs.view(snapshot).read(path).content, text, "text in the snapshot")


def _held(ours: OurMemory, places: Places) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        kept = _take(ours, places)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    _check(ours, kept)
    return held


WORKLOAD = Workload("W10", "memory of 100 snapshots, memory", cases, facts)
