"""Run commands on the files of a workspace, with a timeout and bounded output."""

from weakincentives.sandbox.local import LocalSandbox
from weakincentives.sandbox.output import Output
from weakincentives.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    DEFAULT_TIMEOUT,
    ExecResult,
    Sandbox,
    SandboxUnavailableError,
)

__all__ = [
    "DEFAULT_MAX_OUTPUT",
    "DEFAULT_TIMEOUT",
    "ExecResult",
    "LocalSandbox",
    "Output",
    "Sandbox",
    "SandboxUnavailableError",
]
