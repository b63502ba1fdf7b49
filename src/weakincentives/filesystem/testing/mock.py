"""A mock filesystem: records calls and plays back configured responses."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from weakincentives.filesystem import Filesystem, InMemoryFilesystem, Listener, Savepoint

P = ParamSpec("P")
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


def _record(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method with the signature of a backend's `method`, which records its calls."""
    signature = inspect.signature(method)

    @wraps(method)
    def call(self: "MockFilesystem", *args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        _, (_, subject), *others = bound.arguments.items()
        return self._respond(method.__name__, subject, dict(others))  # pyright: ignore[reportPrivateUsage] # its own

    return call


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

    read = _record(InMemoryFilesystem.read)
    read_bytes = _record(InMemoryFilesystem.read_bytes)
    exists = _record(InMemoryFilesystem.exists)
    stat = _record(InMemoryFilesystem.stat)
    list = _record(InMemoryFilesystem.list)
    glob = _record(InMemoryFilesystem.glob)
    grep = _record(InMemoryFilesystem.grep)
    write = _record(InMemoryFilesystem.write)
    write_bytes = _record(InMemoryFilesystem.write_bytes)
    delete = _record(InMemoryFilesystem.delete)
    mkdir = _record(InMemoryFilesystem.mkdir)

    # --- beyond the protocol ---

    move = _record(InMemoryFilesystem.move)
    copy = _record(InMemoryFilesystem.copy)

    def content_hash(self, path: str) -> str:
        """Return the SHA-256 of a file's bytes in hexadecimal; not recorded."""
        return self.backend.content_hash(path)

    def savepoint(self) -> Savepoint:
        """Return a savepoint of the backend; not recorded."""
        return self.backend.savepoint()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` on every change of the backend; return a function to unsubscribe."""
        return self.backend.subscribe(listener)

    def _respond(self, method: str, subject: str, arguments: Mapping[str, object]) -> Any:
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
