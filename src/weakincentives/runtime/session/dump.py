"""Dumps: a tree of sessions with its files, written to disk and loaded again."""

import errno
import os
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, TypeAlias, cast
from uuid import uuid4, uuid5

from weakincentives.errors import SnapshotError
from weakincentives.filesystem import (
    DEFAULT_ARCHIVE_LIMITS,
    Archivable,
    ArchivableFilesystem,
    ArchiveDirectory,
    ArchiveError,
    ArchiveLimits,
    Filesystem,
    InMemoryFilesystem,
    InvalidPathError,
    ReadableFilesystem,
    export_state,
    import_state,
    is_exportable,
    seal,
    validate_path,
)
from weakincentives.posix import os_error
from weakincentives.runtime.deadlines import SYSTEM_CLOCK
from weakincentives.runtime.events import EventBus
from weakincentives.runtime.session.dump_format import (
    FORMAT,
    MAX_DUMP_BYTES,
    VERSION,
    DumpedSession,
    DumpFiles,
    DumpHeader,
    describe_archive,
    dump_error,
    encode_dump,
    line_error,
    read_dump,
    write_text,
)
from weakincentives.runtime.session.session import Session
from weakincentives.runtime.session.snapshots import (
    LoadedSlices,
    Snapshot,
    SnapshotFormatError,
    StoredSession,
    Types,
    Unknown,
    find_imported_type,
    load_slices,
)

_MAX_ATTEMPTS = 3
_LABEL = "session_id"
_NO_ROOT = "/"  # the root if there is no workspace on disk

CapturedSession: TypeAlias = tuple[Session, Snapshot]
"""A session at one moment."""


def capture_sessions(session: Session) -> list[CapturedSession]:
    """Return a session and its descendants, parents first; each is captured atomically."""
    found: list[CapturedSession] = []
    pending = [session]
    while pending:
        each = pending.pop()
        pending += reversed(each.children)
        found.append((each, each.snapshot()))
    return found


def rebuild_session(
    stored: Iterable[StoredSession],
    loaded: Iterable[LoadedSlices],
    parents: Iterable[int | None],
    bus: EventBus | None = None,
) -> Session:
    """Return the root of a stored tree; `parents` are places, each before its children.

    Only the root uses `bus`.
    """
    rebuilt: list[Session] = []
    for each, (slices, logs), parent in zip(stored, loaded, parents, strict=True):
        session = Session(
            bus=bus if parent is None else None,
            parent=None if parent is None else rebuilt[parent],
            session_id=each.session_id,
            created_at=each.created_at,
            tags=each.tags,
        )
        for kind in slices:
            session.install(kind, log=kind in logs)
        session.restore(
            Snapshot(
                snapshot_id=uuid4(),
                session_id=each.session_id,
                created_at=each.created_at,
                slices=slices,
                logs=logs,
            ),
            preserve_logs=False,
        )
        rebuilt.append(session)
    return rebuilt[0]


class FilesystemHolder(Protocol):
    """An object with a filesystem, such as a section of a prompt."""

    @property
    def filesystem(self) -> Filesystem | None:
        """The workspace."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedDump:
    """The content of a dump; `filesystem` is None if the dump has no files."""

    session: Session
    filesystem: ArchivableFilesystem | None
    created_at: datetime


def dump_session_tree(
    session: Session,
    target: str | os.PathLike[str],
    filesystem_section: FilesystemHolder | Filesystem | None = None,
    *,
    created_at: datetime | None = None,
) -> Path | None:
    """Write a session with its descendants and its files to disk.

    The dump is named after the session's label `session_id`, or else its ID. An earlier dump
    with that name is replaced atomically: if the process is killed, either the old or the new
    dump is complete.

    Args:
        session: The root of the tree.
        target: The directory; or a file in it, whose own name is ignored.
        filesystem_section: An object with a `filesystem`, or the filesystem itself.
        created_at: The date of the dump; the same state with the same date gives the same bytes.

    Returns:
        The `.jsonl` file; None if no session has an item and there are no files.

    Raises:
        SerdeError: An item contains a value that JSON cannot represent; nothing has changed.
        InvalidPathError: The label `session_id` is not a plain name.
        ValueError: `created_at` has no time zone, or the target is inside the workspace.
        FileExistsError: The `.jsonl` file exists and is not a dump.
        OSError: A file cannot be read or written; the old or the new dump is complete.
    """
    if created_at is not None and created_at.tzinfo is None:
        raise ValueError(f"created_at must have a time zone: {created_at!r}")
    date = (created_at or SYSTEM_CLOCK.now()).astimezone(UTC)
    name = _dump_name(session)
    captured = capture_sessions(session)
    filesystem = _filesystem_of(filesystem_section)
    has_items = any(items for _, each in captured for items in each.slices.values())
    if not has_items and (filesystem is None or not filesystem.list(".")):
        return None
    path = _target_directory(Path(target)) / f"{name}.jsonl"
    return _write_dump(DumpFiles(path), captured, filesystem, date)


def _write_dump(
    files: DumpFiles,
    captured: list[CapturedSession],
    filesystem: ReadableFilesystem | ArchivableFilesystem | None,
    date: datetime,
) -> Path:
    """Write the text of a dump and the archive of its files, and replace an earlier dump."""
    with _stage(files, filesystem) as staged:
        found = None
        if filesystem is not None:
            export_state(filesystem, staged, created_at=date, previous=files.archive)
            seal(staged)
            found = describe_archive(staged)
        text = staged.with_suffix(".jsonl")
        entries, snapshots = _date_sessions(captured, date)
        header = DumpHeader(FORMAT, VERSION, date, found, entries)
        write_text(text, encode_dump(header, snapshots))
        files.publish(text, None if found is None else staged)
    return files.text


def load_session(
    path: str | os.PathLike[str],
    types: Types = (),
    *,
    unknown: Unknown = "error",
    filesystem: ArchivableFilesystem | None = None,
    session_only: bool = False,
    bus: EventBus | None = None,
    archive_limits: ArchiveLimits = DEFAULT_ARCHIVE_LIMITS,
    max_bytes: int = MAX_DUMP_BYTES,
) -> Session:
    """Load a session and its children from a dump, and its files into `filesystem`.

    Without a filesystem the archive is only verified. Everything else is as in `load_dump`.
    """
    load = _Load(filesystem, unknown, bus, archive_limits, max_bytes, session_only)
    return load.run(path, types).session


def load_dump(
    path: str | os.PathLike[str],
    types: Types = (),
    *,
    unknown: Unknown = "error",
    filesystem: ArchivableFilesystem | None = None,
    bus: EventBus | None = None,
    archive_limits: ArchiveLimits = DEFAULT_ARCHIVE_LIMITS,
    max_bytes: int = MAX_DUMP_BYTES,
) -> LoadedDump:
    """Load a dump; the files go into `filesystem`, by default a new one in memory.

    Everything is verified before anything changes. Reducers are code and not part of a dump:
    register them again.

    Args:
        path: The `.jsonl` file; the archive must be beside it.
        types: The types of the slices; or types by their names in the dump. Dataclasses in
            modules that are already imported are found without it. Nothing that the dump
            names is imported.
        unknown: What to do with a slice whose type is neither given nor imported, or whose
            items do not match it: `error`, or `data`, which loads its items as `UnknownItem`.
        filesystem: The filesystem, of any backend, whose content is replaced by that of the
            dump. It stays as it is if the dump has no files.
        bus: The bus of the session; its children get new ones.
        archive_limits: Limits for the decompressed archive.
        max_bytes: The maximum size of the `.jsonl` file.

    Raises:
        FileNotFoundError: There is no dump.
        DumpError: It is not a dump, truncated, damaged, of another version, has a type that is
            neither given nor imported, or its two files belong to different dumps.
        LimitExceededError: The files exceed the quota of the filesystem.
    """
    chosen = InMemoryFilesystem() if filesystem is None else filesystem
    return _Load(chosen, unknown, bus, archive_limits, max_bytes).run(path, types)


@dataclass(frozen=True, slots=True)
class _Load:
    filesystem: ArchivableFilesystem | None
    unknown: Unknown
    bus: EventBus | None
    archive_limits: ArchiveLimits
    max_bytes: int
    session_only: bool = False

    def run(self, path: str | os.PathLike[str], types: Types) -> LoadedDump:
        """Load the dump; again if it was replaced meanwhile."""
        # Path.resolve would raise RuntimeError for a cycle of links
        files = DumpFiles(Path(os.path.realpath(path)))
        if self.filesystem is not None and not isinstance(self.filesystem, Archivable):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
            raise TypeError(f"Filesystem cannot import archives: {self.filesystem!r}")
        # an iterator would be exhausted after the first session
        known = cast("Types", types) if isinstance(types, Mapping) else tuple(types)
        for _ in range(_MAX_ATTEMPTS):
            before = files.identities
            try:
                loaded = self._run_once(files, known)
            except (ValueError, FileNotFoundError):
                if files.identities == before:
                    raise
                continue
            if files.identities == before:
                return loaded
        raise dump_error(files.text, "Dump keeps being replaced", "load it when that has stopped")

    def _run_once(self, files: DumpFiles, types: Types) -> LoadedDump:
        header, stored = read_dump(files, text_only=self.session_only, max_bytes=self.max_bytes)
        loaded: list[LoadedSlices] = []
        for number, each in enumerate(stored, 2):
            try:
                loaded.append(load_slices(each.slices, types, find_imported_type, self.unknown))
            except SnapshotFormatError as error:
                raise line_error(files.text, number, error) from error
        parents = [each.parent for each in header.sessions]
        session = rebuild_session(stored, loaded, parents, self.bus)
        if header.archive is None or self.session_only or self.filesystem is None:
            return LoadedDump(session, None, header.created_at)
        try:
            import_state(self.filesystem, files.archive, self.archive_limits)
        except ArchiveError as error:
            remedy = "allow more with archive_limits=, or dump the session again"
            raise dump_error(files.archive, str(error), remedy) from error
        return LoadedDump(session, self.filesystem, header.created_at)


def _date_sessions(
    captured: Iterable[CapturedSession], date: datetime
) -> tuple[list[DumpedSession], list[Snapshot]]:
    """Return the entries of a header, and the snapshots that follow it.

    Their IDs are derived from the date, so that the same state gives the same bytes.
    """
    entries: list[DumpedSession] = []
    snapshots: list[Snapshot] = []
    places: dict[Session | None, int] = {}
    for each, snapshot in captured:
        identity = uuid5(each.session_id, date.isoformat())
        known = places.get(each.parent), each.created_at, dict(each.tags)
        entries.append(DumpedSession(each.session_id, identity, *known))
        snapshots.append(replace(snapshot, snapshot_id=identity, created_at=date))
        places[each] = len(places)
    return entries, snapshots


def _dump_name(session: Session) -> str:
    """Return the file name of a dump, without suffixes."""
    name = session.tags.get(_LABEL)
    if name is None:
        return str(session.session_id)
    if not name or "/" in name or name.startswith(".") or validate_path(name) != name:
        raise InvalidPathError(f"Session label {_LABEL!r} is not a plain name: {name!r}")
    return name


def _target_directory(target: Path) -> Path:
    """Return the directory; if `target` has a suffix or is a file, that is its parent."""
    if target.is_dir() or not (target.suffix or target.exists()):
        return target
    return target.parent


def _filesystem_of(
    section: FilesystemHolder | Filesystem | None,
) -> ReadableFilesystem | ArchivableFilesystem | None:
    """Return the filesystem to archive.

    Raises:
        TypeError: It is neither a filesystem nor has one, or cannot export archives.
    """
    if section is None or isinstance(section, Filesystem):
        found = section
    elif not hasattr(section, "filesystem"):
        raise TypeError(f"Neither a filesystem nor an object with one: {section!r}")
    else:
        found = section.filesystem
    if found is None or is_exportable(found):
        return found
    raise TypeError(f"Filesystem cannot export archives: {found!r}")


@contextmanager
def _stage(
    files: DumpFiles, filesystem: ReadableFilesystem | ArchivableFilesystem | None
) -> Generator[Path, None, None]:
    """Yield a path for the archive in a hidden staging directory beside the target."""
    root = _NO_ROOT if filesystem is None else filesystem.root
    directory = files.text.parent
    with ExitStack() as stack:
        try:
            path = stack.enter_context(ArchiveDirectory(directory, root).stage(files.text.stem))
        except SnapshotError:
            raise ValueError(
                "Target is inside the workspace that is dumped (choose another one):"
                f" {str(directory)!r}"
            ) from None
        except OSError as error:  # it names an internal path
            raise os_error(error.errno or errno.EIO, str(directory)) from error
        yield path
