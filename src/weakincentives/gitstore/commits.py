"""Commits: what is known about a snapshot, written so that `git log` shows it.

The first line is for people: the tag, or the word "snapshot". The lines below hold
the exact values as JSON, and only they are read back.
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
    """A snapshot in the store: its commit, its tree, and what was said about it."""

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
    moment = f"{max(0, int(created_at.timestamp()))} +0000"
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
        f"author {_AUTHOR} {moment}",
        f"committer {_AUTHOR} {moment}",
        "",
        _subject(tag),
        "",
        *(f"{name}: {json.dumps(value)}" for name, value in values.items()),
        "",
    ]
    return "\n".join(lines).encode("utf-8", "backslashreplace")


def decode_commit(ref: str, data: bytes) -> Commit:
    """Return what a commit of ours says.

    Raises:
        ObjectError: It is damaged, or not one of ours.
    """
    tree, parents = commit_references(data)
    try:
        values = dict(_values(data))
        commit = Commit(
            ref=ref,
            tree=tree,
            parents=tuple(parents),
            snapshot_id=_text(values["id"]),
            sequence=_number(values["sequence"]),
            created_at=datetime.fromisoformat(_text(values["created"])),
            tag=None if values["tag"] is None else _text(values["tag"]),
            root=_text(values["root"]),
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
    """Return the object that an annotated git tag is for.

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
    """Return one line that a terminal can show."""
    text = " ".join((tag or "").split())[:_MAX_SUBJECT]
    return display_path(text) if text else "snapshot"


def _values(data: bytes) -> Iterator[tuple[str, object]]:
    message = data.partition(b"\n\n")[2].decode("utf-8")
    for line in message.partition("\n\n")[2].splitlines():
        name, _, value = line.partition(": ")
        yield name, json.loads(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"Not a text: {value!r}")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise ValueError(f"Not a number: {value!r}")
    return value
