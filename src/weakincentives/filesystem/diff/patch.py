"""Unified patches in git's format: headers, sections and binary files.

A binary file is deflated and encoded in base 85, 52 bytes per line, in both directions.

What a patch cannot express is found by simulating `git apply` on names alone. Git first removes
every file that a patch touches, with the directories that become empty; then it creates files,
with missing directories. It has no empty directories and only two modes, refuses some names, and
stops midway if an untracked entry is where a new file must go. Changes at which it would stop are
left out of the patch.
"""

import os
import stat
import zlib
from base64 import b85encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from string import ascii_letters

from weakincentives.filesystem.base.state import State
from weakincentives.filesystem.diff.changes import (
    Change,
    GitSection,
    Side,
    chunks,
    has_git_names,
    mode_of,
    sections_of,
)
from weakincentives.filesystem.diff.myers import changed_blocks, hunks, split_lines
from weakincentives.filesystem.paths import encode_path, label_path, quote_path
from weakincentives.filesystem.text import BytesContent, Content
from weakincentives.filesystem.types import FileStat
from weakincentives.posix import display_path, join, parent_of, parents_of

_LINE = 52  # bytes in a line, counted by its first letter: A to Z, then a to z
_LENGTHS = (ascii_letters[26:] + ascii_letters[:26]).encode()
_NO_ID = "0" * 40
_NEW_DIRECTORY = 0o755
_MAX_STEPS = 1_000
_MAX_NAME = 255
_SUFFIX = 8
_MAX_PATH = 4_000
_READ, _CHANGE, _SEARCH = 0o400, 0o300, 0o100
_REFUSED = "git refuses this name"
_IN_THE_WAY = "git cannot remove what is at its path"
_BEHIND_LINK = "git cannot see past the link that was above it"
_CLOSED = "git may not read or replace it"


@dataclass(frozen=True, slots=True)
class Omission:
    """A path that still differs after `git apply`, and the fact that the patch cannot express."""

    path: str
    fact: str

    def __str__(self) -> str:
        """Return the path and the fact."""
        return f"{display_path(self.path)}: {self.fact}"


class GitApplySimulator:
    """A simulation of `git apply` with the patch of some changes."""

    def __init__(self, changes: Sequence[Change], ground: State) -> None:
        """Apply `changes` to the tree `ground`; changes at which git would stop are left out."""
        self._changes = changes
        self._ground = _CachedState(ground)
        self._reasons: dict[str, str] = {}
        for each in changes:
            if sections_of(each) and not has_git_names(each):
                self._reasons[each.path] = _REFUSED
        while True:
            self._tree = _Tree(self._ground)
            stops = dict(self._run())
            if not stops:
                break
            self._reasons |= stops

    def includes(self, change: Change) -> bool:
        """Return whether the patch includes a change."""
        return change.path not in self._reasons

    def omissions(self) -> tuple[Omission, ...]:
        """Return every path that still differs afterwards, sorted."""
        facts: dict[str, str] = {}
        wanted = {each.path: each for each in self._changes}
        for directory in self._directories():
            change = wanted.get(directory)
            target = change.after if change else self._ground.lookup(directory)
            fact = self._directory_fact(directory, target)
            if fact is not None:
                facts[directory] = fact
        for each in self._changes:
            facts |= dict(self._file_facts(each))
        return tuple(Omission(path, facts[path]) for path in sorted(facts))

    def _run(self) -> Iterator[tuple[str, str]]:
        """Simulate git; yield the changes at which it would stop, with the reason."""
        included = filter(self.includes, self._changes)
        sections = [(each, section) for each in included for section in sections_of(each)]
        for change, section in sections:
            if section.before is not None:
                if not self._tree.can_remove(section.before):
                    yield change.path, _CLOSED
                is_plain = section.after is not None and change.source is None
                self._tree.remove(section.before.path, prune=not is_plain)
        for change, section in sections:
            if section.after is not None:
                reason = self._tree.create(section.after.path)
                if reason is not None:
                    yield change.path, reason

    def _directories(self) -> list[str]:
        """Return the directories of the changes, and those above them."""
        found: set[str] = set()
        for each in self._changes:
            for side in each.sides:
                found.update(parents_of(side.path))
                if side.is_directory:
                    found.add(side.path)
        return sorted(found)

    def _directory_fact(self, path: str, wanted: FileStat | None) -> str | None:
        permissions = self._tree.directory(path)
        if wanted is None or not wanted.is_directory:
            # an entry that replaces it is reported there
            return "directory removed" if permissions is not None and wanted is None else None
        before = self._ground.lookup(path)
        if before is None or not before.is_directory:
            if permissions != wanted.permissions:
                return f"directory added, permissions {wanted.permissions:04o}"
        elif permissions is None:
            return "directory stays, empty"
        return None if permissions == wanted.permissions else _permissions(wanted)

    def _file_facts(self, change: Change) -> Iterator[tuple[str, str]]:
        """Yield the facts about files, links and special files that the patch cannot express."""
        reason = self._reasons.get(change.path)
        if reason is not None:
            for path in {side.path for side in change.sides}:
                yield path, f"{change.kind}, left out because {reason}"
            return
        for side, verb in ((change.before, "removed"), (change.after, "added")):
            if side and side.kind == "special" and change.kind != "mode-changed":
                yield change.path, f"special file {verb}"
        after = change.after
        if after and not after.is_directory and after.permissions != self._mode(change, after):
            yield change.path, _permissions(after)

    def _mode(self, change: Change, after: FileStat) -> int:
        """Return the permissions that a file has after `git apply`."""
        sections: list[GitSection] = sections_of(change)
        if after.is_symlink or (after.kind == "special" and change.kind != "mode-changed"):
            return after.permissions
        if sections:
            return (mode_of(after) or 0) & 0o777
        return change.before.permissions if change.before else after.permissions


class _CachedState:
    """A state with cached lookups."""

    def __init__(self, state: State) -> None:
        def names(path: str) -> frozenset[str]:
            return frozenset(state.children(path))

        self.lookup = cache(state.lookup)
        self.names = cache(names)


class _Tree:
    """The names of a tree as git changes it, loaded lazily."""

    def __init__(self, ground: _CachedState) -> None:
        self._ground = ground
        self._children: dict[str, set[str]] = {}
        self._made: dict[str, int] = {}  # directories that git has created
        self._gone: set[str] = set()  # entries that git has removed
        self._files: set[str] = set()  # files that git has created

    def directory(self, path: str) -> int | None:
        """Return the permissions of a directory, or None if there is none."""
        if path in self._made:
            return self._made[path]
        found = self._current(path)
        return found.permissions if found and found.is_directory else None

    def can_remove(self, found: FileStat) -> bool:
        """Return whether an ordinary user may read and remove a file."""
        if os.geteuid() == 0:
            return True
        return (found.is_symlink or bool(found.permissions & _READ)) and self._may_change(
            found.path
        )

    def remove(self, path: str, *, prune: bool) -> None:
        """Remove a file, and with `prune` the directories that become empty."""
        while True:
            self._names(parent_of(path)).discard(path.rpartition("/")[2])
            self._gone.add(path)
            path = parent_of(path)
            if not prune or not path or self._names(path):
                return

    def create(self, path: str) -> str | None:
        """Create a file; return the reason if git would stop."""
        reason = self._obstacle(path)
        if reason is not None:
            return reason
        for directory in [each for each in parents_of(path) if self.directory(each) is None]:
            self._add(directory)
            # the set-group-id bit is inherited
            inherited = (self.directory(parent_of(directory)) or 0) & stat.S_ISGID
            self._made[directory] = _NEW_DIRECTORY | inherited
            self._children[directory] = set()
        self._add(path)
        self._gone.add(path)  # git replaces an empty directory
        self._made.pop(path, None)
        self._files.add(path)
        return None

    def _obstacle(self, path: str) -> str | None:
        above = list(parents_of(path))
        found = [self._ground.lookup(each) for each in above]
        links = [each for each in found if each is not None and each.is_symlink]
        if any(self._is_blocked_by_link(each, path) for each in links):
            return _BEHIND_LINK
        if os.geteuid() != 0 and not self._may_change(path):
            return _CLOSED
        if any(each in self._files or self._is_other(each) for each in above):
            return _IN_THE_WAY
        return _IN_THE_WAY if self._is_other(path) or not self._is_free(path) else None

    def _is_free(self, path: str) -> bool:
        """Return whether there is no directory, or one that git replaces: empty, with a short name.

        Git first creates the new file under a longer temporary name.
        """
        if self.directory(path) is None:
            return True
        name = encode_path(path.rpartition("/")[2])
        return len(name) <= _MAX_NAME - _SUFFIX and not self._names(path)

    def _add(self, path: str) -> None:
        self._names(parent_of(path)).add(path.rpartition("/")[2])

    def _names(self, directory: str) -> set[str]:
        if directory not in self._children:
            self._children[directory] = set(self._ground.names(directory))
        return self._children[directory]

    def _current(self, path: str) -> FileStat | None:
        return None if path in self._gone else self._ground.lookup(path)

    def _is_other(self, path: str) -> bool:
        """Return whether the path is an entry other than a directory that git does not remove."""
        found = self._current(path)
        return path not in self._made and found is not None and not found.is_directory

    def _may_change(self, path: str) -> bool:
        """Return whether the owner may change the directory above `path`."""
        found = [self._ground.lookup(each) for each in parents_of(path)]
        modes = [each.permissions for each in found if each is not None and each.is_directory]
        if any(not mode & _SEARCH for mode in modes):
            return False
        return not modes or modes[-1] & _CHANGE == _CHANGE

    def _is_blocked_by_link(self, link: FileStat, path: str) -> bool:
        """Return whether git, resolving a link above `path`, loops or finds another link.

        The link still exists when git checks. If it leads out of the tree, no obstacle is known.
        """
        here, pending = parent_of(link.path), _steps(link)
        below = parent_of(path)[len(link.path) :].split("/")
        for _ in range(_MAX_STEPS):
            if not pending:
                return self._has_link(here, below)
            name = pending.pop()
            if name == "/" or (name == ".." and not here):
                return False
            place = join(here, name)
            if len(encode_path(name)) > _MAX_NAME or len(encode_path(place)) > _MAX_PATH:
                return True
            found = self._ground.lookup(place) if name != ".." else None
            if name == "..":
                here = parent_of(here)
            elif found is None or found.kind in {"file", "special"}:
                return False  # nothing can be below it
            elif found.is_symlink:
                pending += _steps(found)
            else:
                here = place
        return True  # a loop of links

    def _has_link(self, here: str, below: list[str]) -> bool:
        for name in filter(None, below):
            here = join(here, name)
            found = self._ground.lookup(here)
            if found is None or not found.is_directory:
                return found is not None and found.is_symlink
        return False


def _steps(link: FileStat) -> list[str]:
    """Return the segments of a link's target in reverse; `/` leads out of the tree."""
    target = link.link_target or ""
    steps = [each for each in reversed(target.split("/")) if each not in {"", "."}]
    return [*steps, "/"] if target.startswith("/") else steps


def _permissions(found: FileStat) -> str:
    return f"permissions {found.permissions:04o}"


def binary_patch(before: Content, after: Content) -> Iterator[bytes]:
    """Yield a binary patch from `before` to `after`, and its reverse."""
    yield b"GIT binary patch\n"
    yield from _literal(after)
    yield from _literal(before)


def _literal(content: Content) -> Iterator[bytes]:
    yield b"literal %d\n" % content.size
    pending = b""
    for piece in _deflate(content):
        pending += piece
        complete = len(pending) - len(pending) % _LINE
        yield b"".join(_base85_line(pending[at : at + _LINE]) for at in range(0, complete, _LINE))
        pending = pending[complete:]
    yield (_base85_line(pending) if pending else b"") + b"\n"


def _deflate(content: Content) -> Iterator[bytes]:
    deflater = zlib.compressobj()
    for chunk in chunks(content):
        yield deflater.compress(chunk)
    yield deflater.flush()


def _base85_line(data: bytes) -> bytes:
    return b"%c%b\n" % (_LENGTHS[len(data) - 1], b85encode(data, pad=True))


@dataclass(frozen=True, slots=True)
class Style:
    """The style of a patch: lines of context, and whether it must be UTF-8 text."""

    context: int = 3
    utf8: bool = False


class Patch:
    """The patch of some changes, with one part for each."""

    def __init__(
        self, changes: Sequence[Change], before: Side, after: Side, ground: State | None = None
    ) -> None:
        """Describe `changes`, for a tree that is as `before`, or as `ground` if that has more."""
        self._changes = changes
        self._before = before
        self._after = after
        self._plan = GitApplySimulator(changes, ground or before)
        self.omissions: tuple[Omission, ...] = self._plan.omissions()
        self._remarks = _group_by_change(self.omissions, changes)

    def part(self, number: int, style: Style) -> Iterator[bytes]:
        """Yield the remarks and sections of one change."""
        change = self._changes[number]
        for each in self._remarks.get(number, ()):
            yield f"# wink: {each.fact}: {_name(each.path)}\n".encode()
        if self._plan.includes(change):
            for section in sections_of(change):
                yield _header(change, section)
                yield from self._content(section, style)

    def _content(self, section: GitSection, style: Style) -> Iterator[bytes]:
        if section.same_content:
            return
        old_id = self._before.blob_id(section.before) if section.before else _NO_ID
        new_id = self._after.blob_id(section.after) if section.after else _NO_ID
        mode = section.modes[0] if section.modes[0] == section.modes[1] else None
        end = f" {mode:o}" if mode else ""
        yield f"index {old_id}..{new_id}{end}\n".encode()
        texts = section.texts(self._before, self._after)
        if texts is None or (style.utf8 and not all(map(_is_utf8, texts))):
            yield from self._binary(section)
        else:
            old, new = map(split_lines, texts)
            if old or new:
                yield b"--- %b\n+++ %b\n" % _labels(section)
            yield from hunks(old, new, changed_blocks(old, new), style.context)

    def _binary(self, section: GitSection) -> Iterator[bytes]:
        nothing = BytesContent(b"")
        with (
            self._before.open_entry(section.before) if section.before else nothing as old,
            self._after.open_entry(section.after) if section.after else nothing as new,
        ):
            yield from binary_patch(old, new)


def _header(change: Change, section: GitSection) -> bytes:
    source = section.before.path if section.before else change.path
    names = _header_name(b"a/", source), _header_name(b"b/", change.path)
    lines = [b"diff --git %b %b" % names]
    old, new = section.modes
    if old is None:
        lines.append(b"new file mode %o" % (new or 0))
    elif new is None:
        lines.append(b"deleted file mode %o" % old)
    elif old != new:
        lines += [b"old mode %o" % old, b"new mode %o" % new]
    if change.source is not None:
        lines.append(b"similarity index %d%%" % (change.similarity or 0))
        lines.append(b"rename from " + quote_path(encode_path(change.source)))
        lines.append(b"rename to " + quote_path(encode_path(change.path)))
    return b"\n".join(lines) + b"\n"


def _header_name(prefix: bytes, path: str) -> bytes:
    name = quote_path(prefix + encode_path(path))
    # after a directory that ends in a space, git cannot tell where the first name ends
    return b'"%b"' % name if " /" in path and not name.startswith(b'"') else name


def _labels(section: GitSection) -> tuple[bytes, bytes]:
    before, after = section.before and section.before.path, section.after and section.after.path
    return label_path(b"a/", before), label_path(b"b/", after)


def _group_by_change(
    omissions: Iterable[Omission], changes: Sequence[Change]
) -> dict[int, list[Omission]]:
    """Return the omissions by the index of the change whose part mentions them.

    That is the change of the path itself, or the first one below it.
    """
    numbers: dict[str, int] = {}
    for number, change in enumerate(changes):
        for side in change.sides:
            for place in (*parents_of(side.path), side.path):
                numbers.setdefault(place, number)
    numbers |= {change.path: number for number, change in enumerate(changes)}
    found: dict[int, list[Omission]] = {}
    for each in omissions:
        found.setdefault(numbers[each.path], []).append(each)
    return found


def _name(path: str) -> str:
    return quote_path(encode_path(path)).decode()


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
