"""What slips into an edit from elsewhere: line numbers of a listing, placeholders for text."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from weakincentives.contrib.tools.editing.confusables import indent_of
from weakincentives.contrib.tools.editing.format import excerpt
from weakincentives.contrib.tools.editing.match import Wanted
from weakincentives.contrib.tools.editing.model import EditError, encoded_lines, unify_line_ends
from weakincentives.filesystem.diff import changed_blocks

# what stands between a number and its line in listings, the strictest first
_SEPARATORS = ("\t", "\u2192", " | ", "|", ": ", ":", "  ")
_SURE = ("\t", "\u2192")
_NUMBER = re.compile(r" *(\d+)")
_WORD = re.compile(r"\w")
_MARGIN = " \t#*/;%!-"  # a session may be in a comment
_AROUND = " .\u2026[](){}<>:-\u2014"
_MAX_PLACEHOLDER = 200
_MAX_ALIKE = 2_500  # pairs of lines of which it is asked whether they are alike
_LIKE = 0.6
_LIKE_PLACEHOLDER = 0.8
_NO_TEXT = {"", "pass", "..."}
_DOTS = re.compile(r"\.{3,}|\u2026")
_DOTS_AND_BLANK = re.compile(r"(?:\.{3,}|\u2026)[\s(\[]")
_COMMENT = re.compile(
    r"^(?P<open>\{?/\*+|//+|#+|<!--|--+|;+|%+|\*)?\s*(?P<body>.*?)\s*(?:\*/\}?|-->)?$"
)
_ELLIPSIS = re.compile(
    r"(?:\{?/\*+|//+|#+|<!--|--+|;+|%+)?\s*\[?(?:\.{3,}|\u2026)\]?\s*(?:\*/\}?|-->)?"
)
# a comment, or the end of a string that says what a stub is for
_REMARK = re.compile(r"/\*|\*|//|#|<!--|--|;|%|@|.*[\"']$")
_WHAT = (
    r"(?:code|content|contents|file|text|lines?|methods?|functions?|imports?|class|module|body|"
    r"implementation|logic|fields?|tests?|cases?|entries|items|section|document|script|block|stuff)"
)
_ELIDED = re.compile(
    rf"^(?:and\s+)?(?:the\s+)?(?:rest|remainder)\b|\b(?:rest|remainder)\s+of\s+(?:the|this|your)\b|"
    rf"\b(?:existing|remaining|previous|original|other)\s+{_WHAT}\b|"
    rf"(?:^|\b(?:other\s+\w+|{_WHAT})\s+(?:(?:is|are|was|were)\s+)?)(?:unchanged|omitted)\b|"
    rf"\bas before\b|\b(?:stays?|remains?) the same\b|^same as\b|"
    rf"\b{_WHAT}\s+(?:continues|stays|remains|here|above|below)\b|^no changes?\b",
    re.IGNORECASE,
)
_ALONE = re.compile(_WHAT, re.IGNORECASE)
_BULK = r"(?:code|contents?|file|function|method|class|module|implementation|logic|script|document)"
_SAID = re.compile(
    rf"(?:(?:the\s+)?(?:rest|remainder)(?:\s+of\s+(?:the\s+|this\s+|your\s+)?(?:\w+\s+)?{_WHAT})?|"
    rf"(?:(?:all|the|your)\s+)?(?:(?:existing|remaining|previous|original|other)\s+)+{_WHAT})\s+"
    r"(?:(?:is|are|stays?|remains?|goes|continues)\s+)?"
    r"(?:unchanged|the same|as before|as is|omitted|here|same as before)"
    rf"|{_WHAT}\s+(?:(?:is|are|stays?|remains?)\s+)?"
    r"(?:unchanged|the same|as before|as is|omitted|same as before)"
    rf"|(?:the\s+)?(?:rest|remainder)\s+of\s+(?:the\s+|this\s+|your\s+)?{_BULK}"
    rf"|unchanged(?:\s+{_WHAT})?(?:\s+here)?"
    rf"|existing\s+{_BULK}|same as (?:before|above)|no changes?\s+(?:here|below|above|needed)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Gutter:
    """Line numbers at the start of every line, as a listing has them."""

    separator: str

    def stripped(self, lines: Sequence[str]) -> list[str] | None:
        """Return the lines without numbers; None if one has none or they do not go up by one."""
        numbers: list[int] = []
        rest: list[str] = []
        for line in lines:
            divided = self._divided(line)
            if divided is None:
                return None
            numbers.append(divided[0])
            rest.append(divided[1])
        expected = list(range(numbers[0], numbers[0] + len(numbers))) if numbers else []
        return rest if numbers == expected else None

    def numbered(self, lines: Sequence[str]) -> list[bool]:
        """Return which lines have a number."""
        return [self._divided(line) is not None for line in lines]

    def number(self, line: str) -> int | None:
        """Return the number of a line; None if it has none."""
        divided = self._divided(line)
        return None if divided is None else divided[0]

    def removed(self, line: str) -> str:
        """Return a line without its number, if it has one."""
        divided = self._divided(line)
        return line if divided is None else divided[1]

    def _divided(self, line: str) -> tuple[int, str] | None:
        found = _NUMBER.match(line)
        if found is None:
            return None
        rest = line[found.end() :]
        if rest.startswith(self.separator):
            return int(found[1]), rest[len(self.separator) :]
        # the separator of an empty line may have been stripped with the blanks after it
        is_empty = not rest.strip() or rest.strip() == self.separator.strip()
        return (int(found[1]), "") if is_empty else None


def without_gutters(wanted: Wanted) -> Iterator[Wanted]:
    """Yield what may have been meant, if every line of the old text begins with its number.

    Raises:
        EditError: Only some lines of the new text begin with numbers.
    """
    for separator in _SEPARATORS:
        gutter = Gutter(separator)
        lines = gutter.stripped(wanted.lines)
        if lines is None or (len(lines) == 1 and separator == "  "):
            continue
        old = "\n".join(lines) + ("\n" if wanted.ends_line else "")
        if old.strip():
            new = _stripped_new(gutter, wanted.new)
            # one line such as `3: two` may just as well be text, unless it is that line
            line = None if len(lines) > 1 or separator in _SURE else gutter.number(wanted.lines[0])
            yield replace(wanted, old=old, new=new, starts_line=True, line=line)


def check_new(wanted: Wanted) -> None:
    """Refuse a new text with line numbers, or with a placeholder for text that would be removed.

    Raises:
        EditError: It has some.
    """
    line = find_placeholder(wanted.lines, unify_line_ends(wanted.new).split("\n"))
    if line is not None:
        raise EditError(
            f"New text has a placeholder instead of text: {excerpt(line.strip())}\n"
            "It would be written into the file as it stands. Write the whole new text out, "
            "or make the edit smaller so that it covers only what changes"
        )
    _check_numbers(wanted)


def find_placeholder(old: Sequence[str], new: Sequence[str]) -> str | None:
    """Return the first line of a new text that stands for old lines which it would remove.

    A line that says that text was left out is just text where nothing is lost: in a new file,
    between lines that stay, or in place of a line that is much like another new one.
    """
    known = {line.strip() for line in old}
    suspects = {
        number
        for number, line in enumerate(new)
        if line.strip() not in known
        and (is_placeholder(line) or _is_among_others(new, number))
        and not _is_session(new, number)
    }
    if not suspects:
        return None
    # a line that is somewhere else in the new text was moved
    missing = Counter(map(str.strip, old)) - Counter(map(str.strip, new))
    for removed, added in _changes(old, new):
        said = [number for number in added if number in suspects]
        gone = [old[number].strip() for number in removed if old[number].strip() in missing]
        if said and _loses(gone, [new[number].strip() for number in added]):
            return new[said[0]]
    return None


def is_placeholder(line: str) -> bool:
    """Return whether a line says that text was left out, such as `# ... rest unchanged ...`."""
    stripped = line.strip()
    if not stripped or len(stripped) > _MAX_PLACEHOLDER:
        return False
    found = _COMMENT.match(stripped)
    if found is None:
        return False
    body = found["body"].strip()
    words = body.strip(_AROUND).lstrip(_MARGIN)
    is_aside = found["open"] is not None or (body[:1] in "[(<" and body[-1:] in "])>")
    # without a blank after the dots it is a program: `...rest`
    if _DOTS.match(body.lstrip("[({< ")) and (is_aside or _DOTS_AND_BLANK.match(body)):
        # after a prompt, `... body` is a program too
        is_closed = is_aside or _DOTS.search(body, 3) is not None
        is_part = is_closed and _ALONE.fullmatch(words) is not None
        return is_part or _ELIDED.search(words) is not None
    return is_aside and _SAID.fullmatch(words) is not None


def _is_among_others(lines: Sequence[str], number: int) -> bool:
    """Return whether a line is an ellipsis between statements, not a stub or a part of a remark."""
    line = lines[number]
    if not _ELLIPSIS.fullmatch(line.strip()):
        return False
    before = next((each for each in reversed(lines[:number]) if each.strip()), "")
    after = next((each for each in lines[number + 1 :] if each.strip()), "")
    # the last line of a block may be a stub below what it is for
    around = (after,) if _DOTS.match(line.strip()) else (before, after)
    beside = [each for each in around if each and indent_of(each) == indent_of(line)]
    return bool(beside) and not any(_REMARK.match(each.strip()) for each in (before, *beside))


def _is_session(lines: Sequence[str], number: int) -> bool:
    """Return whether a line is a part of what was typed after a prompt, or of what it printed."""
    first = number
    while first >= 0 and lines[first].strip(_MARGIN):
        if lines[first].lstrip(_MARGIN).startswith(">>>"):
            # what was printed may have an ellipsis alone; what was typed goes on after one
            typed = lines[first + 1 : number + 1]
            is_typed = all(each.lstrip(_MARGIN).startswith("...") for each in typed)
            return is_typed or _DOTS.fullmatch(lines[number].strip(_MARGIN)) is not None
        first -= 1
    return False


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[range, range]]:
    """Yield which lines were replaced by which; brackets and empty lines between do not count."""
    stripped = [line.strip() for line in old]
    blocks = changed_blocks(encoded_lines(stripped), encoded_lines(line.strip() for line in new))
    merged: list[tuple[range, range]] = []
    for block in blocks:
        removed, added = range(block.start, block.stop), range(block.new_start, block.new_stop)
        if merged and not any(map(_WORD.search, stripped[merged[-1][0].stop : block.start])):
            before = merged.pop()
            removed = range(before[0].start, removed.stop)
            added = range(before[1].start, added.stop)
        merged.append((removed, added))
    yield from merged


def _loses(gone: Sequence[str], added: Sequence[str]) -> bool:
    """Return whether a line is gone that is not much like one that was added."""
    left = list(added)
    texts = [line for line in gone if line not in _NO_TEXT]
    if len(texts) * len(left) > _MAX_ALIKE:
        return True
    for line in texts:
        like = next((each for each in left if _is_like(line, each)), None)
        if like is None:
            return True
        left.remove(like)
    return False


def _is_like(line: str, other: str) -> bool:
    least = _LIKE_PLACEHOLDER if is_placeholder(other) else _LIKE
    compared = SequenceMatcher(None, line[:_MAX_PLACEHOLDER], other[:_MAX_PLACEHOLDER], False)
    return compared.quick_ratio() >= least and compared.ratio() >= least


def _check_numbers(wanted: Wanted) -> None:
    lines = _complete(wanted.new)
    for separator in _SURE:
        gutter = Gutter(separator)
        is_listing = len(lines) > 1 and gutter.stripped(lines) is not None
        is_padded = lines[0].startswith(" ") or separator != "\t"
        if is_listing and is_padded and not any(gutter.numbered(wanted.lines)):
            raise EditError(
                f"Every line of the new text begins with a line number: {excerpt(lines[0])}\n"
                "Leave out the numbers that a listing shows; they are not in the file"
            )


def _stripped_new(gutter: Gutter, new: str) -> str:
    lines = unify_line_ends(new).split("\n")
    visible = [line for line in lines if line.strip()]
    numbered = gutter.numbered(visible)
    if any(numbered) and not all(numbered):
        plain_line = visible[numbered.index(False)]
        raise EditError(
            "Line numbers of a listing are in the old text and in a part of the new text; "
            f"this line has none: {excerpt(plain_line)}\nLeave them out of both"
        )
    return "\n".join(map(gutter.removed, lines)) if any(numbered) else new


def _complete(text: str) -> list[str]:
    lines = unify_line_ends(text).split("\n")
    return lines[:-1] if len(lines) > 1 and not lines[-1] else lines
