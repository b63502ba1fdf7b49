"""A recorded timeline: its steps, and the files, sessions and conversation at each of them."""

import gc
import os
import re
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

from weakincentives.errors import SnapshotRestoreError
from weakincentives.filesystem import Diff, diff
from weakincentives.filesystem.archive import ArchiveError, check_paths, check_target
from weakincentives.filesystem.base import State
from weakincentives.filesystem.host import SnapshotFilesystem, entry_state, put_entries
from weakincentives.gitstore import DIRECTORY, ObjectError, ObjectStore, TreeEntry, is_object_id
from weakincentives.history import (
    DeltaError,
    EntryState,
    HistoryStore,
    LogError,
    StepRecord,
    StoredStep,
    TimelineError,
    TimelineHeader,
    steps_file,
)
from weakincentives.posix import CloseOnExit
from weakincentives.runtime.deadlines import SYSTEM_CLOCK
from weakincentives.runtime.session import Session, SnapshotFormatError, snapshots
from weakincentives.runtime.session.dump import rebuild_session
from weakincentives.serde import SerdeError, convert, decode, encode

SUFFIX = ".timeline"
"""The suffix of an exported history, which is one file."""
_BRANCH = re.compile(r"[A-Za-z_][\w.-]{0,99}", re.ASCII)
MAIN = "main"
"""The name of the first branch."""
_CACHED_STATES = 4
_INTERVAL = 16  # steps between two whose trees are computed on the way to another
_LOST = "lost: its record is damaged"
_MAX_LOST = 10_000  # the numbers in a file from elsewhere may be crafted
_KINDS = frozenset({"absent", "directory", "file", "symlink", "special"})
_MAX_ENTRIES = 1_000_000  # in a tree from elsewhere, which may be crafted


class Timeline(CloseOnExit):
    """The steps of a recorded session: a directory that may still be growing, or a file."""

    def __init__(self, path: str | os.PathLike[str], store: HistoryStore | None = None) -> None:
        """Open a history; that of an open `store`, which is closed by `close` too, is read again.

        One that was cut off or damaged is read as far as possible; `problem` says what is missing.

        Raises:
            TimelineError: It is not a history, or its header is damaged.
            OSError: It cannot be read.
        """
        self.path: Path = Path(path)
        self._store = HistoryStore(self.path) if store is None else store
        self._steps: dict[int, StepRecord] = {}
        self._names: dict[int, str] = {}  # of the branches, by step
        self._branches: dict[str, int] = {}
        # sessions and messages at a step; nothing in them is changed once it is made
        self._states: OrderedDict[int, tuple[Mapping[str, Any], Sequence[Any]]] = OrderedDict()
        self._trees: set[str] = set()  # those whose objects are computed
        self._view: SnapshotFilesystem | None = None  # the last one
        self._counted: set[str] = set()
        self._damage: list[str] = []
        self._lost: set[int] = set()
        self._first_lost: dict[int, int] = {}  # on the way to a step
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
        if self._lost:
            names = ", ".join(map(str, sorted(self._lost)))
            found.append(f"what step {names} did is lost")
        text = "; ".join(each for each in found if each is not None)
        return f"{text}; {len(self._steps) - len(self._lost)} steps are intact" if text else None

    @property
    def steps(self) -> Sequence[StepRecord]:
        """The steps, in the order in which they were recorded; also those that are lost."""
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
        with without_collector():
            for found in self._store.read_new():
                try:
                    self._add(_read_step(found))
                except TimelineError as error:
                    self._damage.append(str(error))
        return len(self._steps) - before

    def _add(self, step: StepRecord) -> None:
        last = max(self._steps, default=0)
        if step.number > last + 1 + _MAX_LOST - len(self._lost):
            raise TimelineError(f"Step {step.number} does not follow the steps before it")
        for number in range(last + 1, step.number):
            # most steps follow the one before them, and the trees of later ones are compared
            self._add(StepRecord(number, number - 1 or None, "lost", step.created_at, _LOST))
        if step.kind == "lost":
            self._lost.add(step.number)
        first = self._first_lost.get(step.parent or 0, step.number)
        if step.kind == "lost" or first < step.number:
            self._first_lost[step.number] = first
        self._steps[step.number] = step
        above = MAIN if step.parent is None else self._names.get(step.parent, MAIN)
        name = self._names[step.number] = step.branch or above
        self._branches[name] = step.number

    def step(self, number: int) -> StepRecord:
        """Return the step with this number.

        Raises:
            TimelineError: There is none.
        """
        found = self._steps.get(number)
        if found is None:
            fact = f"has steps 1 to {max(self._steps, default=0)}"
            raise TimelineError(f"There is no step {number}: {str(self.path)!r} {fact}")
        return found

    def ancestors(self, number: int) -> list[int]:
        """Return the steps that lead to a step, from the first to the step itself."""
        found: list[int] = []
        current: int | None = number
        while current is not None:
            found.append(current)
            current = self.step(current).parent
        return found[::-1]

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
        return dict(self._branches)

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

    def name_branch(self, at: int, name: str | None) -> str | None:
        """Return the name of the branch that begins after a step; None if it goes on.

        Raises:
            TimelineError: The name is taken or invalid.
        """
        if name is not None and (not _BRANCH.fullmatch(name) or name in self.branches):
            fact = "exists already" if name in self.branches else "has an invalid name"
            raise TimelineError(f"Branch {fact}: {name!r} (letters, digits, '-', '_' and '.')")
        if name is None and self.children(at):
            return f"branch-{self.last + 1}"
        return name

    def find_lost(self, number: int) -> int | None:
        """Return the first lost step on the way to a step: sessions and messages build on it."""
        return self._first_lost.get(number)

    def entries(self, number: int) -> Mapping[str, EntryState]:
        """Return the entries of the workspace after a step, by path."""
        files = self.files(number)
        with self._translate_errors(number):
            directories = State(files).directories("Timeline")
            paths = [each.path for _, children in directories for each in children.values()]
            return {path: entry_state(files, path) for path in paths}

    def entry(self, number: int, path: str) -> EntryState:
        """Return the entry at a path after a step."""
        files = self.files(number)
        with self._translate_errors(number):
            return entry_state(files, path)

    def files(self, number: int) -> SnapshotFilesystem:
        """Return the files as they were after a step.

        Raises:
            TimelineError: There is no such step, or its files are damaged.
        """
        tree = self._compute_tree(number)
        with self._translate_errors(number):
            files = self._open(tree)
            if tree not in self._counted and not self.path.is_dir():
                if files.entry_count() > _MAX_ENTRIES:
                    raise ObjectError(f"there are more than {_MAX_ENTRIES:,} entries")
                self._counted.add(tree)
            return files

    def sessions(self, number: int) -> Mapping[UUID, snapshots.StoredSession]:
        """Return the sessions after a step as data, parents first."""
        try:
            return convert(self._state(number)[0], dict[UUID, snapshots.StoredSession])
        except SerdeError as error:
            raise TimelineError(
                f"Sessions of step {number} are damaged: {error}: {str(self.path)!r}"
            ) from error

    def session_values(self, number: int) -> Mapping[str, Any]:
        """Return the sessions after a step as JSON values, by their ids; they are not checked."""
        return self._state(number)[0]

    def session(
        self, number: int, types: snapshots.Types = (), *, unknown: snapshots.Unknown = "error"
    ) -> Session:
        """Return the session after a step, with its children; register its reducers again.

        Args:
            number: The step.
            types: The types of the slices, as for `load_session`.
            unknown: What to do with a slice whose type is neither given nor imported, or whose
                items do not match it: `error`, or `data`, which loads its items as
                `UnknownItem`.

        Raises:
            TimelineError: There is no such step, or a slice cannot be loaded.
        """
        self.step(number)
        try:
            stored = self.sessions(number).values()
            loaded = [
                snapshots.load_slices(each.slices, types, snapshots.find_imported_type, unknown)
                for each in stored
            ]
            places = {each.session_id: place for place, each in enumerate(stored)}
            parents = [each.parent_id and places[each.parent_id] for each in stored]
            return rebuild_session(stored, loaded, parents)
        except SnapshotFormatError as error:
            raise TimelineError(
                f"Session of step {number}: {error}: {str(self.path)!r} (pass the type in types=,"
                " import its module, or load it as data: unknown='data')"
            ) from error

    def messages(self, number: int) -> Sequence[Any]:
        """Return the conversation after a step, as JSON values."""
        return self._state(number)[1]

    def diff(self, before: int, after: int, *, renames: bool = True) -> Diff:
        """Return what changed in the files from one step to another, on any branches."""
        files = self.files(before), self.files(after)
        with self._translate_errors(f"{before} or {after}"):
            return diff(*files, renames=renames)

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
                with self._translate_errors(step.number):
                    for each in self.object_ids(step.number, known):
                        for _ in self._store.objects.stream(each).chunks:
                            pass
                self._state(step.number)
            except TimelineError as error:
                found.append(str(error))
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Close the files; idempotent."""
        self._store.close()

    def object_ids(self, number: int, known: set[str]) -> list[str]:
        """Return the objects of the files of a step that are not `known`, and add them there.

        Raises:
            TimelineError: A tree is damaged.
        """
        files = self.files(number)
        with self._translate_errors(number):
            found: list[str] = []
            pending = [TreeEntry("", DIRECTORY, files.tree_id)]
            while pending:
                entry = pending.pop()
                if entry.id not in known:
                    known.add(entry.id)
                    found.append(entry.id)
                    pending += files.tree(entry.id).values() if entry.mode == DIRECTORY else ()
        return found

    @property
    def objects(self) -> ObjectStore:
        """The content and the directories of all steps whose files were asked for."""
        return self._store.objects

    def _open(self, tree: str) -> SnapshotFilesystem:
        """Return the files of a tree; what was read for another one is not read again."""
        objects, root = self._store.objects, self.header.root
        self._view = SnapshotFilesystem(objects, tree, root, like=self._view)
        return self._view

    def _find_base(self, number: int) -> tuple[str | None, list[StepRecord]]:
        """Return a tree that can be read, None for an empty one, and the steps since then."""
        pending: list[StepRecord] = []
        current: int | None = number
        while current is not None:
            step = self.step(current)
            if step.is_stored or (step.tree is not None and step.tree in self._trees):
                return step.tree, pending[::-1]
            if current in self._lost:
                for place, each in enumerate(pending):
                    if each.tree is not None and each.tree in self._store.objects:
                        return each.tree, pending[:place][::-1]  # of a snapshot
            pending.append(step)
            current = step.parent
        return None, pending[::-1]

    def _compute_tree(self, number: int) -> str:
        """Return the tree of a step; directories that are not stored are computed.

        Raises:
            TimelineError: It is another one than the step says.
        """
        if number in self._lost:
            return self._compute_before(number)
        with self._translate_errors(number):
            base, pending = self._find_base(number)
            if base is not None and self._store.trim(base):
                self._trees, self._view = {base}, None
            tree = put_entries(None, {}, self._store.compute) if base is None else base
            # the first time goes there at once; whoever reads more finds a tree close by
            interval = _INTERVAL if self._trees else len(pending)
            for start in range(0, len(pending), interval or 1):
                steps = pending[start : start + interval]
                entries = dict(chain.from_iterable(map(self._list_entries, steps)))
                if entries:
                    tree = put_entries(self._open(tree), entries, self._store.compute)
                if steps[-1].tree == tree:
                    self._trees.add(tree)
        if pending and pending[-1].tree not in {tree, None}:
            tree = self._compute_before(number)
        return tree

    def _list_entries(self, step: StepRecord) -> Iterator[tuple[str, EntryState]]:
        """Yield what a step put there; of a lost one, what those that followed it found."""
        yield from ((each.path, each.after) for each in step.files)
        following, found = {step.number}, dict[str, EntryState]()
        for each in self.steps if step.number in self._lost else ():
            if each.parent in following and each.number not in self._lost:
                following.add(each.number)
                for edit in each.files:
                    found.setdefault(edit.path, edit.before)
        yield from found.items()

    def _compute_before(self, number: int) -> str:
        """Return the tree of a step from that of a later one.

        Raises:
            TimelineError: There is none with a known tree, or it leads to another one.
        """
        wanted = self.step(number).tree
        with self._translate_errors(number):
            known, entries = self._find_later(number)
            tree = None
            if known is not None:
                tree = put_entries(self._open(known), entries, self._store.compute)
            if tree is None or wanted not in {tree, None}:
                lost = max(self._lost.intersection(self.ancestors(number)), default=None)
                fact = f"step {lost} is lost, and no later one says all that it changed"
                raise ObjectError("they are not those that the step had" if lost is None else fact)
            self._trees.add(tree)
        return tree

    def _find_later(self, number: int) -> tuple[str | None, Mapping[str, EntryState]]:
        """Return the known tree of a later step, and what its steps found that they changed."""
        entries: dict[str, EntryState] = {}
        current = number
        for each in self.steps:
            if each.parent == current and each.number not in self._lost:
                current = each.number
                for edit in each.files:
                    entries.setdefault(edit.path, edit.before)
                if each.tree is not None and each.tree in self._store.objects:
                    return each.tree, entries
                if number in self._lost:
                    return self._compute_tree(current), entries
        return None, entries

    @contextmanager
    def _translate_errors(self, number: int | str) -> Generator[None, None, None]:
        """Turn the errors of damaged objects into those of a timeline."""
        try:
            yield
        except (ObjectError, SnapshotRestoreError, LogError) as error:
            raise TimelineError(
                f"Files of step {number} are damaged: {error}: {str(self.path)!r}"
            ) from error

    def _state(self, number: int) -> tuple[Mapping[str, Any], Sequence[Any]]:
        """Return the state after a step, from the nearest ancestor whose state is known."""
        self._check_known(number)
        pending: list[StepRecord] = []
        current: int | None = number
        while current is not None and current not in self._states:
            step = self.step(current)
            pending.append(step)
            current = step.parent
        sessions: Mapping[str, Any] = {}
        messages: Sequence[Any] = ()
        if current is not None:
            sessions, messages = self._states[current]
        drafts: dict[int, list[Any]] = {}
        try:
            for step in reversed(pending):
                if step.sessions is not None:
                    sessions = step.sessions.apply(sessions, drafts)
                if step.messages is not None:
                    messages = step.messages.apply(messages, drafts)
        except DeltaError as error:
            raise TimelineError(f"{error}: {str(self.path)!r}") from error
        self._states[number] = sessions, messages
        self._states.move_to_end(number)
        if len(self._states) > _CACHED_STATES:
            self._states.popitem(last=False)
        return sessions, messages

    def _check_known(self, number: int) -> None:
        lost = self.find_lost(number)
        if lost is not None:
            raise TimelineError(
                f"The session and the conversation of step {number} are not known, because step"
                f" {lost} is lost; those of the steps before it are: {str(self.path)!r}"
            )

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


@contextmanager
def without_collector() -> Generator[None, None, None]:
    """Pause the cycle collector: it would visit all steps again and again, and find nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
    if step.created_at.tzinfo is None:
        raise TimelineError(f"Date has no time zone: {step.created_at.isoformat()!r}")
    check_paths([each.path for each in step.files])
    for each in step.files:
        _check_entry(each.path, each.after)
    if step.tree is not None and not is_object_id(step.tree):
        raise TimelineError(f"Step {number} has an invalid object id")


def _check_entry(path: str, entry: EntryState) -> None:
    if entry.kind not in _KINDS:
        raise TimelineError(f"Entry has an unknown kind: {path!r}: {entry.kind!r}")
    if entry.kind == "symlink":
        check_target(entry.target, path)
    if entry.kind == "file" and not is_object_id(entry.blob):
        raise TimelineError(f"Entry has an invalid object id: {path!r}")


def fork_timeline(path: str | os.PathLike[str], at: int, branch: str | None = None) -> StepRecord:
    """Add a step that begins a branch after step `at`, and changes nothing; return it.

    Raises:
        TimelineError: There is no such step, or the name is taken.
        OSError: It cannot be written.
    """
    check_continuable(Path(path))
    with Timeline(path) as before:
        parent = before.step(at)
        name = branch or f"branch-{before.last + 1}"
        before.name_branch(at, name)
    step = StepRecord(
        0, at, "start", SYSTEM_CLOCK.now(), f"branch {name}", branch=name, tree=parent.tree
    )
    with closing(HistoryStore(Path(path), read_only=False)) as store:
        number = store.append(lambda number: encode(replace(step, number=number)))
    return replace(step, number=number)


def check_continuable(path: Path) -> None:
    """Raise if there is no history, or one that can only be read."""
    steps_file(path).lstat()
    if not path.is_dir():
        raise TimelineError(f"An exported recording cannot be continued: {str(path)!r}")
