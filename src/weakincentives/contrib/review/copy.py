"""Making a working copy: every file, link, directory and permission as it is."""

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from weakincentives.contrib.review.records import (
    CopyError,
    CopyRecord,
    WorkingCopy,
    exclusion,
    history_in,
    open_copy,
    workspace_in,
    write_record,
)
from weakincentives.contrib.review.recovery import original_of, refuse_interrupted
from weakincentives.contrib.review.views import GIT, PreservingFilesystem
from weakincentives.filesystem import (
    FileStat,
    HostFilesystem,
    LimitExceededError,
    MountProgress,
    SkippedEntry,
)
from weakincentives.filesystem.base import is_skippable
from weakincentives.filesystem.diff import Side
from weakincentives.filesystem.mounts import ProgressMeter
from weakincentives.posix import parent_of, remove

_MAX_STEPS = 1_000

MAX_FILES = 200_000
MAX_BYTES = 4 * 1024**3
_COMMON = "commondir"
_GIT_FILE = re.compile(rb"gitdir:\s*(.*?)\s*\Z", re.DOTALL)
_CONFIGS = ("config", "config.worktree")
_WORKTREE = re.compile(rb"^[^#;\n]*\bworktree\s*=\s*\"?/", re.MULTILINE | re.IGNORECASE)
_MAX_GIT_FILE = 1024 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def working_copy(
    original: str | os.PathLike[str],
    *,
    place: str | os.PathLike[str] | None = None,
    exclude: Sequence[str] = (),
    max_files: int = MAX_FILES,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[MountProgress], object] | None = None,
) -> WorkingCopy:
    """Copy a directory to work on the copy, and remember its state.

    What a savepoint left half-done in the original is taken back first. What cannot be
    read, pipes and the like, and the file `.git` of a worktree, with which git would
    change the original, are skipped and reported.

    Args:
        original: The directory.
        place: A directory for the copy, new or empty; by default one in the temporary
            directory.
        exclude: Globs of what is left out; one without `/` by its name at any depth.
        max_files: How many files, links and directories there may be.
        max_bytes: How large the files may be together.
        progress: Called with how far it has come; what it raises ends it.

    Raises:
        NotADirectoryError: The original is no directory.
        CopyError: The place is in the original, or not empty.
        ApplyInterruptedError: Changes to the original were interrupted half-way.
        LimitExceededError: The original is too large.
    """
    source = Path(os.path.realpath(original))
    if isinstance(exclude, str):
        raise TypeError(f"exclude must be a sequence of globs, not one: {exclude!r}")
    globs = tuple(exclude)
    with original_of(source, looking=True) as looked_at:
        refuse_interrupted(looked_at, source)
    with HostFilesystem(source) as files:
        scan = _Scan(Side(files), globs, max_files, max_bytes, source)
        target = _made(place, source)
        try:
            return _copied(scan, target, ProgressMeter(progress, scan.file_count, scan.total_bytes))
        except BaseException:
            remove_place(target)
            raise


def remove_place(place: Path) -> None:
    """Remove everything that is at `place`, whatever its permissions are."""
    directory = os.open(place.parent, _DIRECTORY)
    try:
        remove(directory, place.name)
    finally:
        os.close(directory)


class _Scan:
    """What there is to copy, found without reading it."""

    def __init__(
        self, source: Side, exclude: tuple[str, ...], max_files: int, max_bytes: int, root: Path
    ) -> None:
        self.source = source
        self.root = root
        self.exclude = exclude
        self.entries: list[FileStat] = []
        self.skipped: list[SkippedEntry] = []
        self.total_bytes = 0
        self.git_dirs: set[str] = set()
        self._limits = max_files, max_bytes
        self._filter = exclusion(exclude)
        pending = [""]
        while pending:
            pending += self._directory(pending.pop())

    @property
    def file_count(self) -> int:
        return len(self.entries)

    def skip(self, path: str, reason: str) -> None:
        self.skipped.append(SkippedEntry(path, reason))

    def _directory(self, path: str) -> Iterator[str]:
        """Take what is in a directory; yield the directories in it."""
        try:
            children = self.source.children(path)
        except OSError as error:
            if not path or not is_skippable(error):
                raise
            self.skip(path, error.strerror or str(error))
            return
        is_git = self._note_git(path, children)
        for found in children.values():
            if not self._filter.wants(found.path):
                continue
            if found.kind == "special":
                self.skip(found.path, "not a regular file")
            elif self._leads_to_another_repository(found, is_git=is_git):
                self.skip(found.path, "git would change the original by it")
            else:
                self._take(found)
                if found.is_directory:
                    yield found.path

    def _take(self, found: FileStat) -> None:
        self.entries.append(found)
        self.total_bytes += found.size_bytes
        max_files, max_bytes = self._limits
        if len(self.entries) > max_files:
            raise self._too_large(f"more than {max_files} files", "max_files")
        if self.total_bytes > max_bytes:
            raise self._too_large(f"more than {max_bytes} bytes", "max_bytes")

    def _too_large(self, fact: str, name: str) -> LimitExceededError:
        return LimitExceededError(
            f"Directory is too large to copy, {fact}: {str(self.root)!r};"
            f" leave something out with exclude=, or raise {name}"
        )

    def _note_git(self, directory: str, children: Mapping[str, FileStat]) -> bool:
        """Take note of where repositories have their data; return whether it is here."""
        for name, found in children.items():
            target = None
            if name.casefold() == GIT and found.link_target is not None:
                target = found.link_target
            elif name.casefold() == GIT and found.is_file:
                pointer = _GIT_FILE.match(self._content(found.path))
                target = None if pointer is None else os.fsdecode(pointer[1])
            elif name == _COMMON and found.is_file and "HEAD" in children:
                target = os.fsdecode(self._content(found.path)).strip()
            if target:
                self.git_dirs |= places_on_the_way(self.root, directory, target)
        is_git = bool(directory) and is_git_directory(children)
        if is_git:
            self.git_dirs.add(directory)
        return is_git

    def _leads_to_another_repository(self, found: FileStat, *, is_git: bool) -> bool:
        """Return whether git would find the repository or the files of the original by it."""
        *above, name = found.path.split("/")
        if found.link_target is not None:
            return name == GIT and _leads_out(found.path, found.link_target)
        if not found.is_file or found.size_bytes > _MAX_GIT_FILE:
            return False
        if name == GIT:
            beginning = _GIT_FILE.match(self._content(found.path))
            return beginning is not None and _leads_out(found.path, os.fsdecode(beginning[1]))
        is_config = name in _CONFIGS and (is_git or GIT in above)
        return is_config and _WORKTREE.search(self._content(found.path)) is not None

    def _content(self, path: str) -> bytes:
        try:
            with self.source.open(path) as content:
                return content.read(0, _MAX_GIT_FILE)
        except OSError:
            return b""  # whoever copies it says why


def _leads_out(path: str, target: str) -> bool:
    """Return whether what is at `path` leads out of the directory when it says `target`."""
    if target.startswith("/"):
        return True
    reached = os.path.normpath(f"{parent_of(path)}/{target}".lstrip("/"))
    return reached == ".." or reached.startswith("../")


def _copied(scan: _Scan, place: Path, meter: ProgressMeter) -> WorkingCopy:
    workspace_in(place).mkdir()
    with PreservingFilesystem(workspace_in(place), git_dir=history_in(place)) as target:
        _fill(target, scan, meter)
        base = target.snapshot(tag="as it was copied")
    links = [(each.path, each.link_target) for each in scan.entries]
    record = CopyRecord(
        original=str(scan.root),
        base=base,
        exclude=scan.exclude,
        skipped=tuple(sorted(scan.skipped, key=lambda each: each.path)),
        git_dirs=tuple(sorted(scan.git_dirs)),
        external_links=tuple(
            sorted(path for path, to in links if to is not None and _leads_out(path, to))
        ),
    )
    write_record(place, record)
    return open_copy(place)


def _fill(target: PreservingFilesystem, scan: _Scan, meter: ProgressMeter) -> None:
    for found in scan.entries:  # a directory comes before what is in it
        try:
            target.put(found, scan.source)
            if found.is_file and found.modified_at is not None:
                target.set_time(found.path, found.modified_at)
        except OSError as error:
            if not (is_skippable(error) or isinstance(error, IsADirectoryError)):
                raise
            scan.skip(found.path, error.strerror or str(error))
        meter.add(1, found.size_bytes)
    for found in reversed(scan.entries):
        if found.is_directory:
            target.set_permissions(found.path, found.permissions)


def _made(place: str | os.PathLike[str] | None, source: Path) -> Path:
    """Return an empty directory for the copy, which is not in the original."""
    wanted = Path(tempfile.gettempdir() if place is None else place).absolute()
    if Path(os.path.realpath(wanted)).is_relative_to(source):
        raise CopyError(
            f"Working copy must not be in the original: {str(wanted)!r}; give it another place"
        )
    if place is None:
        return Path(tempfile.mkdtemp(prefix="wink-run-", dir=wanted))
    wanted.mkdir(0o700, parents=True, exist_ok=True)
    if any(wanted.iterdir()):
        raise CopyError(f"Place for the working copy is not empty: {str(wanted)!r}")
    return wanted


def is_git_directory(names: Collection[str]) -> bool:
    """Return whether a directory with these names is what git takes for a repository's data."""
    return "HEAD" in names and ({"objects", "refs"} <= set(names) or "commondir" in names)


def places_on_the_way(root: Path, directory: str, target: str) -> set[str]:
    """Return where a pointer in a `directory` of `root` leads, and the links on the way.

    Only what is below the root counts, in its terms; a pointer may be absolute.
    """
    here, found = Path(os.sep), set[Path]()
    pending = list(reversed((root / directory / target).parts[1:]))
    for _ in range(_MAX_STEPS):
        if not pending:
            found.add(here)
            break
        name = pending.pop()
        here = here.parent if name == ".." else here / name
        if os.path.islink(here):  # noqa: PTH114 # a name that is too long is none
            found.add(here)
            leads = here.readlink()
            pending += [each for each in reversed(leads.parts) if each != os.sep]
            here = Path(os.sep) if leads.is_absolute() else here.parent
    inside = (each.relative_to(root) for each in found if each.is_relative_to(root))
    return {each.as_posix() for each in inside if each.parts}
