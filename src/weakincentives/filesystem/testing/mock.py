"""A mock filesystem: records calls and plays back configured responses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
        return self._respond("read", path, offset=offset, limit=limit, encoding=encoding)

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        """Return a range of bytes."""
        return self._respond("read_bytes", path, offset=offset, limit=limit)

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return self._respond("exists", path)

    def stat(self, path: str) -> FileStat:
        """Return the metadata of an entry."""
        return self._respond("stat", path)

    def list(self, path: str = ".") -> Results[FileEntry]:
        """Return the entries of a directory."""
        return self._respond("list", path)

    def glob(
        self, pattern: str, *, path: str = ".", use_ignore_files: bool = False
    ) -> Results[GlobMatch]:
        """Return the files that match."""
        return self._respond("glob", pattern, path=path, use_ignore_files=use_ignore_files)

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
        return self._respond(
            "grep",
            pattern,
            path=path,
            glob=glob,
            max_matches=max_matches,
            use_ignore_files=use_ignore_files,
        )

    def write(
        self,
        path: str,
        content: str,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write text."""
        return self._respond(
            "write", path, content=content, mode=mode, create_parents=create_parents
        )

    def write_bytes(
        self,
        path: str,
        content: bytes,
        *,
        mode: WriteMode = "overwrite",
        create_parents: bool = True,
    ) -> WriteResult:
        """Write bytes."""
        return self._respond(
            "write_bytes", path, content=content, mode=mode, create_parents=create_parents
        )

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or with `recursive` a directory."""
        self._respond("delete", path, recursive=recursive)

    def mkdir(self, path: str, *, parents: bool = True, exist_ok: bool = True) -> None:
        """Create a directory."""
        self._respond("mkdir", path, parents=parents, exist_ok=exist_ok)

    # --- beyond the protocol ---

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Move a file or directory."""
        self._respond("move", source, destination=destination, overwrite=overwrite)

    def copy(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Copy a file or directory."""
        self._respond("copy", source, destination=destination, overwrite=overwrite)

    def content_hash(self, path: str) -> str:
        """Return the SHA-256 of a file's bytes in hexadecimal; not recorded."""
        return self.backend.content_hash(path)

    def savepoint(self) -> Savepoint:
        """Return a savepoint of the backend; not recorded."""
        return self.backend.savepoint()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` on every change of the backend; return a function to unsubscribe."""
        return self.backend.subscribe(listener)

    def _respond(self, method: str, subject: str, /, **arguments: object) -> Any:
        self._calls.append(Call(method, subject, arguments))
        responses = self._responses.get((method, subject)) or self._responses.get((method, None))
        if not responses:
            return getattr(self.backend, method)(subject, **arguments)
        response = responses.pop(0) if len(responses) > 1 else responses[0]
        if isinstance(response, BaseException):
            raise response
        return response


def _check_method(method: str) -> str:
    if method not in _METHODS:
        raise ValueError(f"MockFilesystem has no such method: {method!r}")
    return method


_: type[Filesystem] = MockFilesystem  # the type checker proves that it implements the protocol
