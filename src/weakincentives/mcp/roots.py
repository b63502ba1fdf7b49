"""Roots of clients: directories outside which a client's calls are refused.

A client may name the directories that it works in. They restrict its calls further and never
allow more than the workspace. Protocol versions without a handshake have no roots.
"""

import os
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import METHOD_NOT_FOUND, ListRootsRequest, ListRootsResult

from weakincentives.adapters import CheckedCall, Policy
from weakincentives.errors import ToolValidationError
from weakincentives.mcp.clients import McpClient
from weakincentives.posix import display_path
from weakincentives.prompt import ToolAccess

_TIMEOUT = 10  # seconds for a client to list its roots
_MAX_CLIENTS = 1_000
_MAX_MESSAGE = 200
_EVERYTHING = ("",)


class ClientRoots:
    """What each client may access: paths of the workspace, with everything below them."""

    def __init__(self, host_roots: Sequence[str]) -> None:
        """Map roots to paths of a workspace that is known by these directories of the host."""
        self._host_roots = tuple(dict.fromkeys(map(os.path.realpath, host_roots)))
        self._lock = Lock()
        self._allowed: OrderedDict[McpClient, tuple[str, ...]] = OrderedDict()

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
            self._allowed[client] = allowed
            if len(self._allowed) > _MAX_CLIENTS:
                self._allowed.popitem(last=False)

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
            raise ToolValidationError(
                "The client has roots, but its list is invalid, so nothing is allowed"
            ) from error
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

    def allowed(self, client: McpClient) -> tuple[str, ...]:
        """Return the paths that a client may access; `""` is the whole workspace."""
        with self._lock:
            return self._allowed.get(client, _EVERYTHING)

    def allows(self, client: McpClient, path: str) -> bool:
        """Return whether a client may access a path."""
        path = "" if path == "." else path
        return any(not each or f"{path}/".startswith(f"{each}/") for each in self.allowed(client))

    def _map(self, uri: str) -> str | None:
        """Return the path in the workspace for a root; None if it is elsewhere."""
        parts = urlsplit(uri)
        if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
            return None
        name = unquote(parts.path)
        if "\0" in name:
            return None
        directory = os.path.realpath(name)
        for root in self._host_roots:
            if root == directory or root.startswith(directory.rstrip("/") + "/"):
                return ""
            if directory.startswith(root.rstrip("/") + "/"):
                return directory[len(root.rstrip("/")) + 1 :]
        return None


class RootsPolicy(Policy):
    """Denies calls outside the roots of their client."""

    def __init__(self, roots: ClientRoots, client: McpClient) -> None:
        """Deny what `roots` do not allow `client`."""
        self._roots = roots
        self._client = client

    def allow(self, call: CheckedCall) -> str | None:
        """Deny a call outside the roots, and commands, which could go anywhere."""
        allowed = self._roots.allowed(self._client)
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
        return self._check(call.paths)

    def allow_access(self, call: CheckedCall, access: ToolAccess) -> str | None:
        """Deny paths outside the roots."""
        del call
        return self._check(access.paths)

    def _check(self, paths: Sequence[str]) -> str | None:
        outside = [path for path in paths if not self._roots.allows(self._client, path)]
        if not outside:
            return None
        return (
            f"{display_path(outside[0])!r} is outside the roots of this client, which allow only"
            f" {_names(self._roots.allowed(self._client))}"
        )


def _names(paths: Sequence[str]) -> str:
    return ", ".join(repr(display_path(path)) for path in paths)
