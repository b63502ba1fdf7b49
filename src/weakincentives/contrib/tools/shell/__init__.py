"""Tools that run commands in a sandbox."""

from weakincentives.contrib.tools.dialects.shell import SHELL_TOOL_SPECS
from weakincentives.contrib.tools.requests import BashParams, ShellExecuteParams
from weakincentives.contrib.tools.shell.handler import (
    DEFAULT_SHELL_LIMITS,
    MAX_SHELL_SECONDS,
    ShellLimits,
    shell_handlers,
    shell_tools,
)

__all__ = [
    "DEFAULT_SHELL_LIMITS",
    "MAX_SHELL_SECONDS",
    "SHELL_TOOL_SPECS",
    "BashParams",
    "ShellExecuteParams",
    "ShellLimits",
    "shell_handlers",
    "shell_tools",
]
