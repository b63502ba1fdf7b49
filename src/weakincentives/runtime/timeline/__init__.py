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
from weakincentives.runtime.timeline.timeline import MAIN as MAIN
from weakincentives.runtime.timeline.timeline import SUFFIX, Timeline, fork_timeline
from weakincentives.runtime.timeline.timeline import without_collector as without_collector
from weakincentives.runtime.timeline.title import (
    call_subject,
    describe_step,
    step_command,
    step_request,
)

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
    "describe_step",
    "export_history",
    "fork_timeline",
    "has_steps",
    "import_history",
    "record_as",
    "step_command",
    "step_request",
    "steps_file",
]
