"""Host folders that are copied into a workspace before an agent sees it.

What is public here is public in `weakincentives.filesystem`.
"""

from weakincentives.filesystem.mounts.hydrate import HydratableFilesystem as HydratableFilesystem
from weakincentives.filesystem.mounts.hydrate import Mountable as Mountable
from weakincentives.filesystem.mounts.mount import HostMount as HostMount
from weakincentives.filesystem.mounts.mount import MountFilter as MountFilter
from weakincentives.filesystem.mounts.mount import MountProgress as MountProgress
from weakincentives.filesystem.mounts.mount import MountReport as MountReport
from weakincentives.filesystem.mounts.mount import ProgressMeter as ProgressMeter
from weakincentives.filesystem.mounts.mount import SkippedEntry as SkippedEntry
from weakincentives.filesystem.mounts.plan import MountedFile as MountedFile
from weakincentives.filesystem.mounts.roots import HostRoots as HostRoots
