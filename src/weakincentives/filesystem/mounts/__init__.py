"""Host folders that are copied into a workspace before an agent sees it.

What is public here is public in `weakincentives.filesystem`.
"""

from weakincentives.filesystem.mounts.report import MountProgress as MountProgress
from weakincentives.filesystem.mounts.report import MountReport as MountReport
from weakincentives.filesystem.mounts.report import SkippedEntry as SkippedEntry
from weakincentives.filesystem.mounts.request import HostMount as HostMount
from weakincentives.filesystem.mounts.roots import HostRoots as HostRoots
