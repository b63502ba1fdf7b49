"""Steps and checkpoints: what the history of a workspace keeps, in memory and in one record file.

Servers on one directory share the file. A step gets its number under the lock of the file, so
call 3 is the same call in every process.
"""

import errno
import fcntl
import os
import time
from collections import OrderedDict, deque
from collections.abc import Generator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock
from uuid import uuid4

from weakincentives.filesystem import FilesystemSnapshot
from weakincentives.filesystem.base import is_tool_output
from weakincentives.history import RecordLog
from weakincentives.posix import OpenDescriptor, fault_point, os_error, parents_of, write_all
from weakincentives.serde import SerdeError, decode, encode

MAX_STEPS = 10_000
"""Calls that can be undone; older ones are forgotten."""
MAX_CHECKPOINTS = 1_000
"""Checkpoints that are kept; older ones are forgotten."""
MAX_PATHS = 200
"""Paths that are remembered of one call, for lists."""
USER = "the user"
"""Who made a change that no call explains."""
OTHER_PROGRAM = "another session"
"""Who made a change through the filesystem that no call of this server explains."""
UNDO = "undo"
"""The name of the tool that undoes calls."""
_FILE = "history.log"
_SIGNATURE = b"wink-mcp 1\n"
_STEP, _CHECKPOINT = b"s", b"c"
_NOTE = ".running"
MAX_SLACK = 1_000
"""Steps too many in the file before it is compacted."""
MIN_ROOM = 1024 * 1024
"""Bytes that must be free where the steps are kept, or no call changes anything."""
_OTHER = ", other session"
_NOTE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A call that changed something, or failed.

    Args:
        number: Its number, counted from 1; the log gives it.
        client: Who made it: the name of the client, or `USER` or `OTHER_PROGRAM`.
        tool: The tool.
        before: The state before it; None if it failed.
        after: The state after it; None if it failed.
        paths: What it changed: the first paths, sorted.
        count: The number of paths that it changed.
        undoes: The calls that it undid, if it is an undo.
        is_interrupted: Whether its server was killed before it ended. The state after it is then
            that of the next start, so it includes what was changed in between.
        command: The number of the note of its start; 0 if there is none.
        is_rolled_back: Whether its rollback follows, as the next step of the same command.
        created_at: When it began; a change outside of all calls, when it was found.
        session: The server that ran it.
    """

    number: int = 0
    client: str
    tool: str
    before: FilesystemSnapshot | None = None
    after: FilesystemSnapshot | None = None
    paths: tuple[str, ...] = ()
    count: int = 0
    undoes: tuple[int, ...] = ()
    is_interrupted: bool = False
    command: int = 0
    is_rolled_back: bool = False
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    session: str = ""

    @property
    def is_undo(self) -> bool:
        """Whether it undid other calls."""
        return self.tool == UNDO

    @property
    def states(self) -> tuple[FilesystemSnapshot, FilesystemSnapshot]:
        """The states before and after it, if it changed something."""
        assert self.before is not None
        assert self.after is not None
        return self.before, self.after

    def as_failed(self) -> "Step":
        """Return the step of the same call without changes."""
        return replace(self, before=None, after=None, undoes=(), paths=(), count=0)

    def reverse(self) -> "Step":
        """Return the undo of this step."""
        step = replace(self, tool=UNDO, undoes=(self.number,), is_rolled_back=False)
        return replace(step, before=self.after, after=self.before)

    def with_paths(self, changed: AbstractSet[str]) -> "Step":
        """Return the step with the paths that it changed."""
        parents = {parent for path in changed for parent in parents_of(path)}
        paths = sorted(path for path in changed - parents if not is_tool_output(path))
        return replace(self, paths=tuple(paths[:MAX_PATHS]), count=len(paths))

    def __str__(self) -> str:
        """Return the call in a few words."""
        return f"call {self.number} ({self.tool} by {self.client})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A state with a name, as clients see it.

    Args:
        name: Its name.
        note: What its client wrote about it.
        call: The number of the last call before it; 0 if there is none.
        client: Who made it; null for the start.
        time: When it was made.
    """

    name: str
    note: str = ""
    call: int
    client: str | None = None
    time: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __str__(self) -> str:
        """Return the checkpoint in a line."""
        who = "" if self.client is None else f" by {self.client}"
        note = f": {self.note}" if self.note else ""
        when = self.time.strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.name}, after call {self.call}, {when}{who}{note}"


@dataclass(frozen=True, slots=True)
class KeptState:
    """A checkpoint, its state, and the server that made it."""

    checkpoint: Checkpoint
    snapshot: FilesystemSnapshot
    session: str


class StepLog:
    """The steps and checkpoints of a workspace; thread-safe.

    Without a directory they are in memory. With one they are also in its record file, where other
    servers and later sessions find them.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """Keep the record file in `directory`, which is created with the first record."""
        self.session: str = uuid4().hex
        self._directory = directory
        self._file: RecordLog | None = None
        self._lock = RLock()
        self._steps: deque[Step] = deque(maxlen=MAX_STEPS)
        self._checkpoints: OrderedDict[str, KeptState] = OrderedDict()
        self._count = 0  # steps in the file, about
        self._note: tuple[Path, int] | None = None  # of the call that runs; the file is locked

    # --- reading ---

    @property
    def steps(self) -> Sequence[Step]:
        """The steps, the oldest first, with those that other servers have added."""
        with self._lock:
            self._refresh()
            return tuple(self._steps)

    @property
    def checkpoints(self) -> Sequence[KeptState]:
        """The checkpoints, the oldest first."""
        with self._lock:
            self._refresh()
            return tuple(self._checkpoints.values())

    @property
    def last_number(self) -> int:
        """The number of the last step."""
        steps = self.steps
        return steps[-1].number if steps else 0

    @property
    def problem(self) -> str | None:
        """What cannot be read of the file; None if all can."""
        return None if self._file is None else self._file.problem

    # --- writing ---

    def check_room(self) -> None:
        """Look whether the next call can be recorded, before it changes something.

        Raises:
            OSError: The disk is full.
        """
        if self._directory is None:
            return
        place = next(each for each in (self._directory, *self._directory.parents) if each.exists())
        found = os.statvfs(place)
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        if found.f_blocks and blocks * found.f_frsize < MIN_ROOM:
            raise os_error(errno.ENOSPC, str(place))

    def add(self, step: Step) -> Step:
        """Add a step of this session; return it with its number.

        Raises:
            OSError: It could not be written, so it has no number.
            LogError: The same.
        """
        with self._lock:
            step = replace(step, number=self.last_number + 1, session=self.session)
            if self._directory is not None:
                file = self._open(self._directory)

                def make(number: int) -> bytes:
                    self._take(file)  # what others have added comes first
                    return encode(replace(step, number=number))

                step = replace(step, number=file.append(_STEP, make))
            self._keep(step)
            if self._file is not None and self._count > MAX_STEPS + MAX_SLACK:
                self._compact(self._file)
        return step

    def add_checkpoint(self, state: KeptState) -> None:
        """Add a checkpoint.

        Raises:
            OSError: It could not be written.
            LogError: The same.
        """
        with self._lock:
            if self._directory is not None:
                self._open(self._directory).append(_CHECKPOINT, lambda _: encode(state))
            self._keep_checkpoint(state)

    def begin(self, step: Step) -> int:
        """Note a call that starts, in case that the server is killed; return its number.

        Raises:
            OSError: It could not be written.
        """
        if self._directory is None:
            return 0
        self._directory.mkdir(0o700, parents=True, exist_ok=True)
        number = time.time_ns()
        path = self._directory / f"{number}{_NOTE}"
        descriptor = os.open(path, _NOTE_FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        self._note = path, descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # gone when this process is
            fault_point("note.writing")
            write_all(descriptor, encode(step))
        except BaseException:
            self.end()
            raise
        return number

    def end(self, *, is_cut_off: bool = False) -> None:
        """Remove the note of a call that has ended; leave it for the next start if it was cut."""
        if self._note is not None:
            path, descriptor = self._note
            self._note = None
            if not is_cut_off:
                path.unlink(missing_ok=True)
            os.close(descriptor)

    def interrupted(self) -> Iterator[Step]:
        """Yield the calls whose server was killed before they ended, until they are added.

        Of one whose rollback alone is missing, the step that was added is yielded.
        """
        notes = [] if self._directory is None else sorted(self._directory.glob(f"*{_NOTE}"))
        added = {step.command: step for step in self.steps} if notes else dict[int, Step]()
        for path in notes:
            with suppress(BlockingIOError, FileNotFoundError), _lock_note(path) as data:
                number = int(path.name.removesuffix(_NOTE))
                with suppress(SerdeError):  # torn: the call had not begun
                    step = added.get(number) or decode(data, Step)
                    if step.number == 0 or step.is_rolled_back:
                        yield replace(
                            step, client=_other(step.client), command=number, is_interrupted=True
                        )
                path.unlink()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    # --- the file ---

    def _open(self, directory: Path) -> RecordLog:
        if self._file is None:
            directory.mkdir(0o700, parents=True, exist_ok=True)
            self._file = RecordLog(directory / _FILE, _SIGNATURE)
        return self._file

    def _refresh(self) -> None:
        """Read what other servers have added."""
        if self._directory is not None and (
            self._file is not None or (self._directory / _FILE).exists()
        ):
            self._take(self._open(self._directory))

    def _take(self, file: RecordLog) -> None:
        for record in file.read_new():
            with suppress(SerdeError):  # of a later version
                if record.kind == _STEP:
                    step = decode(record.payload, Step)
                    self._keep(replace(step, client=_other(step.client)))
                elif record.kind == _CHECKPOINT:
                    self._keep_checkpoint(decode(record.payload, KeptState))

    def _keep(self, step: Step) -> None:
        self._steps.append(step)
        self._count += 1

    def _keep_checkpoint(self, state: KeptState) -> None:
        self._checkpoints[state.checkpoint.name] = state
        self._checkpoints.move_to_end(state.checkpoint.name)
        if len(self._checkpoints) > MAX_CHECKPOINTS:
            self._checkpoints.popitem(last=False)

    def _compact(self, file: RecordLog) -> None:
        """Drop old records from the file; one that cannot be written stays as it is."""
        first = {
            _STEP: file.last(_STEP) - MAX_STEPS + 1,
            _CHECKPOINT: file.last(_CHECKPOINT) - MAX_CHECKPOINTS + 1,
        }
        with suppress(OSError):
            file.compact(lambda record: record.number >= first.get(record.kind, 1))
        self._count = MAX_STEPS


@contextmanager
def _lock_note(path: Path) -> Generator[bytes, None, None]:
    """Hold the lock of a note, and yield its content.

    Raises:
        BlockingIOError: Its server runs, or is about to write it.
        FileNotFoundError: Another server has dealt with it.
    """
    with OpenDescriptor(os.open(path, _NOTE_FLAGS)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        if not found.st_size:
            raise BlockingIOError(f"Not written yet: {path.name}")
        if not found.st_nlink:
            raise FileNotFoundError(f"Removed meanwhile: {path.name}")
        yield os.read(descriptor, found.st_size)


def find_undone(steps: Sequence[Step]) -> dict[int, int]:
    """Return which calls are undone, and by which; an undo that is undone itself does not count."""
    undone: dict[int, int] = {}
    for step in reversed(steps):
        if step.number not in undone:
            undone.update({number: step.number for number in step.undoes if number not in undone})
    return undone


def _other(client: str) -> str:
    """Return the name of a client, different from those of this session."""
    return client if client in (USER, OTHER_PROGRAM) else client.removesuffix(_OTHER) + _OTHER
