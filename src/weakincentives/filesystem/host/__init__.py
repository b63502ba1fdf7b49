"""A workspace in a host directory."""

from weakincentives.filesystem.host.files import HostFile as HostFile
from weakincentives.filesystem.host.files import Identity as Identity
from weakincentives.filesystem.host.files import LineIndexes as LineIndexes
from weakincentives.filesystem.host.files import identity_of as identity_of
from weakincentives.filesystem.host.files import is_stable as is_stable
from weakincentives.filesystem.host.filesystem import HostFilesystem as HostFilesystem
from weakincentives.filesystem.host.snapshots.edits import entry_state as entry_state
from weakincentives.filesystem.host.snapshots.edits import is_same as is_same
from weakincentives.filesystem.host.snapshots.edits import put_entries as put_entries
from weakincentives.filesystem.host.snapshots.edits import select_tree as select_tree
from weakincentives.filesystem.host.snapshots.edits import store_commit_tree as store_commit_tree
from weakincentives.filesystem.host.snapshots.view import SnapshotFilesystem as SnapshotFilesystem
from weakincentives.filesystem.host.snapshots.view import open_blob as open_blob
from weakincentives.filesystem.host.snapshots.writer import CopyWorker as CopyWorker
from weakincentives.filesystem.host.snapshots.writer import FileBatch as FileBatch
from weakincentives.filesystem.host.snapshots.writer import TreeWriter as TreeWriter
