"""Limits of a sandbox, and control groups for its memory and processes, in v1, v2 and hybrid.

A group can be created where the host lets this process write to a hierarchy that has the
controller: as root, or where a service manager has delegated a subtree. Elsewhere there is
none, and a sandbox reports that it cannot promise the limit.
"""

import atexit
import os
import re
import resource
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "wink-"
_FILES = {
    "memory": {
        1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        2: ("memory.max",),
    },
    "pids": {1: ("pids.max",), 2: ("pids.max",)},
}
_NO_SWAP = "memory.swap.max"

_busy: set[Path] = set()
"""Groups of closed sandboxes that could not be removed yet."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits for all commands of a sandbox together, where the host has control groups for us.

    Elsewhere they are resource limits, which hold for each process and, for processes, for the
    user; the sandbox reports which of both is the case.

    Args:
        memory: Bytes of memory.
        processes: Number of processes and threads.
        file_size: Bytes in a file that a command writes.
    """

    memory: int = 1024**3
    processes: int = 256
    file_size: int = 8 * 1024**3

    def groups(self) -> dict[str, int]:
        """Return the limits for control groups."""
        return {"memory": self.memory, "pids": self.processes}

    def resources(self, *, without: Collection[str] = ()) -> tuple[tuple[int, int], ...]:
        """Return the resource limits, except for what these control groups limit."""
        limits = [(resource.RLIMIT_FSIZE, self.file_size)]
        if "memory" not in without:
            limits.append((resource.RLIMIT_DATA, self.memory))
        if "pids" not in without:
            limits.append((resource.RLIMIT_NPROC, self.processes))
        return tuple(limits)


DEFAULT_SANDBOX_LIMITS = SandboxLimits()


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A directory in which groups with these controllers can be created."""

    directory: Path
    version: int
    controllers: frozenset[str]


class ControlGroups:
    """The groups of one sandbox, at most one in each hierarchy.

    Args:
        limits: The limit for each controller: bytes for `memory`, a number for `pids`.
    """

    def __init__(self, limits: Mapping[str, int], root: Path = Path("/")) -> None:
        """Create the groups, as far as the host permits; see `controllers`."""
        self._groups: list[Path] = []
        self.controllers: frozenset[str] = frozenset()
        missing = set(limits)
        for hierarchy in find_hierarchies(root):
            wanted = missing & hierarchy.controllers
            if wanted and self._create(hierarchy, {name: limits[name] for name in wanted}):
                missing -= wanted
        self.controllers = frozenset(limits) - missing

    def open(self) -> tuple[int, ...]:
        """Return a descriptor for each group; writing "0" to it moves the writer there."""
        return tuple(
            os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for group in self._groups
        )

    def remove(self) -> None:
        """Remove the groups, whose processes must have been killed; idempotent.

        The kernel keeps a group busy until the last killed process is gone. Such a group is
        removed by the next sandbox of this process, or at its exit.
        """
        _busy.update(self._groups)
        self._groups.clear()
        _remove_busy()

    def _create(self, hierarchy: Hierarchy, limits: Mapping[str, int]) -> bool:
        group = hierarchy.directory / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        try:
            _remove_busy()
            _remove_leftovers(hierarchy.directory)
            group.mkdir()
        except OSError:
            return False
        try:
            for name, limit in limits.items():
                _set_limit(group, _FILES[name][hierarchy.version], limit)
            os.close(os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            group.rmdir()
            return False
        self._groups.append(group)
        return True


def find_hierarchies(root: Path = Path("/")) -> Iterator[Hierarchy]:
    """Yield directories where groups may be created, those most likely to work first."""
    mounts = dict(_mounts(root / "proc/self/mountinfo"))
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        mount = mounts.get(names)
        if mount is None:
            continue
        own = root / f"{mount}{path}".lstrip("/")
        if names:
            yield Hierarchy(own, 1, frozenset(names.split(",")))
            continue
        # a v2 group with processes of its own cannot have groups with limits, except the root
        for directory in (own, own.parent):
            with suppress(OSError):
                enabled = (directory / "cgroup.subtree_control").read_text().split()
                yield Hierarchy(directory, 2, frozenset(enabled))


def _mounts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the controllers of every hierarchy and where it is mounted; v2 has no names."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            fields, _, source = line.partition(" - ")
            kind, _, options = source.split(" ", 2)
            if kind == "cgroup2":
                yield "", fields.split(" ")[4]
            elif kind == "cgroup":
                known = [each for each in options.split(",") if each not in {"rw", "ro"}]
                yield ",".join(known), fields.split(" ")[4]


def _set_limit(group: Path, names: tuple[str, ...], limit: int) -> None:
    first, *others = names
    (group / first).write_text(str(limit))
    for name in others:  # swap counts too, where the kernel keeps account of it
        if (group / name).exists():
            (group / name).write_text(str(limit))
    if first == "memory.max" and (group / _NO_SWAP).exists():
        (group / _NO_SWAP).write_text("0")


@atexit.register
def _remove_busy() -> None:
    for group in tuple(_busy):
        try:
            group.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            continue
        _busy.discard(group)


def _remove_leftovers(directory: Path) -> None:
    """Remove the empty groups of processes that were killed."""
    for each in directory.glob(f"{_PREFIX}*"):
        owner = re.fullmatch(rf"{_PREFIX}(\d+)-\w+", each.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            with suppress(OSError):
                each.rmdir()
