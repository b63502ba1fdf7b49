"""Untrusted text on a terminal is shown escaped and never interpreted."""

import errno

import pytest

from weakincentives.cli.terminal import describe_error, escape_controls, shorten


def test_control_characters_are_shown_and_not_obeyed():
    assert escape_controls("a\x1b[2Jb\x07\r\n\tc") == "a^[[2Jb^G^M\n\tc"
    assert escape_controls("\x7f\x9b31m") == "<7f><9b>31m"


@pytest.mark.parametrize(
    "character",
    [
        *("\u202e", "\u2066", "\u200b", "\ufeff", "\u061c", "\u2060", "\u2028", "\u2029", "\u3164"),
        *("\U000e0041", "\U000e0100", "\ufe0f", "\u034f", "\ue000"),
    ],
)
def test_characters_that_turn_or_hide_text_are_shown(character: str):
    assert escape_controls(f"a{character}b") == f"a<U+{ord(character):04X}>b"


def test_an_error_of_the_system_is_a_fact_and_a_path():
    error = PermissionError(errno.EACCES, "Permission denied", "a b.txt")
    assert describe_error(error) == "Permission denied: 'a b.txt'"
    assert describe_error(OSError(errno.ENOSPC, "No space left")) == "No space left"
    assert describe_error(ValueError("one\n two")) == "one two"
    assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_other_text_stays_as_it_is():
    assert escape_controls("Grüße, 你好 🙂 ⚠\ufe0f") == "Grüße, 你好 🙂 ⚠\ufe0f"
    assert escape_controls("\u2800\ufe0f") == "<U+2800><U+FE0F>"


def test_a_line_is_cut_off_where_there_is_no_room():
    assert shorten("one\n two   three", 40) == "one two three"
    assert shorten("one two three", 10) == "one two t…"
    assert shorten("one two three", 9) == "one two…"
    assert shorten("数学数学", 8) == "数学数学"
    assert shorten("数学数学", 7) == "数学数…"
    assert shorten("数学数学", 6) == "数学…"
