"""Syntax highlighting: source text as lines of tokens, each with a short class name.

Tokens are data; the page turns them into elements by itself, so no markup is ever sent.
"""

import re
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TypeAlias

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name  # pyright: ignore[reportUnknownVariableType] # untyped options
from pygments.token import STANDARD_TYPES

from weakincentives.characters import strip_escapes

Token: TypeAlias = tuple[str, str]
"""A class name, empty for plain text, and the text."""
MAX_HIGHLIGHTED = 256 * 1024
"""Characters of a text that is highlighted; a longer one is shown plain."""
_MAX_LINE = 2_000  # characters; minified code is not worth it
_SECONDS = 0.5

# The names that are worth highlighting. Lexers are chosen by name only, and exotic ones are not
# used at all: their regular expressions take exponential time for some inputs.
_LEXERS = {
    "bash": ".sh .bash .zsh .envrc",
    "c": ".c .h",
    "cpp": ".cc .cpp .cxx .hh .hpp",
    "css": ".css",
    "docker": "Dockerfile Containerfile",
    "go": ".go",
    "html": ".html .htm",
    "ini": ".ini .cfg .conf .editorconfig .gitconfig",
    "java": ".java",
    "javascript": ".js .mjs .cjs .jsx",
    "json": ".json .jsonl .ipynb",
    "lua": ".lua",
    "make": ".mk Makefile GNUmakefile",
    "markdown": ".md .markdown",
    "php": ".php",
    "python": ".py .pyi .pyw",
    "ruby": ".rb Gemfile Rakefile",
    "rust": ".rs",
    "sql": ".sql",
    "toml": ".toml",
    "typescript": ".ts .tsx .mts",
    "xml": ".xml .svg .xsl",
    "yaml": ".yml .yaml",
    "diff": ".diff .patch",
}
_BY_ENDING = {ending: name for name, endings in _LEXERS.items() for ending in endings.split()}


def language_of(path: str) -> str | None:
    """Return the language of a file by its name, or None."""
    name = PurePosixPath(path)
    return _BY_ENDING.get(name.name) or _BY_ENDING.get(name.suffix.lower())


def path_of(language: str) -> str:
    """Return a name of a file whose language is that of a block of code, such as `python`."""
    endings = _LEXERS.get(language.lower(), f".{language}").split()
    return f"x{endings[0]}" if endings[0].startswith(".") else endings[0]


def highlight(path: str, text: str, *, colours: bool = True) -> list[list[Token]]:
    """Return the lines of a text as tokens; a line ends at a line feed and nowhere else.

    Without `colours` they are plain, which is a hundred times faster.
    """
    language = language_of(path)
    if (
        not colours
        or language is None
        or len(text) > MAX_HIGHLIGHTED
        or any(len(line) > _MAX_LINE for line in text.split("\n"))
    ):
        return plain(text)
    lines: list[list[Token]] = [[]]
    for name, value in _tokens(_lexer(language), text):
        first, *others = value.split("\n")
        if first:
            _append(lines[-1], name, first)
        lines += [[(name, other)] if other else [] for other in others]
    return lines[:-1] if text.endswith("\n") else lines


def highlight_output(text: str) -> list[Token]:
    """Return what a program printed in colours as tokens, whose classes name the colours."""
    first, *rest = _STYLE.split(text)
    tokens: list[Token] = []
    colour, is_bold = "", False
    for codes, piece in (("", first), *zip(rest[::2], rest[1::2], strict=True)):
        for code in _read_codes(codes):
            is_bold = code == 1 if code in _WEIGHTS else is_bold
            colour = _COLOURS.get(code, colour)
        if shown := strip_escapes(piece):
            _append(tokens, " t-".join(filter(None, (colour, "bold" * is_bold))), shown)
    return tokens


def _read_codes(text: str) -> list[int]:
    """Return the codes of a sequence for colours; of 256 colours, only the first 16 have a name."""
    codes = [int(each or 0) for each in text.split(";")]
    if codes[0] not in _EXTENDED:
        return codes
    is_named = len(codes) > 2 and codes[:2] == [_EXTENDED[0], _INDEXED] and codes[2] < 16
    return [30 + codes[2] % 8] if is_named else []


def plain(text: str) -> list[list[Token]]:
    """Return the lines of a text without highlighting."""
    lines = text.split("\n")
    if text.endswith("\n"):
        lines.pop()
    return [[("", line)] if line else [] for line in lines]


_STYLE = re.compile(r"\x1b\[((?:[0-9]{1,3}|;)*)m")
_WEIGHTS = (0, 1, 22)
_NAMES = {31: "red", 32: "green", 33: "yellow", 34: "blue", 35: "magenta", 36: "cyan"}
_COLOURS = dict.fromkeys((0, 30, 37, 39, 90, 97), "") | {
    code: name for first, name in _NAMES.items() for code in (first, first + 60)
}
_EXTENDED = (38, 48)  # of text, and behind it
_INDEXED = 5


def _append(line: list[Token], name: str, text: str) -> None:
    """Append a token to a line; it is joined with one of the same class before it."""
    if line and line[-1][0] == name:
        text = line.pop()[1] + text
    line.append((name, text))


def _tokens(lexer: Lexer, text: str) -> Iterator[Token]:
    """Yield the tokens; when time is up, the rest is plain."""
    stop = time.monotonic() + _SECONDS
    for start, kind, value in lexer.get_tokens_unprocessed(text):
        yield _class_name(kind), value
        if time.monotonic() > stop:
            yield "", text[start + len(value) :]
            return


@lru_cache(maxsize=256)
def _class_name(kind: tuple[str, ...]) -> str:
    """Return the short name that Pygments gives to a kind of token, or to its nearest parent."""
    for length in range(len(kind), 0, -1):
        name = _CLASS_NAMES.get(kind[:length])
        if name is not None:
            return name
    return ""


# a kind of token is a tuple: the names from the general to the special one
_CLASS_NAMES: dict[tuple[str, ...], str] = {
    tuple(kind): "" if name in {"p", "n", "w", "x", "err"} else name
    for kind, name in STANDARD_TYPES.items()
}


@lru_cache(maxsize=32)
def _lexer(language: str) -> Lexer:
    return get_lexer_by_name(language)
