"""For people who write a backend or a tool: suites, a mock, strategies, a side-by-side machine.

Needs the extra `testing`. The suites are pytest classes: derive, say how to make your
filesystem, and mix in what it can do.
"""

try:
    import hypothesis as hypothesis
    import pytest as pytest
except ImportError as _error:
    raise ImportError(
        f"weakincentives.filesystem.testing needs {_error.name}:"
        " pip install 'weakincentives[testing]'"
    ) from _error
else:
    # before the suites are imported, or their failures print no values
    pytest.register_assert_rewrite(
        *(
            f"{__name__}.{module}"
            for module in (
                "archives", "events", "globbing", "grepping", "ignoring", "limited", "links",
                "metadata", "mountrules", "mounts", "names", "reading", "removal", "replacing",
                "restoring", "rollbacks", "savepoints", "snapshots", "texts", "threads",
                "transfers", "writing",
            )
        )
    )  # fmt: skip

from weakincentives.filesystem.testing.contract import ConformanceSuite
from weakincentives.filesystem.testing.hooks import LimitedSuite, PlantingSuite, ReadOnlySuite
from weakincentives.filesystem.testing.machine import (
    DivergenceError,
    FilesystemMachine,
    Pair,
    run_machine,
    run_parity,
)
from weakincentives.filesystem.testing.mock import Call, MockFilesystem
from weakincentives.filesystem.testing.operations import Operation, Outcome
from weakincentives.filesystem.testing.strategies import (
    contents,
    globs,
    operations,
    paths,
    regexes,
    texts,
)
from weakincentives.filesystem.testing.suites import (
    ArchiveDetailTests,
    ArchiveTests,
    EventTests,
    FilesystemProtocolTests,
    IgnoreFileTests,
    LinkTests,
    MountRuleTests,
    MountTests,
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
