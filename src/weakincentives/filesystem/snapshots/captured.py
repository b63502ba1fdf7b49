"""What was found in a directory of the host: files, links and directories as git knows them.

Nothing here changes, but for what is remembered about the looks of a file. Everything
holds its own entry in the tree of its parent, so that a directory in which one thing
has changed is written anew without a look at the others.
"""

from collections.abc import Iterator
from typing import TypeAlias

from weakincentives.filesystem.hostfile import Identity, has_settled
from weakincentives.filesystem.store.trees import (
    DIRECTORY,
    EXECUTABLE,
    FILE,
    LINK,
    entry_id,
    entry_key,
    tree_entry,
)

_PLAIN_FILE = frozenset({0o644, 0o755})
_PLAIN_DIRECTORY = 0o755


class CapturedFile:
    """A file: its content by id, and what tells whether it has changed since."""

    __slots__ = ("entry", "identity", "is_noted", "permissions")

    def __init__(self, name: str, blob: str, identity: Identity) -> None:
        """Hold the id of the content that a file had when it looked so."""
        self.permissions = identity[-1] & 0o7777
        self.is_noted = self.permissions not in _PLAIN_FILE
        self.entry = tree_entry(name, EXECUTABLE if self.permissions & 0o100 else FILE, blob)
        self.see(identity)

    @property
    def id(self) -> str:
        """The id of the content."""
        return entry_id(self.entry)

    def see(self, identity: Identity) -> None:
        """Remember how the file looks, unless it could change again and still look so."""
        self.identity = identity if has_settled(identity) else None


class CapturedLink:
    """A symbolic link: its target as a blob."""

    __slots__ = ("entry", "is_noted", "target")

    def __init__(self, name: str, blob: str, target: str) -> None:
        """Hold where a link leads."""
        self.entry = tree_entry(name, LINK, blob)
        self.target = target
        self.is_noted = False

    @property
    def id(self) -> str:
        """The id of the blob that holds the target."""
        return entry_id(self.entry)


class CapturedDirectory:
    """A directory, and what a git tree cannot say of it and everything below.

    `here` are the names of the pipes, sockets and devices in it. It is noted if git's
    tree does not say all of it and what is below, and so are some of its children.
    """

    __slots__ = (
        "_modes",
        "_specials",
        "children",
        "entry",
        "here",
        "is_noted",
        "noted",
        "permissions",
    )

    def __init__(
        self,
        name: str,
        tree: str,
        children: "dict[str, Captured]",
        permissions: int,
        specials: frozenset[str],
    ) -> None:
        """Hold the id of the `tree` and the `children` that it was made of, in git's order."""
        self.entry = tree_entry(name, DIRECTORY, tree) if name else bytes.fromhex(tree)
        self.children = children
        self.permissions = permissions
        self.here = specials
        self.noted = [(name, child) for name, child in children.items() if child.is_noted]
        self.is_noted = bool(self.noted or specials or permissions != _PLAIN_DIRECTORY)
        self._modes: dict[str, int] | None = None
        self._specials: tuple[str, ...] | None = None

    @property
    def id(self) -> str:
        """The id of the tree."""
        return entry_id(self.entry)

    @property
    def modes(self) -> dict[str, int]:
        """The permissions below that are not git's own, by path."""
        if self._modes is None:
            self._modes = dict(_modes(self))
        return self._modes

    @property
    def specials(self) -> tuple[str, ...]:
        """The paths of all pipes, sockets and devices below, sorted."""
        if self._specials is None:
            self._specials = tuple(sorted(_specials(self)))
        return self._specials


Captured: TypeAlias = CapturedFile | CapturedLink | CapturedDirectory


def in_order(children: dict[str, Captured]) -> dict[str, Captured]:
    """Return the same children in git's order."""
    return dict(sorted(children.items(), key=_key))


def tree_content(children: dict[str, Captured]) -> bytes:
    """Return the content of the git tree that holds `children`, which are in git's order."""
    return b"".join([child.entry for child in children.values()])


def git_mode(node: Captured) -> int:
    """Return the mode that a git tree gives to `node`."""
    if isinstance(node, CapturedDirectory):
        return DIRECTORY
    if isinstance(node, CapturedLink):
        return LINK
    return EXECUTABLE if node.permissions & 0o100 else FILE


def _key(item: tuple[str, Captured]) -> bytes:
    return entry_key(item[1].entry)


def _below(top: CapturedDirectory) -> Iterator[tuple[str, CapturedDirectory]]:
    """Yield every directory of which something is noted, with the prefix of its paths."""
    pending = [("", top)]
    while pending:
        prefix, directory = pending.pop()
        yield prefix, directory
        for name, child in directory.noted:
            if isinstance(child, CapturedDirectory):
                pending.append((f"{prefix}{name}/", child))


def _modes(top: CapturedDirectory) -> Iterator[tuple[str, int]]:
    for prefix, directory in _below(top):
        for name, child in directory.noted:
            if isinstance(child, CapturedFile) or (
                isinstance(child, CapturedDirectory) and child.permissions != _PLAIN_DIRECTORY
            ):
                yield prefix + name, child.permissions


def _specials(top: CapturedDirectory) -> Iterator[str]:
    for prefix, directory in _below(top):
        for name in directory.here:
            yield prefix + name
