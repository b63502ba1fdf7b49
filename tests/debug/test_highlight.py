"""Source text as lines of tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.debug.highlight import highlight, highlight_output, language_of

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


LANGUAGES = [
    *("a.sh", "a.c", "a.cpp", "a.css", "Dockerfile", "a.go", "a.html", "a.ini", "a.java", "a.js"),
    *("a.json", "a.lua", "Makefile", "a.md", "a.php", "a.py", "a.rb", "a.rs", "a.sql", "a.toml"),
    *("a.ts", "a.xml", "a.yml", "a.diff"),
]


def test_every_language_has_a_lexer():
    assert len({language_of(name) for name in LANGUAGES} - {None}) == len(LANGUAGES) == 24
    for name in LANGUAGES:
        lines = highlight(name, "# x = 1\n")
        assert ["".join(text for _, text in line) for line in lines] == ["# x = 1"]


def test_long_lines_and_large_files_are_plain():
    assert highlight("a.py", "def x\n" * 100_000)[0] == [("", "def x")]
    assert highlight("a.py", "def " * 1_000) == [[("", "def " * 1_000)]]


@pytest.mark.parametrize(
    ("printed", "tokens"),
    [
        ("\x1b[1;32mok\x1b[0m.", [("green t-bold", "ok"), ("", ".")]),
        ("\x1b[91ma\x1b[39mb", [("red", "a"), ("", "b")]),
        ("\x1b[38;5;12mblue\x1b[38;5;200m, as before", [("blue", "blue, as before")]),
        ("\x1b[48;2;1;31;3mno text colour\x1b[m", [("", "no text colour")]),
        ("\x1b[1mbold\x1b[22m plain\x1b[2K", [("bold", "bold"), ("", " plain")]),
        ("\x1b]0;\x1b[31mred", [("", "0;"), ("red", "red")]),
        ("\x1b[99999mx", [("", "x")]),
        ("plain", [("", "plain")]),
    ],
)
def test_output_in_colours_becomes_tokens(printed: str, tokens: list[tuple[str, str]]):
    assert highlight_output(printed) == tokens
