"""Run code in a child process that never returns into the tests."""

import os
import traceback
from collections.abc import Callable

from weakincentives.posix import fault_hook

KILLED = 7


def in_a_child(work: Callable[[], object]) -> int:
    """Begin `work` in a child that ends with it; return its number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:  # noqa: BLE001 # the parent is told by the exit code
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ends(child: int) -> int:
    """Wait for a child; return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_killed_at(point: str, work: Callable[[], object], number: int = 1) -> bool:
    """Do `work` in a child that ends at the nth fault point of this name; empty is any."""
    reached = 0

    def hook(name: str) -> None:
        nonlocal reached
        reached += point in ("", name)
        if reached == number:
            os._exit(KILLED)

    def run() -> None:
        with fault_hook(hook):
            work()

    return ends(in_a_child(run)) == KILLED
