"""Recording a session as it goes: every step is on disk before the next one begins."""

import logging
import os
import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from datetime import datetime
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from zlib import compress

from weakincentives import __version__
from weakincentives.errors import SnapshotError
from weakincentives.filesystem import (
    DirectoryCreated,
    EntryMoved,
    FileDeleted,
    Filesystem,
    FilesystemEvent,
    FilesystemSnapshot,
    FileWritten,
    LinkCreated,
    Observable,
    ReadableFilesystem,
    StateReplaced,
    Viewable,
)
from weakincentives.filesystem.derived import DerivedFiles
from weakincentives.filesystem.host import SnapshotFilesystem
from weakincentives.gitstore import ObjectError
from weakincentives.runtime.deadlines import SYSTEM_CLOCK
from weakincentives.runtime.events import (
    ConversationStarted,
    MessageAdded,
    PromptExecuted,
    PromptRendered,
    ToolInvoked,
)
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline.base import BaseEntries, BaseFiles, write_base
from weakincentives.runtime.timeline.chunks import ChunkReader, ChunkWriter
from weakincentives.runtime.timeline.records import (
    HEADER,
    STEP,
    RecordReader,
    RecordWriter,
    TimelineError,
)
from weakincentives.runtime.timeline.steps import (
    BaseRecord,
    Entry,
    FileChanges,
    ListChange,
    StepKind,
    StepRecord,
    TimelineHeader,
)
from weakincentives.runtime.timeline.timeline import Timeline
from weakincentives.runtime.timeline.tracker import FileTracker, SessionTracker
from weakincentives.serde import encode, to_builtins

_FILE_EVENTS = (
    FileWritten,
    FileDeleted,
    DirectoryCreated,
    LinkCreated,
    EntryMoved,
    StateReplaced,
)
_NO_ROOT = "/"  # the root if the workspace is not on disk
_MAX_TITLE = 100
_MAX_CODE = 60  # characters shown of code
_PREAMBLE = ("import ", "from ", "#")
# parameters that say what a call is about
_SUBJECTS = ("command", "cmd", "pattern", "query", "code")
_LEVEL = 6
_BRANCH = re.compile(r"[A-Za-z_][\w.-]{0,99}", re.ASCII)
_log = logging.getLogger(__name__)

EventT = TypeVar("EventT")
_STEP_EVENTS: dict[type[Any], StepKind] = {
    PromptRendered: "prompt",
    ToolInvoked: "tool",
    PromptExecuted: "end",
}


def record_as(kind: StepKind) -> Callable[[type[EventT]], type[EventT]]:
    """Return a decorator: events of the class are steps of this kind in every recording."""

    def decorate(event_type: type[EventT]) -> type[EventT]:
        _STEP_EVENTS[event_type] = kind
        return event_type

    return decorate


class SessionRecorder:
    """Writes the steps of a session to a timeline, as they happen.

    A step is an event: a prompt, an answer of the model, a tool call. It is stored with what
    changed since the step before: files, slices and messages. A process that is killed loses
    at most the step in flight. If the disk is full, the session goes on and `problem` says why
    the recording does not.
    """

    def __init__(
        self,
        session: Session,
        path: str | os.PathLike[str],
        filesystem: Filesystem | None = None,
        *,
        at: int | None = None,
        branch: str | None = None,
        details: Mapping[str, Any] | None = None,
        leave_out: DerivedFiles | None = None,
        base: FilesystemSnapshot | None = None,
        durable: bool = True,
        now: Callable[[], datetime] = SYSTEM_CLOCK.now,
    ) -> None:
        """Record `session` and its descendants from now on.

        Args:
            session: The session.
            path: The file. It must not exist, unless `at` continues it.
            filesystem: The workspace; it must derive from `ReadableFilesystem`.
            at: Continue the timeline at this step. If steps follow it already, this is a
                new branch.
            branch: A name for the branch; by default `branch-` and the number of its first step.
            details: JSON values to keep in the first step, such as the options of the run.
            leave_out: Entries of the workspace that are not recorded. Its `keep` is called for
                each that a tool writes to.
            base: A snapshot of the workspace as it is now. The first step then has the files of
                this snapshot, and none is read again.
            durable: Whether each step is synced to disk, so that it survives a power failure.
            now: Returns the date of a step.

        Raises:
            FileExistsError: The file exists.
            TimelineError: There is no such step, or another process is recording to the file.
            ValueError: The file is inside the workspace.
            OSError: It cannot be written.
        """
        if filesystem is not None and not isinstance(filesystem, ReadableFilesystem):
            raise TypeError(f"Filesystem cannot be recorded: {filesystem!r}")
        if filesystem is not None:
            _check_outside(Path(path), filesystem.root)
        self._session = session
        self._path = Path(path)
        self._durable = durable
        self._now = now
        self._lock = RLock()
        self._messages: list[Any] = []
        self._recorded_messages: list[Any] = []
        self._sessions = SessionTracker(session)
        self._branch = branch
        self.problem: str | None = None
        self._parent: int | None = None
        self._count = 0
        entries: dict[str, Entry] = {}
        base_record: BaseRecord | None = None
        if at is None:
            self._writer = RecordWriter(self._path)
        else:
            with Timeline(self._path) as before:
                self._writer, self._branch = _open_branch(before, at, branch)
                entries = dict(before.entries(at))
                base_record = before.step(1).base
                self._messages = list(before.messages(at))
                self._recorded_messages = list(self._messages)
                self._parent, self._count = at, before.last
        self._unsubscribe: list[Callable[[], object]] = []
        self._reader: RecordReader | None = None
        try:
            if at is None:
                self._write_header(_NO_ROOT if filesystem is None else filesystem.root)
            self._reader = RecordReader(self._path)
            self._files: FileTracker | None = None
            written = None
            if filesystem is not None and at is None:
                written = self._start_files(filesystem, base, leave_out)
            elif filesystem is not None:
                self._continue_files(filesystem, entries, base_record, leave_out)
            title = "recording began" if at is None else f"continued at step {at}"
            self._append("start", title, details, base=written)
            self._subscribe(filesystem)
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def last(self) -> int:
        """The number of the last step."""
        return self._count

    def close(self) -> None:
        """Record what changed since the last step, and stop; idempotent."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        was_recording, self._unsubscribe = bool(self._unsubscribe), []
        with self._lock:
            if was_recording and self._has_changes():
                self._record("files", "changes after the last step", {})
            self._writer.close()
            if self._reader is not None:  # else the header could not be written
                self._reader.close()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _start_files(
        self,
        filesystem: ReadableFilesystem,
        snapshot: FilesystemSnapshot | None,
        leave_out: DerivedFiles | None,
    ) -> BaseRecord | None:
        """Track the files, all of which are new; return where they are stored, if they are."""
        record = None
        if snapshot is not None and isinstance(filesystem, Viewable):
            try:
                files = filesystem.view(snapshot)
                if isinstance(files, SnapshotFilesystem):  # else it is in memory
                    record = write_base(self._writer, files, leave_out)
            except (ObjectError, SnapshotError) as error:
                _log.warning("Reading the files again to record them: %s", error)
        chunks, base = self._open_chunks(filesystem, record)
        entries: MutableMapping[str, Entry] = {} if base is None else BaseEntries(base)
        self._files = FileTracker(filesystem, chunks, entries, leave_out, base)
        if base is None:
            self._files.mark_all()
        return record

    def _continue_files(
        self,
        filesystem: ReadableFilesystem,
        entries: dict[str, Entry],
        record: BaseRecord | None,
        leave_out: DerivedFiles | None,
    ) -> None:
        """Track the files, some of which may differ from those that are recorded."""
        if leave_out is not None:
            for path in entries:  # what is recorded stays so
                leave_out.keep(path)
        chunks, base = self._open_chunks(filesystem, record)
        self._files = FileTracker(filesystem, chunks, entries, leave_out, base)
        self._files.mark_all()

    def _open_chunks(
        self, filesystem: ReadableFilesystem, record: BaseRecord | None
    ) -> tuple[ChunkWriter, BaseFiles | None]:
        """Return what stores content, and the files of the base."""
        assert self._reader is not None
        base = None if record is None else BaseFiles(self._reader, record, filesystem.root)
        return ChunkWriter(self._writer, ChunkReader(self._reader, base)), base

    def _subscribe(self, filesystem: Filesystem | None) -> None:
        bus = self._session.bus
        self._unsubscribe.append(bus.subscribe(ConversationStarted, self._start_conversation))
        self._unsubscribe.append(bus.subscribe(MessageAdded, self._add_message))
        for event_type in _FILE_EVENTS:
            self._unsubscribe.append(bus.subscribe(event_type, self._mark))
        for event_type, kind in _STEP_EVENTS.items():
            self._unsubscribe.append(bus.subscribe(event_type, self._handler(kind)))
        if isinstance(filesystem, Observable):
            self._unsubscribe.append(filesystem.subscribe(self._mark))

    def _mark(self, event: FilesystemEvent) -> None:
        if self._files is not None:
            with self._lock:
                self._files.mark(event)

    def _start_conversation(self, event: ConversationStarted) -> None:
        with self._lock:
            self._messages = [to_builtins(each) for each in event.messages]

    def _add_message(self, event: MessageAdded) -> None:
        with self._lock:
            self._messages.append(to_builtins(event.message))

    def _handler(self, kind: StepKind) -> Callable[[Any], None]:
        def record(event: Any) -> None:
            details = cast("Mapping[str, Any]", to_builtins(event))
            self._record(kind, _title(kind, details), details)

        return record

    def _record(self, kind: StepKind, title: str, details: Mapping[str, Any]) -> None:
        """Append a step; a recording that fails does not end the session."""
        with self._lock:
            if self.problem is not None:
                return
            try:
                self._append(kind, title, details)
            except (OSError, ValueError) as error:
                fact = getattr(error, "strerror", None) or error
                self.problem = f"Recording stopped after step {self._count}: {fact}"
                _log.warning("%s", self.problem)

    def _has_changes(self) -> bool:
        files = self._files.has_changes if self._files is not None else False
        return files or self._messages != self._recorded_messages

    def _append(
        self,
        kind: StepKind,
        title: str,
        details: Mapping[str, Any] | None = None,
        *,
        base: BaseRecord | None = None,
    ) -> None:
        files = FileChanges() if self._files is None else self._files.collect()
        step = StepRecord(
            number=self._count + 1,
            parent=self._parent,
            kind=kind,
            created_at=self._now(),
            title=title,
            branch=self._branch,
            details=details or {},
            files=files,
            sessions=self._sessions.collect(),
            messages=self._message_change(),
            base=base,
        )
        self._writer.append(STEP, compress(encode(step), _LEVEL))
        if self._durable:
            self._writer.sync()
        self._count += 1
        self._parent = self._count
        self._branch = None

    def _message_change(self) -> ListChange | None:
        before, now = self._recorded_messages, self._messages
        keep = 0
        for old, new in zip(before, now, strict=False):
            if old is not new and old != new:
                break
            keep += 1
        if keep == len(before) == len(now):
            return None
        self._recorded_messages = list(now)
        return ListChange(keep, tuple(now[keep:]))

    def _write_header(self, root: str) -> None:
        header = TimelineHeader(
            self._session.session_id, self._now(), root, f"weakincentives {__version__}"
        )
        self._writer.append(HEADER, encode(header))


def fork_timeline(
    path: str | os.PathLike[str],
    at: int,
    branch: str | None = None,
    *,
    now: Callable[[], datetime] = SYSTEM_CLOCK.now,
) -> StepRecord:
    """Add a step that begins a branch after step `at`, and changes nothing; return it.

    Raises:
        TimelineError: There is no such step, the name is taken, or another process is recording
            to the file.
        OSError: It cannot be written.
    """
    with Timeline(path) as before:
        before.step(at)
        name = branch or f"branch-{before.last + 1}"
        writer, _ = _open_branch(before, at, name)
        try:
            step = StepRecord(before.last + 1, at, "start", now(), f"branch {name}", branch=name)
            writer.append(STEP, compress(encode(step), _LEVEL))
            writer.sync()
        finally:
            writer.close()
    return step


def _open_branch(before: Timeline, at: int, branch: str | None) -> tuple[RecordWriter, str | None]:
    """Return a writer that continues a timeline at a step, and the name of the branch."""
    before.step(at)
    writer = RecordWriter(before.path, find_end=before.find_end)
    if branch is not None and (not _BRANCH.fullmatch(branch) or branch in before.branches):
        writer.close()
        fact = "exists already" if branch in before.branches else "has an invalid name"
        raise TimelineError(f"Branch {fact}: {branch!r} (letters, digits, '-', '_' and '.')")
    if branch is None and before.children(at):
        branch = f"branch-{before.last + 1}"
    return writer, branch


def _check_outside(path: Path, root: str) -> None:
    """Raise if every step would change the workspace that it records."""
    if root != _NO_ROOT and os.path.realpath(path).startswith(f"{os.path.realpath(root)}/"):
        raise ValueError(
            "Timeline is inside the workspace that it records (choose another place):"
            f" {str(path)!r}"
        )


def _title(kind: StepKind, details: Mapping[str, Any]) -> str:
    """Return what happened, in a line."""
    match kind:
        case "tool":
            paths = ", ".join(details.get("paths") or ())
            text = (
                f"{details.get('tool', 'tool')} {call_subject(details.get('params') or {})} {paths}"
            )
        case "model":
            calls = ", ".join(details.get("tool_calls") or ())
            text = details.get("text") or (f"calls {calls}" if calls else "answers")
        case "context":
            text = (
                f"conversation compacted from {details.get('tokens_before', 0):,}"
                f" to {details.get('tokens_after', 0):,} tokens"
            )
        case _:
            text = details.get("prompt_name") or details.get("prompt_key") or kind
    line = " ".join(str(text).split())
    return line if len(line) <= _MAX_TITLE else f"{line[: _MAX_TITLE - 3]}..."


def call_subject(params: Mapping[str, Any]) -> str:
    """Return what a tool call is about: its command, its pattern, or the first line of its code."""
    name = next((name for name in _SUBJECTS if params.get(name)), None)
    found: object = "" if name is None else params[name]
    if isinstance(found, list | tuple):
        return " ".join(map(str, cast("Sequence[object]", found)))
    return _first_line(str(found)) if name == "code" else str(found)


def _first_line(code: str) -> str:
    """Return the first line of code that is not an import, and how many lines there are."""
    lines = [line.strip() for line in code.splitlines() if line.strip()] or [""]
    first = next((line for line in lines if not line.startswith(_PREAMBLE)), lines[0])
    if len(first) > _MAX_CODE:
        first = f"{first[: _MAX_CODE - 3]}..."
    return first if len(lines) == 1 else f"{first} ({len(lines)} lines)"
