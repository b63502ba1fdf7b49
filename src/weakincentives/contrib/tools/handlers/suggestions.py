"""Suggestions: existing paths that a model may have meant by a missing one.

A suggestion that is not near costs a model more than none: it reads the wrong file. Names are
compared word by word, so that a shared extension or prefix (`test_`, `.py`) does not make two
names similar.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from itertools import takewhile

from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.search import find_files
from weakincentives.filesystem import time_limit
from weakincentives.posix import join, parent_of

_MAX_SUGGESTIONS = 3
_MAX_COMPARED = 2_000  # names per directory: the comparison is slow
_MAX_NAME = 100  # longest name to look for in other directories
_SUGGESTION_TIMEOUT = 1.0
_MIN_SIMILARITY = 0.75  # of two words
_MIN_TYPO = 5  # letters of a word in which another letter is a typo, and not another word
_MIN_ABBREVIATION = 3
_GLOB_SPECIAL = re.compile(r"[*?\[\]{}\\!,]")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[^\W\d_]+|\d+")


def similar_paths(context: HandlerContext, path: str) -> tuple[str, ...]:
    """Return existing paths that are similar to a missing one, the closest first."""
    found: dict[str, None] = {}
    with suppress(OSError, ValueError), time_limit(_SUGGESTION_TIMEOUT):
        found.update(dict.fromkeys(_similar_names(context, path)))
        if len(found) < _MAX_SUGGESTIONS:
            found.update(dict.fromkeys(_same_name(context, path)))
    return tuple(found)[:_MAX_SUGGESTIONS]


def nearest_directory(context: HandlerContext, path: str) -> str:
    """Return the closest existing parent directory of `path`."""
    directory = parent_of(path)
    while directory:
        with suppress(OSError):
            if context.filesystem.stat(directory).is_directory:
                return directory
        directory = parent_of(directory)
    return ""


def near_names(wrong: str, names: Iterable[str]) -> list[str]:
    """Return the names that `wrong` may stand for, the closest first, at most three."""
    near = [name for name in names if _is_near(wrong, name)]
    return sorted(near, key=lambda name: (-_similarity(wrong, name), name))[:_MAX_SUGGESTIONS]


def ignore_case(pattern: str) -> str:
    """Return a glob that ignores case."""
    return "".join(map(_both_cases, pattern))


def _similar_names(context: HandlerContext, path: str) -> Iterator[str]:
    """Yield paths with the first missing segment replaced by a similar name."""
    directory = nearest_directory(context, path)
    rest = path[len(directory) :].lstrip("/")
    wrong, _, below = rest.partition("/")
    entries = context.filesystem.list(directory or ".")[:_MAX_COMPARED]
    for name in near_names(wrong, [each.name for each in entries]):
        candidate = join(directory, name)
        if below:
            candidate = f"{candidate}/{below}"
        if not below or context.filesystem.exists(candidate):
            yield candidate


def _is_near(wrong: str, name: str) -> bool:
    if _fold(wrong) == _fold(name):
        return True
    wrong_stem, wrong_suffix = _split(wrong)
    stem, suffix = _split(name)
    mine, others = _words(wrong_stem), _words(stem)
    if "".join(mine) == "".join(others) != "":
        return True
    if wrong_suffix and suffix and _fold(wrong_suffix) != _fold(suffix):
        return False
    return _words_match(mine, others)


def _split(name: str) -> tuple[str, str]:
    """Return the stem and the extension of a name; a leading dot begins the stem."""
    stem, dot, suffix = name.rpartition(".")
    return (stem, suffix) if dot and stem else (name, "")


def _words(stem: str) -> list[str]:
    return [_fold(each) for each in _WORD.findall(_CAMEL_CASE.sub(" ", stem))]


def _words_match(some: Sequence[str], others: Sequence[str]) -> bool:
    """Return whether each word of the shorter list is in the other, which has one more at most."""
    few, many = sorted((some, others), key=len)
    left = list(many)
    for word in few:
        match = next((each for each in left if _is_near_word(word, each)), None)
        if match is None:
            return False
        left.remove(match)
    return bool(few) and len(left) <= 1


def _is_near_word(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    if short == long:
        return True
    if short.isdigit() or long.isdigit():
        return False
    if len(short) >= _MIN_ABBREVIATION and long.startswith(short):
        return True
    if len(short) * 2 >= len(long) and _is_subsequence(short, long):
        return True
    if sorted(short) == sorted(long):
        return short[0] == long[0]
    return len(short) >= _MIN_TYPO and _similarity(short, long) >= _MIN_SIMILARITY


def _is_subsequence(short: str, long: str) -> bool:
    letters = iter(long)
    return short[:1] == long[:1] and all(each in letters for each in short)


def _similarity(one: str, other: str) -> float:
    return SequenceMatcher(None, _fold(one), _fold(other), autojunk=False).ratio()


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _same_name(context: HandlerContext, path: str) -> list[str]:
    """Return files with the same name, ignoring case, in other directories."""
    name = path.rpartition("/")[2]
    if not name or len(name) > _MAX_NAME:
        return []
    pattern = "**/" + ignore_case(_GLOB_SPECIAL.sub(r"\\\g<0>", name))
    matches = find_files(context.filesystem, pattern, path="", ignore=True)
    paths = [each.path for each in matches if each.path != path]
    return sorted(paths, key=lambda each: -_common_suffix(each, path))[:_MAX_SUGGESTIONS]


def _common_suffix(one: str, other: str) -> int:
    """Return the number of trailing segments that two paths share."""
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: _fold(pair[0]) == _fold(pair[1]), pairs))


def _both_cases(character: str) -> str:
    lower, upper = character.lower(), character.upper()
    alone = lower == upper or len(lower) + len(upper) > 2
    return character if alone else f"[{lower}{upper}]"
