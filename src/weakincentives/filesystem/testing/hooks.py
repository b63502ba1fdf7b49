"""What a backend supplies beside `make_filesystem`, for the suites that need more."""

from pathlib import Path

from weakincentives.filesystem import BaseFilesystem, Filesystem, Limits
from weakincentives.filesystem.testing.contract import ConformanceSuite


class TickingClock:
    """A clock that moves whenever somebody looks: time limits without waiting."""

    def __init__(self, step: float = 1.0) -> None:
        """Begin at zero, and move by `step` seconds."""
        self._now = 0.0
        self._step = step

    def __call__(self) -> float:
        """Return the time, later than before."""
        self._now += self._step
        return self._now


class PlantingSuite(ConformanceSuite):
    """A suite that needs what the protocol shows and cannot make."""

    def make_link(self, fs: BaseFilesystem, path: str, target: str) -> None:
        """Make a symbolic link at `path`; by default with the backend's own primitive."""
        fs._make_link(path, target)  # pyright: ignore[reportPrivateUsage] # the protocol makes no links

    def make_file(
        self, fs: BaseFilesystem, path: str, content: bytes, permissions: int = 0o644
    ) -> None:
        """Make or replace a file of any name; by default with the backend's own primitive."""
        fs._store(path, content, permissions=permissions)  # pyright: ignore[reportPrivateUsage] # the protocol sets no bits


class LimitedSuite(ConformanceSuite):
    """A suite that needs limits of its own."""

    def make_limited(self, tmp_path: Path, limits: Limits) -> BaseFilesystem:
        """Return a new, empty, writable filesystem with these limits."""
        raise NotImplementedError(f"{type(self).__name__} must define make_limited(...)")


class ReadOnlySuite(ConformanceSuite):
    """A suite that needs a filesystem which refuses writes."""

    def make_read_only(self, filled: Filesystem) -> Filesystem:
        """Return the files of `filled` as a filesystem that refuses writes."""
        raise NotImplementedError(f"{type(self).__name__} must define make_read_only(filled)")
