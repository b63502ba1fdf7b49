"""Workspace sections: a filesystem, its tools and the guidance that a model reads in the prompt."""

from weakincentives.contrib.tools.sections.base import FilesystemSection
from weakincentives.contrib.tools.sections.digest import WorkspaceDigestSection
from weakincentives.contrib.tools.sections.evaluation import AstevalSection, EvaluationSection
from weakincentives.contrib.tools.sections.host import (
    ClaudeAgentWorkspaceSection,
    HostWorkspaceSection,
)
from weakincentives.contrib.tools.sections.instructions import ProjectInstructionsSection
from weakincentives.contrib.tools.sections.memory import VfsToolsSection
from weakincentives.contrib.tools.sections.podman import (
    IsolationLevel,
    PodmanSandboxSection,
    PodmanShellParams,
    PodmanWorkspace,
)

# names of earlier drafts
PodmanSection = PodmanSandboxSection
VfsSection = VfsToolsSection
WorkspaceSection = HostWorkspaceSection

__all__ = [
    "AstevalSection",
    "ClaudeAgentWorkspaceSection",
    "EvaluationSection",
    "FilesystemSection",
    "HostWorkspaceSection",
    "IsolationLevel",
    "PodmanSandboxSection",
    "PodmanSection",
    "PodmanShellParams",
    "PodmanWorkspace",
    "ProjectInstructionsSection",
    "VfsSection",
    "VfsToolsSection",
    "WorkspaceDigestSection",
    "WorkspaceSection",
]
