"""Reading, written once: everything a filesystem can answer from three primitives.

A backend supplies `_lookup`, `_children` and `_open`. It may override a shared step
(`_entries`, `_search`) where it knows a faster way to the same answer.
"""

import errno
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from operator import attrgetter
from typing import NoReturn

from weakincentives.filesystem.ignore import IgnoreRules
from weakincentives.filesystem.limits import (
    DEFAULT_LIMITS,
    READ_ENTIRE_FILE,
    Limits,
    check_time,
)
from weakincentives.filesystem.paths import (
    InvalidPathError,
    join,
    normalize_path,
    os_error,
    parents_of,
    shown,
)
from weakincentives.filesystem.patterns import Glob, compile_filter, compile_glob
from weakincentives.filesystem.search import LineMatch, Searcher, compile_regex
from weakincentives.filesystem.text import BinaryContentError, Content, read_page
from weakincentives.filesystem.types import (
    Children,
    FileEntry,
    FileStat,
    GlobMatch,
    GrepMatch,
    ReadBytesResult,
    ReadResult,
    Results,
)

_IGNORE_FILES = (".gitignore", ".ignore")
_HASH_CHUNK = 1024 * 1024


class ReadableFilesystem(ABC):
    """The reading half of a filesystem; a read-only backend needs no more."""

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        """Bound what is returned by `limits`."""
        self._limits = limits

    # --- what a backend supplies; paths are normalized, the root is "" ---

    @abstractmethod
    def _lookup(self, path: str) -> FileStat | None:
        """Return what is at `path` without following links, or None."""

    @abstractmethod
    def _children(self, path: str) -> Children:
        """Return the names in a directory; OSError if it is none."""

    @abstractmethod
    def _open(self, path: str) -> Content:
        """Open a regular file; OSError if it is anything else."""

    # --- the protocol ---

    @property
    @abstractmethod
    def root(self) -> str:
        """Where the workspace is."""

    @property
    def read_only(self) -> bool:
        """Whether writing is refused."""
        return True

    @property
    def limits(self) -> Limits:
        """What is allowed here."""
        return self._limits

    def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, encoding: str = "utf-8"
    ) -> ReadResult:
        """Return a page of text: `limit` lines from line `offset`, which counts from 0."""
        key = normalize_path(path)
        count = _checked_page(offset, self._limits.default_read_limit if limit is None else limit)
        with self._opened(key) as content:
            try:
                text, total = read_page(content, offset, count, encoding)
            except UnicodeError as error:
                raise _not_text(key, encoding, error) from None
            except LookupError:
                raise ValueError(f"Encoding is not known: {encoding!r}") from None
        truncated = count != READ_ENTIRE_FILE and offset + count < total
        return ReadResult(text, key, total, offset, count, truncated)

    def read_bytes(
        self, path: str, *, offset: int = 0, limit: int | None = None
    ) -> ReadBytesResult:
        """Return `limit` bytes from byte `offset`; no limit means to the end."""
        key = normalize_path(path)
        count = _checked_page(offset, READ_ENTIRE_FILE if limit is None else limit)
        with self._opened(key) as content:
            size = content.size
            wanted = size - offset if count == READ_ENTIRE_FILE else min(count, size - offset)
            data = content.read(offset, wanted) if wanted > 0 else b""
        return ReadBytesResult(data, key, size, offset, count, offset + len(data) < size)

    def exists(self, path: str) -> bool:
        """Return whether something is there, a link included."""
        try:
            return self._lookup(normalize_path(path)) is not None
        except (InvalidPathError, PermissionError):
            return False

    def stat(self, path: str) -> FileStat:
        """Return the metadata of what is there; a link is not followed."""
        key = normalize_path(path)
        found = self._lookup(key) or self._refuse_missing(key)
        return found if key else replace(found, path=".")

    def content_hash(self, path: str) -> str:
        """Return the SHA-256 of a file's bytes in hexadecimal."""
        with self._opened(normalize_path(path)) as content:
            return hash_of(content)

    def list(self, path: str = ".") -> Results[FileEntry]:
        """Return the entries of a directory, sorted by name."""
        key = normalize_path(path)
        try:
            return self._entries(key, self._limits.max_list_entries)
        except OSError:
            self._refuse_unless_directory(key)
            raise

    def glob(
        self, pattern: str, *, path: str = ".", use_ignore_files: bool = False
    ) -> Results[GlobMatch]:
        """Return the files and links below `path` that match, sorted by path.

        A pattern that ends in `/` matches directories instead. With `use_ignore_files`
        what `.gitignore` and `.ignore` files exclude is left out.
        """
        matcher = compile_glob(pattern, max_length=self._limits.max_pattern_length)
        key = normalize_path(path)
        view = self._stable()
        view._refuse_unless_directory(key)
        found = [*view._matching(key, matcher, use_ignore_files)]
        found.sort(key=attrgetter("path"))
        return Results(found)

    def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        max_matches: int | None = None,
        use_ignore_files: bool = False,
    ) -> Results[GrepMatch]:
        """Return the first match of each line below `path`, sorted by path and line.

        `pattern` is an RE2 regular expression. `glob` filters files: without `/` by
        name at any depth, with `/` by the path below `path`. Binary files are skipped.
        """
        searcher = compile_regex(pattern, self._limits)
        wanted = None if glob is None else compile_filter(glob)
        cap = self._limits.max_grep_matches
        if max_matches is not None:
            if max_matches < 0:
                raise ValueError(f"max_matches must be non-negative: {max_matches}")
            cap = min(cap, max_matches)
        view = self._stable()
        files = view._searchable(normalize_path(path), wanted, use_ignore_files)
        with closing(view._search(searcher, files)) as found:
            return _capped(found, cap, self._limits.max_grep_characters)

    # --- shared steps that a backend may do better ---

    def _stable(self) -> "ReadableFilesystem":
        """Return what a search looks at: this, or a view that does not change meanwhile."""
        return self

    def _entries(self, path: str, limit: int) -> Results[FileEntry]:
        """Return up to `limit` sorted entries of a directory; OSError if it is none."""
        files, directories, symlinks, specials = self._children(path)
        names = sorted([*files, *directories, *symlinks, *specials])
        found = ((name, self._lookup(join(path, name))) for name in names[:limit])
        entries = [_entry(name, stat) for name, stat in found if stat is not None]
        return Results(entries, truncated=len(names) > limit)

    def _search(
        self, searcher: Searcher, paths: Iterable[str]
    ) -> Generator[tuple[str, Iterator[LineMatch]], None, None]:
        """Yield each of `paths` that can be opened with its matches, in order."""
        for path in paths:
            check_time("Search")
            try:
                content = self._open(path)
            except OSError:
                continue  # gone, replaced or forbidden since it was listed
            with content:
                yield path, searcher.lines(content)

    # --- shared steps ---

    def _opened(self, path: str) -> Content:
        try:
            return self._open(path)
        except OSError:
            self._refuse_unless_file(path)
            raise

    def _matching(self, base: str, glob: Glob, ignore: bool) -> Iterator[GlobMatch]:
        for directory, state, children in self._walk(base, glob, ignore):
            accepts = glob.accepts(state)
            prefix = directory + "/" if directory else ""
            if glob.directories_only:
                for name in filter(accepts, children.directories):
                    yield GlobMatch(prefix + name, False)
                continue
            for name in filter(accepts, children.files):
                yield GlobMatch(prefix + name, True)
            for name in filter(accepts, children.symlinks):
                yield GlobMatch(prefix + name, False)

    def _searchable(
        self, base: str, wanted: Callable[[str], bool] | None, ignore: bool
    ) -> Iterable[str]:
        """Return the files to search at or below `base`, sorted."""
        found = self._lookup(base) or self._refuse_missing(base)
        if found.is_file:
            name = base.rpartition("/")[2]
            return [base] if wanted is None or wanted(name) else []
        self._refuse_unless_directory(base)
        paths = [
            join(directory, name)
            for directory, _, children in self._walk(base, _EVERYTHING, ignore)
            for name in children.files
        ]
        if wanted is not None:
            skip = len(base) + 1 if base else 0
            paths = [path for path in paths if wanted(path[skip:])]
        paths.sort()
        return paths

    def _walk(self, base: str, glob: Glob, ignore: bool) -> Iterator[tuple[str, object, Children]]:
        """Yield the directories below which `glob` can match, with state and children.

        A stack, not recursion, and one directory open at a time: depth costs nothing.
        """
        rules = self._rules_above(base) if ignore else None
        stack = [(base, glob.start, rules)]
        while stack:
            check_time("Search")
            directory, state, rules = stack.pop()
            try:
                children = self._children(directory)
            except OSError:
                continue  # gone, replaced or forbidden since it was listed
            if rules is not None:
                rules = self._rules_in(directory, children, rules)
                children = _not_ignored(directory, children, rules)
            yield directory, state, children
            for name in children.directories:
                below = glob.descend(state, name)
                if below:
                    stack.append((join(directory, name), below, rules))

    def _rules_above(self, base: str) -> IgnoreRules:
        rules = IgnoreRules()
        for directory in ["", *parents_of(base)] if base else []:
            rules = self._rules_in(directory, self._children(directory), rules)
        return rules

    def _rules_in(self, directory: str, children: Children, rules: IgnoreRules) -> IgnoreRules:
        texts: list[str] = []
        for name in _IGNORE_FILES:
            if name in children.files:
                with suppress(OSError), self._open(join(directory, name)) as content:
                    texts.append(content.read(0, content.size).decode(errors="replace"))
        return rules.child(directory, "\n".join(texts)) if texts else rules

    def _refuse_missing(self, path: str) -> NoReturn:
        """Raise the reason why nothing is at `path`: a link on the way, or nothing there."""
        for parent in parents_of(path):
            found = self._lookup(parent)
            if found is None:
                break
            if found.is_symlink:
                raise link_error(found)
        raise os_error(errno.ENOENT, path)

    def _refuse_unless_file(self, path: str) -> None:
        found = self._lookup(path) or self._refuse_missing(path)
        if found.is_directory:
            raise os_error(errno.EISDIR, path)
        refuse_links_and_specials(found)

    def _refuse_unless_directory(self, path: str) -> None:
        found = self._lookup(path) or self._refuse_missing(path)
        if found.is_symlink:
            raise link_error(found)
        if not found.is_directory:
            raise os_error(errno.ENOTDIR, path)


def hash_of(content: Content) -> str:
    """Return the SHA-256 of `content` in hexadecimal."""
    digest = hashlib.sha256()
    for offset in range(0, content.size, _HASH_CHUNK):
        check_time("Read")
        digest.update(content.read(offset, _HASH_CHUNK))
    return digest.hexdigest()


def link_error(found: FileStat) -> OSError:
    """Return the refusal to follow a link."""
    target = shown(found.link_target or "")
    text = f"Symbolic links are not followed, and this one points to {target!r}"
    return os_error(errno.EPERM, found.path, text)


def refuse_links_and_specials(found: FileStat) -> None:
    """Raise PermissionError unless `found` is a file or a directory."""
    if found.is_symlink:
        raise link_error(found)
    if found.kind == "special":
        raise os_error(errno.EPERM, found.path, "Not a regular file (a pipe, socket or device)")


def _checked_page(offset: int, limit: int) -> int:
    if offset < 0:
        raise ValueError(f"offset must be non-negative: {offset}")
    if limit < 0 and limit != READ_ENTIRE_FILE:
        raise ValueError(f"limit must be non-negative, or -1 for all: {limit}")
    return limit


def _not_text(path: str, encoding: str, error: UnicodeError) -> BinaryContentError:
    return BinaryContentError(
        f"{shown(path)!r} has binary content, not {encoding} text ({error}); use read_bytes"
    )


def _entry(name: str, stat: FileStat) -> FileEntry:
    size = stat.size_bytes if stat.is_file else None
    return FileEntry(name, stat.path, stat.is_file, stat.is_directory, size, stat.is_symlink)


def _not_ignored(directory: str, children: Children, rules: IgnoreRules) -> Children:
    def kept(names: Iterable[str], is_directory: bool) -> list[str]:
        return [name for name in names if not rules.ignores(join(directory, name), is_directory)]

    return Children(
        kept(children.files, False),
        kept(children.directories, True),
        kept(children.symlinks, False),
        kept(children.specials, False),
    )


def _capped(
    found: Iterable[tuple[str, Iterator[LineMatch]]], cap: int, characters: int
) -> Results[GrepMatch]:
    matches: list[GrepMatch] = []
    for path, lines in found:
        for line in lines:
            characters -= len(line.line_content)
            if len(matches) == cap or characters < 0:
                return Results(matches, truncated=True)
            matches.append(
                GrepMatch(
                    path, line.line_number, line.line_content, line.match_start, line.match_end
                )
            )
    return Results(matches)


_EVERYTHING = compile_glob("**")
