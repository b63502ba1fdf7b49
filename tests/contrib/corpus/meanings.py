"""Intended edits: lines of a file, and their replacement."""

import re
from dataclasses import dataclass
from random import Random

from tests.contrib.corpus.files import Stored, blurred, clean, indent_of


@dataclass(frozen=True)
class New:
    """A line of the new text: one of the file, or a written one in place of or after one."""

    text: str
    origin: int
    kept: bool


def kept(file: Stored, start: int, stop: int) -> list[New]:
    return [New(file.lines[number], number, True) for number in range(start, stop)]


def renamed(file: Stored, start: int, stop: int, random: Random) -> list[New] | None:
    """Change a word of one line."""
    number = random.randrange(start, stop)
    words = re.findall(r"[A-Za-z]{4,}", clean(file.lines[number]))
    if not words:
        return None
    word = random.choice(words)
    line = clean(file.lines[number])
    changed = line[len(indent_of(line)) :].replace(word, word + "Changed", 1)
    new = kept(file, start, stop)
    new[number - start] = New(indent_of(file.lines[number]) + changed, number, False)
    return new


def grown(file: Stored, start: int, stop: int, random: Random) -> list[New] | None:
    """Add a line after another one, with the same indentation."""
    number = random.randrange(start, stop)
    if not file.lines[number].strip():
        return None
    line = New(indent_of(file.lines[number]) + "call_something_new(1)", number, False)
    new = kept(file, start, stop)
    new.insert(number - start + 1, line)
    return new


def nested(file: Stored, start: int, stop: int, random: Random) -> list[New] | None:
    """Add two lines, the second one level deeper."""
    number = random.randrange(start, stop)
    if not file.lines[number].strip():
        return None
    indent = indent_of(file.lines[number])
    lines = [New(indent + "when something_new:", number, False)]
    lines.append(New(indent + file.unit + "call_something_deep(2)", number, False))
    new = kept(file, start, stop)
    new[number - start + 1 : number - start + 1] = lines
    return new


def shrunk(file: Stored, start: int, stop: int, random: Random) -> list[New] | None:
    """Remove a line that is like no other."""
    span = [blurred(line) for line in file.lines[start:stop]]
    once = [number for number, line in enumerate(span) if line and span.count(line) == 1]
    if len(once) < 2:
        return None
    new = kept(file, start, stop)
    del new[random.choice(once)]
    return new


CHANGES = (renamed, grown, nested, shrunk)
