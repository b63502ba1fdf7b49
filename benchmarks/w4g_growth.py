"""W4g: list, read, write and overwrite in memory must not feel how many files there are."""

import itertools
from collections.abc import Callable, Iterator

from benchmarks.corpus import FEW, synthetic_files
from benchmarks.growth import cost_per_call
from benchmarks.harness import Case, Contender, Fact, Workload, expect
from benchmarks.ours import OurMemory
from benchmarks.stage import Stage

SIZES = (1_000, 10_000, 100_000)
PATH = "few/g3.py"
TEXT = "few = 3\n"
REPEAT = 1_000


def cases(stage: Stage) -> Iterator[Case]:
    """One case for each operation and size; only ours, since the gate is on ours."""
    for size in stage.sizes_or(*SIZES):
        ours = OurMemory()
        ours.load(dict(synthetic_files(size)))
        numbers = itertools.count()
        operations: dict[str, tuple[Callable[[], object], Callable[[object], None]]] = {
            "list": (lambda o=ours: o.list_folder("few"), _lists(ours)),
            "read": (lambda o=ours: o.read(PATH), _reads(ours)),
            "overwrite": (lambda o=ours: o.write(PATH, TEXT), _writes(ours)),
            "create": (
                lambda o=ours, n=numbers: o.write(f"new/f{next(n)}.py", TEXT),
                _writes(ours),
            ),
        }
        for name, (run, check) in operations.items():
            contender = Contender(ours.name, "ours", run, check, repeat=REPEAT)
            growth = f"{name} in memory (gate)"
            yield Case(f"{name}, {size:,} files", (contender,), size=size, growth=growth)


def _lists(ours: OurMemory) -> Callable[[object], None]:
    return lambda answer: expect(len(ours.names(answer)), FEW, "entries")


def _reads(ours: OurMemory) -> Callable[[object], None]:
    return lambda answer: expect(ours.text(answer), TEXT, "text")


def _writes(ours: OurMemory) -> Callable[[object], None]:
    return lambda answer: expect(ours.text(ours.read(answer.path)), TEXT, "text")  # pyright: ignore[reportAttributeAccessIssue] - our WriteResult


def facts(stage: Stage) -> Iterator[Fact]:
    """The ten-thousandth call in memory costs what the first ones cost."""
    ours = OurMemory()
    ours.load(dict(synthetic_files(1_000)))
    yield cost_per_call("list in memory", lambda: ours.list_folder("few"))
    yield cost_per_call("read in memory", lambda: ours.read(PATH))
    yield cost_per_call("overwrite in memory", lambda: ours.write(PATH, TEXT))


WORKLOAD = Workload("W4g", "growth of list, read and write in memory", cases, facts)
