"""What only root can do: the mark `root` is on each test that does it."""

import os
import re
from functools import cache
from pathlib import Path

# chown, dac_override, setuid, sys_admin and mknod: root of a container often lacks the last two
_CAPABILITIES = sum(1 << number for number in (0, 1, 7, 21, 27))


@cache
def is_root() -> bool:
    """Return whether we may give files away, become another user, mount, and make devices."""
    status = Path("/proc/self/status")
    if os.geteuid() or not status.exists():
        return not os.geteuid()
    [mask] = re.findall(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
    return int(mask, 16) & _CAPABILITIES == _CAPABILITIES
