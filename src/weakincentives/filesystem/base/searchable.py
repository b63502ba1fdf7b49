"""Abstract read primitives of a backend, the errors derived from them, and glob and grep.

A backend needs three primitives to be readable. It need not explain its failures: the shared
code calls `_lookup` and raises the same error for every backend. Every backend is walked in
the same order and searched with the same matcher and the same regular expression engine, so the
results are the same everywhere.
"""

import errno
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from heapq import nsmallest
from typing import NoReturn

from weakincentives import posix
from weakincentives.filesystem.glob import Glob, State, compile_filter, compile_glob
from weakincentives.filesystem.grep import LineMatch, Searcher, compile_regex
from weakincentives.filesystem.ignore import IGNORE_FILES, MAX_IGNORE_FILE, IgnoreRules
from weakincentives.filesystem.limits import DEFAULT_LIMITS, Limits, share_of_time
from weakincentives.filesystem.paths import normalize_path
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import (
    Children,
    Coverage,
    FileStat,
    FilesystemSnapshot,
    GlobMatch,
    GrepMatch,
    Results,
    TruncationReason,
)

_SKIPPABLE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.EXDEV}
)


class Primitives(ABC):
    """The read primitives; paths are normalized, and the root is the empty string."""

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS) -> None:
        """Limit results by `limits`."""
        self._limits = limits

    @property
    @abstractmethod
    def root(self) -> str:
        """The directory of the workspace; `/` if it is not on disk."""

    @property
    def limits(self) -> Limits:
        """The limits of this filesystem."""
        return self._limits

    @abstractmethod
    def _lookup(self, path: str) -> FileStat | None:
        """Return the entry at `path`, without following links; None if there is none."""

    @abstractmethod
    def _children(self, path: str) -> Children:
        """Return the names in a directory; OSError if it is not one."""

    @abstractmethod
    def _open(self, path: str) -> Content:
        """Open a regular file; OSError if it is anything else."""

    def _stats(self, path: str) -> dict[str, FileStat]:
        """Return the entries of a directory by name; OSError if it is not one."""
        names = (name for group in self._children(path) for name in group)
        found = ((name, self._lookup(posix.join(path, name))) for name in names)
        return {name: stat for name, stat in found if stat is not None}

    def _has_same_tree(self, path: str, other: "Primitives") -> bool:
        """Return whether the directory is known to be the same in `other`, with all below it."""
        del path, other  # for backends that know ids of directories
        return False

    def _tree_id(self) -> str | None:
        """Return an id of all names, contents and permissions, if it is known without a walk."""
        return None

    def _blob_id(self, path: str) -> str | None:
        """Return git's object id of a file's content, if it is known without reading the file."""
        del path  # for backends that know ids
        return None

    def _changed_since(self, snapshot: FilesystemSnapshot) -> list[str] | None:
        """Return the paths that may differ from a snapshot, if that is known without a diff.

        Everything at and below them is compared. None means everything.
        """
        del snapshot  # for backends that track changes
        return None

    def _open_file(self, path: str) -> Content:
        try:
            return self._open(path)
        except OSError:
            self._ensure_file(path)
            raise

    def _raise_not_found(self, path: str) -> NoReturn:
        """Raise the reason why `path` was not found: a link above it, or no such entry."""
        for parent in posix.parents_of(path):
            found = self._lookup(parent)
            if found is None:
                break
            if found.is_symlink:
                raise link_error(found)
        raise posix.os_error(errno.ENOENT, path)

    def _ensure_file(self, path: str) -> None:
        found = self._lookup(path) or self._raise_not_found(path)
        if found.is_directory:
            raise posix.os_error(errno.EISDIR, path)
        ensure_plain_entry(found)

    def _ensure_directory(self, path: str) -> None:
        found = self._lookup(path) or self._raise_not_found(path)
        if found.is_symlink:
            raise link_error(found)
        if not found.is_directory:
            raise posix.os_error(errno.ENOTDIR, path)


def is_skippable(error: OSError) -> bool:
    """Return whether a search skips the entry: it is gone, was replaced, or is not readable."""
    return error.errno in _SKIPPABLE


def link_error(found: FileStat) -> OSError:
    """Return the error for a symbolic link, which is never followed."""
    target = posix.display_path(found.link_target or "")
    text = f"Symbolic links are not followed, and this one points to {target!r}"
    return posix.os_error(errno.EPERM, found.path, text)


def ensure_plain_entry(found: FileStat) -> None:
    """Raise PermissionError unless `found` is a file or a directory."""
    if found.is_symlink:
        raise link_error(found)
    if found.kind == "special":
        raise posix.os_error(
            errno.EPERM, found.path, "Not a regular file (a pipe, socket or device)"
        )


_LARGE_FILE = 1024 * 1024  # bytes; a larger file gets a share of the time only
_MAX_MISSED_PATHS = 10  # unsearched paths that are named


class SearchableFilesystem(Primitives):
    """A filesystem with `glob` and `grep`."""

    @property
    def ignore_files(self) -> Sequence[str]:
        """The names of the ignore files that searches honour with `use_ignore_files`."""
        return IGNORE_FILES

    def glob(
        self, pattern: str, *, path: str = ".", use_ignore_files: bool = False
    ) -> Results[GlobMatch]:
        """Return the matching files and links below `path`, sorted by path.

        A pattern that ends in `/` matches directories instead. With `use_ignore_files`, paths
        that `.gitignore` and `.ignore` files exclude are left out. When time runs out, the
        matches so far are returned, `truncated`, with the reason and the coverage.

        Raises:
            TimeLimitError: The time limit had passed before the search began.
        """
        matcher = compile_glob(pattern, max_length=self._limits.max_pattern_length)
        key = normalize_path(path)
        view = self._stable_view()
        view._ensure_directory(key)  # noqa: SLF001  a view is of this class
        posix.check_time("Search")
        with posix.early_time_limit(self._limits.max_search_seconds):
            return view._find_matches(key, matcher, ignore=use_ignore_files)  # noqa: SLF001  as above

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
        name at any depth, with `/` by the path below `path`. Binary files are skipped:
        those with a NUL, or with bytes that are not UTF-8, in their first 8 KiB. When time
        runs out, the matches so far are returned, `truncated`, with the reason and the files
        that were not searched; one large file cannot use up the time of all others.

        Raises:
            InvalidRegexError: The pattern is not valid RE2 syntax, or too large.
            TimeLimitError: The time limit had passed before the search began.
        """
        searcher = compile_regex(pattern, self._limits)
        longest = self._limits.max_pattern_length
        wanted = None if glob is None else compile_filter(glob, max_length=longest)
        cap = self._limits.max_grep_matches
        if max_matches is not None:
            if max_matches < 0:
                raise ValueError(f"max_matches must be non-negative: {max_matches}")
            cap = min(cap, max_matches)
        view = self._stable_view()
        posix.check_time("Search")
        with posix.early_time_limit(self._limits.max_search_seconds):
            key = normalize_path(path)
            files = view._find_searchable(key, wanted, ignore=use_ignore_files)  # noqa: SLF001  as above
            with closing(view._contents(files.paths)) as opened:  # noqa: SLF001  as above
                search = _Search(searcher, cap, self._limits.max_grep_characters)
                return search.run(files, opened)

    # --- shared steps that a backend may override ---

    def _stable_view(self) -> "SearchableFilesystem":
        """Return the filesystem to search: this one, or a view that does not change."""
        return self

    def _contents(self, paths: Iterable[str]) -> Generator[tuple[str, Content], None, None]:
        """Yield each of the sorted `paths` that can be opened, with its content."""
        for path in paths:
            try:
                content = self._open(path)
            except OSError as error:
                if is_skippable(error):
                    continue
                raise
            with content:
                yield path, content

    # --- shared steps ---

    def _find_matches(self, base: str, glob: Glob, *, ignore: bool) -> Results[GlobMatch]:
        """Return the matches, sorted; the paths are sorted as strings, which is faster."""
        paths: list[str] = []
        links: set[str] = set()
        missed: list[str] = []
        listed = 0
        for directory, state, children in self._walk(base, glob, missed, ignore=ignore):
            listed += 1
            accepts = glob.accepts(state)
            prefix = directory + "/" if directory else ""
            names = children.directories if glob.directories_only else children.files
            paths += [prefix + name for name in names if accepts(name)]
            if children.symlinks and not glob.directories_only:
                links.update(prefix + name for name in children.symlinks if accepts(name))
        paths = sorted([*paths, *links]) if links else sorted(paths)
        cap = self._limits.max_glob_matches
        reason: TruncationReason | None = "time limit" if missed else None
        if len(paths) > cap:
            reason = reason or "match limit"
            del paths[cap:]
        is_file = not glob.directories_only
        found = [GlobMatch(path, is_file and path not in links) for path in paths]
        return Results(found, reason=reason, coverage=_coverage(listed, (), missed))

    def _find_searchable(
        self, base: str, wanted: Callable[[str], bool] | None, *, ignore: bool
    ) -> "_Files":
        """Return the files to search at or below `base`; this may take half of the time."""
        found = self._lookup(base) or self._raise_not_found(base)
        if found.is_file:
            self._open_file(base).close()  # a single file that cannot be read is an error
            return _Files([base] if wanted is None or wanted(base.rpartition("/")[2]) else [])
        self._ensure_directory(base)
        missed: list[str] = []
        with posix.time_limit((posix.remaining_time() or 0) / 2):
            paths = [
                posix.join(directory, name)
                for directory, _, children in self._walk(base, _EVERYTHING, missed, ignore=ignore)
                for name in children.files
            ]
        if wanted is not None:
            skip = len(base) + 1 if base else 0
            paths = [path for path in paths if wanted(path[skip:])]
        paths.sort()
        return _Files(paths, missed)

    def _walk(
        self, base: str, glob: Glob, missed: list[str], *, ignore: bool
    ) -> Iterator[tuple[str, State, Children]]:
        """Yield the directories below which `glob` can match, with their states and children.

        Iterative, with one directory open at a time, so depth is not limited. When time runs
        out, the directories that were not listed are added to `missed`.
        """
        rules = self._rules_above(base) if ignore else None
        stack = [(base, glob.start, rules)]
        while stack:
            if posix.is_time_up():
                missed += [directory for directory, _, _ in stack]
                return
            directory, state, rules = stack.pop()
            try:
                children = self._children(directory)
            except OSError as error:
                if directory != base and is_skippable(error):
                    continue
                raise
            if rules is not None:
                rules = self._rules_in(directory, children, rules)
                children = _apply_ignore_rules(directory, children, rules)
            yield directory, state, children
            # in sorted order, so that every backend misses the same directories
            for name in sorted(children.directories, reverse=True):
                below = glob.descend(state, name)
                if below:
                    stack.append((posix.join(directory, name), below, rules))

    def _rules_above(self, base: str) -> IgnoreRules:
        rules = IgnoreRules()
        for directory in ["", *posix.parents_of(base)] if base else []:
            with suppress(OSError):  # a directory above may be passable but not listable
                rules = self._rules_in(directory, self._children(directory), rules)
        return rules

    def _rules_in(self, directory: str, children: Children, rules: IgnoreRules) -> IgnoreRules:
        texts: list[str] = []
        for name in IGNORE_FILES:
            if name in children.files:
                with suppress(OSError), self._open(posix.join(directory, name)) as content:
                    texts.append(content.read(0, MAX_IGNORE_FILE).decode("utf-8-sig", "replace"))
        return rules.child(directory, "\n".join(texts)) if texts else rules


def _apply_ignore_rules(directory: str, children: Children, rules: IgnoreRules) -> Children:
    def keep(names: Iterable[str], *, is_directory: bool = False) -> list[str]:
        return [
            name
            for name in names
            if not rules.ignores(posix.join(directory, name), is_directory=is_directory)
        ]

    return Children(
        keep(children.files),
        keep(children.directories, is_directory=True),
        keep(children.symlinks),
        keep(children.specials),
    )


@dataclass(frozen=True, slots=True)
class _Files:
    """Files to search, sorted, and directories that were not listed in time."""

    paths: Sequence[str]
    missed: Sequence[str] = ()


class _Search:
    """One grep: its matches so far, and the files that it could not search."""

    def __init__(self, searcher: Searcher, cap: int, characters: int) -> None:
        """Stop after `cap` matches, or `characters` in matched lines."""
        self._searcher = searcher
        self._cap = cap
        self._characters = characters
        self._matches: list[GrepMatch] = []
        self._searched = 0
        self._unsearched: list[str] = []

    def run(self, files: _Files, opened: Iterable[tuple[str, Content]]) -> Results[GrepMatch]:
        """Search the `opened` contents of `files` until a limit is reached."""
        reason: TruncationReason | None = "time limit" if files.missed else None
        rest: Sequence[str] = ()
        for number, (path, content) in enumerate(opened, 1):
            others = len(files.paths) - number
            ended = "time limit" if posix.is_time_up() else self._search(path, content, others)
            if ended is not None:
                reason, rest = ended, files.paths[bisect_left(files.paths, path) :]
                break
        if self._unsearched:
            reason = reason or "time limit"
        coverage = _coverage(self._searched, [*self._unsearched, *rest], files.missed)
        return Results(self._matches, reason=reason, coverage=coverage)

    def _search(self, path: str, content: Content, others: int) -> TruncationReason | None:
        """Search one file; return the reason to end the whole search, if there is one."""
        try:
            if content.size <= _LARGE_FILE:
                return self._collect(path, content)
            with posix.time_limit(share_of_time(others)):
                return self._collect(path, content)
        except posix.TimeLimitError:
            self._unsearched.append(path)
            return None

    def _collect(self, path: str, content: Content) -> TruncationReason | None:
        for line in self._searcher.lines(content):
            self._characters -= len(line.line_content)
            if len(self._matches) == self._cap:
                return "match limit"
            if self._characters < 0:
                return "size limit"
            self._matches.append(_match(path, line))
        self._searched += 1
        return None


def _match(path: str, line: LineMatch) -> GrepMatch:
    return GrepMatch(path, line.line_number, line.line_content, line.match_start, line.match_end)


def _coverage(searched: int, files: Sequence[str], directories: Sequence[str]) -> Coverage:
    if not files and not directories:
        return Coverage(searched)
    names = [*files, *(f"{each or '.'}/" for each in directories)]
    first = tuple(nsmallest(_MAX_MISSED_PATHS, names))
    return Coverage(searched, len(files), len(directories), first)


_EVERYTHING = compile_glob("**")
