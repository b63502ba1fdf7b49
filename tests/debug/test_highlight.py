"""Source text as lines of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.debug.highlight import highlight, language_of

NAMES = ["a.py", "a.js", "a.html", "a.md", "a.json", "Makefile", "a.yaml", "a.toml", "a.sh", "a"]


@given(st.text(), st.sampled_from(NAMES))
def test_tokens_add_up_to_the_text(text: str, name: str):
    lines = ["".join(token for _, token in line) for line in highlight(name, text)]
    assert lines == (text.removesuffix("\n").split("\n") if text != "\n" else [""])


@pytest.mark.parametrize(
    ("path", "language"),
    [("a/b.py", "python"), ("Dockerfile", "docker"), ("x.TS", "typescript"), ("x.zzz", None)],
)
def test_the_language_follows_from_the_name(path: str, language: str | None):
    assert language_of(path) == language


def test_every_language_has_a_lexer():
    for name in NAMES:
        highlight(name, "x = 1\n")


def test_long_lines_and_large_files_are_plain():
    assert highlight("a.py", "def x\n" * 100_000)[0] == [("", "def x")]
    assert highlight("a.py", "def " * 1_000) == [[("", "def " * 1_000)]]
