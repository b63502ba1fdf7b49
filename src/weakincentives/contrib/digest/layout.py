"""The layout of a workspace: its size, its languages and the directories at the top of its tree."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weakincentives.contrib.digest.budget import count, fit_lines, format_size, quote_path, shorten
from weakincentives.contrib.digest.inventory import Inventory, SourceFile
from weakincentives.contrib.digest.languages import is_code, language_of
from weakincentives.posix import parent_of

MAX_LANGUAGES = 8
MAX_ROOT_FILES = 30
_MANY, _MANY_SHOWN = 12, 6  # directories beside each other; of more, the largest have a line
_LARGE_DIRECTORY = 20  # files below a directory that make its own directories worth a line


@dataclass(frozen=True, slots=True)
class LanguageShare:
    """How much of a workspace is in one language."""

    name: str
    files: int
    size: int


@dataclass(frozen=True, slots=True)
class DirectoryShare:
    """A directory with everything below it."""

    path: str
    files: int
    size: int
    language: str
    """The language of most of the code in it; of most of the files, if there is no code."""


def measure_languages(inventory: Inventory) -> Sequence[LanguageShare]:
    """Return the languages, those with most code first, then data by the number of files."""
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    code: set[str] = set()
    for each in inventory.files:
        language = language_of(each.name)
        files[language.name] += 1
        sizes[language.name] += each.size
        if is_code(language):
            code.add(language.name)
    shares = [LanguageShare(name, files[name], sizes[name]) for name in files]
    return sorted(shares, key=lambda each: (each.name not in code, -each.size, each.name))


def summarize_directories(inventory: Inventory) -> Sequence[DirectoryShare]:
    """Return the top directories, and those inside large ones, in the order of the tree."""
    below: dict[str, list[SourceFile]] = {}
    for each in inventory.files:
        segments = each.path.split("/")[:-1]
        for depth in range(1, min(len(segments), 3) + 1):
            directory = "/".join(segments[:depth])
            below.setdefault(directory, []).append(each)
            if directory in inventory.vendored:
                break
    return [
        _summary(path, files) for path, files in sorted(below.items()) if _is_notable(path, below)
    ]


def render_layout(inventory: Inventory, tokens: int) -> list[str]:
    """Return the lines of the layout that fit into `tokens`."""
    size = sum(each.size for each in inventory.files)
    head = [f"{count(len(inventory.files), 'file')}, {format_size(size)}. {_languages(inventory)}"]
    root = [each for each in inventory.files if "/" not in each.path]
    if root:
        names = [quote_path(each.path) for each in root[:MAX_ROOT_FILES]]
        more = len(root) - len(names)
        tail = f", {count(more, 'more file')}" if more else ""
        head.append(shorten(f"At the root: {', '.join(names)}{tail}", 1_200))
    if inventory.ignored:
        head.append(shorten(f"Ignored or generated, not read: {_ignored(inventory)}", 400))
    if inventory.vendored:
        names = (f"{quote_path(each)}/" for each in sorted(inventory.vendored)[:8])
        head.append(shorten(f"Vendored or test data, not in the map: {', '.join(names)}", 400))
    if inventory.links:
        head.append(f"{count(inventory.links, 'symbolic link')}, not followed.")
    return fit_lines([*head, *_directory_lines(inventory)], tokens, noun="directory")


def _directory_lines(inventory: Inventory) -> Iterator[str]:
    """Yield the directories at the top first, so that they stay when space is short."""
    summaries = summarize_directories(inventory)
    by_parent: dict[str, list[DirectoryShare]] = {}
    for each in summaries:
        by_parent.setdefault(parent_of(each.path), []).append(each)
    for parent in sorted(by_parent, key=lambda path: (path.count("/") + bool(path), path)):
        children = by_parent[parent]
        total = sum(each.files for each in children)
        shown = [each for each in children if not parent or each.files * 50 >= total]
        if len(shown) > _MANY:
            large = sorted(shown, key=lambda each: (-each.files, each.path))[:_MANY_SHOWN]
            shown = sorted(large, key=lambda each: each.path)
        for each in shown:
            size = format_size(each.size)
            yield f"{quote_path(each.path)}/  {count(each.files, 'file')}, {size}, {each.language}"
        small = [each for each in children if each not in shown]
        if len(small) >= _MANY_SHOWN:
            yield _small_directories(parent, small)


def _small_directories(parent: str, small: Sequence[DirectoryShare]) -> str:
    """Return the line for those of many directories that have no line of their own."""
    files = [each.files for each in small]
    least, most = min(files), max(files)
    size = f"{least:,} to {most:,} files" if least < most else count(most, "file")
    names = ", ".join(quote_path(each.path[len(parent) :].lstrip("/")) for each in small)
    where = f"{quote_path(parent)}/  " if parent else ""
    return shorten(f"{where}{count(len(small), 'more directory')} of {size} each: {names}", 300)


def _ignored(inventory: Inventory) -> str:
    """Return the ignored directories at the root, and the names of those below."""
    top = [each for each in inventory.ignored if "/" not in each]
    below = dict.fromkeys(each.rpartition("/")[2] for each in inventory.ignored if "/" in each)
    names = [*(quote_path(each) for each in top), *(f"**/{quote_path(each)}" for each in below)]
    return ", ".join(f"{each}/" for each in names[:8])


def _languages(inventory: Inventory) -> str:
    shares = measure_languages(inventory)
    known = [each for each in shares if each.name != "other"][:MAX_LANGUAGES]
    parts = [f"{each.name} {each.files:,} ({format_size(each.size)})" for each in known]
    return f"Files by language: {', '.join(parts)}." if parts else "No known language."


def _is_notable(path: str, below: dict[str, list[SourceFile]]) -> bool:
    depth = path.count("/")
    if depth == 0:
        return True
    parent = path.rpartition("/")[0]
    return len(below[parent]) >= _LARGE_DIRECTORY * depth and _is_notable(parent, below)


def _summary(path: str, files: list[SourceFile]) -> DirectoryShare:
    sizes: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for each in files:
        language = language_of(each.name)
        (sizes if is_code(language) else others)[language.name] += each.size + 1
    counted = sizes or others
    main = min(counted, key=lambda name: (-counted[name], name))
    return DirectoryShare(path, len(files), sum(each.size for each in files), main)
