"""Programming languages by file name, and what kinds of files a repository consists of."""

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
