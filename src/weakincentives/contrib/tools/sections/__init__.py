"""Workspace sections: a filesystem, its tools and the guidance that a model reads in the prompt."""

from weakincentives.contrib.tools.sections.base import FilesystemSection
from weakincentives.contrib.tools.sections.host import (
    ClaudeAgentWorkspaceSection,
    HostWorkspaceSection,
)
from weakincentives.contrib.tools.sections.memory import VfsToolsSection

# names of earlier drafts
VfsSection = VfsToolsSection
WorkspaceSection = HostWorkspaceSection

__all__ = [
    "ClaudeAgentWorkspaceSection",
    "FilesystemSection",
    "HostWorkspaceSection",
    "VfsSection",
    "VfsToolsSection",
    "WorkspaceSection",
]
