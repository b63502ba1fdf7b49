"""W3: create and overwrite a small file on the host, atomically."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.goals import not_slower_than_peers
from benchmarks.growth import cost_per_call
from benchmarks.harness import Case, Contender, Fact, Role, Workload, expect
from benchmarks.limits import write_and_rename, write_file
from benchmarks.ours import OurHost
from benchmarks.peers import host_peers
from benchmarks.stage import Stage
from benchmarks.subject import Subject

TEXTS = ("one = 1\n" * 30, "two = 2\n" * 30)
BATCH = 50
Write = Callable[[str, str], object]
Maker = Callable[[Path], Subject]


def cases(stage: Stage) -> Iterator[Case]:
    """Create new files, then overwrite the same fifty.

    All contenders write into one folder, under names of their own: where a file system
    happens to place a folder changes the cost of creating a file in it threefold.
    """
    makers, absent = host_peers()
    for kind in ("create", "overwrite"):
        folder = stage.scratch()
        writers: list[tuple[str, Role, Write]] = []
        for role, make in _makers(makers):
            subject = stage.keep(make(folder))
            writers.append((subject.name, role, subject.write))
        writers.append(("open + write + close", "limit", _bare(write_file, folder)))
        writers.append(("temp + rename", "limit", _bare(write_and_rename, folder)))
        contenders = tuple(
            _contender(*writer, folder / f"{number}-", kind)
            for number, writer in enumerate(writers)
        )
        yield Case(f"{kind} a small file", contenders, (not_slower_than_peers(1.15),), absent)


def _makers(peers: list[Maker]) -> Iterator[tuple[Role, Maker]]:
    yield "ours", OurHost
    for make in peers:
        yield "peer", make


def _bare(write: Callable[[str, bytes], int], folder: Path) -> Write:
    return lambda path, text: write(f"{folder}/{path}", text.encode())


def _contender(name: str, role: Role, write: Write, prefix: Path, kind: str) -> Contender:
    """Write the next text under the next name; afterwards the disk must say the same."""
    numbers = itertools.count()

    def run() -> tuple[str, str]:
        number = next(numbers)
        path = f"{prefix.name}{number if kind == 'create' else number % BATCH}.txt"
        text = TEXTS[number // BATCH % 2]
        write(path, text)
        return path, text

    def check(answer: object) -> None:
        path, text = answer  # pyright: ignore[reportGeneralTypeIssues] - what `run` returned
        expect((prefix.parent / path).read_text(), text, "content on disk")

    return Contender(name, role, run, check, repeat=BATCH)


def facts(stage: Stage) -> Iterator[Fact]:
    """The ten-thousandth write costs what the first ones cost."""
    ours = stage.keep(OurHost(stage.scratch()))
    numbers = itertools.count()
    yield cost_per_call("overwrite on the host", lambda: ours.write("same.txt", TEXTS[0]))
    yield cost_per_call("create on the host", lambda: ours.write(f"f{next(numbers)}.txt", TEXTS[0]))


WORKLOAD = Workload("W3", "create / overwrite a small file, host", cases, facts)
