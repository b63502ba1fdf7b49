"""Run commands on the files of a workspace, isolated, with a timeout and bounded output."""

from weakincentives.sandbox.bubblewrap import BubblewrapSandbox
from weakincentives.sandbox.landlock import LandlockSandbox
from weakincentives.sandbox.limits import DEFAULT_SANDBOX_LIMITS, SandboxLimits
from weakincentives.sandbox.local import LocalSandbox
from weakincentives.sandbox.output import Output
from weakincentives.sandbox.probe import (
    ISOLATED,
    PROMISES,
    REQUIRED,
    SANDBOXES,
    ProbeResult,
    choose_sandbox,
    create_sandbox,
    probe_sandbox,
    probe_sandboxes,
)
from weakincentives.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    DEFAULT_TIMEOUT,
    ExecResult,
    OutputListener,
    Sandbox,
    SandboxUnavailableError,
)

__all__ = [
    "DEFAULT_MAX_OUTPUT",
    "DEFAULT_SANDBOX_LIMITS",
    "DEFAULT_TIMEOUT",
    "ISOLATED",
    "PROMISES",
    "REQUIRED",
    "SANDBOXES",
    "BubblewrapSandbox",
    "ExecResult",
    "LandlockSandbox",
    "LocalSandbox",
    "Output",
    "OutputListener",
    "ProbeResult",
    "Sandbox",
    "SandboxLimits",
    "SandboxUnavailableError",
    "choose_sandbox",
    "create_sandbox",
    "probe_sandbox",
    "probe_sandboxes",
]
