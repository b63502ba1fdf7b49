"""Characters that cannot be seen, that change the text around them, or that have no agreed look.

One table for all: a name that holds one is not created, and a text that is printed shows it
escaped. It has what Unicode lets programs ignore (`Default_Ignorable_Code_Point`), private use,
surrogates and noncharacters, which are fixed for good, and control and format characters.
"""

import re

# ranges, first and last
_INVISIBLE = (
    (0x00, 0x1F),  # control characters
    (0x7F, 0x9F),
    (0xAD, 0xAD),  # soft hyphen
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x0600, 0x0605),  # format characters of Arabic, Syriac and Kaithi
    (0x061C, 0x061C),  # Arabic letter mark, which turns text around
    (0x06DD, 0x06DD),
    (0x070F, 0x070F),
    (0x0890, 0x0891),
    (0x08E2, 0x08E2),
    (0x115F, 0x1160),  # fillers of Hangul
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),  # variation selectors of Mongolian
    (0x200B, 0x200F),  # zero width, and marks of direction
    (0x2028, 0x202E),  # line and paragraph separator, bidirectional
    (0x2060, 0x206F),
    (0x2800, 0x2800),  # Braille without dots
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
    (0x13430, 0x13446),  # format characters and blanks of hieroglyphs
    (0x16FE4, 0x16FE4),
    (0x1BCA0, 0x1BCA3),
    (0x1D159, 0x1D159),  # a note head that is not drawn
    (0x1D173, 0x1D17A),
    *((plane + 0xFFFE, plane + 0xFFFF) for plane in range(0x10000, 0xE0000, 0x10000)),
    (0xE0000, 0xE0FFF),  # tags, variation selectors supplement
    (0xEFFFE, 0x10FFFF),  # private use
)

INVISIBLE = re.compile(f"[{''.join(f'{chr(first)}-{chr(last)}' for first, last in _INVISIBLE)}]")
"""Matches one such character; line ends and tabs are among them."""
