"""A test double: it remembers what it was asked, and answers what it was told to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from weakincentives.filesystem import (
    FileEntry,
    FileStat,
    Filesystem,
    GlobMatch,
    GrepMatch,
    InMemoryFilesystem,
    Listener,
    ReadBytesResult,
    ReadResult,
    Results,
    Savepoint,
    WriteMode,
    WriteResult,
)

T = TypeVar("T")

_METHODS = (
    "read", "read_bytes", "exists", "stat", "list", "glob", "grep",
    "write", "write_bytes", "delete", "mkdir", "move", "copy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the method, its first argument, and all others by name, defaults included."""

    method: str
    subject: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])

    def __str__(self) -> str:
        """Return the call as it is written."""
        others = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        return f"{self.method}({self.subject!r}{others})"


class MockFilesystem:
    """A filesystem for tests of tools: records calls, plays back responses.

    What no response was set for happens in `backend`, an empty filesystem in memory
    that a test can also fill and look into without leaving a record.
    """

    def __init__(self, *, read_only: bool = False, root: str = "/") -> None:
        """Start with no calls, no responses and no files."""
        self.backend: InMemoryFilesystem = InMemoryFilesystem(read_only=read_only)
        self._root = root
        self._calls: list[Call] = []
        self._responses: dict[tuple[str, str | None], list[Any]] = {}

    # --- what a test asks and says ---

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call so far, in order."""
        return tuple(self._calls)

    def calls_of(self, method: str) -> tuple[Call, ...]:
        """Return the calls of one method."""
        wanted = _known(method)
        return tuple(call for call in self._calls if call.method == wanted)

    def respond(self, method: str, *responses: object, to: str | None = None) -> None:
        """Answer calls of `method` with `responses` in turn; the last one stays.

        An exception is raised, anything else returned. `to` narrows it to calls whose
        first argument is the same. No responses: back to the backend.
        """
        self._responses[_known(method), to] = list(responses)

    # --- the protocol ---

    @property
    def root(self) -> str:
        """The root that was given."""
        return self._root

    @property
    def read_only(self) -> bool:
        """Whether writing is refused."""
        return self.backend.read_only

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, encoding: str = "utf-8"
    ) -> ReadResult:
        """Return a page of text."""
        arguments = {"offset": offset, "limit": limit, "encoding": encoding}
        return self._answer("read", self.backend.read, path, arguments)

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        """Return a range of bytes."""
        arguments = {"offset": offset, "limit": limit}
        return self._answer("read_bytes", self.backend.read_bytes, path, arguments)

    def exists(self, path: str) -> bool:
        """Return whether something is there."""
        return self._answer("exists", self.backend.exists, path, {})

    def stat(self, path: str) -> FileStat:
        """Return the metadata of what is there."""
        return self._answer("stat", self.backend.stat, path, {})

    def list(self, path: str = ".") -> Results[FileEntry]:
        """Return the entries of a directory."""
        return self._answer("list", self.backend.list, path, {})

    def glob(
        self, pattern: str, *, path: str = ".", use_ignore_files: bool = False
    ) -> Results[GlobMatch]:
        """Return the files that match."""
        arguments = {"path": path, "use_ignore_files": use_ignore_files}
        return self._answer("glob", self.backend.glob, pattern, arguments)

    def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        max_matches: int | None = None,
        use_ignore_files: bool = False,
    ) -> Results[GrepMatch]:
        """Return the lines that match."""
        arguments = {
            "path": path,
            "glob": glob,
            "max_matches": max_matches,
            "use_ignore_files": use_ignore_files,
        }
        return self._answer("grep", self.backend.grep, pattern, arguments)

    def write(
        self,
        path: str,
        content: str,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write text."""
        arguments = {"content": content, "mode": mode, "create_parents": create_parents}
        return self._answer("write", self.backend.write, path, arguments)

    def write_bytes(
        self,
        path: str,
        content: bytes,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write bytes."""
        arguments = {"content": content, "mode": mode, "create_parents": create_parents}
        return self._answer("write_bytes", self.backend.write_bytes, path, arguments)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or with `recursive` a directory."""
        self._answer("delete", self.backend.delete, path, {"recursive": recursive})

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a directory."""
        arguments = {"parents": parents, "exist_ok": exist_ok}
        self._answer("mkdir", self.backend.mkdir, path, arguments)

    # --- beyond the protocol ---

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Give something a new path."""
        arguments = {"destination": destination, "overwrite": overwrite}
        self._answer("move", self.backend.move, source, arguments)

    def copy(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Copy something."""
        arguments = {"destination": destination, "overwrite": overwrite}
        self._answer("copy", self.backend.copy, source, arguments)

    def content_hash(self, path: str) -> str:
        """Return the SHA-256 of a file's bytes in hexadecimal; not recorded."""
        return self.backend.content_hash(path)

    def savepoint(self) -> Savepoint:
        """Return a point to which the backend can go back; not recorded."""
        return self.backend.savepoint()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` what changes in the backend; return a function that ends it."""
        return self.backend.subscribe(listener)

    def _answer(
        self,
        method: str,
        real: Callable[..., T],
        subject: str,
        arguments: Mapping[str, object],
    ) -> T:
        self._calls.append(Call(method, subject, arguments))
        responses = self._responses.get((method, subject)) or self._responses.get((method, None))
        if not responses:
            return real(subject, **arguments)
        response = responses.pop(0) if len(responses) > 1 else responses[0]
        if isinstance(response, BaseException):
            raise response
        return response


def _known(method: str) -> str:
    if method not in _METHODS:
        raise ValueError(f"MockFilesystem records no method of this name: {method!r}")
    return method


_: type[Filesystem] = MockFilesystem  # the type checker proves that it is one
