"""The clients of a server: one value per connection, for history and restrictions."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any

from mcp.server import ServerRequestContext
from mcp.types import InitializeRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from weakincentives.filesystem import Filesystem
from weakincentives.posix import display_path

_MAX_CLIENTS = 1_000
_MAX_NAME = 60


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
        """Return the name and the number."""
        return f"{self.name} #{self.number}"

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

    def __init__(self) -> None:
        """Know no client."""
        self._lock = Lock()
        self._numbers = count(1)
        # by the identity of the parameters of `initialize`, which live as long as a connection
        self._connected: OrderedDict[int, tuple[InitializeRequestParams, McpClient]] = OrderedDict()
        # protocol versions without a handshake send only a name, with each request
        self._named: OrderedDict[str, McpClient] = OrderedDict()

    def identify(self, context: ServerRequestContext[Any, Any]) -> McpClient:
        """Return the client that sent a request."""
        params = context.session.client_params
        name = _display_name(params)
        with self._lock:
            if params is None or context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                return self._by_name(name)
            known = self._connected.get(id(params))
            if known is None:
                known = (params, McpClient(name, next(self._numbers)))
                self._connected[id(params)] = known
                if len(self._connected) > _MAX_CLIENTS:
                    self._connected.popitem(last=False)
            else:
                self._connected.move_to_end(id(params))
            return known[1]

    def _by_name(self, name: str) -> McpClient:
        client = self._named.get(name)
        if client is None:
            client = self._named[name] = McpClient(name, next(self._numbers))
            if len(self._named) > _MAX_CLIENTS:
                self._named.popitem(last=False)
        return client


def _display_name(params: InitializeRequestParams | None) -> str:
    if params is None or not params.client_info.name.strip():
        return "client"
    return display_path(params.client_info.name.strip())[:_MAX_NAME]
