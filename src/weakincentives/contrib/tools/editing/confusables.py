"""Unicode confusables: look-alike quotes, dashes and spaces, and letters composed differently."""

import re
import unicodedata

_SINGLE_QUOTES = "\u2018\u2019\u201a\u201b\u2032\u02bc\u02b9\uff07"
_DOUBLE_QUOTES = "\u201c\u201d\u201e\u201f\u2033\uff02"
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_SPACES = "\u00a0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufe0e\ufe0f\ufeff"
_ASCII_FORMS = {
    **dict.fromkeys(_SINGLE_QUOTES, "'"),
    **dict.fromkeys(_DOUBLE_QUOTES, '"'),
    **dict.fromkeys(_DASHES, "-"),
    **dict.fromkeys(_SPACES, " "),
    **dict.fromkeys(_INVISIBLE, ""),
    "\u2026": "...",
}
_CONFUSABLE = re.compile(f"[{''.join(_ASCII_FORMS)}]")
_CHUNK_SIZE = 4_096
_INDENTS = " \t" + _SPACES + _INVISIBLE


def fold_confusables(text: str) -> str:
    """Return `text` with confusables replaced by their ASCII forms, and composed (NFC)."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _CONFUSABLE.sub(lambda found: _ASCII_FORMS[found[0]], text))


def indent_of(line: str) -> str:
    """Return the leading whitespace of a line, look-alike spaces included."""
    return line[: len(line) - len(line.lstrip(_INDENTS))]


def unfold_column(line: str, column: int) -> int | None:
    """Return the position in `line` of a column of the folded line; None if inside a letter."""
    if line.isascii():
        return column
    reached = at = 0
    # whole chunks as long as they end before the column, then letter by letter up to it
    for size, last in ((_CHUNK_SIZE, column - 1), (1, column)):
        while at < len(line) and reached < column:
            stop = _letter_end(line, min(at + size, len(line)))
            width = len(fold_confusables(line[at:stop]))
            if reached + width > last:
                break
            reached += width
            at = stop
    left = fold_confusables(line[:at])
    # letters composed without combining marks, as in Korean, may straddle the column
    is_boundary = left + fold_confusables(line[at:]) == fold_confusables(line)
    return at if len(left) == column and is_boundary else None


def _letter_end(line: str, at: int) -> int:
    """Return the end of the letter at a position, combining marks included."""
    while at < len(line) and unicodedata.combining(line[at]):
        at += 1
    return at
