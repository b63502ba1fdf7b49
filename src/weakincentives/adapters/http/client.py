"""An exchange with a provider by HTTP: what is checked before it, and how its answer is read."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping

import httpx2

from weakincentives.adapters.errors import AuthenticationError, InvalidRequestError, ProviderError
from weakincentives.adapters.http.errors import (
    Endpoint,
    connection_error,
    incomplete_response,
    moved,
    timeout_error,
)
from weakincentives.adapters.http.lenient import AnswerError
from weakincentives.adapters.http.redaction import header_secrets, redact_url
from weakincentives.adapters.http.transport import LOCATION, BodyError, bare_url

DEFAULT_TIMEOUT = 600.0
"""How many seconds a request may take if nobody says."""
NO_KEY = "none"
"""What a server is sent that wants no key: the SDKs insist on one."""
_MOST_BYTES = 64 * 1024 * 1024
_MOST_AT_ONCE = 8 * 1024 * 1024  # parsed, JSON takes many times the memory
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PUBLIC_PARAMETERS = frozenset({"api-version", "version"})


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
            f"base_url must be a URL such as {example}: {redact_url(url)!r}", provider=provider
        )
    return parsed


def shown_url(url: httpx2.URL) -> str:
    """Return a URL without what is secret in it."""
    return str(bare_url(url))


def url_secrets(url: httpx2.URL) -> Iterator[str]:
    """Yield what is secret in a URL: user and password, and the values of its query."""
    yield from (url.username, url.password, f"{url.username}:{url.password}")
    for name, value in url.params.multi_items():
        if name.lower() not in _PUBLIC_PARAMETERS:
            yield value or name  # `?TOKEN` is a name without a value


def checked_headers(headers: Mapping[str, str] | None, *, provider: str) -> dict[str, str]:
    """Return headers as they are sent, without spaces around a value.

    Raises:
        InvalidRequestError: A name or a value has characters that no header has.
    """
    checked = {name: value.strip() for name, value in (headers or {}).items()}
    for name, value in checked.items():
        if not (_HEADER_NAME.fullmatch(name) and value.isascii() and value.isprintable()):
            raise InvalidRequestError(
                f"The header {name!r} cannot be sent, give ASCII characters without line ends",
                provider=provider,
            )
    return checked


def secrets_of(url: httpx2.URL, headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is in no sentence besides the key."""
    return (*url_secrets(url), *header_secrets(headers))


def failure_of(endpoint: Endpoint, error: Exception, seconds: float) -> ProviderError:
    """Return the error that an exception of the HTTP client is, or of what reads an answer.

    It is raised by itself, not `from` the other: that holds the request with the key.
    """
    cause = error.__cause__ or error
    match error:
        case BodyError() | AnswerError():
            return incomplete_response(endpoint, str(error))
        case httpx2.TimeoutException():
            return timeout_error(endpoint, seconds)
        case _:
            return connection_error(endpoint, f"{type(cause).__name__}: {cause}")


def redirect_of(endpoint: Endpoint, response: httpx2.Response) -> ProviderError | None:
    """Return the error that a redirect is, or None if the response is none."""
    location = response.extensions.get(LOCATION)
    if location is None or not response.is_redirect:
        return None
    return moved(endpoint, response.status_code, str(location))


def whole_body(pieces: Iterable[bytes], endpoint: Endpoint) -> str:
    """Return the body of an answer that is not streamed.

    Raises:
        TransientError: It is too large.
    """
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > _MOST_AT_ONCE:
            raise incomplete_response(endpoint, f"it is longer than {_MOST_AT_ONCE} bytes")
    return body.decode("utf-8", "replace")


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
            raise timeout_error(endpoint, seconds)
        left -= len(piece)
        if left < 0:
            raise incomplete_response(endpoint, f"it is longer than {_MOST_BYTES} bytes")
        yield piece
