"""The suites by name: the whole protocol, and one suite for each capability beyond it."""

from weakincentives.filesystem.testing.archives import ArchiveTests
from weakincentives.filesystem.testing.events import EventTests
from weakincentives.filesystem.testing.globbing import GlobTests
from weakincentives.filesystem.testing.grepping import GrepScopeTests, GrepTests
from weakincentives.filesystem.testing.ignoring import IgnoreFileTests
from weakincentives.filesystem.testing.limited import QuotaTests, ReadOnlyTests
from weakincentives.filesystem.testing.links import LinkTests, SpecialFileTests
from weakincentives.filesystem.testing.metadata import ListTests, StatTests
from weakincentives.filesystem.testing.mountrules import MountRuleTests
from weakincentives.filesystem.testing.mounts import MountTests
from weakincentives.filesystem.testing.names import NameTests, PathTests
from weakincentives.filesystem.testing.reading import BytesTests, ReadingTests
from weakincentives.filesystem.testing.removal import DeleteTests, DirectoryTests
from weakincentives.filesystem.testing.replacing import ArchiveDetailTests, SnapshotDetailTests
from weakincentives.filesystem.testing.restoring import PartialRestoreTests, SnapshotViewTests
from weakincentives.filesystem.testing.savepoints import SavepointTests
from weakincentives.filesystem.testing.snapshots import SnapshotTests
from weakincentives.filesystem.testing.texts import TextTests
from weakincentives.filesystem.testing.threads import ThreadTests
from weakincentives.filesystem.testing.transfers import TransferTests
from weakincentives.filesystem.testing.writing import WriteLimitTests, WritingTests

PROTOCOL_SUITES = (
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
)
CAPABILITY_SUITES = (
    TextTests,
    EventTests,
    TransferTests,
    LinkTests,
    SpecialFileTests,
    QuotaTests,
    ReadOnlyTests,
    ThreadTests,
    IgnoreFileTests,
    SavepointTests,
    SnapshotTests,
    PartialRestoreTests,
    SnapshotViewTests,
    SnapshotDetailTests,
    ArchiveTests,
    ArchiveDetailTests,
    MountTests,
    MountRuleTests,
)


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
    """What every backend must pass: all of the protocol, with the default limits."""
