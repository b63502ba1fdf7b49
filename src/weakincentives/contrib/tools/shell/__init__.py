"""Shell tools: commands that a model runs in a sandbox, in the foreground and background."""

from weakincentives.contrib.tools.dialects.shell import SHELL_TOOL_SPECS
from weakincentives.contrib.tools.requests import (
    BashParams,
    BashStartParams,
    ShellExecuteParams,
    ShellPollParams,
    ShellStartParams,
    ShellStopParams,
)
from weakincentives.contrib.tools.shell.background import ShellSandbox as ShellSandbox
from weakincentives.contrib.tools.shell.background import stop_processes
from weakincentives.contrib.tools.shell.handlers import shell_handlers, shell_tools
from weakincentives.contrib.tools.shell.limits import (
    DEFAULT_SHELL_LIMITS,
    MAX_SHELL_SECONDS,
    ShellLimits,
)

__all__ = [
    "DEFAULT_SHELL_LIMITS",
    "MAX_SHELL_SECONDS",
    "SHELL_TOOL_SPECS",
    "BashParams",
    "BashStartParams",
    "ShellExecuteParams",
    "ShellLimits",
    "ShellPollParams",
    "ShellStartParams",
    "ShellStopParams",
    "shell_handlers",
    "shell_tools",
    "stop_processes",
]
