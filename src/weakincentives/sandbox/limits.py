"""How much of the machine the commands of a sandbox may use."""

import resource
from collections.abc import Collection
from dataclasses import dataclass


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
