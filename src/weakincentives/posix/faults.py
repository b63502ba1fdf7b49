"""Named points at which a test can make the world fail.

Code that must survive a crash says `reached("store.renamed")` between its steps. In
production that costs one comparison. A test installs a hook and kills the process,
or raises what a full or broken disk would raise, at every point in turn.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

_hook: Callable[[str], None] | None = None


def fault_point(point: str) -> None:
    """Tell the hook, if there is one, that `point` is reached."""
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
