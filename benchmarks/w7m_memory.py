"""W7m: snapshot, snapshot and write, restore in memory: independent of the number of files."""

import itertools
from collections.abc import Callable, Iterator

from benchmarks.corpus import synthetic_files
from benchmarks.goals import at_most
from benchmarks.growth import cost_per_call
from benchmarks.harness import Case, Contender, Fact, Workload, expect
from benchmarks.limits import name_and_date
from benchmarks.ours import OurMemory
from benchmarks.stage import Stage

PATH = "d0003/f000321.py"
CALLS = 1_000
Maker = Callable[[OurMemory, int], Contender]


def cases(stage: Stage) -> Iterator[Case]:
    """One case for each operation; the sizes are its contenders, so that they are interleaved."""
    sizes = stage.sizes_or(1_000, 100_000)
    operations: tuple[tuple[str, Maker, float], ...] = (
        ("snapshot", _snapshot, 5e-6),
        ("snapshot + write", _snapshot_and_write, 15e-6),
        ("restore", _restore, 10e-6),
    )
    for name, maker, bound in operations:
        ours = tuple(maker(_loaded(size), size) for size in sizes)
        limit = Contender(
            "an id and the time",
            "limit",
            name_and_date,
            lambda answer: expect(len(answer), 2, "parts"),  # pyright: ignore[reportArgumentType] - a pair
            repeat=CALLS,
        )
        more = (limit,) if name == "snapshot" else ()
        yield Case(
            f"{name} in memory",
            (*ours, *more),
            (at_most(bound),),
            growth=f"{name} in memory (gate)",
        )


def _loaded(size: int) -> OurMemory:
    ours = OurMemory()
    ours.load(dict(synthetic_files(size)))
    return ours


def _snapshot(ours: OurMemory, size: int) -> Contender:
    text = ours.fs.read(PATH).content

    def check(answer: object) -> None:
        expect(ours.fs.view(answer).read(PATH).content, text, "text in the snapshot")

    return Contender(ours.name, "ours", ours.fs.snapshot, check, repeat=CALLS, size=size)


def _snapshot_and_write(ours: OurMemory, size: int) -> Contender:
    """The snapshot must hold what was there before the write after it."""
    texts = (f"value = {number}\n" for number in itertools.count())

    def run() -> tuple[object, str]:
        snapshot, text = ours.fs.snapshot(), next(texts)
        ours.fs.write(PATH, text)
        return snapshot, text

    last = [ours.fs.read(PATH).content]

    def check(answer: object) -> None:
        snapshot, text = answer  # pyright: ignore[reportGeneralTypeIssues] - what `run` returned
        expect(ours.fs.view(snapshot).read(PATH).content, last[0], "text in the snapshot")
        last[0] = text

    return Contender(ours.name, "ours", run, check, repeat=CALLS, size=size)


def _restore(ours: OurMemory, size: int) -> Contender:
    """To and fro between two states; the last one restored must be there."""
    states: list[tuple[object, str]] = []
    for text in ("one = 1\n", "two = 2\n"):
        ours.fs.write(PATH, text)
        states.append((ours.fs.snapshot(), text))
    turns = itertools.cycle(states)
    last = [""]

    def run() -> None:
        snapshot, last[0] = next(turns)
        ours.fs.restore(snapshot)

    def check(_answer: object) -> None:
        expect(ours.fs.read(PATH).content, last[0], "text after the restore")

    return Contender(ours.name, "ours", run, check, repeat=CALLS, size=size)


def facts(stage: Stage) -> Iterator[Fact]:
    """The ten-thousandth snapshot in memory costs what the first ones cost."""
    ours = _loaded(1_000)
    yield cost_per_call("snapshot + write in memory", _snapshot_and_write(ours, 1_000).run)
    yield cost_per_call("restore in memory", _restore(ours, 1_000).run)


WORKLOAD = Workload("W7m", "snapshot and restore, memory", cases, facts)
