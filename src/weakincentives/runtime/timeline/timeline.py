"""A recorded timeline: its steps, and the files, sessions and conversation at each of them."""

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from uuid import UUID
from zlib import decompressobj
from zlib import error as zlib_error

from weakincentives.filesystem import DEFAULT_LIMITS, Diff, Limits, diff
from weakincentives.filesystem.archive import ArchiveError
from weakincentives.filesystem.archive.format import check_paths, check_target
from weakincentives.filesystem.base import content_hash
from weakincentives.runtime.events import EventBus
from weakincentives.runtime.session import Session, SnapshotFormatError
from weakincentives.runtime.session.snapshots import Types, Unknown
from weakincentives.runtime.timeline.base import BaseFiles
from weakincentives.runtime.timeline.chunks import CHUNK_SIZE, ChunkReader
from weakincentives.runtime.timeline.filesystem import StepFilesystem
from weakincentives.runtime.timeline.records import (
    CHUNK,
    HEADER,
    SIGNATURE,
    STEP,
    RecordReader,
    TimelineError,
)
from weakincentives.runtime.timeline.sessions import rebuild
from weakincentives.runtime.timeline.steps import (
    BaseRecord,
    Entry,
    FileChanges,
    StepRecord,
    StoredSession,
    TimelineHeader,
    apply_sessions,
)
from weakincentives.serde import SerdeError, decode

SUFFIX = ".timeline"
"""The suffix of the file."""
MAIN = "main"
"""The name of the first branch."""
_MAX_STEP_BYTES = 1024**3
_CACHED_STATES = 4


@dataclass(frozen=True, slots=True)
class _State:
    """Everything at one step; nothing in it is changed once it is made."""

    entries: Mapping[str, Entry]
    sessions: Mapping[UUID, StoredSession]
    messages: Sequence[Any]


_EMPTY = _State({}, {}, ())


class Timeline:
    """The steps of a recorded session, from a file that may still be growing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a timeline.

        A file that was cut off or damaged is read up to the last whole step before the damage;
        `problem` says what is missing.

        Raises:
            TimelineError: It is not a timeline, or its first record is damaged.
            OSError: It cannot be read.
        """
        self.path: Path = Path(path)
        self._reader = RecordReader(self.path)
        self._chunks = ChunkReader(self._reader)
        self._steps: list[StepRecord] = []
        self._states: OrderedDict[int, _State] = OrderedDict()
        self._end = len(SIGNATURE)
        self.problem: str | None = None
        try:
            self.header: TimelineHeader = self._read_header()
            self.refresh()
        except BaseException:
            self._reader.close()
            raise

    @property
    def steps(self) -> Sequence[StepRecord]:
        """The steps, in the order in which they were recorded."""
        return tuple(self._steps)

    @property
    def is_recording(self) -> bool:
        """Whether a process is recording to it now."""
        return self._reader.is_locked

    @property
    def last(self) -> int:
        """The number of the last step.

        Raises:
            TimelineError: There are no steps.
        """
        if not self._steps:
            raise TimelineError(f"Timeline has no steps: {str(self.path)!r}")
        return len(self._steps)

    def refresh(self) -> int:
        """Read the steps that were recorded since; return how many."""
        before = len(self._steps)
        start, size = self._end, self._reader.size
        problem = None
        for record in self._reader.scan(start):
            start = record.end
            if record.kind != STEP:
                continue
            try:
                self._steps.append(self._read_step(record.offset))
            except TimelineError as error:
                problem = f"Step {len(self._steps) + 1} and everything after it is lost: {error}"
                break
            self._end = start
        if problem is None and start < size:
            problem = (
                f"The last {size - start} bytes are not a whole record: the step in flight when"
                f" the recording stopped, or damage; {len(self._steps)} steps are intact"
            )
        self.problem = problem
        return len(self._steps) - before

    def step(self, number: int) -> StepRecord:
        """Return the step with this number.

        Raises:
            TimelineError: There is none.
        """
        if not 1 <= number <= len(self._steps):
            raise TimelineError(
                f"There is no step {number}: {str(self.path)!r} has steps 1 to {len(self._steps)}"
            )
        return self._steps[number - 1]

    def ancestors(self, number: int) -> list[int]:
        """Return the steps that lead to a step, from the first to the step itself."""
        chain: list[int] = []
        current: int | None = number
        while current is not None:
            chain.append(current)
            current = self.step(current).parent
        return chain[::-1]

    def children(self, number: int) -> tuple[int, ...]:
        """Return the steps that follow a step; several are branches."""
        return tuple(each.number for each in self._steps if each.parent == number)

    def leaves(self) -> tuple[int, ...]:
        """Return the last step of every branch."""
        parents = {each.parent for each in self._steps}
        return tuple(each.number for each in self._steps if each.number not in parents)

    @property
    def branches(self) -> Mapping[str, int]:
        """The newest step of every branch, by its name; the first branch is `main`."""
        names: list[str] = []
        newest: dict[str, int] = {}
        for step in self._steps:
            above = MAIN if step.parent is None else names[step.parent - 1]
            names.append(step.branch or above)
            newest[names[-1]] = step.number
        return newest

    def branch(self, name: str) -> int:
        """Return the newest step of the branch with this name.

        Raises:
            TimelineError: There is none.
        """
        found = self.branches.get(name)
        if found is None:
            known = ", ".join(map(repr, self.branches))
            raise TimelineError(f"There is no branch {name!r}: {str(self.path)!r} has {known}")
        return found

    def find_end(self) -> int:
        """Read what was recorded since; return the offset where a recording continues."""
        self.refresh()
        return self._end

    def entries(self, number: int) -> Mapping[str, Entry]:
        """Return the entries of the workspace after a step, by path."""
        return self._state(number).entries

    def files(self, number: int, *, limits: Limits = DEFAULT_LIMITS) -> StepFilesystem:
        """Return the files as they were after a step."""
        return StepFilesystem(
            self._state(number).entries,
            self._chunks,
            root=self.header.root,
            date=self.step(number).created_at,
            limits=limits,
        )

    def sessions(self, number: int) -> Mapping[UUID, StoredSession]:
        """Return the sessions after a step as data, parents first."""
        return self._state(number).sessions

    def session(
        self,
        number: int,
        types: Types = (),
        *,
        unknown: Unknown = "error",
        bus: EventBus | None = None,
    ) -> Session:
        """Return the session after a step, with its children; register its reducers again.

        Args:
            number: The step.
            types: The types of the slices, as for `load_session`.
            unknown: What to do with a slice whose type is neither given nor imported, or whose
                items do not match it: `error`, or `data`, which loads its items as
                `UnknownItem`.
            bus: The bus of the session; its children get new ones.

        Raises:
            TimelineError: There is no such step, or a slice cannot be loaded.
        """
        self.step(number)
        try:
            return rebuild(list(self.sessions(number).values()), types, unknown, bus)
        except SnapshotFormatError as error:
            raise TimelineError(
                f"Session of step {number}: {error}: {str(self.path)!r} (pass the type in types=,"
                " import its module, or load it as data: unknown='data')"
            ) from error

    def messages(self, number: int) -> Sequence[Any]:
        """Return the conversation after a step, as JSON values."""
        return self._state(number).messages

    def diff(self, before: int, after: int, *, renames: bool = True) -> Diff:
        """Return what changed in the files from one step to another, on any branches."""
        return diff(
            self.files(before),
            self.files(after),
            path=self._paths_between(before, after) or [],
            renames=renames,
        )

    def changes(self, number: int) -> Diff:
        """Return what a step changed in the files; the first one changed nothing."""
        parent = self.step(number).parent
        return self.diff(number if parent is None else parent, number)

    def verify(self) -> list[str]:
        """Read every record; return what is damaged."""
        found = [] if self.problem is None else [self.problem]
        for record in self._reader.scan():
            try:
                if record.kind == CHUNK:
                    self._chunks.load(record.offset)
                else:
                    self._reader.read(record.offset, record.kind)
            except TimelineError as error:
                found.append(str(error))
        return found + self._verify_base()

    def content_hash(self, entry: Entry) -> str | None:
        """Return the SHA-256 of a file's content; None if the entry has none.

        Raises:
            TimelineError: The content is damaged.
        """
        if entry.blob is None or self._chunks.base is None:
            return entry.sha256
        with self._chunks.base.open(entry.blob) as content:
            return content_hash(content)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._reader.close()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @property
    def chunks(self) -> ChunkReader:
        """Reads the content of files."""
        return self._chunks

    def _verify_base(self) -> list[str]:
        """Read every file of the base; return what is damaged."""
        found: list[str] = []
        if self._chunks.base is not None and self._steps:
            for entry in self._steps[0].files.entries:
                try:
                    self.content_hash(entry)
                except TimelineError as error:
                    found.append(str(error))
        return found

    def _paths_between(self, before: int, after: int) -> list[str]:
        """Return the paths that any step between two steps changed, and that one of them has."""
        first, second = set(self.ancestors(before)), set(self.ancestors(after))
        changed = {path for number in first ^ second for path in self.step(number).files.paths}
        sides = self.entries(before), self.entries(after)
        return sorted(path for path in changed if any(path in side for side in sides))

    def _state(self, number: int) -> _State:
        found = self._states.get(number)
        if found is None:
            found = self._compute(number)
            self._states[number] = found
            if len(self._states) > _CACHED_STATES:
                self._states.popitem(last=False)
        self._states.move_to_end(number)
        return found

    def _compute(self, number: int) -> _State:
        """Return the state after a step, from the nearest ancestor whose state is known."""
        pending: list[StepRecord] = []
        current: int | None = number
        while current is not None and current not in self._states:
            step = self.step(current)
            pending.append(step)
            current = step.parent
        base = _EMPTY if current is None else self._states[current]
        entries = dict(base.entries)
        sessions, messages = base.sessions, base.messages
        for step in reversed(pending):
            step.files.apply(entries)
            if step.sessions:
                sessions = apply_sessions(sessions, step.sessions)
            if step.messages is not None:
                messages = step.messages.apply(messages)
        return _State(entries, sessions, messages)

    def _read_header(self) -> TimelineHeader:
        record = next(self._reader.scan(), None)
        if record is None or record.kind != HEADER:
            raise TimelineError(f"Timeline is empty or damaged: {str(self.path)!r}")
        self._end = record.end
        try:
            return decode(self._reader.read(record.offset, HEADER), TimelineHeader)
        except SerdeError as error:
            raise TimelineError(
                f"Header of the timeline is damaged: {error}: {str(self.path)!r}"
            ) from error

    def _read_step(self, offset: int) -> StepRecord:
        packed = self._reader.read(offset, STEP)
        inflater = decompressobj()
        try:
            data = inflater.decompress(packed, _MAX_STEP_BYTES)
            if not inflater.eof:
                raise TimelineError(f"Step at byte {offset} is cut off or too large")
            step = decode(data, StepRecord)
            if step.base is not None:
                step = self._read_base(step, step.base)
            _check_step(step, len(self._steps) + 1)
        except (SerdeError, ArchiveError, zlib_error) as error:
            raise TimelineError(f"Step at byte {offset} is damaged: {error}") from error
        return step

    def _read_base(self, step: StepRecord, record: BaseRecord) -> StepRecord:
        """Return the first step with its files."""
        if self._steps:
            raise TimelineError(f"Step {step.number} has a base, but is not the first")
        base = BaseFiles(self._reader, record, self.header.root)
        files = FileChanges(step.files.removed, (*base.entries(), *step.files.entries))
        self._chunks.base = base
        return replace(step, files=files)


def _check_step(step: StepRecord, number: int) -> None:
    """Raise if a step cannot follow those before it, or names what cannot be in a workspace."""
    if step.number != number or not (
        (step.parent is None) if number == 1 else (step.parent or 0) in range(1, number)
    ):
        raise TimelineError(f"Step {number} does not follow the steps before it")
    _check_date(step.created_at)
    entries = step.files.entries
    paths = [each.path for each in entries] + list(step.files.removed)
    if paths:
        check_paths(paths)
    for each in entries:
        if each.target is not None:
            check_target(each.target, each.path)
        if (each.kind == "link") != (each.target is not None):
            raise TimelineError(f"Link and target do not match: {each.path!r}")
        if each.chunks and not (
            (len(each.chunks) - 1) * CHUNK_SIZE < each.size <= len(each.chunks) * CHUNK_SIZE
        ):
            raise TimelineError(f"Size and content do not match: {each.path!r}")


def _check_date(date: datetime) -> None:
    if date.tzinfo is None:
        raise TimelineError(f"Date has no time zone: {date.isoformat()!r}")
