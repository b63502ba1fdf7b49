"""Session projection of the files: names, sizes, versions and dates, never content.

Reducers fold filesystem events, each about one path, into the `VirtualFileSystem` slice.
When anything may have changed, a scan of the filesystem is compared with the slice instead.
For a large workspace the slice may have only the files that were changed: no scan is needed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from mimetypes import guess_type
from typing import Any, Literal, TypeAlias

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
from weakincentives.filesystem.base import SNIFF_LENGTH, State, is_binary, open_state
from weakincentives.runtime import (
    SYSTEM_CLOCK,
    Clock,
    Transaction,
    current_transaction,
    read_consistently,
    read_entire_file,
)
from weakincentives.runtime.session import (
    Reducer,
    Session,
    TransactionEndedError,
    current_publisher,
    register_type,
)

FileEncoding = str
"""How to interpret the bytes of a file: "utf-8" or "binary"."""
ProjectedFiles: TypeAlias = Literal["all", "changed"]
"""Which files the `VirtualFileSystem` slice has: all, or those that were changed in the session."""
_TEXT_SUBTYPES = frozenset({"json", "javascript", "xml", "toml", "yaml", "x-sh", "sql", "x-sql"})


@dataclass(frozen=True, slots=True, eq=False)
class WorkspacePath(VfsPath):
    """The path of an existing file; its name is not validated."""

    def __post_init__(self) -> None:
        """Accept every name, because the file exists."""

    def __eq__(self, other: object) -> bool:
        """Compare the segments with those of any `VfsPath`."""
        return isinstance(other, VfsPath) and self.segments == other.segments

    def __hash__(self) -> int:
        """Return the hash of the equal `VfsPath`."""
        return hash((self.segments,))


@dataclass(frozen=True, slots=True)
class VfsFile:
    """Metadata of one file.

    Args:
        path: Its path.
        encoding: How to interpret its bytes: "utf-8" or "binary"; a hint.
        size_bytes: Its size.
        version: 1 when it was created or first seen, then one more with every change.
        created_at: When it was created or first seen, in UTC, to the millisecond.
        updated_at: When it last changed.
        fingerprint: Identifies its content in later scans; internal to the projection.
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
        root_path: The host directory; empty for a workspace in memory.
        files: The metadata of each file, or of each that was changed (see `ProjectedFiles`).
    """

    root_path: str = ""
    files: tuple[VfsFile, ...] = ()

    def file(self, path: str) -> VfsFile | None:
        """Return the metadata of the file at `path`, or None."""
        segments = _split_path(path)
        index = _find_index(self.files, segments)
        found = index < len(self.files) and self.files[index].path.segments == segments
        return self.files[index] if found else None


def create_reducers(
    now: Callable[[], datetime], since: datetime | None = None
) -> dict[type[object], Reducer[VirtualFileSystem, object]]:
    """Return the reducers that fold filesystem events into the slice; `now` is the clock.

    Files that are not in the slice may exist `since` then, unless that is None.
    """

    def fold(known: tuple[VirtualFileSystem, ...], event: object) -> tuple[VirtualFileSystem, ...]:
        current = known[-1] if known else VirtualFileSystem()
        moment = _truncate_to_milliseconds(now())
        files = current.files
        if since is not None and isinstance(event, FileWritten) and not event.created:
            files = _add_unchanged(files, event, _truncate_to_milliseconds(since))
        return (replace(current, files=_apply_event(files, event, moment)),)

    return dict.fromkeys((FileWritten, FileDeleted, EntryMoved, LinkCreated), fold)


def scan(
    filesystem: Filesystem,
    known: VirtualFileSystem,
    root_path: str,
    now: datetime,
    rewritten: Set[str] | None = None,
    *,
    sniff: bool = False,
    since: datetime | None = None,
) -> VirtualFileSystem:
    """Return the files of a filesystem; an unchanged file keeps its version and dates.

    Only the paths in `rewritten` may differ, if that is known. With `sniff`, the first bytes of
    every new file are read, even if its name shows the encoding. With `since`, when the session
    saw the files for the first time, only those that were changed are looked at.
    """
    before = {"/".join(file.path.segments): file for file in known.files}
    now = _truncate_to_milliseconds(now)
    scanner = _FileScanner(filesystem, now, rewritten, sniff or since is not None)
    if since is None:
        found = ((each, before.get(each.path)) for each in _walk(filesystem))
    else:
        first = _truncate_to_milliseconds(since)
        found = _find_changed(filesystem, before, rewritten or set(), first)
    files = [scanner.scan_file(each, file) for each, file in found]
    return VirtualFileSystem(root_path, tuple(sorted(files, key=_sort_key)))


def _truncate_to_milliseconds(moment: datetime) -> datetime:
    """Return a time in UTC, truncated to the millisecond."""
    moment = moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _apply_event(files: tuple[VfsFile, ...], event: object, now: datetime) -> tuple[VfsFile, ...]:
    match event:
        case FileWritten():
            return _apply_write(files, event, now)
        case FileDeleted(path=path) | LinkCreated(path=path):
            start, end = _find_range(files, _split_path(path))
            return files[:start] + files[end:]
        case EntryMoved():
            return _apply_move(files, event, now)
        case _:
            return files


def _apply_write(
    files: tuple[VfsFile, ...], event: FileWritten, now: datetime
) -> tuple[VfsFile, ...]:
    segments = _split_path(event.path)
    start, end = _find_range(files, segments)
    known = files[start] if start < end and files[start].path.segments == segments else None
    size = event.after_size if event.after_size is not None else event.bytes_written
    file = VfsFile(
        WorkspacePath(segments),
        event.encoding or (known and known.encoding) or _guess_encoding(event.path) or "utf-8",
        size,
        1 if known is None else known.version + 1,
        now if known is None else known.created_at,
        now,
        None if event.after_hash is None else _HASH_PREFIX + event.after_hash,
    )
    # a file that replaces a directory also replaces the files below it
    return (*files[:start], file, *files[end:])


def _apply_move(
    files: tuple[VfsFile, ...], event: EntryMoved, now: datetime
) -> tuple[VfsFile, ...]:
    source, target = _split_path(event.source), _split_path(event.path)
    start, end = _find_range(files, source)
    moved = [
        replace(
            file, path=WorkspacePath(target + file.path.segments[len(source) :]), updated_at=now
        )
        for file in files[start:end]
    ]
    if not moved:
        return files  # unknown, or a scan has already found it at its new path
    rest = files[:start] + files[end:]
    first, last = _find_range(rest, target)
    return (*rest[:first], *moved, *rest[last:])


def _add_unchanged(
    files: tuple[VfsFile, ...], event: FileWritten, since: datetime
) -> tuple[VfsFile, ...]:
    """Return the files with the one that was written, as it was before."""
    segments = _split_path(event.path)
    index = _find_index(files, segments)
    if index < len(files) and files[index].path.segments == segments:
        return files
    size = event.before_size or 0
    before = VfsFile(WorkspacePath(segments), _guess_encoding(event.path), size, 1, since, since)
    return (*files[:index], before, *files[index:])


def _find_range(files: tuple[VfsFile, ...], segments: tuple[str, ...]) -> tuple[int, int]:
    """Return the range of the files at and below a path; sorting keeps them together."""
    start = end = _find_index(files, segments)
    while end < len(files) and files[end].path.segments[: len(segments)] == segments:
        end += 1
    return start, end


def _find_index(files: tuple[VfsFile, ...], segments: tuple[str, ...]) -> int:
    return bisect_left(files, segments, key=_sort_key)


def _sort_key(file: VfsFile) -> tuple[str, ...]:
    return file.path.segments


def _split_path(path: str) -> tuple[str, ...]:
    return () if path in {"", ".", "/"} else tuple(path.strip("/").split("/"))


# --- scan ---

_HASH_PREFIX = "sha256:"
_MODIFIED_PREFIX = "modified:"


def _find_changed(
    filesystem: Filesystem, before: Mapping[str, VfsFile], paths: Set[str], since: datetime
) -> Iterator[tuple[FileStat, VfsFile]]:
    """Yield the files that were changed, with their metadata before, or as they were `since`."""
    for path in before.keys() | paths:
        try:
            found = filesystem.stat(path)
        except OSError:
            continue  # removed
        if found.is_file:
            unchanged = VfsFile(WorkspacePath(_split_path(path)), None, 0, 1, since, since)
            yield found, before.get(path, unchanged)


def _walk(filesystem: Filesystem) -> Iterator[FileEntry | FileStat]:
    state = open_state(filesystem)
    pending = [""]
    while pending:
        for found in _list_entries(filesystem, state, pending.pop()):
            if found.is_directory:
                pending.append(found.path)
            elif found.is_file:
                yield found


def _list_entries(
    filesystem: Filesystem, state: State | None, path: str
) -> Iterable[FileEntry | FileStat]:
    try:
        return filesystem.list(path or ".") if state is None else state.children(path).values()
    except (OSError, BackendUnavailableError):
        return ()  # not readable, or removed in the meantime, perhaps with the whole workspace


@dataclass(frozen=True, slots=True)
class _FileScanner:
    """Compares the files of a filesystem with their known metadata."""

    filesystem: Filesystem
    now: datetime
    rewritten: Set[str] | None
    sniff: bool

    def scan_file(self, entry: FileEntry | FileStat, known: VfsFile | None) -> VfsFile:
        size = entry.size_bytes or 0
        has_same_size = known is not None and known.size_bytes == size
        is_untouched = self.rewritten is not None and entry.path not in self.rewritten
        if known is not None and has_same_size and is_untouched:
            return known
        found = entry if isinstance(entry, FileStat) else self._stat(entry.path)
        may_be_same = has_same_size and self.rewritten is None
        if known is not None and may_be_same and self._is_same(known, found):
            return known
        fingerprint = _fingerprint(found)
        if known is None:
            path = WorkspacePath(_split_path(entry.path))
            by_name = None if self.sniff else _guess_encoding(entry.path)
            encoding = by_name or self._detect_encoding(entry.path)
            return VfsFile(path, encoding, size, 1, self.now, self.now, fingerprint)
        return replace(
            known,
            encoding=self._detect_encoding(entry.path) or known.encoding,
            size_bytes=size,
            version=known.version + 1,
            updated_at=self.now,
            fingerprint=fingerprint,
        )

    def _is_same(self, known: VfsFile, found: FileStat | None) -> bool:
        if found is None or known.fingerprint is None:
            return True  # no evidence of a change
        if known.fingerprint.startswith(_HASH_PREFIX):
            content_hash = found.content_hash or self._hash_content("/".join(known.path.segments))
            return content_hash is None or known.fingerprint == _HASH_PREFIX + content_hash
        return known.fingerprint == _fingerprint(found)

    def _hash_content(self, path: str) -> str | None:
        """Return the hash of a file, for backends whose `stat` has none."""
        try:
            return sha256(read_entire_file(self.filesystem, path)).hexdigest()
        except (OSError, ValueError):
            return None

    def _stat(self, path: str) -> FileStat | None:
        try:
            return self.filesystem.stat(path)
        except OSError:
            return None  # the listing shows it, so it still counts as a file

    def _detect_encoding(self, path: str) -> FileEncoding | None:
        try:
            head = self.filesystem.read_bytes(path, limit=SNIFF_LENGTH).content
        except (OSError, ValueError):
            return _guess_encoding(path)
        return "binary" if is_binary(head) else "utf-8"


def _fingerprint(found: FileStat | None) -> str | None:
    if found is None or found.modified_at is None:
        return None
    return f"{_MODIFIED_PREFIX}{found.modified_at.isoformat()}"


def _guess_encoding(path: str) -> FileEncoding | None:
    kind, compression = guess_type(path, strict=False)
    if compression is not None:
        return "binary"
    if kind is None:
        return None
    family, _, name = kind.partition("/")
    if family == "text" or name in _TEXT_SUBTYPES or name.endswith(("+xml", "+json")):
        return "utf-8"
    return "binary" if family in {"image", "audio", "video", "font"} else None


class ProjectionUpdater:
    """Keeps the `VirtualFileSystem` slice of one session consistent with one filesystem.

    Changes inside a transaction reach the session on commit; changes outside of any
    transaction reach it at once. When the session is restored without the files, they are
    scanned again.
    """

    def __init__(
        self,
        session: Session,
        filesystem: Filesystem,
        *,
        root_path: str = "",
        files: ProjectedFiles = "all",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Scan `filesystem`, unless only changed files count; fill the slice and subscribe."""
        self._session = session
        self._filesystem = filesystem
        self._root_path = root_path
        self._clock = clock
        self._since = clock.now() if files == "changed" else None
        self._is_closed = self._has_scanned = False
        self._open_transactions: set[Transaction] = set()
        self._unsubscribers: list[Callable[[], None]] = []
        folds = create_reducers(self._now, self._since)
        is_new = session[VirtualFileSystem].latest() is None  # `install` then fills the slice
        session.install(
            VirtualFileSystem,
            initial=self._scan,
            reducers={each: self._filter_events(fold) for each, fold in folds.items()},
            refresh=self._scan_after_restore,
        )
        if not is_new:
            self.rescan()
        self._has_scanned = True
        self._unsubscribers.append(session.bus.subscribe(StateReplaced, self._on_state_replaced))
        if isinstance(filesystem, Observable):
            self._unsubscribers.append(filesystem.subscribe(self._on_change))

    def rescan(self) -> None:
        """Scan again, with all files as new: versions and dates start over."""
        self._session.refresh(VirtualFileSystem, lambda _: self._scan())

    def close(self) -> None:
        """Stop updating the slice; it keeps its last value."""
        self._is_closed = True
        for unsubscribe in self._unsubscribers:
            unsubscribe()
        self._unsubscribers.clear()

    def _scan(
        self, known: VirtualFileSystem | None = None, rewritten: Set[str] | None = None
    ) -> VirtualFileSystem:
        """Return the files, compared with what was known."""

        def read_files() -> VirtualFileSystem:
            return scan(
                self._filesystem,
                known or VirtualFileSystem(self._root_path),
                self._root_path,
                self._now(),
                rewritten,
                sniff=self._has_scanned,
                since=self._since,
            )

        found, open_transactions = read_consistently(self._filesystem, read_files)
        for each in open_transactions:
            self._refresh_after(each)
        return found

    def _scan_after_restore(self, known: VirtualFileSystem | None) -> VirtualFileSystem:
        """Return the files after the session was restored to `known`."""
        if self._is_closed:
            return known or VirtualFileSystem(self._root_path)
        return self._scan(known)

    def _refresh_after(self, transaction: Transaction) -> None:
        """Scan again when a transaction has been committed or rolled back."""
        if transaction in self._open_transactions:
            return
        self._open_transactions.add(transaction)

        def refresh() -> None:
            self._open_transactions.discard(transaction)
            self._refresh()

        transaction.on_end(refresh)

    def _refresh(self, rewritten: Set[str] | None = None) -> None:
        if not self._is_closed:
            self._session.refresh(VirtualFileSystem, lambda known: self._scan(known, rewritten))

    def _now(self) -> datetime:
        return self._clock.now()

    def _filter_events(
        self, fold: Reducer[VirtualFileSystem, Any]
    ) -> Reducer[VirtualFileSystem, Any]:
        """Return a reducer that ignores events from other sessions on the same bus."""

        def reducer(known: tuple[VirtualFileSystem, ...], event: Any) -> Any:
            return fold(known, event) if self._accepts_events() else known

        return reducer

    def _accepts_events(self) -> bool:
        if self._is_closed:
            return False
        return current_publisher() in {None, self._session.session_id}

    def _on_change(self, event: FilesystemEvent) -> None:
        """Dispatch a change to the session, unless a transaction will do so on commit."""
        enclosing = current_transaction()
        if enclosing is not None and enclosing.covers(self._filesystem):
            if enclosing.session is not self._session:
                self._refresh_after(enclosing.outermost)  # it notifies only its own session
            return
        try:
            self._session.dispatch(event)
        except TransactionEndedError:
            self._refresh()  # the call was abandoned, but its change was made

    def _on_state_replaced(self, event: StateReplaced) -> None:
        if self._accepts_events():
            self._refresh(event.rewritten)
