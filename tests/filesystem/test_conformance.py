"""The conformance suites, run against every backend of the package."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    BaseFilesystem,
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
)
from weakincentives.filesystem.testing import (
    ArchiveDetailTests,
    ArchiveTests,
    EventTests,
    FilesystemProtocolTests,
    IgnoreFileTests,
    LinkTests,
    MockFilesystem,
    PartialRestoreTests,
    QuotaTests,
    ReadOnlyTests,
    SavepointTests,
    SnapshotDetailTests,
    SnapshotTests,
    SnapshotViewTests,
    SpecialFileTests,
    TextTests,
    ThreadTests,
    TransferTests,
)
from weakincentives.filesystem.testing.entries import DeleteTests, DirectoryTests
from weakincentives.filesystem.testing.names import NameTests, PathTests
from weakincentives.filesystem.testing.write import WriteLimitTests, WritingTests
from weakincentives.posix import rooted


class Undo(
    SnapshotTests,
    PartialRestoreTests,
    SnapshotViewTests,
    SnapshotDetailTests,
    ArchiveTests,
    ArchiveDetailTests,
):
    """The suites of everything that restores a whole state."""


class Everything(
    FilesystemProtocolTests,
    TextTests,
    EventTests,
    TransferTests,
    LinkTests,
    QuotaTests,
    ReadOnlyTests,
    ThreadTests,
    IgnoreFileTests,
    SavepointTests,
    Undo,
):
    """All suites for a backend on the base classes."""


class TestInMemory(Everything):
    def make_filesystem(self, tmp_path: Path) -> InMemoryFilesystem:
        return InMemoryFilesystem()

    def make_limited(self, tmp_path: Path, limits: Limits) -> InMemoryFilesystem:
        return InMemoryFilesystem(limits=limits)

    def make_read_only(self, filled: Filesystem) -> Filesystem:
        assert isinstance(filled, InMemoryFilesystem)
        frozen = InMemoryFilesystem(read_only=True)
        frozen._root_node = filled._root_node
        return frozen


def new_host(
    tmp_path: Path, limits: Limits = DEFAULT_LIMITS, *, exclusive: bool = False
) -> HostFilesystem:
    """Return a workspace on disk, with its history next to it."""
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    return HostFilesystem(root, limits=limits, git_dir=tmp_path / "store", exclusive=exclusive)


class TestHost(Everything, SpecialFileTests):
    def make_filesystem(self, tmp_path: Path) -> HostFilesystem:
        return new_host(tmp_path)

    def make_limited(self, tmp_path: Path, limits: Limits) -> HostFilesystem:
        return new_host(tmp_path, limits)

    def make_read_only(self, filled: Filesystem) -> Filesystem:
        return HostFilesystem(filled.root, read_only=True)

    def make_special(self, fs: BaseFilesystem, path: str) -> None:
        os.mkfifo(Path(fs.root, path))


class TestHostByLinks(LinkTests, SavepointTests, SnapshotDetailTests, ArchiveDetailTests):
    """The suites that need links, with links made outside the workspace."""

    def make_filesystem(self, tmp_path: Path) -> HostFilesystem:
        return new_host(tmp_path)

    def make_limited(self, tmp_path: Path, limits: Limits) -> HostFilesystem:
        return new_host(tmp_path, limits)

    def make_read_only(self, filled: Filesystem) -> Filesystem:
        return HostFilesystem(filled.root, read_only=True)

    def make_link(self, fs: BaseFilesystem, path: str, target: str) -> None:
        Path(fs.root, path).symlink_to(target)


class TestHostStepByStep(
    PathTests,
    NameTests,
    LinkTests,
    SpecialFileTests,
    WritingTests,
    WriteLimitTests,
    DeleteTests,
    DirectoryTests,
    TransferTests,
):
    """Paths, links and writes, on a kernel without `openat2`: nothing else opens anything."""

    def make_filesystem(self, tmp_path: Path) -> HostFilesystem:
        with mock.patch.object(rooted, "_kernel_has_openat2", return_value=False):
            return new_host(tmp_path)

    def make_special(self, fs: BaseFilesystem, path: str) -> None:
        os.mkfifo(Path(fs.root, path))


class TestExclusiveHost(Undo):
    """An exclusive directory: only changes made through it are examined."""

    def make_filesystem(self, tmp_path: Path) -> HostFilesystem:
        return new_host(tmp_path, exclusive=True)

    def make_limited(self, tmp_path: Path, limits: Limits) -> HostFilesystem:
        return new_host(tmp_path, limits, exclusive=True)

    def make_read_only(self, filled: Filesystem) -> Filesystem:
        return HostFilesystem(filled.root, read_only=True)


@pytest.mark.double
class TestMock(FilesystemProtocolTests, TextTests, EventTests, TransferTests, IgnoreFileTests):
    def make_filesystem(self, tmp_path: Path) -> MockFilesystem:
        return MockFilesystem()


# the backend and the suite of the page on writing one, word for word
PAGE = Path(__file__).parents[2] / "docs" / "write-a-backend.md"
EXAMPLES: list[str] = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
)
EXAMPLE = {"__name__": __name__}
for example in EXAMPLES[:3]:
    exec(compile(example, PAGE, "exec"), EXAMPLE)
TestExample = pytest.mark.double(EXAMPLE["TestDict"])
TestUndoableExample = pytest.mark.double(EXAMPLE["TestUndoableDict"])


class TestExampleAndIgnoreFiles(IgnoreFileTests):
    def make_filesystem(self, tmp_path: Path) -> BaseFilesystem:
        return EXAMPLE["DictFilesystem"]()  # pyright: ignore[reportCallIssue] # made by the page


class Plain:
    """A filesystem with only the protocol and snapshots, not on the base classes."""

    def __init__(self) -> None:
        self.inside = InMemoryFilesystem()

    root = property(lambda self: self.inside.root)
    read_only = property(lambda self: self.inside.read_only)


def _delegate(name: str) -> Callable[..., object]:
    return lambda self, *given, **named: getattr(self.inside, name)(*given, **named)


for _method in (
    "read", "read_bytes", "exists", "stat", "list", "glob", "grep", "write", "write_bytes",
    "delete", "mkdir", "snapshot", "restore", "export_archive", "import_archive",
):  # fmt: skip
    setattr(Plain, _method, _delegate(_method))


@pytest.mark.double
class TestPlain(FilesystemProtocolTests, SnapshotTests, ArchiveTests):
    """The protocol suites need nothing beyond the protocol."""

    def make_filesystem(self, tmp_path: Path) -> Filesystem:
        return Plain()  # pyright: ignore[reportReturnType] # its methods are made above
