"""Running commands on the files of a workspace."""

from weakincentives.sandbox.local import LocalSandbox
from weakincentives.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    DEFAULT_TIMEOUT,
    ExecResult,
    Output,
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
