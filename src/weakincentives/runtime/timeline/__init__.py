"""Timelines: every step of a session with its files and its conversation, append-only."""

from weakincentives.runtime.timeline.filesystem import StepFilesystem
from weakincentives.runtime.timeline.recorder import (
    SessionRecorder,
    fork_timeline,
    record_as,
)
from weakincentives.runtime.timeline.records import TimelineError
from weakincentives.runtime.timeline.steps import (
    BaseRecord,
    Entry,
    FileChanges,
    StepKind,
    StepRecord,
    StoredSession,
    StoredSlice,
    TimelineHeader,
)
from weakincentives.runtime.timeline.timeline import SUFFIX, Timeline
from weakincentives.runtime.timeline.title import call_subject

__all__ = [
    "SUFFIX",
    "BaseRecord",
    "Entry",
    "FileChanges",
    "SessionRecorder",
    "StepFilesystem",
    "StepKind",
    "StepRecord",
    "StoredSession",
    "StoredSlice",
    "Timeline",
    "TimelineError",
    "TimelineHeader",
    "call_subject",
    "fork_timeline",
    "record_as",
]
