"""Timelines: the history of a session, every step with its files and its conversation."""

from weakincentives.runtime.timeline.export import export_history, import_history
from weakincentives.runtime.timeline.recorder import (
    SessionRecorder,
    fork_timeline,
    record_as,
)
from weakincentives.runtime.timeline.steps import (
    Entry,
    FileChanges,
    StepKind,
    StepRecord,
    StoredSession,
    StoredSlice,
    TimelineError,
    TimelineHeader,
)
from weakincentives.runtime.timeline.store import has_steps, steps_file
from weakincentives.runtime.timeline.timeline import SUFFIX, Timeline
from weakincentives.runtime.timeline.title import call_subject

__all__ = [
    "SUFFIX",
    "Entry",
    "FileChanges",
    "SessionRecorder",
    "StepKind",
    "StepRecord",
    "StoredSession",
    "StoredSlice",
    "Timeline",
    "TimelineError",
    "TimelineHeader",
    "call_subject",
    "export_history",
    "fork_timeline",
    "has_steps",
    "import_history",
    "record_as",
    "steps_file",
]
