"""W12s: the tools of the suite through the executor, beside the bare call of the filesystem."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.corpus import synthetic_files
from benchmarks.goals import at_most, within_limit
from benchmarks.growth import cost_per_call
from benchmarks.harness import Case, Contender, Fact, Goal, Workload, WrongAnswerError
from benchmarks.ours import OurHost, OurMemory
from benchmarks.stage import Stage
from weakincentives.adapters import ToolCall, ToolExecutor
from weakincentives.contrib.tools.context import DEFAULT_SETTINGS
from weakincentives.contrib.tools.suite import FILESYSTEM_TOOLS
from weakincentives.prompt import ToolContext
from weakincentives.runtime.session import Session

PATH = "d0003/f000321.py"
Workspace = OurHost | OurMemory


@dataclass(frozen=True)
class Question:
    """A call of a tool, what its answer must hold, and the call that it stands on."""

    name: str
    tool: str
    arguments: dict[str, object]
    answer: str
    bare: Callable[[Any], object]
    goal: Goal
    repeat: int = 1


QUESTIONS = (
    Question(
        "read_file, a small file",
        "read_file",
        {"file_path": PATH},
        "     5\tvalue = 321",
        lambda fs: fs.read(PATH),
        at_most(50e-6),
        repeat=200,
    ),
    Question(
        "ls, a folder of 100",
        "ls",
        {"path": "d0003"},
        "d0003: 100 files",
        lambda fs: fs.list("d0003"),
        within_limit(4),
        repeat=0,
    ),
    Question(
        "glob **/*.py",
        "glob",
        {"pattern": "**/*.py"},
        " files match '**/*.py'",
        lambda fs: fs.glob("**/*.py", use_ignore_files=True),
        within_limit(2),
    ),
    Question(
        "grep, one file",
        "grep",
        {"pattern": "value = 321$"},
        f"5 matches in 1 file for 'value = 321$'\n{PATH}\n1:",
        lambda fs: fs.grep("value = 321$", use_ignore_files=True),
        within_limit(1.5),
    ),
    Question(
        "grep, a match in each line",
        "grep",
        {"pattern": "value"},
        "250 matches in 50 files for 'value', and more",
        lambda fs: fs.grep("value", use_ignore_files=True),
        within_limit(2),
    ),
    Question(
        "grep, the files",
        "grep",
        {"pattern": "value", "output_mode": "files_with_matches"},
        " files have matches for 'value'",
        lambda fs: fs.glob("**/*.py", use_ignore_files=True),
        within_limit(8),
    ),
)


def cases(stage: Stage) -> Iterator[Case]:
    """Each question, in memory and on the host."""
    size = max(stage.sizes_or(1_000, 10_000))
    for place, space in (("memory", _memory(size)), ("host", _host(stage, size))):
        for question in QUESTIONS:
            ours = Contender(
                space.name,
                "ours",
                _called(question, space),
                _checker(question),
                repeat=question.repeat,
                size=size,
            )
            limit = Contender(
                "the filesystem alone",
                "limit",
                _bare(question, space),
                lambda answer: None,
                repeat=question.repeat,
            )
            yield Case(
                f"{question.name}, {place}",
                (ours, limit),
                (question.goal,),
                size=size,
                beatable=True,  # a tool stops at what it shows, the filesystem does not
            )


def facts(stage: Stage) -> Iterator[Fact]:
    """The ten-thousandth call costs what the first ones cost."""
    yield cost_per_call("read_file, memory", _called(QUESTIONS[0], _memory(1_000)))


def _memory(size: int) -> Workspace:
    ours = OurMemory()
    ours.load(dict(synthetic_files(size)))
    return ours


def _host(stage: Stage, size: int) -> Workspace:
    return stage.keep(OurHost(stage.tree(size).root))


def _called(question: Question, space: Workspace) -> Callable[[], object]:
    context = ToolContext(None, None, None, Session(), filesystem=space.fs)
    executor = ToolExecutor(FILESYSTEM_TOOLS, context=context)
    call = ToolCall(question.tool, question.arguments, "call")
    return lambda: executor.execute(call).text


def _bare(question: Question, space: Workspace) -> Callable[[], object]:
    return lambda: question.bare(space.fs)


def _checker(question: Question) -> Callable[[object], None]:
    def check(text: object) -> None:
        if not isinstance(text, str) or question.answer not in text:
            raise WrongAnswerError(f"{question.answer!r} is not in {str(text)[:200]!r}")
        if len(text) > DEFAULT_SETTINGS.budget:
            raise WrongAnswerError(f"The answer is over the budget: {len(text)} characters")

    return check


WORKLOAD = Workload("W12s", "the tools of the suite", cases, facts)
