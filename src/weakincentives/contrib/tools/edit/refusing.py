"""Why an edit is refused, in words that help a model to send a better one."""

import html
import re
from collections.abc import Iterable

from weakincentives.contrib.tools.edit.document import Document
from weakincentives.contrib.tools.edit.edits import EditError, Grade
from weakincentives.contrib.tools.edit.matching import Found, Wanted, find
from weakincentives.contrib.tools.edit.nearest import closest_region, differences, shown
from weakincentives.contrib.tools.edit.wording import excerpt, lines_named

_ELLIPSES = {"...", "\u2026", "# ...", "// ...", "/* ... */", "[...]", "(...)"}
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # how bytes are decoded that are no UTF-8
_MIN_TELLING = 6  # characters; a shorter text may be anywhere by chance
_OVERLOOKED = {
    Grade.EXACT: "",
    Grade.LINE_ENDINGS: " when line endings are overlooked",
    Grade.TRAILING_SPACE: " when blanks at the ends of lines are overlooked",
    Grade.INDENTATION: " when the indentation is overlooked",
    Grade.UNICODE: " when look-alike characters are overlooked",
}


def not_found(document: Document, wanted: Wanted) -> EditError:
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
    where = lines_named([region.start + 1])
    if region.stop - region.start > 1:
        where = f"lines {region.start + 1} to {region.stop}"
    told = "\n".join(differences(document, region, wanted.lines))
    return (
        f"The closest text is at {where}:\n{shown(document, region)}\n"
        + (f"{told}\n" if told else "")
        + "Quote the lines as they are in the file, without the numbers"
    )


def ambiguous(document: Document, wanted: Wanted, found: Found) -> EditError:
    """Return the error for a text that is in several places."""
    numbers = [document.number_at(match.start) for match in found.matches]
    count = f"more than {len(numbers)}" if found.more else str(len(numbers))
    return EditError(
        f"Text to replace was found {count} times{_OVERLOOKED[found.grade]}, "
        f"at {lines_named(numbers, more=found.more)}: {excerpt(wanted.old)}\n"
        "Add lines before or after it that only the right place has, "
        "or ask for every place to be replaced"
    )


def unexpected(document: Document, wanted: Wanted, found: Found, expected: int) -> EditError:
    """Return the error for a text that is in more or fewer places than was expected."""
    numbers = [document.number_at(match.start) for match in found.matches]
    return EditError(
        f"Text to replace was expected {expected} times and found {len(numbers)} times"
        f"{_OVERLOOKED[found.grade]}, at {lines_named(numbers)}: {excerpt(wanted.old)}\n"
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
    return f"Without the blank lines around it, it is at {lines_named(numbers, more=found.more)}"


def _rewritten(old: str) -> tuple[tuple[str, str], ...]:
    unescaped = old.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')
    return (
        (unescaped, "escape sequences such as a backslash and an n"),
        (unescaped.replace("\\'", "'").replace("\\\\", "\\"), "backslashes"),
        (html.unescape(old), "HTML entities"),
    )
