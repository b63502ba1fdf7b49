"""The dialects by name, and which of them a model knows best."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from weakincentives.contrib.tools.dialects.anthropic_editor import ANTHROPIC_EDITOR
from weakincentives.contrib.tools.dialects.classic import CLASSIC
from weakincentives.contrib.tools.dialects.claude import CLAUDE
from weakincentives.contrib.tools.dialects.gemini import GEMINI
from weakincentives.contrib.tools.dialects.mcp import MCP
from weakincentives.contrib.tools.dialects.openai import OPENAI
from weakincentives.contrib.tools.dialects.shell import SHELL_TOOL_SPECS
from weakincentives.contrib.tools.dialects.wink import WINK
from weakincentives.contrib.tools.spec import ToolSpec

DialectName = Literal["wink", "classic", "claude", "anthropic-editor", "openai", "gemini", "mcp"]
"""What a dialect is called."""
DIALECTS: Mapping[DialectName, tuple[ToolSpec[Any], ...]] = {
    "wink": (*WINK, *SHELL_TOOL_SPECS["wink"]),
    "classic": (*CLASSIC, *SHELL_TOOL_SPECS["classic"]),
    "claude": (*CLAUDE, *SHELL_TOOL_SPECS["claude"]),
    "anthropic-editor": (*ANTHROPIC_EDITOR, *SHELL_TOOL_SPECS["anthropic-editor"]),
    "openai": (*OPENAI, *SHELL_TOOL_SPECS["openai"]),
    "gemini": (*GEMINI, *SHELL_TOOL_SPECS["gemini"]),
    "mcp": (*MCP, *SHELL_TOOL_SPECS["mcp"]),
}
"""The phrases of each dialect; those that run something are said only where a sandbox is."""
_FAMILIES: tuple[tuple[re.Pattern[str], DialectName], ...] = (
    (re.compile(r"claude"), "claude"),
    (re.compile(r"(chat)?gpt|codex|o[1-9](-|$)"), "openai"),
    (re.compile(r"gemini"), "gemini"),
)
_PROVIDERS: Mapping[str, DialectName] = {"anthropic": "claude", "gemini": "gemini"}


def dialect_for(model: str) -> DialectName:
    """Return the dialect that a model was trained on; `wink` if its name does not tell.

    Args:
        model: Its name, with or without the provider's before it: "anthropic:claude-opus-4",
            "openrouter/openai/gpt-5".
    """
    parts = re.split(r"[:/.@]", model.lower())
    for family, dialect in _FAMILIES:
        if any(family.match(part) for part in parts):
            return dialect
    return _PROVIDERS.get(parts[0], "wink")
