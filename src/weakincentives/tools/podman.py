"""Import shortcuts for the workspace with a container."""

from weakincentives.contrib.tools.sections import (
    IsolationLevel,
    PodmanSandboxSection,
    PodmanSection,
    PodmanShellParams,
    PodmanWorkspace,
)
from weakincentives.sandbox import PodmanConfig, PodmanSandboxConfig

__all__ = [
    "IsolationLevel",
    "PodmanConfig",
    "PodmanSandboxConfig",
    "PodmanSandboxSection",
    "PodmanSection",
    "PodmanShellParams",
    "PodmanWorkspace",
]
