"""Dialects: the workspace's tools under the names and parameters that models know.

Each dialect is a table of `ToolSpec`s; all of them send the same requests. `DIALECTS` is the
registry; `dialect_for` chooses a dialect by model.
"""

import re
import typing
from collections import abc

from weakincentives.contrib.tools import context
from weakincentives.contrib.tools.dialects import (
    anthropic_editor,
    classic,
    claude,
    evaluation,
    gemini,
    mcp,
    openai,
    shared,
    shell,
    wink,
)
from weakincentives.contrib.tools.dialects.classic import (
    DeleteFile,
    FileReadResult,
    ListDirectory,
    ReadFile,
    WriteFile,
)

__all__ = [
    "DIALECTS",
    "DeleteFile",
    "DialectName",
    "FileReadResult",
    "ListDirectory",
    "ReadFile",
    "WriteFile",
    "dialect_for",
]

DialectName = typing.Literal[
    "wink", "classic", "claude", "anthropic-editor", "openai", "gemini", "mcp"
]
"""The name of a dialect."""
_FILE_TOOL_SPECS: abc.Mapping[DialectName, tuple[context.ToolSpec[typing.Any], ...]] = {
    "wink": wink.WINK,
    "classic": classic.CLASSIC,
    "claude": claude.CLAUDE,
    "anthropic-editor": anthropic_editor.ANTHROPIC_EDITOR,
    "openai": openai.OPENAI,
    "gemini": gemini.GEMINI,
    "mcp": mcp.MCP,
}
DIALECTS: abc.Mapping[DialectName, tuple[context.ToolSpec[typing.Any], ...]] = {
    name: (
        *specs,
        *shell.SHELL_TOOL_SPECS[name],
        *evaluation.EVALUATION_TOOL_SPECS[name],
        shared.REPO_MAP,
    )
    for name, specs in _FILE_TOOL_SPECS.items()
}
"""The tools of each dialect; a tool is offered only where its requests have handlers."""
_FAMILIES: tuple[tuple[re.Pattern[str], DialectName], ...] = (
    (re.compile(r"claude"), "claude"),
    (re.compile(r"(chat)?gpt|codex|o[1-9](-|$)"), "openai"),
    (re.compile(r"gemini"), "gemini"),
)
_PROVIDERS: abc.Mapping[str, DialectName] = {"anthropic": "claude", "gemini": "gemini"}


def dialect_for(model: str) -> DialectName:
    """Return the dialect that a model was trained on; `wink` if its name does not show it.

    Args:
        model: The model name, with or without a provider: "anthropic:claude-opus-4",
            "openrouter/openai/gpt-5".
    """
    parts = re.split(r"[:/.@]", model.lower())
    for family, dialect in _FAMILIES:
        if any(family.match(part) for part in parts):
            return dialect
    return _PROVIDERS.get(parts[0], "wink")
