"""Names of the specification: the error of invalid tool arguments."""

from weakincentives.errors import ToolValidationError

__all__ = ["ToolValidationError"]
