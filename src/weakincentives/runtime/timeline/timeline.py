"""A recorded timeline: its steps, and the files, sessions and conversation at each of them."""

import os
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import DEFAULT_LIMITS, Diff, Limits, diff
from weakincentives.filesystem.archive import ArchiveError
from weakincentives.filesystem.archive.format import check_paths, check_target
from weakincentives.filesystem.host import SnapshotFilesystem
from weakincentives.gitstore import (
    DIRECTORY,
    ObjectError,
    ObjectStore,
    hash_object,
    is_object_id,
)
from weakincentives.history.log import LogError
from weakincentives.runtime.events import EventBus
from weakincentives.runtime.session import Session, SnapshotFormatError
from weakincentives.runtime.session.snapshots import Types, Unknown
from weakincentives.runtime.timeline.sessions import rebuild
from weakincentives.runtime.timeline.steps import (
    Entry,
    FileChanges,
    StepRecord,
    StoredSession,
    TimelineError,
    TimelineHeader,
    apply_sessions,
)
from weakincentives.runtime.timeline.store import HistoryStore, StoredStep
from weakincentives.runtime.timeline.tree import Directory, WorkspaceTree
from weakincentives.serde import SerdeError, decode

SUFFIX = ".timeline"
"""The suffix of an exported history, which is one file."""
MAIN = "main"
"""The name of the first branch."""
_CACHED_STATES = 4
_MAX_COMPUTED = 128 * 1024 * 1024  # bytes of trees in memory
_MAX_ENTRIES = 1_000_000  # in a tree from elsewhere, which may be crafted


@dataclass(frozen=True, slots=True)
class _State:
    """Session and conversation at one step; nothing in it is changed once it is made."""

    sessions: Mapping[UUID, StoredSession]
    messages: Sequence[Any]


_EMPTY = _State({}, ())


class Timeline:
    """The steps of a recorded session: a directory that may still be growing, or a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a history.

        One that was cut off or damaged is read as far as possible; `problem` says what is missing.

        Raises:
            TimelineError: It is not a history, or its header is damaged.
            OSError: It cannot be read.
        """
        self.path: Path = Path(path)
        self._store = HistoryStore(self.path)
        self._steps: dict[int, StepRecord] = {}
        self._states: OrderedDict[int, _State] = OrderedDict()
        self._trees: set[str] = set()  # those whose objects are computed
        self._directories: dict[str, Directory] = {}
        self._computed_size = 0
        self._counted: set[str] = set()
        self._damage: list[str] = []
        try:
            self.refresh()
            self.header: TimelineHeader = self._read_header()
        except BaseException:
            self._store.close()
            raise

    @property
    def problem(self) -> str | None:
        """What is missing because a file was cut off or damaged."""
        found = [*self._damage, self._store.log.problem]
        if not self._store.is_complete and found == [None]:
            found = ["the file is cut off after its last whole record"]
        text = "; ".join(each for each in found if each is not None)
        return f"{text}; {len(self._steps)} steps are intact" if text else None

    @property
    def steps(self) -> Sequence[StepRecord]:
        """The steps, in the order in which they were recorded."""
        return tuple(self._steps.values())

    @property
    def is_recording(self) -> bool:
        """Whether a process is recording to it now."""
        return self._store.is_recording

    @property
    def last(self) -> int:
        """The number of the last step.

        Raises:
            TimelineError: There are no steps.
        """
        if not self._steps:
            raise TimelineError(f"Timeline has no steps: {str(self.path)!r}")
        return max(self._steps)

    def refresh(self) -> int:
        """Read the steps that were recorded since; return how many."""
        before = len(self._steps)
        for found in self._store.read_new():
            try:
                self._steps[found.number] = _read_step(found)
            except TimelineError as error:
                self._damage.append(str(error))
        return len(self._steps) - before

    def step(self, number: int) -> StepRecord:
        """Return the step with this number.

        Raises:
            TimelineError: There is none.
        """
        found = self._steps.get(number)
        if found is None:
            last = max(self._steps, default=0)
            fact = f"has steps 1 to {last}" if number > last or number < 1 else "has lost it"
            raise TimelineError(f"There is no step {number}: {str(self.path)!r} {fact}")
        return found

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
        return tuple(each.number for each in self.steps if each.parent == number)

    def leaves(self) -> tuple[int, ...]:
        """Return the last step of every branch."""
        parents = {each.parent for each in self.steps}
        return tuple(each.number for each in self.steps if each.number not in parents)

    @property
    def branches(self) -> Mapping[str, int]:
        """The newest step of every branch, by its name; the first branch is `main`."""
        names: dict[int, str] = {}
        newest: dict[str, int] = {}
        for step in self.steps:
            above = MAIN if step.parent is None else names.get(step.parent, MAIN)
            name = names[step.number] = step.branch or above
            newest[name] = step.number
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

    def entries(self, number: int) -> Mapping[str, Entry]:
        """Return the entries of the workspace after a step, by path."""
        tree = self._workspace(number)
        with self._translate_errors(number):
            found = ((path, tree.entry(path)) for path in tree.paths())
            return {path: entry for path, entry in found if entry is not None}

    def entry(self, number: int, path: str) -> Entry | None:
        """Return the entry at a path after a step; None if there is none."""
        tree = self._workspace(number)
        with self._translate_errors(number):
            return tree.entry(path)

    def files(self, number: int, *, limits: Limits = DEFAULT_LIMITS) -> SnapshotFilesystem:
        """Return the files as they were after a step.

        Raises:
            TimelineError: There is no such step, or its files are damaged.
        """
        tree = self._compute_tree(number)
        with self._translate_errors(number):
            files = SnapshotFilesystem(self._store.objects, tree, self.header.root, limits=limits)
            if tree not in self._counted and not self.path.is_dir():
                if files.entry_count() > _MAX_ENTRIES:
                    raise ObjectError(f"there are more than {_MAX_ENTRIES:,} entries")
                self._counted.add(tree)
            return files

    def tree_changes(self, number: int) -> tuple[str | None, list[FileChanges]]:
        """Return a stored tree, None for an empty one, and the changes from it to a step."""
        changes: list[FileChanges] = []
        current: int | None = number
        while current is not None:
            step = self.step(current)
            if step.is_stored or (step.tree is not None and step.tree in self._trees):
                return step.tree, changes[::-1]
            changes.append(step.files)
            current = step.parent
            if current is not None and current not in self._steps:
                # it is lost; perhaps it changed no files, which the tree will show
                current = max((each for each in self._steps if each < current), default=None)
        return None, changes[::-1]

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
        return diff(self.files(before), self.files(after), renames=renames)

    def changes(self, number: int) -> Diff:
        """Return what a step changed in the files; the first one changed nothing."""
        parent = self.step(number).parent
        return self.diff(number if parent is None else parent, number)

    def verify(self) -> list[str]:
        """Read everything; return what is damaged."""
        found = [] if self.problem is None else [self.problem]
        known: set[str] = set()
        for step in self.steps:
            try:
                self._verify_files(step.number, known)
                self._state(step.number)
            except TimelineError as error:
                found.append(str(error))
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Close the files; idempotent."""
        self._store.close()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def object_ids(self, number: int, known: set[str]) -> list[str]:
        """Return the objects of the files of a step that are not `known`, and add them there.

        Raises:
            TimelineError: A tree is damaged.
        """
        top = self._compute_tree(number)
        found: list[str] = []
        with self._translate_errors(number):
            files = self.files(number)
            pending = [each for each in (top, files.manifest_id, files.files) if each not in known]
            found += pending
            known.update(pending)
            pending = [each for each in pending if each == files.files]
            while pending:
                for entry in files.tree(pending.pop()).values():
                    if entry.id not in known:
                        known.add(entry.id)
                        found.append(entry.id)
                        pending += [entry.id] if entry.mode == DIRECTORY else []
        return found

    @property
    def objects(self) -> ObjectStore:
        """The content and the directories of all steps whose files were asked for."""
        return self._store.objects

    def _verify_files(self, number: int, known: set[str]) -> None:
        """Read what the files of a step consist of, unless it is known."""
        with self._translate_errors(number):
            for each in self.object_ids(number, known):
                for _ in self._store.objects.stream(each).chunks:
                    pass

    def _workspace(self, number: int) -> WorkspaceTree:
        """Return the files of a step as a tree that can be changed."""
        tree = self._compute_tree(number)
        with self._translate_errors(number):
            return WorkspaceTree(self._store.objects, tree, self._directories)

    def _compute_tree(self, number: int) -> str:
        """Return the tree of a step; directories that are not stored are computed.

        Raises:
            TimelineError: It is another one than the step says.
        """
        computed = self._store.computed
        if self._computed_size > _MAX_COMPUTED:
            computed.clear()
            self._trees.clear()
            self._directories.clear()
            self._computed_size = 0

        def add(kind: str, data: bytes) -> str:
            object_id = hash_object(kind, data)
            computed[object_id] = kind, data
            self._computed_size += len(data)
            return object_id

        start, changes = self.tree_changes(number)
        if start is not None and not changes:
            return start
        with self._translate_errors(number):
            tree = WorkspaceTree(self._store.objects, start, self._directories)
            for each in changes:
                tree.apply(each)
            found, wanted = tree.write(add), self.step(number).tree
            if wanted not in (None, found):
                raise ObjectError("they are not those that the step had")
        self._trees.add(found)
        return found

    @contextmanager
    def _translate_errors(self, number: int) -> Generator[None, None, None]:
        """Turn the errors of damaged objects into those of a timeline."""
        try:
            yield
        except (ObjectError, SnapshotRestoreError, LogError) as error:
            raise TimelineError(
                f"Files of step {number} are damaged: {error}: {str(self.path)!r}"
            ) from error

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
        sessions, messages = base.sessions, base.messages
        for step in reversed(pending):
            if step.sessions:
                sessions = apply_sessions(sessions, step.sessions)
            if step.messages is not None:
                messages = step.messages.apply(messages)
        return _State(sessions, messages)

    def _read_header(self) -> TimelineHeader:
        data = self._store.header
        if data is None:
            raise TimelineError(f"Timeline is empty or damaged: {str(self.path)!r}")
        try:
            return decode(data, TimelineHeader)
        except SerdeError as error:
            raise TimelineError(
                f"Header of the timeline is damaged: {error}: {str(self.path)!r}"
            ) from error


def _read_step(found: StoredStep) -> StepRecord:
    try:
        step = decode(found.data, StepRecord)
        _check_step(step, found.number)
    except (SerdeError, ArchiveError, TimelineError) as error:
        raise TimelineError(f"Step {found.number} is damaged: {error}") from error
    return step


def _check_step(step: StepRecord, number: int) -> None:
    """Raise if a step cannot have its number, or names what cannot be in a workspace."""
    parent = step.parent
    if step.number != number or not (
        (parent is None) if number == 1 else 0 < (parent or 0) < number
    ):
        raise TimelineError(f"Step {number} does not follow the steps before it")
    _check_date(step.created_at)
    files = step.files
    if files:
        check_paths([each.path for each in files.entries] + list(files.removed))
    for each in files.entries:
        if each.target is not None:
            check_target(each.target, each.path)
        if (each.kind == "link") != (each.target is not None):
            raise TimelineError(f"Link and target do not match: {each.path!r}")
    ids = [each.id for each in files.entries] + [step.tree]
    if not all(each is None or is_object_id(each) for each in ids):
        raise TimelineError(f"Step {number} has an invalid object id")


def _check_date(date: datetime) -> None:
    if date.tzinfo is None:
        raise TimelineError(f"Date has no time zone: {date.isoformat()!r}")
