"""Git trees and commits: encode and decode directories, and the metadata of a snapshot.

Git rejects some names in trees (`.git` in any disguise) and interprets others (`.gitmodules`,
`.gitattributes`). A snapshot must hold them all as plain data. So the first byte of such a name
is percent-encoded, and so is every `%` and every backslash. Other names are stored unchanged.

A commit has the metadata in a message that `git log` shows. Its first line is for people: the
tag, or the word "snapshot". The lines below hold the exact values as JSON, and only they are
parsed.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import Annotated, NamedTuple
from uuid import UUID

import msgspec

from weakincentives.gitstore.objects import ObjectError, is_object_id
from weakincentives.posix import display_path

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
_AUTHOR = "wink <wink@localhost>"
_MAX_SUBJECT = 200
_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)
_NAME_VERSION = 7


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
    found: list[tuple[bytes, bytes]] = []
    for name, mode, object_id in entries:
        raw = encode_name(name)
        entry = _DIGITS[mode] + raw + b"\0" + bytes.fromhex(object_id)
        found.append((raw + b"/" if mode == DIRECTORY else raw, entry))
    found.sort()
    if len({key.rstrip(b"/") for key, _ in found}) != len(found):
        raise ObjectError("Tree contains a name twice")
    return b"".join([entry for _, entry in found])


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


def tree_items(data: bytes) -> Iterator[tuple[bytes, bytes, str]]:
    """Yield mode, encoded name and id of every entry of any git tree.

    Raises:
        ObjectError: The tree is damaged.
    """
    at = 0
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


@lru_cache(65_536)
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


@dataclass(frozen=True, slots=True)
class Commit:
    """A snapshot in the store: its commit, its tree and its metadata."""

    ref: str
    tree: str
    parents: tuple[str, ...]
    snapshot_id: str
    sequence: int
    created_at: datetime
    tag: str | None
    root: str


class _Values(msgspec.Struct):
    """The metadata in the message of a commit."""

    id: str
    sequence: int
    created: Annotated[datetime, msgspec.Meta(tz=True)]
    tag: str | None
    root: str


def encode_commit(commit: Commit) -> bytes:
    """Return the content of a commit object; its `ref` follows from that."""
    timestamp = f"{max(0, int(commit.created_at.timestamp()))} +0000"
    values = {
        "id": commit.snapshot_id,
        "sequence": commit.sequence,
        "created": commit.created_at.astimezone(UTC).isoformat(),
        "tag": commit.tag,
        "root": commit.root,
    }
    lines = [
        f"tree {commit.tree}",
        *(f"parent {parent}" for parent in commit.parents),
        f"author {_AUTHOR} {timestamp}",
        f"committer {_AUTHOR} {timestamp}",
        "",
        _subject(commit.tag),
        "",
        *(f"{name}: {json.dumps(value)}" for name, value in values.items()),
        "",
    ]
    return "\n".join(lines).encode("utf-8", "backslashreplace")


def decode_commit(ref: str, data: bytes) -> Commit:
    """Parse a commit that `encode_commit` wrote.

    Raises:
        ObjectError: It is damaged, or was not made by this package.
    """
    tree, parents = commit_references(data)
    try:
        values = msgspec.convert(dict(_parse_values(data)), _Values)
    except (ValueError, RecursionError):
        raise ObjectError(f"Commit was not made by this package: {ref!r}") from None
    return Commit(ref, tree, tuple(parents), *msgspec.structs.astuple(values))


def new_name(created_at: datetime) -> UUID:
    """Return another id for a commit that is a snapshot already.

    It contains the date, as a UUID of version 7, because the commit has another one.
    """
    milliseconds, rest = divmod((created_at - _EPOCH) // _MICROSECOND, 1000)
    number = milliseconds << 80 | _NAME_VERSION << 76 | rest << 64 | 2 << 62
    return UUID(int=number | secrets.randbits(62))


def date_of_name(snapshot_id: str) -> datetime | None:
    """Return the date in an id that `new_name` made, None if it is another one."""
    try:
        found = UUID(snapshot_id)
        if found.version != _NAME_VERSION:
            return None
        return _EPOCH + ((found.int >> 80) * 1000 + (found.int >> 64 & 0xFFF)) * _MICROSECOND
    except (ValueError, OverflowError):
        return None


def commit_references(data: bytes) -> tuple[str, list[str]]:
    """Return the tree and the parents of any git commit.

    Raises:
        ObjectError: It is damaged.
    """
    lines = data.partition(b"\n\n")[0].decode("utf-8", "replace").split("\n")
    parents = list(takewhile(lambda line: line.startswith("parent "), lines[1:]))
    tree = lines[0].removeprefix("tree ")
    references = [tree, *(line.removeprefix("parent ") for line in parents)]
    if not lines[0].startswith("tree ") or not all(map(is_object_id, references)):
        raise ObjectError("Commit is damaged")
    return tree, references[1:]


def tag_reference(data: bytes) -> str:
    """Return the object that an annotated git tag points to.

    Raises:
        ObjectError: It is damaged.
    """
    line = data.partition(b"\n")[0].decode("ascii", "replace")
    target = line.removeprefix("object ")
    if line == target or not is_object_id(target):
        raise ObjectError("Tag is damaged")
    return target


def _subject(tag: str | None) -> str:
    """Return one line that is safe to print in a terminal."""
    text = " ".join((tag or "").split())[:_MAX_SUBJECT]
    return display_path(text) if text else "snapshot"


def _parse_values(data: bytes) -> Iterator[tuple[str, object]]:
    message = data.partition(b"\n\n")[2].decode("utf-8")
    for line in message.partition("\n\n")[2].splitlines():
        name, _, value = line.partition(": ")
        yield name, json.loads(value)
