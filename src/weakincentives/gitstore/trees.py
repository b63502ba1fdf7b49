"""Git tree objects: encode and decode directories, with names escaped.

Git rejects some names in trees (`.git` in any disguise) and interprets others (`.gitmodules`,
`.gitattributes`). A snapshot must hold them all as plain data. So the first byte of such a name
is percent-encoded, and so is every `%` and every backslash. Other names are stored unchanged.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from weakincentives.gitstore.objects import ObjectError

DIRECTORY = 0o040000
FILE = 0o100644
EXECUTABLE = 0o100755
LINK = 0o120000
_MODES = {b"%o" % mode: mode for mode in (DIRECTORY, FILE, EXECUTABLE, LINK)}
_DIGITS = {mode: digits + b" " for digits, mode in _MODES.items()}
_SUBMODULE = b"160000"
ID_BYTES = 20
"""Bytes of a binary object id."""
# fast path: neither reserved nor in need of an escape, as nearly every name
_PLAIN = re.compile(rb"[^.%\\~\xe2\xef/\0][^%\\~\xe2\xef/\0]*")
_PLAIN_NAMES = re.compile(rb"%s(?:/%s)*" % (_PLAIN.pattern, _PLAIN.pattern))
_ITEM = re.compile(rb"(%s) ([^\0/]+)\0(.{20})" % b"|".join(_MODES), re.DOTALL)
_ESCAPED = re.compile(rb"%([0-9A-F]{2})")
# characters that HFS+ ignores: U+200C-200F, U+202A-202E, U+206A-206F, U+FEFF
_IGNORED = re.compile(rb"\xe2\x80[\x8c-\x8f\xaa-\xae]|\xe2\x81[\xaa-\xaf]|\xef\xbb\xbf")
# what git checks on any system: NTFS streams and short names too; a name ends, for git,
# at the first byte that is not UTF-8
_RESERVED = re.compile(
    rb"\.(?:git|gitmodules|gitattributes|gitignore|mailmap)[ .]*(?:[:\x80-\xff].*)?"
    rb"|[a-z0-9]{0,6}~[0-9].*",
    re.DOTALL,
)


class TreeEntry(NamedTuple):
    """One entry of a directory: its name, git's mode, and the id of the object."""

    name: str
    mode: int
    id: str


def encode_tree(entries: Iterable[TreeEntry]) -> bytes:
    """Return the content of the tree object that holds `entries`, given in any order.

    Raises:
        ObjectError: A name occurs twice, or is not a valid file name.
    """
    entries = list(entries)
    encoded = {
        entry.name: encode_entry(entry.name, entry.mode, bytes.fromhex(entry.id))
        for entry in entries
    }
    if len(encoded) != len(entries):
        raise ObjectError("Tree contains a name twice")
    return b"".join(sorted(encoded.values(), key=entry_key))


def encode_entry(name: str, mode: int, object_id: bytes) -> bytes:
    """Return one entry in the encoding of a tree object.

    Raises:
        ObjectError: The name is not a valid file name.
    """
    return b"%b%b\0%b" % (_DIGITS[mode], encode_name(name), object_id)


def entry_key(entry: bytes) -> bytes:
    """Return the sort key of an encoded entry in its tree."""
    return entry[6:-21] + b"/" if entry.startswith(_DIGITS[DIRECTORY]) else entry[7:-21]


def entry_id(entry: bytes) -> str:
    """Return the object id in an encoded entry."""
    return entry[-ID_BYTES:].hex()


def decode_tree(data: bytes) -> list[TreeEntry]:
    """Return the entries of a tree that `encode_tree` wrote, in git's order.

    Raises:
        ObjectError: The tree is damaged, or was not made by this package.
    """
    return _decode_plain(data) or _decode_any(data)


def _decode_plain(data: bytes) -> list[TreeEntry]:
    """Return the entries of a tree all at once, which is fast; none if a name is unusual."""
    items = _ITEM.findall(data)
    joined = b"/".join([raw for _, raw, _ in items])
    size = sum([len(digits) + len(raw) for digits, raw, _ in items])
    is_whole = size + len(items) * (ID_BYTES + 2) == len(data)
    if not is_whole or not _PLAIN_NAMES.fullmatch(joined):
        return []
    names = joined.decode("utf-8", "surrogateescape").split("/")
    modes = [_MODES[digits] for digits, _, _ in items]
    keys = [
        raw + b"/" if mode == DIRECTORY else raw
        for mode, (_, raw, _) in zip(modes, items, strict=True)
    ]
    if keys != sorted(keys) or len(set(names)) != len(names):
        return []
    return list(map(TreeEntry, names, modes, [each.hex() for _, _, each in items]))


def _decode_any(data: bytes) -> list[TreeEntry]:
    entries: list[TreeEntry] = []
    names: set[str] = set()
    before = b""
    for digits, raw, object_id in tree_items(data):
        mode = _MODES.get(digits)
        if mode is None:
            raise ObjectError(f"Tree has an entry with an unknown mode: {digits!r}")
        key = raw + b"/" if mode == DIRECTORY else raw
        if key <= before:
            raise ObjectError(f"Tree is not sorted at {raw!r}")
        before = key
        entries.append(TreeEntry(decode_name(raw), mode, object_id))
        names.add(entries[-1].name)
    if len(names) != len(entries):
        raise ObjectError("Tree contains a name twice")
    return entries


def tree_items(data: bytes, at: int = 0) -> Iterator[tuple[bytes, bytes, str]]:
    """Yield mode, encoded name and id of every entry of any git tree, from a position on.

    Raises:
        ObjectError: The tree is damaged.
    """
    while at < len(data):
        space = data.find(b" ", at, at + 8)
        end = data.find(b"\0", space)
        following = end + 1 + ID_BYTES
        if space < 0 or end < 0 or following > len(data):
            raise ObjectError(f"Tree is damaged at {at}")
        yield data[at:space], data[space + 1 : end], data[end + 1 : following].hex()
        at = following


def tree_references(data: bytes) -> Iterator[tuple[bool, str]]:
    """Yield the id of every object that any git tree refers to, and whether it is a tree.

    Raises:
        ObjectError: The tree is damaged.
    """
    for digits, _, object_id in tree_items(data):
        if digits != _SUBMODULE:  # its commit is in another repository
            yield digits.lstrip(b"0") == b"40000", object_id


def encode_name(name: str) -> bytes:
    """Return `name` as it is encoded in a tree.

    Raises:
        ObjectError: It is not a valid file name.
    """
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ObjectError(f"Name cannot be encoded as bytes: {name!r}") from None
    if _PLAIN.fullmatch(raw):
        return raw
    if raw in {b"", b".", b".."} or b"/" in raw or b"\0" in raw:
        raise ObjectError(f"Not a valid file name: {name!r}")
    escaped = raw.replace(b"%", b"%25").replace(b"\\", b"%5C")
    if _RESERVED.fullmatch(_IGNORED.sub(b"", raw).lower()):
        return b"%%%02X%s" % (raw[0], escaped[1:])
    return escaped


def decode_name(raw: bytes) -> str:
    """Return the name that is encoded as `raw`; each name has exactly one encoding.

    Raises:
        ObjectError: It is not the encoding of a name.
    """
    if _PLAIN.fullmatch(raw):
        return raw.decode("utf-8", "surrogateescape")
    name = _ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), raw)
    decoded = name.decode("utf-8", "surrogateescape")
    if encode_name(decoded) != raw:
        raise ObjectError(f"Tree contains a name that is not encoded as it must be: {raw!r}")
    return decoded
