"""What only root can do: the mark `root` is on each test that does it."""

import os
import re
from pathlib import Path

import pytest

# chown, dac_override, setuid, sys_admin and mknod: root of a container often lacks the last two
_CAPABILITIES = sum(1 << number for number in (0, 1, 7, 21, 27))


def is_root() -> bool:
    """Return whether we may give files away, become another user, mount, and make devices."""
    status = Path("/proc/self/status")
    if os.geteuid() or not status.exists():
        return not os.geteuid()
    [mask] = re.findall(r"^CapEff:\s*([0-9a-f]+)$", status.read_text(), re.MULTILINE)
    return int(mask, 16) & _CAPABILITIES == _CAPABILITIES


def skip_without_root(items: list[pytest.Item]) -> None:
    """Let an ordinary user skip the tests that need root."""
    if is_root():
        return
    skip = pytest.mark.skip(reason="needs root")
    for item in items:
        if item.get_closest_marker("root"):
            item.add_marker(skip)
