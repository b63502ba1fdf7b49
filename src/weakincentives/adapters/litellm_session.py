"""The limits of a response that LiteLLM reads, where it lets us set them.

LiteLLM has a client for each kind of provider. That of OpenAI's API, of Azure and of whatever
speaks OpenAI's API can be given; the hooks on it do nothing for requests that are not ours.
"""

import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import httpx

from weakincentives.adapters.failures import Endpoint, broken_off, moved
from weakincentives.adapters.problems import ProviderError

MAX_STREAM = 64 * 1024 * 1024
"""How many bytes an answer may have that is streamed."""
MAX_WHOLE = 8 * 1024 * 1024
"""How many bytes an answer may have that is not."""
MAX_FAILURE = 128 * 1024
"""How many bytes of a failure are read; the rest is left."""

_PLAIN = ("", "identity")


@dataclass(slots=True)
class Limits:
    """What one request may take; `failure` is why its response was not taken."""

    endpoint: Endpoint
    ends: float
    is_streamed: bool
    failure: ProviderError | None = None


current_limits: ContextVar[Limits | None] = ContextVar("current_limits", default=None)
"""The limits of the request that this thread makes."""


def limit_client(client: httpx.Client) -> httpx.Client:
    """Return the client with hooks that limit the responses to requests with limits."""
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], _ask_for_plain],
        "response": [*hooks["response"], _limit],
    }
    return client


def _ask_for_plain(request: httpx.Request) -> None:
    # httpx unpacks a piece as a whole, however large that is
    if current_limits.get() is not None:
        request.headers["accept-encoding"] = "identity"


def _limit(response: httpx.Response) -> None:
    limits = current_limits.get()
    if limits is None:
        return
    location = response.headers.get("location")
    if response.is_redirect and location is not None:
        limits.failure = moved(limits.endpoint, response.status_code, location)
        raise httpx.RequestError("redirected")
    encoding = response.headers.pop("content-encoding", "").strip().lower()
    # a charset can be a decompressor
    response.headers["content-type"] = response.headers.get("content-type", "").partition(";")[0]
    stream = response.stream
    if isinstance(stream, httpx.SyncByteStream):
        is_packed = encoding not in _PLAIN
        response.stream = _Body(stream, limits, response.is_success, is_packed=is_packed)


class _Body(httpx.SyncByteStream):
    """A body that comes to an end: that of a failure is cut off, that of an answer refused."""

    def __init__(
        self, inner: httpx.SyncByteStream, limits: Limits, is_answer: bool, *, is_packed: bool
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._is_answer = is_answer
        self._is_packed = is_packed
        whole = MAX_STREAM if limits.is_streamed else MAX_WHOLE
        self._most = whole if is_answer else MAX_FAILURE

    def __iter__(self) -> Iterator[bytes]:
        left = self._most
        if self._is_packed:
            self._refuse("it is packed, which was not asked for")
            return
        for piece in self._inner:
            if time.monotonic() > self._limits.ends:
                raise httpx.ReadTimeout("the time of the request is over")
            left -= len(piece)
            if left < 0:
                self._refuse(f"it is longer than {self._most} bytes")
                return
            yield piece

    def close(self) -> None:
        self._inner.close()

    def _refuse(self, reason: str) -> None:
        if self._is_answer:
            self._limits.failure = broken_off(self._limits.endpoint, reason)
            raise httpx.ReadError(reason)
