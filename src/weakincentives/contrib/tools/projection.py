"""What a session knows about its files: names, sizes, versions and dates, never content.

The slice is folded from what the filesystem tells: events that say what happened to one
path. Where everything may have changed at once, the filesystem is looked through again,
and what is found is compared with what was known.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from mimetypes import guess_type
from typing import Any

from weakincentives.filesystem import (
    BackendUnavailableError,
    EntryMoved,
    FileDeleted,
    FileEntry,
    FileStat,
    Filesystem,
    FilesystemEvent,
    FileWritten,
    LinkCreated,
    Observable,
    StateReplaced,
    VfsPath,
)
from weakincentives.filesystem.base import SNIFF_LENGTH, is_binary
from weakincentives.runtime import SYSTEM_CLOCK, Clock, Transaction, current_transaction
from weakincentives.runtime.before_images import read_entire_file
from weakincentives.runtime.session import (
    Reducer,
    Session,
    TransactionEndedError,
    current_publisher,
)
from weakincentives.runtime.session.snapshots import register_type
from weakincentives.runtime.transactions import read_consistently

FileEncoding = str
"""How the bytes of a file are to be taken: "utf-8" or "binary"."""
_TEXT = frozenset({"json", "javascript", "xml", "toml", "yaml", "x-sh", "sql", "x-sql"})


@dataclass(frozen=True, slots=True, eq=False)
class WorkspacePath(VfsPath):
    """The path of a file that is there, whatever its name is like."""

    def __post_init__(self) -> None:
        """Take every name: it exists."""

    def __eq__(self, other: object) -> bool:
        """Compare with any path in segments."""
        return isinstance(other, VfsPath) and self.segments == other.segments

    def __hash__(self) -> int:
        """Agree with `VfsPath`, which it may be equal to."""
        return hash((self.segments,))


@dataclass(frozen=True, slots=True)
class VfsFile:
    """What is known about one file.

    Args:
        path: Where it is.
        encoding: How its bytes are to be taken: "utf-8" or "binary"; a hint.
        size_bytes: How large it is.
        version: 1 when it was made or first seen, and one more with every change.
        created_at: When it was made or first seen, in UTC, to the millisecond.
        updated_at: When it was last changed.
        fingerprint: What it is recognised by; for the projection's own use.
    """

    path: WorkspacePath
    encoding: FileEncoding | None
    size_bytes: int
    version: int
    created_at: datetime
    updated_at: datetime
    fingerprint: str | None = None


@register_type
@dataclass(frozen=True, slots=True)
class VirtualFileSystem:
    """The files of a workspace, sorted by path.

    Args:
        root_path: The directory on the host; empty in memory.
        files: What is known about each.
    """

    root_path: str = ""
    files: tuple[VfsFile, ...] = ()

    def file(self, path: str) -> VfsFile | None:
        """Return what is known about the file at `path`; None if there is none."""
        wanted = _segments(path)
        at = _place(self.files, wanted)
        found = at < len(self.files) and self.files[at].path.segments == wanted
        return self.files[at] if found else None


def reducers(now: Callable[[], datetime]) -> dict[type[object], Reducer[VirtualFileSystem, object]]:
    """Return what folds the events of a filesystem into the slice; `now` tells the time."""

    def fold(known: tuple[VirtualFileSystem, ...], event: object) -> tuple[VirtualFileSystem, ...]:
        current = known[-1] if known else VirtualFileSystem()
        return (replace(current, files=_folded(current.files, event, milliseconds(now()))),)

    return dict.fromkeys((FileWritten, FileDeleted, EntryMoved, LinkCreated), fold)


def scan(
    filesystem: Filesystem,
    known: VirtualFileSystem,
    root_path: str,
    now: datetime,
    rewritten: Set[str] | None = None,
    *,
    sniff: bool = False,
) -> VirtualFileSystem:
    """Return what is in a filesystem; what is as it was known keeps its version and dates.

    Args:
        filesystem: Where to look.
        known: What was known before.
        root_path: The directory on the host.
        now: What time it is.
        rewritten: The files that have other bytes than before, if that is known.
        sniff: Read the beginning of files that are new here, even if their name tells enough.
    """
    before = {file.path.segments: file for file in known.files}
    look = _Look(filesystem, milliseconds(now), rewritten, sniff)
    files = [look.at(entry, before.get(_segments(entry.path))) for entry in _walk(filesystem)]
    return VirtualFileSystem(root_path, tuple(sorted(files, key=_key)))


def milliseconds(moment: datetime) -> datetime:
    """Return a moment in UTC, to the millisecond."""
    moment = moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _folded(files: tuple[VfsFile, ...], event: object, now: datetime) -> tuple[VfsFile, ...]:
    match event:
        case FileWritten():
            return _written(files, event, now)
        case FileDeleted(path=path) | LinkCreated(path=path):
            start, end = _below(files, _segments(path))
            return files[:start] + files[end:]
        case EntryMoved():
            return _moved(files, event, now)
        case _:
            return files


def _written(files: tuple[VfsFile, ...], event: FileWritten, now: datetime) -> tuple[VfsFile, ...]:
    segments = _segments(event.path)
    start, end = _below(files, segments)
    known = files[start] if start < end and files[start].path.segments == segments else None
    size = event.after_size if event.after_size is not None else event.bytes_written
    made = VfsFile(
        WorkspacePath(segments),
        event.encoding or (known and known.encoding) or _encoding_by_name(event.path) or "utf-8",
        size,
        1 if known is None else known.version + 1,
        now if known is None else known.created_at,
        now,
        None if event.after_hash is None else _HASH + event.after_hash,
    )
    # a file in the place of a directory: what was below is gone
    return (*files[:start], made, *files[end:])


def _moved(files: tuple[VfsFile, ...], event: EntryMoved, now: datetime) -> tuple[VfsFile, ...]:
    source, target = _segments(event.source), _segments(event.path)
    start, end = _below(files, source)
    moved = [
        replace(
            file,
            path=WorkspacePath(target + file.path.segments[len(source) :]),
            updated_at=now,
        )
        for file in files[start:end]
    ]
    if not moved:
        return files  # nothing was known there; or it has been seen at its new place
    rest = files[:start] + files[end:]
    first, last = _below(rest, target)
    return (*rest[:first], *moved, *rest[last:])


def _below(files: tuple[VfsFile, ...], segments: tuple[str, ...]) -> tuple[int, int]:
    """Return the range of the files at and below a path; they are next to each other."""
    start = end = _place(files, segments)
    while end < len(files) and files[end].path.segments[: len(segments)] == segments:
        end += 1
    return start, end


def _place(files: tuple[VfsFile, ...], segments: tuple[str, ...]) -> int:
    return bisect_left(files, segments, key=_key)


def _key(file: VfsFile) -> tuple[str, ...]:
    return file.path.segments


def _segments(path: str) -> tuple[str, ...]:
    return () if path in {"", ".", "/"} else tuple(path.strip("/").split("/"))


# --- looking through a filesystem ---

_HASH = "sha256:"
_MOMENT = "modified:"


def _walk(filesystem: Filesystem) -> Iterator[FileEntry]:
    waiting = ["."]
    while waiting:
        for entry in _entries(filesystem, waiting.pop()):
            if entry.is_directory:
                waiting.append(entry.path)
            elif entry.is_file:
                yield entry


def _entries(filesystem: Filesystem, path: str) -> Iterable[FileEntry]:
    try:
        return filesystem.list(path)
    except (OSError, BackendUnavailableError):
        return ()  # closed to us, or gone meanwhile; of a workspace that is gone nothing is known


@dataclass(frozen=True, slots=True)
class _Look:
    """How files are looked at, one after the other."""

    filesystem: Filesystem
    now: datetime
    rewritten: Set[str] | None
    sniff: bool

    def at(self, entry: FileEntry, known: VfsFile | None) -> VfsFile:
        """Return what is known of a file after a look at it."""
        size = entry.size_bytes or 0
        has_its_size = known is not None and known.size_bytes == size
        is_untouched = self.rewritten is not None and entry.path not in self.rewritten
        if known is not None and has_its_size and is_untouched:
            return known
        found = self._stat(entry.path)
        may_be_same = has_its_size and self.rewritten is None
        if known is not None and may_be_same and self._is_same(known, found):
            return known
        fingerprint = _fingerprint(found)
        if known is None:
            path = WorkspacePath(_segments(entry.path))
            by_name = None if self.sniff else _encoding_by_name(entry.path)
            encoding = by_name or self._encoding(entry.path)
            return VfsFile(path, encoding, size, 1, self.now, self.now, fingerprint)
        return replace(
            known,
            encoding=self._encoding(entry.path) or known.encoding,
            size_bytes=size,
            version=known.version + 1,
            updated_at=self.now,
            fingerprint=fingerprint,
        )

    def _is_same(self, known: VfsFile, found: FileStat | None) -> bool:
        if found is None or known.fingerprint is None:
            return True  # nothing says otherwise
        if known.fingerprint.startswith(_HASH):
            hashed = found.content_hash or self._hash("/".join(known.path.segments))
            return hashed is None or known.fingerprint == _HASH + hashed
        return known.fingerprint == _fingerprint(found)

    def _hash(self, path: str) -> str | None:
        """Return the hash of a file, for backends whose `stat` has none."""
        try:
            return sha256(read_entire_file(self.filesystem, path)).hexdigest()
        except (OSError, ValueError):
            return None

    def _stat(self, path: str) -> FileStat | None:
        try:
            return self.filesystem.stat(path)
        except OSError:
            return None  # what a listing shows is a file all the same

    def _encoding(self, path: str) -> FileEncoding | None:
        try:
            head = self.filesystem.read_bytes(path, limit=SNIFF_LENGTH).content
        except (OSError, ValueError):
            return _encoding_by_name(path)
        return "binary" if is_binary(head) else "utf-8"


def _fingerprint(found: FileStat | None) -> str | None:
    if found is None or found.modified_at is None:
        return None
    return f"{_MOMENT}{found.modified_at.isoformat()}"


def _encoding_by_name(path: str) -> FileEncoding | None:
    kind, compression = guess_type(path, strict=False)
    if compression is not None:
        return "binary"
    if kind is None:
        return None
    family, _, name = kind.partition("/")
    if family == "text" or name in _TEXT or name.endswith(("+xml", "+json")):
        return "utf-8"
    return "binary" if family in {"image", "audio", "video", "font"} else None


class ProjectionUpdater:
    """Keeps the `VirtualFileSystem` slice of one session in step with one filesystem.

    Changes inside a transaction reach the session when it is committed; those that a
    program makes past any transaction reach it at once. When the session goes back alone,
    the files are looked at again.
    """

    def __init__(
        self,
        session: Session,
        filesystem: Filesystem,
        *,
        root_path: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Look through `filesystem`, fill the slice, and follow from now on."""
        self._session = session
        self._filesystem = filesystem
        self._root_path = root_path
        self._clock = clock
        self._is_closed = self._is_following = False
        self._awaited: set[Transaction] = set()
        self._stops: list[Callable[[], None]] = []
        is_new = session[VirtualFileSystem].latest() is None  # then installing it fills it
        session.install(
            VirtualFileSystem,
            initial=self.first_look,
            reducers=self._reducers(),
            refresh=self._look_again,
        )
        if not is_new:
            self.start_over()
        self._is_following = True
        self._stops.append(session.bus.subscribe(StateReplaced, self._replaced))
        if isinstance(filesystem, Observable):
            self._stops.append(filesystem.subscribe(self._changed))

    def first_look(self) -> VirtualFileSystem:
        """Return what is there as if nothing had been known."""
        return self._look(None)

    def start_over(self) -> None:
        """Forget what was known, and look again."""
        self._session.refresh(VirtualFileSystem, lambda _: self.first_look())

    def close(self) -> None:
        """Follow no more; the slice stays as it is."""
        self._is_closed = True
        for stop in self._stops:
            stop()
        self._stops.clear()

    def _look(
        self, known: VirtualFileSystem | None, rewritten: Set[str] | None = None
    ) -> VirtualFileSystem:
        """Return what is there, compared with what was known."""

        def look() -> VirtualFileSystem:
            return scan(
                self._filesystem,
                known or VirtualFileSystem(),
                self._root_path,
                self._now(),
                rewritten,
                sniff=self._is_following,
            )

        found, unsettled = read_consistently(self._filesystem, look)
        for each in unsettled:
            self._await(each)
        return found

    def _look_again(self, known: VirtualFileSystem | None) -> VirtualFileSystem:
        """Return what is there after the session went back to `known`."""
        if self._is_closed:
            return known or VirtualFileSystem(self._root_path)
        return self._look(known or VirtualFileSystem())

    def _await(self, unsettled: Transaction) -> None:
        """Look again when it is certain whether what a transaction has changed stays."""
        if unsettled in self._awaited:
            return
        self._awaited.add(unsettled)

        def settle() -> None:
            self._awaited.discard(unsettled)
            self._bring_up_to_date()

        unsettled.on_end(settle)

    def _bring_up_to_date(self, rewritten: Set[str] | None = None) -> None:
        if not self._is_closed:
            self._session.refresh(
                VirtualFileSystem,
                lambda known: self._look(known or VirtualFileSystem(), rewritten),
            )

    def _now(self) -> datetime:
        return self._clock.now()

    def _reducers(self) -> dict[type[Any], Reducer[VirtualFileSystem, Any]]:
        folds = reducers(self._now)
        return {kind: self._of_this_session(fold) for kind, fold in folds.items()}

    def _of_this_session(
        self, fold: Reducer[VirtualFileSystem, Any]
    ) -> Reducer[VirtualFileSystem, Any]:
        """Return a reducer that leaves alone what sessions on the same bus tell of their files."""

        def reducer(known: tuple[VirtualFileSystem, ...], event: Any) -> Any:
            return fold(known, event) if self._is_ours() else known

        return reducer

    def _is_ours(self) -> bool:
        if self._is_closed:
            return False
        return current_publisher() in {None, self._session.session_id}

    def _changed(self, event: FilesystemEvent) -> None:
        """Bring a change to the session, unless a transaction will."""
        around = current_transaction()
        if around is not None and around.covers(self._filesystem):
            if around.session is not self._session:
                self._await(around.outermost)  # it tells its own session
            return
        try:
            self._session.dispatch(event)
        except TransactionEndedError:
            self._bring_up_to_date()  # the work of a call that was given up, but it is done

    def _replaced(self, event: StateReplaced) -> None:
        if self._is_ours():
            self._bring_up_to_date(event.rewritten)
