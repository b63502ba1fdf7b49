"""Timelines: the history of a session, every step with its files and its conversation."""

from weakincentives.history import (
    Actor,
    StepKind,
    StepRecord,
    TimelineError,
    TimelineHeader,
    has_steps,
    steps_file,
)
from weakincentives.runtime.session.snapshots import StoredSession, StoredSlice
from weakincentives.runtime.timeline.export import export_history, import_history
from weakincentives.runtime.timeline.recorder import SessionRecorder, record_as
from weakincentives.runtime.timeline.timeline import SUFFIX, Timeline, fork_timeline
from weakincentives.runtime.timeline.title import call_subject, step_command

__all__ = [
    "SUFFIX",
    "Actor",
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
    "step_command",
    "steps_file",
]
