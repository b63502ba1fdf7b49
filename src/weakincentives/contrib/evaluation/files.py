"""The workspace during one evaluation: reads go through, writes are queued.

Nothing changes until `apply`. The code sees its own queued writes, so it can read back what it
wrote. Paths, sizes and counts are checked when the code calls, with errors that it can catch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from weakincentives.contrib.evaluation.engine import EvalFileRead, EvalFileWrite, EvalLimits
from weakincentives.filesystem import (
    READ_ENTIRE_FILE,
    FileEntry,
    FileStat,
    Filesystem,
    InvalidPathError,
    LimitExceededError,
    ReadOnlyError,
    WriteMode,
    normalize_path,
)
from weakincentives.filesystem.base import limits_of
from weakincentives.posix import display_path
from weakincentives.prompt import ToolAccess
from weakincentives.runtime import all_or_none

WRITE_MODES: tuple[WriteMode, ...] = ("create", "overwrite", "append")


class EvalWorkspace(Protocol):
    """A workspace, and how the paths of a model are resolved in it.

    The context of a tool handler is one.
    """

    @property
    def filesystem(self) -> Filesystem:
        """The files."""
        ...

    def resolve_path(self, given: str) -> str:
        """Return the workspace path for a path that a model sent."""
        ...

    def resolve_new_path(self, given: str) -> str:
        """Return the workspace path for a file that may be created."""
        ...

    def check_access(self, access: ToolAccess) -> None:
        """Raise `PermissionError` if policies deny access to these paths."""
        ...


@dataclass(frozen=True, slots=True)
class FilesystemWorkspace:
    """A filesystem as a workspace without any conventions for paths."""

    filesystem: Filesystem

    def resolve_path(self, given: str) -> str:
        """Return the path in normal form; one below the root is made relative."""
        root = self.filesystem.root.rstrip("/")
        inside = root and (given == root or given.startswith(root + "/"))
        return normalize_path(given[len(root) :].lstrip("/") if inside else given)

    def resolve_new_path(self, given: str) -> str:
        """Return the path in normal form."""
        return self.resolve_path(given)

    def check_access(self, access: ToolAccess) -> None:
        """Allow everything."""


class QueuedFiles:
    """The files of one evaluation; the `FileAccess` of an engine."""

    def __init__(self, workspace: EvalWorkspace, limits: EvalLimits) -> None:
        """Read from `workspace`, and queue writes to it."""
        self._workspace = workspace
        self._fs = workspace.filesystem
        self._limits = limits
        self._writes: dict[str, EvalFileWrite] = {}
        self._directories: dict[str, None] = {}
        self._reads: dict[str, EvalFileRead] = {}
        self._read_bytes = 0

    @property
    def reads(self) -> tuple[EvalFileRead, ...]:
        """The files that were read, each once."""
        return tuple(self._reads.values())

    @property
    def writes(self) -> tuple[EvalFileWrite, ...]:
        """The queued writes, one for each file, in the order of the first write."""
        return tuple(self._writes.values())

    def resolve(self, path: str) -> str:
        """Return the workspace path for a path that the code or the model gave."""
        return self._workspace.resolve_path(path)

    def load(self, declared: EvalFileRead) -> str:
        """Return the text of a declared read."""
        text = self.read_text(declared.path)
        path = self._workspace.resolve_path(declared.path)
        self._reads[path] = replace(declared, path=path)
        return text

    def read_text(self, path: str) -> str:
        """Return the text of a file, as the code left it."""
        found = self._workspace.resolve_path(path)
        queued = self._writes.get(found)
        if queued is not None and queued.mode != "append":
            return queued.content
        return self._read_existing(found) + (queued.content if queued is not None else "")

    def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a file, as the code left it."""
        found = self._workspace.resolve_path(path)
        if found in self._writes:
            return self.read_text(path).encode()
        self._admit_read(found)
        return self._fs.read_bytes(found).content

    def write_text(self, path: str, content: str, mode: WriteMode = "overwrite") -> None:
        """Queue a write; several writes of one file become one."""
        found = self._check_target(path, mode)
        queued = self._writes.get(found)
        exists = queued is not None or self._fs.exists(found)
        if mode == "create" and exists:
            raise FileExistsError(
                f"File exists: {display_path(found)!r}; use mode 'overwrite' or 'append'"
            )
        if queued is None:
            # a file that appears meanwhile must not be lost
            merged = EvalFileWrite(found, content, mode if exists else "create")
        elif mode == "append":
            merged = replace(queued, content=queued.content + content)
        else:
            kept = "overwrite" if queued.mode == "append" else queued.mode
            merged = replace(queued, content=content, mode=kept)
        self._check_length(found, merged.content)
        self._writes[found] = merged

    def remove(self, path: str) -> None:
        """Take back the write of a file that was not there before."""
        found = self._workspace.resolve_path(path)
        if found not in self._writes or self._fs.exists(found):
            self.stat(path)  # there may be no such file at all
            raise PermissionError(
                "Code can delete and move only files that it has created itself, not"
                f" {display_path(found)!r}; use a file tool for that"
            )
        del self._writes[found]

    def make_directory(self, path: str, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Queue the creation of a directory."""
        found = self._check_target(path, "overwrite")
        if self.exists(path):
            if not (exist_ok and self.stat(path).is_directory):
                raise FileExistsError(f"Path exists: {display_path(found)!r}")
            return
        if not parents and not self._is_directory(found.rpartition("/")[0]):
            raise FileNotFoundError(f"Parent directory does not exist: {display_path(found)!r}")
        self._directories[found] = None

    def exists(self, path: str) -> bool:
        """Return whether the path exists for the code."""
        found = self._workspace.resolve_path(path)
        self._workspace.check_access(ToolAccess(reads=(found or ".",)))
        return self._is_queued(found) or not found or self._fs.exists(found)

    def stat(self, path: str) -> FileStat:
        """Return the metadata of an entry, as the code left it."""
        found = self._workspace.resolve_path(path)
        self._workspace.check_access(ToolAccess(reads=(found or ".",)))
        if found in self._writes:
            size = len(self.read_text(path).encode())
            return FileStat(found, True, False, size, modified_at=datetime.now(UTC))  # noqa: FBT003 # fields
        if self._is_new(found):
            return FileStat(found, False, True, modified_at=datetime.now(UTC))  # noqa: FBT003 # fields
        return self._fs.stat(found or ".")

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        """Return the entries of a directory, as the code left it."""
        found = self._workspace.resolve_path(path)
        self._workspace.check_access(ToolAccess(searches=(found or ".",)))
        existing = () if self._is_new(found) else self._fs.list(found or ".")
        entries = {each.name: each for each in existing}
        prefix = f"{found}/" if found else ""
        for each in (*self._writes, *self._directories):
            name, _, below = each.removeprefix(prefix).partition("/")
            if each.startswith(prefix) and name and name not in entries:
                is_file = not below and each in self._writes
                entries[name] = FileEntry(name, prefix + name, is_file, not is_file)
        return [entries[name] for name in sorted(entries)]

    def apply(self) -> None:
        """Write everything that is queued, all or none.

        Raises:
            OSError: A file cannot be written; nothing has changed.
            ValueError: The same.
        """
        with all_or_none(self._fs) as fs:
            for path in self._directories:
                fs.mkdir(path)
            for each in self._writes.values():
                fs.write(each.path, each.content, mode=each.mode)

    def _read_existing(self, path: str) -> str:
        if path in self._writes and not self._fs.exists(path):
            return ""
        self._admit_read(path)
        return self._fs.read(path or ".", limit=READ_ENTIRE_FILE).content

    def _admit_read(self, path: str) -> None:
        """Count a read, and check the file's size before it is loaded."""
        self._workspace.check_access(ToolAccess(reads=(path,)))
        size = self._fs.stat(path or ".").size_bytes
        if size > self._limits.max_read_bytes:
            raise LimitExceededError(
                f"{display_path(path)!r} has {size:,} bytes; code can read files of up to"
                f" {self._limits.max_read_bytes:,} bytes"
            )
        self._read_bytes += size
        if self._read_bytes > self._limits.max_total_read_bytes:
            raise LimitExceededError(
                f"The code reads more than {self._limits.max_total_read_bytes:,} bytes in total;"
                " read each file once, or fewer files"
            )
        self._reads.setdefault(path, EvalFileRead(path))

    def _check_target(self, path: str, mode: str) -> str:
        """Return the workspace path of something to create or change."""
        if mode not in WRITE_MODES:
            raise ValueError(f"mode must be 'create', 'overwrite' or 'append': {mode!r}")
        if self._fs.read_only:
            raise ReadOnlyError("The workspace is read-only")
        found = self._workspace.resolve_new_path(path)
        if not found:
            raise InvalidPathError(f"Not a file path: {path!r}")
        # what the code has read, it may replace; the model need not have read it too
        kind = "others" if found in self._reads else "writes"
        self._workspace.check_access(ToolAccess(**{kind: (found,)}))
        if found not in self._writes and found not in self._directories:
            count = len(self._writes) + len(self._directories)
            if count >= self._limits.max_writes:
                raise LimitExceededError(
                    f"One evaluation can write {self._limits.max_writes} files and directories"
                )
        return found

    def _check_length(self, path: str, content: str) -> None:
        limit = min(self._limits.max_write_length, limits_of(self._fs).max_write_length)
        if len(content) > limit:
            raise LimitExceededError(
                f"{display_path(path)!r} would get {len(content):,} characters; one write can"
                f" have {limit:,}"
            )
        try:
            content.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"The text for {display_path(path)!r} has a lone surrogate and cannot be UTF-8"
            ) from None

    def _is_queued(self, path: str) -> bool:
        """Return whether a path, or something below it, is queued."""
        below = f"{path}/"
        queued = (*self._writes, *self._directories)
        return any(each == path or each.startswith(below) for each in queued)

    def _is_new(self, path: str) -> bool:
        """Return whether a path exists only because it is queued."""
        return self._is_queued(path) and not self._fs.exists(path)

    def _is_directory(self, path: str) -> bool:
        return not path or (self.exists(path) and self.stat(path).is_directory)
