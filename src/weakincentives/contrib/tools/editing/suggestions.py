"""Suggestions for edits that fail: the closest text in the document, and the likely mistake.

The work is bounded for any input: a few rare lines or words of the search text vote for
candidate positions, and only the winner is compared line by line.
"""

import html
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice

from weakincentives.contrib.tools.editing.confusables import fold_confusables
from weakincentives.contrib.tools.editing.match import (
    WHITESPACE,
    Document,
    EditError,
    Matches,
    MatchLevel,
    Query,
    clip,
    excerpt,
    find_matches,
    format_line_numbers,
)

_MAX_VOTERS = 200  # lines of the search text that vote
_MAX_PLACES = 200  # positions in the document that one line or word votes for
_MAX_WORDS = 12
_MAX_CANDIDATES = 20
_MAX_COMPARED = 300  # characters of a line, and lines of a region
_REGION_MARGIN = 3  # lines by which a region may be longer than the search text
_MAX_REGION_LINES = 12
_MAX_DIFFERENCES = 3
_MIN_SIMILARITY = 0.5
_MIN_NEW_TEXT = 6  # characters; a shorter text may be in the file by chance
_WORD = re.compile(r"\w{2,}")
_ELLIPSES = {"...", "\u2026", "# ...", "// ...", "/* ... */", "[...]", "(...)"}
_UNDECODABLE = re.compile("[\udc80-\udcff]")  # how bytes that are not UTF-8 are decoded
_LEVEL_NOTES = {
    MatchLevel.EXACT: "",
    MatchLevel.LINE_ENDINGS: " (ignoring line endings)",
    MatchLevel.TRAILING_SPACE: " (ignoring trailing whitespace)",
    MatchLevel.INDENTATION: " (ignoring indentation)",
    MatchLevel.UNICODE: " (ignoring look-alike characters)",
}


@dataclass(frozen=True, slots=True)
class Region:
    """Lines `start` to `stop` of a document, counted from 0; `column` is the point of interest."""

    start: int
    stop: int
    column: int = 0


def not_found_error(document: Document, query: Query) -> EditError:
    """Return the error for a text that does not occur."""
    parts = [f"Text to replace was not found: {excerpt(query.old)}"]
    mistake = _explain_mistake(document, query)
    if mistake:
        parts.append(mistake)
    parts.append(describe_closest(document, query))
    return EditError("\n".join(parts))


def ambiguous_error(document: Document, query: Query, found: Matches) -> EditError:
    """Return the error for a text that occurs more than once."""
    numbers = [document.line_number_at(match.start) for match in found.matches]
    count = f"more than {len(numbers)}" if found.more else str(len(numbers))
    return EditError(
        f"Text to replace was found {count} times{_LEVEL_NOTES[found.level]}, "
        f"at {format_line_numbers(numbers, more=found.more)}: {excerpt(query.old)}\n"
        "Include more surrounding lines so that only one place matches, "
        "or replace all occurrences if the tool has an option for it"
    )


def count_error(document: Document, query: Query, found: Matches, expected: int) -> EditError:
    """Return the error for a text that occurs more or less often than expected."""
    numbers = [document.line_number_at(match.start) for match in found.matches]
    return EditError(
        f"Text to replace was expected {expected} times but found {len(numbers)} times"
        f"{_LEVEL_NOTES[found.level]}, at {format_line_numbers(numbers)}:"
        f" {excerpt(query.old)}\n"
        "Correct the expected number, or include more or less of the surrounding text"
    )


def describe_closest(document: Document, query: Query) -> str:
    """Return a paragraph with the closest region, how it differs, and what to do."""
    region = find_closest_region(document, query.lines)
    if region is None:
        return "Nothing in the file resembles it. Read the file, and check that it is the right one"
    where = format_line_numbers([region.start + 1])
    if region.stop - region.start > 1:
        where = f"lines {region.start + 1} to {region.stop}"
    differences = "\n".join(_describe_differences(document, region, query.lines))
    return (
        f"The closest text is at {where}:\n{_render_region(document, region)}\n"
        + (f"{differences}\n" if differences else "")
        + "Copy the lines exactly as they are in the file, without line numbers"
    )


def find_closest_region(document: Document, lines: Sequence[str]) -> Region | None:
    """Return the lines of a document most similar to `lines`; None if none are similar."""
    if not document.lines or not any(line.strip() for line in lines):
        return None
    return _find_by_lines(document, lines) or _find_by_words(document, lines)


def _describe_differences(document: Document, region: Region, lines: Sequence[str]) -> list[str]:
    """Return up to `_MAX_DIFFERENCES` sentences on how a region differs from `lines`."""
    found = document.lines[region.start : region.stop][:_MAX_COMPARED]
    asked = list(lines[:_MAX_COMPARED])
    for normalize, sentence in _SINGLE_CAUSES:
        if [normalize(line) for line in found] == [normalize(line) for line in asked]:
            return [sentence]
    if _drop_blank_lines(found) == _drop_blank_lines(asked):
        return ["Only blank lines differ, in number or position"]
    return list(islice(_compare_lines(found, asked, region), _MAX_DIFFERENCES))


def _render_region(document: Document, region: Region) -> str:
    stop = min(region.stop, region.start + _MAX_REGION_LINES)
    listing = [
        f"{number + 1:>6}\t{clip(document.lines[number], around=region.column)}"
        for number in range(region.start, stop)
    ]
    if stop < region.stop:
        listing.append(f"   ... {region.stop - stop} more lines")
    return "\n".join(listing)


def _key(line: str) -> str:
    return " ".join(fold_confusables(line).casefold().split())


_SINGLE_CAUSES: Sequence[tuple[Callable[[str], str], str]] = (
    (
        lambda line: line.strip(WHITESPACE),
        "Only the indentation differs, but not by one consistent rule",
    ),
    (
        lambda line: fold_confusables(line).strip(WHITESPACE),
        "Only the indentation and look-alike characters differ, but not by one consistent rule",
    ),
    (lambda line: " ".join(line.split()), "Only the spaces within lines differ"),
    (_key, "Only upper and lower case, or spaces within lines, differ"),
)


def _find_by_lines(document: Document, lines: Sequence[str]) -> Region | None:
    """Return the region that whole lines vote for; rare lines have more weight."""
    wanted: defaultdict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(lines):
        wanted[_key(line)].append(number)
    wanted.pop("", None)
    places: defaultdict[str, list[int]] = defaultdict(list)
    for number, line in enumerate(document.folded_lines):
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
    start = max(tied, key=lambda start: (_region_similarity(document, start, lines), -start))
    return _align_region(document, start, lines)


def _region_similarity(document: Document, start: int, lines: Sequence[str]) -> float:
    """Return how similar the first differing lines are."""
    pairs = (
        (document.lines[start + number], line)
        for number, line in enumerate(lines[:_MAX_COMPARED])
        if 0 <= start + number < len(document.lines)
    )
    differing = islice(((a, b) for a, b in pairs if _key(a) != _key(b)), _MAX_DIFFERENCES)
    return sum(_similarity(found, asked.strip()[:_MAX_COMPARED], 0) for found, asked in differing)


def _align_region(document: Document, start: int, lines: Sequence[str]) -> Region:
    """Return the region near `start` whose first and last lines best align with `lines`."""
    whole = Region(max(start, 0), max(min(start + len(lines), len(document.lines)), 1))
    if [_key(line) for line in document.lines[whole.start : whole.stop]] == list(map(_key, lines)):
        return whole
    room = min(len(lines) // 4, _MAX_COMPARED) + _REGION_MARGIN
    first = max(start - room, 0)
    window = document.lines[first : start + min(len(lines), _MAX_COMPARED) + room]
    asked = _distinctive_keys(lines[:_MAX_COMPARED], "asked")
    matcher = SequenceMatcher(None, _distinctive_keys(window, "found"), asked, autojunk=False)
    blocks = matcher.get_matching_blocks()
    top, bottom = blocks[0], blocks[max(len(blocks) - 2, 0)]
    begin = _slide_to_line(document, first + top.a - top.b, lines[0], -1)
    end = first + bottom.a + len(lines) - bottom.b - 1
    last = _slide_to_line(document, end, lines[-1], 1)
    return Region(begin, max(last, begin) + 1)


def _slide_to_line(document: Document, at: int, line: str, step: int) -> int:
    """Return the nearest line equal to `line` within a few steps; `at` if there is none."""
    at = min(max(at, 0), len(document.lines) - 1)
    for steps in range(_REGION_MARGIN + 1):
        further = at + steps * step
        if 0 <= further < len(document.lines) and _key(document.lines[further]) == _key(line):
            return further
    return at


def _distinctive_keys(lines: Sequence[str], side: str) -> list[tuple[str, str]]:
    """Return keys of lines; a line without a word, such as a bracket, equals no other."""
    return [
        ("", key) if _WORD.search(key) else (side, str(number))
        for number, key in enumerate(map(_key, lines))
    ]


def _find_by_words(document: Document, lines: Sequence[str]) -> Region | None:
    """Return the region that the words of the longest line vote for; rare words count more."""
    longest = max(range(len(lines)), key=lambda number: len(lines[number].strip()))
    line = lines[longest].strip()[:_MAX_COMPARED]
    words = sorted(set(_WORD.findall(line)), key=lambda word: (-len(word), word))[:_MAX_WORDS]
    scores: Counter[int] = Counter()
    columns: dict[int, int] = {}
    for word in words:
        found = dict(islice(_occurrences(document, word), _MAX_PLACES))
        for number, column in found.items():
            scores[number] += len(word) * 1000 // len(found)  # rare words say more
            columns.setdefault(number, column)
    rated = [
        (_similarity(document.lines[number], line, columns[number]), -number)
        for number, _ in scores.most_common(_MAX_CANDIDATES)
    ]
    similarity, negative = max(rated, default=(0.0, 0))
    if similarity < _MIN_SIMILARITY:
        return None
    start = max(-negative - longest, 0)
    stop = min(start + len(lines), len(document.lines))
    return Region(start, stop, columns[-negative])


def _occurrences(document: Document, word: str) -> Iterator[tuple[int, int]]:
    at = document.text.find(word)
    while at >= 0:
        number = document.line_at(at)
        yield number, at - document.starts[number]
        at = document.text.find(word, document.line_stop(number))


def _similarity(line: str, asked: str, column: int) -> float:
    start = max(0, column - len(asked))
    part = line[start : start + _MAX_COMPARED].strip()
    # a short text may be in a long line: then only the share of the text that is there counts
    matcher = SequenceMatcher(None, part, asked, autojunk=False)
    shared = sum(block.size for block in matcher.get_matching_blocks())
    return shared / max(len(asked), 1) if len(part) > 2 * len(asked) else matcher.ratio()


def _drop_blank_lines(lines: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip()]


def _compare_lines(found: Sequence[str], asked: Sequence[str], region: Region) -> Iterator[str]:
    keys = [line.strip(WHITESPACE) for line in found], [line.strip(WHITESPACE) for line in asked]
    for kind, i, i_stop, j, j_stop in SequenceMatcher(None, *keys, autojunk=False).get_opcodes():
        number = region.start + i + 1
        if kind == "delete":
            yield f"Line {number} is missing from your text: {excerpt(found[i])}"
        elif kind == "insert" and asked[j].strip():
            yield (
                f"Your text has a line before line {number} that the file does not have: "
                f"{excerpt(asked[j])}"
            )
        elif kind == "replace":
            for offset in range(max(i_stop - i, j_stop - j)):
                if offset < i_stop - i and offset < j_stop - j:
                    line = excerpt(clip(found[i + offset], around=region.column))
                    yield (
                        f"Line {number + offset} is {line}, "
                        f"but your text has {excerpt(asked[j + offset])}"
                    )


def _explain_mistake(document: Document, query: Query) -> str:
    """Return a sentence on the likely mistake, or an empty string."""
    if _skips_lines(document, query):
        return "It has an ellipsis in place of lines; include every line, or quote a shorter part"
    if len(query.new.strip()) >= _MIN_NEW_TEXT and query.new in document.text:
        number = document.line_number_at(document.text.index(query.new))
        return (
            f"The new text is already in the file, at line {number}; "
            "this edit may have been applied before"
        )
    for unescaped, name in _unescape(query.old):
        if unescaped != query.old and unescaped in document.text:
            return f"It has {name} that are not in the file; send the characters themselves"
    if not query.old.isascii() and _UNDECODABLE.search(document.text):
        return "The file is not UTF-8; use only ASCII characters in the text to replace"
    return _find_without_blank_edges(document, query)


def _skips_lines(document: Document, query: Query) -> bool:
    """Return whether an ellipsis in the query stands for lines, and is not itself in the file."""
    asked = [line.strip() for line in query.lines]
    lines = [line.strip() for line in document.lines]
    dots = _ELLIPSES.intersection(asked)
    if not dots.intersection(lines):
        return bool(dots)
    without_dots = [line for line in asked if line not in dots]
    return _is_subsequence(without_dots, lines) and not _is_subsequence(asked, lines)


def _is_subsequence(part: Iterable[str], lines: Iterable[str]) -> bool:
    remaining = iter(lines)
    return all(line in remaining for line in part)


def _find_without_blank_edges(document: Document, query: Query) -> str:
    """Return where the text occurs without its leading and trailing blank lines, if it does."""
    if query.is_blank or not (query.text.startswith("\n") or query.text.endswith("\n\n")):
        return ""
    inner = Query(query.text.strip("\n") + "\n", query.new, whole_lines=True)
    found = find_matches(document, inner)
    if found is None:
        return ""
    numbers = [document.line_number_at(match.start) for match in found.matches]
    return (
        "Without the blank lines around it, the text is at"
        f" {format_line_numbers(numbers, more=found.more)}"
    )


def _unescape(old: str) -> tuple[tuple[str, str], ...]:
    r"""Return the text with escape sequences resolved, and what each kind is called."""
    unescaped = old.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
    return (
        (unescaped, "escape sequences such as \\n"),
        (unescaped.replace("\\'", "'").replace("\\\\", "\\"), "backslashes"),
        (html.unescape(old), "HTML entities"),
    )
