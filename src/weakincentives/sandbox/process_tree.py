"""The process tree: who is below a command, and how all of that is killed.

A process can fork while others are being killed. So those that are to be killed are stopped first,
until nothing new is found; then none of them can escape.

It is a part of the supervisor, which also runs inside containers, so it imports only the standard
library.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator

KILL_TIMEOUT = 5.0
"""Seconds to wait for killed processes; only the kernel can delay them that long."""

POLL_INTERVAL = 0.02
"""Seconds between two looks at processes that are not our children."""


def descendants(pid: int) -> set[int]:
    """Return the descendants of a process."""
    children: dict[int, list[int]] = {}
    for each, _, parent, _ in processes():
        children.setdefault(parent, []).append(each)
    found: set[int] = set()
    pending = [pid]
    while pending:
        new = [each for each in children.get(pending.pop(), ()) if each not in found]
        found.update(new)
        pending += new
    return found


def live_processes(pids: Iterable[int]) -> Iterator[int]:
    """Yield the processes that are alive, not zombies."""
    wanted = set(pids)
    return (pid for pid, state, _, _ in processes() if pid in wanted and state not in "ZX")


def processes() -> Iterator[tuple[int, str, int, int]]:
    """Yield the ID, state, parent and session of every visible process."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208 # pathlib takes long to import
    except OSError:
        return
    for name in filter(str.isdigit, names):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 # pathlib takes long to import
                text = file.read()
        except OSError:
            continue  # it has exited meanwhile
        state, parent, _, session = text[text.rindex(b")") + 2 :].split(None, 4)[:4]
        yield int(name), state.decode(), int(parent), int(session)


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process."""
    kill_all(lambda: descendants(pid))


def kill_orphans(ancestor: int, server: int, supervisors: set[int]) -> None:
    """Kill what is below a process, except a fork server, its supervisors and all below them."""

    def find() -> set[int]:
        kept = supervisors.union({server}, *map(descendants, supervisors))
        return descendants(ancestor) - kept

    _kill_and_wait(find)


def kill_session(session: int) -> None:
    """Kill the processes of a session."""
    _kill_and_wait(lambda: {pid for pid, _, _, other in processes() if other == session})


def _kill_and_wait(find: Callable[[], set[int]]) -> None:
    """Kill processes and poll until they are gone: they are not our children."""
    until = time.monotonic() + KILL_TIMEOUT
    while any(live_processes(find())) and time.monotonic() < until:
        kill_all(find)
        time.sleep(POLL_INTERVAL)


def kill_all(find: Callable[[], set[int]]) -> None:
    """Kill processes; freeze them all first, so that none can fork in the meantime."""
    frozen: set[int] = set()
    while new := find() - frozen:
        send(new, signal.SIGSTOP)
        frozen |= new
    send(frozen, signal.SIGKILL)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; ignore those that are gone or not ours."""
    for pid in pids:
        try:  # noqa: SIM105 # contextlib takes long to import
            os.kill(pid, number)
        except OSError:
            pass
