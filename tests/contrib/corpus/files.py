"""Sample files: sources in many languages, and the variants that editors and systems produce."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SOURCES = Path(__file__).parent / "sources"

UNITS = {
    "inventory.py": "    ",
    "server.go": "\t",
    "cart.ts": "  ",
    "deploy.yaml": "  ",
    "handbook.md": "    ",
    "ring.c": "    ",
    "report.sql": "    ",
    "page.html": "  ",
    "Scheduler.java": "    ",
    "build.mk": "\t",
    "lexer.rs": "    ",
}
STRAIGHT = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": "-",
        "\u2011": "-",
        "\u2212": "-",
        "\u00a0": " ",
        "\u202f": " ",
        "\u3000": " ",
        "\u200b": "",
        "\u2026": "...",
    }
)
Lines = list[str]


def clean(line: str) -> str:
    """Return a line as somebody would type it."""
    return unicodedata.normalize("NFC", line).translate(STRAIGHT).rstrip()


def blurred(line: str) -> str:
    """Return what no mistake below changes, or less."""
    return " ".join(clean(line).split())


def indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t\u00a0"))]


def as_crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def half_crlf(text: str) -> str:
    lines = text.splitlines(keepends=True)
    middle = len(lines) // 2
    return as_crlf("".join(lines[:middle])) + "".join(lines[middle:])


def with_bom(text: str) -> str:
    return "\ufeff" + text


def without_last_end(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")


def with_trailing(text: str) -> str:
    blanks = ("  ", "", "\t", "", " ")
    lines = text.split("\n")
    return "\n".join(
        line + blanks[number % 5] if line else line for number, line in enumerate(lines)
    )


def with_blank_indent(text: str) -> str:
    """Indent empty lines, as editors leave them behind."""
    lines = text.split("\n")
    for number in range(1, len(lines) - 1):
        if not lines[number]:
            lines[number] = indent_of(lines[number - 1])
    return "\n".join(lines)


def with_tabs(text: str) -> str:
    def tabbed(match: re.Match[str]) -> str:
        return "\t" * (len(match[0]) // 4) + " " * (len(match[0]) % 4)

    return re.sub(r"^ +", tabbed, text, flags=re.MULTILINE)


def with_curly_quotes(text: str) -> str:
    return re.sub(r'"([^"\n]*)"', "\u201c\\1\u201d", text).replace("'", "\u2019")


def with_hard_spaces(text: str) -> str:
    return re.sub(r"(?<=[,:;]) (?=\S)", "\u00a0", text)


def with_long_dashes(text: str) -> str:
    return text.replace(" - ", " \u2014 ").replace("-", "\u2011")


def decomposed(text: str) -> str:
    return unicodedata.normalize("NFD", text)


STORED: dict[str, Callable[[str], str]] = {
    "crlf": as_crlf,
    "half-crlf": half_crlf,
    "bom": with_bom,
    "no-end": without_last_end,
    "trailing": with_trailing,
    "blank-indent": with_blank_indent,
    "tabs": with_tabs,
    "curly": with_curly_quotes,
    "hard-spaces": with_hard_spaces,
    "dashes": with_long_dashes,
    "nfd": decomposed,
}


@dataclass(frozen=True)
class Stored:
    """A file as it is stored: its text, and its lines with where they begin."""

    key: str
    unit: str
    text: str
    lines: Lines = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: Lines = field(default_factory=list)

    def slice(self, start: int, stop: int, closed: bool) -> tuple[int, int]:
        end = self.starts[stop - 1] + len(self.lines[stop - 1])
        return self.starts[start], end + (len(self.ends[stop - 1]) if closed else 0)


def stored(name: str, dressings: Sequence[str]) -> Stored:
    text = (SOURCES / f"{name}.txt").read_text(encoding="utf-8")
    for dressing in dressings:
        text = STORED[dressing](text)
    found = Stored("+".join([name, *dressings]), _unit(name, dressings), text)
    at = 1 if text.startswith("\ufeff") else 0
    for line in text[at:].split("\n"):
        is_last = at + len(line) == len(text)
        if is_last and not line:
            break
        content = line if is_last else line.removesuffix("\r")
        found.lines.append(content)
        found.starts.append(at)
        found.ends.append("" if is_last else text[at + len(content) : at + len(line) + 1])
        at += len(line) + 1
    return found


def _unit(name: str, dressings: Sequence[str]) -> str:
    return "\t" if "tabs" in dressings else UNITS[name]


def places(lines: Sequence[str], part: Sequence[str]) -> list[int]:
    """Return where `part` is in `lines`, both blurred."""
    return [
        number
        for number in range(len(lines) - len(part) + 1)
        if list(lines[number : number + len(part)]) == list(part)
    ]
