"""Edits applied to a text: all of them or none."""

from collections.abc import Sequence
from dataclasses import dataclass

from weakincentives.contrib.tools.edit.document import BOM, Document
from weakincentives.contrib.tools.edit.edits import Edit, EditError, EditOutcome, Grade
from weakincentives.contrib.tools.edit.matching import Found, Wanted, find
from weakincentives.contrib.tools.edit.pasted import check_new, without_gutters
from weakincentives.contrib.tools.edit.refusing import ambiguous, not_found, unexpected
from weakincentives.contrib.tools.edit.replacing import replacement
from weakincentives.contrib.tools.edit.spans import Change, Patchwork
from weakincentives.contrib.tools.edit.wording import excerpt

_MAX_REPLACED = 250_000  # places in all edits of one call
_GUTTERS = "The line numbers of a listing were removed from the text of the edit"


@dataclass(frozen=True, slots=True)
class _Step:
    """What one edit does."""

    changes: tuple[Change, ...]
    grade: Grade
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
    patchwork = Patchwork(text)
    grade = Grade.EXACT
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
        return _Step(((document.start, len(text), wanted.new),), Grade.EXACT)
    wanted, found, notes = _found(document, wanted, most if edit.replace_all else None)
    if edit.replace_all and found.more:
        raise EditError(
            f"Text to replace is in too many places: {excerpt(wanted.old)}\n"
            f"One call replaces {_MAX_REPLACED} at most; quote more of it"
        )
    if not edit.replace_all and (found.more or len(found.matches) > 1):
        raise ambiguous(document, wanted, found)
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
    document: Document, found: Found, wanted: Wanted, room: int | None
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
) -> tuple[Wanted, Found, tuple[str, ...]]:
    """Return where a text is; `every` says how many places are to be found, if all are."""

    def search(each: Wanted) -> Found | None:
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
        raise not_found(document, wanted)
    return *best, (_GUTTERS,)
