"""One change between two states of a workspace, and how its sides are read."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from weakincentives.errors import WinkError
from weakincentives.filesystem.state import State
from weakincentives.filesystem.text import BytesContent, Content
from weakincentives.filesystem.types import FileStat
from weakincentives.posix import check_time, display_path

ChangeKind = Literal["added", "removed", "modified", "mode-changed", "renamed"]
_CHUNK = 1024 * 1024


class StaleDiffError(WinkError, RuntimeError):
    """A file has changed since it was compared, so nothing true can be said about it."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file, link or directory that is not the same in two states.

    `before` is None if it was added, `after` if it was removed. If it was renamed,
    `before` has its old path and `similarity` says how much is the same, in percent.
    """

    path: str
    kind: ChangeKind
    before: FileStat | None
    after: FileStat | None
    similarity: int | None = None

    @property
    def source(self) -> str | None:
        """The old path of what was renamed."""
        return self.before.path if self.kind == "renamed" and self.before else None

    @property
    def type_changed(self) -> bool:
        """Whether it became something else: a link where a file was, for instance."""
        return bool(self.before and self.after and self.before.kind != self.after.kind)

    @property
    def sides(self) -> Iterator[FileStat]:
        """What there was and what there is."""
        return (side for side in (self.before, self.after) if side is not None)

    @property
    def is_directory(self) -> bool:
        """Whether only directories are concerned."""
        return all(side.is_directory for side in self.sides)

    def __str__(self) -> str:
        """Return what happened, and to which path."""
        name = display_path(self.path) + ("/" if self.is_directory else "")
        if self.source is not None:
            name = f"{display_path(self.source)} -> {name}"
        return f"{self.kind} {name}{self._detail()}"

    def _detail(self) -> str:
        if self.before is None or self.after is None:
            return ""
        if self.type_changed:
            return f" ({self.before.kind} -> {self.after.kind})"
        if self.kind == "mode-changed":
            return f" ({self.before.permissions:04o} -> {self.after.permissions:04o})"
        return "" if self.similarity is None else f" ({self.similarity} % the same)"


class Side(State):
    """A filesystem as one side of a comparison."""

    def blob_id(self, found: FileStat) -> str:
        """Return git's id of a file or link, which is read if need be."""
        known = self.known_id(found) if found.is_file else None
        if known is not None:
            return known
        with self.opened(found) as content:
            return blob_id(content)

    def opened(self, found: FileStat) -> Content:
        """Open what was found before; a link is opened as its target.

        Raises:
            StaleDiffError: It is not what it was then.
        """
        if found.link_target is not None:
            return BytesContent(encode_path(found.link_target))
        try:
            content = self.open(found.path)
        except FileNotFoundError:
            raise _stale(found) from None
        # what is open stays as it is: files are replaced, not written over
        if self.lookup(found.path) != found:
            content.close()
            raise _stale(found)
        return content

    def data(self, found: FileStat) -> bytes:
        """Return all bytes of a file; raises as `opened` does."""
        with self.opened(found) as content:
            return self.load(content, found.path)


def mode_of(found: FileStat) -> int | None:
    """Return the mode that git has for it, or None if it has none."""
    if found.is_symlink:
        return 0o120000
    if found.is_file:
        return 0o100755 if found.permissions & 0o100 else 0o100644
    return None


def blob_id(content: Content) -> str:
    """Return the id that git gives to `content`."""
    digest = hashlib.sha1(b"blob %d\0" % content.size, usedforsecurity=False)
    for chunk in chunks(content):
        digest.update(chunk)
    return digest.hexdigest()


def same_bytes(first: Content, second: Content) -> bool:
    """Return whether two contents are equal; reads no further than the first difference."""
    if first.size != second.size:
        return False
    pairs = zip(chunks(first), chunks(second), strict=False)
    return all(left == right for left, right in pairs)


def chunks(content: Content) -> Iterator[bytes]:
    """Yield the bytes of `content` piece by piece."""
    for offset in range(0, content.size, _CHUNK):
        check_time("Diff")
        yield content.read(offset, _CHUNK)


def encode_path(name: str) -> bytes:
    """Return the bytes of a path or a link's target, as the disk has them."""
    return name.encode("utf-8", "surrogateescape")


def _stale(found: FileStat) -> StaleDiffError:
    return StaleDiffError(f"File has changed since it was compared: {display_path(found.path)!r}")
