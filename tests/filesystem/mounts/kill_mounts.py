"""Mounts a folder into several workspaces, and kills itself at another fault point in each.

`python -m tests.filesystem.mounts.kill_mounts <host> <mount path> <root>...` prints how many died.
"""

import os
import signal
import sys
from pathlib import Path

from weakincentives.filesystem import HostFilesystem, HostMount
from weakincentives.posix import fault_hook


def dies_at(index: int, host: Path, mount_path: str, root: Path) -> bool:
    """Mount in a child that is killed at the point `index`."""
    child = os.fork()
    if child == 0:
        reached = 0

        def hook(_: str) -> None:
            nonlocal reached
            if reached == index:
                os.kill(os.getpid(), signal.SIGKILL)
            reached += 1

        try:
            with HostFilesystem(root) as fs, fault_hook(hook):
                fs.hydrate_from_host(HostMount(".", mount_path), allowed_roots=[host])
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    host, mount_path, *roots = sys.argv[1:]
    died = [dies_at(index, Path(host), mount_path, Path(root)) for index, root in enumerate(roots)]
    print(sum(died))
