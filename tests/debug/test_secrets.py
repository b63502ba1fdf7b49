"""Masking what looks like a secret."""

import json
from typing import Any

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
        ("export DB_PASSWORD=hunter2", "export DB_PASSWORD=***"),
        ("mysql --password=hunter2 -u me", "mysql --password=*** -u me"),
        ("curl -H 'X-Api-Key: a1b2'", "curl -H 'X-Api-Key: ***'"),
        ("db:\n+  password: hunter2\n", "db:\n+  password: ***\n"),
        ('token = "x"', 'token = "***"'),
        (f'{{"token": "{SECRETS[2]}"}}', '{"token": "ghp_***"}'),
        (json.dumps({"a": json.dumps({"apiKey": "x", "b": 1})}), None),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----",
        ),
    ],
)
def test_what_says_that_it_is_a_secret_is_masked(text: str, expected: str | None):
    assert mask_secrets(text) == (expected or text.replace('\\"x\\"', '\\"***\\"'))


@pytest.mark.parametrize(
    "text",
    [
        "task-list and risk-averse-words-in-a-row",
        "def password(self): return None",
        "commit 1d3a4661d3a4661d3a4661d3a4661d3a4661d3a46",
        "see https://example.org:8080/path",
        "the bearer of news",
        "password: str\ntoken: Token | None = None\nself.token = token\nMAX_TOKENS=400",
        "PASSWORD=$SECRET --token-file x --token -v\npassword = ask(1)",
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


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ({"api_key": "x", "privateKey": 1}, {"api_key": "***", "privateKey": "***"}),
        ({"headers": {"Cookie": "a=b"}}, {"headers": {"Cookie": "***"}}),
        ({"secrets": ["a", "b"]}, {"secrets": ["***", "***"]}),
        ({"credentials": {"user": "me"}}, {"credentials": {"user": "***"}}),
        ([{"name": "DB_PASSWORD", "value": "x"}], [{"name": "DB_PASSWORD", "value": "***"}]),
        ([{"name": "HOME", "value": "/"}], [{"name": "HOME", "value": "/"}]),
        (["login", "--token", "x", "y"], ["login", "--token", "***", "y"]),
    ],
)
def test_a_field_whose_name_says_that_it_is_secret_is_masked(value: Any, masked: Any):
    assert mask_values(value) == masked


@pytest.mark.parametrize(
    "value",
    [
        {
            "input_tokens": 5,
            "token_count": "7",
            "is_secret": True,
            "token": "",
            "primary_key": "id",
        },
        {"passed": "yes", "bypass": "b", "author": "me", "password_file": "x", "token": None},
        {"properties": {"password": {"type": "string", "description": "a word"}}},
    ],
)
def test_a_field_about_secrets_stays(value: Any):
    assert mask_values(value) == value
