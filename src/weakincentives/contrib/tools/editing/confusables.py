"""Characters that models confuse: quotes, dashes and spaces, and letters composed otherwise."""

import re
import unicodedata

_SINGLE_QUOTES = "\u2018\u2019\u201a\u201b\u2032\u02bc\u02b9\uff07"
_DOUBLE_QUOTES = "\u201c\u201d\u201e\u201f\u2033\uff02"
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_SPACES = "\u00a0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufe0e\ufe0f\ufeff"
_PLAIN = {
    **dict.fromkeys(_SINGLE_QUOTES, "'"),
    **dict.fromkeys(_DOUBLE_QUOTES, '"'),
    **dict.fromkeys(_DASHES, "-"),
    **dict.fromkeys(_SPACES, " "),
    **dict.fromkeys(_INVISIBLE, ""),
    "\u2026": "...",
}
_LOOKALIKE = re.compile(f"[{''.join(_PLAIN)}]")
_CHUNK = 4_096
_INDENTS = " \t" + _SPACES + _INVISIBLE


def plain(text: str) -> str:
    """Return `text` with look-alikes replaced by what a keyboard has, composed (NFC)."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _LOOKALIKE.sub(_typed, text))


def indent_of(line: str) -> str:
    """Return the blanks with which a line begins, look-alikes included."""
    return line[: len(line) - len(line.lstrip(_INDENTS))]


def position_in(line: str, column: int) -> int | None:
    """Return the position in `line` of a column of `plain(line)`; None if it is within a letter."""
    if line.isascii():
        return column
    reached = at = 0
    # chunks as long as they end before the column, then letters up to it
    for size, last in ((_CHUNK, column - 1), (1, column)):
        while at < len(line) and reached < column:
            stop = _letter_end(line, min(at + size, len(line)))
            width = len(plain(line[at:stop]))
            if reached + width > last:
                break
            reached += width
            at = stop
    left = plain(line[:at])
    # letters that are composed of others without accents, as in Korean, may straddle the column
    return at if len(left) == column and left + plain(line[at:]) == plain(line) else None


def _typed(match: re.Match[str]) -> str:
    return _PLAIN[match[0]]


def _letter_end(line: str, at: int) -> int:
    """Return the end of the letter that a position is in, accents included."""
    while at < len(line) and unicodedata.combining(line[at]):
        at += 1
    return at
