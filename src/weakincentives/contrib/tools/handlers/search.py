"""Search: path filters, file types, ignore rules, and matches counted file by file.

A filesystem's own search is fast but stops at a match limit. The files after that limit
are searched here, one by one with the same engine, only as far as they are needed.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.render import WorkspaceContent, format_path
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    DEFAULT_LIMITS,
    BytesContent,
    Content,
    Coverage,
    Filesystem,
    GlobMatch,
    GrepMatch,
    IgnoreAware,
    Results,
    TimeLimitError,
    time_limit,
)
from weakincentives.filesystem.base import (
    IGNORE_FILES,
    MAX_IGNORE_FILE,
    IgnoreRules,
    Predicate,
    Searcher,
    compile_filter,
    compile_regex,
    share_of_time,
)
from weakincentives.posix import is_time_up, join, parent_of, parents_of

_MAX_EXCERPT = 200
_MIN_SIMILARITY = 0.75  # of a file type, to suggest it


def compile_exclude(patterns: Iterable[str]) -> Predicate | None:
    """Return a predicate for paths that no pattern excludes, directly or by a parent.

    A pattern without `/` matches names at any depth. None if there are no patterns.
    """
    tests = [_compile_subtree(pattern) for pattern in patterns if pattern]
    if not tests:
        return None
    return lambda path: (
        not any(matches(each) for each in (path, *parents_of(path)) for matches in tests)
    )


def relative_pattern(context: HandlerContext, pattern: str, path: str) -> str:
    """Return a pattern relative to `path`; an absolute one counts from the workspace root."""
    root = context.filesystem.root.rstrip("/")
    if root and f"{pattern}/".startswith(f"{root}/"):
        pattern = pattern[len(root) :] or "/"
    if not pattern.startswith("/"):
        return pattern
    inside = pattern.strip("/") if pattern.strip("/") == path else pattern.lstrip("/")
    if path and not f"{inside}/".startswith(f"{path}/"):
        raise ToolValidationError(
            f"Pattern {pattern[:_MAX_EXCERPT]!r} starts at the workspace root and lies outside"
            f" {format_path(path)!r}; search in '.', or make the pattern relative to the directory"
        )
    return inside[len(path) :].lstrip("/") or "**"


def _compile_subtree(pattern: str) -> Predicate:
    """Return a predicate for a pattern; `dir`, `dir/` and `dir/**` mean the same."""
    directory = pattern.removesuffix("**").rstrip("/") if pattern.endswith("/**") else pattern
    return compile_filter(directory.rstrip("/") or pattern)


T = TypeVar("T")


def find_files(
    filesystem: Filesystem, pattern: str, *, path: str, ignore: bool
) -> Results[GlobMatch]:
    """Return the paths that match a glob below `path`, sorted."""
    place = path or "."
    searcher = _ignore_aware(filesystem)
    if searcher is not None:
        return searcher.glob(pattern, path=place, use_ignore_files=ignore)
    found = filesystem.glob(pattern, path=place)
    truncated = bool(getattr(found, "truncated", False))
    if not ignore:
        return _make_results(found, found, truncated=truncated)
    ignored = _IgnoreFilter(filesystem)
    directories = pattern.endswith("/")
    kept = [each for each in found if not ignored.ignores(each.path, is_directory=directories)]
    return _make_results(kept, found, truncated=truncated)


def find_lines(
    filesystem: Filesystem,
    pattern: str,
    *,
    path: str,
    glob: str | None,
    most: int | None,
    ignore: bool,
) -> Results[GrepMatch]:
    """Return matching lines below `path`, sorted; `truncated` if there may be more."""
    place = path or "."
    searcher = _ignore_aware(filesystem)
    if searcher is not None:
        return searcher.grep(
            pattern, path=place, glob=glob, max_matches=most, use_ignore_files=ignore
        )
    found = filesystem.grep(pattern, path=place, glob=glob, max_matches=most)
    # another backend may cut silently: a result of the full length may be incomplete
    truncated = bool(getattr(found, "truncated", most is not None and len(found) >= most))
    if not ignore:
        return _make_results(found, found, truncated=truncated)
    ignored = _IgnoreFilter(filesystem)
    kept = [each for each in found if each.path == path or not ignored.ignores(each.path)]
    return _make_results(kept, found, truncated=truncated)


def _ignore_aware(filesystem: object) -> IgnoreAware | None:
    return filesystem if isinstance(filesystem, IgnoreAware) else None


def _make_results(kept: Sequence[T], found: Sequence[T], *, truncated: bool) -> Results[T]:
    """Return the kept results, with the reason for truncation and the coverage, if known."""
    if isinstance(found, Results):
        return Results(kept, truncated=truncated, reason=found.reason, coverage=found.coverage)
    return Results(kept, truncated=truncated)


class _IgnoreFilter:
    """Applies the ignore files of a filesystem; caches the rules of each directory."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self._rules: dict[str, IgnoreRules | None] = {}

    def ignores(self, path: str, *, is_directory: bool = False) -> bool:
        """Return whether a path, or a directory above it, is ignored."""
        rules = self._load_rules(parent_of(path))
        return rules is None or rules.ignores(path, is_directory=is_directory)

    def _load_rules(self, directory: str) -> IgnoreRules | None:
        """Return the rules in a directory; None if the directory is ignored."""
        if directory not in self._rules:
            self._rules[directory] = self._read_rules(directory)
        return self._rules[directory]

    def _read_rules(self, directory: str) -> IgnoreRules | None:
        rules = self._load_rules(parent_of(directory)) if directory else IgnoreRules()
        if rules is None or (directory and rules.ignores(directory, is_directory=True)):
            return None
        texts: list[str] = []
        for name in IGNORE_FILES:
            with suppress(OSError):
                page = self._filesystem.read_bytes(join(directory, name), limit=MAX_IGNORE_FILE)
                texts.append(page.content.decode("utf-8-sig", "replace"))
        return rules.child(directory, "\n".join(texts))


FILE_TYPES: dict[str, tuple[str, ...]] = {
    "asm": ("*.asm", "*.s", "*.S"),
    "bazel": ("*.bzl", "*.bazel", "BUILD", "WORKSPACE"),
    "c": ("*.c", "*.h", "*.H", "*.cats"),
    "clojure": ("*.clj", "*.cljc", "*.cljs", "*.cljx", "*.edn"),
    "cmake": ("*.cmake", "CMakeLists.txt"),
    "config": ("*.cfg", "*.conf", "*.config", "*.ini"),
    "cpp": ("*.cpp", "*.cc", "*.cxx", "*.C", "*.h", "*.hh", "*.hpp", "*.hxx", "*.H", "*.inl"),
    "cs": ("*.cs",),
    "css": ("*.css", "*.scss"),
    "csv": ("*.csv", "*.tsv"),
    "cython": ("*.pyx", "*.pxd", "*.pxi"),
    "dart": ("*.dart",),
    "docker": ("*Dockerfile*",),
    "elixir": ("*.ex", "*.exs", "*.eex", "*.heex"),
    "elm": ("*.elm",),
    "erlang": ("*.erl", "*.hrl"),
    "fortran": ("*.f", "*.f77", "*.f90", "*.f95", "*.F", "*.F90"),
    "fsharp": ("*.fs", "*.fsi", "*.fsx"),
    "go": ("*.go",),
    "gradle": ("*.gradle", "*.gradle.kts", "gradle.properties"),
    "graphql": ("*.graphql", "*.graphqls"),
    "groovy": ("*.groovy", "*.gradle"),
    "h": ("*.h", "*.hh", "*.hpp"),
    "haskell": ("*.hs", "*.lhs", "*.cabal"),
    "html": ("*.html", "*.htm", "*.ejs"),
    "java": ("*.java", "*.jsp", "*.jspx", "*.properties"),
    "js": ("*.js", "*.jsx", "*.mjs", "*.cjs", "*.vue"),
    "json": ("*.json", "*.jsonl", "*.sarif"),
    "julia": ("*.jl",),
    "jupyter": ("*.ipynb",),
    "kotlin": ("*.kt", "*.kts"),
    "less": ("*.less",),
    "license": ("LICENSE*", "COPYING*", "NOTICE*"),
    "lisp": ("*.lisp", "*.lsp", "*.el", "*.cl"),
    "log": ("*.log",),
    "lua": ("*.lua",),
    "make": ("Makefile", "makefile", "GNUmakefile", "*.mk", "*.mak"),
    "markdown": ("*.md", "*.markdown", "*.mdown", "*.mkd", "*.mdx"),
    "matlab": ("*.m",),
    "nix": ("*.nix",),
    "objc": ("*.m", "*.h"),
    "ocaml": ("*.ml", "*.mli", "*.mll", "*.mly"),
    "perl": ("*.pl", "*.pm", "*.t", "*.perl"),
    "php": ("*.php", "*.phtml"),
    "protobuf": ("*.proto",),
    "ps": ("*.ps1", "*.psm1", "*.psd1"),
    "py": ("*.py", "*.pyi"),
    "r": ("*.R", "*.r", "*.Rmd", "*.Rnw"),
    "rst": ("*.rst",),
    "ruby": ("*.rb", "*.gemspec", "Gemfile", "Rakefile", "config.ru"),
    "rust": ("*.rs",),
    "sass": ("*.sass", "*.scss"),
    "scala": ("*.scala", "*.sbt"),
    "sh": ("*.sh", "*.bash", "*.zsh", "*.ksh", "*.fish", ".bashrc", ".profile", ".zshrc"),
    "sql": ("*.sql", "*.psql"),
    "svelte": ("*.svelte", "*.svelte.ts"),
    "svg": ("*.svg",),
    "swift": ("*.swift",),
    "tex": ("*.tex", "*.ltx", "*.cls", "*.sty", "*.bib"),
    "tf": ("*.tf", "*.tfvars", "*.hcl"),
    "toml": ("*.toml", "Cargo.lock"),
    "ts": ("*.ts", "*.tsx", "*.cts", "*.mts"),
    "txt": ("*.txt",),
    "vim": ("*.vim", ".vimrc"),
    "vue": ("*.vue",),
    "xml": ("*.xml", "*.xsd", "*.xsl", "*.xslt", "*.rng"),
    "yaml": ("*.yaml", "*.yml"),
    "zig": ("*.zig",),
}
"""The globs of each file type, under the names that ripgrep uses."""
_TYPE_ALIASES = {
    "bash": "sh", "c++": "cpp", "csharp": "cs", "c#": "cs", "cxx": "cpp", "dockerfile": "docker",
    "golang": "go", "hs": "haskell", "ini": "config", "javascript": "js", "jsx": "js",
    "kt": "kotlin", "md": "markdown", "ml": "ocaml", "powershell": "ps", "proto": "protobuf",
    "python": "py", "rb": "ruby", "rs": "rust", "shell": "sh", "terraform": "tf", "tsx": "ts",
    "typescript": "ts", "yml": "yaml",
}  # fmt: skip


def type_globs(name: str) -> tuple[str, ...]:
    """Return the globs of a file type."""
    key = name.strip().lower().removeprefix(".")
    key = _TYPE_ALIASES.get(key, key)
    if key in FILE_TYPES:
        return FILE_TYPES[key]
    near = difflib.get_close_matches(key, [*FILE_TYPES, *_TYPE_ALIASES], 1, _MIN_SIMILARITY)
    suggestion = f"; did you mean {near[0]!r}?" if near else ""
    raise ToolValidationError(
        f"Unknown file type: {name[:80]!r}{suggestion}; known types: {', '.join(FILE_TYPES)}"
    )


_CHUNK = 1024 * 1024  # bytes read at once
_MAX_MISSED_PATHS = 10  # paths kept of files that were not searched


@dataclass(frozen=True, slots=True)
class Search:
    """A search: the pattern, and the files to look in.

    Args:
        pattern: The regular expression for the engine.
        path: A directory or a file.
        glob: A glob for the filesystem's own search.
        predicate: A further filter on paths relative to `path`; None accepts all.
        ignore: Apply ignore files.
    """

    pattern: str
    path: str = ""
    glob: str | None = None
    predicate: Callable[[str], bool] | None = None
    ignore: bool = True

    def relative(self, path: str) -> str:
        """Return a path relative to the searched directory, as filters expect it."""
        if path == self.path:
            return path.rpartition("/")[2]
        return path[len(self.path) + 1 :] if self.path else path

    def accepts(self, path: str) -> bool:
        """Return whether the predicate accepts a path."""
        return self.predicate is None or self.predicate(self.relative(path))


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits: matches to keep per file, matches to count per file, and matches in total."""

    keep: int
    stop: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class FileHits:
    """The first matches in a file, and their count; `more` if counting stopped early.

    `timed_out` means that the file was not searched to its end.
    """

    path: str
    matches: Sequence[GrepMatch]
    count: int
    more: bool = False
    timed_out: bool = False


class Hits:
    """An iterable of the files with matches, sorted by path, found on demand.

    Afterwards `timed_out` says whether files were skipped for lack of time, and
    `coverage` what was searched and what was not.
    """

    def __init__(self, search: Search, limits: SearchLimits, filesystem: Filesystem) -> None:
        """Search `filesystem`."""
        self.search: Search = search
        self._limits = limits
        self._filesystem = filesystem
        self.timed_out: bool = False
        self.coverage: Coverage = Coverage()

    def __iter__(self) -> Iterator[FileHits]:
        """Yield the files with matches."""
        search, limits = self.search, self._limits
        simple = search.predicate is None and limits.total is not None and limits.stop is None
        found = find_lines(
            self._filesystem,
            search.pattern,
            path=search.path,
            glob=search.glob,
            most=limits.total if simple else None,
            ignore=search.ignore,
        )
        last = found[-1].path if found else ""
        enough = limits.total is not None and simple and len(found) >= limits.total
        continues = found.truncated and found.reason != "time limit" and not enough
        self._add_coverage(found.coverage, before=None if found.reason == "time limit" else last)
        known = FileHits(last, (), 0)  # the hits in the last file so far
        for path, group in groupby(found, key=lambda match: match.path):
            if search.accepts(path):
                known = _limit_hits(path, list(group), limits)
                if not (continues and path == last):
                    yield known
        if continues:
            yield from self._search_rest(known if known.path == last else FileHits(last, (), 0))

    def _search_rest(self, last: FileHits) -> Iterator[FileHits]:
        """Yield the files with matches from `last` on; they are listed only now."""
        searcher = compile_regex(self.search.pattern, DEFAULT_LIMITS)
        paths = self._list_remaining(last.path)
        for number, path in enumerate(paths):
            if is_time_up():
                self._add_missed(paths[number:])
                if path == last.path:
                    yield last
                return
            seconds = share_of_time(len(paths) - number - 1)
            found = _search_file(path, searcher, self._limits, self._filesystem, seconds)
            if found.timed_out and path == last.path and found.count < last.count:
                found = replace(last, timed_out=True)
            if found.timed_out:
                self._add_missed([path])
            else:
                self.coverage = replace(self.coverage, searched=self.coverage.searched + 1)
            if found.count:
                yield found

    def _list_remaining(self, last: str) -> list[str]:
        """Return the files to search from `last` on."""
        search = self.search
        paths = [last] if last and search.accepts(last) else []
        if last == search.path != "":
            return paths
        fits = None if search.glob is None else compile_filter(search.glob)
        try:
            found = find_files(self._filesystem, "**", path=search.path, ignore=search.ignore)
        except TimeLimitError:
            self._add_coverage(Coverage(0, 0, 1, (f"{search.path or '.'}/",)), before=None)
            return paths
        if found.reason == "time limit":
            self._add_coverage(replace(found.coverage, searched=0), before=None)
        for match in found:
            path = match.path
            if not match.is_file or path <= last or not search.accepts(path):
                continue
            if fits is None or fits(search.relative(path)):
                paths.append(path)
        return paths

    def _add_coverage(self, coverage: Coverage, *, before: str | None) -> None:
        """Add the coverage of a search; files that are not `before` a path are searched later."""
        missed = coverage.missed_paths
        files = coverage.missed_files
        if before is not None:
            missed = tuple(each for each in missed if each < before or each.endswith("/"))
            files = sum(not each.endswith("/") for each in missed)
        self.timed_out = self.timed_out or bool(missed or coverage.missed_directories)
        self.coverage = Coverage(
            self.coverage.searched + coverage.searched,
            self.coverage.missed_files + files,
            self.coverage.missed_directories + coverage.missed_directories,
            tuple(dict.fromkeys((*self.coverage.missed_paths, *missed)))[:_MAX_MISSED_PATHS],
        )

    def _add_missed(self, paths: Sequence[str]) -> None:
        """Add files that were skipped for lack of time."""
        self._add_coverage(
            Coverage(0, len(paths), 0, tuple(paths[:_MAX_MISSED_PATHS])), before=None
        )


def _limit_hits(path: str, matches: Sequence[GrepMatch], limits: SearchLimits) -> FileHits:
    count, more = len(matches), False
    if limits.stop is not None and count > limits.stop:
        count, more = limits.stop, True
    return FileHits(path, matches[: min(limits.keep, count)], count, more)


def _search_file(
    path: str, searcher: Searcher, limits: SearchLimits, filesystem: Filesystem, seconds: float
) -> FileHits:
    """Return the hits in one file, as far as time allows; none if the file is gone."""
    try:
        content = _open_content(filesystem, path)
        with nullcontext() if isinstance(content, BytesContent) else time_limit(seconds):
            return _collect_hits(path, content, searcher, limits)
    except TimeLimitError:
        return FileHits(path, (), 0, timed_out=True)
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return FileHits(path, (), 0)


def _collect_hits(
    path: str, content: Content, searcher: Searcher, limits: SearchLimits
) -> FileHits:
    matches: list[GrepMatch] = []
    count = 0
    try:
        for line in searcher.lines(content):
            if count == limits.stop:
                return FileHits(path, matches, count, more=True)
            count += 1
            if count <= limits.keep:
                matches.append(
                    GrepMatch(
                        path, line.line_number, line.line_content, line.match_start, line.match_end
                    )
                )
    except TimeLimitError:
        return FileHits(path, matches, count, timed_out=True)
    return FileHits(path, matches, count)


def _open_content(filesystem: Filesystem, path: str) -> Content:
    page = filesystem.read_bytes(path, limit=_CHUNK)
    if len(page.content) >= page.size_bytes:
        return BytesContent(page.content)
    return WorkspaceContent(filesystem, path, page.size_bytes)
