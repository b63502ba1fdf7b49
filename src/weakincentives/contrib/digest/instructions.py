"""Project instructions: the files in which a project tells agents and people how to work on it.

A digest quotes the first lines of them (`find_conventions`); a prompt has those for agents whole.
`AGENTS.md` and its kin at the root are read whole, as far as they fit. Those of subdirectories,
and rules that are only for some files, are named: the model reads them when it gets there. Links
are followed if they stay in the workspace.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from weakincentives.contrib.digest.budget import (
    count,
    estimate_tokens,
    first_lines,
    line_tokens,
    lines_tokens,
    quote_line,
    quote_path,
)
from weakincentives.contrib.digest.inventory import Inventory
from weakincentives.filesystem import Filesystem

DEFAULT_INSTRUCTION_TOKENS = 8_000
"""Tokens of all instructions together, unless more or fewer are asked for."""
MAX_FILE_TOKENS = 4_000
"""Tokens of one file."""
MAX_NAMED = 20
"""Files that are named, and not quoted."""
_MAX_BYTES = 256 * 1024
_MAX_RULES = 50  # files of one directory with rules
_NESTED_NAMES = ("AGENTS.md", "CLAUDE.md", "GEMINI.md")
_FRONT_MATTER = re.compile(r"---\r?\n(.*?)\r?\n---\r?\n?", re.DOTALL)
_SCOPE = re.compile(r"^(?:globs|applyTo|paths)[ \t]*:\s*(\S.*)$", re.MULTILINE)
_OPTIONAL = re.compile(r"^alwaysApply\s*:\s*false\s*$", re.MULTILINE)
_IMPORT_ONLY = re.compile(r"@(\S+)")
_EVERYWHERE = ("**", "**/*", "*")


@dataclass(frozen=True, slots=True)
class InstructionFile:
    """A file with instructions, as far as it fits."""

    path: str
    text: str
    tokens: int
    """The estimated tokens of `text`."""
    omitted_lines: int = 0
    """Lines at the end of the file that are left out."""


@dataclass(frozen=True, slots=True)
class NamedInstructions:
    """A file with instructions for a part of the workspace; it is named, and not quoted."""

    path: str
    scope: str = ""
    """The files that it is for: a directory, or the pattern that the file itself names."""


@dataclass(frozen=True, slots=True)
class ProjectInstructions:
    """What a workspace tells agents."""

    files: tuple[InstructionFile, ...] = ()
    named: tuple[NamedInstructions, ...] = ()

    @property
    def tokens(self) -> int:
        """The estimated tokens of the quoted texts."""
        return sum(each.tokens for each in self.files)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.files or self.named)


def find_instructions(
    filesystem: Filesystem,
    *,
    tokens: int = DEFAULT_INSTRUCTION_TOKENS,
    inventory: Inventory | None = None,
) -> ProjectInstructions:
    """Return the instructions that a workspace has for agents.

    Files with the same text are quoted once. What cannot be read is left out.

    Args:
        filesystem: The workspace.
        tokens: The budget of all texts together, as `estimate_tokens` counts.
        inventory: The files of the workspace, to name the instructions of subdirectories; None
            names none.
    """
    files: list[InstructionFile] = []
    named: list[NamedInstructions] = []
    paths: set[str] = set()
    seen: set[str] = set()
    for path in _candidates(filesystem):
        text = _read(filesystem, path).strip()
        imported = _IMPORT_ONLY.fullmatch(text)
        if not text or text in seen or (imported and imported[1].removeprefix("./") in paths):
            continue
        paths.add(path)
        seen.add(text)
        scope = _scope(text)
        if scope is not None:
            named.append(NamedInstructions(path, scope))
            continue
        left = tokens - sum(each.tokens for each in files)
        cut = _cut(path, text, min(left, MAX_FILE_TOKENS))
        if cut.text:
            files.append(cut)
        else:
            named.append(NamedInstructions(path))
    named += _nested(inventory)
    return ProjectInstructions(tuple(files), tuple(named[:MAX_NAMED]))


def cut_instructions(path: str, text: str, *, tokens: int = MAX_FILE_TOKENS) -> InstructionFile:
    """Return a text as instructions, without the lines at its end that do not fit."""
    return _cut(path, text.strip(), tokens)


def _candidates(filesystem: Filesystem) -> Iterator[str]:
    """Yield the paths of files with instructions for the whole workspace."""
    for path in AGENT_FILES:
        if filesystem.exists(path):
            yield path
    for directory in RULE_DIRECTORIES:
        yield from _list_rules(filesystem, directory.rstrip("/"))


def _list_rules(filesystem: Filesystem, directory: str) -> Iterator[str]:
    try:
        entries = filesystem.list(directory) if filesystem.exists(directory) else ()
    except OSError:
        return
    paths = (each.path for each in entries if each.name.endswith((".md", ".mdc")))
    yield from sorted(paths)[:_MAX_RULES]


def _read(filesystem: Filesystem, path: str) -> str:
    """Return the text of a file, or of the file in the workspace that it is a link to."""
    try:
        target = filesystem.stat(path).link_target
        if target is not None:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        # neither a second link nor a path out of the workspace can be read
        data = filesystem.read_bytes(path, limit=_MAX_BYTES).content
    except (OSError, ValueError):
        return ""
    return "" if b"\0" in data else data.decode("utf-8-sig", "replace")


def _scope(text: str) -> str | None:
    """Return the files that rules are for, if they are only for some."""
    header = _FRONT_MATTER.match(text)
    if header is None:
        return None
    pattern = _SCOPE.search(header[1])
    if pattern is not None and pattern[1].strip("\"'[] ") not in _EVERYWHERE:
        return pattern[1].rstrip()
    return "" if _OPTIONAL.search(header[1]) else None


def _cut(path: str, text: str, tokens: int) -> InstructionFile:
    whole = InstructionFile(path, text, estimate_tokens(text))
    if whole.tokens <= tokens:
        return whole
    lines = text.split("\n")
    kept = first_lines(lines, tokens)
    shown = "\n".join(kept)
    return replace(
        whole, text=shown, tokens=estimate_tokens(shown), omitted_lines=len(lines) - len(kept)
    )


def _nested(inventory: Inventory | None) -> Sequence[NamedInstructions]:
    files = () if inventory is None else inventory.files
    found: list[NamedInstructions] = []
    for each in files:
        directory = each.path.rpartition("/")[0]
        if directory and each.name in _NESTED_NAMES and each.path not in AGENT_FILES:
            found.append(NamedInstructions(each.path, f"{directory}/"))
    return found


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
    shown = len(first_lines([f"> {line}" for line in lines], left))
    return Convention(path, tuple(lines[:shown]), len(lines) - shown) if shown else None
