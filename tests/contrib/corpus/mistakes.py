"""Mistakes that models make in the text of an edit.

The first kind spoils the content of lines that are quoted, the second the indentation of
all lines, the third puts numbers before them.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence

from tests.contrib.corpus.files import Lines, clean, indent_of, with_curly_quotes


def rstripped(line: str) -> str:
    return line.rstrip()


def trailing_added(line: str) -> str:
    return line + "  " if line.strip() else line


def curled(line: str) -> str:
    return with_curly_quotes(line)


def dashed(line: str) -> str:
    return line.replace("-", "\u2013")


def hard_spaced(line: str) -> str:
    return re.sub(r"(?<=\S) (?=\S)", "\u00a0", line, count=1)


def composed(line: str) -> str:
    return unicodedata.normalize("NFC", line)


def apart(line: str) -> str:
    return unicodedata.normalize("NFD", line)


def zero_width(line: str) -> str:
    return line.replace("(", "\u200b(", 1)


CONTENT: dict[str, Callable[[str], str]] = {
    "rstripped": rstripped,
    "trailing-added": trailing_added,
    "straight": clean,
    "curled": curled,
    "dashed": dashed,
    "hard-spaced": hard_spaced,
    "composed": composed,
    "apart": apart,
    "zero-width": zero_width,
}


def reindented(change: Callable[[str], str]) -> Callable[[Lines, Lines], Lines | None]:
    def spoil(lines: Lines, _: Lines) -> Lines | None:
        return [
            change(indent_of(line)) + line[len(indent_of(line)) :] if line.strip() else line
            for line in lines
        ]

    return spoil


def dedented(lines: Lines, old: Lines) -> Lines | None:
    common = min((indent_of(line) for line in old if line.strip()), key=len)
    if not common or any(line.strip() and not line.startswith(common) for line in lines):
        return None
    return [line.removeprefix(common) if line.strip() else line for line in lines]


def first_stripped(lines: Lines, old: Lines) -> Lines | None:
    moved_up = lines[0].strip() in [line.strip() for line in old[1:]]
    if indent_of(lines[0]) != indent_of(old[0]) or moved_up:
        return None
    return [lines[0].lstrip(), *lines[1:]]


INDENT: dict[str, Callable[[Lines, Lines], Lines | None]] = {
    "tabs-as-4": reindented(lambda indent: indent.replace("\t", "    ")),
    "tabs-as-8": reindented(lambda indent: indent.replace("\t", "        ")),
    "tabs-as-2": reindented(lambda indent: indent.replace("\t", "  ")),
    "4-as-tabs": reindented(lambda indent: indent.replace("    ", "\t")),
    "2-as-tabs": reindented(lambda indent: indent.replace("  ", "\t")),
    "right-4": reindented(lambda indent: "    " + indent),
    "right-2": reindented(lambda indent: "  " + indent),
    "right-tab": reindented(lambda indent: "\t" + indent),
    "halved": reindented(lambda indent: indent[: len(indent) // 2]),
    "doubled": reindented(lambda indent: indent * 2),
    "dedented": dedented,
    "first-stripped": first_stripped,
}


def numbered(template: str) -> Callable[[Lines, int], Lines]:
    def spoil(lines: Lines, first: int) -> Lines:
        return [template.format(number) + line for number, line in enumerate(lines, first)]

    return spoil


GUTTERS = {
    "cat-n": numbered("{:>6}\t"),
    "arrow": numbered("{:>5}\u2192"),
    "pipe": numbered("{:>4} | "),
    "colon": numbered("{}: "),
    "grep": numbered("{}:"),
}


def spoilt(
    texts: Sequence[tuple[str, bool]], mistakes: Sequence[str], first: int, old: Lines
) -> Lines | None:
    """Return lines with mistakes; only those that are quoted get the first kind."""
    lines = [text for text, _ in texts]
    for mistake in mistakes:
        if mistake in CONTENT:
            lines = [
                CONTENT[mistake](line) if is_quoted else line
                for line, (_, is_quoted) in zip(lines, texts, strict=True)
            ]
        elif mistake in INDENT:
            changed = INDENT[mistake](lines, old)
            if changed is None:
                return None
            lines = changed
        elif mistake in GUTTERS:
            lines = GUTTERS[mistake](lines, first)
    return lines
