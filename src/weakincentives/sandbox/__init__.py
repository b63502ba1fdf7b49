"""Run commands on the files of a workspace, isolated, with a timeout and bounded output."""

from weakincentives.sandbox.background import (
    MAX_BACKGROUND,
    BackgroundProcess,
    BackgroundSandbox,
    PollResult,
)
from weakincentives.sandbox.bubblewrap import BubblewrapSandbox
from weakincentives.sandbox.cgroup import DEFAULT_SANDBOX_LIMITS, SandboxLimits
from weakincentives.sandbox.container import (
    BUILT_IMAGE,
    DEFAULT_IMAGE,
    Container,
    ContainerFilesystem,
    PackageMirror,
    PodmanSandboxConfig,
    PruneResult,
    build_image,
    prune_sandboxes,
    pull_image,
)
from weakincentives.sandbox.host import LocalSandbox
from weakincentives.sandbox.landlock import LandlockSandbox
from weakincentives.sandbox.output import Output
from weakincentives.sandbox.podman import PodmanSandbox
from weakincentives.sandbox.probe import (
    ISOLATED,
    PROMISES,
    REQUIRED,
    SANDBOXES,
    ProbeResult,
    SandboxChoice,
    choose_sandbox,
    create_sandbox,
    probe_sandbox,
    probe_sandboxes,
)
from weakincentives.sandbox.protocol import (
    DEFAULT_MAX_OUTPUT,
    DEFAULT_TIMEOUT,
    ConnectionListener,
    ExecResult,
    NetworkConnection,
    OutputListener,
    Sandbox,
    SandboxUnavailableError,
)

# names of earlier drafts
ContainerBackend = ContainerFilesystem
PodmanConfig = PodmanSandboxConfig

__all__ = [
    "BUILT_IMAGE",
    "DEFAULT_IMAGE",
    "DEFAULT_MAX_OUTPUT",
    "DEFAULT_SANDBOX_LIMITS",
    "DEFAULT_TIMEOUT",
    "ISOLATED",
    "MAX_BACKGROUND",
    "PROMISES",
    "REQUIRED",
    "SANDBOXES",
    "BackgroundProcess",
    "BackgroundSandbox",
    "BubblewrapSandbox",
    "ConnectionListener",
    "Container",
    "ContainerBackend",
    "ContainerFilesystem",
    "ExecResult",
    "LandlockSandbox",
    "LocalSandbox",
    "NetworkConnection",
    "Output",
    "OutputListener",
    "PackageMirror",
    "PodmanConfig",
    "PodmanSandbox",
    "PodmanSandboxConfig",
    "PollResult",
    "ProbeResult",
    "PruneResult",
    "Sandbox",
    "SandboxChoice",
    "SandboxLimits",
    "SandboxUnavailableError",
    "build_image",
    "choose_sandbox",
    "create_sandbox",
    "probe_sandbox",
    "probe_sandboxes",
    "prune_sandboxes",
    "pull_image",
]
