"""Mask what looks like a secret: API keys, tokens, passwords in URLs, private keys."""

import re
from typing import Any

MASK = "***"
_PATTERNS = (
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
_SECRET = re.compile("|".join(_PATTERNS))


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
