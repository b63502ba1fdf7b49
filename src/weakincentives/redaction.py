"""Secret redaction: mask known secrets, plain or encoded, and what looks like a secret."""

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
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
_FORMATS = (
    # the beginning that says what it is stays readable
    r"(?P<a>\bsk-(?:ant-|proj-|or-)?)[A-Za-z0-9_-]{16,}",
    r"(?P<b>\b(?:ghp|gho|ghu|ghs|ghr)_)[A-Za-z0-9]{20,}",
    r"(?P<c>\bgithub_pat_)[A-Za-z0-9_]{20,}",
    r"(?P<d>\bglpat-)[A-Za-z0-9_-]{16,}",
    r"(?P<e>\b(?:AKIA|ASIA))[A-Z0-9]{16}\b",
    r"(?P<f>\bAIza)[A-Za-z0-9_-]{30,}",
    r"(?P<g>\bxox[abeoprs]-)[A-Za-z0-9-]{10,}",
    r"(?P<h>\b(?:hf|npm)_)[A-Za-z0-9]{20,}",
    r"(?P<i>\bpypi-)[A-Za-z0-9_-]{50,}",
    r"(?P<j>\beyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    r"(?P<k>\b(?i:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{12,}",
    r"(?P<l>://[^\s/:@]{1,256}:)[^\s/@]{1,256}(?=@)",
    r"(?P<m>-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[^-]{1,16384}(?=-----END )",
    r"(?P<n>(?i:api[_-]?key|access[_-]?key|secret|password|passwd|auth[_-]?token)"
    r"[A-Za-z0-9_]{0,32}[\"']?\s{0,4}[:=]\s{0,4}[\"']?)[A-Za-z0-9._~+/=-]{12,}",
)
_SECRET = re.compile("|".join(_FORMATS))


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


def mask_secrets(text: str) -> str:
    """Return the text with `***` in place of what looks like a key, a token or a password.

    It recognizes the common formats. A secret that looks like an ordinary word stays.
    """
    return _SECRET.sub(_mask, text)


def mask_values(value: Any) -> Any:
    """Return a JSON value with the secrets in its strings masked, keys included."""
    match value:
        case str():
            return mask_secrets(value)
        case list() | tuple():
            return [mask_values(each) for each in value]  # pyright: ignore[reportUnknownVariableType] # JSON
        case dict():
            return {mask_secrets(str(key)): mask_values(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] # JSON
        case _:
            return value


def _mask(match: re.Match[str]) -> str:
    return (match[match.lastgroup] if match.lastgroup else "") + MASK
