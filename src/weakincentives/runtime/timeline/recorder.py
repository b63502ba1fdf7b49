"""Recording a session as it goes: every step is on disk before the next one begins."""

import logging
import os
import re
from collections.abc import Callable, Mapping, MutableMapping
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Event, RLock, Thread
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast
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
from weakincentives.posix import no_time_limit
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
from weakincentives.runtime.timeline.title import step_title
from weakincentives.runtime.timeline.tracker import (
    CapturedSession,
    FileTracker,
    SessionTracker,
)
from weakincentives.serde import encode, to_builtins

_FILE_EVENTS = (
    FileWritten,
    FileDeleted,
    DirectoryCreated,
    LinkCreated,
    EntryMoved,
    StateReplaced,
)
_THREAD = "wink-recorder"
_NO_ROOT = "/"  # the root if the workspace is not on disk
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
        title: str | None = None,
        details: Mapping[str, Any] | None = None,
        leave_out: DerivedFiles | None = None,
        base: FilesystemSnapshot | None = None,
        wait: bool = True,
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
            title: What happened since then, as the title of the first step.
            details: JSON values to keep in the first step, such as the options of the run.
            leave_out: Entries of the workspace that are not recorded. Its `keep` is called for
                each that a tool writes to.
            base: A snapshot of the workspace as it is now. The first step then has the files of
                this snapshot, and none is read again.
            wait: Whether the first step is on disk when this returns. Otherwise a thread writes
                it: a prompt does not wait for that, and whatever comes next does.
            durable: Whether each step is synced to disk, so that it survives a power failure.
            now: Returns the date of a step.

        Raises:
            FileExistsError: The file exists.
            TimelineError: There is no such step, or another process is recording to the file.
            ValueError: The file is inside the workspace.
            OSError: It cannot be written.
        """
        workspace = _check_workspace(filesystem, Path(path))
        self._session = session
        self._path = Path(path)
        self._durable = durable
        self._now = now
        self._lock = RLock()
        self._started = Event()
        self._failure: BaseException | None = None
        self._queue: list[_Step] = []  # until the first step is stored
        self._messages: list[Any] = []
        self._recorded_messages: list[Any] = []
        self._sessions = SessionTracker(session)
        self._branch = branch
        self.problem: str | None = None
        self._parent: int | None = None
        self._count = 0
        self._files: FileTracker | None = None
        self._unsubscribe: list[Callable[[], object]] = []
        self._reader: RecordReader | None = None
        earlier = None if at is None else self._open_earlier(at, branch)
        if earlier is None:
            self._writer = RecordWriter(self._path)
        try:
            if earlier is None:
                self._write_header(_NO_ROOT if workspace is None else workspace.root)
            self._reader = RecordReader(self._path)
            default = "recording began" if at is None else f"continued at step {at}"
            first = self._capture("start", title or default, details or {})
            start = partial(self._start, first, workspace, base, leave_out, earlier)
            if wait:
                start()
            else:
                Thread(target=self._attempt, args=(start,), name=_THREAD, daemon=True).start()
            self._subscribe(filesystem)
        except BaseException:
            self._started.set()
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
        try:
            self._wait()
            with self._lock:
                if was_recording and self._has_changes():
                    self._record("files", "changes after the last step", {})
        finally:
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

    def _open_earlier(self, at: int, branch: str | None) -> "_Earlier":
        """Open the timeline to continue it after a step; return the files of that step."""
        with Timeline(self._path) as before:
            self._writer, self._branch = _open_branch(before, at, branch)
            self._messages = list(before.messages(at))
            self._recorded_messages = list(self._messages)
            self._parent, self._count = at, before.last
            return _Earlier(dict(before.entries(at)), before.step(1).base)

    def _attempt(self, start: Callable[[], None]) -> None:
        """Store the first step, in a thread."""
        try:
            start()
        except BaseException as error:  # noqa: BLE001 # raised in the thread that waits
            self._failure = error
        finally:
            self._started.set()

    def _start(
        self,
        first: "_Step",
        filesystem: ReadableFilesystem | None,
        base: FilesystemSnapshot | None,
        leave_out: DerivedFiles | None,
        earlier: "_Earlier | None",
    ) -> None:
        """Append the first step, and what was recorded meanwhile."""
        written = None
        if filesystem is not None and earlier is None:
            written = self._start_files(filesystem, base, leave_out)
        elif filesystem is not None and earlier is not None:
            self._continue_files(filesystem, earlier, leave_out)
        with self._lock:
            self._append(first, written)
            for step in self._queue:
                self._append(step)
            self._queue.clear()
            self._started.set()

    def _wait(self) -> None:
        """Wait until the first step is stored; an error of that ends the recording."""
        self._started.wait()
        failure, self._failure = self._failure, None
        if failure is not None:
            self._stop(failure)
            if not isinstance(failure, OSError | ValueError):
                raise failure  # a bug

    def _stop(self, error: BaseException) -> None:
        """Note why nothing is recorded any more."""
        fact = getattr(error, "strerror", None) or error
        self.problem = f"Recording stopped after step {self._count}: {fact}"
        _log.warning("%s", self.problem)

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
        earlier: "_Earlier",
        leave_out: DerivedFiles | None,
    ) -> None:
        """Track the files, some of which may differ from those that are recorded."""
        if leave_out is not None:
            for path in earlier.entries:  # what is recorded stays so
                leave_out.keep(path)
        chunks, base = self._open_chunks(filesystem, earlier.base)
        self._files = FileTracker(filesystem, chunks, earlier.entries, leave_out, base)
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
        self._wait()
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
            self._record(kind, step_title(kind, details), details)

        return record

    def _record(self, kind: StepKind, title: str, details: Mapping[str, Any]) -> None:
        """Append a step; a recording that fails does not end the session."""
        with self._lock:
            if kind == "prompt" and not self._started.is_set():
                self._queue.append(self._capture(kind, title, details))
                return
        self._wait()
        with self._lock:
            if self.problem is not None:
                return
            try:
                with no_time_limit():  # a call that was cancelled is recorded too
                    self._append(self._capture(kind, title, details))
            except (OSError, ValueError) as error:
                self._stop(error)

    def _has_changes(self) -> bool:
        files = self._files.has_changes if self._files is not None else False
        return files or self._messages != self._recorded_messages

    def _capture(self, kind: StepKind, title: str, details: Mapping[str, Any]) -> "_Step":
        """Return a step with everything but the files as it is now."""
        return _Step(
            kind, title, details, self._now(), self._sessions.capture(), list(self._messages)
        )

    def _append(self, found: "_Step", base: BaseRecord | None = None) -> None:
        files = FileChanges() if self._files is None else self._files.collect()
        step = StepRecord(
            number=self._count + 1,
            parent=self._parent,
            kind=found.kind,
            created_at=found.created_at,
            title=found.title,
            branch=self._branch,
            details=found.details,
            files=files,
            sessions=self._sessions.compare(found.sessions),
            messages=self._message_change(found.messages),
            base=base,
        )
        self._writer.append(STEP, compress(encode(step), _LEVEL))
        if self._durable:
            self._writer.sync()
        self._count += 1
        self._parent = self._count
        self._branch = None

    def _message_change(self, now: list[Any]) -> ListChange | None:
        before = self._recorded_messages
        keep = 0
        for old, new in zip(before, now, strict=False):
            if old is not new and old != new:
                break
            keep += 1
        if keep == len(before) == len(now):
            return None
        self._recorded_messages = now
        return ListChange(keep, tuple(now[keep:]))

    def _write_header(self, root: str) -> None:
        header = TimelineHeader(
            self._session.session_id, self._now(), root, f"weakincentives {__version__}"
        )
        self._writer.append(HEADER, encode(header))


class _Earlier(NamedTuple):
    """The files of the step that a recording continues."""

    entries: dict[str, Entry]
    base: BaseRecord | None


class _Step(NamedTuple):
    """A step before it is stored: what happened, and everything but the files at that moment."""

    kind: StepKind
    title: str
    details: Mapping[str, Any]
    created_at: datetime
    sessions: list[CapturedSession]
    messages: list[Any]


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


def _check_workspace(filesystem: Filesystem | None, path: Path) -> ReadableFilesystem | None:
    """Return the workspace.

    Raises:
        TypeError: It cannot be recorded.
        ValueError: The timeline is inside, so that every step would change what it records.
    """
    if filesystem is None:
        return None
    if not isinstance(filesystem, ReadableFilesystem):
        raise TypeError(f"Filesystem cannot be recorded: {filesystem!r}")
    root = filesystem.root
    if root != _NO_ROOT and os.path.realpath(path).startswith(f"{os.path.realpath(root)}/"):
        raise ValueError(
            "Timeline is inside the workspace that it records (choose another place):"
            f" {str(path)!r}"
        )
    return filesystem
