"""The clients of a server: one value per connection, for history and restrictions."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any, TypeVar

from mcp.server import ServerRequestContext
from mcp.types import InitializeRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from weakincentives.filesystem import Filesystem
from weakincentives.posix import display_path

_MAX_CLIENTS = 1_000
_MAX_NAME = 60
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
        # by the identity of the parameters of `initialize`, which live as long as a connection
        self._connected: OrderedDict[int, tuple[object, McpClient]] = OrderedDict()
        # protocol versions without a handshake send only a name, with each request
        self._named: OrderedDict[str, tuple[object, McpClient]] = OrderedDict()

    def identify(self, context: ServerRequestContext[Any, Any]) -> McpClient:
        """Return the client that sent a request."""
        params = context.session.client_params
        name = _display_name(params)
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        with self._lock:
            if params is None or is_modern:
                client, is_new = self._find(self._named, name, name, name)
            else:
                client, is_new = self._find(self._connected, id(params), params, name)
        if is_new and self._on_client is not None:
            self._on_client(client)
        return client

    def _find(
        self, known: OrderedDict[K, tuple[object, McpClient]], key: K, owner: object, name: str
    ) -> tuple[McpClient, bool]:
        """Return the client with a key, and whether it is new."""
        found = known.get(key)
        if found is not None:
            known.move_to_end(key)
            return found[1], False
        client = McpClient(name, next(self._numbers))
        known[key] = owner, client
        if len(known) > _MAX_CLIENTS:
            known.popitem(last=False)
        return client, True


def _display_name(params: InitializeRequestParams | None) -> str:
    if params is None or not params.client_info.name.strip():
        return "client"
    return display_path(params.client_info.name.strip())[:_MAX_NAME]
