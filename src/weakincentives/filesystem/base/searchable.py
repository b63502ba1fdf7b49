"""Searching, written once: glob and grep over any backend.

Every backend is walked in the same way and asked with the same matcher and the same
engine; that is why the answers are the same everywhere.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from heapq import nsmallest

from weakincentives.filesystem.base.primitives import Primitives, is_skippable
from weakincentives.filesystem.glob import Glob, State, compile_filter, compile_glob
from weakincentives.filesystem.grep import LineMatch, Searcher, compile_regex
from weakincentives.filesystem.ignore import IGNORE_FILES, MAX_IGNORE_FILE, IgnoreRules
from weakincentives.filesystem.limits import share_of_time
from weakincentives.filesystem.paths import normalize_path
from weakincentives.filesystem.text import Content
from weakincentives.filesystem.types import (
    Children,
    Coverage,
    GlobMatch,
    GrepMatch,
    Results,
    TruncationReason,
)
from weakincentives.posix import (
    TimeLimitError,
    check_time,
    early_time_limit,
    is_time_up,
    join,
    parents_of,
    remaining_time,
    time_limit,
)

_LARGE = 1024 * 1024  # bytes of a file that may take long to search
_MAX_MISSED_PATHS = 10  # named of what was not searched


class SearchableFilesystem(Primitives):
    """The searching part of a filesystem."""

    @property
    def ignore_files(self) -> Sequence[str]:
        """The names of the ignore files that searches honour with `use_ignore_files`."""
        return IGNORE_FILES

    def glob(
        self, pattern: str, *, path: str = ".", use_ignore_files: bool = False
    ) -> Results[GlobMatch]:
        """Return the files and links below `path` that match, sorted by path.

        A pattern that ends in `/` matches directories instead. With `use_ignore_files`
        what `.gitignore` and `.ignore` files exclude is left out. When time runs out, what
        was found is returned, `truncated`, with the reason and how far the search got.

        Raises:
            TimeLimitError: There was no time to begin.
        """
        matcher = compile_glob(pattern, max_length=self._limits.max_pattern_length)
        key = normalize_path(path)
        view = self._stable()
        view._refuse_unless_directory(key)
        check_time("Search")
        with early_time_limit(self._limits.max_search_seconds):
            return view._matching(key, matcher, use_ignore_files)

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
        runs out, what was found is returned, `truncated`, with the reason and the files
        that were not searched; one large file cannot use up the time of all others.

        Raises:
            InvalidRegexError: The pattern cannot be searched for.
            TimeLimitError: There was no time to begin.
        """
        searcher = compile_regex(pattern, self._limits)
        longest = self._limits.max_pattern_length
        wanted = None if glob is None else compile_filter(glob, max_length=longest)
        cap = self._limits.max_grep_matches
        if max_matches is not None:
            if max_matches < 0:
                raise ValueError(f"max_matches must be non-negative: {max_matches}")
            cap = min(cap, max_matches)
        view = self._stable()
        check_time("Search")
        with early_time_limit(self._limits.max_search_seconds):
            files = view._searchable(normalize_path(path), wanted, use_ignore_files)
            with closing(view._contents(files.paths)) as opened:
                search = _Search(searcher, cap, self._limits.max_grep_characters)
                return search.run(files, opened)

    # --- shared steps that a backend may do better ---

    def _stable(self) -> "SearchableFilesystem":
        """Return what a search looks at: this, or a view that does not change meanwhile."""
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

    def _matching(self, base: str, glob: Glob, ignore: bool) -> Results[GlobMatch]:
        """Return what matches, sorted; plain paths are sorted first because that is fast."""
        paths: list[str] = []
        links: set[str] = set()
        missed: list[str] = []
        listed = 0
        for directory, state, children in self._walk(base, glob, ignore, missed):
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

    def _searchable(
        self, base: str, wanted: Callable[[str], bool] | None, ignore: bool
    ) -> "_Files":
        """Return the files to search at or below `base`; half of the time may go into that."""
        found = self._lookup(base) or self._refuse_missing(base)
        if found.is_file:
            self._opened(base).close()  # whoever names one file is told why it cannot be read
            return _Files([base] if wanted is None or wanted(base.rpartition("/")[2]) else [])
        self._refuse_unless_directory(base)
        missed: list[str] = []
        with time_limit((remaining_time() or 0) / 2):
            paths = [
                join(directory, name)
                for directory, _, children in self._walk(base, _EVERYTHING, ignore, missed)
                for name in children.files
            ]
        if wanted is not None:
            skip = len(base) + 1 if base else 0
            paths = [path for path in paths if wanted(path[skip:])]
        paths.sort()
        return _Files(paths, missed)

    def _walk(
        self, base: str, glob: Glob, ignore: bool, missed: list[str]
    ) -> Iterator[tuple[str, State, Children]]:
        """Yield the directories below which `glob` can match, with state and children.

        A stack, not recursion, and one directory open at a time: depth costs nothing. When
        time runs out, the directories that were found and not listed are added to `missed`.
        """
        rules = self._rules_above(base) if ignore else None
        stack = [(base, glob.start, rules)]
        while stack:
            if is_time_up():
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
                children = _not_ignored(directory, children, rules)
            yield directory, state, children
            # the first by name is listed first: which ones are missed is the same everywhere
            for name in sorted(children.directories, reverse=True):
                below = glob.descend(state, name)
                if below:
                    stack.append((join(directory, name), below, rules))

    def _rules_above(self, base: str) -> IgnoreRules:
        rules = IgnoreRules()
        for directory in ["", *parents_of(base)] if base else []:
            with suppress(OSError):  # one may pass through a directory that cannot be listed
                rules = self._rules_in(directory, self._children(directory), rules)
        return rules

    def _rules_in(self, directory: str, children: Children, rules: IgnoreRules) -> IgnoreRules:
        texts: list[str] = []
        for name in IGNORE_FILES:
            if name in children.files:
                with suppress(OSError), self._open(join(directory, name)) as content:
                    texts.append(content.read(0, MAX_IGNORE_FILE).decode("utf-8-sig", "replace"))
        return rules.child(directory, "\n".join(texts)) if texts else rules


def _not_ignored(directory: str, children: Children, rules: IgnoreRules) -> Children:
    def kept(names: Iterable[str], is_directory: bool) -> list[str]:
        return [name for name in names if not rules.ignores(join(directory, name), is_directory)]

    return Children(
        kept(children.files, False),
        kept(children.directories, True),
        kept(children.symlinks, False),
        kept(children.specials, False),
    )


@dataclass(frozen=True, slots=True)
class _Files:
    """Files to search, sorted, and directories for which there was no time."""

    paths: Sequence[str]
    missed: Sequence[str] = ()


class _Search:
    """One search through files: what it has found, and what it had to leave out."""

    def __init__(self, searcher: Searcher, cap: int, characters: int) -> None:
        """Stop after `cap` matches, or `characters` in matched lines."""
        self._searcher = searcher
        self._cap = cap
        self._characters = characters
        self._matches: list[GrepMatch] = []
        self._searched = 0
        self._given_up: list[str] = []

    def run(self, files: _Files, opened: Iterable[tuple[str, Content]]) -> Results[GrepMatch]:
        """Search `files`, which come `opened`, until they end or a limit is reached."""
        reason: TruncationReason | None = "time limit" if files.missed else None
        rest: Sequence[str] = ()
        for number, (path, content) in enumerate(opened, 1):
            others = len(files.paths) - number
            ended = "time limit" if is_time_up() else self._search(path, content, others)
            if ended is not None:
                reason, rest = ended, files.paths[bisect_left(files.paths, path) :]
                break
        if self._given_up:
            reason = reason or "time limit"
        coverage = _coverage(self._searched, [*self._given_up, *rest], files.missed)
        return Results(self._matches, reason=reason, coverage=coverage)

    def _search(self, path: str, content: Content, others: int) -> TruncationReason | None:
        """Search one file; return what ends the whole search, if anything does."""
        try:
            if content.size <= _LARGE:
                return self._collect(path, content)
            with time_limit(share_of_time(others)):
                return self._collect(path, content)
        except TimeLimitError:
            self._given_up.append(path)
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
