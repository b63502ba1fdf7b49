"""The table of invisible characters, compared with Unicode's own data."""

import sys
import unicodedata

import pytest

from weakincentives.characters import INVISIBLE
from weakincentives.filesystem.paths import InvalidPathError, validate_path
from weakincentives.posix import display_path

# Default_Ignorable_Code_Point of DerivedCoreProperties.txt, which grows no more
IGNORABLE = [
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810)),
    *(*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164),
    *(*range(0xFE00, 0xFE10), 0xFEFF, 0xFFA0, *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4)),
    *(*range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)),
]
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def test_every_control_format_and_separator_character_is_in_the_table():
    every = map(chr, range(sys.maxunicode + 1))
    missing = [c for c in every if unicodedata.category(c) in HIDDEN and not INVISIBLE.match(c)]
    assert missing == []


def test_everything_that_unicode_lets_programs_ignore_is_in_the_table():
    assert [hex(code) for code in IGNORABLE if not INVISIBLE.match(chr(code))] == []


def test_what_can_be_seen_is_not_in_the_table():
    every = map(chr, range(sys.maxunicode + 1))
    blanks = "\u2800\U0001d159\U00016fe4\U00013440" + "".join(map(chr, range(0x13441, 0x13447)))
    wrong = [
        hex(ord(c))
        for c in every
        if INVISIBLE.match(c)
        and unicodedata.category(c) not in HIDDEN | {"Cn"}
        and ord(c) not in IGNORABLE
        and c not in blanks
    ]
    assert wrong == []


def test_such_a_name_is_neither_created_nor_printed_as_it_is():
    for code in [*IGNORABLE[::7], 0x2028, 0x2029, 0xE000, 0x10FFFF, 0xFFFE]:
        with pytest.raises(InvalidPathError, match="invisible"):
            validate_path(f"a{chr(code)}b")
        assert display_path(f"a{chr(code)}b").isascii(), hex(code)
