"""The scan of a directory that is going to be copied: its entries, without reading their content.

Left out are special files, what is excluded, and what would lead git from the copy back to the
original.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from weakincentives.contrib.review import records
from weakincentives.contrib.review.views import GIT
from weakincentives.filesystem import FileStat, HostFilesystem, LimitExceededError, SkippedEntry
from weakincentives.filesystem.base import is_skippable
from weakincentives.filesystem.diff import Side
from weakincentives.posix import parent_of

_MAX_PATH_STEPS = 1_000
_COMMON_DIR = "commondir"
_GIT_FILE = re.compile(rb"gitdir:(.*)", re.DOTALL)
_CONFIGS = ("config", "config.worktree")
_GIT_FILES = frozenset({GIT, *_CONFIGS})
_WORKTREE = re.compile(rb"^[^#;\n]*\bworktree\s*=\s*\"?/", re.MULTILINE | re.IGNORECASE)
_MAX_GIT_FILE_BYTES = 1024 * 1024


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

        Args:
            source: The files.
            exclude: Globs of paths to leave out.
            max_files: Limit of files, links and directories.
            max_bytes: Limit of the total size of the files.
            root: The directory.
            host: The filesystem of the source, if it is that directory as it is now.

        Raises:
            LimitExceededError: The directory is too large.
            OSError: It cannot be listed.
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
