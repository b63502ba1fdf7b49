"""Masking what looks like a secret."""

import pytest

from weakincentives.debug import mask_secrets
from weakincentives.redaction import mask_values

SECRETS = [
    "sk-AbCdEf0123456789AbCdEf",
    "sk-ant-api03-AbCdEf0123456789_-AbCdEf",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_11AAAAAAA0123456789_abcdefghij",
    "glpat-AbCdEf0123456789AbCd",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA-0123456789abcdefghijklmnopqrstu",
    "xoxb-123456789012-abcdefABCDEF",
    "hf_abcdefghijklmnopqrstuvwx",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJlMTIz",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "key={}\n", '{{"k": "{}"}}', "a {} b", "({})"])
def test_keys_of_known_formats_are_masked(secret: str, around: str):
    masked = mask_secrets(around.format(secret))
    assert secret not in masked
    assert "***" in masked
    assert secret[-8:] not in masked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abcdef0123456789", "Authorization: Bearer ***"),
        ("https://me:hunter22@example.org/x", "https://me:***@example.org/x"),
        ("password = 'correct-horse-battery'", "password = '***'"),
        ("DB_PASSWORD=0123456789abcdef", "DB_PASSWORD=***"),
        ('"api_key": "0123456789abcdef"', '"api_key": "***"'),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----",
        ),
    ],
)
def test_what_says_that_it_is_a_secret_is_masked(text: str, expected: str):
    assert mask_secrets(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "task-list and risk-averse-words-in-a-row",
        "def password(self): return None",
        "commit 1d3a4661d3a4661d3a4661d3a4661d3a4661d3a46",
        "see https://example.org:8080/path",
        "the bearer of news",
        "",
    ],
)
def test_ordinary_text_stays(text: str):
    assert mask_secrets(text) == text


def test_masking_takes_linear_time():
    for text in ("sk-" * 200_000, "password" * 100_000, "://a:" * 200_000, "-----BEGIN " * 50_000):
        mask_secrets(text)


def test_values_are_masked_wherever_they_are():
    value = {"a": [SECRETS[0], {"b": SECRETS[1]}], SECRETS[2]: 1, "n": None}
    masked = mask_values(value)
    assert not any(secret in str(masked) for secret in SECRETS)
    assert masked["n"] is None
