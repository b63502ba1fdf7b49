"""ZIP archives of a workspace: export, verification, and a read-only filesystem."""

from weakincentives.filesystem.archive.export import export_archive as export_archive
from weakincentives.filesystem.archive.filesystem import ArchiveFilesystem as ArchiveFilesystem
from weakincentives.filesystem.archive.format import (
    DEFAULT_ARCHIVE_LIMITS as DEFAULT_ARCHIVE_LIMITS,
)
from weakincentives.filesystem.archive.format import ArchiveError as ArchiveError
from weakincentives.filesystem.archive.format import ArchiveLimits as ArchiveLimits
from weakincentives.filesystem.archive.format import check_paths as check_paths
from weakincentives.filesystem.archive.format import check_target as check_target
from weakincentives.filesystem.archive.verify import open_archive as open_archive
from weakincentives.filesystem.manifest import ArchiveManifest as ArchiveManifest
