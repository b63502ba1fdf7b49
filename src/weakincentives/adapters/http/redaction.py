"""Redaction: a text without the secrets in it, however they are written there."""

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from urllib.parse import quote, quote_plus

MASK = "***"
_LOOKED_AT = 16 * 1024
_LEAST = 8
_LEAST_WITH_DIGIT = 4
_PUBLIC_HEADERS = frozenset(
    {
        "accept",
        "anthropic-beta",
        "anthropic-version",
        "content-type",
        "http-referer",
        "openai-beta",
        "referer",
        "user-agent",
        "x-title",
    }
)
_USERINFO = re.compile(r"[^/\s]*@")


def redact(text: str, secrets: Iterable[str], *, most: int) -> str:
    """Return the beginning of a text with `***` in the place of each secret, plain or encoded.

    A short word stays: local servers take anything for a key, words of every sentence too.

    Args:
        text: Anything, of any length.
        secrets: What must not be in it.
        most: How many characters are returned, and `...` for the others.
    """
    patterns = _patterns(tuple(secrets))
    longest = max(map(len, patterns), default=0)
    looked_at = _LOOKED_AT + 2 * longest
    safe = (
        re.sub("|".join(patterns), MASK, text[:looked_at], flags=re.IGNORECASE)
        if patterns
        else text[:looked_at]
    )
    if len(text) > looked_at:
        safe = safe[: len(safe) - longest]  # a secret that was cut off is not found
    return safe if len(safe) <= most and len(text) <= looked_at else f"{safe[:most]}..."


def header_secrets(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield what is secret in the headers of a request: any value, but for well-known names."""
    for name, value in headers.items():
        if name.lower() not in _PUBLIC_HEADERS:
            yield value.strip()
            yield value.strip().rpartition(" ")[2]  # `Bearer KEY`


def redact_url(url: str) -> str:
    """Return a URL, or what was meant to be one, without user, password, query and fragment."""
    return _USERINFO.sub("", re.split(r"[?#]", url, maxsplit=1)[0])


@lru_cache(maxsize=64)
def _patterns(secrets: tuple[str, ...]) -> tuple[str, ...]:
    """Return what to look for, the longest first: one secret may be a part of another."""
    found = {each for secret in secrets for each in _spellings(secret) if each}
    return tuple(sorted(found, key=len, reverse=True))


def _spellings(secret: str) -> Iterator[str]:
    """Yield patterns for the ways in which a secret may be written."""
    if len(secret) >= _LEAST:
        quoted = json.dumps(secret)[1:-1]
        escaped = (quoted, quoted.replace("/", "\\/"), repr(secret)[1:-1], html.escape(secret))
        for each in (secret, quote(secret), quote(secret, safe=""), quote_plus(secret), *escaped):
            yield re.escape(each)
        yield from map(re.escape, _in_base64(secret))
    elif len(secret) >= _LEAST_WITH_DIGIT and any(map(str.isdigit, secret)):
        yield rf"(?<!\w){re.escape(secret)}(?!\w)"


def _in_base64(secret: str) -> Iterator[str]:
    """Yield what a text in base64 has in it wherever it begins if the secret is part of the text.

    Three bytes are four characters, so there are three ways, as for `Basic` with a user.
    """
    data = secret.encode("utf-8", "surrogatepass")
    for before, first in ((0, 0), (1, 2), (2, 3)):
        whole = b64encode(b"\0" * before + data).decode()
        core = whole[first : (before + len(data)) * 8 // 6]
        yield core
        yield core.replace("+", "-").replace("/", "_")
