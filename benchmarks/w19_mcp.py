"""W19: what a call of `wink mcp` costs over pipes, beside the MCP reference filesystem server.

All are processes on directories with the same files, and one client talks to them. Ours works on
a copy or on the directory itself, without commands, and there also without a recording. After each
call that changes something it keeps a state to undo it, which the reference server cannot.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.goals import at_most, faster_than_peers, not_slower_than_peers, show
from benchmarks.harness import Absent, Case, Contender, Fact, Role, Workload, WrongAnswerError
from benchmarks.stage import Stage
from scripts.mcp_process import ServerProcess
from scripts.node_packages import REFERENCE_SERVER, explain_missing, find_node_program

COPY, IN_PLACE = "wink mcp", "wink mcp --in-place"
NOT_RECORDED = f"{IN_PLACE} --no-dump"
REFERENCE = "reference server"
_OURS = (sys.executable, "-m", "weakincentives", "mcp", "--sandbox", "none")
_READ = not_slower_than_peers(3)
_SEARCH = faster_than_peers(5)
_CHANGE = at_most(0.015)
_UNDO = at_most(0.03)


@dataclass(slots=True)
class Served:
    """A server, the directory that it serves, and the seconds until it answered."""

    name: str
    role: Role
    root: Path
    process: ServerProcess
    started: float
    calls: int = 0

    def processor_time(self) -> float:
        """Return the seconds that all its threads have used."""
        tasks = Path(f"/proc/{self.process.process.pid}/task").iterdir()
        return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e9

    def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool, and return the text of its result."""
        self.calls += 1
        result = self.process.call(tool, **arguments)
        text = "".join(each.get("text", "") for each in result["content"])
        if result.get("isError"):
            raise WrongAnswerError(text)
        return text


def cases(stage: Stage) -> Iterator[Case]:
    """Each call at each size, on both."""
    for size in stage.sizes_or(1_000, 10_000):
        servers, absent = _serve(stage, size)
        name = stage.tree(size).name
        for title, make, goal in (
            ("read_text_file", _reader, _READ),
            ("list_directory, 100 files", _lister, _READ),
            ("search_files", _finder, _SEARCH),
            ("write_file", _writer, _CHANGE),
            ("edit_file", _editor, _CHANGE),
            ("undo of a write_file", _undoer, _UNDO),
        ):
            able = [each for each in servers if make is not _undoer or each.role == "ours"]
            contenders = tuple(make(each) for each in able)
            before = [(each.processor_time(), each.calls) for each in servers]
            yield Case(f"{title}, {name}", contenders, (goal,), absent, size, title)
            for each, (spent, calls) in zip(servers, before, strict=True):
                per_call = (each.processor_time() - spent) / max(each.calls - calls, 1)
                text = f"{each.name}: processor time of {title}, {name}"
                _notes.append(Fact(text, show(per_call)))
        _notes.extend(_describe(each, name) for each in servers)


def facts(stage: Stage) -> Iterator[Fact]:
    """Processor time for each call, the time until the first answer, the memory after all calls."""
    del stage
    yield from _notes
    _notes.clear()


_notes: list[Fact] = []


def _describe(served: Served, size: str) -> Fact:
    memory = served.process.memory() / 1e6
    return Fact(
        f"{served.name}, {size}: start to the first answer; memory",
        f"{show(served.started)}; {memory:.0f} MB",
    )


def _serve(stage: Stage, size: int) -> tuple[list[Served], tuple[Absent, ...]]:
    servers = [
        _start(stage, COPY, "ours", (*_OURS, "--copy"), size),
        _start(stage, IN_PLACE, "ours", (*_OURS, "--in-place"), size),
        _start(stage, NOT_RECORDED, "ours", (*_OURS, "--in-place", "--no-dump"), size),
    ]
    reference = find_node_program(REFERENCE_SERVER)
    if reference is None:
        return servers, (Absent(REFERENCE, explain_missing(REFERENCE_SERVER)),)
    return [*servers, _start(stage, REFERENCE, "peer", tuple(reference), size)], ()


def _start(stage: Stage, name: str, role: Role, command: tuple[str, ...], size: int) -> Served:
    root = stage.own_tree(size)
    home = stage.scratch()
    began = time.perf_counter()
    process = stage.exits.enter_context(
        ServerProcess(
            [*command, str(root)],
            environment={"HOME": str(home), "XDG_STATE_HOME": str(home)},
        )
    )
    process.initialize()
    process.request("tools/list")
    return Served(name, role, root, process, time.perf_counter() - began)


def _contender(
    served: Served,
    run: Callable[[], str],
    check: Callable[[str], bool],
    *,
    repeat: int = 0,
    prepare: Callable[[], None] = lambda: None,
) -> Contender:
    def judge(answer: object) -> None:
        if not isinstance(answer, str) or not check(answer):
            raise WrongAnswerError(f"{answer!r:.200}")

    # both are other processes, so the clock has to be that of the wall
    return Contender(served.name, served.role, run, judge, prepare, repeat=repeat, threads=True)


def _first_file(root: Path) -> Path:
    return min(each for each in root.rglob("*") if each.is_file())


def _reader(served: Served) -> Contender:
    path = _first_file(served.root)
    line = path.read_text().splitlines()[0]
    arguments = {"path": str(path)}
    return _contender(
        served, lambda: served.call("read_text_file", arguments), lambda text: line in text
    )


def _lister(served: Served) -> Contender:
    directory = _first_file(served.root).parent
    names = {each.name for each in directory.iterdir()}
    arguments = {"path": str(directory)}
    return _contender(
        served,
        lambda: served.call("list_directory", arguments),
        lambda text: all(name in text for name in names),
    )


def _finder(served: Served) -> Contender:
    """Every file is looked at, few are found."""
    path = _first_file(served.root)
    arguments = {"path": str(served.root), "pattern": f"**/{path.name}"}
    return _contender(
        served, lambda: served.call("search_files", arguments), lambda text: path.name in text
    )


def _writer(served: Served) -> Contender:
    path = _first_file(served.root).parent / "written.txt"
    numbers = count(1)

    def run() -> str:
        content = f"version {next(numbers)}\n" * 40
        return served.call("write_file", {"path": str(path), "content": content})

    return _contender(served, run, lambda text: "written.txt" in text)


def _editor(served: Served) -> Contender:
    path = _first_file(served.root).parent / "edited.txt"
    content = "first\n" + "line of a file\n" * 40 + "number 0\n"
    served.call("write_file", {"path": str(path), "content": content})
    numbers = count()

    def run() -> str:
        number = next(numbers)
        edit = {"oldText": f"number {number}\n", "newText": f"number {number + 1}\n"}
        return served.call("edit_file", {"path": str(path), "edits": [edit]})

    return _contender(served, run, lambda text: "+number" in text)


def _undoer(served: Served) -> Contender:
    path = _first_file(served.root).parent / "undone.txt"
    numbers = count(1)

    def write() -> None:
        content = f"version {next(numbers)}\n" * 40
        served.call("write_file", {"path": str(path), "content": content})

    return _contender(
        served,
        lambda: served.call("undo", {}),
        lambda text: "undone.txt" in text,
        repeat=1,
        prepare=write,
    )


WORKLOAD = Workload("W19", "calls of an MCP server over pipes", cases, facts)
