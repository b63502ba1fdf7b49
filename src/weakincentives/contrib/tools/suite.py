"""The tool suite: tools of a dialect, each with a handler and the paths that a call touches."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from weakincentives.contrib.evaluation import EvalParams
from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import (
    DEFAULT_SETTINGS,
    DescribedHandler,
    Handler,
    ToolSettings,
    handler_context,
)
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName
from weakincentives.contrib.tools.handlers.edit import edit_expected, edit_file, insert_text
from weakincentives.contrib.tools.handlers.glob import glob
from weakincentives.contrib.tools.handlers.grep import grep
from weakincentives.contrib.tools.handlers.list import ls, stat, tree, workspace
from weakincentives.contrib.tools.handlers.move import mkdir, move, rm
from weakincentives.contrib.tools.handlers.patch import apply_patch
from weakincentives.contrib.tools.handlers.read import read_file, read_many
from weakincentives.contrib.tools.handlers.write import write_file
from weakincentives.contrib.tools.patching import PatchError, patched_paths
from weakincentives.contrib.tools.spec import Dialect, ToolSpec, select_specs
from weakincentives.prompt import PromptError, Tool, ToolAccess, ToolContext, ToolResult

HANDLERS: Mapping[type[Any], Handler] = {
    requests.LsParams: ls,
    requests.ReadFileParams: read_file,
    requests.GlobParams: glob,
    requests.GrepParams: grep,
    requests.StatParams: stat,
    requests.TreeParams: tree,
    requests.WorkspaceParams: workspace,
    requests.ReadManyParams: read_many,
    requests.WriteFileParams: write_file,
    requests.EditFileParams: edit_file,
    requests.CountedEditParams: edit_expected,
    requests.RmParams: rm,
    requests.ApplyPatchParams: apply_patch,
    requests.InsertTextParams: insert_text,
    requests.MoveParams: move,
    requests.MkdirParams: mkdir,
}
"""The handler for each type of request."""


def find_access(request: object, resolve: Callable[[str], str]) -> ToolAccess:
    """Return the paths that a request touches, for policies.

    Invalid paths are left out: the tool reports them itself.

    Args:
        request: The request.
        resolve: Returns the workspace path for a path that a model sent.
    """

    def paths(*given: str) -> tuple[str, ...]:
        return tuple(path for each in given for path in _try_resolve(each, resolve))

    match request:
        case requests.ReadFileParams(file_path=path):
            return ToolAccess(reads=paths(path))
        case requests.ReadManyParams(file_paths=several):
            return ToolAccess(reads=paths(*several))
        case EvalParams():
            reads = paths(*(each.path for each in request.reads))
            writes = paths(*(each.path for each in request.writes))
            return ToolAccess(
                reads,
                writes=tuple(each for each in writes if each not in reads),
                others=tuple(each for each in writes if each in reads),
            )
        case (
            requests.LsParams()
            | requests.GlobParams()
            | requests.GrepParams()
            | requests.StatParams()
            | requests.TreeParams()
        ):
            return ToolAccess(searches=paths(request.path))
        case requests.RepoMapParams(path=path):
            return ToolAccess(searches=paths(".", path))  # it reads all source files
        case _:
            return ToolAccess(
                writes=paths(*_find_writes(request)), others=paths(*_find_others(request))
            )


def _find_writes(request: object) -> tuple[str, ...]:
    match request:
        case (
            requests.WriteFileParams()
            | requests.EditFileParams()
            | requests.CountedEditParams()
            | requests.InsertTextParams()
        ):
            return (request.file_path,)
        case requests.ApplyPatchParams(patch=patch):
            with suppress(PatchError):
                return patched_paths(patch)
        case _:
            pass
    return ()


def _find_others(request: object) -> tuple[str, ...]:
    match request:
        case requests.RmParams(path=path) | requests.MkdirParams(path=path):
            return (path,)
        case requests.MoveParams():
            return (request.source, request.destination)
        case _:
            return ()


def _try_resolve(given: str, resolve: Callable[[str], str]) -> tuple[str, ...]:
    try:
        return (resolve(given),)
    except (OSError, ValueError):
        return ()


Binding: TypeAlias = Callable[[ToolContext], ToolContext]
"""Returns the tool context for a call; a section rejects foreign sessions here."""


@dataclass(frozen=True, slots=True)
class SpecHandler:
    """Handles the calls of one tool: decode the request, carry it out, render the result."""

    spec: ToolSpec[Any]
    settings: ToolSettings
    dialect: Dialect
    handlers: Mapping[type[Any], Handler] = field(repr=False)
    binding: Binding | None = None

    def find_access(self, params: Any, context: ToolContext) -> ToolAccess:
        """Return the paths that a call touches."""
        if context.filesystem is None:
            return ToolAccess()
        ours = handler_context(context, self.settings, self.dialect, self.handlers)
        return find_access(self.spec.decode(params, ours), ours.resolve_path)

    def __call__(self, params: Any, *, context: ToolContext) -> ToolResult[Any]:
        """Handle a call.

        Raises:
            ToolValidationError: There is no workspace, or the parameters are invalid.
        """
        if self.binding is not None:
            context = self.binding(context)
        ours = handler_context(context, self.settings, self.dialect, self.handlers)
        request = self.spec.decode(params, ours)
        result = ours.handle(request)
        return result if self.spec.render is None else self.spec.render(request, result, ours)

    def build_tool(self, access: "Access | None" = None) -> Tool[Any, Any]:
        """Return the tool; without `access`, policies go by the names of its parameters."""
        spec = self.spec
        handlers = map(self.handlers.get, spec.requests)
        described = [each for each in handlers if isinstance(each, DescribedHandler)]
        texts = (self.dialect.fill(spec.description), *(each.description for each in described))
        return Tool[Any, Any](
            spec.name,
            "\n".join(texts),
            self,
            params_type=spec.params,
            read_only=spec.read_only,
            bypasses_filesystem=spec.bypasses_filesystem
            or any(each.bypasses_filesystem for each in described),
            aliases=spec.aliases,
            access=access,
            other_names=spec.other_names,
            other_params=spec.other_params,
        )


Access: TypeAlias = Callable[[Any, ToolContext], ToolAccess]
"""Returns the paths that a call with these parameters touches."""


def create_dialect(
    dialect: DialectName = "wink",
    *,
    handlers: Mapping[type[Any], Handler] = HANDLERS,
    read_only: bool = False,
) -> Dialect:
    """Return the tools of a dialect whose requests have a handler.

    Args:
        dialect: The dialect.
        handlers: The handlers.
        read_only: Leave out the tools that can change something.

    Raises:
        PromptError: The dialect is unknown.
    """
    if dialect not in DIALECTS:
        raise PromptError(f"Dialect must be one of {', '.join(DIALECTS)}: {dialect!r}")
    specs = (each for each in DIALECTS[dialect] if each.read_only or not read_only)
    return select_specs(specs, handlers)


def filesystem_tools(
    dialect: DialectName = "wink",
    *,
    settings: ToolSettings = DEFAULT_SETTINGS,
    binding: Binding | None = None,
    extra_handlers: Mapping[type[Any], Handler] | None = None,
    read_only: bool = False,
) -> tuple[Tool[Any, Any], ...]:
    """Return the tools of a workspace, with the names and parameters of a dialect.

    Args:
        dialect: The dialect.
        settings: Limits and rules of the tools.
        binding: Returns the context for each call.
        extra_handlers: Handlers for further requests that the dialect knows; a shell, for example.
        read_only: Leave out the tools that can change something.

    Raises:
        PromptError: The dialect is unknown.
    """
    handlers = {**HANDLERS, **(extra_handlers or {})}
    offered = create_dialect(dialect, handlers=handlers, read_only=read_only)
    built = [SpecHandler(each, settings, offered, handlers, binding) for each in offered.specs]
    return tuple(each.build_tool(each.find_access) for each in built)


FILESYSTEM_TOOLS = filesystem_tools()
"""The eight tools of the `wink` dialect, for any workspace."""
