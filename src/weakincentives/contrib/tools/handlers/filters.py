"""Filters on paths: what to leave out."""

import difflib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.render import format_path
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import Filesystem, GlobMatch, GrepMatch, IgnoreAware, Results
from weakincentives.filesystem.base import (
    IGNORE_FILES,
    MAX_IGNORE_FILE,
    IgnoreRules,
    Predicate,
    compile_filter,
)
from weakincentives.posix import join, parent_of, parents_of

_SHOWN = 200


def leaving_out(patterns: Iterable[str]) -> Predicate | None:
    """Return the test for paths that neither match nor lie below something that does.

    A pattern without `/` is about names at any depth. None if there are no patterns.

    Raises:
        InvalidGlobError: One of them cannot be.
    """
    tests = [_below(pattern) for pattern in patterns if pattern]
    if not tests:
        return None
    return lambda path: (
        not any(matches(each) for each in (path, *parents_of(path)) for matches in tests)
    )


def below(context: HandlerContext, pattern: str, path: str) -> str:
    """Return a pattern as it counts from `path`; it may have been given from the root.

    Raises:
        ToolValidationError: It begins at the root and leads elsewhere.
    """
    root = context.filesystem.root.rstrip("/")
    if root and f"{pattern}/".startswith(f"{root}/"):
        pattern = pattern[len(root) :] or "/"
    if not pattern.startswith("/"):
        return pattern
    inside = pattern.strip("/") if pattern.strip("/") == path else pattern.lstrip("/")
    if path and not f"{inside}/".startswith(f"{path}/"):
        raise ToolValidationError(
            f"Pattern begins at the top of the workspace and leads out of {format_path(path)!r}:"
            f" {pattern[:_SHOWN]!r}; look in '.', or begin it at the directory"
        )
    return inside[len(path) :].lstrip("/") or "**"


def all_of(tests: Sequence[Predicate]) -> Predicate | None:
    """Return the test that is passed by what passes all of several; None if there are none."""
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda path: all(test(path) for test in tests)


def _below(pattern: str) -> Predicate:
    """Return the test for what a pattern names; a directory, however it is written."""
    directory = pattern.removesuffix("**").rstrip("/") if pattern.endswith("/**") else pattern
    return compile_filter(directory.rstrip("/") or pattern)


T = TypeVar("T")


def find_files(
    filesystem: Filesystem, pattern: str, *, path: str, ignore: bool
) -> Results[GlobMatch]:
    """Return what matches a glob below `path`, sorted."""
    place = path or "."
    searcher = _ignore_aware(filesystem)
    if searcher is not None:
        return searcher.glob(pattern, path=place, use_ignore_files=ignore)
    found = filesystem.glob(pattern, path=place)
    truncated = bool(getattr(found, "truncated", False))
    if not ignore:
        return _kept(found, found, truncated)
    ignored = _Ignored(filesystem)
    directories = pattern.endswith("/")
    kept = [each for each in found if not ignored.leaves_out(each.path, directories)]
    return _kept(kept, found, truncated)


def find_lines(
    filesystem: Filesystem,
    pattern: str,
    *,
    path: str,
    glob: str | None,
    most: int | None,
    ignore: bool,
) -> Results[GrepMatch]:
    """Return lines that match below `path`, sorted; `truncated` if there may be more."""
    place = path or "."
    searcher = _ignore_aware(filesystem)
    if searcher is not None:
        return searcher.grep(
            pattern, path=place, glob=glob, max_matches=most, use_ignore_files=ignore
        )
    found = filesystem.grep(pattern, path=place, glob=glob, max_matches=most)
    # others may cut without a word: an answer as long as asked for may be a part
    truncated = bool(getattr(found, "truncated", most is not None and len(found) >= most))
    if not ignore:
        return _kept(found, found, truncated)
    ignored = _Ignored(filesystem)
    kept = [each for each in found if each.path == path or not ignored.leaves_out(each.path)]
    return _kept(kept, found, truncated)


def _ignore_aware(filesystem: object) -> IgnoreAware | None:
    return filesystem if isinstance(filesystem, IgnoreAware) else None


def _kept(kept: Sequence[T], found: Sequence[T], truncated: bool) -> Results[T]:
    """Return what is kept of what was found; why there is no more stays known, if it was."""
    if isinstance(found, Results):
        return Results(kept, truncated=truncated, reason=found.reason, coverage=found.coverage)
    return Results(kept, truncated=truncated)


class _Ignored:
    """Which paths the ignore files of a filesystem leave out; remembers each directory."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self._rules: dict[str, IgnoreRules | None] = {}

    def leaves_out(self, path: str, is_directory: bool = False) -> bool:
        """Whether a path, or a directory above it, is left out."""
        rules = self._rules_of(parent_of(path))
        return rules is None or rules.ignores(path, is_directory=is_directory)

    def _rules_of(self, directory: str) -> IgnoreRules | None:
        """Return the rules in a directory; None if it is left out itself."""
        if directory not in self._rules:
            self._rules[directory] = self._read(directory)
        return self._rules[directory]

    def _read(self, directory: str) -> IgnoreRules | None:
        rules = self._rules_of(parent_of(directory)) if directory else IgnoreRules()
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
"""The names that ripgrep gives to types of files, and how their files are called."""
_OTHER_NAMES = {
    "bash": "sh", "c++": "cpp", "csharp": "cs", "c#": "cs", "cxx": "cpp", "dockerfile": "docker",
    "golang": "go", "hs": "haskell", "ini": "config", "javascript": "js", "jsx": "js",
    "kt": "kotlin", "md": "markdown", "ml": "ocaml", "powershell": "ps", "proto": "protobuf",
    "python": "py", "rb": "ruby", "rs": "rust", "shell": "sh", "terraform": "tf", "tsx": "ts",
    "typescript": "ts", "yml": "yaml",
}  # fmt: skip


def globs_of(name: str) -> tuple[str, ...]:
    """Return the globs of a type of files.

    Raises:
        ToolValidationError: No type is called so; it says which are.
    """
    key = name.strip().lower().removeprefix(".")
    key = _OTHER_NAMES.get(key, key)
    if key in FILE_TYPES:
        return FILE_TYPES[key]
    near = difflib.get_close_matches(key, [*FILE_TYPES, *_OTHER_NAMES], 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise ToolValidationError(
        f"Type of files is not known: {name[:80]!r}{meant}; known are {', '.join(FILE_TYPES)}"
    )
