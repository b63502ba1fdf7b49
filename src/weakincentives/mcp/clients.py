"""Clients of a server: who each is, the directories that it may access, and the files it knows.

A client may name the directories that it works in, its roots. They restrict its calls further and
never allow more than the workspace. Protocol versions without a handshake have no roots. What a
client has read or written, and somebody has changed since, is not overwritten.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import PurePosixPath
from threading import Lock
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlsplit

import anyio
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import METHOD_NOT_FOUND, InitializeRequestParams, ListRootsRequest, ListRootsResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from weakincentives.adapters import CheckedCall, Policy
from weakincentives.contrib.tools import HandlerContext, WriteFileParams, make_diff, write_file
from weakincentives.errors import SnapshotError, ToolValidationError
from weakincentives.filesystem import Filesystem, FilesystemSnapshot
from weakincentives.mcp.history import History
from weakincentives.posix import display_path, is_within
from weakincentives.prompt import ToolAccess, ToolResult

_MAX_CLIENTS = 1_000
_MAX_NAME = 60
_MAX_MESSAGE = 200
_TIMEOUT = 10  # seconds for a client to list its roots
_EVERYTHING = ("",)
_MAX_CALLS = 64  # that run, or have failed
_MAX_FILES = 10_000  # whose content is known
_MAX_HASHED = 64 * 1024 * 1024  # bytes of a file whose content is compared
_MAX_KEPT = 16 * 1024 * 1024  # bytes of files that clients have read, kept for diffs
_MAX_DIFF = 3_000  # characters
_Known: TypeAlias = str | FilesystemSnapshot
"""The hash of the content that a client knows, or a state that has it: it costs nothing to note."""
_TEXT_ONLY = frozenset({"claude-code", "codex-mcp-client"})
V = TypeVar("V")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class McpClient:
    """A connected client.

    Args:
        name: The name that it gave itself.
        number: Which one it is, counted from 1; two windows of one program have different numbers.
    """

    name: str
    number: int

    def __str__(self) -> str:
        """Return the name and the number; who is not connected has none."""
        return f"{self.name} #{self.number}" if self.number else self.name

    @property
    def is_text_only(self) -> bool:
        """Whether it shows its model structured content as escaped JSON, and then no text."""
        return self.name.lower() in _TEXT_ONLY

    # a client takes the place of the prompt in the context of its calls, so that the events of
    # the session say who made each call

    @property
    def ns(self) -> str:
        """The namespace of its name in events."""
        return "mcp"

    @property
    def key(self) -> str:
        """Its name in events."""
        return str(self)

    def filesystem(self) -> Filesystem | None:
        """Return None: the context has the workspace."""
        return None


class ClientRegistry:
    """Finds the client that sent a request; thread-safe."""

    def __init__(self, on_client: Callable[[McpClient], object] | None = None) -> None:
        """Know no client; call `on_client` for each new one."""
        self._on_client = on_client
        self._lock = Lock()
        self._numbers = count(1)
        # by the identity of the parameters of `initialize`, which live as long as a connection;
        # protocol versions without a handshake send only a name, with each request
        self._known: OrderedDict[object, tuple[object, McpClient]] = OrderedDict()

    def identify(self, context: ServerRequestContext[Any, Any]) -> McpClient:
        """Return the client that sent a request."""
        params = context.session.client_params
        name = _display_name(params)
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        key = name if params is None or is_modern else id(params)
        with self._lock:
            found = self._known.get(key)
            client = McpClient(name, next(self._numbers)) if found is None else found[1]
            self._known.pop(key, None)
            put_newest(self._known, key, (params, client), _MAX_CLIENTS)
        if found is None and self._on_client is not None:
            self._on_client(client)
        return client


def _display_name(params: InitializeRequestParams | None) -> str:
    if params is None or not params.client_info.name.strip():
        return "client"
    return display_path(params.client_info.name.strip())[:_MAX_NAME]


class ClientRoots(Policy):
    """Denies calls outside what their client may access: paths, with everything below them."""

    def __init__(self, host_roots: Sequence[str]) -> None:
        """Map roots to paths of a workspace that is known by these directories of the host."""
        self._host_roots = tuple(dict.fromkeys(map(os.path.realpath, host_roots)))
        self._lock = Lock()
        self._allowed: OrderedDict[object, tuple[str, ...]] = OrderedDict()

    async def ask(self, context: ServerRequestContext[Any, Any], client: McpClient) -> None:
        """Ask a client for its roots, unless they are known or it has none.

        Raises:
            TimeoutError: It did not answer.
            ToolValidationError: It answered with an error, or with what is no list of roots.
        """
        with self._lock:
            if client in self._allowed:
                return
        capabilities = context.session.client_capabilities
        allowed = _EVERYTHING
        if (
            capabilities is not None
            and capabilities.roots is not None
            and context.session.can_send_request
        ):
            allowed = await self._ask(context)
        with self._lock:
            put_newest(self._allowed, client, allowed, _MAX_CLIENTS)

    async def _ask(self, context: ServerRequestContext[Any, Any]) -> tuple[str, ...]:
        try:
            with anyio.fail_after(_TIMEOUT):
                found = await context.session.send_request(ListRootsRequest(), ListRootsResult)
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                return _EVERYTHING  # it has none
            raise ToolValidationError(
                "The client has roots, but did not list them, so nothing is allowed:"
                f" {display_path(error.message[:_MAX_MESSAGE])}"
            ) from error
        except ValueError as error:
            text = "The client has roots, but its list is invalid, so nothing is allowed"
            raise ToolValidationError(text) from error
        except TimeoutError:
            raise TimeoutError(
                f"The client has roots, but did not list them in {_TIMEOUT} seconds"
            ) from None
        if not found.roots:
            return _EVERYTHING
        inside = (self._map(str(root.uri)) for root in found.roots)
        return tuple(dict.fromkeys(path for path in inside if path is not None))

    def forget(self, client: McpClient) -> None:
        """Ask a client again before its next call: its roots have changed."""
        with self._lock:
            self._allowed.pop(client, None)

    def allowed(self, client: object) -> tuple[str, ...]:
        """Return the paths that a client may access; `""` is the whole workspace."""
        with self._lock:
            return self._allowed.get(client, _EVERYTHING)

    def allows(self, client: object, path: str) -> bool:
        """Return whether a client may access a path."""
        path = "" if path == "." else path
        return is_within(path, self.allowed(client))

    def allow(self, call: CheckedCall) -> str | None:
        """Deny a call outside the roots, and commands, which could go anywhere."""
        allowed = self.allowed(call.context.prompt)
        if "" in allowed:
            return None
        if not allowed:
            return (
                "The roots of this client are all outside the workspace, so it has access to"
                " nothing; add a directory of the workspace to its roots"
            )
        if call.tool.bypasses_filesystem:
            return (
                f"{call.tool.name} could access all files, but the roots of this client allow only"
                f" {_names(allowed)}"
            )
        return self._check(call, call.paths)

    def allow_access(self, call: CheckedCall, access: ToolAccess) -> str | None:
        """Deny paths outside the roots."""
        return self._check(call, access.paths)

    def _check(self, call: CheckedCall, paths: Sequence[str]) -> str | None:
        outside = [path for path in paths if not self.allows(call.context.prompt, path)]
        if not outside:
            return None
        return (
            f"{display_path(outside[0])!r} is outside the roots of this client, which allow only"
            f" {_names(self.allowed(call.context.prompt))}"
        )

    def _map(self, uri: str) -> str | None:
        """Return the path in the workspace for a root; None if it is elsewhere."""
        name = path_of(uri)
        if name is None or "\0" in name:
            return None
        directory = os.path.realpath(name)
        for root in self._host_roots:
            if root == directory or root.startswith(directory.rstrip("/") + "/"):
                return ""
            if directory.startswith(root.rstrip("/") + "/"):
                return directory[len(root.rstrip("/")) + 1 :]
        return None


class KnownFiles(Policy):
    """What clients have last read or written, so that they do not overwrite what they do not know.

    A file that somebody has changed since is not overwritten. One that the client has never read
    is: what was there is kept as a step. Content decides, not the time. Thread-safe.
    """

    def __init__(self, history: History | None) -> None:
        """Know nothing; `history` has the states around each call."""
        self._history = history
        self._lock = Lock()
        self._known: OrderedDict[tuple[object, str], _Known] = OrderedDict()
        # the content before each call: what is saved while it runs is not known to its client
        self._before: OrderedDict[str, Mapping[str, str | None]] = OrderedDict()
        # what was read, by its hash: perhaps no state of the history has it
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._kept = 0  # bytes of them

    def allow(self, call: CheckedCall) -> str | None:
        """Note the content of what a call reads."""
        files = call.context.filesystem
        if call.access is not None and files is not None:
            before = {path: self._note_content(files, path) for path in call.access.reads}
            with self._lock:
                put_newest(self._before, call.call.call_id, before, _MAX_CALLS)
        return None

    def record(self, call: CheckedCall, changed: Sequence[str]) -> None:
        """Note what the client knows after a call.

        If it has changed a file that somebody else had changed, it does not know all of it.
        """
        access, files = call.access or ToolAccess(), call.context.filesystem
        assert files is not None
        with self._lock:
            before = self._before.pop(call.call.call_id, {})
        found: dict[str, _Known | None] = {path: before.get(path) for path in access.reads}
        step = None if self._history is None else self._history.current
        replaced, after = (None, None) if step is None else (step.before, step.after)
        for path in changed:
            known = self._known.get((call.context.prompt, path))
            if path in access.writes if known is None else self._is_same(path, known, replaced):
                found[path] = after or _content_hash(files, path)
        with self._lock:
            for path, content in found.items():
                key = call.context.prompt, path
                self._known.pop(key, None)
                if content is not None:
                    put_newest(self._known, key, content, _MAX_FILES)

    def write_file(self, request: WriteFileParams, context: HandlerContext) -> ToolResult[Any]:
        """Handle a request to write a file.

        Raises:
            ToolValidationError: Somebody has changed the file since the client knew it.
            StaleContentError: Somebody saves it at this moment.
        """
        path = context.resolve_path(request.file_path)
        noted = self._known.get((context.tool_context.prompt, path))
        known = self._hash(path, noted)
        expected: bytes | None = None
        if known is not None and request.mode == "overwrite":
            with suppress(FileNotFoundError):  # nothing is there that could be lost
                expected = context.filesystem.read_bytes(path).content
                if sha256(expected).hexdigest() != known:
                    raise ToolValidationError(self._describe(path, noted, expected))
        return write_file(request, context, expected=expected)

    def _is_same(self, path: str, known: _Known, replaced: _Known | None) -> bool:
        """Return whether a call has replaced what its client knew; True if that is unknown."""
        if replaced is None or replaced is known:
            return True
        return self._hash(path, replaced) == self._hash(path, known)

    def _hash(self, path: str, known: _Known | None) -> str | None:
        if not isinstance(known, FilesystemSnapshot):
            return known
        assert self._history is not None  # it has made the state
        try:
            return _content_hash(self._history.view(known), path)
        except SnapshotError:  # pruned
            return None

    def _note_content(self, files: Filesystem, path: str) -> str | None:
        """Return the hash of a file that is read now; keep its content unless it is large."""
        try:
            found = files.stat(path)
            if not found.is_file or found.size_bytes > _MAX_KEPT:
                return _content_hash(files, path)
            content = files.read_bytes(path).content
        except (OSError, ValueError):
            return None
        known = sha256(content).hexdigest()
        with self._lock:
            self._kept += len(content) - len(self._contents.pop(known, b""))
            self._contents[known] = content
            while self._kept > _MAX_KEPT:
                self._kept -= len(self._contents.popitem(last=False)[1])
        return known

    def _find_content(self, path: str, known: _Known | None) -> bytes | None:
        """Return what a client knows of a file; None if it is not kept any more."""
        if isinstance(known, FilesystemSnapshot):
            assert self._history is not None  # it has made the state
            with suppress(OSError, SnapshotError):
                return self._history.view(known).read_bytes(path).content
            return None
        return None if known is None else self._contents.get(known)

    def _describe(self, path: str, known: _Known | None, present: bytes) -> str:
        """Return the reason not to write, with what has changed if that can be found."""
        text = (
            f"{display_path(path)!r} was changed by the user or another program since you last read"
            " or wrote it; nothing was written. Read it again, then repeat the call"
        )
        content = self._find_content(path, known)
        if content is None:
            return text
        return f"{text}. What has changed:\n{make_diff(path, content, present).text[:_MAX_DIFF]}"


def _content_hash(files: Filesystem, path: str) -> str | None:
    """Return the hash of a file; None if there is none, or if it is too large to be read twice."""
    try:
        found = files.stat(path)
        return found.content_hash if found.size_bytes <= _MAX_HASHED else None
    except (OSError, ValueError):
        return None


def file_uri(root: str, path: str) -> str:
    """Return the URI of a file of a workspace."""
    return "file://" + quote(str(PurePosixPath(root, path)).encode("utf-8", "surrogateescape"))


def path_of(uri: str) -> str | None:
    """Return the absolute path of a file that a URI names; None if it names no file here."""
    parts = urlsplit(uri)
    is_file = parts.scheme == "file" and parts.netloc in ("", "localhost")
    return unquote(parts.path, errors="surrogateescape") if is_file else None


def _names(paths: Sequence[str]) -> str:
    return ", ".join(repr(display_path(path)) for path in paths)


def put_newest(items: OrderedDict[K, V], key: K, value: V, limit: int) -> None:
    """Add an item as the newest, and drop the oldest beyond a limit."""
    items[key] = value
    if len(items) > limit:
        items.popitem(last=False)
