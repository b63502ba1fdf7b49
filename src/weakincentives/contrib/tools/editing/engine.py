"""A text that is replaced in parts, and a record of which characters of the first text are left."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from weakincentives.contrib.tools.editing.errors import ambiguous_error, not_found_error, unexpected
from weakincentives.contrib.tools.editing.format import excerpt
from weakincentives.contrib.tools.editing.match import Matches, Wanted, find
from weakincentives.contrib.tools.editing.model import (
    BOM,
    Document,
    Edit,
    EditError,
    EditOutcome,
    MatchLevel,
    Span,
)
from weakincentives.contrib.tools.editing.replace import replacement
from weakincentives.contrib.tools.editing.sanitize import check_new, without_gutters

Change = tuple[int, int, str]


class _Run(NamedTuple):
    """Characters that are left: where they were, where they are, how many; none is a border."""

    origin: int
    position: int
    length: int


class EditBuffer:
    """A text, and for every part that was replaced where it was and where it is."""

    def __init__(self, text: str) -> None:
        """Begin with a text of which nothing is replaced."""
        self.content: str = text
        self._size = len(text)
        self._runs = [_Run(0, 0, len(text))]

    @property
    def spans(self) -> tuple[Span, ...]:
        """The ranges of the first text that were replaced, in order."""
        return tuple(was for was, _ in self._gaps())

    @property
    def new_spans(self) -> tuple[Span, ...]:
        """The ranges of the text as it is now that are in their place."""
        return tuple(now for _, now in self._gaps())

    def replace(self, changes: Sequence[Change]) -> None:
        """Replace ranges of the text as it is now; they are in order and do not overlap."""
        pieces: list[str] = []
        at = 0
        for start, end, new in changes:
            pieces += (self.content[at:start], new)
            at = end
        pieces.append(self.content[at:])
        self._runs = list(_cut(self._runs, changes))
        self.content = "".join(pieces)

    def _gaps(self) -> Iterator[tuple[Span, Span]]:
        edges = [_Run(0, 0, 0), *self._runs, _Run(self._size, len(self.content), 0)]
        for left, right in pairwise(edges):
            was = left.origin + left.length, right.origin
            now = left.position + left.length, right.position
            if was[0] < was[1] or now[0] < now[1]:
                yield was, now


def _cut(runs: Sequence[_Run], changes: Sequence[Change]) -> Iterator[_Run]:
    """Yield what the changes leave of the runs, moved to where it is then."""
    shift = number = 0
    for origin, position, length in runs:
        at, stop = position, position + length
        while number < len(changes) and changes[number][0] <= stop:
            start, end, new = changes[number]
            if start >= at:
                yield _Run(origin + at - position, at + shift, start - at)
            if end > stop:
                at = stop + 1  # nothing is left of this run, and the change goes on
                break
            at = max(at, end)
            shift += len(new) - (end - start)
            number += 1
        if at <= stop:
            yield _Run(origin + at - position, at + shift, stop - at)


_MAX_REPLACED = 250_000  # places in all edits of one call
_GUTTERS = "The line numbers of a listing were removed from the text of the edit"


@dataclass(frozen=True, slots=True)
class _Step:
    """What one edit does."""

    changes: tuple[Change, ...]
    grade: MatchLevel
    notes: tuple[str, ...] = ()


def apply_edits(text: str, edits: Sequence[Edit], *, room: int | None = None) -> EditOutcome:
    """Return `text` with every edit applied, each to the result of the one before.

    Args:
        text: The text.
        edits: What to replace in it.
        room: How many characters longer it may become; as many as may be if omitted.

    Raises:
        EditError: An edit is not clear, its text is not in one place, or the result would be
            too long; nothing is applied.
    """
    if not edits:
        raise EditError("No edit was given")
    patchwork = EditBuffer(text)
    grade = MatchLevel.EXACT
    notes: list[str] = []
    replacements = 0
    for number, edit in enumerate(edits, 1):
        try:
            left = None if room is None else room + len(text) - len(patchwork.content)
            step = _step(patchwork.content, edit, left, _MAX_REPLACED - replacements)
        except EditError as error:
            raise _numbered(error, number, len(edits)) from None
        patchwork.replace(step.changes)
        replacements += len(step.changes)
        grade = max(grade, step.grade, key=lambda each: each.rank)
        notes += step.notes
    return EditOutcome(
        patchwork.content,
        grade,
        replacements,
        patchwork.spans,
        patchwork.new_spans,
        tuple(dict.fromkeys(notes)),
    )


def _numbered(error: EditError, number: int, count: int) -> EditError:
    if count == 1:
        return error
    return EditError(f"Edit {number} of {count}: {error}\nNone of the {count} edits was applied")


def _step(text: str, edit: Edit, room: int | None, most: int) -> _Step:
    wanted = _wanted(text, edit)
    document = Document(text)
    check_new(wanted)
    if not wanted.old:
        return _Step(((document.start, len(text), wanted.new),), MatchLevel.EXACT)
    wanted, found, notes = _found(document, wanted, most if edit.replace_all else None)
    if edit.replace_all and found.more:
        raise EditError(
            f"Text to replace is in too many places: {excerpt(wanted.old)}\n"
            f"One call replaces {_MAX_REPLACED} at most; quote more of it"
        )
    if not edit.replace_all and (found.more or len(found.matches) > 1):
        raise ambiguous_error(document, wanted, found)
    if edit.expected not in {None, len(found.matches)}:
        raise unexpected(document, wanted, found, edit.expected or 0)
    changes = _changes(document, found, wanted, room)
    if all(text[start:end] == new for start, end, new in changes):
        raise EditError(
            f"Edit changes nothing: the file has the new text already: {excerpt(wanted.new)}\n"
            "Nothing more is to be done for this edit"
        )
    return _Step(changes, found.grade, notes)


def _changes(
    document: Document, found: Matches, wanted: Wanted, room: int | None
) -> tuple[Change, ...]:
    changes: list[Change] = []
    growth = 0
    for match in found.matches:
        new = replacement(document, match, wanted)
        growth += len(new) - (match.end - match.start)
        if room is not None and growth > room:
            # before it is made: a short text in many places may fill the memory
            raise EditError(
                f"Text would become too long: {excerpt(wanted.new)} in the place of"
                f" {excerpt(wanted.old)}\nIt may grow by {room} characters at most:"
                " replace fewer places, or by a shorter text"
            )
        changes.append((match.start, match.end, new))
    return tuple(changes)


def _wanted(text: str, edit: Edit) -> Wanted:
    if edit.old == edit.new:
        raise EditError(
            f"Old and new text are the same, so nothing would change: {excerpt(edit.old)}\n"
            "Send the text as it is now, and the text as it is to be"
        )
    if not edit.old.removeprefix(BOM) and text.removeprefix(BOM):
        raise EditError(
            f"Text to replace is empty, but the file is not (it has {len(text)} characters): "
            f"{edit.old!r}\nQuote the lines to replace, or a line next to which text is to be added"
        )
    # a byte order mark is how the file is stored, not a part of its text
    return Wanted(edit.old.removeprefix(BOM), edit.new.removeprefix(BOM))


def _found(
    document: Document, wanted: Wanted, every: int | None
) -> tuple[Wanted, Matches, tuple[str, ...]]:
    """Return where a text is; `every` says how many places are to be found, if all are."""

    def search(each: Wanted) -> Matches | None:
        if every is None:
            return find(document, each)
        return find(document, each, every=True, most=max(every, 1))

    found = search(wanted)
    if found is not None:
        return wanted, found, ()
    meant = [(each, search(each)) for each in without_gutters(wanted)]
    best = min(
        ((each, found) for each, found in meant if found is not None),
        key=lambda pair: pair[1].grade.rank,
        default=None,
    )
    if best is None:
        raise not_found_error(document, wanted)
    return *best, (_GUTTERS,)
