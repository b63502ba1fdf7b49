"""Failures: what a provider's refusal means, and a sentence that says what to do about it."""

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
from weakincentives.adapters.http.redaction import redact, redact_url

_SHOWN = 500
_SHOWN_DATA = 200
_LOOKED_AT = 100_000
_TOO_LONG = re.compile(
    r"context[ _-]?(length|window|size|limit)|maximum context|prompt is too long|too many tokens"
    r"|input is too long|request too large|reduce the length",
    re.IGNORECASE,
)
_NO_CREDIT = re.compile(r"insufficient[ _](quota|balance|credit)|billing|credit balance", re.I)
_BUSY = re.compile(r"overloaded|rate[ _]?limit|too many requests", re.I)
_REFUSED_AS_IT_IS = (400, 413, 422, 429)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Who is asked, and where: what the sentences about failures name."""

    provider: str
    model: str
    url: str
    key: str
    """Where the key is looked for, in words."""
    secret: str = field(default="", repr=False)
    """The key, which is in no sentence."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """What else is in no sentence: passwords, the values of headers."""

    @property
    def all_secrets(self) -> tuple[str, ...]:
        """What must be in no message and in no log."""
        return (self.secret, *self.secrets)


def error_from_response(
    endpoint: Endpoint,
    said: str,
    *,
    status: int | None = None,
    code: str = "",
    headers: Mapping[str, str] | None = None,
    hints: Sequence[tuple[str, str]] = (),
) -> ProviderError:
    """Return the error that a provider's refusal is.

    Args:
        endpoint: Who refused.
        said: What it said.
        status: The HTTP status.
        code: What the provider calls the failure.
        headers: Of the response; they may say when to come back.
        hints: What to do about a request that is refused as it is, by a pattern that what was
            said begins with.
    """
    said = said[:_LOOKED_AT]
    kind, advice = _meaning(endpoint, status, f"{code[:_SHOWN]} {said}")
    hint = _hint(hints, said) if kind is InvalidRequestError else ""
    number = "" if status is None else f" (HTTP {status})"
    return kind(
        f"{endpoint.provider} {advice}{number}: {excerpt(endpoint, said)!r}{hint}",
        provider=endpoint.provider,
        status=status,
        retry_after=None if headers is None else retry_after(headers),
    )


def connection_error(endpoint: Endpoint, reason: str) -> TransientError:
    """Return the error that a connection is which was not made, or broke."""
    return TransientError(
        f"The connection to {endpoint.provider} at {endpoint.url} failed, check that it is"
        f" reachable and try again: {excerpt(endpoint, reason)}",
        provider=endpoint.provider,
    )


def timeout_error(endpoint: Endpoint, seconds: float) -> TransientError:
    """Return the error that an answer is which took too long."""
    return TransientError(
        f"{endpoint.provider} model {endpoint.model!r} did not answer within {seconds:g} s:"
        " try again, or allow more time",
        provider=endpoint.provider,
    )


def incomplete_response(endpoint: Endpoint, reason: str, data: str | None = None) -> TransientError:
    """Return the error that an answer is which cannot be used; `data` is a part of it."""
    shown = "" if data is None else f": {excerpt(endpoint, data)!r}"
    return TransientError(
        f"{endpoint.provider} model {endpoint.model!r} gave no whole answer, try again:"
        f" {excerpt(endpoint, reason)}{shown}",
        provider=endpoint.provider,
    )


def moved(endpoint: Endpoint, status: int, location: str) -> InvalidRequestError:
    """Return the error that a redirect is which is not followed."""
    return InvalidRequestError(
        f"{endpoint.provider} at {endpoint.url} redirects to"
        f" {excerpt(endpoint, redact_url(location))!r} (HTTP {status}), and neither the key nor"
        " the conversation is sent on: give that as base_url if it is the right server",
        provider=endpoint.provider,
        status=status,
    )


def not_the_api(endpoint: Endpoint, api: str, data: str) -> InvalidRequestError:
    """Return the error that an answer is which something else has given."""
    return InvalidRequestError(
        f"What answers for {endpoint.provider} at {endpoint.url} does not speak the {api} API,"
        f" check base_url: {excerpt(endpoint, data, most=_SHOWN_DATA)!r}",
        provider=endpoint.provider,
    )


def excerpt(endpoint: Endpoint, said: str, *, most: int = _SHOWN) -> str:
    """Return what can be shown of what a provider said: not all, and never a secret."""
    return redact(said, endpoint.all_secrets, most=most)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the headers of a response ask us to wait, or None.

    Args:
        headers: By names in lower case, or by names in any case.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    until = _seconds(headers.get("retry-after", ""))
    if until is None:
        return None
    # by the provider's own clock if it tells the time: ours may be wrong
    now = _seconds(headers.get("date", ""))
    return max(0.0, until - (time.time() if now is None else now))


def _hint(hints: Sequence[tuple[str, str]], said: str) -> str:
    flags = re.IGNORECASE | re.DOTALL
    return next((f"; {what}" for pattern, what in hints if re.match(pattern, said, flags)), "")


def _seconds(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError, TypeError):
        return None


def _meaning(endpoint: Endpoint, status: int | None, said: str) -> tuple[type[ProviderError], str]:
    """Return what a refusal is, and what to do about it."""
    model = f"model {endpoint.model!r}"
    if status in (None, *_REFUSED_AS_IT_IS) and (status == 413 or _TOO_LONG.search(said)):
        return ContextTooLongError, f"cannot take so long a conversation with {model}, shorten it"
    if status == 402 or (status in (None, 400, 403, 429) and _NO_CREDIT.search(said)):
        return AuthenticationError, f"has no credit left for {model}, check the account"
    if status == 401:
        return AuthenticationError, f"does not accept the key, check {endpoint.key}"
    if status == 403:
        return AuthenticationError, f"does not let this key use {model}, check {endpoint.key}"
    if status == 404:
        return InvalidRequestError, f"has no {model} at {endpoint.url}, check its name and the URL"
    if status in (429, 529) or (status in (None, 500, 503) and _BUSY.search(said)):
        return ThrottledError, f"wants fewer requests for {model}, wait or raise its limits"
    if status is None or status in (408, 409, 425) or status >= 500:
        return TransientError, f"failed to answer with {model}, try again"
    return InvalidRequestError, f"refuses the request to {model}, change it"
