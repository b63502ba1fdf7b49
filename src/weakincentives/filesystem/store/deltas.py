"""Deltas in git packs: one object described by what it takes from another.

We write none. Git writes them when a person runs `git gc` on the store, so they are
read: every length is checked, and what is damaged never grows.
"""

from weakincentives.errors import WinkError

LARGEST = 512 * 1024 * 1024
"""Bytes of the largest object that is held as a whole; git makes no deltas of larger ones."""


class PackError(WinkError, ValueError):
    """A pack, or an object in it, is damaged."""


class TooLargeError(PackError):
    """An object is larger than what is held as a whole; that is no damage."""


def patched(base: bytes, delta: bytes) -> bytes:
    """Return what `delta` makes of `base`.

    Raises:
        PackError: The delta is damaged or belongs to another object.
    """
    try:
        size, at = _number(delta, 0)
        wanted, at = _number(delta, at)
        if size != len(base):
            raise PackError("Delta belongs to another object")
        if wanted > LARGEST:
            raise TooLargeError(f"Delta makes an object that is too large: {wanted}")
        return _built(base, delta, at, wanted)
    except IndexError:
        raise PackError("Delta ends too early") from None


def _built(base: bytes, delta: bytes, at: int, wanted: int) -> bytes:
    parts: list[bytes] = []
    left = wanted
    while at < len(delta):
        part, at = _instruction(base, delta, at)
        parts.append(part)
        left -= len(part)
        if left < 0:
            break
    if left:
        raise PackError("Delta makes an object of another size than it says")
    return b"".join(parts)


def _instruction(base: bytes, delta: bytes, at: int) -> tuple[bytes, int]:
    """Return the next part of the object and where the instruction after it begins."""
    code = delta[at]
    at += 1
    if code & 0x80:
        return _copied(base, delta, at, code)
    part = delta[at : at + code]
    if not code or len(part) != code:
        raise PackError("Delta holds an unknown or unfinished instruction")
    return part, at + code


def _copied(base: bytes, delta: bytes, at: int, code: int) -> tuple[bytes, int]:
    offset = size = 0
    for bit in range(4):
        if code & 1 << bit:
            offset |= delta[at] << 8 * bit
            at += 1
    for bit in range(3):
        if code & 0x10 << bit:
            size |= delta[at] << 8 * bit
            at += 1
    size = size or 0x10000
    if offset + size > len(base):
        raise PackError("Delta copies what is not in its base")
    return base[offset : offset + size], at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, seven bits to the byte and the lowest first, and where it ends."""
    value = shift = 0
    while data[at] & 0x80:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise PackError("Delta holds a number that is too large")
    return value | data[at] << shift, at + 1
