"""Provider errors from HTTP responses, with a message that says what to do."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

from weakincentives.adapters.errors import (
    AuthenticationError,
    ContextTooLongError,
    InvalidRequestError,
    ProviderError,
    ThrottledError,
    TransientError,
)
from weakincentives.redaction import redact, redact_url

_MAX_EXCERPT = 500
_MAX_DATA_EXCERPT = 200
_MAX_SCANNED = 100_000
_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size|limit)|maximum context|prompt is too long|too many tokens"
    r"|input is too long|request too large|reduce the length",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"insufficient[ _](quota|balance|credit)|billing|credit balance", re.I)
_RATE = re.compile(r"rate[ _]?limit|too many requests", re.I)
_BUSY = re.compile(rf"overloaded|{_RATE.pattern}", re.I)
_REJECTED = (400, 413, 422, 429)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The provider, model and URL that error messages name, and the secrets that they mask."""

    provider: str
    model: str
    url: str
    key: str
    """Where the key comes from, in words."""
    secret: str = field(default="", repr=False)
    """The key itself."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Other secrets: passwords, header values."""

    @property
    def all_secrets(self) -> tuple[str, ...]:
        """What no message and no log may contain."""
        return (self.secret, *self.secrets)


def error_from_response(
    endpoint: Endpoint,
    message: str,
    *,
    status: int | None = None,
    code: str = "",
    headers: Mapping[str, str] | None = None,
    hints: Sequence[tuple[str, str]] = (),
) -> ProviderError:
    """Return the error for an error response.

    Args:
        endpoint: Where the response comes from.
        message: The provider's message.
        status: The HTTP status.
        code: The provider's error code.
        headers: The response headers; they may say when to retry.
        hints: Advice for rejected requests, each with a pattern that the message starts with.
    """
    message = message[:_MAX_SCANNED]
    kind, advice = _classify(endpoint, status, f"{code[:_MAX_EXCERPT]} {message}")
    hint = _find_hint(hints, message) if kind is InvalidRequestError else ""
    number = "" if status is None else f" (HTTP {status})"
    return kind(
        f"{endpoint.provider} {advice}{number}: {excerpt(endpoint, message)!r}{hint}",
        provider=endpoint.provider,
        status=status,
        retry_after=None if headers is None else retry_after(headers),
    )


def connection_error(endpoint: Endpoint, reason: str) -> TransientError:
    """Return a TransientError for a failed connection."""
    return TransientError(
        f"The connection to {endpoint.provider} at {endpoint.url} failed; check that it is"
        f" reachable and try again: {excerpt(endpoint, reason)}",
        provider=endpoint.provider,
    )


def timeout_error(endpoint: Endpoint, seconds: float) -> TransientError:
    """Return a TransientError for a timed-out response."""
    return TransientError(
        f"{endpoint.provider} model {endpoint.model!r} did not answer within {seconds:g} s;"
        " try again, or allow more time",
        provider=endpoint.provider,
    )


def incomplete_response(endpoint: Endpoint, reason: str, data: str | None = None) -> TransientError:
    """Return a TransientError for an unusable response; `data` is a part of it to show."""
    shown = "" if data is None else f": {excerpt(endpoint, data)!r}"
    return TransientError(
        f"The response of {endpoint.provider} model {endpoint.model!r} cannot be used, try again:"
        f" {excerpt(endpoint, reason)}{shown}",
        provider=endpoint.provider,
    )


def redirect_error(endpoint: Endpoint, status: int, location: str) -> InvalidRequestError:
    """Return an InvalidRequestError for a redirect to another server, which is not followed."""
    return InvalidRequestError(
        f"{endpoint.provider} at {endpoint.url} redirects to"
        f" {excerpt(endpoint, redact_url(location))!r} (HTTP {status}); the key and the"
        " conversation are not sent there. If it is the right server, set it as base_url",
        provider=endpoint.provider,
        status=status,
    )


def wrong_api_error(endpoint: Endpoint, api: str, data: str) -> InvalidRequestError:
    """Return an InvalidRequestError for a server that does not speak the API."""
    return InvalidRequestError(
        f"The server for {endpoint.provider} at {endpoint.url} does not speak the {api} API,"
        f" check base_url: {excerpt(endpoint, data, max_length=_MAX_DATA_EXCERPT)!r}",
        provider=endpoint.provider,
    )


def excerpt(endpoint: Endpoint, text: str, *, max_length: int = _MAX_EXCERPT) -> str:
    """Return the beginning of a provider's text, with the secrets masked."""
    return redact(text, endpoint.all_secrets, max_length=max_length)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the response headers ask to wait, or None.

    Args:
        headers: With lower-case names, or case-insensitive.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    until = _parse_date(headers.get("retry-after", ""))
    if until is None:
        return None
    # by the provider's clock if there is one: ours may be wrong
    now = _parse_date(headers.get("date", ""))
    return max(0.0, until - (time.time() if now is None else now))


def _find_hint(hints: Sequence[tuple[str, str]], message: str) -> str:
    flags = re.IGNORECASE | re.DOTALL
    return next((f"; {hint}" for pattern, hint in hints if re.match(pattern, message, flags)), "")


def _parse_date(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError, TypeError):
        return None


def _classify(
    endpoint: Endpoint, status: int | None, message: str
) -> tuple[type[ProviderError], str]:
    """Return the error class of an error response, and what to do about it."""
    model = f"model {endpoint.model!r}"
    if status in (None, *_REJECTED) and (status == 413 or _TOO_LONG.search(message)):
        return ContextTooLongError, f"{model} cannot take a conversation this long, shorten it"
    if status == 402 or (status in (None, 400, 403, 429) and _NO_CREDIT.search(message)):
        return AuthenticationError, f"has no credit left for {model}, check the account"
    if status == 401:
        return AuthenticationError, f"rejects the key, check {endpoint.key}"
    if status == 403:
        return AuthenticationError, f"does not let this key use {model}, check {endpoint.key}"
    if status == 404:
        return InvalidRequestError, f"has no {model} at {endpoint.url}, check its name and the URL"
    if status in (429, 529) or (status in (None, 500, 503) and _BUSY.search(message)):
        return ThrottledError, _describe_busy(model, status, message)
    if status is None or status in (408, 409, 425) or status >= 500:
        return TransientError, f"failed to answer with {model}, try again"
    return InvalidRequestError, f"rejects the request to {model}, change it"


def _describe_busy(model: str, status: int | None, message: str) -> str:
    """Return whether the user sends too much, or the server has too much to do."""
    if _RATE.search(message) or (status == 429 and not _BUSY.search(message)):
        return f"limits the rate of requests to {model}, wait or raise the limits"
    return f"is overloaded and cannot answer with {model} now, try again later"
