"""W4: list a folder of 10 files among many, in memory and on the host."""

from collections.abc import Callable, Iterator

from benchmarks.corpus import FEW, synthetic_files
from benchmarks.goals import at_most
from benchmarks.growth import cost_per_call
from benchmarks.harness import Case, Contender, Fact, Workload, expect
from benchmarks.limits import scandir_list
from benchmarks.ours import OurHost, OurMemory
from benchmarks.peers import host_peers, memory_peers
from benchmarks.race import race
from benchmarks.stage import Stage
from benchmarks.subject import Subject

FOLDER = "few"
NAMES = [f"g{number}.py" for number in range(FEW)]
SIZES = (1_000, 10_000, 100_000)


def cases(stage: Stage) -> Iterator[Case]:
    """Memory, then host, each at every size."""
    for size in stage.sizes_or(*SIZES):
        yield _memory(size)
    for size in stage.sizes_or(*SIZES):
        yield _host(stage, size)


def _check(subject: Subject, answer: object) -> None:
    expect(subject.names(answer), NAMES, "names")


def _ask(subject: Subject) -> Callable[[], object]:
    return lambda: subject.list_folder(FOLDER)


def _memory(size: int) -> Case:
    files = dict(synthetic_files(size))
    makers, absent = memory_peers()
    ours, *peers = [_loaded(make, files) for make in (OurMemory, *makers)]
    table = {name: len(files[f"{FOLDER}/{name}"]) for name in NAMES}
    limit = Contender(
        "sort a dict of 10",
        "limit",
        lambda: sorted(table.items()),
        lambda answer: expect(len(answer), FEW, "entries"),  # pyright: ignore[reportArgumentType] - a list
        repeat=0,
    )
    contenders = (*race("ours", [ours], _ask, _check, repeat=0), limit)
    contenders += race("peer", peers, _ask, _check, repeat=0, wall=10)
    growth = "list in memory"
    return Case(f"memory, {size:,} files", contenders, (at_most(20e-6),), absent, size, growth)


def _loaded(make: Callable[[], Subject], files: dict[str, bytes]) -> Subject:
    subject = make()
    subject.load(files)
    return subject


def _host(stage: Stage, size: int) -> Case:
    corpus = stage.tree(size)
    place = str(corpus.root / FOLDER)
    makers, absent = host_peers()
    peers = [stage.keep(make(corpus.root)) for make in makers]
    ours = stage.keep(OurHost(corpus.root))
    limit = Contender(
        "scandir",
        "limit",
        lambda: scandir_list(place),
        lambda answer: expect(sorted(answer), NAMES, "names"),  # pyright: ignore[reportArgumentType] - a list of names
        repeat=0,
    )
    contenders = (*race("ours", [ours], _ask, _check, repeat=0), limit)
    contenders += race("peer", peers, _ask, _check, repeat=0)
    return Case(
        f"host, {size:,} files", contenders, (at_most(40e-6),), absent, size, "list on the host"
    )


def facts(stage: Stage) -> Iterator[Fact]:
    """The ten-thousandth listing costs what the first ones cost."""
    ours = stage.keep(OurHost(stage.tree(1_000).root))
    yield cost_per_call("list on the host", lambda: ours.list_folder(FOLDER))


WORKLOAD = Workload("W4", "list a folder of 10 among n files", cases, facts)
