"""Programming languages by file name, and what of a repository is vendored or test data."""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Language(NamedTuple):
    """A language and the lexical family that its comments, strings and imports belong to."""

    name: str
    family: str
    """The key of the scanner for its sources; empty if the repository map leaves it out."""


def _languages(family: str, *names: tuple[str, str]) -> dict[str, Language]:
    return {
        suffix: Language(name, family) for name, suffixes in names for suffix in suffixes.split()
    }


_BY_SUFFIX = {
    **_languages("python", ("Python", "py pyi pyw")),
    **_languages("javascript", ("JavaScript", "js jsx mjs cjs")),
    **_languages("typescript", ("TypeScript", "ts mts cts")),
    **_languages("tsx", ("TypeScript", "tsx")),
    **_languages("go", ("Go", "go")),
    **_languages("rust", ("Rust", "rs")),
    **_languages("c", ("C", "c h")),
    **_languages("cpp", ("C++", "cc cpp cxx c++ hh hpp hxx h++ ipp inl")),
    **_languages("java", ("Java", "java")),
    **_languages("ruby", ("Ruby", "rb rake")),
    **_languages("php", ("PHP", "php")),
    **_languages("csharp", ("C#", "cs")),
    **_languages(
        "",
        ("Kotlin", "kt kts"),
        ("Scala", "scala sc"),
        ("Swift", "swift"),
        ("Objective-C", "m mm"),
        ("Shell", "sh bash zsh"),
        ("Perl", "pl pm"),
        ("Lua", "lua"),
        ("Haskell", "hs lhs"),
        ("OCaml", "ml mli"),
        ("Elixir", "ex exs"),
        ("Erlang", "erl hrl"),
        ("Clojure", "clj cljs cljc"),
        ("Lisp", "el lisp scm"),
        ("R", "r"),
        ("Julia", "jl"),
        ("Fortran", "f f90 f95"),
        ("Assembly", "s asm"),
        ("Zig", "zig"),
        ("Dart", "dart"),
        ("Cython", "pyx pxd pxi"),
        ("Vue", "vue"),
        ("Svelte", "svelte"),
        ("SQL", "sql"),
        ("CSS", "css scss sass less"),
        ("HTML", "html htm xhtml jinja j2"),
        ("Protocol Buffers", "proto"),
    ),
}
_DATA = _languages(
    "",
    ("Markdown", "md mdx markdown"),
    ("reStructuredText", "rst"),
    ("text", "txt"),
    ("JSON", "json json5 jsonl"),
    ("YAML", "yaml yml"),
    ("TOML", "toml"),
    ("INI", "ini cfg conf"),
    ("XML", "xml"),
    ("translations", "po pot mo"),
    ("images", "png jpg jpeg gif svg ico webp"),
    ("Jupyter notebooks", "ipynb"),
    ("snapshots", "snap"),
    ("source maps", "map"),
)
_OTHER = Language("other", "")
SOURCE_SUFFIXES = frozenset(suffix for suffix, each in _BY_SUFFIX.items() if each.family)
"""The suffixes of files that the repository map covers."""


def language_of(name: str) -> Language:
    """Return the language of the file `name`; `other` for one that is not known."""
    stem, dot, suffix = name.rpartition(".")
    suffix = suffix.lower()
    if not dot or not stem:
        return _OTHER
    if name.endswith((".min.js", ".min.css", ".d.ts.map")):
        return _OTHER
    return _BY_SUFFIX.get(suffix) or _DATA.get(suffix) or _OTHER


def is_code(language: Language) -> bool:
    """Whether the language is a programming language rather than data or prose."""
    return language.name in _CODE_NAMES


_CODE_NAMES = frozenset(each.name for each in _BY_SUFFIX.values())


# by name: directories of other people's code, and of data that looks like code
_VENDORED = re.compile(
    r"(?:^|/)(?:node_modules|bower_components|jspm_packages|web_modules|site-packages"
    r"|dist-packages|Pods|Carthage|third[_-]?party|vendored|_vendor|_vendored|\.yarn"
    r"|test[_-]?data|__fixtures__|__snapshots__)(?=/)"
    r"|^(?:vendor|external|externals|extern|deps)(?=/)"
    r"|(?:^|/)(?:tests?|testing|specs?)/(?:[^/]+/){0,8}?"
    r"(?:data|resources|corpus|golden|fixtures|snapshots|cassettes)(?=/)"
)
# what a package manager leaves in a directory that it fills, or in each package of it
_FILLED = frozenset({".package-lock.json", ".yarn-integrity", ".modules.yaml", "modules.txt"})
_PACKAGE = frozenset({".cargo-checksum.json"})
_OF_A_PACKAGE = re.compile(r"(?:licen[cs]e|copying|package\.json|cargo\.toml|go\.mod|setup\.py).*")


def find_vendored(paths: Iterable[str]) -> frozenset[str]:
    """Return the directories below which files are vendored, or are data of tests."""
    found: set[str] = set()
    for path in paths:
        directory, _, name = path.rpartition("/")
        parent = directory.rpartition("/")[0]
        if match := _VENDORED.search(path):
            found.add(path[: match.end()])
        elif name in _PACKAGE and directory:
            found.add(parent or directory)
        elif name in _FILLED and (name != "modules.txt" or directory.endswith("/vendor")):
            found.add(directory)
        elif "/vendor/" in directory and _OF_A_PACKAGE.fullmatch(name.lower()):
            found.add(f"{directory.partition('/vendor/')[0]}/vendor")
    return frozenset(found - {""})
