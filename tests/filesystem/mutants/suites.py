"""All suites: those of the protocol, and those of the capabilities."""

from weakincentives.filesystem.testing.archives import ArchiveDetailTests, ArchiveTests
from weakincentives.filesystem.testing.entries import (
    DeleteTests,
    DirectoryTests,
    ListTests,
    StatTests,
    TransferTests,
)
from weakincentives.filesystem.testing.events import EventTests
from weakincentives.filesystem.testing.mounts import MountRuleTests, MountTests
from weakincentives.filesystem.testing.names import (
    LinkTests,
    NameTests,
    PathTests,
    SpecialFileTests,
)
from weakincentives.filesystem.testing.read import BytesTests, ReadingTests, TextTests
from weakincentives.filesystem.testing.restore import (
    PartialRestoreTests,
    SnapshotDetailTests,
    SnapshotViewTests,
)
from weakincentives.filesystem.testing.savepoints import SavepointTests
from weakincentives.filesystem.testing.search import (
    GlobTests,
    GrepScopeTests,
    GrepTests,
    IgnoreFileTests,
)
from weakincentives.filesystem.testing.snapshots import SnapshotTests
from weakincentives.filesystem.testing.threads import ThreadTests
from weakincentives.filesystem.testing.write import (
    QuotaTests,
    ReadOnlyTests,
    WriteLimitTests,
    WritingTests,
)

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
"""The bases of `FilesystemProtocolTests`."""
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
