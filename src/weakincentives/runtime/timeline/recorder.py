"""Recording a session as it goes: every step is on disk before the next one begins."""

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Event, RLock, Thread
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, cast

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
    PermissionsChanged,
    ReadableFilesystem,
    ReportsChanges,
    StateReplaced,
    Viewable,
)
from weakincentives.filesystem.derived import DerivedFiles
from weakincentives.filesystem.host import SnapshotFilesystem, select_tree
from weakincentives.gitstore import ObjectError, hash_object
from weakincentives.history import PathChange
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
from weakincentives.runtime.timeline.steps import (
    FileChanges,
    ListChange,
    StepKind,
    StepRecord,
    TimelineError,
    TimelineHeader,
)
from weakincentives.runtime.timeline.store import HistoryStore, StepObjects
from weakincentives.runtime.timeline.timeline import Timeline
from weakincentives.runtime.timeline.title import step_title
from weakincentives.runtime.timeline.tracker import (
    CapturedSession,
    FileTracker,
    SavedFile,
    SessionTracker,
    storable,
)
from weakincentives.runtime.timeline.tree import WorkspaceTree
from weakincentives.serde import SerdeError, encode, to_builtins

_FILE_EVENTS = (
    FileWritten,
    FileDeleted,
    DirectoryCreated,
    PermissionsChanged,
    LinkCreated,
    EntryMoved,
    StateReplaced,
)
_THREAD = "wink-recorder"
_NO_ROOT = "/"  # the root if the workspace is not on disk
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
            path: The directory of the history: a new one, or that with the snapshots of
                `filesystem`, whose content is then not stored again. It must not have steps,
                unless `at` continues them.
            filesystem: The workspace; it must derive from `ReadableFilesystem`.
            at: Continue the timeline at this step. If steps follow it already, this is a
                new branch.
            branch: A name for the branch; by default `branch-` and the number of its first step.
            title: What happened since then, as the title of the first step.
            details: JSON values to keep in the first step, such as the options of the run.
            leave_out: Entries of the workspace that are not recorded. Its `keep` is called for
                each that a tool writes to.
            base: A snapshot of the workspace as it is now, in the same directory. The first step
                then has the files of this snapshot, and none is read again.
            wait: Whether the first step is on disk when this returns. Otherwise a thread writes
                it: a prompt does not wait for that, and whatever comes next does.
            durable: Whether each step is synced to disk, so that it survives a power failure.
            now: Returns the date of a step.

        Raises:
            FileExistsError: The directory has steps already.
            TimelineError: There is no such step, or the directory is something else.
            ValueError: The directory is inside the workspace.
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
        self._last = 0
        self._tree: str | None = None
        self._files: FileTracker | None = None
        self._unsubscribe: list[Callable[[], object]] = []
        root = _NO_ROOT if workspace is None else workspace.root
        earlier = self._create(root) if at is None else self._open_earlier(at, branch)
        try:
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
        """The directory of the history."""
        return self._path

    @property
    def last(self) -> int:
        """The number of the last step."""
        return self._last

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
            self._store.close()

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

    def _create(self, root: str) -> None:
        """Begin a new history."""
        self._store = HistoryStore.create(self._path, Path(root), durable=self._durable)
        header = TimelineHeader(
            self._session.session_id, self._now(), root, f"weakincentives {__version__}"
        )
        try:
            self._store.append_header(encode(header))
        except BaseException:
            self._store.close()
            raise

    def _open_earlier(self, at: int, branch: str | None) -> "_Earlier":
        """Open the history to continue it after a step; return the files of that step."""
        with Timeline(self._path) as before:
            before.step(at)
            self._branch = _check_branch(before, at, branch)
            self._messages = list(before.messages(at))
            self._recorded_messages = list(self._messages)
            self._parent, self._last = at, before.last
            self._tree = before.step(at).tree
            earlier = _Earlier(*before.tree_changes(at))
        self._store = HistoryStore(self._path, read_only=False, durable=self._durable)
        for _ in self._store.read_new():
            pass  # where the objects of the steps are
        return earlier

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
        if filesystem is not None:
            if earlier is None:
                self._start_files(filesystem, base, leave_out)
            else:
                self._continue_files(filesystem, earlier, leave_out)
        with self._lock:
            self._append(first, is_stored=earlier is None and filesystem is not None)
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
        self.problem = f"Recording stopped after step {self._last}: {fact}"
        _log.warning("%s", self.problem)

    def _start_files(
        self,
        filesystem: ReadableFilesystem,
        snapshot: FilesystemSnapshot | None,
        leave_out: DerivedFiles | None,
    ) -> None:
        """Track the files from a snapshot on, or else all of them as new ones."""
        tree = None
        if snapshot is not None and isinstance(filesystem, Viewable):
            try:
                tree = self._store_base(filesystem.view(snapshot), leave_out)
            except (ObjectError, SnapshotError) as error:
                _log.warning("Reading the files again to record them: %s", error)
        self._tree = tree
        known = WorkspaceTree(self._store.objects, tree)
        self._files = FileTracker(filesystem, known, leave_out)
        if tree is None:
            self._files.mark_all()

    def _store_base(self, files: Filesystem, leave_out: DerivedFiles | None) -> str | None:
        """Store the tree of a snapshot whose content is in this history; None if it is not."""
        repository = self._store.repository
        if repository is None or not isinstance(files, SnapshotFilesystem):
            return None
        repository.objects.refresh()
        if files.tree_id not in repository.objects:
            return None
        pack = repository.objects.begin_pack()
        tree = select_tree(files, leave_out, pack)
        self._store.keep(tree, pack)
        return tree

    def _continue_files(
        self,
        filesystem: ReadableFilesystem,
        earlier: "_Earlier",
        leave_out: DerivedFiles | None,
    ) -> None:
        """Track the files, some of which may differ from those that are recorded."""
        tree = WorkspaceTree(self._store.objects, earlier.tree)
        for changes in earlier.changes:
            tree.apply(changes)
        if leave_out is not None:
            for path in tree.paths():  # what is recorded stays so
                leave_out.keep(path)
        self._files = FileTracker(filesystem, tree, leave_out)
        self._files.mark_all()

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
        if isinstance(filesystem, ReportsChanges):
            self._unsubscribe.append(filesystem.subscribe_changes(self._record_saved))

    def _record_saved(self, changes: Sequence[PathChange]) -> None:
        """Record what a person saved where a call has just replaced it, before the call."""
        self._wait()
        with self._lock:
            saved = [] if self._files is None else self._files.find_saved(changes)
        if saved:
            self._record("files", "saved by the user during a call", {}, saved)

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

    def _record(
        self,
        kind: StepKind,
        title: str,
        details: Mapping[str, Any],
        saved: Sequence[SavedFile] = (),
    ) -> None:
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
                    self._append(self._capture(kind, title, details), saved=saved)
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

    def _append(
        self, found: "_Step", *, is_stored: bool = False, saved: Sequence[SavedFile] = ()
    ) -> None:
        """Append a step with what changed in the files, or only with what was `saved`.

        `is_stored` stores their whole tree.
        """
        objects = self._store.begin_objects()
        try:
            if saved and self._files is not None:
                files = self._files.put_saved(saved, objects)
                self._tree = self._files.tree.write(hash_object)
            else:
                files = self._collect(objects, is_stored=is_stored)
            step = StepRecord(
                number=0,
                parent=self._parent,
                kind=found.kind,
                created_at=found.created_at,
                title=found.title,
                branch=self._branch,
                details=found.details,
                files=files,
                sessions=self._sessions.compare(found.sessions),
                messages=self._message_change(found.messages),
                tree=self._tree,
                is_stored=is_stored,
            )
            self._last = self._store.append(partial(_encode_step, step), objects)
        finally:
            objects.close()
        self._parent, self._branch = self._last, None

    def _collect(self, objects: StepObjects, *, is_stored: bool) -> FileChanges:
        """Return what changed in the files; note the tree that they are now."""
        if self._files is None:
            return FileChanges()
        is_new = is_stored and self._tree is None
        if is_new:
            objects.begin()  # the repository must have all that the tree refers to
        files = self._files.collect(objects)
        if is_new:
            self._tree = self._files.tree.write(objects.begin().add)
            self._store.keep(self._tree, objects.take_pack())
            return FileChanges()
        if files:
            self._tree = self._files.tree.write(hash_object)
        return files

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


class _Earlier(NamedTuple):
    """The files of the step that a recording continues: a stored tree, and changes since."""

    tree: str | None
    changes: Sequence[FileChanges]


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
        TimelineError: There is no such step, or the name is taken.
        OSError: It cannot be written.
    """
    with Timeline(path) as before:
        parent = before.step(at)
        name = branch or f"branch-{before.last + 1}"
        _check_branch(before, at, name)
    step = StepRecord(0, at, "start", now(), f"branch {name}", branch=name, tree=parent.tree)
    store = HistoryStore(Path(path), read_only=False)
    try:
        return replace(step, number=store.append(partial(_encode_step, step)))
    finally:
        store.close()


def _check_branch(before: Timeline, at: int, branch: str | None) -> str | None:
    """Return the name of the branch that begins after a step; None if it goes on.

    Raises:
        TimelineError: The name is taken or invalid, or the recording can only be read.
    """
    if not before.path.is_dir():
        raise TimelineError(f"An exported recording cannot be continued: {str(before.path)!r}")
    if branch is not None and (not _BRANCH.fullmatch(branch) or branch in before.branches):
        fact = "exists already" if branch in before.branches else "has an invalid name"
        raise TimelineError(f"Branch {fact}: {branch!r} (letters, digits, '-', '_' and '.')")
    if branch is None and before.children(at):
        return f"branch-{before.last + 1}"
    return branch


def _encode_step(step: StepRecord, number: int) -> bytes:
    """Return a step with its number as JSON; details that have none become a description."""
    step = replace(step, number=number)
    try:
        return encode(step)
    except SerdeError:
        messages = step.messages
        if messages is not None:
            messages = replace(messages, items=storable(messages.items))
        [details] = storable([step.details])
        return encode(replace(step, details=details, messages=messages))


def _check_workspace(filesystem: Filesystem | None, path: Path) -> ReadableFilesystem | None:
    """Return the workspace.

    Raises:
        TypeError: It cannot be recorded.
        ValueError: The history is inside, so that every step would change what it records.
    """
    if filesystem is None:
        return None
    if not isinstance(filesystem, ReadableFilesystem):
        raise TypeError(f"Filesystem cannot be recorded: {filesystem!r}")
    root = filesystem.root
    if root != _NO_ROOT and os.path.realpath(path).startswith(f"{os.path.realpath(root)}/"):
        raise ValueError(
            f"History is inside the workspace that it records (choose another place): {str(path)!r}"
        )
    return filesystem
