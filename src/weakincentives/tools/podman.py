"""Names of the specification: the workspace with a container."""

from weakincentives.contrib.tools import (
    IsolationLevel,
    PodmanConfig,
    PodmanSandboxConfig,
    PodmanSandboxSection,
    PodmanSection,
    PodmanShellParams,
    PodmanWorkspace,
)

__all__ = [
    "IsolationLevel",
    "PodmanConfig",
    "PodmanSandboxConfig",
    "PodmanSandboxSection",
    "PodmanSection",
    "PodmanShellParams",
    "PodmanWorkspace",
]
