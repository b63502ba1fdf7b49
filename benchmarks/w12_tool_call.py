"""W12: one tool call through the executor, transaction and events included, beside its handler."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.corpus import synthetic_files
from benchmarks.goals import at_most
from benchmarks.growth import cost_per_call
from benchmarks.harness import Case, Contender, Fact, Role, Workload, expect
from benchmarks.ours import OurHost, OurMemory
from benchmarks.stage import Stage
from weakincentives.adapters import ToolCall, ToolExecutor
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session

PATH = "d0003/f000321.py"
CALLS = 200
Workspace = OurHost | OurMemory
Answer = tuple[str, str]  # what the call said, and what it had to say


@dataclass(frozen=True)
class ReadParams:
    """Which file."""

    path: str


@dataclass(frozen=True)
class WriteParams:
    """Which file, and what it becomes."""

    path: str
    content: str


def read_file(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
    """Return the text of a file."""
    assert context.filesystem is not None
    return ToolResult(context.filesystem.read(params.path).content)


def write_file(params: WriteParams, *, context: ToolContext) -> ToolResult[str]:
    """Replace the text of a file."""
    assert context.filesystem is not None
    context.filesystem.write(params.path, params.content)
    return ToolResult(params.content)


@dataclass(frozen=True)
class Kind:
    """A kind of call, and the time that it may take."""

    name: str
    tool: Tool[Any, Any]
    params: Callable[..., object]
    bound: float | None


KINDS = (
    Kind(
        "tool that only reads",
        Tool("read_file", "Read a file.", read_file, read_only=True),
        ReadParams,
        50e-6,
    ),
    Kind(
        "tool that changes nothing", Tool("read_file", "Read a file.", read_file), ReadParams, 50e-6
    ),
    Kind(
        "tool that writes one file",
        Tool("write_file", "Write a file.", write_file),
        WriteParams,
        None,
    ),
)


def cases(stage: Stage) -> Iterator[Case]:
    """Each kind of call, in memory and on the host; the sizes are contenders of one case."""
    for place, make in (("memory", _memory), ("host", _host)):
        spaces = [(size, make(stage, size)) for size in stage.sizes_or(1_000, 10_000)]
        for kind in KINDS:
            ours = [
                _contender(space.name, "ours", space, _executed(kind, space), size)
                for size, space in spaces
            ]
            size, space = spaces[-1]
            limit = _contender("handler alone", "limit", space, _direct(kind, space), size)
            name = f"{kind.name}, {place}"
            goals = () if kind.bound is None else (at_most(kind.bound),)
            yield Case(name, (*ours, limit), goals, growth=name)


def facts(stage: Stage) -> Iterator[Fact]:
    """The ten-thousandth call costs what the first ones cost."""
    for place, space in (("memory", _memory(stage, 1_000)), ("host", _host(stage, 1_000))):
        yield cost_per_call(f"{KINDS[0].name}, {place}", _executed(KINDS[0], space))


def _memory(stage: Stage, size: int) -> Workspace:
    ours = OurMemory()
    ours.load(dict(synthetic_files(size)))
    return ours


def _host(stage: Stage, size: int) -> Workspace:
    return stage.keep(OurHost(stage.own_tree(size)))


def _contender(
    name: str, role: Role, space: Workspace, run: Callable[[], Answer], size: int
) -> Contender:
    last: list[str] = [""]

    def run_and_note() -> Answer:
        answer = run()
        last[0] = answer[1]
        return answer

    def check(answer: object) -> None:
        said, wanted = answer  # pyright: ignore[reportGeneralTypeIssues] - what `run` returned
        expect(said, wanted, "what the call said")
        expect(space.fs.read(PATH).content, last[0], "text in the file")

    return Contender(name, role, run_and_note, check, repeat=CALLS, size=size)


def _executed(kind: Kind, space: Workspace) -> Callable[[], Answer]:
    context = ToolContext(None, None, None, Session(), filesystem=space.fs)
    executor = ToolExecutor([kind.tool], context=context)
    given = _given(kind, space)

    def run() -> Answer:
        arguments, wanted = next(given)
        return executor.execute(ToolCall(kind.tool.name, arguments, "call")).text, wanted

    return run


def _direct(kind: Kind, space: Workspace) -> Callable[[], Answer]:
    context = ToolContext(None, None, None, Session(), filesystem=space.fs)
    given = _given(kind, space)
    handler = kind.tool.handler
    assert handler is not None

    def run() -> Answer:
        arguments, wanted = next(given)
        return handler(kind.params(**arguments), context=context).message, wanted

    return run


def _given(kind: Kind, space: Workspace) -> Iterator[tuple[dict[str, object], str]]:
    """What each call is given, and what it must say."""
    text = space.fs.read(PATH).content
    for number in itertools.count():
        if kind.params is WriteParams:
            text = f"value = {number}\n"
            yield {"path": PATH, "content": text}, text
        else:
            yield {"path": PATH}, text


WORKLOAD = Workload("W12", "one tool call", cases, facts)
