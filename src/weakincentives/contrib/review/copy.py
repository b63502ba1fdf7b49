"""Create a working copy and its base snapshot, in two processes if there are many files.

A scan lists the entries to copy, without reading their content. Left out are special files, what
is excluded, and what would lead git from the copy back to the original.
"""

import errno
import gc
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from weakincentives.contrib.review import records
from weakincentives.contrib.review.environments import Relocation, find_fixed_paths
from weakincentives.contrib.review.original import open_original
from weakincentives.contrib.review.removal import remove_copy
from weakincentives.contrib.review.views import GIT
from weakincentives.filesystem import (
    CompletedFilesystem,
    Content,
    FileStat,
    HostFilesystem,
    LimitExceededError,
    MountProgress,
    SkippedEntry,
    diff,
)
from weakincentives.filesystem.base import is_skippable
from weakincentives.filesystem.diff import Side
from weakincentives.filesystem.host import (
    CopyWorker,
    FileBatch,
    HostFile,
    SnapshotFilesystem,
    TreeWriter,
)
from weakincentives.filesystem.mounts import ProgressMeter
from weakincentives.history import LiveTree
from weakincentives.posix import (
    OpenDescriptor,
    RootedDirectory,
    count_processors,
    os_error,
    parent_of,
)
from weakincentives.runtime.timeline import has_steps

MAX_FILES = 200_000
MAX_BYTES = 4 * 1024**3
_MIN_FILES = 2_000  # that make it worthwhile to start a process
_MAX_BATCH = 100  # files that are copied at a time
_MAX_PATH_STEPS = 1_000
_COMMON_DIR = "commondir"
_GIT_FILE = re.compile(rb"gitdir:(.*)", re.DOTALL)
_CONFIGS = ("config", "config.worktree")
_GIT_FILES = frozenset({GIT, *_CONFIGS})
_WORKTREE = re.compile(rb"^[^#;\n]*\bworktree\s*=\s*\"?/", re.MULTILINE | re.IGNORECASE)
_MAX_GIT_FILE_BYTES = 1024 * 1024
_log = logging.getLogger(__name__)


class Scan:
    """The entries to copy, each directory before what is in it."""

    def __init__(
        self,
        source: Side,
        exclude: tuple[str, ...],
        max_files: int,
        max_bytes: int,
        root: Path,
        host: HostFilesystem | None = None,
    ) -> None:
        """List everything in `source`, the files of the directory `root`.

        `host` is the filesystem of the source, if it is that directory as it is now.
        """
        self.source: Side = source
        self.host: HostFilesystem | None = host
        self.root: Path = root
        self.exclude: tuple[str, ...] = exclude
        self.entries: list[FileStat] = []
        self.skipped: list[SkippedEntry] = []
        self.total_bytes: int = 0
        self.git_dirs: set[str] = set()
        self._limits = max_files, max_bytes
        self._filter = records.exclusion_filter(exclude)
        pending = [""]
        while pending:
            pending += self._scan_directory(pending.pop())

    def skip(self, path: str, reason: str) -> None:
        """Note that an entry is not copied."""
        self.skipped.append(SkippedEntry(path, reason))

    def _scan_directory(self, path: str) -> Iterator[str]:
        """Add the entries of a directory; yield its subdirectories."""
        try:
            children = self.source.children(path)
        except OSError as error:
            if not path or not is_skippable(error):
                raise
            self.skip(path, error.strerror or str(error))
            return
        is_git = self._note_git(path, children)
        for name, found in children.items():
            if self._filter and not self._filter.wants(found.path):
                continue
            if found.kind == "special":
                self.skip(found.path, "not a regular file")
            elif name in _GIT_FILES and self._leads_to_another_repository(found, is_git=is_git):
                self.skip(found.path, "git would change the original through it")
            else:
                self._add(found)
                if found.is_directory:
                    yield found.path

    def _add(self, found: FileStat) -> None:
        self.entries.append(found)
        self.total_bytes += found.size_bytes
        max_files, max_bytes = self._limits
        if len(self.entries) > max_files:
            raise self._limit_error(f"more than {max_files} files", "max_files")
        if self.total_bytes > max_bytes:
            raise self._limit_error(f"more than {max_bytes} bytes", "max_bytes")

    def _limit_error(self, fact: str, name: str) -> LimitExceededError:
        return LimitExceededError(
            f"Directory is too large to copy, {fact}: {str(self.root)!r};"
            f" exclude something with exclude=, or raise {name}"
        )

    def _note_git(self, directory: str, children: Mapping[str, FileStat]) -> bool:
        """Record git directories; return whether this is one."""
        for found in children.values():
            target = self._find_target(found, children)
            if target:
                self.git_dirs |= resolve_git_pointer(self.root, directory, target)
        is_git = bool(directory) and is_git_directory(children)
        if is_git:
            self.git_dirs.add(directory)
        return is_git

    def _find_target(self, found: FileStat, siblings: Collection[str]) -> str | None:
        """Return where git goes from a link or file; None if it goes nowhere."""
        name = found.path.rpartition("/")[2]
        if name.casefold() == GIT and found.link_target is not None:
            return found.link_target
        if name.casefold() == GIT and found.is_file:
            pointer = _GIT_FILE.match(self._content(found.path))
            return None if pointer is None else os.fsdecode(pointer[1].strip())
        if name == _COMMON_DIR and found.is_file and "HEAD" in siblings:
            return os.fsdecode(self._content(found.path)).strip()
        return None

    def _leads_to_another_repository(self, found: FileStat, *, is_git: bool) -> bool:
        """Return whether git would find the original's repository or files through it."""
        *above, name = found.path.split("/")
        if name == GIT:
            target = self._find_target(found, ())
            return target is not None and leads_out(found.path, target)
        if not found.is_file or found.size_bytes > _MAX_GIT_FILE_BYTES:
            return False
        is_config = is_git or GIT in above
        return is_config and _WORKTREE.search(self._content(found.path)) is not None

    def _content(self, path: str) -> bytes:
        try:
            with self.source.open(path) as content:
                return content.read(0, _MAX_GIT_FILE_BYTES)
        except OSError:
            return b""  # copying it reports the error


def leads_out(path: str, target: str) -> bool:
    """Return whether a link or pointer at `path` with this `target` leads out of the root."""
    if target.startswith("/"):
        return True
    reached = os.path.normpath(f"{parent_of(path)}/{target}".lstrip("/"))
    return reached == ".." or reached.startswith("../")


def is_git_directory(names: Collection[str]) -> bool:
    """Return whether git would take a directory with these names for a repository."""
    return "HEAD" in names and ({"objects", "refs"} <= set(names) or "commondir" in names)


def resolve_git_pointer(root: Path, directory: str, target: str) -> set[str]:
    """Return the target of a pointer in a `directory` of `root`, and the links on the way.

    Only paths below the root are returned, relative to it; a pointer may be absolute.
    """
    here, found = Path(os.sep), set[Path]()
    pending = list(reversed((root / directory / target).parts[1:]))
    for _ in range(_MAX_PATH_STEPS):
        if not pending:
            found.add(here)
            break
        name = pending.pop()
        here = here.parent if name == ".." else here / name
        if os.path.islink(here):  # noqa: PTH114 # Path.is_symlink raises for a name that is too long
            found.add(here)
            link = here.readlink()
            pending += [each for each in reversed(link.parts) if each != os.sep]
            here = Path(os.sep) if link.is_absolute() else here.parent
    inside = (each.relative_to(root) for each in found if each.is_relative_to(root))
    return {each.as_posix() for each in inside if each.parts}


def working_copy(
    original: str | os.PathLike[str],
    *,
    place: str | os.PathLike[str] | None = None,
    exclude: Sequence[str] = (),
    max_files: int = MAX_FILES,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[MountProgress], object] | None = None,
) -> records.WorkingCopy:
    """Copy a directory, and record its state for a later review.

    A savepoint that was interrupted in the original is rolled back first. Unreadable files,
    pipes and other special files are skipped and reported, and so is the `.git` file of a
    worktree, through which git would change the original. Virtual environments in the copy use
    the copy: absolute paths in their scripts and editable installs become relative.

    Args:
        original: The directory.
        place: A directory for the copy; by default a new one in the temporary
            directory. It may be inside the original only where `exclude` leaves it out.
        exclude: Globs of paths to leave out; one without `/` matches names at any depth.
        max_files: Limit of files, links and directories.
        max_bytes: Limit of the total size of the files.
        progress: Called with the progress; an exception from it cancels the copy.

    Raises:
        NotADirectoryError: The original is not a directory.
        CopyError: The place is inside the original, or has a copy already.
        ApplyInterruptedError: An apply to the original was interrupted.
        LimitExceededError: The original is too large.
    """
    source = Path(os.path.realpath(original))
    if isinstance(exclude, str):
        raise TypeError(f"exclude must be a sequence of globs, not one: {exclude!r}")
    globs = tuple(exclude)
    with open_original(source, read_only=True) as opened:
        opened.ensure_not_interrupted()
    with HostFilesystem(source) as files, _paused_collection():
        scan = Scan(Side(files), globs, max_files, max_bytes, source, files)
        meter = ProgressMeter(progress, len(scan.entries), scan.total_bytes)
        with _place(place, source, globs) as target:
            return _create_copy(scan, target, meter)


@contextmanager
def _paused_collection() -> Generator[None]:
    """Collect no garbage: thousands of new objects would set it off, and all stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def copy_of_states(
    before: SnapshotFilesystem,
    after: SnapshotFilesystem,
    *,
    original: str | os.PathLike[str],
    place: str | os.PathLike[str] | None = None,
    exclude: Sequence[str] = (),
) -> tuple[records.WorkingCopy, list[SkippedEntry]]:
    """Return a working copy with the files of `after`, and what cannot be copied.

    A review compares with `before`, the state that was copied from the original at the time, so
    that changes which others made in the original since then are found. Derived files that are
    not recorded are copied from the original as they are now. Set-user-ID bits and the like are
    not: somebody else may have recorded the states.

    Raises:
        NotADirectoryError: The original is not a directory.
        CopyError: The place is inside the original, or has a copy already.
    """
    source = Path(os.path.realpath(original))
    if not source.is_dir():
        raise os_error(errno.ENOTDIR, str(source))
    globs = tuple(exclude)
    before = before.without_rights()
    with _place(place, source, globs) as target:
        with HostFilesystem(source, read_only=True) as now:
            complete = Side(CompletedFilesystem(before, now))
            scan = Scan(complete, globs, sys.maxsize, sys.maxsize, source)
            copy = _create_copy(scan, target, ProgressMeter(None, 0, 0))
        with records.open_files(copy) as files:
            return copy, _restore_changes(before, after, files)


def _create_copy(scan: Scan, place: Path, meter: ProgressMeter) -> records.WorkingCopy:
    records.workspace_path(place).mkdir()
    with HostFilesystem(
        records.workspace_path(place), git_dir=records.history_path(place)
    ) as target:
        base = target.fill(lambda writer: _Transfer(writer, scan, meter).run(), tag="copied state")
    links = [(each.path, each.link_target) for each in scan.entries]
    facts = records.CopyFacts(
        base=base,
        exclude=scan.exclude,
        skipped=tuple(sorted(scan.skipped, key=lambda each: each.path)),
        git_dirs=tuple(sorted(scan.git_dirs)),
        fixed_paths=find_fixed_paths(scan.entries),
        external_links=tuple(
            sorted(path for path, to in links if to is not None and leads_out(path, to))
        ),
    )
    record = records.find_record(place) or records.RunRecord(
        original=str(scan.root), created_at=base.created_at, began_at=base.created_at
    )
    records.write_record(place, replace(record, original=str(scan.root), copy=facts))
    return records.open_copy(place)


def _restore_changes(
    before: SnapshotFilesystem, after: SnapshotFilesystem, target: HostFilesystem
) -> list[SkippedEntry]:
    """Restore what differs between two states; return what cannot be restored."""
    changes = diff(before, after.without_rights(), renames=False).entries
    kept = [each.after for each in changes if each.is_directory and each.before and each.after]
    new = {each.path for each in changes if each.after is not None and each.after not in kept}
    gone = {each.path for each in changes if each.after is None and target.exists(each.path)}
    specials = new & {*after.manifest.specials}
    target.restore(after, paths=sorted((new | gone) - specials))
    with closing(RootedDirectory(Path(target.root))) as root, closing(LiveTree(root)) as tree:
        for each in reversed(kept):
            tree.set_mode(each.path, each.permissions)
    return [SkippedEntry(path, "not a regular file") for path in sorted(specials)]


@contextmanager
def _place(
    place: str | os.PathLike[str] | None, source: Path, exclude: tuple[str, ...]
) -> Generator[Path]:
    """Create a place for the copy; after an error it is removed with what is in it."""
    target = _create_place(place, source, exclude)
    try:
        yield target
    except BaseException:
        remove_copy(target)
        raise


def _create_place(
    place: str | os.PathLike[str] | None, source: Path, exclude: tuple[str, ...]
) -> Path:
    """Create an empty directory for the copy, where it is not copied itself."""
    wanted = Path(tempfile.gettempdir() if place is None else place).absolute()
    if _is_copied(Path(os.path.realpath(wanted)), source, exclude):
        raise records.CopyError(
            f"The working copy must not be inside the original: {str(wanted)!r};"
            " choose another place"
        )
    if place is None:
        return Path(tempfile.mkdtemp(prefix="wink-run-", dir=wanted))
    wanted.mkdir(0o700, parents=True, exist_ok=True)
    history = records.history_path(wanted)
    is_taken = os.path.lexists(history) and not has_steps(history)
    if is_taken or os.path.lexists(records.workspace_path(wanted)):
        raise records.CopyError(f"The place has a working copy already: {str(wanted)!r}")
    return wanted


def _is_copied(path: Path, source: Path, exclude: tuple[str, ...]) -> bool:
    """Return whether a path is the source or below it, and not excluded."""
    if not path.is_relative_to(source):
        return False
    inside = path.relative_to(source)
    wanted = records.exclusion_filter(exclude)
    return all(wanted.wants(str(each)) for each in (inside, *inside.parents) if each.parts)


class _Transfer:
    """One copy: directories and links first, then files, a directory at a time."""

    def __init__(self, writer: TreeWriter, scan: Scan, meter: ProgressMeter) -> None:
        self._writer = writer
        self._scan = scan
        self._meter = meter
        self._relocation = Relocation(scan.root, scan.entries)
        self._stats: dict[str, FileStat] = {}  # of the files that the worker has
        self._worker: CopyWorker | None = None

    def run(self) -> None:
        files = [each for each in self._scan.entries if self._is_left(each)]
        with ExitStack() as stack:
            if len(files) >= _MIN_FILES and self._scan.host and count_processors() > 1:
                self._worker = stack.enter_context(CopyWorker())
            for directory, group in groupby(files, key=lambda each: parent_of(each.path)):
                self._write_directory(directory, list(group))
            if self._worker is not None:
                self._finish_batches(self._worker, wait=True)

    def _is_left(self, found: FileStat) -> bool:
        """Write an entry that is not a file; return whether it is one."""
        if found.is_file:
            return True
        if found.is_directory:
            self._writer.add_directory(found.path, found.permissions)
        elif found.link_target is not None:
            self._writer.add_link(found.path, self._relocation.link_target(found))
        self._meter.add(1, found.size_bytes)
        return False

    def _write_directory(self, directory: str, files: Sequence[FileStat]) -> None:
        """Write the files of one directory, which may be many."""
        host = self._scan.host
        source = None
        if host is not None and not self._relocation.rewrites_in(directory):
            with suppress(OSError):  # opening its files tells why
                source = host.open_directory(directory)
        if source is None:
            self._finish(files, (False for _ in files))
            return
        with OpenDescriptor(source):
            for start in range(0, len(files), _MAX_BATCH):
                batch = files[start : start + _MAX_BATCH]
                if not self._submit(directory, batch, source):
                    names = (each.path.rpartition("/")[2] for each in batch)
                    self._finish(batch, self._writer.copy_files(source, directory, names))
                if self._worker is not None:
                    self._finish_batches(self._worker)

    def _submit(self, directory: str, files: Sequence[FileStat], source: int) -> bool:
        """Let the worker copy files, if it has time."""
        if self._worker is None or not self._worker.has_room:
            return False
        names = [each.path.rpartition("/")[2] for each in files]
        batch = FileBatch(directory, names)
        if not self._worker.submit(batch, source, self._writer.open_directory(directory)):
            return False
        self._stats |= {each.path: each for each in files}
        return True

    def _finish_batches(self, worker: CopyWorker, *, wait: bool = False) -> None:
        for batch in worker.receive(wait=wait):
            prefix = f"{batch.directory}/" if batch.directory else ""
            copied = self._writer.add_copied(batch)
            self._finish([self._stats.pop(prefix + name) for name in batch.names], copied)

    def _finish(self, files: Sequence[FileStat], copied: Iterable[bool]) -> None:
        for found, is_copied in zip(files, copied, strict=True):
            if not is_copied:
                self._write_content(found)
            self._meter.add(1, found.size_bytes)

    def _write_content(self, found: FileStat) -> None:
        """Write a file whose content may be rewritten, or which could not be copied as it is."""
        try:
            content = self._scan.source.open(found.path)
        except OSError as error:
            if not (is_skippable(error) or isinstance(error, IsADirectoryError)):
                raise
            self._scan.skip(found.path, error.strerror or str(error))
            return
        with content:
            self._write(found, content)

    def _write(self, found: FileStat, content: Content) -> None:
        modified = None
        if isinstance(content, HostFile):
            modified = content.modified_ns
        elif found.modified_at is not None:
            modified = int(found.modified_at.timestamp() * 1_000_000) * 1_000
        rewritten = self._relocation.rewrite(found, content)
        self._writer.add_file(found.path, rewritten, found.permissions, modified)
