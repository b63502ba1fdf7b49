"""W4g: list, read, write and overwrite in memory must not depend on the number of files."""

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
CREATIONS = 500
Operation = Callable[[OurMemory], Callable[[], object]]
Check = Callable[[OurMemory], Callable[[object], None]]


def cases(stage: Stage) -> Iterator[Case]:
    """One case for each operation; the sizes are its contenders, so that they are interleaved."""
    subjects = [(size, _loaded(size)) for size in stage.sizes_or(*SIZES)]
    operations: dict[str, tuple[Operation, Check]] = {
        "list": (lambda ours: lambda: ours.list_folder("few"), _lists),
        "read": (lambda ours: lambda: ours.read(PATH), _reads),
        "overwrite": (lambda ours: lambda: ours.write(PATH, TEXT), _writes),
        "create": (_creator, _writes),
    }
    for name, (operation, check) in operations.items():
        contenders = tuple(
            Contender(
                ours.name,
                "ours",
                operation(ours),
                check(ours),
                repeat=CREATIONS if operation is _creator else 0,
                size=size,
            )
            for size, ours in subjects
        )
        yield Case(f"{name} in memory", contenders, growth=f"{name} in memory (gate)")


def _loaded(size: int) -> OurMemory:
    ours = OurMemory()
    ours.load(dict(synthetic_files(size)))
    return ours


def _creator(ours: OurMemory) -> Callable[[], object]:
    numbers = itertools.count()
    return lambda: ours.write(f"new/f{next(numbers)}.py", TEXT)


def _lists(ours: OurMemory) -> Callable[[object], None]:
    return lambda answer: expect(len(ours.names(answer)), FEW, "entries")


def _reads(ours: OurMemory) -> Callable[[object], None]:
    return lambda answer: expect(ours.text(answer), TEXT, "text")


def _writes(ours: OurMemory) -> Callable[[object], None]:
    return lambda answer: expect(ours.text(ours.read(answer.path)), TEXT, "text")  # pyright: ignore[reportAttributeAccessIssue] - our WriteResult


def facts(stage: Stage) -> Iterator[Fact]:
    """The ten-thousandth call in memory costs what the first ones cost."""
    ours = _loaded(1_000)
    yield cost_per_call("list in memory", lambda: ours.list_folder("few"))
    yield cost_per_call("read in memory", lambda: ours.read(PATH))
    yield cost_per_call("overwrite in memory", lambda: ours.write(PATH, TEXT))


WORKLOAD = Workload("W4g", "growth of list, read and write in memory", cases, facts)
