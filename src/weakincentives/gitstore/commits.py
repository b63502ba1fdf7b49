"""Commit objects: the metadata of a snapshot, in a message that `git log` shows.

The first line is for people: the tag, or the word "snapshot". The lines below hold the exact
values as JSON, and only they are parsed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile

from weakincentives.gitstore.objects import ObjectError, is_object_id
from weakincentives.posix import display_path

_AUTHOR = "wink <wink@localhost>"
_MAX_SUBJECT = 200


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


def encode_commit(
    tree: str,
    parents: tuple[str, ...],
    *,
    snapshot_id: str,
    sequence: int,
    created_at: datetime,
    tag: str | None,
    root: str,
) -> bytes:
    """Return the content of a commit object."""
    timestamp = f"{max(0, int(created_at.timestamp()))} +0000"
    values = {
        "id": snapshot_id,
        "sequence": sequence,
        "created": created_at.astimezone(UTC).isoformat(),
        "tag": tag,
        "root": root,
    }
    lines = [
        f"tree {tree}",
        *(f"parent {parent}" for parent in parents),
        f"author {_AUTHOR} {timestamp}",
        f"committer {_AUTHOR} {timestamp}",
        "",
        _subject(tag),
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
        values = dict(_parse_values(data))
        commit = Commit(
            ref=ref,
            tree=tree,
            parents=tuple(parents),
            snapshot_id=_to_text(values["id"]),
            sequence=_to_number(values["sequence"]),
            created_at=datetime.fromisoformat(_to_text(values["created"])),
            tag=None if values["tag"] is None else _to_text(values["tag"]),
            root=_to_text(values["root"]),
        )
    except (KeyError, ValueError, RecursionError):
        raise ObjectError(f"Commit was not made by this package: {ref!r}") from None
    if commit.created_at.tzinfo is None:
        raise ObjectError(f"Commit was not made by this package: {ref!r}")
    return commit


def commit_references(data: bytes) -> tuple[str, list[str]]:
    """Return the tree and the parents of any git commit.

    Raises:
        ObjectError: It is damaged.
    """
    lines = data.partition(b"\n\n")[0].decode("utf-8", "replace").split("\n")
    tree, parents = lines[0].removeprefix("tree "), list(takewhile(_is_parent, lines[1:]))
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


def _is_parent(line: str) -> bool:
    return line.startswith("parent ")


def _subject(tag: str | None) -> str:
    """Return one line that is safe to print in a terminal."""
    text = " ".join((tag or "").split())[:_MAX_SUBJECT]
    return display_path(text) if text else "snapshot"


def _parse_values(data: bytes) -> Iterator[tuple[str, object]]:
    message = data.partition(b"\n\n")[2].decode("utf-8")
    for line in message.partition("\n\n")[2].splitlines():
        name, _, value = line.partition(": ")
        yield name, json.loads(value)


def _to_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"Not a string: {value!r}")
    return value


def _to_number(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"Not a number: {value!r}")
    return value
