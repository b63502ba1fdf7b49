"""Adapters: talking to a model, and running the tools that it calls."""

from weakincentives.adapters.calls import CheckedCall, ToolCall
from weakincentives.adapters.executor import MAX_RESULT_CHARACTERS, ToolExecutor, ToolOutcome
from weakincentives.adapters.policies import (
    AllowedPaths,
    Approval,
    ApprovalRequest,
    FileSeen,
    Policy,
    ReadBeforeWrite,
)

__all__ = [
    "MAX_RESULT_CHARACTERS",
    "AllowedPaths",
    "Approval",
    "ApprovalRequest",
    "CheckedCall",
    "FileSeen",
    "Policy",
    "ReadBeforeWrite",
    "ToolCall",
    "ToolExecutor",
    "ToolOutcome",
]
