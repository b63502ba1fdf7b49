"""Host mounts: folders of the host, copied into a workspace before an agent starts.

The public names are in `weakincentives.filesystem`.
"""

from weakincentives.filesystem.mounts.hydrate import Hydration as Hydration
from weakincentives.filesystem.mounts.hydrate import Mountable as Mountable
from weakincentives.filesystem.mounts.hydrate import MountTarget as MountTarget
from weakincentives.filesystem.mounts.mount import HostMount as HostMount
from weakincentives.filesystem.mounts.mount import MountFilter as MountFilter
from weakincentives.filesystem.mounts.mount import MountProgress as MountProgress
from weakincentives.filesystem.mounts.mount import MountReport as MountReport
from weakincentives.filesystem.mounts.mount import ProgressListener as ProgressListener
from weakincentives.filesystem.mounts.mount import ProgressMeter as ProgressMeter
from weakincentives.filesystem.mounts.mount import SkippedEntry as SkippedEntry
from weakincentives.filesystem.mounts.plan import MountCopy as MountCopy
from weakincentives.filesystem.mounts.plan import MountedFile as MountedFile
from weakincentives.filesystem.mounts.plan import MountPlan as MountPlan
from weakincentives.filesystem.mounts.roots import AllowedRoots as AllowedRoots
from weakincentives.filesystem.mounts.roots import HostRoots as HostRoots
