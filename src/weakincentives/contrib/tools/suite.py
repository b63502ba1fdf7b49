"""Which files a request is about, whatever the dialect calls them."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from weakincentives.contrib.tools.context import (
    DEFAULT_SETTINGS,
    Handler,
    ToolSettings,
    handler_context,
)
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName
from weakincentives.contrib.tools.handlers import HANDLERS
from weakincentives.contrib.tools.patching import PatchError, patched_paths
from weakincentives.contrib.tools.requests import (
    ApplyPatchParams,
    CountedEditParams,
    EditFileParams,
    GlobParams,
    GrepParams,
    InsertTextParams,
    LsParams,
    MkdirParams,
    MoveParams,
    ReadFileParams,
    ReadManyParams,
    RmParams,
    StatParams,
    TreeParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.spec import Dialect, ToolSpec, dialect_of
from weakincentives.prompt import PromptError, Tool, ToolAccess, ToolContext, ToolResult


def access_of(request: object, resolve: Callable[[str], str]) -> ToolAccess:
    """Return which files a request is about; `resolve` says which path a model means.

    What is no path in the workspace is left out: the tool itself says what is wrong.
    """

    def paths(*given: str) -> tuple[str, ...]:
        return tuple(path for each in given for path in _resolved(each, resolve))

    match request:
        case ReadFileParams(file_path=path):
            return ToolAccess(reads=paths(path))
        case ReadManyParams(file_paths=several):
            return ToolAccess(reads=paths(*several))
        case LsParams() | GlobParams() | GrepParams() | StatParams() | TreeParams():
            return ToolAccess(searches=paths(request.path))
        case _:
            return ToolAccess(writes=paths(*_written(request)), others=paths(*_others(request)))


def _written(request: object) -> tuple[str, ...]:
    match request:
        case WriteFileParams() | EditFileParams() | CountedEditParams() | InsertTextParams():
            return (request.file_path,)
        case ApplyPatchParams(patch=patch):
            with suppress(PatchError):
                return patched_paths(patch)
        case _:
            pass
    return ()


def _others(request: object) -> tuple[str, ...]:
    match request:
        case RmParams(path=path) | MkdirParams(path=path):
            return (path,)
        case MoveParams():
            return (request.source, request.destination)
        case _:
            return ()


def _resolved(given: str, resolve: Callable[[str], str]) -> tuple[str, ...]:
    try:
        return (resolve(given),)
    except (OSError, ValueError):
        return ()


Binding: TypeAlias = Callable[[ToolContext], ToolContext]
"""Returns the context that a call is to have; a section refuses other sessions here."""


@dataclass(frozen=True, slots=True)
class _Handler:
    """Runs one tool: understands the call, carries it out, shows the result."""

    spec: ToolSpec[Any]
    settings: ToolSettings
    dialect: Dialect
    handlers: Mapping[type[Any], Handler] = field(repr=False)
    binding: Binding | None = None

    def access(self, params: Any, context: ToolContext) -> ToolAccess:
        """Return which files a call is about."""
        if context.filesystem is None:
            return ToolAccess()
        ours = handler_context(context, self.settings, self.dialect, self.handlers)
        return access_of(self.spec.decode(params, ours), ours.path)

    def __call__(self, params: Any, *, context: ToolContext) -> ToolResult[Any]:
        if self.binding is not None:
            context = self.binding(context)
        ours = handler_context(context, self.settings, self.dialect, self.handlers)
        request = self.spec.decode(params, ours)
        result = ours.handle(request)
        return result if self.spec.render is None else self.spec.render(request, result, ours)


def create_dialect(
    dialect: DialectName = "wink", *, handlers: Mapping[type[Any], Handler] = HANDLERS
) -> Dialect:
    """Return how requests are said in a dialect.

    Raises:
        PromptError: There is no such dialect.
    """
    if dialect not in DIALECTS:
        raise PromptError(f"Dialect must be one of {', '.join(DIALECTS)}: {dialect!r}")
    return dialect_of(DIALECTS[dialect], handlers)


def filesystem_tools(
    dialect: DialectName = "wink",
    *,
    settings: ToolSettings = DEFAULT_SETTINGS,
    binding: Binding | None = None,
    extra_handlers: Mapping[type[Any], Handler] | None = None,
) -> tuple[Tool[Any, Any], ...]:
    """Return the tools of a workspace as a dialect names them.

    Args:
        dialect: Whose names and parameters the tools have.
        settings: What they allow and show.
        binding: Asked for the context of each call.
        extra_handlers: Handlers for further requests that the dialect knows; a shell, for example.

    Raises:
        PromptError: There is no such dialect.
    """
    handlers = {**HANDLERS, **(extra_handlers or {})}
    offered = create_dialect(dialect, handlers=handlers)
    return tuple(
        _tool(_Handler(spec, settings, offered, handlers, binding)) for spec in offered.specs
    )


def _tool(handler: _Handler) -> Tool[Any, Any]:
    spec = handler.spec
    return Tool[Any, Any](
        spec.name,
        handler.dialect.fill(spec.description),
        handler,
        params_type=spec.params,
        read_only=spec.read_only,
        bypasses_filesystem=spec.bypasses_filesystem,
        aliases=spec.aliases,
        access=handler.access,
        other_names=spec.other_names,
        other_params=spec.other_params,
    )


FILESYSTEM_TOOLS = filesystem_tools()
"""The seven tools of the `wink` dialect, for any workspace."""
