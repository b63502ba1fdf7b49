"""Create a working copy: files, links, directories and permissions, and its base snapshot."""

import errno
import gc
import os
import re
import sys
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path

from weakincentives.contrib.review import records
from weakincentives.contrib.review.environments import Relocation, find_fixed_paths
from weakincentives.contrib.review.recovery import ensure_not_interrupted, open_original
from weakincentives.contrib.review.views import GIT, PreservingFilesystem
from weakincentives.filesystem import (
    Content,
    FileStat,
    HostFilesystem,
    LimitExceededError,
    MountProgress,
    ReadableFilesystem,
    SkippedEntry,
    diff,
)
from weakincentives.filesystem.base import is_skippable
from weakincentives.filesystem.derived import CompletedFilesystem
from weakincentives.filesystem.diff import Side
from weakincentives.filesystem.host import HostFile, TreeWriter
from weakincentives.filesystem.mounts import ProgressMeter
from weakincentives.posix import os_error, parent_of, parents_of, remove

_MAX_PATH_STEPS = 1_000

MAX_FILES = 200_000
MAX_BYTES = 4 * 1024**3
_COMMON_DIR = "commondir"
_GIT_FILE = re.compile(rb"gitdir:(.*)", re.DOTALL)
_CONFIGS = ("config", "config.worktree")
_GIT_FILES = frozenset({GIT, *_CONFIGS})
_WORKTREE = re.compile(rb"^[^#;\n]*\bworktree\s*=\s*\"?/", re.MULTILINE | re.IGNORECASE)
_MAX_GIT_FILE_BYTES = 1024 * 1024
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OWNER_ACCESS = 0o700
_NO_METER = ProgressMeter(None, 0, 0)


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
        place: A new or empty directory for the copy; by default one in the temporary
            directory. It may be inside the original only where `exclude` leaves it out.
        exclude: Globs of paths to leave out; one without `/` matches names at any depth.
        max_files: Limit of files, links and directories.
        max_bytes: Limit of the total size of the files.
        progress: Called with the progress; an exception from it cancels the copy.

    Raises:
        NotADirectoryError: The original is not a directory.
        CopyError: The place is inside the original, or not empty.
        ApplyInterruptedError: An apply to the original was interrupted.
        LimitExceededError: The original is too large.
    """
    source = Path(os.path.realpath(original))
    if isinstance(exclude, str):
        raise TypeError(f"exclude must be a sequence of globs, not one: {exclude!r}")
    globs = tuple(exclude)
    with open_original(source, read_only=True) as opened:
        ensure_not_interrupted(opened, source)
    with HostFilesystem(source) as files, _pause_collector():
        scan = _Scan(Side(files), globs, max_files, max_bytes, source, files)
        target = _create_place(place, source, globs)
        try:
            return _create_copy(
                scan, target, ProgressMeter(progress, scan.file_count, scan.total_bytes)
            )
        except BaseException:
            remove_place(target)
            raise


def copy_of_states(
    before: ReadableFilesystem,
    after: ReadableFilesystem,
    *,
    original: str | os.PathLike[str],
    place: str | os.PathLike[str] | None = None,
    exclude: Sequence[str] = (),
) -> tuple[records.WorkingCopy, list[SkippedEntry]]:
    """Return a working copy with the files of `after`, and what cannot be copied.

    A review compares with `before`, the state that was copied from the original at the time, so
    that changes which others made in the original since then are found. Derived files that are
    not recorded are copied from the original as they are now.

    Raises:
        NotADirectoryError: The original is not a directory.
        CopyError: The place is inside the original, or not empty.
    """
    source = Path(os.path.realpath(original))
    if not source.is_dir():
        raise os_error(errno.ENOTDIR, str(source))
    globs = tuple(exclude)
    target = _create_place(place, source, globs)
    try:
        with HostFilesystem(source, read_only=True) as now:
            complete = Side(CompletedFilesystem(before, now))
            scan = _Scan(complete, globs, sys.maxsize, sys.maxsize, source)
            copy = _create_copy(scan, target, _NO_METER)
        with records.open_files(copy) as files:
            return copy, write_changes(before, after, files)
    except BaseException:
        remove_place(target)
        raise


def write_tree(source: ReadableFilesystem, target: PreservingFilesystem) -> list[SkippedEntry]:
    """Copy everything into an empty directory, unchanged; return what cannot be copied."""
    side = Side(source)
    skipped: list[SkippedEntry] = []
    entries = [each for _, found in side.directories("Restore") for each in found.values()]
    _put_all(target, entries, side, skipped, _NO_METER)
    return skipped


def remove_place(place: Path) -> None:
    """Remove a working copy, whatever its permissions are."""
    directory = os.open(place.parent, _DIRECTORY_FLAGS)
    try:
        remove(directory, place.name)
    finally:
        os.close(directory)


class _Scan:
    """The entries to copy, found without reading file contents."""

    def __init__(
        self,
        source: Side,
        exclude: tuple[str, ...],
        max_files: int,
        max_bytes: int,
        root: Path,
        host: HostFilesystem | None = None,
    ) -> None:
        self.source = source
        self.host = host
        self.root = root
        self.exclude = exclude
        self.entries: list[FileStat] = []
        self.skipped: list[SkippedEntry] = []
        self.total_bytes = 0
        self.git_dirs: set[str] = set()
        self._limits = max_files, max_bytes
        self._filter = records.exclusion_filter(exclude)
        pending = [""]
        while pending:
            pending += self._scan_directory(pending.pop())

    @property
    def file_count(self) -> int:
        return len(self.entries)

    def skip(self, path: str, reason: str) -> None:
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
        for name, found in children.items():
            target = None
            if name.casefold() == GIT and found.link_target is not None:
                target = found.link_target
            elif name.casefold() == GIT and found.is_file:
                pointer = _GIT_FILE.match(self._content(found.path))
                target = None if pointer is None else os.fsdecode(pointer[1].strip())
            elif name == _COMMON_DIR and found.is_file and "HEAD" in children:
                target = os.fsdecode(self._content(found.path)).strip()
            if target:
                self.git_dirs |= resolve_git_pointer(self.root, directory, target)
        is_git = bool(directory) and is_git_directory(children)
        if is_git:
            self.git_dirs.add(directory)
        return is_git

    def _leads_to_another_repository(self, found: FileStat, *, is_git: bool) -> bool:
        """Return whether git would find the original's repository or files through it."""
        *above, name = found.path.split("/")
        if found.link_target is not None:
            return name == GIT and _leads_out(found.path, found.link_target)
        if not found.is_file or found.size_bytes > _MAX_GIT_FILE_BYTES:
            return False
        if name == GIT:
            beginning = _GIT_FILE.match(self._content(found.path))
            return beginning is not None and _leads_out(
                found.path, os.fsdecode(beginning[1].strip())
            )
        is_config = name in _CONFIGS and (is_git or GIT in above)
        return is_config and _WORKTREE.search(self._content(found.path)) is not None

    def _content(self, path: str) -> bytes:
        try:
            with self.source.open(path) as content:
                return content.read(0, _MAX_GIT_FILE_BYTES)
        except OSError:
            return b""  # copying it reports the error


@contextmanager
def _pause_collector() -> Generator[None, None, None]:
    """Look for no garbage meanwhile: thousands of new objects would set it off, and all stay."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def _leads_out(path: str, target: str) -> bool:
    """Return whether a link or pointer at `path` with this `target` leads out of the root."""
    if target.startswith("/"):
        return True
    reached = os.path.normpath(f"{parent_of(path)}/{target}".lstrip("/"))
    return reached == ".." or reached.startswith("../")


def _create_copy(scan: _Scan, place: Path, meter: ProgressMeter) -> records.WorkingCopy:
    records.workspace_path(place).mkdir()
    with PreservingFilesystem(
        records.workspace_path(place), git_dir=records.history_path(place)
    ) as target:
        base = target.fill(lambda writer: _write_all(writer, scan, meter), tag="copied state")
    links = [(each.path, each.link_target) for each in scan.entries]
    record = records.CopyRecord(
        original=str(scan.root),
        base=base,
        exclude=scan.exclude,
        skipped=tuple(sorted(scan.skipped, key=lambda each: each.path)),
        git_dirs=tuple(sorted(scan.git_dirs)),
        size_bytes=scan.total_bytes,
        fixed_paths=find_fixed_paths(scan.entries),
        external_links=tuple(
            sorted(path for path, to in links if to is not None and _leads_out(path, to))
        ),
    )
    records.write_record(place, record)
    return records.open_copy(place)


def _write_all(writer: TreeWriter, scan: _Scan, meter: ProgressMeter) -> None:
    """Write the scanned entries; note what cannot be copied."""
    relocation = Relocation(scan.root, scan.entries)
    for _, group in groupby(scan.entries, key=lambda each: parent_of(each.path)):
        files: list[FileStat] = []
        for found in group:
            if found.is_file:
                files.append(found)
                continue
            if found.is_directory:
                writer.add_directory(found.path, found.permissions)
            elif found.link_target is not None:
                writer.add_link(found.path, relocation.link_target(found))
            meter.add(1, found.size_bytes)
        _write_files(writer, files, scan, meter, relocation)


def _write_files(
    writer: TreeWriter,
    files: Sequence[FileStat],
    scan: _Scan,
    meter: ProgressMeter,
    relocation: Relocation,
) -> None:
    """Write the files of one directory, which may be many."""
    directory = parent_of(files[0].path) if files else ""
    if not files or scan.host is None or relocation.rewrites_in(directory):
        _write_contents(writer, files, scan, meter, relocation)
        return
    try:
        source = scan.host.open_directory(directory)
    except OSError:
        _write_contents(writer, files, scan, meter, relocation)
        return
    try:
        names = (each.path.rpartition("/")[2] for each in files)
        for found, is_copied in zip(
            files, writer.copy_files(source, directory, names), strict=True
        ):
            if not is_copied:
                _write_missed_file(writer, found, scan, relocation)
            meter.add(1, found.size_bytes)
    finally:
        os.close(source)


def _write_contents(
    writer: TreeWriter,
    files: Sequence[FileStat],
    scan: _Scan,
    meter: ProgressMeter,
    relocation: Relocation,
) -> None:
    """Write the files of one directory, each as its content may be rewritten."""
    with closing(scan.source.contents(each.path for each in files)) as contents:
        opened = next(contents, None)
        for found in files:
            if opened is not None and opened[0] == found.path:
                _write_file(writer, found, opened[1], relocation)
                opened = next(contents, None)
            else:
                _write_missed_file(writer, found, scan, relocation)
            meter.add(1, found.size_bytes)


def _write_missed_file(
    writer: TreeWriter, found: FileStat, scan: _Scan, relocation: Relocation
) -> None:
    """Write a file that could not be opened, unless it still cannot."""
    try:
        content = scan.source.open(found.path)
    except OSError as error:
        if not (is_skippable(error) or isinstance(error, IsADirectoryError)):
            raise
        scan.skip(found.path, error.strerror or str(error))
        return
    with content:
        _write_file(writer, found, content, relocation)


def _write_file(
    writer: TreeWriter, found: FileStat, content: Content, relocation: Relocation
) -> None:
    modified = None
    if isinstance(content, HostFile):
        modified = content.modified_ns
    elif found.modified_at is not None:
        modified = int(found.modified_at.timestamp() * 1_000_000) * 1_000
    writer.add_file(found.path, relocation.rewrite(found, content), found.permissions, modified)


def _put_all(
    target: PreservingFilesystem,
    entries: Sequence[FileStat],
    source: Side,
    skipped: list[SkippedEntry],
    meter: ProgressMeter,
) -> None:
    """Copy entries, each directory before its children; note what cannot be copied."""
    for found in entries:
        if found.kind == "special":
            skipped.append(SkippedEntry(found.path, "not a regular file"))
            continue
        try:
            target.put(found, source)
            if found.is_file and found.modified_at is not None:
                target.set_time(found.path, found.modified_at)
        except OSError as error:
            if not (is_skippable(error) or isinstance(error, IsADirectoryError)):
                raise
            skipped.append(SkippedEntry(found.path, error.strerror or str(error)))
        meter.add(1, found.size_bytes)
    for found in reversed(entries):
        if found.is_directory:
            target.set_permissions(found.path, found.permissions)


def write_changes(
    before: ReadableFilesystem,
    after: ReadableFilesystem,
    target: PreservingFilesystem,
    wants: Callable[[str], bool] = lambda _: True,
) -> list[SkippedEntry]:
    """Change the files in `target` from one state to another; return what cannot be copied.

    Only paths that `wants` selects are changed.
    """
    changes = [each for each in diff(before, after, renames=False).entries if wants(each.path)]
    side = Side(after)
    parents = {parent for change in changes for parent in parents_of(change.path)}
    for parent in sorted(parents):
        if target.exists(parent):  # the owner may have no access to it
            target.set_permissions(parent, target.stat(parent).permissions | _OWNER_ACCESS)
    for change in changes:
        is_kept = change.is_directory and change.before is not None and change.after is not None
        if not is_kept and target.exists(change.path):
            target.delete(change.path, recursive=True)
    new = [change.after for change in changes if change.after is not None]
    new.sort(key=lambda each: each.path.split("/"))
    skipped: list[SkippedEntry] = []
    added = [each for each in new if not (each.is_directory and target.exists(each.path))]
    _put_all(target, added, side, skipped, _NO_METER)
    for path in sorted({*parents, *(each.path for each in new)}, reverse=True):
        found = side.lookup(path)
        if found is not None and found.is_directory:
            target.set_permissions(path, found.permissions)
    return skipped


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
    if any(wanted.iterdir()):
        raise records.CopyError(f"The place for the working copy is not empty: {str(wanted)!r}")
    return wanted


def _is_copied(path: Path, source: Path, exclude: tuple[str, ...]) -> bool:
    """Return whether a path is the source or below it, and not excluded."""
    if not path.is_relative_to(source):
        return False
    inside = path.relative_to(source)
    wanted = records.exclusion_filter(exclude)
    return all(wanted.wants(str(each)) for each in (inside, *inside.parents) if each.parts)


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
