"""Makes one change in several workspaces, and kills itself at another fault point in each.

`python -m tests.safety.kill_at_points <change> <root>...` prints how many died.
"""

import os
import signal
import sys
from pathlib import Path

from tests.safety.changes import CHANGES, Change
from weakincentives.filesystem import HostFilesystem
from weakincentives.posix import fault_hook


def dies_at(index: int, change: Change, root: Path) -> bool:
    """Make the change in a child that is killed at the point `index`."""
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
                change(fs)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    name, *roots = sys.argv[1:]
    print(sum(dies_at(index, CHANGES[name], Path(root)) for index, root in enumerate(roots)))
