"""Runs code in a separate process and reports its peak memory.

The work is a function of this module: `python -m tests.safety.measured <name> <root>`
prints its result and by how many bytes the largest resident size grew, as JSON.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.safety.places import ROOT
from weakincentives.filesystem import BaseFilesystem, HostFilesystem, InMemoryFilesystem, Limits

MEGABYTE = 1024 * 1024


@dataclass(frozen=True)
class Measured:
    """A result, and the memory it took to get there."""

    result: object
    grown: int


def measure(name: str, root: object) -> Measured:
    """Run the work called `name` in a fresh process."""
    command = [sys.executable, "-m", "tests.safety.measured", name, str(root)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Measured(**json.loads(done.stdout))


def outcome_name(operation: Callable[[], object]) -> str:
    try:
        operation()
    except (OSError, ValueError) as error:
        return type(error).__name__
    return "returned"


def grep_giant_line(fs: BaseFilesystem) -> object:
    found = fs.grep("needle|b+c", path="giant")
    return [len(found), found.truncated, max((len(m.line_content) for m in found), default=0)]


def grep_giant_binary(fs: BaseFilesystem) -> object:
    return len(fs.grep(".", path="giant"))


def read_page(fs: BaseFilesystem) -> object:
    page = fs.read("large", offset=900_000, limit=100)
    return [len(page.content), page.content[:7], page.truncated]


def read_bytes_page(fs: BaseFilesystem) -> object:
    page = fs.read_bytes("large", offset=90_000_000, limit=4_096)
    return [len(page.content), page.truncated]


def view_pages(fs: BaseFilesystem) -> object:
    assert isinstance(fs, HostFilesystem)
    view = fs.view(fs.history.list()[-1])
    first = view.read("large", limit=2_000)
    late = view.read("large", offset=900_000, limit=100)
    part = view.read_bytes("large", offset=90_000_000, limit=4_096)
    return [first.total_lines, len(first.content), late.content[:7], part.size_bytes]


def hash_large(fs: BaseFilesystem) -> object:
    return [fs.content_hash("large"), fs.stat("large").content_hash == fs.content_hash("large")]


def copy_large(fs: BaseFilesystem) -> object:
    fs.copy("large", "copied")
    return fs.stat("copied").size_bytes


def append_large(fs: BaseFilesystem) -> object:
    fs.write("large", "more", mode="append")
    return fs.stat("large").size_bytes


def ignore_giant(fs: BaseFilesystem) -> object:
    return [match.path for match in fs.glob("**", use_ignore_files=True)]


def long_paths(fs: BaseFilesystem) -> object:
    path = "a/" * 200_000 + "x"
    results: list[str] = []
    for each in (fs, InMemoryFilesystem()):
        each.write("source", "x")
        operations: list[Callable[[str], object]] = [
            each.read,
            each.stat,
            each.list,
            each.delete,
            each.mkdir,
            lambda path, each=each: each.write(path, "x"),
            lambda path, each=each: each.glob("*", path=path),
            lambda path, each=each: each.grep("x", path=path),
            lambda path, each=each: each.move(path, "y"),
            lambda path, each=each: each.move("source", path),
            lambda path, each=each: each.copy("source", path),
        ]
        results += [outcome_name(partial(operation, path)) for operation in operations]
        results.append(str(each.exists(path)))
    return results


WORK: dict[str, Callable[[BaseFilesystem], object]] = {
    work.__name__: work
    for work in (
        grep_giant_line,
        grep_giant_binary,
        read_page,
        read_bytes_page,
        view_pages,
        hash_large,
        copy_large,
        append_large,
        ignore_giant,
        long_paths,
    )
}


def peak() -> int:
    """Return the largest resident size so far; rusage would count our parent's as ours."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(name: str, root: str) -> None:
    fs = HostFilesystem(root, limits=Limits(max_write_length=10 * MEGABYTE))
    fs.write("warm", "needle\n")
    fs.grep("needle", path="warm")
    fs.delete("warm")
    before = peak()
    result = WORK[name](fs)
    print(json.dumps({"result": result, "grown": peak() - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
