"""Tools that run commands in a sandbox."""

from weakincentives.contrib.tools.shell.performing import (
    DEFAULT_SHELL_LIMITS,
    MAX_SHELL_SECONDS,
    ShellLimits,
    shell_performers,
)
from weakincentives.contrib.tools.shell.phrases import SHELL_PHRASES
from weakincentives.contrib.tools.shell.requests import BashParams, ShellExecuteParams
from weakincentives.contrib.tools.shell.tools import shell_tools

__all__ = [
    "DEFAULT_SHELL_LIMITS",
    "MAX_SHELL_SECONDS",
    "SHELL_PHRASES",
    "BashParams",
    "ShellExecuteParams",
    "ShellLimits",
    "shell_performers",
    "shell_tools",
]
