"""The quota: how many bytes and entries a workspace may grow to."""

from collections.abc import Callable

from weakincentives.filesystem.limits import LimitExceededError, Limits


class Quota:
    """Growth against the limits, without counting the workspace at every write.

    The estimate only grows, so it is never below what went through the protocol.
    Only when it says that the quota is reached is the workspace counted again.
    """

    def __init__(self, limits: Limits, count: Callable[[], tuple[int, int]]) -> None:
        """Bound by `limits`; `count` returns bytes and entries now."""
        self._max_bytes = limits.max_total_bytes
        self._max_files = limits.max_files
        self._count = count
        self._estimate: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to keep to."""
        return self._max_bytes is not None or self._max_files is not None

    def check(self, size: int, files: int) -> None:
        """Return if a whole workspace may be so large.

        Raises:
            LimitExceededError: It may not.
        """
        excess = self._excess((0, 0), size, files)
        if excess:
            raise LimitExceededError(excess)

    def recount(self) -> None:
        """Forget the estimate: everything may have changed."""
        self._estimate = None

    def admit(self, more_bytes: int, more_files: int) -> None:
        """Return if there is room for so much more.

        Raises:
            LimitExceededError: There is not.
        """
        if not self:
            return
        used = self._estimate or self._count()
        if self._excess(used, more_bytes, more_files):
            used = self._count()
            excess = self._excess(used, more_bytes, more_files)
            if excess:
                raise LimitExceededError(excess)
        self._estimate = (used[0] + max(0, more_bytes), used[1] + more_files)

    def _excess(self, used: tuple[int, int], more_bytes: int, more_files: int) -> str:
        size, files = used[0] + more_bytes, used[1] + more_files
        if self._max_bytes is not None and more_bytes > 0 and size > self._max_bytes:
            return f"Workspace quota exceeded: {size} of {self._max_bytes} bytes"
        if self._max_files is not None and more_files > 0 and files > self._max_files:
            return f"Workspace quota exceeded: {files} of {self._max_files} files and directories"
        return ""
