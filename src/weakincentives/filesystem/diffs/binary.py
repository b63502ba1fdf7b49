"""Binary files in a patch, as git writes them: deflated, in base 85, 52 bytes a line."""

import zlib
from base64 import b85encode
from collections.abc import Iterator
from string import ascii_letters

from weakincentives.filesystem.diffs.changes import chunks
from weakincentives.filesystem.text import Content

_LINE = 52  # bytes in a line, counted by its first letter: A to Z, then a to z
_LENGTHS = (ascii_letters[26:] + ascii_letters[:26]).encode()


def binary_patch(before: Content, after: Content) -> Iterator[bytes]:
    """Yield what turns `before` into `after`, and what turns it back."""
    yield b"GIT binary patch\n"
    yield from _literal(after)
    yield from _literal(before)


def _literal(content: Content) -> Iterator[bytes]:
    yield b"literal %d\n" % content.size
    waiting = b""
    for piece in _deflated(content):
        waiting += piece
        whole = len(waiting) - len(waiting) % _LINE
        yield b"".join(_line(waiting[at : at + _LINE]) for at in range(0, whole, _LINE))
        waiting = waiting[whole:]
    yield (_line(waiting) if waiting else b"") + b"\n"


def _deflated(content: Content) -> Iterator[bytes]:
    deflater = zlib.compressobj()
    for chunk in chunks(content):
        yield deflater.compress(chunk)
    yield deflater.flush()


def _line(data: bytes) -> bytes:
    return b"%c%b\n" % (_LENGTHS[len(data) - 1], b85encode(data, pad=True))
