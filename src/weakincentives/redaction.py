"""Secret redaction: mask known secrets, plain or encoded, and what looks like a secret."""

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"
_MAX_SCANNED = 16 * 1024
_MIN_SECRET = 8
_MIN_SECRET_WITH_DIGIT = 4
_MAX_NAME = 80  # characters in the name of a field
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
_NAMED = re.compile(
    "|".join(
        (
            # a field of JSON, also of JSON in a string
            r"(?P<a>(?P<q>\\{0,3}[\"'])(?P<A>[\w-]{2,64})(?P=q)\s{0,4}:\s{0,4}(?P=q))[^\"'\\\n]{1,16384}",
            r"(?P<b>\b(?P<B>[A-Z][A-Z0-9_]{2,63})=[\"']?)[^\s\"'$<{(;&|]{1,4096}",
            r"(?P<c>(?<!\S)--?(?P<C>[a-z][\w-]{2,64})[= ][\"']?)"
            r"[^\s\"'$<{(;&|-][^\s\"';&|]{0,4095}",
            # a setting or a literal in quotes; one without them has a digit, unlike a type
            r"(?P<d>\b(?P<D>[A-Za-z][\w-]{2,63})\s{0,3}[:=]\s{0,3}(?P<r>[\"']))[^\"'\\\n]{1,4096}(?=(?P=r))",
            r"(?P<e>(?:^[+ \t-]{0,40}|(?<=[\"']))(?P<E>[A-Za-z][\w.-]{2,63}):[ \t]{1,4})"
            r"(?=[^\s\"']{0,4096}[0-9])[^\s\"'$<{(]{4,4096}(?=[\"']|$)",
        )
    ),
    re.MULTILINE,
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SECRET_WORDS = (
    *("password", "passwd", "passphrase", "passcode", "pwd", "pass", "secret", "secrets", "jwt"),
    *("token", "apikey", "credential", "credentials", "authorization", "cookie", "bearer"),
)
_OTHER_WORDS = frozenset({"bypass", "compass", "forbearer", "overpass", "surpass", "trespass"})
_CLUES = (*_SECRET_WORDS, "key")
_KEY_WORDS = frozenset({"api", "access", "private", "auth", "encryption", "signing", "account"})
_ABOUT_SECRETS = frozenset(  # "token_count" says something about tokens
    {
        *("count", "limit", "type", "name", "file", "path", "url", "uri", "policy", "length"),
        *("expires", "expiry", "ttl", "budget", "usage", "hint", "field", "id", "description"),
    }
)


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

    It recognizes the common formats, and the values of fields, variables and options whose name
    says that they are secret. A secret that looks like an ordinary word elsewhere stays.
    """
    masked = _SECRET.sub(_mask, text)
    lower = masked.lower()
    return _NAMED.sub(_mask_named, masked) if any(each in lower for each in _CLUES) else masked


def mask_values(value: Any) -> Any:
    """Return a JSON value with its secrets masked: by their form, or by the name of their field."""
    match value:
        case str():
            return mask_secrets(value)
        case list() | tuple():
            return _mask_items(value)  # pyright: ignore[reportUnknownArgumentType] # JSON
        case dict():
            return _mask_fields(value)  # pyright: ignore[reportUnknownArgumentType] # JSON
        case _:
            return value


def _mask_fields(value: Mapping[Any, Any]) -> dict[str, Any]:
    """Mask an object, also one such as `{"name": "DB_PASSWORD", "value": "..."}`."""
    names = [value.get(each) for each in ("name", "key", "variable")]
    is_named = any(isinstance(each, str) and _is_secret(each) for each in names)
    return {
        mask_secrets(str(key)): _mask_all(each)
        if _is_secret(str(key)) or (key == "value" and is_named)
        else mask_values(each)
        for key, each in value.items()
    }


def _mask_items(value: Sequence[Any]) -> list[Any]:
    """Mask a list; it may be a command, in which an option names the secret that follows."""
    options = [isinstance(each, str) and each.startswith("-") for each in value]
    after = [False, *(o and _is_secret(each) for o, each in zip(options, value, strict=True))]
    return [
        MASK if secret and isinstance(each, str) and not option else mask_values(each)
        for each, secret, option in zip(value, after, options, strict=False)
    ]


def _mask_all(value: Any) -> Any:
    """Mask what is in a field for secrets; a schema describes them."""
    match value:
        case str() | int() | float() if not isinstance(value, bool):
            return MASK if value != "" else value
        case list() | tuple():
            return [_mask_all(each) for each in value]  # pyright: ignore[reportUnknownVariableType] # JSON
        case dict() if "type" not in value and "properties" not in value:
            return {key: _mask_all(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType] # JSON
        case _:
            return mask_values(value)


def _is_secret(name: str) -> bool:
    """Return whether the name of a field says that its value is secret."""
    words = [each.lower() for each in _WORD.findall(name)] if len(name) <= _MAX_NAME else []
    if not words or words[-1] in _ABOUT_SECRETS:
        return False
    return any(each.endswith(_SECRET_WORDS) and each not in _OTHER_WORDS for each in words) or any(
        second == "key" and first in _KEY_WORDS for first, second in pairwise(words)
    )


def _mask(match: re.Match[str]) -> str:
    return (match[match.lastgroup] if match.lastgroup else "") + MASK


def _mask_named(match: re.Match[str]) -> str:
    group = next(each for each in "abcde" if match[each])
    is_masked = match[0].endswith(MASK)  # by its form, whose beginning says what it is
    return match[0] if is_masked or not _is_secret(match[group.upper()]) else match[group] + MASK
