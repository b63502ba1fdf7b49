"""The suites of the protocol, combined into one class."""

from weakincentives.filesystem.testing.entries import (
    DeleteTests,
    DirectoryTests,
    ListTests,
    StatTests,
)
from weakincentives.filesystem.testing.names import NameTests, PathTests
from weakincentives.filesystem.testing.read import BytesTests, ReadingTests
from weakincentives.filesystem.testing.search import GlobTests, GrepScopeTests, GrepTests
from weakincentives.filesystem.testing.write import WriteLimitTests, WritingTests


class FilesystemProtocolTests(
    ReadingTests,
    BytesTests,
    StatTests,
    ListTests,
    WritingTests,
    WriteLimitTests,
    DeleteTests,
    DirectoryTests,
    PathTests,
    NameTests,
    GlobTests,
    GrepTests,
    GrepScopeTests,
):
    """The tests that every backend must pass: the whole protocol, with the default limits."""
