"""Definitions of a source file: classes, functions and types, with line and signature."""

import re
from dataclasses import dataclass
from typing import TypeAlias

from weakincentives.contrib.digest.budget import quote_line

MAX_DEFINITIONS = 1_000
"""Definitions of one file."""
MAX_SIGNATURE = 120
"""Characters of a signature."""
MAX_NAME = 80
"""Characters of a name; longer ones are generated."""
MAX_FRAME = 1024 * 1024
"""Bytes that the process that parses receives, or sends: a file, or its definitions."""
_BLANKS = re.compile(r"\s+")
_MAX_HEAD = 4_000  # characters of a head that are looked at


@dataclass(frozen=True, slots=True)
class SourceDefinition:
    """A class, function, method or type; lines count from 1."""

    name: str
    line: int
    depth: int
    """0 at the top of the file, 1 inside a class or module, and so on."""
    signature: str


Outline: TypeAlias = tuple[SourceDefinition, ...]
"""The definitions in a file, in their order."""


def clean_signature(head: str) -> str:
    """Return the head of a definition on one line, without the punctuation before its body."""
    text = _BLANKS.sub(" ", head[:_MAX_HEAD]).strip().rstrip(":{;= ").removesuffix("=>").rstrip()
    return quote_line(
        text.replace("( ", "(").replace(" )", ")").replace(",)", ")"), limit=MAX_SIGNATURE
    )
