"""The tools of a dialect that run something."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weakincentives.contrib.tools.shell.performing import (
    DEFAULT_SHELL_LIMITS,
    ShellLimits,
    shell_performers,
)
from weakincentives.contrib.tools.shell.phrases import SHELL_PHRASES
from weakincentives.contrib.tools.speech import Phrase, Speech
from weakincentives.contrib.tools.workbench import (
    DEFAULT_SETTINGS,
    Performer,
    ToolSettings,
    workbench_of,
)
from weakincentives.prompt import PromptError, Tool, ToolContext, ToolResult
from weakincentives.sandbox import Sandbox


def shell_tools(
    sandbox: Sandbox,
    dialect: str = "wink",
    *,
    settings: ToolSettings = DEFAULT_SETTINGS,
    limits: ShellLimits = DEFAULT_SHELL_LIMITS,
) -> tuple[Tool[Any, Any], ...]:
    """Return the tools that run commands, as a dialect names them, and no others.

    Args:
        sandbox: Where commands run; it must work on the filesystem of the calls.
        dialect: Whose names and parameters the tools have.
        settings: How much is shown.
        limits: What is allowed.

    Raises:
        PromptError: There is no such dialect.
    """
    if dialect not in SHELL_PHRASES:
        raise PromptError(f"Dialect must be one of {', '.join(SHELL_PHRASES)}: {dialect!r}")
    speech = Speech(SHELL_PHRASES[dialect])
    performers = shell_performers(sandbox, limits=limits)
    return tuple(_tool(_Handler(each, settings, speech, performers)) for each in speech.phrases)


@dataclass(frozen=True, slots=True)
class _Handler:
    """Runs one tool: understands the call, and carries it out."""

    phrase: Phrase[Any]
    settings: ToolSettings
    speech: Speech
    performers: Mapping[type[Any], Performer] = field(repr=False)

    def __call__(self, params: Any, *, context: ToolContext) -> ToolResult[Any]:
        bench = workbench_of(context, self.settings, self.speech, self.performers)
        return bench.perform(self.phrase.understand(params, bench))


def _tool(handler: _Handler) -> Tool[Any, Any]:
    phrase = handler.phrase
    return Tool[Any, Any](
        phrase.name,
        handler.speech.fill(phrase.description),
        handler,
        params_type=phrase.params,
        outside=phrase.outside,
        aliases=phrase.aliases,
    )
