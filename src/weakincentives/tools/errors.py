"""Errors of tools."""

from weakincentives.errors import ToolValidationError

__all__ = ["ToolValidationError"]
