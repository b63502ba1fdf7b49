"""One suite, every backend of ours."""

import os
import re
from pathlib import Path

from weakincentives.filesystem import (
    BaseFilesystem,
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
)
from weakincentives.filesystem.rooted import RootedDirectory
from weakincentives.filesystem.testing import (
    EventTests,
    FilesystemProtocolTests,
    IgnoreFileTests,
    LinkTests,
    MockFilesystem,
    QuotaTests,
    ReadOnlyTests,
    SpecialFileTests,
    TextTests,
    ThreadTests,
    TransferTests,
)


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
):
    """What a backend on the base classes can do."""


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


class TestHost(Everything, SpecialFileTests):
    def make_filesystem(self, tmp_path: Path) -> HostFilesystem:
        return HostFilesystem(tmp_path)

    def make_limited(self, tmp_path: Path, limits: Limits) -> HostFilesystem:
        return HostFilesystem(tmp_path, limits=limits)

    def make_read_only(self, filled: Filesystem) -> Filesystem:
        return HostFilesystem(filled.root, read_only=True)

    def make_special(self, fs: BaseFilesystem, path: str) -> None:
        os.mkfifo(Path(fs.root, path))


class TestHostByLinks(TestHost):
    """The same, with links that somebody else made."""

    def make_link(self, fs: BaseFilesystem, path: str, target: str) -> None:
        Path(fs.root, path).symlink_to(target)


class TestHostStepByStep(TestHost):
    """The same, on a kernel without `openat2`."""

    def make_filesystem(self, tmp_path: Path) -> HostFilesystem:
        fs = HostFilesystem(tmp_path)
        fs._directory = RootedDirectory(tmp_path, kernel=False)
        return fs


class TestMock(FilesystemProtocolTests, TextTests, EventTests, TransferTests, IgnoreFileTests):
    def make_filesystem(self, tmp_path: Path) -> MockFilesystem:
        return MockFilesystem()


# the backend and the suite of the page on writing one, word for word
PAGE = Path(__file__).parents[2] / "docs" / "write-a-backend.md"
EXAMPLES: list[str] = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
)
EXAMPLE = {"__name__": __name__}
for example in EXAMPLES[:2]:
    exec(compile(example, PAGE, "exec"), EXAMPLE)
TestExample = EXAMPLE["TestDict"]


class TestExampleAndIgnoreFiles(IgnoreFileTests):
    def make_filesystem(self, tmp_path: Path) -> BaseFilesystem:
        return EXAMPLE["DictFilesystem"]()  # pyright: ignore[reportCallIssue] # made by the page
