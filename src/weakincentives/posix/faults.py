"""Fault injection: named points at which a test can make an operation fail.

Code that must survive a crash calls `fault_point("store.renamed")` between its steps. In
production that costs one comparison. A test installs a hook and, at every point in turn,
kills the process or raises the error of a full or broken disk.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

_hook: Callable[[str], None] | None = None


def fault_point(point: str) -> None:
    """Call the hook, if one is installed, with the name of this point."""
    if _hook is not None:
        _hook(point)


@contextmanager
def fault_hook(hook: Callable[[str], None]) -> Generator[None, None, None]:
    """Call `hook` with the name of every fault point reached, in any thread."""
    global _hook
    _hook = hook
    try:
        yield
    finally:
        _hook = None
