"""Globs over path segments, matched by a finite automaton in linear time, without backtracking.

Each segment of a pattern is a state of the automaton, and a walk carries the set of active
states: a directory below which nothing can match is never opened. Inside a segment, the text
between two stars has a fixed width, so its first occurrence is always the right one.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import bracex

from weakincentives.errors import WinkError
from weakincentives.filesystem.paths import PathEscapeError

State: TypeAlias = frozenset[int]
"""The active states of a glob in one directory; if empty, nothing below can match."""
Predicate: TypeAlias = Callable[[str], bool]
_Atom: TypeAlias = tuple[str, str | None]  # a regex for one character; that character, if fixed
_MAX_EXPANSIONS = 1_000
_MAX_EXPANDED = 64 * 1024  # characters in all expansions together
_MAX_BRACES = 64  # bracex recurses once for each
_MAX_UNCLOSED = 64  # brackets: each costs a scan to the end
_MAX_CACHED_STATES = 1_024
_NAMED_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "ascii": "\0-\x7f",
    "blank": " \t",
    "cntrl": "\0-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@[-`{-~",
    "space": " \t\r\n\v\f",
    "upper": "A-Z",
    "word": "a-zA-Z0-9_",
    "xdigit": "0-9a-fA-F",
}
# one member of a character class: a named class, a character or a range
_MEMBER = re.compile(
    r"\[:(?P<named>[a-z]+):\]|(?P<low>\\.|[^\\]|\\\Z)(?:-(?P<high>\\.|[^\]\\]))?", re.DOTALL
)
_MAGIC = frozenset("*?[\\")


class InvalidGlobError(WinkError, ValueError):
    """The text is not a valid glob, or its braces expand to too much."""


class Glob:
    """A compiled pattern, to match directory by directory or a whole path at once."""

    __slots__ = ("_accepting", "_ends", "_segments", "directories_only", "start")

    def __init__(self, alternatives: Sequence[Sequence[str]], *, directories_only: bool) -> None:
        """Number the segments of all alternatives as states."""
        self.directories_only: bool = directories_only
        self._segments: list[Predicate | None] = []  # None is `**`
        self._ends: set[int] = set()
        self._accepting: dict[State, Predicate] = {}
        starts: list[int] = []
        for segments in alternatives:
            starts.append(len(self._segments))
            self._segments += [None if text == "**" else _segment(text) for text in segments]
            self._ends.add(len(self._segments) - 1)
        self.start: State = frozenset(at for first in starts for at in self._closure(first))

    def descend(self, state: State, name: str) -> State:
        """Return the states in the subdirectory `name`; empty if nothing below can match."""
        reached: set[int] = set()
        for at in state:
            segment = self._segments[at]
            if segment is None:
                reached.update(self._closure(at))
            elif at not in self._ends and segment(name):
                reached.update(self._closure(at + 1))
        return frozenset(reached)

    def accepts(self, state: State) -> Predicate:
        """Return the predicate for names in a directory with the states `state`."""
        found = self._accepting.get(state)
        if found is None:
            if len(self._accepting) >= _MAX_CACHED_STATES:
                self._accepting.clear()
            found = _any_of([self._segments[at] for at in state if self._is_last(at)])
            self._accepting[state] = found
        return found

    def matches(self, path: str) -> bool:
        """Whether the relative `path` matches, for any kind of entry."""
        state = self.start
        *directories, name = path.split("/")
        for directory in directories:
            state = self.descend(state, directory)
            if not state:
                return False
        return bool(self.accepts(state)(name))

    def _closure(self, at: int) -> Iterator[int]:
        """Yield the epsilon closure of `at`: `**` may match no segment."""
        yield at
        while self._segments[at] is None and at not in self._ends:
            at += 1
            yield at

    def _is_last(self, at: int) -> bool:
        if at in self._ends:
            return True
        # `a/**` does not match a file `a`, but `a/**/` does match the directory
        return self.directories_only and at + 1 in self._ends and self._segments[at + 1] is None


@lru_cache(maxsize=256)
def compile_glob(pattern: str, *, max_length: int = 4096) -> Glob:
    """Return the compiled form of `pattern`.

    Raises:
        InvalidGlobError: The pattern is empty or too long, or its braces expand to too much.
        PathEscapeError: The pattern leaves the base with `..`.
    """
    if not pattern:
        raise InvalidGlobError("Invalid glob: the pattern is empty")
    if len(pattern) > max_length:
        raise InvalidGlobError(
            f"Invalid glob: longer than {max_length} characters: {pattern[:40]!r}..."
        )
    plain: dict[tuple[str, ...], None] = {}
    directories: dict[tuple[str, ...], None] = {}
    for text in _expand(pattern):
        segments = tuple(_segments(text, pattern))
        if segments:
            (directories if text.endswith("/") else plain)[segments] = None
    if not plain and not directories:
        raise InvalidGlobError(f"Invalid glob: matches nothing below the base: {pattern!r}")
    return Glob(list(plain or directories), directories_only=not plain)


def glob_match(path: str, pattern: str) -> bool:
    """Return whether `path` matches; a pattern ending in `/` needs a path ending in `/`."""
    return _path_predicate(compile_glob(pattern))(path)


def compile_filter(pattern: str, *, max_length: int = 4096) -> Predicate:
    """Return a predicate for paths below a base; a pattern without `/` matches names at any depth.

    Raises:
        InvalidGlobError: The pattern is empty or too long, or its braces expand to too much.
        PathEscapeError: The pattern leaves the base with `..`.
    """
    glob = compile_glob(pattern, max_length=max_length)
    if "/" in pattern:
        return _path_predicate(glob)
    accepts = glob.accepts(glob.start)
    return lambda path: accepts(path.rpartition("/")[2])


def _path_predicate(glob: Glob) -> Predicate:
    if glob.directories_only:
        return lambda path: path.endswith("/") and glob.matches(path.strip("/"))
    return lambda path: glob.matches(path.strip("/"))


def _expand(pattern: str) -> Iterator[str]:
    if "{" not in pattern:
        yield pattern
        return
    if pattern.count("{") > _MAX_BRACES:
        raise InvalidGlobError(f"Invalid glob: more than {_MAX_BRACES} braces: {pattern[:40]!r}...")
    total = 0
    try:
        for text in bracex.iexpand(pattern, keep_escapes=True, limit=_MAX_EXPANSIONS):
            total += len(text)
            if total > _MAX_EXPANDED:
                raise InvalidGlobError(f"Invalid glob: braces expand to too much: {pattern!r}")
            yield text
    except (bracex.ExpansionLimitException, RecursionError) as error:
        raise InvalidGlobError(f"Invalid glob: braces expand to too much: {pattern!r}") from error


def _segments(text: str, pattern: str) -> list[str]:
    """Split one expansion into segments; `.` and empty ones collapse, as in paths."""
    kept: list[str] = []
    for segment in text.replace("\\/", "/").split("/"):
        if segment == "..":
            if not kept:
                raise PathEscapeError(f"Pattern escapes root: {pattern!r}")
            if not _MAGIC.isdisjoint(kept.pop()):
                raise InvalidGlobError(f"Invalid glob: '..' after a wildcard: {pattern!r}")
        elif segment not in {"", "."} and not (segment == "**" and kept[-1:] == ["**"]):
            kept.append(segment)
    return kept


def _any_of(tests: Sequence[Predicate | None]) -> Predicate:
    """Combine predicates for names into one; `**` matches every name."""
    if any(test is None or test is _match_any for test in tests):
        return _match_any
    kinds = [test for test in tests if test is not None]
    literals = {test.text for test in kinds if isinstance(test, _Literal)}
    suffixes = tuple(test.text for test in kinds if isinstance(test, _Suffix))
    rest = [test for test in kinds if not isinstance(test, _Literal | _Suffix)]
    if suffixes:
        # endswith is faster with a string than with a tuple of one
        wanted = suffixes[0] if len(suffixes) == 1 else suffixes
        rest.append(operator.methodcaller("endswith", wanted))
    if literals:
        rest.append(literals.__contains__)
    if len(rest) == 1:
        return rest[0]
    return lambda name: any(test(name) for test in rest)


@dataclass(frozen=True, slots=True)
class _Literal:
    """A segment without wildcards."""

    text: str

    def __call__(self, name: str) -> bool:
        return name == self.text


@dataclass(frozen=True, slots=True)
class _Suffix:
    """A star followed by text."""

    text: str

    def __call__(self, name: str) -> bool:
        return name.endswith(self.text)


def _match_any(_: str) -> bool:
    return True


@lru_cache(maxsize=1_024)
def _segment(text: str) -> Predicate:
    pieces = _pieces(text)
    if all(not piece for piece in pieces) and len(pieces) > 1:
        return _match_any
    if all(literal is not None for piece in pieces for _, literal in piece):
        words = ["".join(literal or "" for _, literal in piece) for piece in pieces]
        if len(words) == 1:
            return _Literal(words[0])
        if len(words) == 2 and not words[0]:
            return _Suffix(words[1])
    matched = re.compile(_regex(pieces), re.DOTALL).fullmatch
    return lambda name: matched(name) is not None


def _regex(pieces: list[list[_Atom]]) -> str:
    first, *middle = ["".join(atom for atom, _ in piece) for piece in pieces]
    if not middle:
        return first
    last = middle.pop()
    width = len(pieces[-1])
    found = "".join(f"(?>.*?{piece})" for piece in middle if piece)
    # the rest is consumed at once and checked by a lookbehind: no backtracking
    return f"{first}{found}(?>.{{{width},}})" + (f"(?<={last})" if last else "")


def _pieces(text: str) -> list[list[_Atom]]:
    """Parse a segment into the atoms between its stars."""
    pieces: list[list[_Atom]] = [[]]
    at = unclosed = 0
    while at < len(text):
        if text[at] == "*":
            pieces.append([])
            at += 1
            continue
        atom, at, failed = _atom(text, at)
        pieces[-1].append(atom)
        unclosed += failed
        if unclosed > _MAX_UNCLOSED:
            raise InvalidGlobError(f"Invalid glob: too many unclosed brackets: {text[:40]!r}...")
    return pieces


def _atom(text: str, at: int) -> tuple[_Atom, int, bool]:
    """Parse the atom at `at`; return it, the next position, and whether a class is unclosed."""
    character = text[at]
    at += 1
    failed = False
    if character == "?":
        return (".", None), at, failed
    if character == "[" and "]" in text[at + 1 :]:
        found = _class(text, at)
        if found is not None:
            return (found[0], None), found[1], failed
        failed = True
    elif character == "\\" and at < len(text):
        character = text[at]
        at += 1
    return (re.escape(character), character), at, failed


def _class(text: str, at: int) -> tuple[str, int] | None:
    """Parse the character class opened before `at`; return its regex and where it ends."""
    negated = text[at] in "!^"
    at += negated
    first, members = at, ""
    while at < len(text):
        if text[at] == "]" and at > first:
            return _set(members, negated=negated), at + 1
        found = _MEMBER.match(text, at)
        if found is None:
            break
        members += _member(found)
        at = found.end()
    return None


def _set(members: str, *, negated: bool) -> str:
    if not members:  # only ranges that run backwards
        return "." if negated else "(?!)."
    return f"[{'^' if negated else ''}{members}]"


def _member(found: re.Match[str]) -> str:
    named, low, high = found.group("named", "low", "high")
    if named is not None:
        return _NAMED_CLASSES.get(named, "")
    low = low[-1]
    if high is None:
        return re.escape(low)
    high = high[-1]
    return f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
