"""The repository map: the most central files of a workspace, with an outline of each.

Every source file is scanned for names, the files are ranked by who refers to whom, and the first
ones are parsed until their outlines fill the token budget.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weakincentives.contrib.digest.budget import (
    count,
    estimate_tokens,
    line_tokens,
    lines_tokens,
    quote_path,
)
from weakincentives.contrib.digest.cache import DigestCache
from weakincentives.contrib.digest.definitions import Outline, SourceDefinition
from weakincentives.contrib.digest.file_ranking import find_definers, rank_files
from weakincentives.contrib.digest.inventory import MAX_READ, Inventory, take_inventory
from weakincentives.contrib.digest.languages import language_of
from weakincentives.contrib.digest.outline import OutlineParser, ParseError, can_outline
from weakincentives.contrib.digest.scanner import FileNames, scan
from weakincentives.extras import install_command
from weakincentives.filesystem import Filesystem, normalize_path

DEFAULT_MAP_TOKENS = 2_000
"""Tokens of a repository map, unless more or fewer are asked for."""
MIN_TOKENS = 200
"""The smallest budget of a repository map or a digest."""
MAX_SOURCE_FILES = 20_000
"""Source files that are scanned; further ones are left out with a warning."""
_DEFINITIONS_SHOWN = 8  # definitions of one file, the most used ones
_FOCUS_DEFINITIONS_SHOWN = 60  # definitions of a file in focus
_PATHS_SHARE = 8  # one part in so many of the tokens is for paths without an outline
_MISSING_EXTRA = "No outline for {files} in {languages}: install the grammars with {command}."


@dataclass(frozen=True, slots=True)
class RepositoryMap:
    """The outline of the most central files, within a token budget."""

    text: str
    """The map as text: a path, then its definitions with their line numbers."""
    tokens: int
    """The estimated tokens of `text`; never more than asked for."""
    files: tuple[str, ...]
    """The files in the map, the most central first."""
    source_files: int
    """The source files that were ranked."""
    tree_hash: str
    """The hash of what was read; another tree has another hash."""
    warnings: tuple[str, ...] = ()
    """What is left out and why, each in one sentence."""


def repo_map(
    filesystem: Filesystem,
    path: str = ".",
    *,
    tokens: int = DEFAULT_MAP_TOKENS,
    cache: DigestCache | None = None,
) -> RepositoryMap:
    """Return the repository map of a workspace, or the part of it around `path`.

    With a `path`, a file or a directory, its files come first, then those that they use and that
    use them.

    Raises:
        ValueError: `tokens` is less than 200.
        FileNotFoundError: `path` does not exist.
        OSError: The workspace cannot be listed.
    """
    check_tokens(tokens)
    inventory = take_inventory(filesystem)
    focus = find_focus(inventory, path)
    used = DigestCache() if cache is None else cache
    found = map_inventory(inventory, used, tokens=tokens, focus=focus)
    used.save()
    return found


def check_tokens(tokens: int) -> None:
    """Check a token budget.

    Raises:
        ValueError: It is too small.
    """
    if tokens < MIN_TOKENS:
        raise ValueError(f"tokens must be at least {MIN_TOKENS}: {tokens}")


def find_focus(inventory: Inventory, path: str) -> tuple[str, ...]:
    """Return the files at or below `path`; none if it is the root.

    Raises:
        FileNotFoundError: `path` does not exist.
    """
    key = normalize_path(path)
    if not key:
        return ()
    inventory.filesystem.stat(key)
    prefix = key + "/"
    return tuple(
        each.path for each in inventory.files if each.path == key or each.path.startswith(prefix)
    )


def map_inventory(
    inventory: Inventory, cache: DigestCache, *, tokens: int, focus: Sequence[str] = ()
) -> RepositoryMap:
    """Return the repository map of an inventory; `focus` are the files to begin with."""
    with OutlineParser() as parser:
        builder = _MapBuilder(inventory, cache, focus, parser)
        lines = builder.build(tokens)
    text = "\n".join(lines)
    return RepositoryMap(
        text=text,
        tokens=estimate_tokens(text),
        files=tuple(builder.shown),
        source_files=len(builder.names),
        tree_hash=inventory.tree_hash,
        warnings=(*inventory.warnings, *builder.warnings()),
    )


class _MapBuilder:
    """Scans, ranks and outlines the files of one inventory."""

    def __init__(
        self,
        inventory: Inventory,
        cache: DigestCache,
        focus: Sequence[str],
        parser: OutlineParser,
    ) -> None:
        self._parser = parser
        self._inventory = inventory
        self._cache = cache
        self._focus = frozenset(focus)
        self._too_large = 0
        self._too_many = 0
        self._unsupported: dict[str, int] = {}
        self.shown: list[str] = []
        self.names: Mapping[str, FileNames] = dict(self._scan())

    def build(self, tokens: int) -> list[str]:
        """Return the lines of the map."""
        ranked = [path for path, _ in rank_files(self.names, focus=self._focus)]
        first = [path for path in ranked if path in self._focus]
        order = [*first, *(path for path in ranked if path not in self._focus)]
        users = _count_users(self.names)
        reserve = tokens // _PATHS_SHARE
        lines: list[str] = []
        left = tokens - reserve
        rest: list[str] = []
        for number, path in enumerate(order):
            block = self._outline_lines(path, users)
            left -= lines_tokens(block)
            if left < 0:
                left += lines_tokens(block)
                rest += order[number:]
                break
            (self.shown if block else rest).append(path)
            lines += block
        return [*lines, *self._path_lines(rest, left + reserve)]

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each reason why files are left out."""
        if self._too_large:
            yield (
                f"{count(self._too_large, 'source file')} larger than {MAX_READ // 1024} KiB"
                " left out of the repository map."
            )
        if self._too_many:
            yield (
                f"The repository map covers {MAX_SOURCE_FILES:,} source files;"
                f" {self._too_many:,} more are left out."
            )
        if self._parser.failures:
            yield (
                f"{count(self._parser.failures, 'file')} without an outline: too much time or"
                " memory to parse."
            )
        if self._unsupported:
            languages = ", ".join(sorted(self._unsupported))
            files = count(sum(self._unsupported.values()), "file")
            yield _MISSING_EXTRA.format(
                files=files, languages=languages, command=install_command("repomap")
            )

    def _scan(self) -> Iterator[tuple[str, FileNames]]:
        families: dict[str, str] = {}
        wants_all = any(map(self._inventory.is_vendored, self._focus))
        for each in self._inventory.files:
            language = language_of(each.name)
            if not language.family:
                continue
            if not wants_all and self._inventory.is_vendored(each.path):
                continue
            if each.size > MAX_READ:
                self._too_large += 1
                continue
            if len(families) == MAX_SOURCE_FILES:
                self._too_many += 1
                continue
            if not can_outline(language.family):
                self._unsupported[language.name] = self._unsupported.get(language.name, 0) + 1
            families[each.path] = language.family
        found = dict(self._find_names(families))
        unknown = [path for path in families if path not in found]
        for path, content in self._inventory.read_all(unknown):
            found[path] = self._names_of(path, families[path], content)
        yield from ((path, found[path]) for path in families)

    def _find_names(self, families: Mapping[str, str]) -> Iterator[tuple[str, FileNames]]:
        """Yield the files whose names are known without reading them."""
        for path, found in self._inventory.find_hashes(list(families)).items():
            names = self._cache.find_names(f"{families[path]}:{found}")
            if names is not None:
                self._inventory.hashes[path] = found
                yield path, names

    def _names_of(self, path: str, family: str, content: bytes | None) -> FileNames:
        if content is None:
            return FileNames()
        key = self._key(path, family)
        return self._cache.names(key, lambda: scan(content.decode("utf-8", "replace"), family))

    def _key(self, path: str, family: str) -> str:
        return f"{family}:{self._inventory.hashes[path]}"

    def _outline(self, path: str) -> Outline:
        family = language_of(path.rpartition("/")[2]).family
        if not can_outline(family):
            return ()
        known = self._cache.find_outline(self._key(path, family))
        if known is not None:
            return known
        # read again, since keeping every file in memory costs more; the key is of what is read now
        content = self._inventory.read(path)
        if content is None:
            return ()
        try:
            return self._cache.outline(
                self._key(path, family), lambda: self._parser.parse(content, family)
            )
        except ParseError:
            return ()

    def _outline_lines(self, path: str, users: Mapping[str, int]) -> list[str]:
        """Return the lines for one file; none if there is nothing to show of it."""
        outline = self._outline(path)
        most = _FOCUS_DEFINITIONS_SHOWN if path in self._focus else _DEFINITIONS_SHOWN
        chosen = _choose(outline, users, most)
        if not chosen:
            return []
        lines = [f"{quote_path(path)}:"]
        lines += [f"{each.line:>5} {'  ' * min(each.depth, 6)}{each.signature}" for each in chosen]
        if len(chosen) < len(outline):
            lines.append(f"      … {count(len(outline) - len(chosen), 'more definition')}")
        return lines

    def _path_lines(self, paths: Sequence[str], tokens: int) -> list[str]:
        """Return the next files without an outline, as many as fit."""
        line = "Next by rank:"
        for number, path in enumerate(paths):
            longer = f"{line}{',' if number else ''} {quote_path(path)}"
            if line_tokens(longer) > tokens:
                break
            line = longer
            self.shown.append(path)
        return [line] if paths and line != "Next by rank:" else []


def _count_users(names: Mapping[str, FileNames]) -> dict[str, int]:
    """Return for each name that is defined somewhere how many files refer to it."""
    defined = {name for _, name in find_definers(names)}
    users: dict[str, int] = {}
    for found in names.values():
        for name, _ in found.references:
            if name in defined:
                users[name] = users.get(name, 0) + 1
    return users


def _choose(outline: Outline, users: Mapping[str, int], most: int) -> Sequence[SourceDefinition]:
    """Return the definitions to show, in their order: the most used, with what contains them."""
    if len(outline) <= most:
        return outline
    numbers = sorted(
        range(len(outline)),
        key=lambda number: (
            outline[number].name.startswith("_"),
            outline[number].depth > 0 or outline[number].signature.startswith("impl"),
            -users.get(outline[number].name, 0),
            number,
        ),
    )
    chosen: set[int] = set()
    for number in numbers:
        wanted = {number, *_containers(outline, number)}
        if len(chosen | wanted) > most:
            break
        chosen |= wanted
    return [outline[number] for number in sorted(chosen)]


def _containers(outline: Outline, number: int) -> Iterator[int]:
    """Yield the definitions that contain the one with this number."""
    depth = outline[number].depth
    for before in range(number - 1, -1, -1):
        if depth == 0:
            return
        if outline[before].depth < depth:
            depth = outline[before].depth
            yield before
