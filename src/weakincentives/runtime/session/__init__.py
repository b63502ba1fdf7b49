"""Sessions: typed slices, pure reducers, snapshots and dumps."""

from weakincentives.runtime.session.dump import (
    MAX_DUMP_BYTES,
    FilesystemHolder,
    LoadedDump,
    dump_session_tree,
    load_dump,
    load_session,
)
from weakincentives.runtime.session.dump_format import DumpError
from weakincentives.runtime.session.dump_format import DumpFiles as DumpFiles
from weakincentives.runtime.session.dump_format import read_dump as read_dump
from weakincentives.runtime.session.reducers import (
    EventReducer,
    Method,
    Reducer,
    ReducerError,
    append_all,
    replace_latest,
    replace_latest_by,
    upsert_by,
)
from weakincentives.runtime.session.session import (
    Session,
    Slice,
    UnknownTagError,
    current_publisher,
    select_all,
    select_latest,
    select_where,
)
from weakincentives.runtime.session.snapshots import Snapshot, SnapshotFormatError, UnknownItem
from weakincentives.runtime.session.snapshots import register_type as register_type
from weakincentives.runtime.session.store import SessionSavepoint, TransactionEndedError

__all__ = [
    "MAX_DUMP_BYTES",
    "DumpError",
    "EventReducer",
    "FilesystemHolder",
    "LoadedDump",
    "Method",
    "Reducer",
    "ReducerError",
    "Session",
    "SessionSavepoint",
    "Slice",
    "Snapshot",
    "SnapshotFormatError",
    "TransactionEndedError",
    "UnknownItem",
    "UnknownTagError",
    "append_all",
    "current_publisher",
    "dump_session_tree",
    "load_dump",
    "load_session",
    "replace_latest",
    "replace_latest_by",
    "select_all",
    "select_latest",
    "select_where",
    "upsert_by",
]
