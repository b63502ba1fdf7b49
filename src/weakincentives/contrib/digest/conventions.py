"""Conventions: excerpts of the files in which a project writes to its contributors and agents.

They are quoted, not followed. Each line of a quote begins with `> ` and has its invisible
characters escaped, so a quote ends where the digest ends it, whatever the file contains. How much
to trust the text is the reader's decision; the heading above says whose words they are.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weakincentives.contrib.digest.budget import (
    count,
    estimate_tokens,
    line_tokens,
    lines_tokens,
    quote_line,
    quote_path,
)
from weakincentives.contrib.digest.inventory import Inventory

MAX_DOCUMENTS = 8
MAX_EXCERPT = 16 * 1024  # bytes of one document that are read
AGENT_FILES = (
    "AGENTS.md",
    "CLAUDE.md",
    ".claude/CLAUDE.md",
    "GEMINI.md",
    ".github/copilot-instructions.md",
    ".cursorrules",
    ".windsurfrules",
    ".clinerules",
    ".rules",
    ".junie/guidelines.md",
    "CONVENTIONS.md",
)
"""The files at fixed places in which projects write to agents, the most common first."""
RULE_DIRECTORIES = (
    ".cursor/rules/",
    ".claude/rules/",
    ".windsurf/rules/",
    ".clinerules/",
    ".github/instructions/",
)
"""Directories with further files for agents."""
_CONTRIBUTOR_FILES = (
    "CONTRIBUTING.md",
    "CONTRIBUTING.rst",
    "CONTRIBUTING",
    ".github/CONTRIBUTING.md",
    "docs/contributing.md",
    "HACKING.md",
    "HACKING",
    "DEVELOPMENT.md",
)
_READMES = ("README.md", "README.rst", "README", "README.txt", "readme.md", "Readme.md")
_NOISE = re.compile(
    r"\s*(?:<[^>]*>\s*)+|\s*(?:\[?!\[[^\n]*)|\s*\.\. (?:image|_|\|)[^\n]*|\s*:\w+:[^\n]*"
    r"|[\s=~*#-]*|\s*---\s*"
)
_README_SHARE = 4  # a README may take one part in so many of the tokens


@dataclass(frozen=True, slots=True)
class Convention:
    """An excerpt of one document, as data; its lines are escaped and bounded."""

    path: str
    lines: tuple[str, ...]
    omitted_lines: int = 0


def find_conventions(
    inventory: Inventory, tokens: int, *, for_agents: bool = True
) -> Sequence[Convention]:
    """Return excerpts that fit into `tokens` together, those written for agents first.

    Args:
        inventory: The files.
        tokens: The budget.
        for_agents: Whether to quote files that are written for agents.
    """
    found: list[Convention] = []
    seen: set[str] = set()
    documents = list(_documents(inventory, for_agents=for_agents))[:MAX_DOCUMENTS]
    for number, (path, is_readme) in enumerate(documents):
        text = inventory.read_text(path, limit=MAX_EXCERPT)
        if text in seen:  # often one file for each agent, with the same text
            continue
        seen.add(text)
        # documents share what is left, so that a long one does not take it all
        share = tokens // max(1, min(3, len(documents) - number))
        excerpt = _excerpt(path, text, min(share, tokens // _README_SHARE if is_readme else share))
        if excerpt is not None:
            found.append(excerpt)
            tokens -= lines_tokens(render_convention(excerpt))
    return found


def render_convention(convention: Convention) -> list[str]:
    """Return the lines of a quote: its path, and each line after `> `."""
    omitted = convention.omitted_lines
    more = f" (first part; at least {count(omitted, 'more line')} in the file)" if omitted else ""
    return [f"{quote_path(convention.path)}{more}:", *(f"> {line}" for line in convention.lines)]


def _documents(inventory: Inventory, *, for_agents: bool) -> Iterator[tuple[str, bool]]:
    if for_agents:
        for path in AGENT_FILES:
            if path in inventory.paths:
                yield path, False
        for each in inventory.files:
            if each.path.startswith(RULE_DIRECTORIES):
                yield each.path, False
    contributing = next((path for path in _CONTRIBUTOR_FILES if path in inventory.paths), None)
    if contributing:
        yield contributing, False
    readme = next((path for path in _READMES if path in inventory.paths), None)
    if readme:
        yield readme, True


def _excerpt(path: str, text: str, tokens: int) -> Convention | None:
    """Return the first lines of `text` that say something and fit into `tokens`."""
    lines = [quote_line(line) for line in text.splitlines() if not _NOISE.fullmatch(line[:500])]
    left = tokens - line_tokens(
        f"{quote_path(path)} (first part; at least 99,999 more lines in the file):"
    )
    kept: list[str] = []
    for line in lines:
        left -= estimate_tokens(f"> {line}\n")
        if left < 0:
            break
        kept.append(line)
    if not kept:
        return None
    return Convention(path, tuple(kept), len(lines) - len(kept))
