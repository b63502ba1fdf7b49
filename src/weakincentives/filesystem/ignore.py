"""Ignore rules of `.gitignore` and `.ignore` files, with git's semantics.

The last rule that matches a path decides, inner files before outer ones, and nothing below an
ignored directory can be re-included. A walk therefore checks each path by itself and does not
descend into ignored directories.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from weakincentives.filesystem.glob import Glob, InvalidGlobError

IGNORE_FILES = (".gitignore", ".ignore")
MAX_IGNORE_FILE = 256 * 1024  # bytes of an ignore file that are read
_MAX_LINE = 4_096


@dataclass(frozen=True, slots=True)
class _Rule:
    """One line of an ignore file; it matches a name, or a path below its directory."""

    matches: Callable[[str], bool]
    by_name: bool
    directories_only: bool
    ignores: bool


class IgnoreRules:
    """The rules that apply in one directory: its own, then those of the directories above."""

    __slots__ = ("_files",)

    def __init__(self, files: tuple[tuple[int, tuple[_Rule, ...]], ...] = ()) -> None:
        """Hold the rules of `files`, innermost first, each with the length of its prefix."""
        self._files = files

    def __bool__(self) -> bool:
        """Whether there are any rules."""
        return bool(self._files)

    def child(self, directory: str, text: str | None) -> "IgnoreRules":
        """Return the rules for `directory`, whose ignore files contain `text`."""
        rules = _parse_rules(text) if text else ()
        if not rules:
            return self
        return IgnoreRules(((len(directory) + 1 if directory else 0, rules), *self._files))

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Whether `path` is ignored, given that its parents are not; `.git` always is."""
        name = path.rpartition("/")[2]
        if name == ".git":
            return True
        for start, rules in self._files:
            below = path[start:]
            for rule in rules:
                if rule.directories_only and not is_directory:
                    continue
                if rule.matches(name if rule.by_name else below):
                    return rule.ignores
        return False


@lru_cache(maxsize=128)
def _parse_rules(text: str) -> tuple[_Rule, ...]:
    """Parse an ignore file; the last rule comes first, since it decides."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return tuple(rule for line in dict.fromkeys(reversed(lines)) for rule in _parse_rule(line))


def _parse_rule(line: str) -> Iterator[_Rule]:
    """Yield the rule in `line`, if any; like git, skip invalid lines."""
    pattern = _strip_trailing_blanks(line)
    if not pattern or pattern.startswith("#") or len(pattern) > _MAX_LINE:
        return
    ignores = not pattern.startswith("!")
    pattern = pattern if ignores else pattern[1:]
    directories_only = pattern.endswith("/")
    pattern = pattern.removesuffix("/")
    segments = pattern.removeprefix("/").split("/")
    if segments == [""] or _ends_in_escape(pattern):
        return
    try:
        glob = Glob([_collapse(segments)], directories_only=False)
    except InvalidGlobError:
        return
    by_name = "/" not in pattern
    matches = glob.accepts(glob.start) if by_name else glob.matches
    yield _Rule(matches, by_name, directories_only, ignores)


def _collapse(segments: list[str]) -> list[str]:
    """Collapse runs of `**` into one."""
    pairs = zip(segments, ["", *segments], strict=False)
    return [segment for segment, before in pairs if not segment == before == "**"]


def _strip_trailing_blanks(line: str) -> str:
    kept = line.rstrip(" ")
    return kept + " " if _ends_in_escape(kept) and kept != line else kept


def _ends_in_escape(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1
