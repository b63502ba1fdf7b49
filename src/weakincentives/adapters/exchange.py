"""An exchange with a provider by HTTP: what is checked before it, and how its answer is read."""

import time
from collections.abc import Iterable, Iterator

import httpx2

from weakincentives.adapters.failures import Endpoint, broken_off, too_slow
from weakincentives.adapters.problems import AuthenticationError, InvalidRequestError

DEFAULT_TIMEOUT = 600.0
"""How many seconds a request may take if nobody says."""
NO_KEY = "none"
"""What a server is sent that wants no key: the SDKs insist on one."""

_MOST_BYTES = 64 * 1024 * 1024


def checked_url(url: str, *, provider: str, example: str) -> httpx2.URL:
    """Return where a provider is.

    Raises:
        InvalidRequestError: It is no URL.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidRequestError(
            f"base_url must be a URL such as {example}: {url!r}", provider=provider
        )
    return parsed


def shown_url(url: httpx2.URL) -> str:
    """Return a URL without what is secret in it."""
    return str(url.copy_with(userinfo=b""))


def check_key(key: str, *, provider: str, where: str) -> None:
    """Return if this may be a key.

    Args:
        key: What is to be one.
        provider: Whose key it is.
        where: Where it is looked for, in words.

    Raises:
        AuthenticationError: There is none, or it cannot be one.
    """
    if not key:
        raise AuthenticationError(
            f"There is no key for {provider}, give {where}", provider=provider
        )
    if not (key.isascii() and key.isprintable()):
        raise AuthenticationError(
            f"The key for {provider} has characters that no key has, check {where}",
            provider=provider,
        )


def body_pieces(
    pieces: Iterable[bytes], endpoint: Endpoint, *, ends: float, seconds: float
) -> Iterator[bytes]:
    """Yield the body of an answer while there is time: a client's time-out is for each piece.

    Args:
        pieces: The body as it arrives.
        endpoint: Who sends it.
        ends: When the time is up, by `time.monotonic`.
        seconds: How much time there was.

    Raises:
        TransientError: It takes too long, or it is too large.
    """
    left = _MOST_BYTES
    for piece in pieces:
        if time.monotonic() > ends:
            raise too_slow(endpoint, seconds)
        left -= len(piece)
        if left < 0:
            raise broken_off(endpoint, f"it is longer than {_MOST_BYTES} bytes")
        yield piece
