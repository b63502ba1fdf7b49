"""Dialects: the workspace's tools under the names and parameters that models know.

Each dialect is a table of `ToolSpec`s; all of them send the same requests. `DIALECTS` is the
registry; `dialect_for` chooses a dialect by model.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from weakincentives.contrib.tools.dialects.anthropic_editor import ANTHROPIC_EDITOR
from weakincentives.contrib.tools.dialects.classic import (
    CLASSIC,
    DeleteFile,
    FileReadResult,
    ListDirectory,
    ReadFile,
    WriteFile,
)
from weakincentives.contrib.tools.dialects.claude import CLAUDE
from weakincentives.contrib.tools.dialects.gemini import GEMINI
from weakincentives.contrib.tools.dialects.mcp import MCP
from weakincentives.contrib.tools.dialects.openai import OPENAI
from weakincentives.contrib.tools.dialects.shell import SHELL_TOOL_SPECS
from weakincentives.contrib.tools.dialects.wink import WINK
from weakincentives.contrib.tools.spec import ToolSpec

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


DialectName = Literal["wink", "classic", "claude", "anthropic-editor", "openai", "gemini", "mcp"]
"""The name of a dialect."""
_FILE_TOOL_SPECS: Mapping[DialectName, tuple[ToolSpec[Any], ...]] = {
    "wink": WINK,
    "classic": CLASSIC,
    "claude": CLAUDE,
    "anthropic-editor": ANTHROPIC_EDITOR,
    "openai": OPENAI,
    "gemini": GEMINI,
    "mcp": MCP,
}
DIALECTS: Mapping[DialectName, tuple[ToolSpec[Any], ...]] = {
    name: (*specs, *SHELL_TOOL_SPECS[name]) for name, specs in _FILE_TOOL_SPECS.items()
}
"""The tools of each dialect; those that run commands are offered only where there is a sandbox."""
_FAMILIES: tuple[tuple[re.Pattern[str], DialectName], ...] = (
    (re.compile(r"claude"), "claude"),
    (re.compile(r"(chat)?gpt|codex|o[1-9](-|$)"), "openai"),
    (re.compile(r"gemini"), "gemini"),
)
_PROVIDERS: Mapping[str, DialectName] = {"anthropic": "claude", "gemini": "gemini"}


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
