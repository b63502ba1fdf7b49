"""Pages of a large file: the cases that W2a and W2b share."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import Case, Contender, Goal, expect
from benchmarks.limits import read_file
from benchmarks.ours import OurHost
from benchmarks.peers import host_peers
from benchmarks.race import Fresh, race
from benchmarks.stage import Stage
from benchmarks.subject import Subject

LINE = "line {:07} of a file that is long enough to be read in pages, one after the other\n"
NAME = "large.txt"
# What was written a moment ago may change again within one tick of the clock; nobody may
# remember anything about such a file, so "again" means a file that has been left alone.
SETTLED = 0.5


def write_lines(folder: Path, size: int) -> int:
    """Write a file of about `size` bytes; return the number of its lines."""
    count = size // len(LINE.format(0))
    with (folder / NAME).open("w") as file:
        file.writelines(LINE.format(number) for number in range(count))
    return count


def page_cases(
    stage: Stage,
    size: int,
    *,
    offset: int,
    limit: int,
    cold: tuple[Goal, ...],
    again: tuple[Goal, ...],
) -> Iterator[Case]:
    """Ask for one page with a new filesystem object each time, then with the same one."""
    folder = stage.scratch()
    lines = write_lines(folder, size)
    page = "".join(LINE.format(n) for n in range(offset, min(offset + limit, lines)))
    megabytes = f"{size / 1e6:g} MB"

    def check(subject: Subject, answer: object) -> None:
        expect(subject.page(answer), (page, lines), "page and total lines")

    def ask(subject: Subject) -> Callable[[], object]:
        return lambda: subject.read_page(NAME, offset, limit)

    makers, absent = host_peers()
    peers = [stage.keep(make(folder)) for make in makers]
    ours = stage.keep(Fresh(lambda: OurHost(folder)))
    limits = Contender(
        "read the whole file",
        "limit",
        lambda: read_file(str(folder / NAME)),
        lambda answer: expect(len(answer), lines * len(LINE.format(0)), "bytes"),  # pyright: ignore[reportArgumentType] - `read_file` gives bytes
    )
    rest = (limits, *race("peer", peers, ask, check))
    new = ours.contender("ours", lambda subject: subject.read_page(NAME, offset, limit), check)
    new = Contender(new.name, "ours", new.run, new.check, prepare=_forget(ours, folder / NAME))
    yield Case(f"line {offset:,} of {megabytes}, cold", (new, *rest), cold, absent, beatable=True)
    time.sleep(SETTLED)
    warm = OurHost(folder)
    warm.read_page(NAME, offset, limit)
    same = race("ours", [stage.keep(warm)], ask, check, repeat=5)
    yield Case(
        f"line {offset:,} of {megabytes}, again", (*same, *rest), again, absent, beatable=True
    )


def _forget(fresh: Fresh, path: Path) -> Callable[[], None]:
    """Make a new object, and a new modification time in case that anything is kept elsewhere."""

    def prepare() -> None:
        fresh.renew()
        os.utime(path)

    return prepare
