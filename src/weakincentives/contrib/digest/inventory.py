"""The inventory of a workspace: its files with sizes, without what ignore files exclude.

The walk is breadth-first in sorted order, so the top of the tree is always complete and the same
tree gives the same inventory on every backend. Links are never followed. Reading goes through
`read`, which is bounded and records the hash of everything that was read: that makes the key of
the digest.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import takewhile

import msgspec

from weakincentives import __version__
from weakincentives.contrib.digest.budget import count, quote_path
from weakincentives.contrib.digest.cache import DigestCache
from weakincentives.contrib.digest.languages import find_vendored
from weakincentives.filesystem import (
    IGNORE_FILES,
    MAX_IGNORE_FILE,
    REPRODUCIBLE_MARKERS,
    REPRODUCIBLE_NAMES,
    Content,
    FileEntry,
    Filesystem,
    IgnoreRules,
    ReadableFilesystem,
    TimeLimitError,
)
from weakincentives.filesystem.base import State, open_state
from weakincentives.gitstore import hash_object
from weakincentives.posix import check_time, parent_of

MAX_FILES = 50_000
"""Files that are taken into account; further ones are counted as left out."""
MAX_DIRECTORIES = 20_000
"""Directories that are listed."""
MAX_READ = 512 * 1024
"""Bytes of one file that are read; a larger source file is left out of the repository map."""
UNREADABLE = "unreadable"
"""Stands for the hash of a file that could not be read."""
_MAX_UNKNOWN = 500  # files that are read for a fingerprint, because their ids are not known
_MAX_RULES = 64  # ignore files above one directory; hostile trees have one per level


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the inventory."""

    path: str
    size: int

    @property
    def name(self) -> str:
        """The last segment of the path."""
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class Inventory:
    """The files of a workspace, sorted by path, and what was left out."""

    filesystem: Filesystem
    files: Sequence[SourceFile] = ()
    directories: Sequence[str] = ()
    ignored: Sequence[str] = ()
    """Directories that hold generated files, or that ignore files exclude; not listed."""
    links: int = 0
    warnings: list[str] = field(default_factory=list[str])
    hashes: dict[str, str] = field(default_factory=dict[str, str])
    """The hash of every file that was read, as `hash_content` returns it."""
    paths: frozenset[str] = frozenset()
    """The paths of `files`."""
    vendored: frozenset[str] = frozenset()
    """The directories of vendored code and of test data; empty if there is nothing else."""
    snapshot: State | None = None
    """A snapshot with these very names and contents, if there is one."""

    def read(self, path: str, *, limit: int = MAX_READ) -> bytes | None:
        """Return the first `limit` bytes of a file; None if it cannot be read.

        Raises:
            TimeLimitError: The time limit of this context has passed.
        """
        check_time("Digest")
        try:
            content = self.filesystem.read_bytes(path, limit=limit).content
        except TimeLimitError:  # an OSError too, but the file is not unreadable
            raise
        except OSError:
            self.hashes[path] = UNREADABLE
            return None
        self.hashes[path] = hash_content(content, limit)
        return content

    def read_all(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield each of `paths` with its first bytes, as `read` returns them.

        Raises:
            TimeLimitError: The time limit of this context has passed.
        """
        state = open_state(self.filesystem)
        if state is None:
            yield from ((path, self.read(path)) for path in paths)
            return
        # without limits and pages, and a directory is opened once for the files in it
        left = iter(paths)
        with closing(state.contents(paths)) as contents:
            for path, content in contents:
                check_time("Digest")
                for skipped in takewhile(lambda each, path=path: each != path, left):
                    yield skipped, self.read(skipped)
                yield path, self._read_content(path, content)
        yield from ((path, self.read(path)) for path in left)

    def _read_content(self, path: str, content: Content) -> bytes | None:
        try:
            data = content.read(0, MAX_READ)
        except OSError:
            self.hashes[path] = UNREADABLE
            return None
        self.hashes[path] = hash_content(data, MAX_READ)
        return data

    def find_hashes(self, paths: Sequence[str]) -> Mapping[str, str]:
        """Return the hashes of those of `paths` that need not be read for that.

        They must be smaller than `MAX_READ`.
        """
        if self.snapshot is None:
            return {}
        ids = self.snapshot.known_ids(paths)
        return {path: found for path, found in zip(paths, ids, strict=True) if found is not None}

    def read_text(self, path: str, *, limit: int = MAX_READ) -> str:
        """Return the first `limit` bytes of a text file; empty if it cannot be read."""
        content = self.read(path, limit=limit) if path in self.paths else None
        if content is None or b"\0" in content[:8192]:
            return ""
        return content.decode("utf-8-sig", "replace")

    def below(self, directory: str) -> Sequence[SourceFile]:
        """Return the files below a directory at any depth; all of them for the root."""
        if not directory:
            return self.files
        start = bisect_left(self.files, directory + "/", key=lambda each: each.path)
        end = bisect_left(self.files, directory + "0", key=lambda each: each.path)  # 0 follows /
        return self.files[start:end]

    def is_vendored(self, path: str) -> bool:
        """Whether a file is other people's code, or data of tests."""
        while self.vendored and (path := parent_of(path)):
            if path in self.vendored:
                return True
        return False

    @property
    def tree_hash(self) -> str:
        """The SHA-256 of all paths and sizes, and of everything that was read so far."""
        digest = sha256()
        for each in self.files:
            line = f"{each.path}\0{each.size}\0{self.hashes.get(each.path, '')}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        for directory in (*self.directories, *self.ignored):
            digest.update(f"{directory}/\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def fingerprint(self) -> str | None:
        """Return a hash of all names and contents; None if that takes reading many files.

        A file whose blob id is known is not opened: the filesystem has captured it before, and
        its stat is the same. With a snapshot of the same state, no file is looked at.
        """
        tree = None if self.snapshot is None else self.snapshot.tree_id()
        if tree is not None:
            return tree
        state = open_state(self.filesystem)
        if state is None:
            return None
        digest = sha256()
        unknown = 0
        for each, known in zip(
            self.files, state.known_ids(each.path for each in self.files), strict=True
        ):
            check_time("Digest")
            if known is None:
                unknown += 1
                known = _hash_start(state, each.path) if unknown <= _MAX_UNKNOWN else None
            if known is None:
                return None
            digest.update(f"{each.path}\0{each.size}\0{known}\n".encode("utf-8", "surrogateescape"))
        rest = (self.directories, self.ignored, self.links, self.warnings)
        digest.update(repr(rest).encode())
        return digest.hexdigest()


def hash_content(content: bytes, limit: int) -> str:
    """Return the hash of a file of which at most `limit` bytes were read.

    It is git's object id if that is all of it, so that a snapshot has it too, else the SHA-256
    of what was read.
    """
    if len(content) < limit:
        return hash_object("blob", content)
    return sha256(content).hexdigest()


def _hash_start(state: State, path: str) -> str | None:
    """Return a hash of as much as a digest reads of a file; None if it cannot be read."""
    try:
        with state.open(path) as content:
            return sha256(content.read(0, MAX_READ)).hexdigest()
    except TimeLimitError:
        raise
    except OSError:
        return None


def take_inventory(
    filesystem: Filesystem,
    *,
    snapshot: ReadableFilesystem | None = None,
    cache: DigestCache | None = None,
) -> Inventory:
    """Walk the workspace and return its inventory.

    Args:
        filesystem: Any backend.
        snapshot: A snapshot of its present state: what that has is not read again.
        cache: Where the inventory of the same tree may be; then there is no walk.

    Raises:
        OSError: The root cannot be listed.
    """
    state = None if snapshot is None else State(snapshot)
    tree = None if state is None else state.tree_id()
    found = _find_cached(filesystem, tree, cache)
    if found is not None:
        found.snapshot = state
        return found
    walk = _InventoryWalk(filesystem)
    found = walk.run()
    found.snapshot = state
    if tree is not None and cache is not None and walk.is_readable:
        with suppress(UnicodeEncodeError):  # a name that is not UTF-8
            cache.keep_inventory(_key(tree), _encode(found))
    return found


_Stored = tuple[list[tuple[str, int]], list[str], list[str], int, list[str], dict[str, str]]
"""What is cached of an inventory: its files, and the fields up to `hashes`."""


def _encode(found: Inventory) -> bytes:
    files = [(each.path, each.size) for each in found.files]
    rest = (found.directories, found.ignored, found.links, found.warnings, found.hashes)
    return msgspec.msgpack.encode((files, *rest))


def _key(tree: str) -> str:
    return f"{__version__} {tree}"


def _find_cached(
    filesystem: Filesystem, tree: str | None, cache: DigestCache | None
) -> Inventory | None:
    data = None if cache is None or tree is None else cache.find_inventory(_key(tree))
    if data is None:
        return None
    try:
        files, places, ignored, links, warnings, hashes = msgspec.msgpack.decode(data, type=_Stored)
    except msgspec.MsgspecError:
        return None
    listed = [SourceFile(path, size) for path, size in files]
    found = Inventory(filesystem, listed, places, ignored, links, warnings, hashes)
    _index(found)
    return found


def _index(inventory: Inventory) -> None:
    """Fill in what follows from the files."""
    inventory.paths = frozenset(each.path for each in inventory.files)
    inventory.vendored = find_vendored(inventory.paths)
    if all(map(inventory.is_vendored, inventory.paths)):
        inventory.vendored = frozenset()


class _InventoryWalk:
    """One breadth-first walk."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._inventory = Inventory(filesystem)
        self._filesystem = filesystem
        self._files: list[SourceFile] = []
        self._directories: list[str] = []
        self._ignored: list[str] = []
        self._unreadable: list[str] = []
        self._queue: deque[tuple[str, IgnoreRules, int]] = deque([("", IgnoreRules(), 0)])
        self._is_cut = False

    @property
    def is_readable(self) -> bool:
        """Whether everything could be read that was looked at."""
        return not self._unreadable and UNREADABLE not in self._inventory.hashes.values()

    def run(self) -> Inventory:
        """Walk until everything is listed or a bound is reached."""
        while self._queue and len(self._files) < MAX_FILES:
            if len(self._directories) >= MAX_DIRECTORIES:
                break
            self._visit(*self._queue.popleft())
        result = self._inventory
        self._files.sort(key=lambda each: each.path)
        result.files = self._files
        _index(result)
        result.directories = sorted(self._directories)
        result.ignored = sorted(self._ignored)
        result.warnings += self._warnings()
        return result

    def _visit(self, directory: str, rules: IgnoreRules, depth: int) -> None:
        try:
            entries = self._filesystem.list(directory or ".")
        except TimeLimitError:
            raise
        except OSError:
            if not directory:
                raise
            self._unreadable.append(directory)
            return
        names = {entry.name for entry in entries if entry.is_file}
        if directory and not REPRODUCIBLE_MARKERS.isdisjoint(names):
            self._ignored.append(directory)
            return
        if directory:
            self._directories.append(directory)
        self._is_cut |= getattr(entries, "truncated", False)
        if depth < _MAX_RULES:
            text = self._ignore_text(directory, names)
            depth += text is not None
            rules = rules.child(directory, text)
        for entry in entries:
            self._add(entry, rules, depth)

    def _add(self, entry: FileEntry, rules: IgnoreRules, depth: int) -> None:
        if entry.is_symlink:
            self._inventory.links += 1
        elif entry.is_directory:
            if entry.name in REPRODUCIBLE_NAMES or rules.ignores(entry.path, is_directory=True):
                self._ignored.append(entry.path)
            else:
                self._queue.append((entry.path, rules, depth))
        elif entry.is_file and not rules.ignores(entry.path, is_directory=False):
            if len(self._files) < MAX_FILES:
                self._files.append(SourceFile(entry.path, entry.size_bytes or 0))
            else:
                self._is_cut = True

    def _ignore_text(self, directory: str, names: set[str]) -> str | None:
        texts: list[str] = []
        for name in IGNORE_FILES:
            if name in names:
                path = f"{directory}/{name}" if directory else name
                content = self._inventory.read(path, limit=MAX_IGNORE_FILE)
                texts.append((content or b"").decode("utf-8-sig", "replace"))
        return "\n".join(texts) if texts else None

    def _warnings(self) -> Iterator[str]:
        if self._is_cut or self._queue:
            files, places = count(len(self._files), "file"), len(self._directories) + 1
            yield (
                f"The workspace is too large to read completely: the digest covers {files} in"
                f" {count(places, 'directory')}, from the top of the tree."
            )
        if self._unreadable:
            first = quote_path(min(self._unreadable))
            number = len(self._unreadable)
            others = f" and {count(number - 1, 'other')}" if number > 1 else ""
            yield f"Directories that could not be listed are left out: {first}{others}."
