"""Small tools, and an executor on a workspace, for tests of tool calls."""

from dataclasses import dataclass, field
from typing import Any

from weakincentives.adapters import Policy, ToolCall, ToolExecutor
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import BaseFilesystem
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session


@dataclass(frozen=True)
class FilePath:
    file_path: str


@dataclass(frozen=True)
class Write:
    file_path: str
    content: str = ""
    mode: str = "overwrite"


@dataclass(frozen=True)
class Many:
    paths: tuple[str, ...]
    fail: str = ""


@dataclass(frozen=True)
class Note:
    text: str


def files(context: ToolContext) -> BaseFilesystem:
    assert isinstance(context.filesystem, BaseFilesystem)
    return context.filesystem


def read_file(params: FilePath, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult("content:", files(context).read(params.file_path).content)


def write_file(params: Write, *, context: ToolContext) -> ToolResult[str]:
    files(context).write(params.file_path, params.content)
    context.session[Note].append(Note(params.file_path))
    return ToolResult(f"wrote {params.file_path}")


def write_many(params: Many, *, context: ToolContext) -> ToolResult[str]:
    for path in params.paths:
        files(context).write(path, "many")
        context.session[Note].append(Note(path))
    match params.fail:
        case "result":
            return ToolResult.error("the result is a failure")
        case "validation":
            raise ToolValidationError("too late to say no")
        case "bug":
            raise RuntimeError("a bug")
        case "interrupt":
            raise KeyboardInterrupt
        case _:
            return ToolResult("wrote many")


TOOLS: list[Tool[Any, Any]] = [
    Tool("read_file", "Reads.", read_file, read_only=True),
    Tool("write_file", "Writes.", write_file),
    Tool("write_many", "Writes many.", write_many),
]


@dataclass
class Bench:
    """A workspace, a session, and calls on both."""

    fs: BaseFilesystem
    session: Session = field(default_factory=Session)
    policies: tuple[Policy, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)

    def call(self, name: str, **arguments: Any) -> ToolResult[Any]:
        return self.executor(*TOOLS).execute(ToolCall(name, arguments, "call-1")).result

    @property
    def invoked(self) -> ToolInvoked:
        found = self.session[ToolInvoked].latest()
        assert found is not None
        return found

    def state(self) -> object:
        contents = {each.path: self.fs.read(each.path).content for each in self.fs.glob("**")}
        return contents, self.session[Note].all()

    def executor(self, *tools: Tool[Any, Any]) -> ToolExecutor:
        """Return one with other tools."""
        context = ToolContext(None, None, None, self.session, filesystem=self.fs, **self.given)
        return ToolExecutor(tools, context=context, policies=self.policies)
