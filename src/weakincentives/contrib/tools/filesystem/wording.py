"""How sizes, counts and paths are said to a model."""

from collections.abc import Iterable

from weakincentives.filesystem import Coverage
from weakincentives.filesystem.paths import brief, shown

_NAMED = 3  # paths that are named of those that were left out
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def size_text(size: int) -> str:
    """Return a size for people: "312 bytes", "4.1 kB", "5.2 MB"."""
    if size < 1_000:
        return counted(size, "byte")
    amount, unit = float(size), 0
    while amount >= 999.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1_000, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 file", "1,204 files"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def named(path: str) -> str:
    """Return a path as it is shown in a sentence: bounded, what cannot be seen escaped."""
    return shown(brief(path))


def missed(coverage: Coverage, how: str) -> str:
    """Return what a search left out: "; not searched: 2 files and 1 directory (a, b, c/)"."""
    parts = [counted(coverage.missed_files, "file")] if coverage.missed_files else []
    if coverage.missed_directories:
        parts.append(counted(coverage.missed_directories, "directory", "directories"))
    if not parts:
        return ""
    names = [named(each) for each in coverage.missed_paths[:_NAMED]]
    more = ", ..." if coverage.missed_files + coverage.missed_directories > len(names) else ""
    return f"; {how}: {' and '.join(parts)} ({', '.join(names)}{more})"


def listed(words: Iterable[str], conjunction: str = "or") -> str:
    """Return words as a sentence has them: "a, b or c"."""
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def hint(text: str, call: str | None) -> str:
    """Return a hint that ends in a call, or nothing where no tool can be called so."""
    return "" if call is None else f"{text} {call}"


def fitted(parts: Iterable[str], foot: str, budget: int) -> str:
    """Return a message of at most `budget` characters; its foot stays if there is any room."""
    text = "\n".join([*parts, foot] if foot else parts)
    if len(text) <= budget:
        return text
    room = budget - len(foot) - 1
    return f"{text[:room]}\n{foot}" if foot and room > 0 else text[:budget]


def room_in(budget: int, margin: int) -> int:
    """Return the characters left for content; half of a small budget at least."""
    return max(budget - margin, budget // 2)


def taken(lines: Iterable[str], room: int) -> list[str]:
    """Return the first lines that fit into `room` characters with their line ends."""
    kept: list[str] = []
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return kept
