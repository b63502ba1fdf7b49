"""A tree of sessions as snapshots in the order of a dump, and back."""

import errno
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, cast
from uuid import uuid5

from weakincentives.errors import SnapshotError
from weakincentives.filesystem import (
    DEFAULT_ARCHIVE_LIMITS,
    Archivable,
    ArchivableFilesystem,
    ArchiveError,
    ArchiveLimits,
    Filesystem,
    InMemoryFilesystem,
    InvalidPathError,
    ReadableFilesystem,
    validate_path,
)
from weakincentives.filesystem.backend import export_state, import_state, is_exportable
from weakincentives.filesystem.snapshot_manager import ArchiveDirectory, seal
from weakincentives.posix import os_error
from weakincentives.runtime.clock import SYSTEM_CLOCK
from weakincentives.runtime.events import EventBus
from weakincentives.runtime.session.dump_files import (
    DumpFiles,
    describe_archive,
    open_dump,
    write_text,
)
from weakincentives.runtime.session.dump_format import (
    FORMAT,
    VERSION,
    DumpedArchive,
    DumpedSession,
    DumpHeader,
    Types,
    dump_error,
    encode_dump,
    read_snapshots,
)
from weakincentives.runtime.session.session import Session
from weakincentives.runtime.session.snapshots import Snapshot


@dataclass(frozen=True, slots=True)
class SessionTree:
    """A session and all below it at one moment, each after its parent."""

    date: datetime
    sessions: Sequence[Session]
    parents: Sequence[int | None]
    """Where the parent of each session is."""
    snapshots: Sequence[Snapshot]

    @property
    def has_items(self) -> bool:
        """Whether there is anything in a slice."""
        return any(items for each in self.snapshots for items in each.slices.values())

    def header(self, archive: DumpedArchive | None) -> DumpHeader:
        """Return the first line of the dump."""
        entries = [
            DumpedSession(
                each.session_id, snapshot.snapshot_id, parent, each.created_at, dict(each.tags)
            )
            for each, parent, snapshot in zip(
                self.sessions, self.parents, self.snapshots, strict=True
            )
        ]
        return DumpHeader(FORMAT, VERSION, self.date, archive, entries)


def capture_tree(session: Session, date: datetime) -> SessionTree:
    """Return a session and all below it as they are; each session is of one moment."""
    sessions: list[Session] = []
    parents: list[int | None] = []
    waiting: list[tuple[Session, int | None]] = [(session, None)]
    while waiting:
        current, parent = waiting.pop()
        waiting += [(child, len(sessions)) for child in reversed(current.children)]
        sessions.append(current)
        parents.append(parent)
    return SessionTree(date, sessions, parents, [_snapshot(each, date) for each in sessions])


def rebuild_session(
    header: DumpHeader, snapshots: Sequence[Snapshot], bus: EventBus | None
) -> Session:
    """Return the root of a tree that was dumped; `bus` is for the root alone."""
    made: list[Session] = []
    for entry, snapshot in zip(header.sessions, snapshots, strict=True):
        session = Session(
            bus=bus if entry.parent is None else None,
            parent=None if entry.parent is None else made[entry.parent],
            session_id=entry.session_id,
            created_at=entry.created_at,
            tags=entry.tags,
        )
        for kind in snapshot.slices:
            session.install(kind, log=kind in snapshot.logs)
        session.restore(snapshot, preserve_logs=False)
        made.append(session)
    return made[0]


def _snapshot(session: Session, date: datetime) -> Snapshot:
    # an id that follows from the date: the same state gives the same bytes
    identity = uuid5(session.session_id, date.isoformat())
    return replace(session.snapshot(snapshot_id=identity), created_at=date)


MAX_DUMP_BYTES = 1024**3
_ATTEMPTS = 3
_LABEL = "session_id"
_NOWHERE = "/"  # the root of a workspace that is nowhere on disk


class FilesystemHolder(Protocol):
    """Whatever has a filesystem, such as a section of a prompt."""

    @property
    def filesystem(self) -> Filesystem | None:
        """The workspace."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedDump:
    """What was in a dump; `filesystem` is None if it had no files."""

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
    """Write a session with all sessions below it, and the files, to the disk.

    The files are named after the session's label `session_id`, or else its id. An earlier dump
    of that name is replaced as a whole; a process that is killed leaves the old one or the
    new one.

    Args:
        session: The root of the tree.
        target: The directory; or a file in it, whose own name does not matter.
        filesystem_section: What has the files as its `filesystem`; or the filesystem itself.
        created_at: The date of the dump; the same state with the same date gives the same bytes.

    Returns:
        The `.jsonl` file; None if no session has an item and there are no files.

    Raises:
        SerdeError: An item holds what JSON cannot say; nothing has changed.
        InvalidPathError: The label `session_id` is not a plain name.
        ValueError: `created_at` has no time zone, or the target is inside the workspace.
        FileExistsError: Something that is no dump is in the place of the `.jsonl` file.
        OSError: A file cannot be read or written; the old dump is there, or the new one.
    """
    date = _date(created_at)
    name = _name(session)
    tree = capture_tree(session, date)
    filesystem = _filesystem_of(filesystem_section)
    if not tree.has_items and (filesystem is None or not filesystem.list(".")):
        return None
    files = DumpFiles(_directory(Path(target)) / f"{name}.jsonl")
    with _staged(files, filesystem) as staged:
        found = None
        if filesystem is not None:
            export_state(filesystem, staged, created_at=date, previous=files.archive)
            seal(staged)
            found = describe_archive(staged)
        text = staged.with_suffix(".jsonl")
        write_text(text, encode_dump(tree.header(found), tree.snapshots))
        files.publish(text, None if found is None else staged)
    return files.text


def load_session(
    path: str | os.PathLike[str],
    types: Types = (),
    *,
    filesystem: ArchivableFilesystem | None = None,
    session_only: bool = False,
    bus: EventBus | None = None,
    archive_limits: ArchiveLimits = DEFAULT_ARCHIVE_LIMITS,
    max_bytes: int = MAX_DUMP_BYTES,
) -> Session:
    """Return the session in a dump, with its children; put the files into `filesystem`.

    Without a filesystem the archive is checked, and stays where it is. Everything else is
    as with `load_dump`.
    """
    loaded = _load(
        _files_at(path),
        types,
        filesystem,
        _Options(session_only, bus, archive_limits, max_bytes),
    )
    return loaded.session


def load_dump(
    path: str | os.PathLike[str],
    types: Types = (),
    *,
    filesystem: ArchivableFilesystem | None = None,
    bus: EventBus | None = None,
    archive_limits: ArchiveLimits = DEFAULT_ARCHIVE_LIMITS,
    max_bytes: int = MAX_DUMP_BYTES,
) -> LoadedDump:
    """Return all that is in a dump; the files go into memory, or into `filesystem`.

    All of it is checked before anything changes. Reducers are code, so they are not in a dump:
    register them again.

    Args:
        path: The `.jsonl` file; the archive is looked for beside it.
        types: The types of the slices; or types by the names that the dump has for them.
            Dataclasses of modules that are imported already need not be given. Nothing that
            the dump names is imported.
        filesystem: What is made as it was, on any backend. It stays as it is if the dump has
            no files.
        bus: Where events of the session are published; its children get buses of their own.
        archive_limits: How much the archive may unfold to.
        max_bytes: How large the `.jsonl` file may be.

    Raises:
        FileNotFoundError: There is no dump.
        DumpError: It is none, cut off, damaged, of another version, has a type that was neither
            given nor imported, or its two files are not of one dump.
        LimitExceededError: The files exceed the quota of the filesystem.
    """
    files = _files_at(path)
    chosen = InMemoryFilesystem() if filesystem is None else filesystem
    return _load(files, types, chosen, _Options(False, bus, archive_limits, max_bytes))


@dataclass(frozen=True, slots=True)
class _Options:
    session_only: bool
    bus: EventBus | None
    archive_limits: ArchiveLimits
    max_bytes: int


def _load(
    files: DumpFiles, types: Types, filesystem: ArchivableFilesystem | None, options: _Options
) -> LoadedDump:
    """Load a dump; once more if somebody has replaced it meanwhile."""
    if filesystem is not None and not isinstance(filesystem, Archivable):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
        raise TypeError(f"Filesystem takes no archives: {filesystem!r}")
    # an iterator would be empty for the second session
    known = cast("Types", types) if isinstance(types, Mapping) else tuple(types)
    for _ in range(_ATTEMPTS):
        before = files.marks
        try:
            loaded = _loaded(files, known, filesystem, options)
        except (ValueError, FileNotFoundError):
            if files.marks == before:
                raise
            continue
        if files.marks == before:
            return loaded
    raise dump_error(files.text, "Dump is replaced again and again", "load it when that has ended")


def _files_at(path: str | os.PathLike[str]) -> DumpFiles:
    # not Path.resolve, to which a circle of links is an error of another kind
    return DumpFiles(Path(os.path.realpath(path)))


def _loaded(
    files: DumpFiles, types: Types, filesystem: ArchivableFilesystem | None, options: _Options
) -> LoadedDump:
    path, header = files.find(text_only=options.session_only)
    with open_dump(path) as file:
        if os.fstat(file.fileno()).st_size > options.max_bytes:
            raise dump_error(
                path, f"Dump is larger than {options.max_bytes} bytes", "allow more: max_bytes="
            )
        file.readline()
        snapshots = read_snapshots(path, file, header, types)
    session = rebuild_session(header, snapshots, options.bus)
    if header.archive is None or options.session_only or filesystem is None:
        return LoadedDump(session, None, header.created_at)
    _import(filesystem, files.archive, options.archive_limits)
    return LoadedDump(session, filesystem, header.created_at)


def _import(filesystem: ArchivableFilesystem, path: Path, limits: ArchiveLimits) -> None:
    try:
        import_state(filesystem, path, limits)
    except ArchiveError as error:
        remedy = "allow more with archive_limits=, or dump the session again"
        raise dump_error(path, str(error), remedy) from error


def _date(created_at: datetime | None) -> datetime:
    if created_at is not None and created_at.tzinfo is None:
        raise ValueError(f"created_at must have a time zone: {created_at!r}")
    return (created_at or SYSTEM_CLOCK.now()).astimezone(UTC)


def _name(session: Session) -> str:
    """Return what the files of a dump are called, without their suffixes."""
    name = session.tags.get(_LABEL)
    if name is None:
        return str(session.session_id)
    if not name or "/" in name or name.startswith(".") or validate_path(name) != name:
        raise InvalidPathError(f"Label {_LABEL!r} of the session is not a plain name: {name!r}")
    return name


def _directory(target: Path) -> Path:
    """Return the directory; a name with a suffix, or of a file, is a file in it."""
    if target.is_dir() or not (target.suffix or target.exists()):
        return target
    return target.parent


def _filesystem_of(
    section: FilesystemHolder | Filesystem | None,
) -> ReadableFilesystem | ArchivableFilesystem | None:
    """Return what to archive.

    Raises:
        TypeError: It is no filesystem and has none, or one that gives no archives.
    """
    if section is None or isinstance(section, Filesystem):
        found = section
    elif not hasattr(section, "filesystem"):
        raise TypeError(f"Not a filesystem, and without one: {section!r}")
    else:
        found = section.filesystem
    if found is None or is_exportable(found):
        return found
    raise TypeError(f"Filesystem gives no archives: {found!r}")


@contextmanager
def _staged(
    files: DumpFiles, filesystem: ReadableFilesystem | ArchivableFilesystem | None
) -> Generator[Path, None, None]:
    """Yield a path for the archive in a directory that nobody sees, beside its place."""
    root = _NOWHERE if filesystem is None else filesystem.root
    directory = files.text.parent
    with ExitStack() as stack:
        try:
            path = stack.enter_context(ArchiveDirectory(directory, root).staged(files.text.stem))
        except SnapshotError:
            raise ValueError(
                "Dump would be inside the workspace that is dumped (give another target):"
                f" {str(directory)!r}"
            ) from None
        except OSError as error:  # which names what nobody asked for
            raise os_error(error.errno or errno.EIO, str(directory)) from error
        yield path
