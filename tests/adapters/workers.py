"""Small real tools and prompts for tests of runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weakincentives.adapters import RetryPolicy, RunOptions
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import MarkdownSection, Prompt, Section, Tool, ToolContext, ToolResult


@dataclass(frozen=True)
class ReadParams:
    path: str


@dataclass(frozen=True)
class WriteParams:
    path: str
    content: str


@dataclass(frozen=True)
class Answer:
    """What was found.

    Args:
        name: What it is called.
        count: How many there are.
    """

    name: str
    count: int


def files(context: ToolContext) -> Filesystem:
    assert context.filesystem is not None
    return context.filesystem


def read_file(params: ReadParams, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("", files(context).read(params.path).content)


def write_file(params: WriteParams, *, context: ToolContext) -> ToolResult[str]:
    files(context).write(params.path, params.content)
    return ToolResult(f"wrote {params.path}")


def write_and_break(params: WriteParams, *, context: ToolContext) -> ToolResult[str]:
    files(context).write(params.path, params.content)
    raise ZeroDivisionError("broken")


READ = Tool("read_file", "Read a file.", read_file, read_only=True)
WRITE = Tool("write_file", "Write a file.", write_file)
BREAK = Tool("break", "Write a file and fail.", write_and_break)
TOOLS: tuple[Tool[Any, Any], ...] = (READ, WRITE, BREAK)


class Workspace(MarkdownSection[Any]):
    """A section that brings files and tools."""

    def __init__(self, filesystem: Filesystem, tools: Sequence[Tool[Any, Any]]) -> None:
        super().__init__(title="Workspace", template="Work on the files.", tools=tools)
        self.filesystem = filesystem


def prompt(
    filesystem: Filesystem | None = None,
    *,
    tools: Sequence[Tool[Any, Any]] = TOOLS,
    output_type: Any = None,
) -> Prompt[Any]:
    section: Section[Any] = (
        MarkdownSection(title="Task", template="Do it.", tools=tools)
        if filesystem is None
        else Workspace(filesystem, tools)
    )
    return Prompt(ns="tests", key="task", sections=[section], output_type=output_type)


def patient(sleep: Callable[[float], None], **more: Any) -> RunOptions:
    """Return options whose waits are made by `sleep`, and never shortened."""
    return RunOptions(retries=RetryPolicy(sleep=sleep, random=lambda: 1.0), **more)
