"""Sanitize the text of edits: strip pasted line numbers, reject placeholders for omitted text."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from weakincentives.contrib.tools.editing.confusables import indent_of
from weakincentives.contrib.tools.editing.match import (
    EditError,
    Query,
    encode_lines,
    excerpt,
    unify_line_ends,
)
from weakincentives.filesystem.diff import changed_blocks

# what separates a line number from its line in listings, strictest first
_SEPARATORS = ("\t", "\u2192", " | ", "|", ": ", ":", "  ")
_UNAMBIGUOUS_SEPARATORS = ("\t", "\u2192")
_NUMBER = re.compile(r" *(\d+)")
_WORD = re.compile(r"\w")
_COMMENT_MARGIN = " \t#*/;%!-"  # an interpreter session may be quoted in a comment
_DECORATION = " .\u2026[](){}<>:-\u2014"
_MAX_PLACEHOLDER = 200
_MAX_COMPARED = 2_500  # pairs of lines compared for similarity
_MIN_SIMILARITY = 0.6
_MIN_PLACEHOLDER_SIMILARITY = 0.8
_EMPTY_STATEMENTS = {"", "pass", "..."}
_DOTS = re.compile(r"\.{3,}|\u2026")
_DOTS_THEN_SPACE = re.compile(r"(?:\.{3,}|\u2026)[\s(\[]")
_COMMENT = re.compile(
    r"^(?P<open>\{?/\*+|//+|#+|<!--|--+|;+|%+|\*)?\s*(?P<body>.*?)\s*(?:\*/\}?|-->)?$"
)
_ELLIPSIS = re.compile(
    r"(?:\{?/\*+|//+|#+|<!--|--+|;+|%+)?\s*\[?(?:\.{3,}|\u2026)\]?\s*(?:\*/\}?|-->)?"
)
# a comment, or the end of a docstring above a stub
_REMARK = re.compile(r"/\*|\*|//|#|<!--|--|;|%|@|.*[\"']$")
_CODE_NOUN = (
    r"(?:code|content|contents|file|text|lines?|methods?|functions?|imports?|class|module|body|"
    r"implementation|logic|fields?|tests?|cases?|entries|items|section|document|script|block|stuff)"
)
_OMISSION = re.compile(
    rf"^(?:and\s+)?(?:the\s+)?(?:rest|remainder)\b|\b(?:rest|remainder)\s+of\s+(?:the|this|your)\b|"
    rf"\b(?:existing|remaining|previous|original|other)\s+{_CODE_NOUN}\b|"
    rf"(?:^|\b(?:other\s+\w+|{_CODE_NOUN})\s+(?:(?:is|are|was|were)\s+)?)(?:unchanged|omitted)\b|"
    rf"\bas before\b|\b(?:stays?|remains?) the same\b|^same as\b|"
    rf"\b{_CODE_NOUN}\s+(?:continues|stays|remains|here|above|below)\b|^no changes?\b",
    re.IGNORECASE,
)
_CODE_NOUN_ALONE = re.compile(_CODE_NOUN, re.IGNORECASE)
_WHOLE_NOUN = (
    r"(?:code|contents?|file|function|method|class|module|implementation|logic|script|document)"
)
_OMISSION_SENTENCE = re.compile(
    rf"(?:(?:the\s+)?(?:rest|remainder)(?:\s+of\s+(?:the\s+|this\s+|your\s+)?(?:\w+\s+)?{_CODE_NOUN})?|"
    rf"(?:(?:all|the|your)\s+)?(?:(?:existing|remaining|previous|original|other)\s+)+{_CODE_NOUN})\s+"
    r"(?:(?:is|are|stays?|remains?|goes|continues)\s+)?"
    r"(?:unchanged|the same|as before|as is|omitted|here|same as before)"
    rf"|{_CODE_NOUN}\s+(?:(?:is|are|stays?|remains?)\s+)?"
    r"(?:unchanged|the same|as before|as is|omitted|same as before)"
    rf"|(?:the\s+)?(?:rest|remainder)\s+of\s+(?:the\s+|this\s+|your\s+)?{_WHOLE_NOUN}"
    rf"|unchanged(?:\s+{_CODE_NOUN})?(?:\s+here)?"
    rf"|existing\s+{_WHOLE_NOUN}|same as (?:before|above)"
    r"|no changes?\s+(?:here|below|above|needed)",
    re.IGNORECASE,
)


def strip_line_numbers(query: Query) -> Iterator[Query]:
    """Yield the query without line numbers, for each separator that fits every old line."""
    for separator in _SEPARATORS:
        found = _strip_listing(query.lines, separator)
        if found is None or (len(query.lines) == 1 and separator == "  "):
            continue
        first, lines = found
        old = "\n".join(lines) + ("\n" if query.ends_line else "")
        if old.strip():
            new = _strip_new_text(query.new, separator)
            is_clear = len(lines) > 1 or separator in _UNAMBIGUOUS_SEPARATORS
            # a single `3: two` may be text, so it must match line 3
            line = None if is_clear else first
            yield replace(query, old=old, new=new, starts_line=True, line=line)


def _strip_listing(lines: Sequence[str], separator: str) -> tuple[int, list[str]] | None:
    """Return the first number and the lines without numbers; None unless these go up by one."""
    first, rest = 0, list[str]()
    for at, line in enumerate(lines):
        parts = _split_number(line, separator)
        if parts is None or (at and parts[0] != first + at):
            return None
        first = parts[0] - at
        rest.append(parts[1])
    return first, rest


def _split_number(line: str, separator: str) -> tuple[int, str] | None:
    """Return the number before a line and the line; None if it has none."""
    found = _NUMBER.match(line)
    if found is None:
        return None
    rest = line[found.end() :]
    if rest.startswith(separator):
        return int(found[1]), rest[len(separator) :]
    # on an empty line, the separator may have been stripped as trailing whitespace
    is_empty = not rest.strip() or rest.strip() == separator.strip()
    return (int(found[1]), "") if is_empty else None


def check_new_text(query: Query) -> None:
    """Reject a new text with line numbers, or with a placeholder for text it would remove."""
    line = find_placeholder(query.lines, unify_line_ends(query.new).split("\n"))
    if line is not None:
        raise EditError(
            f"New text has a placeholder for omitted text: {excerpt(line.strip())}\n"
            "It would be written to the file literally. Write out the full text, "
            "or make the edit smaller so that it covers only what changes"
        )
    _check_line_numbers(query)


def find_placeholder(old: Sequence[str], new: Sequence[str]) -> str | None:
    """Return the first new line that is a placeholder for old lines it would remove.

    Such a line is ordinary text where nothing is lost: in a new file, between lines that
    stay, or where every removed line is similar to an added one.
    """
    known = {line.strip() for line in old}
    suspects = {
        number
        for number, line in enumerate(new)
        if line.strip() not in known
        and (is_placeholder(line) or _is_between_statements(new, number))
        and not _is_interpreter_session(new, number)
    }
    if not suspects:
        return None
    # a line that is elsewhere in the new text was moved, not lost
    missing = Counter(map(str.strip, old)) - Counter(map(str.strip, new))
    for removed, added in _changed_ranges(old, new):
        placeholders = [number for number in added if number in suspects]
        lost = [old[number].strip() for number in removed if old[number].strip() in missing]
        if placeholders and _loses_text(lost, [new[number].strip() for number in added]):
            return new[placeholders[0]]
    return None


def is_placeholder(line: str) -> bool:
    """Return whether a line stands for omitted text, such as `# ... rest unchanged ...`."""
    stripped = line.strip()
    if not stripped or len(stripped) > _MAX_PLACEHOLDER:
        return False
    found = _COMMENT.match(stripped)
    if found is None:
        return False
    body = found["body"].strip()
    words = body.strip(_DECORATION).lstrip(_COMMENT_MARGIN)
    is_aside = found["open"] is not None or (body[:1] in "[(<" and body[-1:] in "])>")
    # dots without a space after them are code: `...rest`
    if _DOTS.match(body.lstrip("[({< ")) and (is_aside or _DOTS_THEN_SPACE.match(body)):
        # after an interpreter prompt, `... body` is code too
        is_closed = is_aside or _DOTS.search(body, 3) is not None
        is_part = is_closed and _CODE_NOUN_ALONE.fullmatch(words) is not None
        return is_part or _OMISSION.search(words) is not None
    return is_aside and _OMISSION_SENTENCE.fullmatch(words) is not None


def _is_between_statements(lines: Sequence[str], number: int) -> bool:
    """Return whether a line is an ellipsis between statements, not a stub or part of a comment."""
    line = lines[number]
    if not _ELLIPSIS.fullmatch(line.strip()):
        return False
    before = next((each for each in reversed(lines[:number]) if each.strip()), "")
    after = next((each for each in lines[number + 1 :] if each.strip()), "")
    # a bare `...` on the last line of a block may be a stub
    around = (after,) if _DOTS.match(line.strip()) else (before, after)
    beside = [each for each in around if each and indent_of(each) == indent_of(line)]
    return bool(beside) and not any(_REMARK.match(each.strip()) for each in (before, *beside))


def _is_interpreter_session(lines: Sequence[str], number: int) -> bool:
    """Return whether a line is part of an interpreter session: input after `>>>`, or output."""
    first = number
    while first >= 0 and lines[first].strip(_COMMENT_MARGIN):
        if lines[first].lstrip(_COMMENT_MARGIN).startswith(">>>"):
            # output may have a bare ellipsis; input continues after one
            typed = lines[first + 1 : number + 1]
            is_typed = all(each.lstrip(_COMMENT_MARGIN).startswith("...") for each in typed)
            return is_typed or _DOTS.fullmatch(lines[number].strip(_COMMENT_MARGIN)) is not None
        first -= 1
    return False


def _changed_ranges(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[range, range]]:
    """Yield the removed and added lines; changes with no word between them are merged."""
    stripped = [line.strip() for line in old]
    blocks = changed_blocks(encode_lines(stripped), encode_lines(line.strip() for line in new))
    merged: list[tuple[range, range]] = []
    for block in blocks:
        removed, added = range(block.start, block.stop), range(block.new_start, block.new_stop)
        if merged and not any(map(_WORD.search, stripped[merged[-1][0].stop : block.start])):
            before = merged.pop()
            removed = range(before[0].start, removed.stop)
            added = range(before[1].start, added.stop)
        merged.append((removed, added))
    yield from merged


def _loses_text(removed: Sequence[str], added: Sequence[str]) -> bool:
    """Return whether a removed line is similar to none of the added lines."""
    left = list(added)
    texts = [line for line in removed if line not in _EMPTY_STATEMENTS]
    if len(texts) * len(left) > _MAX_COMPARED:
        return True
    for line in texts:
        similar = next((each for each in left if _is_similar(line, each)), None)
        if similar is None:
            return True
        left.remove(similar)
    return False


def _is_similar(line: str, other: str) -> bool:
    minimum = _MIN_PLACEHOLDER_SIMILARITY if is_placeholder(other) else _MIN_SIMILARITY
    texts = line[:_MAX_PLACEHOLDER], other[:_MAX_PLACEHOLDER]
    matcher = SequenceMatcher(None, *texts, autojunk=False)
    return matcher.quick_ratio() >= minimum and matcher.ratio() >= minimum


def _check_line_numbers(query: Query) -> None:
    lines = unify_line_ends(query.new).removesuffix("\n").split("\n")
    for separator in _UNAMBIGUOUS_SEPARATORS:
        # lines of nothing but numbers are numbers
        _, stripped = _strip_listing(lines, separator) or (0, [])
        is_listing = len(lines) > 1 and any(stripped)
        is_padded = lines[0].startswith(" ") or separator != "\t"
        has_old_numbers = any(_split_number(line, separator) for line in query.lines)
        if is_listing and is_padded and not has_old_numbers:
            raise EditError(
                f"Every line of the new text starts with a line number: {excerpt(lines[0])}\n"
                "Leave out the line numbers; they are not part of the file"
            )


def _strip_new_text(new: str, separator: str) -> str:
    lines = unify_line_ends(new).split("\n")
    parts = [_split_number(line, separator) for line in lines]
    plain = [line for line, each in zip(lines, parts, strict=True) if each is None and line.strip()]
    if not any(parts):
        return new
    if plain:
        raise EditError(
            "The old text has line numbers on every line, the new text only on some; "
            f"this line has none: {excerpt(plain[0])}\nLeave line numbers out of both"
        )
    pairs = zip(lines, parts, strict=True)
    return "\n".join(line if each is None else each[1] for line, each in pairs)
