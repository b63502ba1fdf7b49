"""Forks a child that writes without pause, kills it, and checks the state.

Run as a program, so that the process is warm and has one thread:
`python -m tests.safety.kill_loop <scenario> <rounds> <root>` prints a summary in JSON.
"""

import json
import mmap
import os
import random
import signal
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.safety.places import temporary_names, visible
from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import RESERVED_PREFIX

RECORD = 1_000
TREE = {f"d{d}/sub/f{f}": f"{d}-{f} " * 40 for d in range(3) for f in range(4)}


@dataclass
class Summary:
    """What was seen."""

    rounds: int = 0
    steps: int = 0
    leftovers: int = 0
    states: Counter[str] = field(default_factory=Counter[str])
    defects: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Scenario:
    """What a writer does over and over, and what must be true whenever it is killed."""

    prepare: Callable[[HostFilesystem], None]
    step: Callable[[HostFilesystem, int], None]
    check: Callable[[HostFilesystem], str]


def whole(generation: int) -> str:
    """Return content in which every line names the generation, so that a mix shows."""
    return f"{generation:06}\n" * (5_000 + generation % 1_000) + "end\n"


def generation_of(content: str) -> int:
    generation = int(content.partition("\n")[0])
    assert content == whole(generation), f"torn: {content[:40]!r}"
    return generation


def record(number: int) -> str:
    return f"{number:0{RECORD - 1}d}\n"


def check_records(fs: HostFilesystem) -> str:
    content = fs.read("log", limit=-1).content
    assert content == "".join(map(record, range(content.count("\n")))), "torn"
    return "old or new"


def append(fs: HostFilesystem, _: int) -> None:
    size = fs.stat("log").size_bytes
    if size > 40 * RECORD:
        fs.write("log", record(0))
        size = RECORD
    fs.write("log", record(size // RECORD), mode="append")


def build_tree(fs: HostFilesystem) -> None:
    for path, content in TREE.items():
        fs.write(f"template/{path}", content)


def copy_and_delete(fs: HostFilesystem, number: int) -> None:
    if not fs.exists("t"):
        fs.copy("template", "t")
    fs.delete("t", recursive=True)


def check_tree(fs: HostFilesystem) -> str:
    assert tree_at(fs, "template") == TREE
    if not fs.exists("t"):
        return "gone"
    assert tree_at(fs, "t") == TREE
    return "there"


def tree_at(fs: HostFilesystem, path: str) -> dict[str, str]:
    skip = len(path) + 1
    return {m.path[skip:]: fs.read(m.path).content for m in fs.glob("**", path=path)}


def move_to_and_fro(fs: HostFilesystem, _: int) -> None:
    here, there = ("x", "new/y") if fs.exists("x") else ("new/y", "x")
    fs.move(here, there)
    fs.move(
        "m/n/tree" if fs.exists("m/n/tree") else "tree",
        "tree" if fs.exists("m/n/tree") else "m/n/tree",
    )


def check_moved(fs: HostFilesystem) -> str:
    places = [path for path in ("x", "new/y") if fs.exists(path)]
    assert len(places) == 1, places
    assert fs.read(places[0], limit=-1).content == whole(1)
    trees = [path for path in ("tree", "m/n/tree") if fs.exists(path)]
    assert len(trees) == 1, trees
    assert tree_at(fs, trees[0]) == TREE
    return f"{places[0]}, {trees[0]}"


def prepare_move(fs: HostFilesystem) -> None:
    fs.write("x", whole(1))
    build_tree(fs)
    fs.move("template", "tree")


def create(fs: HostFilesystem, number: int) -> None:
    if fs.exists("n"):
        fs.delete("n", recursive=True)
    fs.write("n/deep/er/f", whole(number))


def check_created(fs: HostFilesystem) -> str:
    if not fs.exists("n"):
        return "gone"
    generation_of(fs.read("n/deep/er/f", limit=-1).content)
    return "there"


def replace_by_move(fs: HostFilesystem, number: int) -> None:
    fs.write("next", whole(number))
    fs.move("next", "f", overwrite=True)
    fs.copy("f", "copy", overwrite=True)


def check_file(fs: HostFilesystem) -> str:
    for match in fs.glob("*"):
        generation_of(fs.read(match.path, limit=-1).content)
    assert fs.exists("f")
    return "old or new"


def start_file(fs: HostFilesystem) -> None:
    fs.write("f", whole(0))


SCENARIOS = {
    "write": Scenario(start_file, lambda fs, n: void(fs.write("f", whole(n))), check_file),
    "append": Scenario(lambda fs: void(fs.write("log", record(0))), append, check_records),
    "create": Scenario(lambda fs: None, create, check_created),
    "replace": Scenario(start_file, replace_by_move, check_file),
    "tree": Scenario(build_tree, copy_and_delete, check_tree),
    "move": Scenario(prepare_move, move_to_and_fro, check_moved),
}


def void(_: object) -> None: ...


def check_after_kill(root: Path, scenario: Scenario, summary: Summary) -> None:
    """Look at what is left as the next process would, and check that it can go on."""
    summary.leftovers += bool(temporary_names(root))
    with HostFilesystem(root) as fs:
        shown = [match.path for match in fs.glob("**")] + list(visible(fs))
        shown += [match.path for match in fs.grep(".")]
        assert not any(RESERVED_PREFIX in path for path in shown)
        left = temporary_names(root)
        assert not left, f"not swept: {left}"
        summary.states[scenario.check(fs)] += 1
        fs.write("probe", "works")
        assert fs.read("probe").content == "works"
        fs.delete("probe")


def run_until_killed(root: Path, scenario: Scenario, progress: mmap.mmap) -> None:
    fs = HostFilesystem(root)
    number = 0
    while True:
        number += 1
        scenario.step(fs, number)
        progress[:8] = struct.pack("Q", number)


def kill_at_random(root: Path, scenario: Scenario, choice: random.Random) -> int:
    """Fork a writer, let it get going, kill it anywhere; return how many steps it did."""
    progress = mmap.mmap(-1, 8)
    child = os.fork()
    if child == 0:
        try:
            run_until_killed(root, scenario, progress)
        finally:
            os._exit(1)
    wanted = choice.randrange(4)
    while struct.unpack("Q", progress[:8])[0] < wanted:
        if os.waitpid(child, os.WNOHANG)[0]:
            raise AssertionError("the writer failed by itself")
    for _ in range(choice.randrange(20_000)):
        pass
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the writer failed by itself"
    return struct.unpack("Q", progress[:8])[0]


def loop(scenario: Scenario, rounds: int, root: Path) -> Summary:
    summary = Summary()
    choice = random.Random(rounds)
    with HostFilesystem(root) as fs:
        scenario.prepare(fs)
    for number in range(rounds):
        try:
            summary.steps += kill_at_random(root, scenario, choice)
            check_after_kill(root, scenario, summary)
        except (AssertionError, OSError, ValueError) as error:
            summary.defects.append(f"round {number}: {error!r}")
        summary.rounds += 1
    return summary


if __name__ == "__main__":
    name, rounds, root = sys.argv[1:]
    print(json.dumps(vars(loop(SCENARIOS[name], int(rounds), Path(root)))))
