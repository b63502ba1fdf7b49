"""A mock filesystem: records calls and plays back configured responses."""

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
        """Return the call as source code."""
        others = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        return f"{self.method}({self.subject!r}{others})"


class MockFilesystem:
    """A mock filesystem for tests of tools: records calls, plays back responses.

    Calls without a configured response go to `backend`, an empty in-memory filesystem
    that a test can also use directly, without a record.
    """

    def __init__(self, *, read_only: bool = False, root: str = "/") -> None:
        """Start with no calls, no responses and no files."""
        self.backend: InMemoryFilesystem = InMemoryFilesystem(read_only=read_only)
        self._root = root
        self._calls: list[Call] = []
        self._responses: dict[tuple[str, str | None], list[Any]] = {}

    # --- for the test ---

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call so far, in order."""
        return tuple(self._calls)

    def calls_of(self, method: str) -> tuple[Call, ...]:
        """Return the calls of one method."""
        name = _check_method(method)
        return tuple(call for call in self._calls if call.method == name)

    def respond(self, method: str, *responses: object, to: str | None = None) -> None:
        """Respond to calls of `method` with `responses` in turn; the last one repeats.

        An exception is raised, anything else is returned. `to` restricts it to calls with
        that first argument. Without responses, calls go to the backend again.
        """
        self._responses[_check_method(method), to] = list(responses)

    # --- the protocol ---

    @property
    def root(self) -> str:
        """The root that was given."""
        return self._root

    @property
    def read_only(self) -> bool:
        """Whether writes raise an error."""
        return self.backend.read_only

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, encoding: str = "utf-8"
    ) -> ReadResult:
        """Return a page of text."""
        arguments = {"offset": offset, "limit": limit, "encoding": encoding}
        return self._respond("read", self.backend.read, path, arguments)

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        """Return a range of bytes."""
        arguments = {"offset": offset, "limit": limit}
        return self._respond("read_bytes", self.backend.read_bytes, path, arguments)

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return self._respond("exists", self.backend.exists, path, {})

    def stat(self, path: str) -> FileStat:
        """Return the metadata of an entry."""
        return self._respond("stat", self.backend.stat, path, {})

    def list(self, path: str = ".") -> Results[FileEntry]:
        """Return the entries of a directory."""
        return self._respond("list", self.backend.list, path, {})

    def glob(
        self, pattern: str, *, path: str = ".", use_ignore_files: bool = False
    ) -> Results[GlobMatch]:
        """Return the files that match."""
        arguments = {"path": path, "use_ignore_files": use_ignore_files}
        return self._respond("glob", self.backend.glob, pattern, arguments)

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
        return self._respond("grep", self.backend.grep, pattern, arguments)

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
        return self._respond("write", self.backend.write, path, arguments)

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
        return self._respond("write_bytes", self.backend.write_bytes, path, arguments)

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or with `recursive` a directory."""
        self._respond("delete", self.backend.delete, path, {"recursive": recursive})

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Create a directory."""
        arguments = {"parents": parents, "exist_ok": exist_ok}
        self._respond("mkdir", self.backend.mkdir, path, arguments)

    # --- beyond the protocol ---

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Move a file or directory."""
        arguments = {"destination": destination, "overwrite": overwrite}
        self._respond("move", self.backend.move, source, arguments)

    def copy(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Copy a file or directory."""
        arguments = {"destination": destination, "overwrite": overwrite}
        self._respond("copy", self.backend.copy, source, arguments)

    def content_hash(self, path: str) -> str:
        """Return the SHA-256 of a file's bytes in hexadecimal; not recorded."""
        return self.backend.content_hash(path)

    def savepoint(self) -> Savepoint:
        """Return a savepoint of the backend; not recorded."""
        return self.backend.savepoint()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` on every change of the backend; return a function to unsubscribe."""
        return self.backend.subscribe(listener)

    def _respond(
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


def _check_method(method: str) -> str:
    if method not in _METHODS:
        raise ValueError(f"MockFilesystem has no such method: {method!r}")
    return method


_: type[Filesystem] = MockFilesystem  # the type checker proves that it implements the protocol
