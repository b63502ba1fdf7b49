"""Conformance suites for backends, a mock filesystem, and Hypothesis strategies and machines.

Needs the extra `testing`. The suites are pytest classes: subclass one, define
`make_filesystem`, and mix in the suites of the capabilities that the backend has.
"""

from weakincentives.extras import describe_missing as _describe_missing

try:
    import hypothesis as hypothesis
    import pytest as pytest
except ImportError as _error:
    raise ImportError(
        _describe_missing("weakincentives.filesystem.testing", "testing"), name=_error.name
    ) from _error
else:
    # must come before the suites are imported, or their failures show no values
    pytest.register_assert_rewrite(
        *(
            f"{__name__}.{module}"
            for module in (
                "archives", "changes", "entries", "events", "mounts", "names", "read",
                "restore", "savepoints", "search", "snapshots", "threads", "write",
            )
        )
    )  # fmt: skip

from weakincentives.filesystem.testing.archives import ArchiveDetailTests, ArchiveTests
from weakincentives.filesystem.testing.contract import (
    ConformanceSuite,
    LimitedSuite,
    PlantingSuite,
    ReadOnlySuite,
)
from weakincentives.filesystem.testing.entries import TransferTests
from weakincentives.filesystem.testing.events import EventTests
from weakincentives.filesystem.testing.machine import (
    DivergenceError,
    FilesystemMachine,
    Pair,
    run_machine,
    run_parity,
)
from weakincentives.filesystem.testing.mock import Call, MockFilesystem
from weakincentives.filesystem.testing.mounts import MountRuleTests, MountTests
from weakincentives.filesystem.testing.names import LinkTests, SpecialFileTests
from weakincentives.filesystem.testing.read import TextTests
from weakincentives.filesystem.testing.restore import (
    PartialRestoreTests,
    SnapshotDetailTests,
    SnapshotViewTests,
)
from weakincentives.filesystem.testing.savepoints import SavepointTests
from weakincentives.filesystem.testing.search import IgnoreFileTests
from weakincentives.filesystem.testing.snapshots import SnapshotTests
from weakincentives.filesystem.testing.strategies import (
    Operation,
    Outcome,
    contents,
    globs,
    operations,
    paths,
    regexes,
    texts,
)
from weakincentives.filesystem.testing.suites import FilesystemProtocolTests
from weakincentives.filesystem.testing.threads import ThreadTests
from weakincentives.filesystem.testing.write import QuotaTests, ReadOnlyTests

__all__ = [
    "ArchiveDetailTests",
    "ArchiveTests",
    "Call",
    "ConformanceSuite",
    "DivergenceError",
    "EventTests",
    "FilesystemMachine",
    "FilesystemProtocolTests",
    "IgnoreFileTests",
    "LimitedSuite",
    "LinkTests",
    "MockFilesystem",
    "MountRuleTests",
    "MountTests",
    "Operation",
    "Outcome",
    "Pair",
    "PartialRestoreTests",
    "PlantingSuite",
    "QuotaTests",
    "ReadOnlySuite",
    "ReadOnlyTests",
    "SavepointTests",
    "SnapshotDetailTests",
    "SnapshotTests",
    "SnapshotViewTests",
    "SpecialFileTests",
    "TextTests",
    "ThreadTests",
    "TransferTests",
    "contents",
    "globs",
    "operations",
    "paths",
    "regexes",
    "run_machine",
    "run_parity",
    "texts",
]
