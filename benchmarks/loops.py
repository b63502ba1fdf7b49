"""What users write by hand where a library has no paging and no grep."""

import re
from collections.abc import Iterable


def page_of(text: str, offset: int, limit: int) -> tuple[str, int]:
    """Split the whole text and take some lines."""
    lines = text.split("\n")
    total = len(lines) - (not lines[-1])
    end = min(offset + limit, total)
    tail = "\n" if end < len(lines) else ""
    return "\n".join(lines[offset:end]) + tail, total


def grep_lines(files: Iterable[tuple[str, bytes]], pattern: str) -> list[tuple[str, int]]:
    """Search every line of every text file with Python's `re`."""
    search = re.compile(pattern).search
    found: list[tuple[str, int]] = []
    for path, content in files:
        try:
            lines = content.decode().split("\n")
        except UnicodeDecodeError:
            continue
        found += [(path, number) for number, line in enumerate(lines, 1) if search(line)]
    return found
