"""Secret redaction: mask keys and passwords in text, plain or encoded."""

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from urllib.parse import quote, quote_plus

MASK = "***"
_MAX_SCANNED = 16 * 1024
_MIN_SECRET = 8
_MIN_SECRET_WITH_DIGIT = 4
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


def redact(text: str, secrets: Iterable[str], *, max_length: int) -> str:
    """Return the beginning of a text with each secret replaced by `***`.

    Short secrets are not masked: local servers accept any word as a key, even common ones.

    Args:
        text: Any text, of any length.
        secrets: What to mask, also where it is encoded.
        max_length: How many characters to return; `...` stands for the rest.
    """
    patterns = _patterns(tuple(secrets))
    longest = max(map(len, patterns), default=0)
    scanned = _MAX_SCANNED + 2 * longest
    safe = (
        re.sub("|".join(patterns), MASK, text[:scanned], flags=re.IGNORECASE)
        if patterns
        else text[:scanned]
    )
    if len(text) > scanned:
        safe = safe[: len(safe) - longest]  # a secret that is cut off does not match
    is_complete = len(safe) <= max_length and len(text) <= scanned
    return safe if is_complete else f"{safe[:max_length]}..."


def header_secrets(headers: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets in request headers: every value, except of well-known headers."""
    for name, value in headers.items():
        if name.lower() not in _PUBLIC_HEADERS:
            yield value.strip()
            yield value.strip().rpartition(" ")[2]  # `Bearer KEY`


def redact_url(url: str) -> str:
    """Return a URL, valid or not, without user, password, query and fragment."""
    return _USERINFO.sub("", re.split(r"[?#]", url, maxsplit=1)[0])


@lru_cache(maxsize=64)
def _patterns(secrets: tuple[str, ...]) -> tuple[str, ...]:
    """Return search patterns, the longest first: one secret may be part of another."""
    found = {each for secret in secrets for each in _spellings(secret) if each}
    return tuple(sorted(found, key=len, reverse=True))


def _spellings(secret: str) -> Iterator[str]:
    """Yield patterns for the ways in which a secret may be encoded."""
    if len(secret) >= _MIN_SECRET:
        quoted = json.dumps(secret)[1:-1]
        escaped = (quoted, quoted.replace("/", "\\/"), repr(secret)[1:-1], html.escape(secret))
        for each in (secret, quote(secret), quote(secret, safe=""), quote_plus(secret), *escaped):
            yield re.escape(each)
        yield from map(re.escape, _base64_forms(secret))
    elif len(secret) >= _MIN_SECRET_WITH_DIGIT and any(map(str.isdigit, secret)):
        yield rf"(?<!\w){re.escape(secret)}(?!\w)"


def _base64_forms(secret: str) -> Iterator[str]:
    """Yield the base64 of a secret at every alignment, as in `Basic` with a user before it.

    Three bytes become four characters, so there are three alignments.
    """
    data = secret.encode("utf-8", "surrogatepass")
    for offset, first in ((0, 0), (1, 2), (2, 3)):
        encoded = b64encode(b"\0" * offset + data).decode()
        core = encoded[first : (offset + len(data)) * 8 // 6]
        yield core
        yield core.replace("+", "-").replace("/", "_")
