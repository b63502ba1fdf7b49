"""Recording a session as it goes: every step is on disk before the next one begins."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import RLock, Thread
from typing import Any, Final, NamedTuple, TypeVar, cast, get_args

from weakincentives import __version__
from weakincentives.filesystem import (
    Filesystem,
    FilesystemEvent,
    FilesystemSnapshot,
    Observable,
    ReadableFilesystem,
    ReportsChanges,
    ReproducibleFiles,
)
from weakincentives.filesystem.host import SnapshotFilesystem
from weakincentives.history import (
    Delta,
    HistoryStore,
    LogError,
    PathChange,
    StepKind,
    StepObjects,
    StepRecord,
    TimelineHeader,
    find_delta,
)
from weakincentives.posix import CloseOnExit, display_paths, no_time_limit
from weakincentives.runtime import events
from weakincentives.runtime.deadlines import SYSTEM_CLOCK
from weakincentives.runtime.session import Session
from weakincentives.runtime.session.dump import CapturedSession, capture_sessions
from weakincentives.runtime.session.snapshots import StoredSession, StoredSlice, store_slices
from weakincentives.runtime.timeline.files import FileTracker
from weakincentives.runtime.timeline.timeline import Timeline, check_continuable
from weakincentives.runtime.timeline.title import step_actor, step_title
from weakincentives.serde import SerdeError, encode, to_builtins

_THREAD = "wink-recorder"
_MAX_VALUE = 256 * 1024  # bytes of a value in a step that is too large
_NO_ROOT = "/"  # the root if the workspace is not on disk
_log = logging.getLogger(__name__)

EventT = TypeVar("EventT")
_STEP_EVENTS: dict[type[Any], StepKind] = {
    events.PromptRendered: "prompt",
    events.ToolInvoked: "tool",
    events.PromptExecuted: "end",
}


def record_as(kind: StepKind) -> Callable[[type[EventT]], type[EventT]]:
    """Return a decorator: events of the class are steps of this kind in every recording."""

    def decorate(event_type: type[EventT]) -> type[EventT]:
        _STEP_EVENTS[event_type] = kind
        return event_type

    return decorate


class SessionRecorder(CloseOnExit):
    """Writes the steps of a session to a timeline, as they happen.

    A step is an event: a prompt, an answer of the model, a tool call. It is stored with what
    changed since the step before: files, slices and messages. A process that is killed loses
    at most the step in flight. If the disk is full, the session goes on and `problem` says why
    the recording does not.
    """

    path: Final[Path]
    """The directory of the history."""
    last: int
    """The number of the last step."""
    problem: str | None
    """Why nothing is recorded any more."""
    saved: dict[int, tuple[str, ...]]
    """What a person saved and a call replaced, by the step that replaced it."""

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
        undoes: int | None = None,
        leave_out: ReproducibleFiles | None = None,
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
            undoes: The step that the first one undoes.
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
        self.path = Path(path)
        self._now = now
        self._lock = RLock()
        self._first: Future[None] = Future()  # the first step is stored
        self._queue: list[_Step] = []  # until then
        self._messages: list[Any] = []
        self._recorded_messages: list[Any] = []
        self._sessions = _SessionTracker()
        self._branch = branch
        self.problem = None
        self.saved = {}
        self._parent: int | None = None
        self.last = 0
        self._tree: str | None = None
        self._files: FileTracker | None = None
        self._unsubscribe: list[Callable[[], object]] = []
        root = _NO_ROOT if workspace is None else workspace.root
        if at is None:
            self._store = HistoryStore.create(self.path, Path(root), durable=durable)
        else:
            check_continuable(self.path)
            self._store = HistoryStore(self.path, read_only=False, durable=durable)
        try:
            recorded = self._append_header(root) if at is None else self._continue_at(at)
            default = "recording began" if at is None else f"continued at step {at}"
            first = self._capture("start", title or default, details or {}, undoes)
            start = partial(self._start, first, workspace, recorded, base, leave_out)
            if wait:
                start()
                self._first.result()
            else:
                Thread(target=start, name=_THREAD, daemon=True).start()
            self._subscribe(filesystem)
            if self.saved:  # by a person, and replaced by a call before this process began
                self._record("files", "what an interrupted call had put there", {})
        except BaseException:
            self._stop_listening()
            self._store.close()
            raise

    def close(self) -> None:
        """Record what changed since the last step, and stop; idempotent."""
        was_recording = self._stop_listening()
        try:
            self._wait()
            with self._lock:
                has_files = self._files is not None and self._files.has_changes
                if was_recording and (has_files or self._messages != self._recorded_messages):
                    self._record("files", "changes after the last step", {})
        finally:
            self._store.close()

    def _append_header(self, root: str) -> None:
        generator = f"weakincentives {__version__}"
        header = TimelineHeader(self._session.session_id, self._now(), root, generator)
        self._store.append_header(encode(header))

    def _continue_at(self, at: int) -> SnapshotFilesystem:
        """Continue the history after a step; return the files of that step."""
        before = Timeline(self.path, self._store)
        self._tree = before.step(at).tree
        self._branch = before.name_branch(at, self._branch)
        if before.find_lost(at):  # only the files are known, so only they are compared
            self._sessions.compare(capture_sessions(self._session))
            self._sessions.accept()
        else:
            self._messages = list(before.messages(at))
            self._recorded_messages = list(self._messages)
        self._parent, self.last = at, before.last
        return before.files(at)

    def _start(
        self,
        first: "_Step",
        filesystem: ReadableFilesystem | None,
        recorded: SnapshotFilesystem | None,
        base: FilesystemSnapshot | None,
        leave_out: ReproducibleFiles | None,
    ) -> None:
        """Append the first step, and what was recorded meanwhile; `recorded` is continued."""
        is_new = recorded is None and filesystem is not None
        try:
            if filesystem is not None:
                self._files = FileTracker(filesystem, self._store, recorded, base, leave_out)
            with self._lock:
                self._append(first, is_stored=is_new)
                while self._queue:
                    self._append(self._queue.pop(0))
                self._first.set_result(None)
        except BaseException as error:  # noqa: BLE001 # raised in the thread that waits
            self._first.set_exception(error)

    def _wait(self) -> None:
        """Wait until the first step is stored; an error of that ends the recording."""
        error = self._first.exception()
        if error is not None and self.problem is None:
            self._stop(error)
            if not isinstance(error, OSError | ValueError):
                raise error  # a bug

    def _stop(self, error: BaseException) -> None:
        """Note why nothing is recorded any more."""
        fact = getattr(error, "strerror", None) or error
        self.problem = f"Recording stopped after step {self.last}: {fact}"
        _log.warning("%s", self.problem)

    def _subscribe(self, filesystem: Filesystem | None) -> None:
        handlers: list[tuple[type[Any], Callable[[Any], None]]] = [
            (events.ConversationStarted, self._start_conversation),
            (events.MessageAdded, self._add_message),
            *((each, self._mark) for each in get_args(FilesystemEvent)),
            *((each, self._handler(kind)) for each, kind in _STEP_EVENTS.items()),
        ]
        for event_type, handler in handlers:
            self._unsubscribe.append(self._session.bus.subscribe(event_type, handler))
        if isinstance(filesystem, Observable):
            self._unsubscribe.append(filesystem.subscribe(self._mark))
        if isinstance(filesystem, ReportsChanges):
            self._unsubscribe.append(filesystem.subscribe_changes(self._record_saved))

    def _stop_listening(self) -> bool:
        """Return whether this was recording until now."""
        unsubscribe, self._unsubscribe = self._unsubscribe, []
        for each in unsubscribe:
            each()
        return bool(unsubscribe)

    def _record_saved(self, changes: Sequence[PathChange]) -> None:
        """Record what a person saved where a call has just replaced it, before the call.

        Raises:
            OSError: It is not recorded, so the filesystem must keep it.
        """
        self._wait()
        if self._files is None:  # nobody knows what the files were
            raise OSError(self.problem)
        with self._lock:
            saved = self._files.find_saved(changes)
        if saved:
            paths = tuple(each.path for each in saved)
            self._record("files", "saved by the user during a call", {}, saved)
            if self.problem is not None:
                raise OSError(f"{self.problem}; the user saved {display_paths(paths)}")
            self.saved[self.last + 1] = paths

    def _mark(self, event: FilesystemEvent) -> None:
        self._wait()
        if self._files is not None:
            with self._lock:
                self._files.mark(event)

    def _start_conversation(self, event: events.ConversationStarted) -> None:
        with self._lock:
            self._messages = [_describe(to_builtins(each)) for each in event.messages]

    def _add_message(self, event: events.MessageAdded) -> None:
        with self._lock:
            self._messages.append(_describe(to_builtins(event.message)))

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
        saved: Sequence[PathChange] = (),
    ) -> None:
        """Append a step; a recording that fails does not end the session."""
        with self._lock:
            if kind == "prompt" and not self._first.done():
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

    def _capture(
        self, kind: StepKind, title: str, details: Mapping[str, Any], undoes: int | None = None
    ) -> "_Step":
        """Return a step with everything but the files as it is now."""
        step = StepRecord(
            number=0,
            parent=None,
            kind=kind,
            created_at=self._now(),
            title=title,
            details=details,
            undoes=undoes,
        )
        step = replace(step, actor=step_actor(step))
        return _Step(step, capture_sessions(self._session), list(self._messages))

    def _append(
        self, found: "_Step", *, is_stored: bool = False, saved: Sequence[PathChange] = ()
    ) -> None:
        """Append a step with what changed in the files, or only with what was `saved`.

        `is_stored` stores their whole tree.
        """
        objects = self._store.begin_objects()
        files, recorded = (), None if self._files is None else self._files.recorded
        try:
            if self._files is not None:
                files = self._files.collect(objects, saved, is_stored=is_stored)
                self._tree = self._files.recorded.tree_id
            step = replace(
                found.step,
                parent=self._parent,
                branch=self._branch,
                files=files,
                tree=self._tree,
                is_stored=is_stored,
            )
            try:
                self.last = self._store_step(step, found, objects)
            except LogError as error:
                _log.warning("A step is recorded without what takes most room: %s", error)
                self.last = self._store_step(step, found, objects, _MAX_VALUE)
        except BaseException:
            if self._files is not None and recorded is not None:
                self._files.recorded = recorded
            raise
        finally:
            objects.close()
        self._parent, self._branch = self.last, None

    def _store_step(
        self, step: StepRecord, found: "_Step", objects: StepObjects, max_size: int | None = None
    ) -> int:
        """Append a step; values of more than `max_size` bytes become a description."""
        messages = found.messages
        if max_size is not None:
            stored = {id(each): _describe(each, max_size) for each in messages}
            messages = [stored[id(each)] for each in messages]
            self._messages = [stored.get(id(each), each) for each in self._messages]
        step = replace(
            step,
            details=_describe(step.details, max_size),
            sessions=self._sessions.compare(found.sessions, max_size),
            messages=find_delta(self._recorded_messages, messages),
        )
        number = self._store.append(lambda number: encode(replace(step, number=number)), objects)
        self._sessions.accept()
        self._recorded_messages = messages
        return number


class _Step(NamedTuple):
    """A step before it is stored, with the sessions and the conversation at that moment."""

    step: StepRecord
    sessions: list[CapturedSession]
    messages: list[Any]


class _SessionTracker:
    """Collects what changed in a session and its descendants."""

    def __init__(self) -> None:
        """Begin with nothing; everything in a session is new."""
        self._known: Mapping[str, Any] = {}
        self._latest: Mapping[str, Any] = {}
        self._described: dict[int, tuple[Any, Any]] = {}  # items that cannot be stored, by identity

    def compare(
        self, captured: Sequence[CapturedSession], max_item: int | None = None
    ) -> Delta | None:
        """Return what changed since the last time; call `accept` once it is stored.

        An item that JSON cannot represent, or that takes more than `max_item` bytes, becomes a
        description of it.
        """
        self._latest = self._store(captured)
        delta = find_delta(self._known, self._latest)
        try:
            if max_item is None:
                encode(delta)
                return delta
        except SerdeError:
            pass
        for _, snapshot in captured:
            for slice_items in snapshot.slices.values():
                for item in slice_items:
                    stored = _describe(item, max_item)
                    if stored is not item:
                        self._described[id(item)] = item, stored
        self._latest = self._store(captured)
        return find_delta(self._known, self._latest)

    def accept(self) -> None:
        """Compare with the sessions of the last `compare` from now on."""
        self._known = self._latest

    def _store(self, captured: Sequence[CapturedSession]) -> dict[str, StoredSession]:
        root = captured[0][0]
        return {
            str(session.session_id): StoredSession(
                session.session_id,
                None if session is root or session.parent is None else session.parent.session_id,
                session.created_at,
                dict(session.tags),
                {
                    name: StoredSlice(each.log, self._describe_items(each.items))
                    for name, each in store_slices(snapshot).items()
                },
            )
            for session, snapshot in captured
        }

    def _describe_items(self, items: Sequence[Any]) -> Sequence[Any]:
        if not self._described:
            return items
        return tuple(self._described.get(id(each), (each, each))[1] for each in items)


def _describe(value: Any, max_size: int | None = None) -> Any:
    """Return a value, or a description if JSON cannot represent it in `max_size` bytes."""
    try:
        size = len(encode(value))
    except SerdeError as error:
        return {"not_serializable": _shorten(value), "reason": str(error)}
    if max_size is None or size <= max_size:
        return value
    return {"too_large": f"This took {size:,} bytes, more than a step can store"}


def _shorten(item: Any) -> str:
    """Return a description of an item; one that is nested too deeply has only its type."""
    try:
        return repr(item)
    except RecursionError:
        return type(item).__name__


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
