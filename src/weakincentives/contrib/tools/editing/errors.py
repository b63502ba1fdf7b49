"""The region of a document that is most like a text that was not found, and what differs.

The work is bounded for any text: a few rare lines or words of what was looked for vote
for where it might be, and only the winner is compared line by line.
"""

import html
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice

from weakincentives.contrib.tools.editing.confusables import plain
from weakincentives.contrib.tools.editing.format import clip, excerpt, format_line_numbers
from weakincentives.contrib.tools.editing.match import Matches, Wanted, find
from weakincentives.contrib.tools.editing.model import BLANKS, Document, EditError, MatchLevel

_MAX_VOTERS = 200  # lines of the text that vote
_MAX_PLACES = 200  # places in the document that one of them votes for
_MAX_WORDS = 12
_MAX_CANDIDATES = 20
_MAX_COMPARED = 300  # characters of a line, and lines of a region
_MARGIN = 3  # lines by which a region may be longer than what was looked for
_MAX_SHOWN = 12
_MAX_DIFFERENCES = 3
_MIN_LIKENESS = 0.5
_WORD = re.compile(r"\w{2,}")


@dataclass(frozen=True, slots=True)
class Region:
    """Lines `start` to `stop` of a document, counted from 0; `column` is where to look in them."""

    start: int
    stop: int
    column: int = 0


def closest_region(document: Document, lines: Sequence[str]) -> Region | None:
    """Return the lines of a document that are most like `lines`; None if nothing is like them."""
    if not document.lines or not any(line.strip() for line in lines):
        return None
    return _by_lines(document, lines) or _by_words(document, lines)


def differences(document: Document, region: Region, lines: Sequence[str]) -> list[str]:
    """Return sentences that say how a region differs from `lines`, the first ones only."""
    there = document.lines[region.start : region.stop][:_MAX_COMPARED]
    asked = list(lines[:_MAX_COMPARED])
    for key, sentence in _OVERLOOKED:
        if [key(line) for line in there] == [key(line) for line in asked]:
            return [sentence]
    if _visible(there) == _visible(asked):
        return ["Blank lines are elsewhere, or their number differs"]
    return list(islice(_told(there, asked, region), _MAX_DIFFERENCES))


def render_region(document: Document, region: Region) -> str:
    """Return the lines of a region with their numbers."""
    stop = min(region.stop, region.start + _MAX_SHOWN)
    listed = [
        f"{number + 1:>6}\t{clip(document.lines[number], around=region.column)}"
        for number in range(region.start, stop)
    ]
    if stop < region.stop:
        listed.append(f"   ... {region.stop - stop} more lines")
    return "\n".join(listed)


def _key(line: str) -> str:
    return " ".join(plain(line).casefold().split())


def _content(line: str) -> str:
    return line.strip(BLANKS)


def _plain_content(line: str) -> str:
    return plain(line).strip(BLANKS)


def _spaced(line: str) -> str:
    return " ".join(line.split())


_OVERLOOKED = (
    (_content, "Only the indentation differs, but not in the same way on every line"),
    (_plain_content, "Only the indentation and look-alike characters differ, but not in one way"),
    (_spaced, "Only the blanks within lines differ"),
    (_key, "Only upper and lower case differ, or blanks within lines"),
)


def _by_lines(document: Document, lines: Sequence[str]) -> Region | None:
    """Return the region for which whole lines vote, rare ones with more weight."""
    wanted: defaultdict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(lines):
        wanted[_key(line)].append(number)
    wanted.pop("", None)
    places: defaultdict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(document.plain_lines):
        key = " ".join(line.casefold().split())
        if key in wanted:
            places[key].append(number)
    votes: Counter[int] = Counter()
    for key in sorted(places, key=lambda key: (len(places[key]), key))[:_MAX_VOTERS]:
        found = places[key][:_MAX_PLACES]
        weight = (len(key) + 1) * 1000 // len(found)
        for number in wanted[key][:_MAX_DIFFERENCES]:
            votes.update({place - number: weight for place in found})
    if not votes:
        return None
    highest = max(votes.values())
    tied = sorted(start for start, vote in votes.items() if vote == highest)[:_MAX_CANDIDATES]
    start = max(tied, key=lambda start: (_resemblance(document, start, lines), -start))
    return _aligned(document, start, lines)


def _resemblance(document: Document, start: int, lines: Sequence[str]) -> float:
    """Return how much the first lines that differ are alike."""
    pairs = (
        (document.lines[start + number], line)
        for number, line in enumerate(lines[:_MAX_COMPARED])
        if 0 <= start + number < len(document.lines)
    )
    differing = islice(((a, b) for a, b in pairs if _key(a) != _key(b)), _MAX_DIFFERENCES)
    return sum(_likeness(there, asked.strip()[:_MAX_COMPARED], 0) for there, asked in differing)


def _aligned(document: Document, start: int, lines: Sequence[str]) -> Region:
    """Return the region about `start` that begins and ends as `lines` do, as far as they match."""
    whole = Region(max(start, 0), max(min(start + len(lines), len(document.lines)), 1))
    if [_key(line) for line in document.lines[whole.start : whole.stop]] == list(map(_key, lines)):
        return whole
    room = min(len(lines) // 4, _MAX_COMPARED) + _MARGIN
    first = max(start - room, 0)
    window = document.lines[first : start + min(len(lines), _MAX_COMPARED) + room]
    asked = _telling(lines[:_MAX_COMPARED], "asked")
    matcher = SequenceMatcher(None, _telling(window, "there"), asked, autojunk=False)
    blocks = matcher.get_matching_blocks()
    top, bottom = blocks[0], blocks[max(len(blocks) - 2, 0)]
    begin = _slid(document, first + top.a - top.b, lines[0], -1)
    last = _slid(document, first + bottom.a + len(lines) - bottom.b - 1, lines[-1], 1)
    return Region(begin, max(last, begin) + 1)


def _slid(document: Document, at: int, line: str, step: int) -> int:
    """Return the line near `at` that is like `line`, if one is, a few steps further at most."""
    at = min(max(at, 0), len(document.lines) - 1)
    for steps in range(_MARGIN + 1):
        further = at + steps * step
        if 0 <= further < len(document.lines) and _key(document.lines[further]) == _key(line):
            return further
    return at


def _telling(lines: Sequence[str], side: str) -> list[tuple[str, str]]:
    """Return keys of lines; those without a word, such as a bracket, are like no other."""
    return [
        ("", key) if _WORD.search(key) else (side, str(number))
        for number, key in enumerate(map(_key, lines))
    ]


def _by_words(document: Document, lines: Sequence[str]) -> Region | None:
    """Return the region whose line shares most words, rare ones above all, with the longest one."""
    longest = max(range(len(lines)), key=lambda number: len(lines[number].strip()))
    line = lines[longest].strip()[:_MAX_COMPARED]
    words = sorted(set(_WORD.findall(line)), key=lambda word: (-len(word), word))[:_MAX_WORDS]
    scores: Counter[int] = Counter()
    columns: dict[int, int] = {}
    for word in words:
        found = dict(islice(_occurrences(document, word), _MAX_PLACES))
        for number, column in found.items():
            scores[number] += len(word) * 1000 // len(found)  # rare ones tell more
            columns.setdefault(number, column)
    rated = [
        (_likeness(document.lines[number], line, columns[number]), -number)
        for number, _ in scores.most_common(_MAX_CANDIDATES)
    ]
    likeness, negative = max(rated, default=(0.0, 0))
    if likeness < _MIN_LIKENESS:
        return None
    start = max(-negative - longest, 0)
    stop = min(start + len(lines), len(document.lines))
    return Region(start, stop, columns[-negative])


def _occurrences(document: Document, word: str) -> Iterator[tuple[int, int]]:
    at = document.text.find(word)
    while at >= 0:
        number = document.line_at(at)
        yield number, at - document.starts[number]
        at = document.text.find(word, document.after(number))


def _likeness(line: str, asked: str, column: int) -> float:
    start = max(0, column - len(asked))
    part = line[start : start + _MAX_COMPARED].strip()
    # a short text may be looked for in a long line: what counts is how much of it is there
    matcher = SequenceMatcher(None, part, asked, autojunk=False)
    shared = sum(block.size for block in matcher.get_matching_blocks())
    return shared / max(len(asked), 1) if len(part) > 2 * len(asked) else matcher.ratio()


def _visible(lines: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()]


def _told(there: Sequence[str], asked: Sequence[str], region: Region) -> Iterator[str]:
    keys = [line.strip(BLANKS) for line in there], [line.strip(BLANKS) for line in asked]
    for kind, i, i_stop, j, j_stop in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        number = region.start + i + 1
        if kind == "delete":
            yield f"Line {number} is not in the text of the edit: {excerpt(there[i])}"
        elif kind == "insert" and asked[j].strip():
            yield f"Before line {number} there is no such line: {excerpt(asked[j])}"
        elif kind == "replace":
            for offset in range(max(i_stop - i, j_stop - j)):
                if offset < i_stop - i and offset < j_stop - j:
                    yield (
                        f"Line {number + offset} is {_around(there[i + offset], region)}, "
                        f"the edit has {excerpt(asked[j + offset])}"
                    )


def _around(line: str, region: Region) -> str:
    return excerpt(clip(line, around=region.column))


_ELLIPSES = {"...", "\u2026", "# ...", "// ...", "/* ... */", "[...]", "(...)"}
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # how bytes are decoded that are no UTF-8
_MIN_TELLING = 6  # characters; a shorter text may be anywhere by chance
_OVERLOOKED_NOTES = {
    MatchLevel.EXACT: "",
    MatchLevel.LINE_ENDINGS: " when line endings are overlooked",
    MatchLevel.TRAILING_SPACE: " when blanks at the ends of lines are overlooked",
    MatchLevel.INDENTATION: " when the indentation is overlooked",
    MatchLevel.UNICODE: " when look-alike characters are overlooked",
}


def not_found_error(document: Document, wanted: Wanted) -> EditError:
    """Return the error for a text that is nowhere."""
    parts = [f"Text to replace was not found: {excerpt(wanted.old)}"]
    hint = _hint(document, wanted)
    if hint:
        parts.append(hint)
    parts.append(nearest_text(document, wanted))
    return EditError("\n".join(parts))


def nearest_text(document: Document, wanted: Wanted) -> str:
    """Return the closest region, how it differs, and what to do."""
    region = closest_region(document, wanted.lines)
    if region is None:
        return "Nothing in the file is like it. Read the file again: it may be another one"
    where = format_line_numbers([region.start + 1])
    if region.stop - region.start > 1:
        where = f"lines {region.start + 1} to {region.stop}"
    told = "\n".join(differences(document, region, wanted.lines))
    return (
        f"The closest text is at {where}:\n{render_region(document, region)}\n"
        + (f"{told}\n" if told else "")
        + "Quote the lines as they are in the file, without the numbers"
    )


def ambiguous_error(document: Document, wanted: Wanted, found: Matches) -> EditError:
    """Return the error for a text that is in several places."""
    numbers = [document.number_at(match.start) for match in found.matches]
    count = f"more than {len(numbers)}" if found.more else str(len(numbers))
    return EditError(
        f"Text to replace was found {count} times{_OVERLOOKED_NOTES[found.grade]}, "
        f"at {format_line_numbers(numbers, more=found.more)}: {excerpt(wanted.old)}\n"
        "Add lines before or after it that only the right place has, "
        "or ask for every place to be replaced"
    )


def unexpected(document: Document, wanted: Wanted, found: Matches, expected: int) -> EditError:
    """Return the error for a text that is in more or fewer places than was expected."""
    numbers = [document.number_at(match.start) for match in found.matches]
    return EditError(
        f"Text to replace was expected {expected} times and found {len(numbers)} times"
        f"{_OVERLOOKED_NOTES[found.grade]}, at {format_line_numbers(numbers)}:"
        f" {excerpt(wanted.old)}\n"
        "Correct the number, or quote more or less of the text"
    )


def _hint(document: Document, wanted: Wanted) -> str:
    """Return what the likely mistake is, if it can be told."""
    if _leaves_out(document, wanted):
        return (
            "It has an ellipsis in place of text; quote every line, or a shorter part without gaps"
        )
    if len(wanted.new.strip()) >= _MIN_TELLING and wanted.new in document.text:
        number = document.number_at(document.text.index(wanted.new))
        return f"The new text is in the file already, at line {number}: was this edit made before?"
    for written, name in _rewritten(wanted.old):
        if written != wanted.old and written in document.text:
            return f"It has {name} that the file does not have; send the characters themselves"
    if not wanted.old.isascii() and _NO_UTF8.search(document.text):
        return "The file is not UTF-8: leave letters beyond ASCII out of the text to replace"
    return _without_edges(document, wanted)


def _leaves_out(document: Document, wanted: Wanted) -> bool:
    """Return whether an ellipsis stands for lines of the file; it may be a line of it as well."""
    asked = [line.strip() for line in wanted.lines]
    lines = [line.strip() for line in document.lines]
    dots = _ELLIPSES.intersection(asked)
    if not dots.intersection(lines):
        return bool(dots)
    without = [line for line in asked if line not in dots]
    return _are_in_order(without, lines) and not _are_in_order(asked, lines)


def _are_in_order(some: Iterable[str], lines: Iterable[str]) -> bool:
    left = iter(lines)
    return all(line in left for line in some)


def _without_edges(document: Document, wanted: Wanted) -> str:
    """Return where the text is without the blank lines around it, if that is why it is nowhere."""
    if wanted.is_blank or not (wanted.text.startswith("\n") or wanted.text.endswith("\n\n")):
        return ""
    within = Wanted(wanted.text.strip("\n") + "\n", wanted.new, whole_lines=True)
    found = find(document, within)
    if found is None:
        return ""
    numbers = [document.number_at(match.start) for match in found.matches]
    return (
        "Without the blank lines around it, it is at"
        f" {format_line_numbers(numbers, more=found.more)}"
    )


def _rewritten(old: str) -> tuple[tuple[str, str], ...]:
    unescaped = old.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
    return (
        (unescaped, "escape sequences such as a backslash and an n"),
        (unescaped.replace("\\'", "'").replace("\\\\", "\\"), "backslashes"),
        (html.unescape(old), "HTML entities"),
    )
