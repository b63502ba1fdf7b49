"""Host folders that are copied into a workspace before an agent sees it."""

from weakincentives.filesystem.mounts.hydration import HydratableFilesystem
from weakincentives.filesystem.mounts.report import MountProgress, MountReport, SkippedEntry
from weakincentives.filesystem.mounts.request import HostMount
from weakincentives.filesystem.mounts.roots import HostRoots

__all__ = [
    "HostMount",
    "HostRoots",
    "HydratableFilesystem",
    "MountProgress",
    "MountReport",
    "SkippedEntry",
]
