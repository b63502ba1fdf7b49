"""Run commands on the files of a workspace, isolated, with a timeout and bounded output."""

from weakincentives.sandbox.allowlist import PERMISSION as PERMISSION
from weakincentives.sandbox.allowlist import format_rule as format_rule
from weakincentives.sandbox.background import (
    MAX_BACKGROUND,
    BackgroundProcess,
    BackgroundSandbox,
    PollResult,
)
from weakincentives.sandbox.bubblewrap import WORKSPACE as WORKSPACE
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
from weakincentives.sandbox.host import IsolatedSandbox as IsolatedSandbox
from weakincentives.sandbox.host import LocalSandbox
from weakincentives.sandbox.landlock import READ as READ
from weakincentives.sandbox.landlock import Grant as Grant
from weakincentives.sandbox.landlock import LandlockSandbox
from weakincentives.sandbox.landlock import create_ruleset as create_ruleset
from weakincentives.sandbox.landlock import landlock_abi as landlock_abi
from weakincentives.sandbox.output import Output
from weakincentives.sandbox.podman import PodmanSandbox
from weakincentives.sandbox.probe import AUTO as AUTO
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
from weakincentives.sandbox.probe import check_hosts as check_hosts
from weakincentives.sandbox.process_tree import kill_descendants as kill_descendants
from weakincentives.sandbox.process_tree import kill_session as kill_session
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
from weakincentives.sandbox.seccomp import HOST_RULES as HOST_RULES
from weakincentives.sandbox.seccomp import RULES as RULES
from weakincentives.sandbox.seccomp import NotIn as NotIn
from weakincentives.sandbox.seccomp import Rule as Rule
from weakincentives.sandbox.seccomp import build_filter as build_filter
from weakincentives.sandbox.seccomp import calls as calls
from weakincentives.sandbox.seccomp import is_supported as is_supported
from weakincentives.sandbox.seccomp import socket_rules as socket_rules
from weakincentives.sandbox.system_paths import find_environment as find_environment
from weakincentives.sandbox.system_paths import find_program as find_program
from weakincentives.sandbox.system_paths import trusted_search_path as trusted_search_path

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
