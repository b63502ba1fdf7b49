"""A workspace whose tools are called as a model calls them, with one tool per request."""

from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from weakincentives.adapters import ToolCall, ToolExecutor, ToolOutcome
from weakincentives.contrib.tools.context import (
    DEFAULT_SETTINGS,
    Dialect,
    HandlerContext,
    ToolSettings,
    ToolSpec,
)
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    EditFileParams,
    InsertTextParams,
    LsParams,
    MkdirParams,
    MoveParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.suite import HANDLERS
from weakincentives.filesystem import (
    BaseFilesystem,
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
)
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session

Tree: TypeAlias = dict[str, tuple[int, bytes | str | None]]

NAMES: dict[type[Any], str] = {
    LsParams: "ls",
    ReadFileParams: "read_file",
    WriteFileParams: "write_file",
    EditFileParams: "edit_file",
    RmParams: "rm",
    ApplyPatchParams: "apply_patch",
    InsertTextParams: "insert",
    MoveParams: "move",
    MkdirParams: "mkdir",
}
CHANGING = tuple(kind for kind in NAMES if kind not in {LsParams, ReadFileParams})


def encode(request: Any) -> dict[str, object]:
    """Return the fields of a request that are not as they are anyway."""
    given = asdict(request)
    return {
        each.name: given[each.name]
        for each in fields(request)
        if each.default is MISSING or getattr(request, each.name) != each.default
    }


def spec(kind: type[Any]) -> ToolSpec[Any]:
    return ToolSpec(
        name=NAMES[kind],
        description=f"Does what {NAMES[kind]} does.",
        params=kind,
        requests=(kind,),
        decode=lambda params, _: params,
        encode=encode,
    )


DIALECT = Dialect(tuple(map(spec, NAMES)))


def make_context(
    fs: Filesystem, *, settings: ToolSettings = DEFAULT_SETTINGS, dialect: Dialect = DIALECT
) -> HandlerContext:
    context = ToolContext(None, None, None, Session(), filesystem=fs)
    return HandlerContext(context, fs, settings, dialect, HANDLERS)


@dataclass(frozen=True)
class _Handler:
    settings: ToolSettings
    dialect: Dialect

    def __call__(self, params: Any, *, context: ToolContext) -> ToolResult[Any]:
        assert context.filesystem is not None
        fs = context.filesystem
        return HandlerContext(context, fs, self.settings, self.dialect, HANDLERS).handle(params)


class Workspace:
    """Files, and an executor that changes them."""

    def __init__(
        self,
        fs: BaseFilesystem,
        *,
        settings: ToolSettings = DEFAULT_SETTINGS,
        dialect: Dialect = DIALECT,
    ) -> None:
        self.fs = fs
        handler = _Handler(settings, dialect)
        tools = [
            Tool[Any, Any](NAMES[kind], "Changes files.", handler, params_type=kind)
            for kind in CHANGING
        ]
        context = ToolContext(None, None, None, Session(), filesystem=fs)
        self._executor = ToolExecutor(tools, context=context)

    def call(self, request: Any) -> ToolOutcome:
        return self._executor.execute(ToolCall(NAMES[type(request)], encode(request)))

    def done(self, request: Any) -> str:
        """Return what a model is told of a call that succeeds."""
        outcome = self.call(request)
        assert outcome.result.success, outcome.text
        assert outcome.text
        return outcome.text

    def value(self, request: Any) -> Any:
        """Return what programs are given by a call that succeeds."""
        outcome = self.call(request)
        assert outcome.result.success, outcome.text
        return outcome.result.value

    def refused(self, request: Any) -> str:
        """Return what a model is told of a call that fails, and changes nothing."""
        before = tree_of(self.fs)
        outcome = self.call(request)
        assert not outcome.result.success, outcome.text
        assert tree_of(self.fs) == before
        return outcome.text


def tree_of(fs: Filesystem) -> Tree:
    """Return every path with its permissions and content."""
    tree: Tree = {}
    pending = ["."]
    while pending:
        for entry in fs.list(pending.pop()):
            found = fs.stat(entry.path)
            content: bytes | str | None = found.link_target
            if found.is_directory:
                pending.append(entry.path)
            elif found.is_file:
                content = fs.read_bytes(entry.path).content
            tree[entry.path] = (found.permissions, content)
    return tree


def make(kind: str, base: Path, *, limits: Limits | None = None) -> BaseFilesystem:
    """Return an empty workspace in memory or on the host."""
    if kind == "memory":
        return InMemoryFilesystem(limits=limits) if limits else InMemoryFilesystem()
    root = base / "root"
    root.mkdir()
    store = base / "store"
    return HostFilesystem(root, git_dir=store, limits=limits or Limits())
