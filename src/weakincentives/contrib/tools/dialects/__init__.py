"""Dialects: one table of tools each, all for the same requests."""

from collections.abc import Mapping
from typing import Any, Literal

from weakincentives.contrib.tools.speech import Phrase

DialectName = Literal["wink", "classic", "claude", "anthropic-editor", "openai", "gemini", "mcp"]

DIALECTS: Mapping[str, tuple[Phrase[Any], ...]] = {}
"""The phrases of each dialect."""

__all__ = ["DIALECTS", "DialectName"]
