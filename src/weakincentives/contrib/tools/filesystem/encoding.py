"""What the bytes of a file are: text in some encoding, or not text."""

import codecs
import re
from dataclasses import dataclass

SNIFFED = 8 * 1024
"""How many bytes are looked at."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_FIRST = frozenset(mark[:1] for mark, _ in _MARKS)
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r\f\b\x1b") + b"\x7f"
_FOREIGN = re.compile(rb"[\x80-\xff]")
_MOST_CONTROLS = 0.02
_MOST_FOREIGN = 0.3


@dataclass(frozen=True, slots=True)
class Encoding:
    """How text is stored.

    Args:
        name: The codec; None if it is not text.
        wide: A line end is more than one byte.
        exact: Every byte can be shown.
    """

    name: str | None
    wide: bool = False
    exact: bool = True


BINARY = Encoding(None)
UTF8 = Encoding("utf-8")
UNKNOWN = Encoding("utf-8", exact=False)


def encoding_of(head: bytes, *, whole: bool) -> Encoding:
    """Return how a file that begins with `head` stores text.

    Args:
        head: The beginning.
        whole: There is no more; otherwise a character may be cut off at the end.
    """
    if head[:1] in _FIRST:
        for mark, name in _MARKS:
            if head.startswith(mark):
                return Encoding(name, wide=name != "utf-8-sig")
    sniffed = head[:SNIFFED]
    if b"\0" in sniffed:
        return BINARY
    whole = whole and len(head) <= SNIFFED
    if sniffed.isascii() or _is_utf8(sniffed, whole=whole):
        return UTF8 if _share(sniffed, _CONTROLS) <= _MOST_FOREIGN else BINARY
    return UNKNOWN if _looks_like_text(sniffed) else BINARY


def _is_utf8(data: bytes, *, whole: bool) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError:
        return False
    return True


def _looks_like_text(data: bytes) -> bool:
    """Whether this may be text in an encoding of one byte for a character, such as Latin-1."""
    foreign = len(_FOREIGN.findall(data)) / len(data)
    return foreign <= _MOST_FOREIGN and _share(data, _CONTROLS) <= _MOST_CONTROLS


def _share(data: bytes, wanted: bytes) -> float:
    """Return which part of `data` is among `wanted`."""
    return (len(data) - len(data.translate(None, wanted))) / max(len(data), 1)
