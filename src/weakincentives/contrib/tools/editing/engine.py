"""Apply edits: match each one, compute its replacement, and track which characters changed.

Lines that the old and the new text share are kept as the document has them, so that
whatever was ignored to find the match does not change. Other lines get the line endings
of the lines they replace, and the indentation of the match.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from weakincentives.contrib.tools.editing import suggestions
from weakincentives.contrib.tools.editing.confusables import fold_confusables, indent_of
from weakincentives.contrib.tools.editing.indent import Reindent
from weakincentives.contrib.tools.editing.match import (
    BOM,
    Document,
    EditError,
    Match,
    Matches,
    MatchLevel,
    Query,
    encode_lines,
    excerpt,
    find_matches,
    unify_line_ends,
)
from weakincentives.contrib.tools.editing.sanitize import check_new_text, strip_line_numbers
from weakincentives.filesystem.diff import changed_blocks

Span = tuple[int, int]
Change = tuple[int, int, str]
"""A range of characters, and the text that replaces it."""
_MAX_REPLACEMENTS = 250_000  # in all edits of one call
_LINE_NUMBERS_NOTE = "Line numbers copied from a listing were removed from the edit"


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement.

    Args:
        old: The text to find; it must occur exactly once.
        new: The text to replace it with.
        replace_all: Replace every occurrence instead.
        expected: The number of occurrences required for `replace_all`; any number if omitted.
    """

    old: str
    new: str
    replace_all: bool = False
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """The result of applying edits.

    Args:
        content: The whole new text.
        match_level: The most tolerant level that was needed.
        replacements: How many occurrences were replaced.
        spans: The character ranges of the old text that were replaced.
        new_spans: For each of them, the range of the new text that replaced it.
        notes: Remarks for the caller, such as line numbers that were removed.
    """

    content: str
    match_level: MatchLevel
    replacements: int
    spans: tuple[Span, ...]
    new_spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()


class _KeptRun(NamedTuple):
    """Characters that were kept: old position, new position, length; an empty run is a border."""

    origin: int
    position: int
    length: int


class EditBuffer:
    """A text under edit that knows which ranges of the original were replaced by which."""

    def __init__(self, text: str) -> None:
        """Start with an unchanged text."""
        self.content: str = text
        self._size = len(text)
        self._runs = [_KeptRun(0, 0, len(text))]

    @property
    def spans(self) -> tuple[Span, ...]:
        """The ranges of the original text that were replaced, in order."""
        return tuple(old for old, _ in self._gaps())

    @property
    def new_spans(self) -> tuple[Span, ...]:
        """The ranges of the current text that replaced them."""
        return tuple(new for _, new in self._gaps())

    def replace(self, changes: Sequence[Change]) -> None:
        """Replace ranges of the current text; they must be in order and not overlap."""
        pieces: list[str] = []
        at = 0
        for start, end, new in changes:
            pieces += (self.content[at:start], new)
            at = end
        pieces.append(self.content[at:])
        self._runs = list(_update_runs(self._runs, changes))
        self.content = "".join(pieces)

    def _gaps(self) -> Iterator[tuple[Span, Span]]:
        edges = [_KeptRun(0, 0, 0), *self._runs, _KeptRun(self._size, len(self.content), 0)]
        for left, right in pairwise(edges):
            old = left.origin + left.length, right.origin
            new = left.position + left.length, right.position
            if old[0] < old[1] or new[0] < new[1]:
                yield old, new


def _update_runs(runs: Sequence[_KeptRun], changes: Sequence[Change]) -> Iterator[_KeptRun]:
    """Yield the parts of the runs that the changes keep, at their new positions."""
    shift = number = 0
    for origin, position, length in runs:
        at, stop = position, position + length
        while number < len(changes) and changes[number][0] <= stop:
            start, end, new = changes[number]
            if start >= at:
                yield _KeptRun(origin + at - position, at + shift, start - at)
            if end > stop:
                at = stop + 1  # the change covers the rest of this run and reaches into the next
                break
            at = max(at, end)
            shift += len(new) - (end - start)
            number += 1
        if at <= stop:
            yield _KeptRun(origin + at - position, at + shift, stop - at)


@dataclass(frozen=True, slots=True)
class _PlannedEdit:
    """The changes that one edit makes."""

    changes: tuple[Change, ...]
    level: MatchLevel
    notes: tuple[str, ...] = ()


def apply_edits(text: str, edits: Sequence[Edit], *, room: int | None = None) -> EditOutcome:
    """Return `text` with every edit applied, each to the result of the one before.

    Args:
        text: The text.
        edits: The replacements to make.
        room: The number of characters by which the text may grow; unlimited if omitted.

    Raises:
        EditError: An edit is invalid, does not match exactly one place, or makes the text too
            long; nothing is applied.
    """
    if not edits:
        raise EditError("No edits were given")
    buffer = EditBuffer(text)
    level = MatchLevel.EXACT
    notes: list[str] = []
    replacements = 0
    for number, edit in enumerate(edits, 1):
        try:
            left = None if room is None else room + len(text) - len(buffer.content)
            planned = _plan_edit(buffer.content, edit, left, _MAX_REPLACEMENTS - replacements)
        except EditError as error:
            count = len(edits)
            if count == 1:
                raise
            raise EditError(
                f"Edit {number} of {count}: {error}\nNone of the {count} edits was applied"
            ) from None
        buffer.replace(planned.changes)
        replacements += len(planned.changes)
        level = max(level, planned.level, key=lambda each: each.rank)
        notes += planned.notes
    return EditOutcome(
        buffer.content,
        level,
        replacements,
        buffer.spans,
        buffer.new_spans,
        tuple(dict.fromkeys(notes)),
    )


def _plan_edit(text: str, edit: Edit, room: int | None, max_replacements: int) -> _PlannedEdit:
    query = _build_query(text, edit)
    document = Document(text)
    check_new_text(query)
    if not query.old:
        return _PlannedEdit(((document.start, len(text), query.new),), MatchLevel.EXACT)
    limit = max_replacements if edit.replace_all else None
    query, found, notes = _find_or_raise(document, query, limit)
    if edit.replace_all and found.more:
        raise EditError(
            f"Text to replace occurs in too many places: {excerpt(query.old)}\n"
            f"One call can replace at most {_MAX_REPLACEMENTS}; include more surrounding text"
        )
    if not edit.replace_all and (found.more or len(found.matches) > 1):
        raise suggestions.ambiguous_error(document, query, found)
    if edit.expected not in {None, len(found.matches)}:
        raise suggestions.count_error(document, query, found, edit.expected or 0)
    changes = _build_changes(document, found, query, room)
    if all(text[start:end] == new for start, end, new in changes):
        raise EditError(
            f"Edit changes nothing: the file already has the new text: {excerpt(query.new)}\n"
            "This edit is already done"
        )
    return _PlannedEdit(changes, found.level, notes)


def _build_query(text: str, edit: Edit) -> Query:
    if edit.old == edit.new:
        raise EditError(
            f"Old and new text are the same, so nothing would change: {excerpt(edit.old)}\n"
            "Send the current text as the old text, and the changed text as the new text"
        )
    if not edit.old.removeprefix(BOM) and text.removeprefix(BOM):
        raise EditError(
            f"Text to replace is empty, but the file is not (it has {len(text)} characters): "
            f"{edit.old!r}\nQuote the lines to replace; to add text, quote a line next to it"
        )
    # a byte order mark is part of the encoding, not of the text
    return Query(edit.old.removeprefix(BOM), edit.new.removeprefix(BOM))


def _find_or_raise(
    document: Document, query: Query, limit: int | None
) -> tuple[Query, Matches, tuple[str, ...]]:
    """Return the query that matched, its matches, and notes; `limit` is set to replace all."""

    def search(each: Query) -> Matches | None:
        if limit is None:
            return find_matches(document, each)
        return find_matches(document, each, disjoint=True, limit=max(limit, 1))

    found = search(query)
    if found is not None:
        return query, found, ()
    unnumbered = [(each, search(each)) for each in strip_line_numbers(query)]
    best = min(
        ((each, found) for each, found in unnumbered if found is not None),
        key=lambda pair: pair[1].level.rank,
        default=None,
    )
    if best is None:
        raise suggestions.not_found_error(document, query)
    return *best, (_LINE_NUMBERS_NOTE,)


def _build_changes(
    document: Document, found: Matches, query: Query, room: int | None
) -> tuple[Change, ...]:
    changes: list[Change] = []
    growth = 0
    for match in found.matches:
        new = build_replacement(document, match, query)
        growth += len(new) - (match.end - match.start)
        if room is not None and growth > room:
            # checked while building: a short text in many places could fill the memory
            raise EditError(
                f"File would become too long: replacing {excerpt(query.old)} with"
                f" {excerpt(query.new)}\nIt can grow by at most {room} characters;"
                " replace fewer places, or use a shorter text"
            )
        changes.append((match.start, match.end, new))
    return tuple(changes)


def build_replacement(document: Document, match: Match, query: Query) -> str:
    """Return the text that replaces a match."""
    found = document.text[match.start : match.end]
    old, new = query.text, unify_line_ends(query.new)
    if found == query.old and (query.literal or old == new):
        return query.new  # nothing else changes, so the edit is about line endings
    if old.endswith("\n") and not found.endswith("\n"):
        old, new = old[:-1], new.removesuffix("\n")
    if found == old and "\n" not in old and "\n" not in new:
        return new
    ending = document.ending_at(match.start)
    if found == old and not document.has_returns:
        return new if ending else query.new
    return _merge_lines(found, old.split("\n"), new.split("\n"), ending or "\n", match.reindent)


def _merge_lines(
    found: str, old: list[str], new: list[str], ending: str, reindent: Reindent | None
) -> str:
    *ended, last = found.split("\n")
    # the last piece has no ending: what follows it is outside the match
    pieces = [(each[:-1], "\r\n") if each.endswith("\r") else (each, "\n") for each in ended]
    pieces.append((last, ending))
    lines: list[str] = []
    for number, (line, (source, is_kept)) in enumerate(
        zip(new, _map_to_old_lines(old, new), strict=True)
    ):
        if is_kept:
            lines.append(pieces[source][0])
        else:
            lines.append(_reindent_line(line, reindent, is_first=number == 0))
        lines.append(pieces[source][1])
    return "".join(lines[:-1])


def _map_to_old_lines(old: list[str], new: list[str]) -> list[tuple[int, bool]]:
    """Return for every new line the old line it corresponds to, and whether they are equal."""
    sources: list[tuple[int, bool]] = []
    at = 0
    for block in changed_blocks(encode_lines(old), encode_lines(new)):
        sources += [(number, True) for number in range(at, block.start)]
        last = max(block.stop - 1, block.start - 1, 0)
        count = block.new_stop - block.new_start
        sources += [(min(block.start + number, last), False) for number in range(count)]
        at = block.stop
    return sources + [(number, True) for number in range(at, len(old))]


def _reindent_line(line: str, reindent: Reindent | None, *, is_first: bool) -> str:
    if reindent is None or not fold_confusables(line).strip():
        return line
    indent = indent_of(line)
    counterpart = reindent.convert(indent, is_first=is_first)
    if counterpart is None:
        raise EditError(
            "Text to replace was found with a different indentation, and this line of the new "
            f"text does not fit it: {excerpt(line)}\n"
            "Use the indentation of the file in both the old and the new text"
        )
    return counterpart + line[len(indent) :]
