"""The tools of a workspace, made from the table of a dialect."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from weakincentives.contrib.tools.access import access_of
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName
from weakincentives.contrib.tools.filesystem import PERFORMERS
from weakincentives.contrib.tools.speech import Phrase, Speech, speech_of
from weakincentives.contrib.tools.workbench import (
    DEFAULT_SETTINGS,
    Performer,
    ToolSettings,
    workbench_of,
)
from weakincentives.prompt import PromptError, Tool, ToolAccess, ToolContext, ToolResult

Binding: TypeAlias = Callable[[ToolContext], ToolContext]
"""Returns the context that a call is to have; a section refuses other sessions here."""


@dataclass(frozen=True, slots=True)
class _Handler:
    """Runs one tool: understands the call, carries it out, shows the result."""

    phrase: Phrase[Any]
    settings: ToolSettings
    speech: Speech
    performers: Mapping[type[Any], Performer] = field(repr=False)
    binding: Binding | None = None

    def access(self, params: Any, context: ToolContext) -> ToolAccess:
        """Return which files a call is about."""
        if context.filesystem is None:
            return ToolAccess()
        bench = workbench_of(context, self.settings, self.speech, self.performers)
        return access_of(self.phrase.understand(params, bench), bench.path)

    def __call__(self, params: Any, *, context: ToolContext) -> ToolResult[Any]:
        if self.binding is not None:
            context = self.binding(context)
        bench = workbench_of(context, self.settings, self.speech, self.performers)
        request = self.phrase.understand(params, bench)
        result = bench.perform(request)
        return result if self.phrase.show is None else self.phrase.show(request, result, bench)


def speech_for(
    dialect: DialectName = "wink", *, performers: Mapping[type[Any], Performer] = PERFORMERS
) -> Speech:
    """Return how requests are said in a dialect.

    Raises:
        PromptError: There is no such dialect.
    """
    if dialect not in DIALECTS:
        raise PromptError(f"Dialect must be one of {', '.join(DIALECTS)}: {dialect!r}")
    return speech_of(DIALECTS[dialect], performers)


def filesystem_tools(
    dialect: DialectName = "wink",
    *,
    settings: ToolSettings = DEFAULT_SETTINGS,
    binding: Binding | None = None,
    more: Mapping[type[Any], Performer] | None = None,
) -> tuple[Tool[Any, Any], ...]:
    """Return the tools of a workspace as a dialect names them.

    Args:
        dialect: Whose names and parameters the tools have.
        settings: What they allow and show.
        binding: Asked for the context of each call.
        more: What carries out other requests that the dialect can say; a shell, for example.

    Raises:
        PromptError: There is no such dialect.
    """
    performers = {**PERFORMERS, **(more or {})}
    speech = speech_for(dialect, performers=performers)
    handlers = [
        _Handler(phrase, settings, speech, performers, binding) for phrase in speech.phrases
    ]
    return tuple(_tool(handler) for handler in handlers)


def _tool(handler: _Handler) -> Tool[Any, Any]:
    phrase = handler.phrase
    return Tool[Any, Any](
        phrase.name,
        handler.speech.fill(phrase.description),
        handler,
        params_type=phrase.params,
        read_only=phrase.read_only,
        outside=phrase.outside,
        aliases=phrase.aliases,
        access=handler.access,
        other_names=phrase.other_names,
        other_params=phrase.other_params,
    )


FILESYSTEM_TOOLS = filesystem_tools()
"""The seven tools of the `wink` dialect, for any workspace."""
