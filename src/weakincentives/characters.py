"""Invisible and unsafe characters: control, format, bidirectional, private use and others.

File names may not contain them, and printed text shows them escaped; both use this one table.
It has Unicode's `Default_Ignorable_Code_Point`, private use, surrogates and noncharacters, which
never change, and control and format characters.
"""

import re

# ranges, first and last
_INVISIBLE = (
    (0x00, 0x1F),  # control characters
    (0x7F, 0x9F),
    (0xAD, 0xAD),  # soft hyphen
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x0600, 0x0605),  # format characters of Arabic, Syriac and Kaithi
    (0x061C, 0x061C),  # Arabic letter mark, which changes text direction
    (0x06DD, 0x06DD),
    (0x070F, 0x070F),
    (0x0890, 0x0891),
    (0x08E2, 0x08E2),
    (0x115F, 0x1160),  # Hangul fillers
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),  # Mongolian variation selectors
    (0x200B, 0x200F),  # zero width, direction marks
    (0x2028, 0x202E),  # line and paragraph separator, bidirectional
    (0x2060, 0x206F),
    (0x2800, 0x2800),  # blank Braille pattern
    (0x3164, 0x3164),
    (0xD800, 0xF8FF),  # surrogates, private use
    (0xFDD0, 0xFDEF),  # noncharacters
    (0xFE00, 0xFE0F),  # variation selectors
    (0xFEFF, 0xFEFF),  # byte order mark
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB),
    (0xFFFE, 0xFFFF),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x13446),  # format characters and blanks of Egyptian hieroglyphs
    (0x16FE4, 0x16FE4),
    (0x1BCA0, 0x1BCA3),
    (0x1D159, 0x1D159),  # musical symbol null notehead
    (0x1D173, 0x1D17A),
    *((plane + 0xFFFE, plane + 0xFFFF) for plane in range(0x10000, 0xE0000, 0x10000)),
    (0xE0000, 0xE0FFF),  # tags, variation selectors supplement
    (0xEFFFE, 0x10FFFF),  # private use
)

INVISIBLE = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _INVISIBLE)}]")
"""Matches one such character; line breaks and tabs are included."""

_SEQUENCES = (
    r"\x1b\[[0-?]*[ -/]*[@-~]",  # colours, cursor and screen
    r"\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)",  # titles and links
    r"\x1b[ -/]*[0-~]",
)
_ESCAPES = re.compile("|".join(_SEQUENCES))
_ESCAPES_IN_BYTES = re.compile(_ESCAPES.pattern.encode())


def strip_escapes(text: str) -> str:
    """Return what a program printed without the escape sequences of terminals."""
    return _ESCAPES.sub("", text)


def strip_byte_escapes(data: bytes) -> bytes:
    """Return what a program printed, as bytes, without the escape sequences of terminals."""
    return _ESCAPES_IN_BYTES.sub(b"", data)
