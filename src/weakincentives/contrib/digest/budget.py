"""Text within a token budget: an estimate of tokens, and quotes that stay data.

The estimate needs no tokenizer and no network: one token for every three bytes of UTF-8. The
tokenizers of today's models need fewer for code and English prose, so it is an upper bound there.
Everything that comes from a workspace (names, lines of files) is escaped, shortened and quoted
here, so that it can neither leave its line nor look like a part of the digest.
"""

import re
from collections.abc import Iterable, Sequence

from weakincentives.posix.paths import display_path  # the parser's process starts without the rest

BYTES_PER_TOKEN = 3
MAX_PATH = 160  # characters of a path that are shown
MAX_LINE = 200  # characters of a line that are shown
_PLAIN_PATH = re.compile(r"[\w@+=~./%#,\[\]{}$()-]+")


def estimate_tokens(text: str) -> int:
    """Return the estimated number of tokens in `text`: its bytes in UTF-8 divided by three."""
    size = len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def quote_path(path: str) -> str:
    """Return `path` on one line; one with blanks or unusual characters is in quotation marks."""
    shown = shorten(display_path(path), MAX_PATH)
    if _PLAIN_PATH.fullmatch(shown):
        return shown
    quoted = shown.replace('"', '\\"')
    return f'"{quoted}"'


def quote_line(line: str, *, limit: int = MAX_LINE) -> str:
    """Return a line of a file for the digest: invisible characters escaped, at most `limit` long.

    Tabs become blanks, since they are the one invisible character that code is full of.
    """
    # escaping makes a line longer, so a very long one is cut first
    bounded = line[: limit + 1].replace("\t", "    ").rstrip()
    return shorten(_escape(bounded), limit) if bounded else ""


def shorten(text: str, limit: int) -> str:
    """Return `text`, without its end if it is longer than `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `2,000 files`, `2 directories`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {plural}"


def format_size(size: int) -> str:
    """Return a number of bytes for people: `812 B`, `3.4 kB`, `1.2 MB`."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} GB"


def fit_lines(lines: Sequence[str], tokens: int, *, noun: str = "line") -> list[str]:
    """Return the first of `lines` that fit into `tokens`; the last says how many are left out."""
    kept = first_lines(lines, tokens)
    if len(kept) == len(lines):
        return kept
    while True:  # drop lines until the note on what is missing fits too
        note = f"… {count(len(lines) - len(kept), f'more {noun}')}"
        if lines_tokens([*kept, note]) <= tokens:
            return [*kept, note]
        if not kept:
            return []
        kept.pop()


def first_lines(lines: Iterable[str], tokens: int) -> list[str]:
    """Return the first of `lines` that fit into `tokens`."""
    kept: list[str] = []
    for line in lines:
        tokens -= line_tokens(line)
        if tokens < 0:
            break
        kept.append(line)
    return kept


def line_tokens(line: str) -> int:
    """Return the estimated tokens of a line and its line break."""
    return estimate_tokens(line + "\n")


def lines_tokens(lines: Iterable[str]) -> int:
    """Return an upper bound of the estimated tokens of `lines`."""
    return sum(map(line_tokens, lines))


def _escape(text: str) -> str:
    """Escape invisible characters, but not backslashes, which are ordinary in a line of code."""
    if text.isascii() and text.isprintable():
        return text
    return "\\".join(display_path(part) if part else "" for part in text.split("\\"))
